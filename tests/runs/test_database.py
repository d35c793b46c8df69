"""Whether a database is worth opening."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from jointopt.core.errors import JointOptError, OutageError, UsageError
from jointopt.runs.database import _REASONS, database_errors, may_hold_rows, patience
from jointopt.runs.store import Store
from jointopt.runs.table import write_table
from jointopt.search.studies.storage import prepare_storage
from tests.each import each


def test_a_database_may_hold_measurements_once_their_table_is_there(tmp_path: Path) -> None:
    file = tmp_path / "a b#%.db"
    url = f"sqlite:///{file}"
    assert not may_hold_rows(url)
    with closing(sqlite3.connect(file)) as made:
        made.execute("CREATE TABLE studies (id INTEGER)")
    assert not may_hold_rows(url)
    Store(url).add(pd.DataFrame({"tp": [1], "iteration_time_s": [2.0]}), "here")
    assert may_hold_rows(url)


def test_a_file_that_is_no_database_is_left_to_its_reader_to_report(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database, and longer than the header of one: " * 9)
    url = f"sqlite:///{tmp_path / 'text.db'}"
    assert may_hold_rows(url)
    with pytest.raises(UsageError):
        Store(url).read()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "postgresql://host/base"])
def test_what_is_not_a_file_may_always_hold_measurements(url: str) -> None:
    assert may_hold_rows(url)


def test_a_new_database_is_for_its_owner_alone(tmp_path: Path) -> None:
    Store(f"sqlite:///{tmp_path / 'runs.db'}").add(pd.DataFrame({"tp": [1]}), "here")
    prepare_storage(f"sqlite:///{tmp_path / 'studies.db'}")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("runs.db", "studies.db")] == [0o600, 0o600]


def test_a_lock_that_outlasts_the_wait_is_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jointopt.runs.database.LOCK_WAIT_S", 0.05)
    store = Store(f"sqlite:///{tmp_path / 'runs.db'}")
    store.add(pd.DataFrame({"tp": [1]}), "here")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with patience(0.1), pytest.raises(OutageError, match=r"is locked by another program; .*fuser FILE"):
            store.add(pd.DataFrame({"tp": [2]}), "here")


@pytest.mark.parametrize("url", ["postgresql+psycopg://me:s3cret@no.such/db", "mysql://h/d?password=s3cret"])
def test_no_message_of_a_database_repeats_a_password(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        Store(url).read()
    assert "s3cret" not in str(refused.value)


def test_a_full_disk_is_called_one_whatever_meets_it(small_disk: Path) -> None:
    many = pd.DataFrame({"tp": range(60), "notes": ["n" * 2_000] * 60})
    made = f"sqlite:///{small_disk / 'runs.db'}"
    uses = {
        "rows": lambda: Store(made).add(many, "here"),
        "a new store": lambda: Store(f"sqlite:///{small_disk / 'new.db'}").add(many[:1], "here"),
        "studies": lambda: prepare_storage(f"sqlite:///{small_disk / 'studies.db'}"),
        "a table": lambda: write_table(many, small_disk / "table.csv"),
    }  # fmt: skip
    for use in uses.values():
        with pytest.raises(UsageError, match="the disk is full"):
            use()
        (small_disk / "fill").write_bytes(bytes(max(shutil.disk_usage(small_disk).free - 4_096, 0)))


def test_a_ctrl_c_amid_a_statement_prints_no_traceback_of_the_library(tmp_path: Path) -> None:
    program = (
        "import sys; from contextlib import suppress; import sqlalchemy; from jointopt.runs import database\n"
        "def interrupt(*_): raise KeyboardInterrupt\n"
        "engine = database.open_database(sys.argv[1]); sqlalchemy.event.listen(engine, 'reset', interrupt)\n"
        "with suppress(KeyboardInterrupt), engine.connect() as connection: connection.exec_driver_sql('SELECT 1')"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'runs.db'}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


@each("reason", _REASONS)
def test_what_to_do_about_a_database_is_a_sentence_that_others_may_follow(reason: str) -> None:
    with pytest.raises(JointOptError, match=r"\.$"), database_errors("sqlite:///runs.db", "store"):
        raise sqlite3.OperationalError(reason)
