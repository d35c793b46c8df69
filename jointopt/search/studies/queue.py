"""The database side of a study that several workers share: plans are queued, leased, told, each of them once.

A trial is an ordinary trial of Optuna, waiting, running or finished. Beside it stands a row of a small table of our
own until it is finished: who works on it, and until when that is believed. A worker that dies stops renewing, and
whoever asks next takes its trials over. Every step is one transaction, so that a worker may be killed anywhere.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from optuna.trial import TrialState
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from jointopt.core.errors import UsageError
from jointopt.runs.database import make_table, open_database, without_password
from jointopt.search.pareto import OBJECTIVES
from jointopt.search.studies.bulk import (
    CONSTRAINT_KEYS,
    TrialRows,
    insert_details,
    insert_study,
    insert_trials,
    lock_study,
    pinned_tables,
    set_study_attributes,
)
from jointopt.search.studies.display import METRIC_NAMES_KEY
from jointopt.search.studies.storage import engine_of, open_storage

PLAN_KEY = "plan"  # attribute of a trial: layout index, clock index, share of slack
IDS_PER_STATEMENT = 500

_QUEUE = sa.Table(
    "jointopt_queue",
    sa.MetaData(),
    sa.Column("trial_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("study_id", sa.Integer, nullable=False, index=True),
    sa.Column("worker", sa.String(128)),
    # Seconds since 1970 by the database's clock; 0: waiting.
    sa.Column("expires_at", sa.Float(53), nullable=False),
)

Genes = tuple[int, int, float]


@dataclass(frozen=True)
class Finished:
    """A trial's objective values and its violation."""

    values: tuple[float, ...]
    violation: float


class Queue:
    """One worker's view of a shared study. ``lease_s``: how long a silent worker keeps its trials."""

    def __init__(self, url: str, name: str, identity: Mapping[str, Any], *, lease_s: float = 60.0) -> None:
        self.name, self.lease_s = name, lease_s
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        tables = pinned_tables(engine_of(open_storage(url)))
        if tables is None:
            raise UsageError(
                f"Workers cannot share a study in {without_password(url)!r}; expected a PostgreSQL URL such as "
                f"postgresql+psycopg://user@host/name, or sqlite:///FILE for workers on one machine."
            )
        self._tables, self._engine = tables, open_database(url, lock_first=True)
        make_table(self._engine, _QUEUE)
        self.study_id = self._join(identity)

    def _join(self, identity: Mapping[str, Any]) -> int:
        """The id of the study of this name, made where it is missing; UsageError where it is of another search."""
        try:
            with self._engine.begin() as connection:
                study_id = insert_study(connection, self._tables, self.name, identity)
                names = {METRIC_NAMES_KEY: list(OBJECTIVES)}
                set_study_attributes(connection, self._tables["study_system_attributes"], study_id, names)
                return study_id
        except IntegrityError:  # there before, or made by another worker just now
            pass
        table = self._tables["studies"]
        with self._engine.begin() as connection:
            wanted = sa.select(table.c.study_id).where(table.c.study_name == self.name)
            study_id = int(connection.scalar(wanted) or 0)
            if self._attributes(connection, study_id, identity) != dict(identity):
                raise UsageError(
                    f"The study {self.name!r} is of another search (another version of jointopt, or another way "
                    f"to evaluate); give the workers a name of their own with --study."
                )
        return study_id

    def _attributes(
        self, connection: sa.Connection, study_id: int, wanted: Mapping[str, Any]
    ) -> dict[str, Any]:
        table = self._tables["study_user_attributes"]
        chosen = sa.select(table.c.key, table.c.value_json).where(
            table.c.study_id == study_id, table.c.key.in_(list(wanted))
        )
        return {row.key: json.loads(row.value_json) for row in connection.execute(chosen)}

    def claim(self, count: int) -> dict[int, Genes]:
        """At most ``count`` plans to evaluate, by trial id: waiting ones, or those of a worker that fell silent."""
        q, trials = _QUEUE.c, self._tables["trials"]
        with self._engine.begin() as connection:
            now = _now(connection)
            free = sa.select(q.trial_id).where(q.study_id == self.study_id, q.expires_at < now)
            locked = free.order_by(q.trial_id).limit(count).with_for_update(skip_locked=True)
            ids = [int(row.trial_id) for row in connection.execute(locked)]
            if not ids:
                return {}
            leased = sa.update(_QUEUE).where(q.trial_id.in_(ids))
            connection.execute(leased.values(worker=self.worker, expires_at=now + self.lease_s))
            running = sa.update(trials).where(trials.c.trial_id.in_(ids))
            connection.execute(running.values(state=TrialState.RUNNING, datetime_start=_utc(now)))
            return self._plans(connection, ids)

    def _plans(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, Genes]:
        table = self._tables["trial_system_attributes"]
        chosen = sa.select(table.c.trial_id, table.c.value_json).where(
            table.c.trial_id.in_(ids), table.c.key == PLAN_KEY
        )
        found = {int(row.trial_id): _genes(row.value_json) for row in connection.execute(chosen)}
        return {trial: found[trial] for trial in ids}

    def tell(self, ids: Sequence[int], rows: TrialRows, *, failed: bool = False) -> int:
        """Writes what came out of claimed trials, in the order of ``ids``; how many of them were still ours to tell.

        What another worker has taken over meanwhile is left to that worker.
        """
        q, trials = _QUEUE.c, self._tables["trials"]
        with self._engine.begin() as connection:
            done = sa.delete(_QUEUE).where(q.trial_id.in_(ids), q.worker == self.worker)
            ours = {int(row.trial_id) for row in connection.execute(done.returning(q.trial_id))}
            for row, trial in enumerate(ids):
                if trial in ours:
                    insert_details(connection, [trial], rows, slice(row, row + 1))
            state = TrialState.FAIL if failed else TrialState.COMPLETE
            ended = sa.update(trials).where(trials.c.trial_id.in_(ours))
            connection.execute(ended.values(state=state, datetime_complete=_utc(_now(connection))))
        return len(ours)

    def give_back(self) -> None:
        """Everything that this worker holds waits again; for a worker that is told to stop."""
        q, trials = _QUEUE.c, self._tables["trials"]
        with self._engine.begin() as connection:
            held = sa.update(_QUEUE).where(q.worker == self.worker).values(worker=None, expires_at=0.0)
            ids = [int(row.trial_id) for row in connection.execute(held.returning(q.trial_id))]
            waiting = sa.update(trials).where(trials.c.trial_id.in_(ids))
            connection.execute(waiting.values(state=TrialState.WAITING, datetime_start=None))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Renews this worker's leases in the background, and gives back what is left at the end."""
        stop = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.give_back()

    def _renew_until(self, stop: threading.Event) -> None:
        while not stop.wait(self.lease_s / 4.0):
            try:
                self.renew()
            except SQLAlchemyError:  # it may be back before the lease ends; if not, others take over
                continue

    def renew(self) -> None:
        """Keeps the trials that this worker holds for another lease, but for those that it is telling just now.

        Waits for nobody: two transactions that wait for each other's rows would end one of them.
        """
        q = _QUEUE.c
        with self._engine.begin() as connection:
            held = sa.select(q.trial_id).where(q.worker == self.worker).with_for_update(skip_locked=True)
            ids = [int(row.trial_id) for row in connection.execute(held)]
            kept = sa.update(_QUEUE).where(q.trial_id.in_(ids))
            connection.execute(kept.values(expires_at=_now(connection) + self.lease_s))

    def extend(self, breed: Callable[[sa.Connection, int], TrialRows | None]) -> bool:
        """Queues new plans where none waits; whether there are plans to claim now.

        ``breed(connection, trials)`` makes them, given the number of trials so far; nobody else does so meanwhile.
        """
        q, trials = _QUEUE.c, self._tables["trials"]
        with self._engine.begin() as connection:
            lock_study(connection, self.study_id)
            free = sa.select(sa.func.count()).where(
                q.study_id == self.study_id, q.expires_at < _now(connection)
            )
            if connection.scalar(free):
                return True
            of_study = sa.select(sa.func.count()).where(trials.c.study_id == self.study_id)
            count = int(connection.scalar(of_study) or 0)
            rows = breed(connection, count)
            if rows is None:
                return False
            ids = insert_trials(connection, self.study_id, rows, first_number=count, state="WAITING")
            queued = [{"trial_id": trial, "study_id": self.study_id, "expires_at": 0.0} for trial in ids]
            connection.execute(sa.insert(_QUEUE), queued)
            return True

    def show(self, attributes: Mapping[str, Any]) -> None:
        """Sets what Optuna's dashboard shows of the study, in place of what was there under the same keys."""
        table = self._tables["study_system_attributes"]
        with self._engine.begin() as connection:
            lock_study(connection, self.study_id)
            old = sa.delete(table).where(table.c.study_id == self.study_id, table.c.key.in_(list(attributes)))
            connection.execute(old)
            set_study_attributes(connection, table, self.study_id, attributes)

    def unfinished(self) -> int:
        """How many trials wait or run."""
        with self._engine.begin() as connection:
            left = sa.select(sa.func.count()).where(_QUEUE.c.study_id == self.study_id)
            return int(connection.scalar(left) or 0)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction for `plans_from` and `finished`."""
        with self._engine.begin() as connection:
            yield connection

    def plans_from(self, connection: sa.Connection, number: int) -> dict[int, Genes]:
        """The plans of all trials from this number on, by trial id, in order."""
        trials, table = self._tables["trials"], self._tables["trial_system_attributes"]
        of_study = (trials.c.study_id == self.study_id, trials.c.number >= number, table.c.key == PLAN_KEY)
        chosen = sa.select(trials.c.trial_id, table.c.value_json).join_from(trials, table).where(*of_study)
        rows = connection.execute(chosen.order_by(trials.c.number))
        return {int(row.trial_id): _genes(row.value_json) for row in rows}

    def finished(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, Finished]:
        """What is known of these trials, where they are complete."""
        values, table = self._tables["trial_values"], self._tables["trial_system_attributes"]
        told: dict[int, dict[int, float]] = {}
        violation: dict[int, float] = {}
        for start in range(0, len(ids), IDS_PER_STATEMENT):
            some = ids[start : start + IDS_PER_STATEMENT]
            chosen = sa.select(values.c.trial_id, values.c.objective, values.c.value)
            for row in connection.execute(chosen.where(values.c.trial_id.in_(some))):
                told.setdefault(int(row.trial_id), {})[row.objective] = row.value
            kept = sa.select(table.c.trial_id, table.c.value_json).where(
                table.c.trial_id.in_(some), table.c.key == CONSTRAINT_KEYS[1]
            )
            violation |= {int(row.trial_id): json.loads(row.value_json) for row in connection.execute(kept)}
        return {
            trial: Finished(tuple(found[n] for n in range(len(OBJECTIVES))), violation[trial])
            for trial, found in told.items()
        }


def _genes(text: str) -> Genes:
    layout, clock, slack = json.loads(text)
    return int(layout), int(clock), float(slack)


def _now(connection: sa.Connection) -> float:
    """Seconds since 1970 by the one clock that all workers share: the database's, or that of the only machine."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.scalar(sa.text("SELECT EXTRACT(EPOCH FROM clock_timestamp())")) or 0.0)


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None)
