"""The record of every real run, kept as soon as it ends: a row of the store, and a trial of a study for people."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import LauncherError, UsageError
from jointopt.core.schema import STATUSES, Columns
from jointopt.measure.launchers.base import Ended, Launcher, ManyAtOnce, Report, run_all
from jointopt.spec.catalog.gpus import gpu_id
from jointopt.spec.job import Job
from jointopt.spec.jobfile import dump_job
from jointopt.spec.plans.parse import record_text

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.runs.reservations import Reservation, Reservations
    from jointopt.runs.store import Store
    from jointopt.search.studies.measured import MeasuredStudy


_MOST_RELATED = 20_000  # stored runs that a campaign begins with


@dataclass(frozen=True)
class Done:
    """A run: its row, how long it held its GPUs, and why it could not be stored (blank: it was)."""

    row: dict[str, Any]
    seconds: float
    trouble: str = ""


@dataclass(frozen=True)
class Queued:
    """A run to be: the row for the launcher, the plan as a record, what is expected, and attributes of its trial."""

    question: Mapping[str, Any]
    plan: Mapping[str, Any]
    predicted: Mapping[str, float]
    round: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Others:
    """Keys of plans in other processes: that they run, have run since this one began, and have died of twice."""

    running: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    fatal: frozenset[str] = frozenset()


class Record:
    """The place that keeps the runs of a job; none without ``storage`` (a database URL).

    The store is what counts: where it cannot be written a run records it in `Done.trouble`. The study is a view for
    people: where it cannot be written, ``note`` is called once and runs go on.
    """

    def __init__(self, job: Job, storage: str | None, origin: str, note: Callable[[str], None]) -> None:
        self._job, self._url, self._origin, self._note = job, storage, origin, note
        self._rows: list[dict[str, Any]] = []  # measured by this process
        self._study: MeasuredStudy | None = None
        self._reservations: Reservations | None = None
        self.store: Store | None = None
        self._before: dict[str, int] = {}  # runs of plans that had ended when this process began
        self._mine: set[str] = set()  # plans that this process has run
        self._text = dump_job(job)
        self._hash = hashlib.sha256(self._text.encode()).hexdigest()
        if storage is not None:
            from jointopt.runs.reservations import Reservations
            from jointopt.runs.store import Store

            self._reservations = Reservations(storage, self._hash)  # before the store is read
            self._before = {plan: one.runs for plan, one in self._reservations.look().items()}
            self.store = Store(storage)
            if taken := self.store.take_in():
                note(f"{taken} runs that could not be stored before are in the store now.")

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
            if not study.holds(plan):
                study.end(study.begin(plan, {}, round=0), row, broken)

    def related(self, candidates: pd.DataFrame) -> pd.DataFrame:
        """Stored measurements on the GPUs of these rows, of many those of the job first."""
        if self.store is None:
            return candidates.iloc[:0]
        from jointopt.runs.kinds import Wanted, distance_from, related_to

        names = candidates["gpu"].unique() if "gpu" in candidates else ()
        related = related_to({gpu_id(str(name)) for name in names})
        return self.store.read(Wanted(related, _MOST_RELATED, distance=distance_from([self._job])))

    def reserve(self, plan: Mapping[str, Any], again: bool = False) -> bool:
        """Reserve a plan (a record) for this process; False where another runs it, or has run it meanwhile.

        ``again``: also where two processes that ran it have died.
        """
        return bool(self._shared(lambda shared: shared.take(record_text(plan), again), True))

    def others(self) -> Others:
        """Plans that other processes run, have run since this one began, or have died of.

        Runs that have ended by now count as known: their results are to be read from the store after this.
        """
        found: Collection[Reservation] = self._shared(lambda shared: shared.look().values(), ())
        return Others(
            running=frozenset(one.plan for one in found if one.elsewhere),
            ended=frozenset(one.plan for one in found if one.runs > self._before.get(one.plan, 0)) - self._mine,
            fatal=frozenset(one.plan for one in found if one.abandoned and one.lost > 0),
        )

    def freed(self) -> bool:
        """Wait for runners of other machines that may be dead; whether a plan of theirs is free now."""
        return bool(self._shared(lambda shared: shared.freed(), False))

    def _shared(self, act: Callable[[Reservations], Any], alone: Any) -> Any:
        """``act`` on the reservations; ``alone`` without them, or where they cannot be used any more."""
        if self._reservations is None:
            return alone
        try:
            return act(self._reservations)
        except UsageError as error:
            self._reservations = None
            self._note(f"Plans are not reserved any more, so that other processes may run them too: {error}")
            return alone

    def unfinished(self) -> dict[str, Any] | None:
        """The state that an earlier process left by `progress` and did not finish."""
        return None if self._study is None else self._study.going

    def progress(self, state: Mapping[str, Any]) -> None:
        """Remember ``state`` in case that this process is killed."""
        self._in_study(lambda study: study.go(state))

    def pause(self, state: Mapping[str, Any]) -> None:
        """Remember ``state`` for the process that continues."""
        self._in_study(lambda study: study.pause(state))

    def finish(self) -> None:
        """Nothing is left to be continued."""
        self._in_study(lambda study: study.go(None))

    def left(self, launcher: Launcher) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """(plan record, attributes of its trial) of runs that a killed process of the same origin has begun.

        Only those of a launcher whose runs may go on without it, in the queue of a cluster.
        """
        if self._study is None or not isinstance(launcher, ManyAtOnce):
            return []
        trials = self._study.left(self._origin)
        return [(json.loads(trial.user_attrs["plan"]), dict(trial.user_attrs)) for trial in trials]

    def run_all(
        self, launcher: Launcher, queue: Iterable[Queued],
        broken_by: Callable[[Mapping[str, Any]], tuple[str, ...]], report: Report,
    ) -> Generator[tuple[int, Done], None, None]:  # fmt: skip
        """Run plans, several at once where the launcher can, and give each with its place as soon as it is kept.

        Each is drawn from ``queue`` when its run begins; its measurement is kept before anything else happens.
        Whatever ends the runs otherwise passes through, with the trials of those that have not ended given up.
        """
        begun: dict[int, tuple[Queued, int | None]] = {}  # by place, with the trial
        runs = run_all(launcher, self._job, self._begun(launcher, queue, begun), report)
        why, left = "the runs were given up", False
        try:
            for run in runs:
                yield run.place, self._kept(run, *begun.pop(run.place), broken_by)
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
                self._reserved(queued.plan, ran=False)
                if trial is not None:
                    self._in_study(lambda study, trial=trial: study.lose(trial, why, left))  # type: ignore[misc]

    def _begun(
        self, launcher: Launcher, queue: Iterable[Queued], begun: dict[int, tuple[Queued, int | None]]
    ) -> Iterator[Mapping[str, Any]]:
        """Rows for the launcher, with a trial made of each; ``begun`` is filled."""
        for place, each in enumerate(queue):
            about = {"round": each.round, "launcher": launcher.name, "origin": self._origin, **each.attributes}
            begin = functools.partial(_begin, queued=each, attributes=about)
            begun[place] = each, self._in_study(begin)
            yield each.question

    def _kept(
        self, run: Ended, queued: Queued, trial: int | None,
        broken_by: Callable[[Mapping[str, Any]], tuple[str, ...]],
    ) -> Done:  # fmt: skip
        row = {**queued.question, **run.row}
        row["status"] = row["status"] if row.get("status") in STATUSES else "failed"
        trouble = self._stored({name: value for name, value in row.items() if name != "failure"})
        self._reserved(queued.plan, ran=True)
        if trial is not None:
            seconds = float(np.round(run.seconds, 2))
            self._in_study(lambda study: study.end(trial, row, broken_by(row), run_seconds=seconds))
        return Done(row, run.seconds, trouble)

    def _stored(self, row: Mapping[str, Any]) -> str:
        """Stores a measurement; an interrupt meanwhile waits until the row is safe (adding it twice is once).

        The rows before it are offered again: somebody may have removed the database meanwhile.
        """
        if self.store is None:
            return ""
        import pandas as pd

        self._rows.append(dict(row))
        frame = pd.DataFrame(self._rows)
        try:
            try:
                self.store.add(frame, self._origin)
            except KeyboardInterrupt:
                self.store.add(frame, self._origin)
                raise
        except UsageError as error:
            return f"{error} {self._spilled(frame)}".strip()
        return ""

    def _spilled(self, frame: pd.DataFrame) -> str:
        """Keep rows in a file until a database takes them, those too that this one has taken and may have lost."""
        from jointopt.runs.cells import json_rows
        from jointopt.runs.spill import spill

        files = [spill(str(self._url), row, self._origin) for row in json_rows(frame)]
        return "" if files[-1] is None else f"The run is kept in {files[-1]}, which the next start takes in."

    def _reserved(self, plan: Mapping[str, Any], ran: bool) -> None:
        """End the reservation of a plan; where that cannot be written, it ends by itself with this process."""
        if self._reservations is not None:
            with suppress(UsageError):
                self._reservations.end(record_text(plan), ran)
        if ran:
            self._mine.add(record_text(plan))

    def _in_study(self, act: Callable[[MeasuredStudy], Any]) -> Any:
        """``act`` on the study; None where there is none, or where it cannot be written any more."""
        if self._study is None:
            return None
        try:
            return act(self._study)
        except UsageError as error:
            self._study = None
            self._note(f"The study shows no further runs, the store keeps them: {error}")
            return None


def plan_keys(plans: Iterable[Mapping[str, Any]]) -> list[str]:
    """Keys of plans (records), as `Record.others` gives them."""
    return [record_text(plan) for plan in plans]


def _begin(study: MeasuredStudy, queued: Queued, attributes: Mapping[str, Any]) -> int:
    return study.begin(queued.plan, queued.predicted, **attributes)
