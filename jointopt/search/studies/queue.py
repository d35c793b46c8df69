"""The database side of a study that several workers share: every plan is a trial of one worker at a time.

A worker holds trials for as long as its lease runs, which it renews while it lives; then others take them over. Trials
are taken in turns (`Storage.alone`), so that each worker sees what the others have taken; all else is Optuna's own.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from jointopt.core.errors import OutageError, UsageError
from jointopt.core.schema import Columns
from jointopt.runs.database import without_password
from jointopt.runs.outages import patience, patient, wait_out
from jointopt.search.pareto import OBJECTIVES
from jointopt.search.studies.display import show
from jointopt.search.studies.storage import Storage, made_study, study_errors
from jointopt.search.studies.trials import CONSTRAINTS, WORKER, constraint, is_shared, objective_values, results

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LEASE = "jointopt:lease:"  # attributes of the study, by worker: until when its trials are its own, see `Storage.now`
ERROR = "error"  # attribute of a trial that ended without a result: type and message of what was raised
_LEAVE_S = 5.0  # that a worker waits for the database when it leaves
_LONGEST_S = 3600.0  # no worker's lease is longer
UNFINISHED = (TrialState.WAITING, TrialState.RUNNING)


class Queue:
    """One worker's view of a shared study that minimises ``goals``.

    ``lease_s``: how long a silent worker keeps its trials.
    """

    def __init__(
        self, url: str, name: str, identity: Mapping[str, Any], *, lease_s: float = 60.0,
        goals: tuple[str, ...] = OBJECTIVES,
    ) -> None:  # fmt: skip
        self.name, self.lease_s, self.goals, self.url = name, lease_s, goals, url
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._renewed_s, self._back_s = time.monotonic(), -math.inf  # the lease; after it had run out
        self._storage = wait_out(url, self._opened)
        if self._storage.dialect not in ("sqlite", "postgresql"):
            raise UsageError(
                f"Workers cannot share a study in {without_password(url)!r}; expected a PostgreSQL URL such as "
                f"postgresql+psycopg://user@host/name, or sqlite:///FILE for workers on one machine."
            )
        self._join(identity)

    @patient
    def _join(self, identity: Mapping[str, Any]) -> None:
        with study_errors(self.url), self._storage.alone(self.name):
            self.study = self._joined(identity)
            self._study_id = self._storage.rdb.get_study_id_from_name(self.name)
            self._renew(self._storage)

    def _opened(self) -> Storage:
        with study_errors(self.url):
            return Storage(self.url)

    def _joined(self, identity: Mapping[str, Any]) -> optuna.Study:
        """The study of this name, made where it is missing; UsageError where it is of another search."""
        try:
            study = optuna.load_study(study_name=self.name, storage=self._storage.rdb)
        except KeyError:
            study = made_study(self._storage.rdb, self.name, self.goals)
            for key, value in identity.items():
                study.set_user_attr(key, value)
        if not dict(identity).items() <= study.user_attrs.items() or len(study.directions) != len(self.goals):
            raise UsageError(
                f"The study {self.name!r} is of another search (another version of jointopt, or another way "
                f"to evaluate); give the workers a name of their own with --study."
            )
        return study

    @patient
    def trials(self) -> list[FrozenTrial]:
        """The workers' trials by number, and none that others added with Optuna.

        Of the finished ones only new ones are read from the database.
        """
        with study_errors(self.url):
            return [trial for trial in self.study.get_trials(deepcopy=False) if is_shared(trial)]

    @patient
    def claim(
        self, count: int, breed: Callable[[list[FrozenTrial]], list[FrozenTrial]], begun: Collection[int] = ()
    ) -> list[FrozenTrial]:
        """At most ``count`` trials to evaluate: those of workers that fell silent or left, else ``breed(trials)``.

        ``begun``: numbers of this worker's own that are on their way.
        """
        with study_errors(self.url), self._storage.alone(self.name):
            trials = self.trials()
            if free := [trial for trial in self._free(trials) if trial.number not in begun][:count]:
                for trial in free:
                    trial_id = self._trial_id(trial.number)
                    self._storage.rdb.set_trial_state_values(trial_id, TrialState.RUNNING)
                    self._storage.rdb.set_trial_user_attr(trial_id, WORKER, self.worker)
                return free
            bred = breed(trials)[:count]
            for trial in bred:
                trial.user_attrs[WORKER] = self.worker
            self.study.add_trials(bred)
            return self.trials()[len(trials) :]

    def _free(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        unfinished = [trial for trial in trials if trial.state in UNFINISHED]
        if all(trial.user_attrs[WORKER] == self.worker for trial in unfinished):
            return unfinished
        if time.monotonic() - self._renewed_s > self.lease_s:
            self._renew(self._storage)
        # a database that was away has heard of no worker: those that live have a lease's time to be heard of
        judges = time.monotonic() - self._back_s > self.lease_s
        known, now = self._storage.rdb.get_study_system_attrs(self._study_id), self._storage.now()
        latest = now + max(self.lease_s, _LONGEST_S)  # what ends later is of a clock before the machine began anew
        return [
            trial
            for trial in unfinished
            if trial.state == TrialState.WAITING
            or trial.user_attrs[WORKER] == self.worker  # claimed as a connection was cut
            or (judges and not now <= known.get(LEASE + trial.user_attrs[WORKER], 0.0) <= latest)
        ]

    @patient
    def finish(self, numbers: Sequence[int], plans: Columns) -> int:
        """Writes the results of claimed trials, a row of ``plans`` each; returns how many were still this worker's."""
        done = 0
        with study_errors(self.url), self._storage.together():
            for row, number in enumerate(numbers):
                attributes, values = results(plans, row), objective_values(plans, row, self.goals)
                done += self._end(number, TrialState.COMPLETE, attributes, constraint(plans, row), values)
        return done

    @patient
    def fail(self, number: int, error: str) -> int:
        """Ends a claimed trial without a result; returns 1 if it was still this worker's, else 0."""
        with study_errors(self.url), self._storage.together():
            return int(self._end(number, TrialState.FAIL, {ERROR: error}))

    def _end(
        self, number: int, state: TrialState, attributes: Mapping[str, Any], violation: list[float] | None = None,
        values: list[float] | None = None,
    ) -> bool:  # fmt: skip
        storage, trial_id = self._storage.rdb, self._trial_id(number)
        if storage.get_trial_user_attrs(trial_id)[WORKER] != self.worker:
            return False
        try:
            for key, value in attributes.items():
                storage.set_trial_user_attr(trial_id, key, value)
            if violation is not None:
                storage.set_trial_system_attr(trial_id, CONSTRAINTS, violation)
            return storage.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:  # taken over and finished between looking and writing
            return False

    def _trial_id(self, number: int) -> int:
        return self._storage.rdb.get_trial_id_from_study_id_trial_number(self._study_id, number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Renews this worker's lease in the background, and gives back what is left at the end."""
        stop = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.give_back()

    def give_back(self) -> None:
        """Lets everything that this worker holds wait for others; for a worker that leaves."""
        with patience(_LEAVE_S), suppress(OutageError):  # its lease ends by itself
            self._give_back()

    @patient
    def _give_back(self) -> None:
        with study_errors(self.url), self._storage.alone(self.name):
            for trial in self.trials():
                if trial.state == TrialState.RUNNING and trial.user_attrs[WORKER] == self.worker:
                    self._storage.rdb.set_trial_state_values(self._trial_id(trial.number), TrialState.WAITING)

    def _renew_until(self, stop: threading.Event) -> None:
        storage = None
        while not stop.wait(self.lease_s / 4.0):
            try:
                storage = storage or Storage(self.url)
                with storage.together():
                    self._renew(storage)
            except (SQLAlchemyError, sqlite3.Error, OSError, optuna.exceptions.OptunaError):
                continue  # it may be back before the lease ends; if not, others take over

    def _renew(self, storage: Storage) -> None:
        storage.rdb.set_study_system_attr(self._study_id, LEASE + self.worker, storage.now() + self.lease_s)
        now_s = time.monotonic()
        if now_s - self._renewed_s > self.lease_s:
            self._back_s = now_s
        self._renewed_s = now_s

    @patient
    def show(self, plans: Columns, note: str, numbers: Sequence[int]) -> None:
        """Sets what the dashboard shows of the study: its note, and these finished plans."""
        with study_errors(self.url), self._storage.alone(self.name):
            show(self._storage.rdb, self.name, plans, note, numbers, goals=self.goals)
