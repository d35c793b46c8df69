"""What becomes of every real run, as soon as it ends: a row of the store, and a trial of the study that people see."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.errors import UsageError
from jointopt.jobfile import dump_job
from jointopt.measure.launcher import Launcher
from jointopt.schema import STATUSES, Columns
from jointopt.spec.job import Job

if TYPE_CHECKING:
    from jointopt.search.measured import MeasuredStudy
    from jointopt.store import Store


@dataclass(frozen=True)
class Done:
    """A run: its row, how long it took, and why it could not be stored (blank: it was)."""

    row: dict[str, Any]
    seconds: float
    trouble: str = ""


class Record:
    """Where the runs of a job are kept; without ``storage`` (a database URL) nowhere.

    The store is what counts: where it cannot be written a run says so in `Done.trouble`. The study is a view for
    people: where it cannot be written, ``say`` is told once and runs go on.
    """

    def __init__(self, job: Job, storage: str | None, origin: str, say: Callable[[str], None]) -> None:
        self._job, self._url, self._origin, self._say = job, storage, origin, say
        self.store = _open(storage)
        self._study: MeasuredStudy | None = None

    @property
    def study_name(self) -> str | None:
        return None if self._study is None else self._study.name

    def open_study(
        self,
        plans: Columns,
        objectives: tuple[str, ...],
        earlier: Iterable[tuple[Mapping[str, Any], Mapping[str, Any], tuple[str, ...]]] = (),
    ) -> None:
        """The study of the job, with ``earlier`` runs (plan record, row, broken bounds) that it does not hold yet.

        ``plans`` are all that may be run (layout columns and stage clocks).
        """
        if self._url is None:
            return
        from jointopt.search.measured import MeasuredStudy

        text = dump_job(self._job)
        job_hash = hashlib.sha256(text.encode()).hexdigest()
        note = f"# {self._job.name}, measured\n\n```yaml\n{text}```\n\n"
        self._study = study = MeasuredStudy(self._url, self._job.name, job_hash, objectives, plans, note)
        for plan, row, broken in earlier:
            if not study.holds(plan):
                study.end(study.begin(plan, {}, round=0), row, broken)

    def unfinished(self) -> dict[str, Any] | None:
        """What an earlier process had told by `progress` and not finished."""
        return None if self._study is None else self._study.going

    def progress(self, told: Mapping[str, Any]) -> None:
        """Remember ``told`` in case that this process is killed."""
        self._seen(lambda study: study.go(told))

    def pause(self, told: Mapping[str, Any]) -> None:
        """Remember ``told`` for whoever continues."""
        self._seen(lambda study: study.pause(told))

    def finish(self) -> None:
        """Nothing is left to be continued."""
        self._seen(lambda study: study.go(None))

    def run(
        self, launcher: Launcher, question: Mapping[str, Any], plan: Mapping[str, Any],
        predicted: Mapping[str, float], broken_by: Callable[[Mapping[str, Any]], tuple[str, ...]], round: int,
    ) -> Done:  # fmt: skip
        """Run a plan and keep what it measured before anything else happens.

        Whatever ends the run otherwise passes through, with the trial ended.
        """
        trial = self._seen(lambda study: study.begin(plan, predicted, round=round, launcher=launcher.name))
        started = time.monotonic()
        try:
            found = launcher.run(self._job, question)
        except BaseException:
            if trial is not None:
                self._seen(lambda study: study.lose(trial))
            raise
        seconds = time.monotonic() - started
        row = {**question, **found}
        row["status"] = row["status"] if row.get("status") in STATUSES else "failed"
        trouble = self._stored(row)
        if trial is not None:
            self._seen(lambda study: study.end(trial, row, broken_by(row), run_seconds=round_s(seconds)))
        return Done(row, seconds, trouble)

    def _stored(self, row: Mapping[str, Any]) -> str:
        """Stores a measurement; an interrupt meanwhile waits until the row is safe (adding it twice is once)."""
        if self.store is None:
            return ""
        import pandas as pd

        frame = pd.DataFrame([dict(row)])
        try:
            try:
                self.store.add(frame, self._origin)
            except KeyboardInterrupt:
                self.store.add(frame, self._origin)
                raise
        except UsageError as error:
            return str(error)
        return ""

    def _seen(self, act: Callable[[MeasuredStudy], Any]) -> Any:
        """The answer of the study; None where there is none, or where it cannot be written any more."""
        if self._study is None:
            return None
        try:
            return act(self._study)
        except UsageError as error:
            self._study = None
            self._say(f"The study shows no further runs, the store keeps them: {error}")
            return None


def round_s(seconds: float) -> float:
    """Seconds as people read them."""
    return float(np.round(seconds, 2))


def _open(storage: str | None) -> Store | None:
    if storage is None:
        return None
    from jointopt.store import Store

    return Store(storage)
