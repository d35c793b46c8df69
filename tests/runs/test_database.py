"""Whether a database is worth opening."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from jointopt.core.errors import UsageError
from jointopt.runs.database import may_hold_rows
from jointopt.runs.store import Store


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
