"""Where studies live: an Optuna storage by its URL, and steps in it that belong together."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import optuna
import sqlalchemy as sa
from optuna.distributions import distribution_to_json
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from jointopt.runs.database import (
    LOCK_WAIT_S,
    TABLES,
    database_errors,
    file_of,
    in_turn,
    make_private_file,
    now_s,
    on_database,
    open_database,
)

_MADE_WITHIN_S = 30  # the tables of a database, by another program
on_studies = on_database("study storage", (optuna.exceptions.OptunaError,))


@on_studies
def prepare_storage(url: str) -> Storage | None:
    """The storage, opened and found writable before a study is worked out; None where it lives in memory.

    UsageError where the database cannot be opened or written, OutageError where that lasts (`wait_out`).
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = Storage(url)
    if storage.dialect == "sqlite" and _parsed(url).database in (None, "", ":memory:"):
        return None
    with storage.exclusive_turn("jointopt-probe"):
        if storage.dialect == "sqlite":
            # write what SQLite has of the file already: an error where it can only be read
            with storage.rdb.engine.connect() as connection:
                version = connection.exec_driver_sql("PRAGMA user_version").scalar()
                connection.exec_driver_sql(f"PRAGMA user_version = {version}")
        else:
            name = f"jointopt-probe-{uuid4()}"
            optuna.create_study(storage=storage.rdb, study_name=name)
            optuna.delete_study(storage=storage.rdb, study_name=name)
    return storage


def study_errors(url: str) -> AbstractContextManager[None]:
    """UsageError of one sentence for whatever a database or Optuna raises in the body."""
    return database_errors(url, "study storage", (optuna.exceptions.OptunaError,))


def numbered(name: str) -> Iterator[str]:
    """Names to try for a study: ``name``, then with -2, -3, ... at its end."""
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def set_attributes(storage: BaseStorage, study: str, attributes: Iterable[tuple[str, Any]]) -> None:
    """Set system attributes of a study, in which optuna-dashboard looks for notes and plots."""
    study_id = storage.get_study_id_from_name(study)
    for key, value in attributes:
        storage.set_study_system_attr(study_id, key, value)


def _parsed(url: str) -> sa.URL:
    try:
        return sa.engine.make_url(url)
    except ValueError as error:  # for example a port that is not a number
        raise OSError(f"the URL makes no sense ({error})") from error


class _OneTransaction(sqlite3.Connection):
    """A connection whose transactions begin and end by `Storage.one_transaction`, not with each step of Optuna's.

    A step that fails after something was written undoes all of them, so that the commit at the end fails.
    """

    begun_at = 0  # rows changed by this connection before the transaction

    def begin(self) -> None:
        self.begun_at = self.total_changes
        self.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Leave the transaction open."""

    def rollback(self) -> None:
        """Undo the whole transaction."""
        if self.total_changes != self.begun_at:
            super().rollback()


class Storage:
    """An RDB storage of Optuna (``rdb``) whose steps can be joined to one transaction, or taken in turns."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect = _parsed(url).get_backend_name()
        self._connections: list[_OneTransaction] = []
        self._turns: sa.Engine | None = None
        if self.dialect == "sqlite":
            self.rdb = open_storage(url, {
                "poolclass": sa.pool.StaticPool,
                "pool_reset_on_return": None,
                "connect_args": {"factory": self._connected, "isolation_level": None, "timeout": LOCK_WAIT_S},
            })  # fmt: skip
        else:
            self.rdb = open_storage(url)
        if self.dialect == "postgresql":
            self._turns = open_database(url)

    def _connected(self, *arguments: Any, **named: Any) -> _OneTransaction:
        self._connections.append(_OneTransaction(*arguments, **named))
        return self._connections[-1]

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """On SQLite one transaction around all steps, with the write lock from its beginning; elsewhere nothing."""
        if self.dialect != "sqlite":
            yield
            return
        connection = self._connections[-1]
        connection.begin()
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    @contextmanager
    def exclusive_turn(self, name: str) -> Iterator[None]:
        """One process at a time runs a block of this ``name``; on SQLite it is `one_transaction` too.

        The lock, SQLite's write lock or an advisory lock of PostgreSQL, ends with the process that holds it.
        """
        if self._turns is None:
            with self.one_transaction():
                yield
            return
        with in_turn(self._turns, name):
            yield

    def now(self) -> float:
        """Seconds by a clock that all workers share: the database's, or that of the only machine since it began."""
        if self._turns is None:
            return time.monotonic()
        with self._turns.connect() as connection:
            return now_s(connection)


def open_storage(url: str, engine_kwargs: dict[str, Any] | None = None) -> RDBStorage:
    """The storage of a URL, its tables made where they are missing; of several processes that make them, all win.

    ``engine_kwargs``: by default SQLite is waited for as elsewhere, and cut connections to a server are replaced.
    It is tried for again while another program (Optuna's dashboard) makes its tables: Optuna looks whether a table or
    its version is there and makes it, which is not one step; on a loaded machine its maker may be seconds between two.
    """
    is_new = (file := file_of(url)) is not None and not file.exists()
    make_private_file(url)
    dialect = _parsed(url).get_backend_name()
    if file is not None and not is_new:
        with suppress(SQLAlchemyError), open_database(url).connect():
            pass  # where its measurements are of a newer version, a UsageError
    if engine_kwargs is None:
        engine_kwargs = {"connect_args": {"timeout": LOCK_WAIT_S}} if dialect == "sqlite" else {"pool_pre_ping": True}
    until = time.monotonic() + _MADE_WITHIN_S
    with in_turn(open_database(url), TABLES) if dialect == "postgresql" else nullcontext():
        while True:
            try:
                # of a new one Optuna need not look up whether its version of the tables is this one's
                return RDBStorage(url, engine_kwargs, skip_compatibility_check=is_new)
            except (SQLAlchemyError, optuna.exceptions.StorageInternalError, AssertionError) as error:
                cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
                reason = str(getattr(cause, "orig", cause)).lower()
                elsewhere = "already exists" in reason or "locked" in reason  # made, or being made, by another process
                if not (isinstance(cause, (IntegrityError, AssertionError)) or elsewhere):
                    raise
                if time.monotonic() > until:
                    raise OSError(f"its tables are incomplete ({error})") from error
            time.sleep(random.uniform(0.0, 0.5))


def made_study(storage: BaseStorage, name: str, objectives: Sequence[str]) -> optuna.Study:
    """A new study that minimises the ``objectives``; DuplicatedStudyError where the name is taken."""
    study = optuna.create_study(storage=storage, study_name=name, directions=["minimize"] * len(objectives))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(objectives))
    return study


def insert_trials(storage: RDBStorage, study_id: int, trials: Sequence[FrozenTrial]) -> None:
    """Add finished trials of one study that nobody else writes to, as `Study.add_trials` does, a table at a time.

    Optuna takes some 30 SQL statements for each trial, 8 to 15 ms of CPU.
    """
    own = [
        {"number": number, "study_id": study_id, "state": trial.state,
         "datetime_start": _utc(trial.datetime_start), "datetime_complete": _utc(trial.datetime_complete)}
        for number, trial in enumerate(trials)
    ]  # fmt: skip
    rows: dict[type, list[dict[str, Any]]] = {}
    with storage.engine.begin() as connection:
        made = sa.insert(models.TrialModel).returning(models.TrialModel.trial_id, sort_by_parameter_order=True)
        ids = connection.execute(made, own).scalars().all() if own else []
        for trial_id, trial in zip(ids, trials, strict=True):
            for model, key, value, cells in _cells_of(trial):
                rows.setdefault(model, []).append({"trial_id": trial_id, key: value, **cells})
        for model, every in rows.items():
            connection.execute(sa.insert(model), every)


def _utc(moment: datetime | None) -> datetime | None:
    """A moment of local time as Optuna keeps it."""
    return None if moment is None else moment.astimezone(UTC).replace(tzinfo=None)


def _cells_of(trial: FrozenTrial) -> Iterator[tuple[type, str, Any, dict[str, Any]]]:
    """What a finished trial has in tables of its own: the table, what its row is of, and the other cells."""
    for name, kind in trial.distributions.items():
        value, text = kind.to_internal_repr(trial.params[name]), distribution_to_json(kind)
        yield models.TrialParamModel, "param_name", name, {"param_value": value, "distribution_json": text}
    for number, value in enumerate(trial.values or ()):
        stored, finite = models.TrialValueModel.value_to_stored_repr(value)
        yield models.TrialValueModel, "objective", number, {"value": stored, "value_type": finite}
    for model, attributes in (
        (models.TrialUserAttributeModel, trial.user_attrs), (models.TrialSystemAttributeModel, trial.system_attrs),
    ):  # fmt: skip
        for key, value in attributes.items():
            yield model, "key", key, {"value_json": json.dumps(value)}
