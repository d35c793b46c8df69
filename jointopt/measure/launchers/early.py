"""Runs that are clearly behind, recognised by the iterations in their logs while they run, and ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jointopt.core.facts import Failure, FailureKind
from jointopt.measure.launchers.process import whole_log
from jointopt.measure.launchers.program import Program
from jointopt.measure.launchers.rows import failed_row
from jointopt.measure.trainer.spec import JUDGED_ON
from jointopt.spec.job import Job


class OfProgram:
    """A launcher of one ``program``, which knows the bound of `EndsEarly`."""

    program: Program

    @property
    def behind_s(self) -> float:
        """As of `EndsEarly`."""
        return self.program.behind_s

    @behind_s.setter
    def behind_s(self, seconds: float) -> None:
        """Set it."""
        self.program.behind_s = seconds


def row_of_bound(seconds: Sequence[float], behind_s: float) -> dict[str, Any]:
    """The result columns of a run that was ended after iterations of these seconds: the least of them is its time."""
    least = min(seconds)
    words = f"ended early: each of {len(seconds)} iterations took {least:.4g} s or more, beyond {behind_s:.4g}"
    return failed_row(Failure(FailureKind.BEHIND, words)) | {"iteration_time_s": least}


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
    return row_of_bound(seconds, program.behind_s)


class Early:
    """A look at the log of one run now and then: `over` is true once the run is behind, whose `row` is then known."""

    def __init__(self, program: Program, job: Job, log: Path) -> None:
        self._program, self._job, self._log = program, job, log
        self.row: dict[str, Any] | None = None

    def over(self) -> bool:
        """Whether the run is behind."""
        self.row = behind_row(self._program, self._job, self._log)
        return self.row is not None
