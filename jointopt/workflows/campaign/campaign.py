"""Real runs of a job, as tune and validate share them: kept as they end, and begun until there is a reason to stop."""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import DeviceError, JointOptError, LauncherError
from jointopt.core.facts import failure_in
from jointopt.core.quote import sh_command
from jointopt.core.schema import Bools, Ints
from jointopt.frameworks.exported import start_command
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import format_stage_clocks, parse_plan
from jointopt.measure.base import Launcher
from jointopt.physics.cost_model import with_unit
from jointopt.report.plans import differing_columns, plan_words, short_plan
from jointopt.report.real_runs import TERMINATED, MeasuredResult
from jointopt.report.results import MeasuredRun
from jointopt.report.tables import figure, result_text
from jointopt.runs.database import PATIENCE_S, STORAGE
from jointopt.runs.rows import is_bounded
from jointopt.surrogate.data_doubts import DOUBTED, POWER_REFUSED, QUESTION
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.measurements import Measurements
from jointopt.workflows.campaign.candidates import Candidates, runs_under_profile
from jointopt.workflows.campaign.expectation import (
    ENOUGH_TO_JUDGE,
    EarlierRuns,
    broken_constraints,
    earlier_runs,
    values_and_bounds,
)
from jointopt.workflows.campaign.record import FinishedRun, QueuedRun, Record
from jointopt.workflows.stored_plans import front_of_study
from jointopt.workflows.trackers import TrackedRun, Tracker

_log = logging.getLogger(__name__)
_LOGGED_RESULTS = ("iteration_time_s", "energy_j")


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
        self.tracker: Tracker | None = None  # that each run is logged to, once it is stored

    def note(self, text: str) -> None:
        """A sentence for the result, logged at once."""
        self.notes.append(text)
        _log.info(text)

    def _note_once(self, text: str) -> None:
        if text and text not in self.notes:
            self.note(text)

    def earlier(self, candidates: pd.DataFrame, power_profile: str = "") -> EarlierRuns:
        """The known measurements of the ``candidates`` (rows), and of other jobs on their cluster.

        ``power_profile``: of runs under it, of which each counts as that of a candidate at its highest clock.
        """
        tables = [*self._given, *([] if self.record.store is None else [self.record.related(candidates)])]
        known = [table for table in tables if len(table)]
        if not known:
            return EarlierRuns()
        together = runs_under_profile(pd.concat(known, ignore_index=True), candidates, power_profile)
        found = earlier_runs(candidates, together, self.job.cluster.machine)
        if found.unreadable:
            self.note(
                f"What the store holds of earlier runs is not used, as one of them cannot be read: {found.unreadable}"
            )
        return found

    def left_over(self, candidates: Candidates, left: Bools) -> Ints:
        """Those ``left`` (n,) whose runs a killed tune had begun: on a cluster they may go on, and are collected."""
        known = [plan for plan, _ in self.record.left(self.launcher)]
        records = [candidates.record(index) for index in np.flatnonzero(left).tolist()] if known else []
        found = np.flatnonzero(left)[[i for i, record in enumerate(records) if record in known]]
        if len(found):
            self.note(f"A tune that was killed had begun {count_words(len(found), 'run')}, resumed before any other.")
        return found

    def broken_by(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the job's constraints that a measured run does not keep."""
        return broken_constraints(self.job, row)

    def run_all(
        self, queue: Iterable[QueuedRun], name: Callable[[int], str]
    ) -> Generator[tuple[int, FinishedRun], None, None]:
        """Run the plans of ``queue``, each given with its place as soon as it is kept.

        None is drawn once there is a reason to stop. ``name`` is how the run at a place is called in words.
        """

        def drawn() -> Iterator[QueuedRun]:
            for each in queue:
                yield each
                if self.reason:
                    return

        return self.record.run_all(
            self.launcher, drawn(), self.broken_by, lambda place, text: _log.info("%s: %s", name(place), text)
        )

    def tell(self, run: MeasuredRun, called: str) -> None:
        """Log how a run ended, and note the first that is so far from its prediction that a unit may be."""
        text = f"{run.status}: {run.row.get('notes') or 'no reason known'}"
        if run.status == "ok":
            parts = []
            for name in _LOGGED_RESULTS:
                measured, expected = run.result(name), run.predicted.get(name, math.nan)
                if np.isfinite(measured):
                    expectation = f" ({result_text(name, expected)} expected)" if np.isfinite(expected) else ""
                    parts.append(f"{result_text(name, measured)}{expectation}")
            text = ", ".join([*parts, *(f"beyond the bound on {name}" for name in run.broken)])
        _log.info("%s: %s", called, text)
        self._track(run)
        if not self._doubted and (doubt := doubt_of(run)):
            self._doubted = True
            self.note(f"{called.capitalize()} {doubt}")

    def _track(self, run: MeasuredRun) -> None:
        """Log a run to the tracker, if there is one: its plan, and all that was predicted and measured."""
        if self.tracker is None:
            return
        clocks = {"stage_clock_mhz": format_stage_clocks(run.plan["stage_clock_mhz"])}
        metrics = {name: value for name, value in run.document().items() if isinstance(value, float)}
        tags = {"job": self.job.name, "launcher": self.launcher.name, "status": run.status}
        tags |= {"study": self.record.study_name} if self.record.study_name else {}
        name = plan_words(run.plan, ())
        if trouble := self.tracker.log(TrackedRun(name, {**run.plan, **clocks}, metrics, tags, run.status == "ok")):
            _log.warning(trouble)

    def judge(self, done: FinishedRun, run: str) -> None:
        """Find a reason to stop after a run, called ``run`` in sentences: a full store, or failures for one cause."""
        self._ended.append(done.row)
        if done.trouble:
            self.unstored += 1
            self.give_up(f"{run} is not stored: {done.trouble}")
        elif not self.reason and (cause := repeated_failure(self._ended, self.launcher, self._retry)):
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


def doubt_of(run: MeasuredRun) -> str:
    """The rest of a sentence on a run far beyond its prediction and interval, in time or power; empty of others.

    A run that takes longer may draw less, as its GPUs wait, and no less energy: such power is not learned from
    (`MeasuredWatts.refused`).
    """
    time, energy = (run.result(name) / run.predicted.get(name, math.nan) for name in _LOGGED_RESULTS)
    if not run.inside("iteration_time_s") and (time > DOUBTED or time < 1 / DOUBTED):
        return f"took {time:.3g} times what was predicted: {QUESTION}"
    power = energy / time
    if run.inside("energy_j") or not (power > POWER_REFUSED or max(energy, power) < 1 / POWER_REFUSED):
        return ""
    return (
        f"drew {power:.3g} times the power that was predicted, which is not learned from: is energy_j in J, of "
        "all GPUs and of one iteration?"
    )


def count_words(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# Sentences on runs: known before, all ended for one cause, no plan to use among them, objectives not measured.


_CURABLE = ("failed", "timeout")  # a full disk may be mended; too little memory stays too little
UNLIKELY_LEFT = "No plan that is left is likely to fit, each is likelier to run out of memory: a run decides."
APART = (
    "Plans chosen together split the GPUs differently (dp, tp, pp, cp, ep), since near twins would show the same; "
    "--alike takes the best whatever their split."
)
OUT_ALREADY = "the same layout, or one that needs no more memory, ran out of it"
_ALIKE = 3  # failures in a row for one cause: a fourth would be no news


def why_no_usable_plan(job: Job, runs: Sequence[MeasuredRun]) -> str:
    """One sentence: why none of ``runs`` is a plan to use; empty where one is."""
    good = [run for run in runs if run.status == "ok"]
    if any(not run.broken for run in good):
        return ""
    if good:
        # the run whose worst excess is least, and every constraint that it breaks by how much
        held = [values_and_bounds(job, run.row) for run in good]
        worst = [max(value / bound for value, bound in each.values() if value > bound) for each in held]
        best = worst.index(min(worst))
        broken = [
            f"{name} by {100.0 * (value / bound - 1.0):.3g} % ({with_unit(name, figure(value))} over a limit of "
            f"{with_unit(name, figure(bound))})"
            for name, (value, bound) in held[best].items()
            if value > bound
        ]
        several = f"None of the {len(good)} runs that succeeded keeps"
        words = "The only run that succeeded does not keep" if len(good) == 1 else several
        closest = plan_words(good[best].plan, differing_columns(run.plan for run in good))
        return f"{words} the job's constraints; the closest, {closest}, breaks {' and '.join(broken)}."
    if not runs:
        return "No plan was run: none is likely to fit in memory and to keep the job's constraints."
    share = "The only run did not succeed" if len(runs) == 1 else f"None of the {len(runs)} runs succeeded"
    failures = [failure_in(run.row) for run in runs]
    causes = [failure.cause for failure in failures]
    cause, often = Counter(causes).most_common(1)[0]
    first = failures[causes.index(cause)]  # in whose words the cause of most runs is told
    some = f"{often} of them " if 1 < often < len(runs) else "the commonest is " if often < len(runs) else ""
    return f"{share}: {some}{first.status} ({(first.detail or 'no reason known').rstrip('.')})."


def repeated_failure(rows: Sequence[Mapping[str, Any]], launcher: object, retry: str) -> str:
    """Sentences, where the last three of ``rows`` (runs as they ended) failed for one cause and none succeeded.

    Runs out of memory and those ended early do not count: they are evidence on plans. Blank elsewhere, and where no
    cause is known. ``retry`` is the option with which plans that failed are run again.
    """
    judged = [row for row in rows if row["status"] != "oom" and not is_bounded(row)]
    if len(judged) < _ALIKE or any(row["status"] == "ok" for row in judged):
        return ""
    last = [failure_in(row) for row in judged[-_ALIKE:]]
    if not last[-1].detail or len({failure.cause for failure in last}) > 1:
        return ""
    folder, logs = getattr(launcher, "folder", None), ""
    if hasattr(launcher, "logs"):
        kept = launcher.logs
        logs = f"The logs are in {kept}. " if kept else "No log was kept; --logs FOLDER keeps them. "
    elif folder:
        logs = f"The logs are in {folder}/*/*/log.txt. "
    return (
        f"{_ALIKE} runs in a row failed for the same cause and none has succeeded, so no other is begun: "
        f"{last[-1].status} ({last[-1].detail.rstrip('.')}). {logs}Mend the cause, then run the "
        f"same command with {retry}."
    )


def unmeasured_notes(
    job: Job, lost: Sequence[str], kept: Sequence[str], predicted: Sequence[str], good: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Sentences on objectives that are left out (``lost``), and on constraints that cannot be checked.

    ``kept`` are the other objectives, ``predicted`` those lost ones that are known; ``good`` rows of sound runs.
    """
    sentences = []
    for name in lost:
        unknown = f"no power of {job.cluster.gpu.id} is known to predict it"
        why = "no run measures it" if name in predicted else unknown
        compared = f"plans are compared by {' and '.join(kept)} alone"
        sentences.append(f"The objective {name} is left out, since {why}; {compared}.")
    held = [values_and_bounds(job, row) for row in good]
    for name in held[0] if held else ():
        if all(np.isnan(one[name][0]) for one in held):
            sentences.append(f"The constraint {name} cannot be checked, since no run measures it.")
    return sentences


def is_curable(row: Mapping[str, Any]) -> bool:
    """Whether a run failed in a way that its plan may not be to blame for."""
    return row["status"] in _CURABLE and not is_bounded(row)


def unlikely_note(plans: int, of: int) -> str:
    """A sentence on so many ``of`` the plans to be run that are likelier not to fit in memory than to fit."""
    verb = "are" if 1 < plans < of else "is"
    some = f"Each of the {of}" if plans == of else f"{plans} of the {of}"
    return f"{some} plans to be run {verb} likelier to run out of memory than to fit: a run decides."


def earlier_run_notes(runs: int, failed: int, forgotten: int, earlier: EarlierRuns, out: int = 0) -> list[str]:
    """Sentences on what is known before a tune begins: ``runs`` of the job, ``failed`` among them, and other jobs.

    ``forgotten``: plans that failed and may run again; ``out``: those that were not run, and surely run out of memory.
    """
    sentences = []
    if runs:
        was, are = ("was", "is") if runs == 1 else ("were", "are")
        again = f" {failed} of them failed; --retry-failed lets such plans run again." if failed else ""
        sentences.append(
            f"{count_words(runs, 'plan')} of this job {was} measured before (run -) and {are} not run again.{again}"
        )
    if forgotten:
        sentences.append(f"{count_words(forgotten, 'plan')} of this job that failed before may be run again.")
    if out:
        sentences.append(f"{count_words(out, 'plan')} more {'is' if out == 1 else 'are'} not run: {OUT_ALREADY}.")
    if earlier.num_other_runs:
        later = f"as soon as {ENOUGH_TO_JUDGE} runs of this job are predicted better that way"
        since = f"from the first run on ({earlier.why_first})" if earlier.why_first else later
        cluster = f"{earlier.num_other_runs:,} earlier runs on this kind of cluster are known"
        sentences.append(f"{cluster}; predictions rest on them {since}.")
    return sentences


def command_of_run(found: MeasuredResult, source: str) -> dict[str, str] | None:
    """`start_command` of the best of real runs, by the name of its study where there is one; None where no run is best.

    ``source``: how a shell names the job; blank: not known.
    """
    if found.best is None:
        return None
    plan = found.runs[found.best[0]].plan
    mine = {**plan, "stage_clock_mhz": format_stage_clocks(plan["stage_clock_mhz"])}.items()
    rows: list[dict[str, Any]] = []
    if found.study_name and found.storage and not found.unstored:
        with suppress(JointOptError):  # it is away
            rows = front_of_study(found.study_name, found.storage)["front"]
    if number := next((number for number, row in enumerate(rows, start=1) if mine <= row.items()), 0):
        place = [] if found.storage == STORAGE else ["--storage", str(found.place)]
        return start_command(found.job, plan, "", sh_command(["--plan", f"{found.study_name}:{number}", *place]))
    if not source:
        return None
    parsed = parse_plan(plan, found.job)
    words = short_plan(parsed.layouts | {"stage_clock_mhz": parsed.stage_clock_mhz}, 0)
    return start_command(found.job, plan, source, sh_command(["--plan", words]))
