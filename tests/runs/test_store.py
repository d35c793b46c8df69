"""Measurements that stay: whole after any interruption, once each, for several writers, beside Optuna's studies."""

import signal
import sqlite3
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import TableError, UsageError
from jointopt.core.schema import COLUMNS
from jointopt.runs.reservations import Reservations
from jointopt.runs.store import Added, Retracted, Store
from jointopt.runs.table import check_measurements, clean_runs, read_table, write_table


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jointopt.db'}"


def runs(count: int, first: int = 0, **columns: Any) -> pd.DataFrame:
    """Runs that differ in their time."""
    rows = [{"dp": 2, "tp": 4, "status": "ok", "iteration_time_s": 1.0 + i} for i in range(first, first + count)]
    return pd.DataFrame(rows).assign(**columns)


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_was_added_is_read_with_where_it_came_from_and_when(url: str) -> None:
    start = datetime.now(UTC) - timedelta(seconds=1)
    assert Store(url).add(runs(3, pp=2, stage_clock_mhz="1410;1395", cluster="leo"), "runs.csv") == Added(3, 0)
    table = Store(url).read()
    assert list(table) == [*COLUMNS, "cluster", "origin", "recorded_at"]
    assert table.iteration_time_s.tolist() == [1.0, 2.0, 3.0]
    assert table.loc[0, ["stage_clock_mhz", "cluster", "origin"]].tolist() == ["1410;1395", "leo", "runs.csv"]
    assert table.energy_j.isna().all()
    moments = [datetime.fromisoformat(text) for text in table.recorded_at]
    assert all(start <= moment <= datetime.now(UTC) for moment in moments)


def test_a_row_already_there_is_not_added_twice(url: str) -> None:
    store = Store(url)
    store.add(runs(3), "monday.csv")
    assert store.add(runs(5), "tuesday.csv") == Added(2, 3)
    assert store.add(pd.concat([runs(1, 9), runs(1, 9)]), "twice.csv") == Added(1, 1)
    assert store.read().origin.tolist() == ["monday.csv"] * 3 + ["tuesday.csv"] * 2 + ["twice.csv"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"dp": 2}, {"dp": 2.0}),
        ({"dp": 2}, {"dp": "2"}),
        ({"energy_j": 1500}, {"energy_j": 1500.0}),
        ({"sequence_parallel": True}, {"sequence_parallel": 1.0}),
        ({"stage_clock_mhz": 1410}, {"stage_clock_mhz": (1410.0,)}),
        ({"group": "a"}, {"group": " a ", "notes": None, "energy_j": float("nan")}),
        ({"nodes": 8}, {"nodes": "8.0"}),
        ({"compiled": True}, {"compiled": "True"}),
    ],
)
def test_the_same_measurement_written_otherwise_is_known(url: str, first: Any, second: Any) -> None:
    base = {"tp": 1, "gpu": "x"}
    assert Store(url).add(pd.DataFrame([base | first]), "a") == Added(1, 0)
    assert Store(url).add(pd.DataFrame([second | base]), "b") == Added(0, 1)


def test_another_measurement_of_the_same_plan_is_new(url: str) -> None:
    Store(url).add(runs(1), "a")
    repeat = runs(1).assign(iteration_time_s=1.0 + 1e-12)
    assert Store(url).add(repeat, "a") == Added(1, 0)


def test_an_export_that_comes_back_adds_nothing_and_is_equal(url: str, tmp_path: Path) -> None:
    failed = {"dp": 4, "status": "oom", "sequence_parallel": True, "recompute": "full", "group": "007", "x": "a,b"}
    Store(url).add(pd.concat([runs(2, energy_j=1 / 3), pd.DataFrame([failed])]), "here")
    write_table(Store(url).read(), tmp_path / "export.csv.gz")
    back = read_table(tmp_path / "export.csv.gz")
    pd.testing.assert_frame_equal(back, Store(url).read(), check_dtype=False)
    good, problems = check_measurements(back)
    assert problems == []
    assert Store(url).add(good, "again") == Added(0, 3)


def test_what_is_read_can_be_predicted_from(url: str) -> None:
    Store(url).add(runs(1, stage_clock_mhz="1410;1395", sequence_parallel=False), "a")
    clean = clean_runs(Store(url).read())
    assert clean.stage_clock_mhz[0] == (1410.0, 1395.0)
    assert clean.sequence_parallel[0] == 0.0
    assert np.isnan(clean.num_layers[0])


def test_an_empty_store_has_the_columns_and_leaves_no_file(url: str, tmp_path: Path) -> None:
    assert list(Store(url).read()) == [*COLUMNS, "origin", "recorded_at"]
    assert Store(url).add(runs(0), "nothing") == Added(0, 0)
    assert Store(url).add(pd.DataFrame({"dp": [None]}), "blank") == Added(0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_cell_that_its_column_cannot_hold_adds_nothing(url: str) -> None:
    with pytest.raises(TableError, match=r"Row 2 .* dp must be int; got 'two'"):
        Store(url).add(pd.DataFrame({"dp": [1, "two"]}), "a")
    assert Store(url).read().empty


def test_a_store_in_memory_lasts_as_long_as_it_is_held() -> None:
    store = Store("sqlite://")
    store.add(runs(2), "a")
    assert len(store.read()) == 2


@pytest.mark.parametrize("studies_first", [True, False])
def test_measurements_and_studies_share_a_database(url: str, studies_first: bool) -> None:
    steps = [lambda: optuna.create_study(storage=url, study_name="s"), lambda: Store(url).add(runs(2), "a")]
    for step in steps if studies_first else steps[::-1]:
        step()
    assert optuna.load_study(storage=url, study_name="s").trials == []
    assert len(Store(url).read()) == 2


@pytest.mark.long
def test_a_writer_killed_before_its_end_leaves_the_previous_rows(url: str, tmp_path: Path) -> None:
    Store(url).add(runs(10), "before")
    dying = child(
        """
        import os, signal, sys
        import pandas as pd, sqlalchemy as sa
        from jointopt.runs.store import Store

        @sa.event.listens_for(sa.Engine, "after_cursor_execute")
        def die(connection, cursor, statement, *rest):
            statements.append(statement.startswith("INSERT"))
            if any(statements):
                os.kill(os.getpid(), signal.SIGKILL)

        statements = []

        rows = pd.DataFrame({"iteration_time_s": [1.0 + i for i in range(6000)], "notes": "n" * 1000})
        Store(sys.argv[1]).add(rows, "killed")
        """,
        url,
    )
    assert dying.wait(60) == -signal.SIGKILL
    beside = sum(file.stat().st_size for file in tmp_path.glob("jointopt.db-*"))
    assert beside > 0, "the write must have reached the file"
    assert Store(url).read().origin.tolist() == ["before"] * 10
    assert Store(url).add(runs(12), "after") == Added(2, 10)
    with sqlite3.connect(tmp_path / "jointopt.db") as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)


WRITER = """
    import sys
    import pandas as pd
    from jointopt.runs.store import Store

    new = 0
    for start in range(int(sys.argv[2]), int(sys.argv[3]), 5):
        rows = pd.DataFrame({"iteration_time_s": [1.0 + i for i in range(start, start + 10)]})
        new += Store(sys.argv[1]).add(rows, sys.argv[2]).new
    print(new)
"""


@pytest.mark.long
def test_two_processes_that_write_the_same_rows_at_once_add_each_once(url: str) -> None:
    writers = [child(WRITER, url, first, last) for first, last in ((0, 200), (50, 250))]
    outputs = [writer.communicate(timeout=120) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], outputs
    times = Store(url).read().iteration_time_s
    assert sorted(times) == [1.0 + i for i in range(255)]
    assert sum(int(stdout) for stdout, _ in outputs) == 255


@pytest.mark.long
def test_a_writer_waits_for_the_lock_of_another(url: str, tmp_path: Path) -> None:
    Store(url).add(runs(1), "a")
    with sqlite3.connect(tmp_path / "jointopt.db", isolation_level=None) as other:
        other.execute("begin immediate")
        waiting = child(WRITER, url, 100, 105)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(2.5)
        other.execute("rollback")
    assert waiting.communicate(timeout=60)[0] == "10\n"
    assert len(Store(url).read()) == 11


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite:////no/such/folder/x.db", "unable to open database file"),
        ("postgresql+nodriver://me:secret@host/x", "nodriver"),
        ("nonsense", "is no database URL; expected one such as sqlite:///jointopt.db"),
        ("sqlite+nothing:///x.db", "nothing"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_sentence(url: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"measurement store .*{reason}") as caught:
        Store(url).add(runs(1), "a")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("dp,tp\n" * 100)
    with pytest.raises(UsageError, match="is no SQLite database"):
        Store(f"sqlite:///{tmp_path / 'x.db'}").read()


CELLS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "notes"]), CELLS, min_size=1), min_size=1, max_size=6))
def test_unknown_cells_of_any_kind_come_back_as_the_same_rows(rows: list[dict[str, Any]]) -> None:
    store = Store("sqlite://")
    store.add(pd.DataFrame(rows).astype(object), "a")
    back = store.read()
    assert store.add(back, "b").new == 0
    assert len(store.read()) == len(back)


def test_no_connection_to_postgresql_is_kept_between_two_uses(postgres_url: str) -> None:
    import psycopg

    Store(postgres_url).add(runs(2), "here")
    Reservations(postgres_url, "study").take("plan")
    url = sa.engine.make_url(postgres_url)
    with psycopg.connect(host=url.query["host"], user=url.username, dbname="postgres") as other:
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        assert other.execute(count, (url.database,)).fetchone() == (0,)


def test_two_processes_write_to_postgresql_as_well(postgres_url: str) -> None:
    writers = [child(WRITER, postgres_url, first, first + 100) for first in (0, 50)]
    outputs = [writer.communicate(timeout=120) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], outputs
    assert sum(int(stdout) for stdout, _ in outputs) == 155


def test_a_retracted_row_is_kept_and_never_read_again(url: str) -> None:
    Store(url).add(runs(3), "mine")
    assert Store(url).retract(runs(1), "wrong") == Retracted(1, 0, 0)
    assert len(Store(url).read()) == 2
    assert Store(url).retract(pd.concat([runs(1), runs(1, pp=7)]), "wrong") == Retracted(0, 1, 1)
    assert Store(url).add(runs(3), "again") == Added(0, 3, retracted=1)
    assert len(Store(url).read()) == 2
    with sa.create_engine(url).connect() as connection:
        assert connection.execute(sa.text("select count(*) from jointopt_measurements")).scalar() == 3


def test_nothing_is_retracted_from_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert Store(f"sqlite:///{tmp_path / 'x.db'}").retract(runs(2), "wrong") == Retracted(0, 0, 2)
    assert not (tmp_path / "x.db").exists()
