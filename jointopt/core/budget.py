"""The budget of a tune: runs, GPU-hours, minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jointopt.core.errors import UsageError

_ROUNDING = 1e-9  # a run that just fits may begin


@dataclass(frozen=True)
class Spent:
    """Runs, GPU-hours and minutes used so far."""

    runs: int = 0
    gpu_hours: float = 0.0
    minutes: float = 0.0  # of runs and of thinking about them

    def after_run(self, run_s: float, num_gpus: int, minutes: float) -> Spent:
        """With one run more, of ``run_s`` seconds on ``num_gpus``, at ``minutes`` since the beginning."""
        return Spent(self.runs + 1, self.gpu_hours + num_gpus * run_s / 3600, minutes)

    def with_more(self, runs: int) -> Spent:
        """With ``runs`` runs more, each of the mean GPU-hours of those before."""
        runs = max(runs, 0)
        return Spent(self.runs + runs, self.gpu_hours * (1 + runs / max(self.runs, 1)), self.minutes)


@dataclass(frozen=True)
class Budget:
    """Upper bounds, None = unbounded; raises UsageError where none is given, or one is not above zero."""

    runs: int | None = None
    gpu_hours: float | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise UsageError("A budget is needed: --budget RUNS, --gpu-hours or --minutes.")
        for name in (name for name, value in given.items() if not value > 0):
            raise UsageError(f"A budget must be above zero; got {given[name]!r} for {name}.")

    def runs_left(self, spent: Spent) -> int:
        """Number of runs that may begin: none that, lasting as long as those before on average, goes beyond a bound.

        The first run always may, since nothing is known of what one takes; where GPU-hours are bounded it goes alone.
        """
        left = math.inf if self.runs is None else self.runs - spent.runs
        if self.gpu_hours is not None and not spent.runs:
            left = min(left, 1)
        for bound, used in ((self.gpu_hours, spent.gpu_hours), (self.minutes, spent.minutes)):
            if bound is not None and spent.runs:
                each = used / spent.runs
                left = min(left, (bound - used) / each + _ROUNDING if each > 0 else math.inf)
        return int(max(0, min(left, 10**9)))

    def first_bound(self, spent: Spent) -> tuple[float, float]:
        """(spent, bound) of the first of runs, GPU-hours and minutes that is bounded."""
        pairs = ((spent.runs, self.runs), (spent.gpu_hours, self.gpu_hours), (spent.minutes, self.minutes))
        return next((float(used), float(bound)) for used, bound in pairs if bound is not None)

    def words(self, spent: Spent) -> str:
        """The spent share in words: ``3 of 8 runs, 0.2 of 1 GPU-hours``."""
        units = {"runs": "runs", "gpu_hours": "GPU-hours", "minutes": "minutes"}
        pairs = {unit: (getattr(spent, name), getattr(self, name)) for name, unit in units.items()}
        return ", ".join(f"{used:.3g} of {bound:g} {unit}" if unit != "runs" else f"{used} of {bound} {unit}"
                         for unit, (used, bound) in pairs.items() if bound is not None)  # fmt: skip

    def document(self) -> dict[str, Any]:
        """The budget as a JSON document has it."""
        return asdict(self)


def read_spent(document: Mapping[str, Any]) -> Spent:
    """Read back a `Spent` that `dataclasses.asdict` made a mapping of."""
    return Spent(int(document["runs"]), float(document["gpu_hours"]), float(document["minutes"]))
