"""The answer of ``work``: what one worker evaluated, and the front of the study when it left."""

from __future__ import annotations

from dataclasses import dataclass

from jointopt.core.schema import Columns
from jointopt.core.secrets import masked
from jointopt.jobs.objectives import OBJECTIVES, words
from jointopt.report.plans import predicted_table
from jointopt.report.tables import plan_entries, study_lines


@dataclass(frozen=True)
class Shared:
    """The plans that one worker evaluated, and the front that the study had when it left (sorted by time)."""

    study_name: str
    evaluated: int
    failed: int
    finished: int  # of the study, by all workers
    front: Columns
    goals: tuple[str, ...] = OBJECTIVES

    def text(self, storage: str) -> str:
        """The share of this worker, the ends of the front, and the command that opens the study."""
        front, size = self.front, len(self.front["energy_j"])
        failed = f", {self.failed:,} could not be evaluated" if self.failed else ""
        by = "" if self.goals == OBJECTIVES else f" of {words(self.goals)}"
        study = f"the study has {self.finished:,}, {size:,} of them on the front{by}"
        lines = [f"{self.evaluated:,} plans evaluated here{failed}; {study}."]
        best = {0, size // 2, size - 1}
        if size and self.goals != OBJECTIVES:
            best = {int(front[name].argmin()) for name in self.goals}
        if rows := sorted(best) if size else []:
            lines += predicted_table(plan_entries(front, rows), [""] * len(rows))
        return "\n".join([*lines, *study_lines(self.study_name, masked(storage))])
