"""Runs that are clearly behind, recognised by the iterations in their logs while they run, and ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from jointopt.core.facts import Failure, FailureKind
from jointopt.jobs.job import Job
from jointopt.measure.hardware.meter import Meter
from jointopt.measure.process import Program, whole_log
from jointopt.measure.trainer.spec import JUDGED_ON
from jointopt.runs.readings import LEAST_WINDOW_S
from jointopt.runs.rows import WINDOW, failed_row

SPANS = 3  # of the time that a run was metered for, whose powers are compared
_SPAN_S = 1.1 * LEAST_WINDOW_S  # least length of one


def of_program(name: str) -> Any:
    """An attribute of a launcher that is its program's."""
    return property(
        lambda launcher: getattr(launcher.program, name), lambda launcher, value: setattr(launcher.program, name, value)
    )


def row_of_bound(seconds: Sequence[float], behind_s: float) -> dict[str, Any]:
    """The result columns of a run that was ended after iterations of these seconds: the least of them is its time."""
    least = min(seconds)
    words = f"ended early: each of {len(seconds)} iterations took {least:.4g} s or more, beyond {behind_s:.4g}"
    return failed_row(Failure(FailureKind.BEHIND, words)) | {"iteration_time_s": least}


def least_watts(meter: Meter, start_s: float, end_s: float) -> float:
    """Lower end of the mean power of all GPUs between two times in W; NaN where it was not measured.

    Student's bound, held in 95 % of cases, of the means of three spans as long as each other, each of which shows how
    much the power of one differs from that of the next.
    """
    edges = np.linspace(start_s, end_s, SPANS + 1).tolist()
    readings = [meter.reading(*edge) for edge in pairwise(edges)]
    watts = np.array([one.total_energy_j / one.seconds for one in readings if one.seconds])
    if len(watts) < SPANS:
        return float("nan")
    return float(watts.mean() - stdtrit(SPANS - 1, 0.95) * watts.std(ddof=1) / np.sqrt(SPANS))


class Early:
    """A look at the log of one run now and then: `over` is true once the run is behind, whose `row` is then known.

    ``meter``: that of its GPUs, by which it may be behind in time and energy (`EndsDominated`).
    """

    def __init__(self, program: Program, job: Job, log: Path, meter: Meter | None = None) -> None:
        self._program, self._job, self.log, self._meter = program, job, log, meter
        self._since_s: float | None = None  # when a look first saw a measured iteration
        self.row: dict[str, Any] | None = None

    def over(self) -> bool:
        """Whether its first measured iterations all took longer than ``behind_s``, or it is beyond ``behind_both``.

        The least of them is its time, a lower bound. Its power is known by `SPANS` spans that each hold an iteration
        and are long enough for counters of energy.
        """
        program, meter = self._program, self._meter if self._program.behind_both else None
        if not program.behind_s and meter is None:
            return False
        text = whole_log(self.log).rpartition("\n")[0]  # the last line may be half written
        seconds, known = program.progress(self._job, text)
        first = seconds[:JUDGED_ON]
        if program.behind_s and len(first) == JUDGED_ON and min(first) > program.behind_s:
            self.row = row_of_bound(first, program.behind_s) | dict(known)
        elif meter is not None and seconds:
            now_s = meter.now()
            since_s = self._since_s = self._since_s or now_s
            if len(seconds) <= JUDGED_ON or now_s - since_s < SPANS * max(_SPAN_S, *first):
                return False
            least_s, watts = min(first), least_watts(meter, since_s, now_s)
            beyond = [bound for bound in program.behind_both if least_s > bound[0] and least_s * watts > bound[1]]
            if beyond:
                row = row_of_bound(first, beyond[0][0]) | dict(known)
                words = f"; at {watts:,.0f} W or more an iteration takes {least_s * watts:,.4g} J, beyond "
                row |= {"notes": f"{row['notes']}{words}{beyond[0][1]:,.4g}", "energy_j": least_s * watts}
                self.row = row | dict(zip(WINDOW, ([since_s, now_s], len(seconds)), strict=True))
        return self.row is not None
