"""The last words of a worker of a shared study."""

from __future__ import annotations

from typing import Protocol

from jointopt.core.schema import LAYOUT_COLUMNS, Columns
from jointopt.runs.database import without_password
from jointopt.spec.plans.parse import format_plan


class SharedStudy(Protocol):
    """The share of one worker, and the front that the study had when it left."""

    @property
    def study_name(self) -> str: ...
    @property
    def evaluated(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def finished(self) -> int: ...
    @property
    def front(self) -> Columns: ...


def shared_text(found: SharedStudy, storage: str) -> str:
    """The share of this worker, the ends of the front, and the command that opens the study."""
    size = len(found.front["energy_j"])
    failed = f", {found.failed:,} could not be evaluated" if found.failed else ""
    lines = [
        f"{found.evaluated:,} plans evaluated here{failed}; the study has {found.finished:,}, "
        f"{size:,} of them on the front.",
        *(_row(found.front, row) for row in sorted({0, size // 2, size - 1} if size else ())),
        f"Study: {found.study_name}",
        f"  jointopt dashboard --storage {without_password(storage)}",
    ]
    return "\n".join(lines)


def _row(front: Columns, row: int) -> str:
    plan = format_plan({name: front[name] for name in LAYOUT_COLUMNS}, front["stage_clock_mhz"], row)
    return f"  {front['iteration_time_s'][row]:.4g} s  {front['energy_j'][row] / 1e3:.5g} kJ  {plan}"
