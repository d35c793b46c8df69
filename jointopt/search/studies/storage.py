"""Where studies live: a storage of Optuna's, opened by URL, whoever else is making it."""

from __future__ import annotations

import random
import time

import optuna
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from jointopt.runs.database import database_errors

ATTEMPTS = 8  # at tables that another process makes at the same moment


def prepare_storage(url: str) -> bool:
    """Make the storage ready for a study; False where it lives in memory, so that nothing would stay.

    Does what a later `saving.save_study` needs: opens the database, makes its tables where it is new,
    and asks for the right to write without writing. UsageError where one of these fails.
    """
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        engine = engine_of(open_storage(url))
        if _in_memory(url):
            return False
        if engine is not None:
            with engine.begin() as connection:
                connection.execute(sa.text("UPDATE studies SET study_name = study_name WHERE 1 = 0"))
    return True


def _in_memory(url: str) -> bool:
    parsed = sa.engine.make_url(url)
    return parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:")


def engine_of(storage: optuna.storages.BaseStorage) -> sa.Engine | None:
    """The database under a storage; None where there is none."""
    engine: sa.Engine | None = getattr(getattr(storage, "_backend", storage), "engine", None)
    return engine


def open_storage(url: str) -> optuna.storages.BaseStorage:
    """The storage of a URL, its tables made where they are missing; of several processes that make them, all win."""
    attempt = 1
    while True:
        try:
            return optuna.storages.get_storage(url)
        except ValueError as error:  # for example a port that is not a number
            raise OSError(f"the URL makes no sense ({error})") from error
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError, AssertionError) as error:
            # Optuna looks whether a table or its version is there and makes it, which is not one step.
            if not _made_meanwhile(error):
                raise
            if attempt == ATTEMPTS:
                raise OSError(f"its tables are not complete ({error})") from error
        time.sleep(random.uniform(0.0, 0.1 * attempt))
        attempt += 1


def _made_meanwhile(error: BaseException) -> bool:
    """Whether another process was faster at making the tables, or holds the lock while it does."""
    cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
    told = str(getattr(cause, "orig", cause)).lower()
    return isinstance(cause, (IntegrityError, AssertionError)) or "already exists" in told or "locked" in told
