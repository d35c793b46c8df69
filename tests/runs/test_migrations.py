"""Stores of other versions: newer ones are refused and stay as they are, older ones come up whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.core.errors import UsageError
from jointopt.runs import migrations
from jointopt.runs.database import VERSION
from jointopt.runs.reservations import Reservations
from jointopt.runs.store import Store, check_store, repair_store
from jointopt.search.studies.storage import prepare_storage

ROW = pd.DataFrame({"tp": [1], "gpu": ["h100"], "iteration_time_s": [2.0]})


def changed(file: Path, *statements: str) -> bytes:
    """The content of a database after these statements."""
    with closing(sqlite3.connect(file)) as opened:
        opened.executescript(";".join([*statements, "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA journal_mode = DELETE"]))
    return file.read_bytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    Store(f"sqlite:///{tmp_path / 'runs.db'}").add(ROW, "here")
    return tmp_path / "runs.db"


def of_version_2(file: Path) -> bytes:
    """The store as version 2 had it: no plan keys, fewer fields of a kind, no maker."""
    kinds = "gpu VARCHAR(200), gpus_per_node INTEGER, framework VARCHAR(200), model VARCHAR(200)"
    return changed(
        file, "DROP INDEX jointopt_measurements_by_plan", "ALTER TABLE jointopt_measurements DROP COLUMN plan_key",
        "DROP TABLE jointopt_kinds", f"CREATE TABLE jointopt_kinds (id INTEGER PRIMARY KEY, {kinds})",
        "DROP TABLE jointopt_schema", "CREATE TABLE jointopt_schema (version INTEGER PRIMARY KEY, reached_at "
        "VARCHAR(32) DEFAULT CURRENT_TIMESTAMP NOT NULL)", "INSERT INTO jointopt_schema (version) VALUES (2)",
    )  # fmt: skip


USES: dict[str, Callable[[str], object]] = {
    "add": lambda url: Store(url).add(ROW.assign(tp=2), "here"), "read": lambda url: Store(url).read(),
    "retract": lambda url: Store(url).retract(ROW, "here"), "count": lambda url: Store(url).count(),
    "reserve": lambda url: Reservations(url, "s").take("p"), "check": check_store, "repair": repair_store,
    "studies": prepare_storage,
}  # fmt: skip


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    ("maker", "by"), [("'9.1'", "use jointopt 9.1 or"), ("NULL", "use the jointopt that made it or")]
)
def test_a_store_of_a_newer_version_is_refused_and_not_changed(file: Path, use, maker: str, by: str) -> None:
    before = changed(file, f"INSERT INTO jointopt_schema (version, jointopt) VALUES ({VERSION + 1}, {maker})")
    with pytest.raises(UsageError, match=rf"is of version {VERSION + 1}, and this jointopt reads {VERSION}.*{by}"):
        use(f"sqlite:///{file}")
    assert file.read_bytes() == before
    assert [one.name for one in file.parent.iterdir()] == ["runs.db"]


def test_a_store_of_a_newer_version_on_a_server_is_refused_and_not_changed(postgres_url: str) -> None:
    Store(postgres_url).add(ROW, "here")
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"INSERT INTO jointopt_schema (version, jointopt) VALUES ({VERSION + 1}, '9.1')"))
    for use in (USES["add"], USES["read"], USES["reserve"], USES["studies"]):
        with pytest.raises(UsageError, match=r"use jointopt 9\.1 or a newer one"):
            use(postgres_url)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM jointopt_measurements")) == 1
    assert set(sa.inspect(engine).get_table_names()) == {
        "jointopt_measurements", "jointopt_retractions", "jointopt_kinds", "jointopt_schema",
    }  # fmt: skip


def test_the_version_known_is_that_of_the_last_step(file: Path) -> None:
    assert max(migrations.STEPS) == VERSION
    with closing(sqlite3.connect(file)) as opened:
        assert opened.execute("SELECT version, jointopt FROM jointopt_schema").fetchall() == [(VERSION, "0.1.0")]


def test_a_store_of_an_older_version_is_brought_up_and_kept_beside_it(file: Path) -> None:
    before = of_version_2(file)
    url = f"sqlite:///{file}"
    assert Store(url).add(ROW.assign(tp=2), "here").new == 1
    assert (Store(url).count(), check_store(url).faults) == (2, ())
    copy = file.with_name("runs.db.version-2")
    assert copy.stat().st_mode & 0o777 == 0o600
    shutil.copy(copy, again := file.with_name("again.db"))
    assert (len(before) > 0, Store(f"sqlite:///{again}").count()) == (True, 1)


def test_a_step_that_fails_leaves_the_store_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_version_2(file)

    def failing(connection: object) -> None:
        migrations._to_version_3(connection)  # type: ignore[arg-type]
        raise OSError("no further")

    monkeypatch.setitem(migrations.STEPS, 3, failing)
    with pytest.raises(UsageError, match="no further"):
        Store(f"sqlite:///{file}").add(ROW.assign(tp=2), "here")
    with closing(sqlite3.connect(file)) as found, closing(sqlite3.connect(file.with_name("old.db"))) as old:
        old.deserialize(before)
        names = "SELECT name FROM pragma_table_info('jointopt_measurements')"
        assert found.execute(names).fetchall() == old.execute(names).fetchall()
        assert found.execute("SELECT version FROM jointopt_schema").fetchall() == [(2,)]


KILLED = """
import os, signal, sys, pandas as pd
from jointopt.runs import migrations
from jointopt.runs.store import Store
whole = migrations.STEPS[3]
migrations.STEPS[3] = lambda connection: (whole(connection), os.kill(os.getpid(), signal.SIGKILL))
Store(sys.argv[1]).add(pd.DataFrame({"tp": [2], "iteration_time_s": [2.0]}), "here")
"""


def test_a_process_killed_in_a_step_leaves_a_store_that_the_next_brings_up(file: Path) -> None:
    of_version_2(file)
    url = f"sqlite:///{file}"
    ran = subprocess.run([sys.executable, "-c", KILLED, url], env=os.environ, capture_output=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    with closing(sqlite3.connect(file)) as found:
        assert found.execute("SELECT version FROM jointopt_schema").fetchall() == [(2,)]
    assert Store(url).add(ROW.assign(tp=2), "here").new == 1
    assert (Store(url).count(), check_store(url).faults) == (2, ())


def test_studies_of_a_newer_optuna_are_refused_in_a_sentence(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    prepare_storage(url)
    changed(tmp_path / "studies.db", "UPDATE alembic_version SET version_num = 'v9.0.0.a'",
            "UPDATE version_info SET library_version = '9.0.0'")  # fmt: skip
    with pytest.raises(UsageError) as refused:
        prepare_storage(url)
    sentence = str(refused.value)
    assert re.match(
        r"The study storage '.*' is of another release of Optuna: .*9\.0\.0.*pip install -U optuna", sentence
    )
    assert "expected a database URL" not in sentence


def test_a_retraining_with_no_store_is_as_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("dp,status\n1,ok\n")
    words = ["retrain", "--table", str(tmp_path / "runs.csv"), "--storage", "none", "--out", str(tmp_path / "out")]
    output = CliRunner().invoke(jointopt, words).output
    assert "database" not in output
