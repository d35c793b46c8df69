"""The record of every real run, kept as soon as it ends: a row of the store, and a trial of a study for people."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jointopt.core.errors import LauncherError, OutageError, UsageError
from jointopt.core.schema import STATUSES, Columns
from jointopt.jobs.catalog.gpus import gpu_id
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job
from jointopt.jobs.plans.text import record_text
from jointopt.measure.base import EndedRun, Launcher, ManyAtOnce, ReportState, run_all

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.runs.reservations import Reservation, Reservations
    from jointopt.runs.spill import Spill
    from jointopt.runs.store import Store
    from jointopt.search.studies.measured import MeasuredStudy


_log = logging.getLogger(__name__)
_MOST_RELATED = 20_000  # stored runs that a campaign begins with
T = TypeVar("T")
_WAIT_S = 2.0  # for a database before runs go on without it
_RESERVE_WAIT_S = 10.0  # before plans are run that are not reserved


@dataclass(frozen=True)
class FinishedRun:
    """A run: its row, how long it held its GPUs, and why it could not be stored (blank: it was)."""

    row: dict[str, Any]
    seconds: float
    trouble: str = ""


@dataclass(frozen=True)
class QueuedRun:
    """A run to be: the row for the launcher, the plan as a record, what is expected, and attributes of its trial."""

    question: Mapping[str, Any]
    plan: Mapping[str, Any]
    predicted: Mapping[str, float]
    round: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherProcesses:
    """Plans (their texts) that other processes of the same job have taken."""

    running: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()  # since this process began
    fatal: frozenset[str] = frozenset()  # they have ended two processes that ran them


class Record:
    """Keeps the runs of a job in ``storage`` (a database URL; None: nowhere).

    A run that has ended is written to a file (`Spill`) first, and stays there until the store has it. While the
    database is away (`OutageError`) runs go on, and its writes wait until it is back. Where the store refuses a run for
    another reason, `Done.trouble` says why. The study is a view for people: where it cannot be written, ``note`` is
    called once and runs go on.
    """

    def __init__(self, job: Job, storage: str | None, origin: str, note: Callable[[str], None]) -> None:
        self._job, self._url, self._origin, self._note = job, storage, origin, note
        self._rows: list[dict[str, Any]] = []  # measured by this process
        self._study: MeasuredStudy | None = None
        self._reservations: Reservations | None = None
        self.store: Store | None = None
        self._runs_before: dict[str, int] = {}  # runs of plans that had ended when this process began
        self._own_plans: set[str] = set()  # plans that this process has run
        self._others = OtherProcesses()  # as last seen
        self._related: pd.DataFrame | None = None  # as last read
        self._spill: Spill | None = None
        self._num_stored = 0  # of the rows, those that the store took: they are in no file
        self._num_in_no_file = 0  # of the rows after these, those that no file took
        self._launcher = ""
        self._pending_writes: list[Callable[[], None]] = []  # of reservations and study, in order
        self._away_since_s: float | None = None  # since when the database is away, by the monotonic clock
        self._text = dump_job(job)
        self._hash = hashlib.sha256(self._text.encode()).hexdigest()
        if storage is not None:
            from jointopt.runs.reservations import Reservations
            from jointopt.runs.spill import Spill
            from jointopt.runs.store import Store

            self._spill = Spill(storage, origin)
            self._reservations = Reservations(storage, self._hash)  # before the store is read
            self._runs_before = {plan: one.runs for plan, one in self._reservations.read().items()}
            self.store = Store(storage)
            if taken := self.store.add_spilled():
                note(f"{taken} runs that earlier commands had kept in files are in the store now.")

    @property
    def study_name(self) -> str | None:
        """The name of the study; None where there is none."""
        return None if self._study is None else self._study.name

    def open_study(
        self, plans: Columns, objectives: tuple[str, ...],
        earlier: Iterable[tuple[Mapping[str, Any], Mapping[str, Any], tuple[str, ...]]] = (),
    ) -> None:  # fmt: skip
        """The study of the job, with ``earlier`` runs (plan record, row, broken bounds) that it does not hold yet.

        ``plans`` are all that may be run (layout columns and stage clocks).
        """
        if self._url is None:
            return
        from jointopt.search.studies.measured import MeasuredStudy

        text, job_hash = self._text, self._hash
        note = f"# {self._job.name}, measured\n\n```yaml\n{text}```\n\n"
        self._study = study = MeasuredStudy(self._url, self._job.name, job_hash, objectives, plans, note, text)
        for plan, row, broken in earlier:
            if not study.has_trial_of(plan):
                study.end(study.begin(plan, {}, round=0), row, broken)

    def related(self, candidates: pd.DataFrame) -> pd.DataFrame:
        """Stored measurements on the GPUs of these rows, of many those of the job first."""
        if self.store is None:
            return candidates.iloc[:0]
        from jointopt.runs.relevance import Wanted, distance_from, related_to

        names = candidates["gpu"].unique() if "gpu" in candidates else ()
        related = related_to({gpu_id(str(name)) for name in names})
        wanted = Wanted(related, _MOST_RELATED, distance=distance_from([self._job]))
        if not self._rows:
            return self.store.read(wanted)
        with suppress(OutageError):
            self._related = self._on_database(functools.partial(self.store.read, wanted), probes=True)
        return candidates.iloc[:0] if self._related is None else self._related

    def reserve(self, plan: Mapping[str, Any], again: bool = False) -> bool:
        """Reserve a plan (a record) for this process; False where another runs it, or has run it meanwhile.

        ``again``: also where two processes that ran it have died.
        """
        waited_s = 0.0 if self._away_since_s is None else time.monotonic() - self._away_since_s
        taken = self._on_reservations(
            lambda shared: shared.take(record_text(plan), again), True, max(_RESERVE_WAIT_S - waited_s, 0.0)
        )
        return bool(taken)

    def others(self) -> OtherProcesses:
        """The plans of other processes, as last seen where the reservations cannot be read now.

        Read the store after this, not before: it then has the results of all plans that have ended.
        """
        found: Collection[Reservation] | None
        found = self._on_reservations(lambda shared: shared.read().values(), None, _WAIT_S)
        if found is not None:
            ended = frozenset(one.plan for one in found if one.runs > self._runs_before.get(one.plan, 0))
            self._others = OtherProcesses(
                running=frozenset(one.plan for one in found if one.runs_elsewhere),
                ended=ended - self._own_plans,
                fatal=frozenset(one.plan for one in found if one.abandoned and one.lost > 0),
            )
        return self._others

    def wait_for_freed(self) -> bool:
        """Wait for runners of other machines that may be dead; whether a plan of theirs is free now."""
        return bool(self._on_reservations(lambda shared: shared.wait_for_freed(), False))

    def _on_reservations(self, act: Callable[[Reservations], Any], alone: Any, wait_s: float = 0.0) -> Any:
        """``act`` on the reservations; ``alone`` without them, while they are away, or where they cannot be used."""
        if (reservations := self._reservations) is None:
            return alone
        try:
            return self._on_database(lambda: act(reservations), wait_s, probes=wait_s > 0.0)
        except OutageError:
            return alone
        except UsageError as error:
            self._reservations = None
            self._note(f"Plans are not reserved any more, so that other processes may run them too: {error}")
            return alone

    def _on_database(self, act: Callable[[], T], wait_s: float = _WAIT_S, probes: bool = False) -> T:
        """The result of ``act`` on the database. OutageError where that is away, which is logged once.

        Once it is away, an act that ``probes`` tries it, and all others fail at once.
        """
        from jointopt.runs.database import patience

        if self._away_since_s is not None and not probes:
            raise OutageError("the database was away a moment ago")
        try:
            with patience(wait_s):
                found = act()
        except OutageError as error:
            if self._away_since_s is None:
                self._away_since_s = time.monotonic()
                kept = f"; what has ended is kept in {self._files}" * bool(self._files)
                _log.warning("%s Runs go on meanwhile%s.", error, kept)
            raise
        if self._away_since_s is not None:
            _log.info("The database answers again after %.0f s.", time.monotonic() - self._away_since_s)
            self._away_since_s = None
        return found

    @property
    def _files(self) -> str:
        """Names of files that hold runs which the store may not have."""
        return "" if self._spill is None else ", ".join(map(str, self._spill.files))

    def unfinished(self) -> dict[str, Any] | None:
        """The state that an earlier process left by `progress` and did not finish."""
        return None if self._study is None else self._study.unfinished

    def progress(self, state: Mapping[str, Any] | None, paused: bool = False) -> None:
        """Remember ``state`` in case that this process is killed, or ``paused``; None: nothing is to be continued."""
        with suppress(OutageError):
            self._on_study(lambda study: study.set_unfinished(state, paused))

    def left(self, launcher: Launcher) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """(plan record, attributes of its trial) of runs that a killed process of the same origin has begun.

        Only those of a launcher whose runs may go on without it, in the queue of a cluster.
        """
        if self._study is None or not isinstance(launcher, ManyAtOnce):
            return []
        trials = self._study.abandoned(self._origin)
        return [(json.loads(trial.user_attrs["plan"]), dict(trial.user_attrs)) for trial in trials]

    def run_all(
        self, launcher: Launcher, queue: Iterable[QueuedRun],
        broken_by: Callable[[Mapping[str, Any]], tuple[str, ...]], report: ReportState,
    ) -> Generator[tuple[int, FinishedRun], None, None]:  # fmt: skip
        """Run plans, several at once where the launcher can, and give each with its place as soon as it is kept.

        Each is drawn from ``queue`` when its run begins; its measurement is kept before anything else happens.
        Whatever ends the runs otherwise passes through, with the trials of those that have not ended given up.
        """
        begun: dict[int, tuple[QueuedRun, int | None]] = {}  # by place, with the trial
        self._launcher = launcher.name
        runs = run_all(launcher, self._job, self._rows_to_run(queue, begun), report)
        why, left = "the runs were given up", False
        try:
            for run in runs:
                yield run.place, self._keep(run, *begun.pop(run.place), broken_by)
        except LauncherError as error:
            why, left = str(error), True
            raise
        except KeyboardInterrupt:
            why = "interrupted (Ctrl-C) before it ended"
            raise
        except SystemExit:
            why, left = "the tool was ended by a signal before it ended", True
            raise
        finally:
            runs.close()
            for queued, trial in begun.values():
                with suppress(OutageError):
                    self._end_reservation(queued.plan, ran=False)
                    if trial is not None:
                        self._on_study(lambda study, trial=trial: study.end_without_result(trial, why, left))  # type: ignore[misc]

    def _rows_to_run(
        self, queue: Iterable[QueuedRun], begun: dict[int, tuple[QueuedRun, int | None]]
    ) -> Iterator[Mapping[str, Any]]:
        """Rows for the launcher, with a trial made of each; ``begun`` is filled."""
        for place, each in enumerate(queue):
            begun[place] = each, None
            with suppress(OutageError):
                begun[place] = each, self._begin_trial(each)
            yield each.question

    def _begin_trial(self, queued: QueuedRun) -> Any:
        """The trial of a run, as `_on_study`."""
        about = {"round": queued.round, "launcher": self._launcher, "origin": self._origin, **queued.attributes}
        return self._on_study(lambda study: study.begin(queued.plan, queued.predicted, **about))

    def _keep(
        self, run: EndedRun, queued: QueuedRun, trial: int | None,
        broken_by: Callable[[Mapping[str, Any]], tuple[str, ...]],
    ) -> FinishedRun:  # fmt: skip
        row = {**queued.question, **run.row}
        row["status"] = row["status"] if row.get("status") in STATUSES else "failed"
        trouble = self._store_row({name: value for name, value in row.items() if name != "failure"})
        self._own_plans.add(record_text(queued.plan))
        self._pending_writes.append(lambda: self._end_reservation(queued.plan))
        if self._study is not None:
            seconds = float(np.round(run.seconds, 2))
            self._pending_writes.append(lambda: self._end_trial(queued, trial, row, broken_by(row), seconds))
        self._write_pending()
        return FinishedRun(row, run.seconds, trouble)

    def _store_row(self, row: Mapping[str, Any]) -> str:
        """Keep a measurement: in a file first, and then in the store; why it is in neither, or not stored, in words.

        The rows before it are offered again: somebody may have removed the database meanwhile.
        """
        if self.store is None:
            return ""
        self._rows.append(dict(row))
        unkept = self._num_in_no_file
        try:
            try:
                self._keep_in_file([row])
            except (KeyboardInterrupt, SystemExit):  # wait until the row is safe; twice there is once in the store
                self._num_in_no_file = unkept
                self._keep_in_file([row])
                raise
            self._store_all_rows()
        except OutageError as error:
            return f"{error} No file takes the run either." if self._num_in_no_file else ""
        except UsageError as error:
            if self._num_stored:  # what this database took may be lost with it
                self._keep_in_file(self._rows[: self._num_stored])
                self._num_stored = 0
            if (files := self._files) and not self._num_in_no_file:
                return f"{error} The run is kept in {files}, which the next start takes in."
            return str(error)
        return ""

    def _keep_in_file(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows to a file, where one takes them."""
        import pandas as pd

        from jointopt.runs.cells import json_rows

        self._num_in_no_file += len(rows)
        for row in json_rows(pd.DataFrame(rows)):
            if self._spill is not None and self._spill.keep(row) is not None:
                self._num_in_no_file -= 1

    def _store_all_rows(self) -> None:
        """Have the store take all rows; files are not needed then."""
        import pandas as pd

        if self.store is not None and self._spill is not None:
            self._on_database(functools.partial(self.store.add, pd.DataFrame(self._rows), self._origin), probes=True)
            self._num_stored, self._num_in_no_file = len(self._rows), 0
            self._spill.clear()

    @property
    def unstored(self) -> int:
        """Number of runs of this process that the store is not known to have."""
        return len(self._rows) - self._num_stored if self.store is not None else 0

    def settle(self, wait_s: float) -> str:
        """Do all writes that wait, for at most ``wait_s`` seconds; where the runs are that it lacks, in words."""
        from jointopt.runs.database import patience, wait_out

        words = ""
        if self._spill is not None and (self.unstored or self._pending_writes):
            files, left = self._files, self.unstored
            kept = f"runs are kept in {files}" if files and not self._num_in_no_file else ""
            try:
                with patience(wait_s):
                    wait_out(str(self._url), self._store_all_rows, kept)
                self._write_pending()
            except (OutageError, UsageError) as error:
                kept = f"kept in {files}, which the next start takes in"
                places = ((left - self._num_in_no_file, kept), (self._num_in_no_file, "kept nowhere"))
                ends = (
                    f" {'1 run is' if runs == 1 else f'{runs} runs are'} {where}." for runs, where in places if runs
                )
                words = f"{error}{''.join(ends)}" if left else ""
        if self._spill is not None:
            self._spill.close()
        return words

    def _write_pending(self) -> None:
        """Do the writes of reservations and study that wait, in order, until the database is away."""
        while self._pending_writes and self._away_since_s is None:
            try:
                self._pending_writes[0]()
            except OutageError:
                return
            self._pending_writes.pop(0)

    def _end_reservation(self, plan: Mapping[str, Any], ran: bool = True) -> None:
        """End the reservation of a plan; where that cannot be written, it ends by itself with this process."""
        if (reservations := self._reservations) is not None:
            with suppress(UsageError):
                self._on_database(lambda: reservations.end(record_text(plan), ran))

    def _end_trial(
        self, queued: QueuedRun, trial: int | None, row: Mapping[str, Any], broken: tuple[str, ...], seconds: float
    ) -> None:
        """End the trial of a run; one that could not be begun is made now."""
        if trial is None:
            trial = self._begin_trial(queued)
        if trial is not None:
            self._on_study(lambda study: study.end(trial, row, broken, run_seconds=seconds))

    def _on_study(self, act: Callable[[MeasuredStudy], Any]) -> Any:
        """``act`` on the study; None where there is none, or where it cannot be written any more.

        OutageError while it is away.
        """
        if (study := self._study) is None:
            return None
        try:
            return self._on_database(lambda: act(study))
        except UsageError as error:
            self._study = None
            self._note(f"The study shows no further runs: {error}")
            return None
