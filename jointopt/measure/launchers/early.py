"""Runs that are clearly behind, told from the iterations in their logs while they run, and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jointopt.core.facts import Failure, FailureKind
from jointopt.measure.launchers.process import whole_log
from jointopt.measure.launchers.program import Program
from jointopt.measure.launchers.rows import failed_row
from jointopt.spec.job import Job

JUDGED_ON = 3  # measured iterations


def behind_row(program: Program, job: Job, log: Path) -> dict[str, Any] | None:
    """The result columns of a run whose first measured iterations all took longer than ``program.behind_s``.

    The least of them is its time, a lower bound. None where it is not behind, or the log does not say so yet.
    """
    if not program.behind_s or not log.is_file():
        return None
    text, _, _ = whole_log(log).rpartition("\n")  # the last line may be half written
    seconds = program.iteration_s(job, text)[:JUDGED_ON]
    if len(seconds) < JUDGED_ON or min(seconds) <= program.behind_s:
        return None
    words = f"ended early: each of {len(seconds)} iterations took {min(seconds):.4g} s or more, beyond"
    failure = Failure(FailureKind.BEHIND, f"{words} {program.behind_s:.4g}")
    return failed_row(failure) | {"iteration_time_s": min(seconds)}


class Early:
    """A look at the log of one run now and then: `over` is true once the run is behind, whose `row` is then known."""

    def __init__(self, program: Program, job: Job, log: Path) -> None:
        self._program, self._job, self._log = program, job, log
        self.row: dict[str, Any] | None = None

    def over(self) -> bool:
        """Whether the run is behind."""
        self.row = behind_row(self._program, self._job, self._log)
        return self.row is not None
