"""Real runs of a job, as tune and validate share them: kept as they end, and begun until there is a reason to stop."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import DeviceError, LauncherError
from jointopt.core.schema import Bools, Ints
from jointopt.measure.base import Launcher
from jointopt.report.real_runs import TERMINATED
from jointopt.report.results import MeasuredRun
from jointopt.report.tables import result
from jointopt.runs.outages import PATIENCE_S
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.measurements import Measurements
from jointopt.surrogate.power_unit import REFUSED
from jointopt.surrogate.time_unit import DOUBTED, QUESTION
from jointopt.workflows.campaign.candidates import Candidates
from jointopt.workflows.campaign.earlier import Earlier, earlier_runs
from jointopt.workflows.campaign.outlook import broken_constraints
from jointopt.workflows.campaign.profiles import under_profile
from jointopt.workflows.campaign.record import Done, Queued, Record
from jointopt.workflows.campaign.verdict import same_cause

_log = logging.getLogger(__name__)
_TOLD = ("iteration_time_s", "energy_j")


class Campaign:
    """Runs of the job of ``model`` by ``launcher``, kept in ``storage`` (a database URL, None: nowhere).

    ``measured``: runs at hand, which count as those of the storage do. ``verb`` is the command that starts the runs,
    ``retry`` its option that runs plans which failed again.
    """

    def __init__(
        self, model: JobModel, launcher: Launcher, storage: str | None, measured: Measurements | None, verb: str,
        retry: str,
    ) -> None:  # fmt: skip
        self.model, self.job, self.launcher = model, model.job, launcher
        self.notes: list[str] = []  # sentences for the result
        self.reason = ""  # why no other run is begun
        self.unstored = 0
        self.record = Record(self.job, storage, f"{verb} {launcher.name} {self.job.name}", self.note)
        self._given = [] if measured is None else [measured.table]
        self._retry = retry
        self._ended: list[Mapping[str, Any]] = []  # rows, in the order in which they ended
        self._doubted = False

    def note(self, text: str) -> None:
        """A sentence for the result, logged at once."""
        self.notes.append(text)
        _log.info(text)

    def _note_once(self, text: str) -> None:
        if text and text not in self.notes:
            self.note(text)

    def earlier(self, candidates: pd.DataFrame, power_profile: str = "") -> Earlier:
        """The known measurements of the ``candidates`` (rows), and of other jobs on their cluster.

        ``power_profile``: of runs under it, of which each counts as that of a candidate at its highest clock.
        """
        tables = [*self._given, *([] if self.record.store is None else [self.record.related(candidates)])]
        known = [table for table in tables if len(table)]
        if not known:
            return Earlier()
        together = under_profile(pd.concat(known, ignore_index=True), candidates, power_profile)
        found = earlier_runs(candidates, together, self.model.surrogate, self.job.cluster.machine)
        if found.unread:
            self.note(
                f"What the store holds of earlier runs is not used, as one of them cannot be read: {found.unread}"
            )
        return found

    def left_over(self, candidates: Candidates, left: Bools) -> Ints:
        """Those ``left`` (n,) whose runs a killed tune had begun: on a cluster they may go on, and are collected."""
        known = [plan for plan, _ in self.record.left(self.launcher)]
        records = [candidates.record(index) for index in np.flatnonzero(left).tolist()] if known else []
        found = np.flatnonzero(left)[[i for i, record in enumerate(records) if record in known]]
        if len(found):
            self.note(f"A tune that was killed had begun {count(len(found), 'run')}, resumed before any other.")
        return found

    def broken_by(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the job's constraints that a measured run does not keep."""
        return broken_constraints(self.job, row)

    def run_all(self, queue: Iterable[Queued], name: Callable[[int], str]) -> Generator[tuple[int, Done], None, None]:
        """Run the plans of ``queue``, each given with its place as soon as it is kept.

        None is drawn once there is a reason to stop. ``name`` is how the run at a place is called in words.
        """

        def drawn() -> Iterator[Queued]:
            for each in queue:
                yield each
                if self.reason:
                    return

        def report(place: int, text: str) -> None:
            _log.info("%s: %s", name(place), text)

        return self.record.run_all(self.launcher, drawn(), self.broken_by, report)

    def tell(self, run: MeasuredRun, called: str) -> None:
        """Log how a run ended, and note the first that is so far from its prediction that a unit may be."""
        _log.info("%s: %s", called, outcome(run))
        if not self._doubted and (doubt := in_another_unit(run) or drew_too_far(run)):
            self._doubted = True
            self.note(f"{called.capitalize()} {doubt}")

    def judge(self, done: Done, run: str) -> None:
        """Find a reason to stop after a run, called ``run`` in sentences: a full store, or failures for one cause."""
        self._ended.append(done.row)
        if done.trouble:
            self.unstored += 1
            self.give_up(f"{run} is not stored: {done.trouble}")
        elif not self.reason and (cause := same_cause(self._ended, self.launcher, self._retry)):
            self.give_up(cause)

    def give_up(self, reason: str) -> None:
        """Begin no other run; the first reason counts, every one is noted."""
        self.reason = self.reason or reason
        self.note(reason)

    def until_the_end(self, work: Callable[[], str], has_begun: Callable[[], bool]) -> str:
        """Do ``work`` and return why it ended: its answer, interrupted (SIGINT), or failed.

        Raises LauncherError where no run ``has_begun``.
        """
        wait_s = PATIENCE_S
        try:
            stopped = work()
        except KeyboardInterrupt:
            stopped, wait_s = "interrupted", 0.0
        except SystemExit:
            wait_s = 0.0
            raise
        except (LauncherError, DeviceError) as error:
            if not has_begun():
                raise
            self.give_up(f"No further run could be started: {error}")
            stopped = "failed"
        finally:
            unstored = self._settle(wait_s)
            if isinstance(sys.exception(), SystemExit):
                nowhere = "" if self.record.store else "No storage was given that keeps runs."
                _log.info(f"Ended by a signal. {unstored or nowhere}" if unstored or nowhere else TERMINATED)
        return "failed" if unstored and stopped != "interrupted" else stopped

    def _settle(self, wait_s: float) -> str:
        """Have the store take what waits in files; why it does not, in words, which are noted."""
        try:
            unstored = self.record.settle(wait_s)
        except KeyboardInterrupt:  # of somebody who does not want to wait for the database
            unstored = self.record.settle(0.0)
        if unstored and not self.unstored:
            self.unstored = self.record.unstored
            self.give_up(unstored)
        elif self.unstored and not unstored:
            self.unstored = 0
            self.note("The store has all runs now.")
        return unstored


def outcome(run: MeasuredRun) -> str:
    """The results of a run beside what was expected, or how it failed, in one line."""
    if run.status != "ok":
        return f"{run.status}: {run.row.get('notes') or 'no reason known'}"
    parts = []
    for name in _TOLD:
        measured, expected = run.result(name), run.predicted.get(name, float("nan"))
        if np.isfinite(measured):
            beside = f" ({result(name, expected)} expected)" if np.isfinite(expected) else ""
            parts.append(f"{result(name, measured)}{beside}")
    return ", ".join([*parts, *(f"beyond the bound on {name}" for name in run.broken)])


def in_another_unit(run: MeasuredRun) -> str:
    """The rest of a sentence on a run whose time is far beyond its interval and its prediction; empty of others."""
    times = run.result("iteration_time_s") / run.predicted.get("iteration_time_s", math.nan)
    if run.inside("iteration_time_s") or not (times > DOUBTED or times < 1 / DOUBTED):
        return ""
    return f"took {times:.3g} times what was predicted: {QUESTION}"


def drew_too_far(run: MeasuredRun) -> str:
    """The rest of a sentence on a run whose power is not learned from (`MeasuredWatts.refused`); empty of others.

    A run that takes longer may draw less, as its GPUs wait, and no less energy.
    """
    energy, time = (run.result(name) / run.predicted.get(name, math.nan) for name in ("energy_j", "iteration_time_s"))
    if run.inside("energy_j") or not (energy / time > REFUSED or max(energy, energy / time) < 1 / REFUSED):
        return ""
    return (
        f"drew {energy / time:.3g} times the power that was predicted, which is not learned from: is energy_j in J, of "
        "all GPUs and of one iteration?"
    )


def count(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
