"""Outages of a database that pass are waited for, with a word and an end; others are errors at once."""

from __future__ import annotations

import math
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy as sa

from jointopt.core.errors import OutageError, UsageError
from jointopt.runs import database
from jointopt.runs.database import database_errors, ends_by_itself, patience, wait_out
from jointopt.runs.store import Store

URL = "postgresql+psycopg://me:s3cret@host/runs"


class Away:
    """A database that is away for its first ``times`` uses."""

    def __init__(self, times: float) -> None:
        self.left = times

    def __call__(self) -> str:
        self.left -= 1
        if self.left >= 0:
            raise OutageError("It restarts.")
        return "here"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WORD_S", 0.0)


def test_an_outage_is_mentioned_once_with_its_end_and_no_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jointopt")
    assert wait_out(URL, Away(3), "runs are kept in FILE") == "here"
    waiting, back = caplog.messages
    assert waiting.startswith("Waiting for postgresql+psycopg://me:***@host/runs since ")
    assert waiting.endswith("for at most 60 s; runs are kept in FILE. It restarts.")
    assert back.startswith("postgresql+psycopg://me:***@host/runs answers again after ")


def test_an_outage_that_outlasts_the_patience_is_an_error_with_exit_code_1() -> None:
    with patience(0.05), pytest.raises(OutageError) as caught:
        wait_out(URL, Away(math.inf))
    assert caught.value.exit_code == 1


def test_a_worker_may_wait_for_as_long_as_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    with patience(math.inf):
        assert wait_out(URL, Away(2)) == "here"
    assert "until it answers" in caplog.text


@pytest.mark.parametrize(
    ("words", "passing"),
    [
        ("database is locked", True),
        ('connection to server on socket "/tmp/.s.PGSQL.5432" failed: No such file or directory', True),
        ("connection failed: FATAL:  the database system is starting up", True),
        ("FATAL:  sorry, too many clients already", True),
        ("server closed the connection unexpectedly", True),
        ('FATAL:  password authentication failed for user "me"', False),
        ("database or disk is full", False),
        ("attempt to write a readonly database", False),
        ("disk I/O error", False),
    ],
)
def test_an_error_that_passes_by_itself_is_an_outage_and_another_is_not(words: str, passing: bool) -> None:
    error = sa.exc.OperationalError("x", {}, sqlite3.OperationalError(words))
    assert ends_by_itself(error) == passing
    with pytest.raises(OutageError if passing else UsageError), database_errors(URL, "store"):
        raise error


def test_a_lock_that_is_given_up_meanwhile_costs_nothing(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'runs.db'}")
    store.add(pd.DataFrame({"tp": [1]}), "here")
    with closing(sqlite3.connect(tmp_path / "runs.db", check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        threading.Timer(0.2, other.rollback).start()
        assert store.add(pd.DataFrame({"tp": [2]}), "here").new == 1
