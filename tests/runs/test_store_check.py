"""A store that is damaged, of an earlier version, full, read-only or gone loses no row that was written."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.core.errors import UsageError
from jointopt.runs.cells import json_rows
from jointopt.runs.migrations import VERSION
from jointopt.runs.relevance import Wanted, plan_key, plan_keys, related_to
from jointopt.runs.spill import Spill, rows_in, spill_files, waiting_spills
from jointopt.runs.store import Added, Store, back_up, check_store, content_hash, repair_store


def runs(count: int, gpu: str = "h100-sxm5-80gb", first: int = 0) -> pd.DataFrame:
    rows = [{"dp": 2, "gpu": gpu, "gpus_per_node": 8, "framework": "nemo", "iteration_time_s": 1.0 + i}
            for i in range(first, first + count)]  # fmt: skip
    return pd.DataFrame(rows).assign(status="ok", notes="n" * 400)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "runs.db"


TABLE = """CREATE TABLE jointopt_measurements (id INTEGER PRIMARY KEY, content_hash VARCHAR(64) NOT NULL UNIQUE,
origin TEXT NOT NULL, recorded_at VARCHAR(32) NOT NULL, content JSON NOT NULL)"""
ROW = "INSERT INTO jointopt_measurements (content_hash, origin, recorded_at, content) VALUES (?, 'old', '2026', ?)"
KINDS_OF_VERSION_2 = """CREATE TABLE jointopt_schema (version INTEGER PRIMARY KEY, reached_at VARCHAR(32) NOT NULL
DEFAULT CURRENT_TIMESTAMP); INSERT INTO jointopt_schema (version) VALUES (2);
CREATE TABLE jointopt_kinds (id INTEGER PRIMARY KEY, gpu VARCHAR(200) NOT NULL, gpus_per_node INTEGER NOT NULL,
framework VARCHAR(200) NOT NULL, model VARCHAR(200) NOT NULL, UNIQUE (gpu, gpus_per_node, framework, model));
INSERT INTO jointopt_kinds VALUES (1, 'something', 8, 'nemo', '');
ALTER TABLE jointopt_measurements ADD COLUMN kind_id INTEGER; UPDATE jointopt_measurements SET kind_id = 1;
CREATE INDEX jointopt_measurements_by_kind ON jointopt_measurements (kind_id, id)"""


def of_version_1(file: Path, table: pd.DataFrame) -> None:
    """A database as the first version left it."""
    with closing(sqlite3.connect(file)) as db:
        db.execute(TABLE)
        for content in json_rows(table):
            db.execute(ROW, (content_hash(content), json.dumps(content)))
        db.commit()


def test_only_related_rows_are_read_and_of_those_the_newest(file: Path) -> None:
    store = Store(f"sqlite:///{file}")
    store.add(pd.concat([runs(5), runs(5, gpu="NVIDIA H100 80GB HBM3", first=5), runs(5, gpu="v100", first=10)]), "a")
    here = related_to({"h100-sxm5-80gb"}, 8)
    assert store.read(Wanted(here)).iteration_time_s.tolist() == [1.0 + i for i in range(10)]
    assert store.read(Wanted(here, 3)).iteration_time_s.tolist() == [8.0, 9.0, 10.0]
    assert store.read(Wanted(related_to({"h100-sxm5-80gb"}, 4))).empty
    store.retract(runs(1, gpu="NVIDIA H100 80GB HBM3", first=9), "wrong")
    assert store.read(Wanted(here, 3)).iteration_time_s.tolist() == [7.0, 8.0, 9.0]


@pytest.mark.parametrize("kinds", [1, 3])
def test_up_to_the_number_that_is_read_whole_all_rows_are_and_of_one_more_the_most(
    file: Path, kinds: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store, every = Store(f"sqlite:///{file}"), [runs(1, first=i).assign(model=f"m{i % kinds}") for i in range(6)]
    wanted = Wanted(related_to({"h100-sxm5-80gb"}), all_up_to=5, most_rows=2)
    store.add(pd.concat(every[:5]), "as many as are read whole")
    assert len(store.read(wanted)) == 5
    assert "nearest" not in caplog.text
    store.add(every[5], "one more")
    assert len(store.read(wanted)) == 2
    assert "the 2 nearest are used" in caplog.text


def test_of_too_many_rows_those_of_the_plan_and_the_job_are_read_before_newer_ones(file: Path) -> None:
    store = Store(f"sqlite:///{file}")
    store.add(runs(1).assign(tp=4, pp=1, micro_batch_size=1, model="mine"), "the plan of the job")
    store.add(runs(50, first=1).assign(tp=1, model="mine"), "the job")
    store.add(pd.concat(runs(9, first=51 + 9 * i).assign(model=f"m{i}") for i in range(9)), "others")
    wanted = Wanted(related_to({"h100-sxm5-80gb"}), 20, 20, 3, lambda kind: kind.model != "mine", ("2/4/1/1/1",))
    found = store.read(wanted)
    assert found.origin.value_counts().to_dict() == {"the job": 10, "others": 9, "the plan of the job": 1}
    assert found.model.nunique() == 3


def test_a_plan_has_one_key_however_a_row_states_it() -> None:
    full = {"dp": 2, "tp": 4, "pp": 1, "cp": 1, "micro_batch_size": 8}
    assert plan_key(full) == plan_key({"tp": 4, "pp": 1, "num_gpus": 8, "micro_batch_size": 8}) == "2/4/1/1/8"
    assert plan_key(full | {"micro_batch_size": None}) == "2/4/1/1/0"
    assert plan_keys({name: np.array([value, value]) for name, value in full.items()}) == ("2/4/1/1/8", "2/4/1/1/0")


def of_version_2(file: Path, table: pd.DataFrame) -> None:
    """A database as the second version left it."""
    of_version_1(file, table)
    with closing(sqlite3.connect(file)) as db:
        db.executescript(KINDS_OF_VERSION_2)
        db.commit()


def test_a_database_of_the_second_version_is_brought_up_and_may_still_be_written_by_its_program(file: Path) -> None:
    of_version_2(file, pd.concat([runs(3), runs(3, gpu="v100")]))
    store, here = Store(f"sqlite:///{file}"), Wanted(related_to({"h100-sxm5-80gb"}), 100, plans=("2/0/0/1/0",))
    assert len(store.read(here)) == 3
    (content,) = json_rows(runs(1, first=9))
    with closing(sqlite3.connect(file)) as old:
        old.execute("INSERT INTO jointopt_kinds (gpu, gpus_per_node, framework, model) VALUES (?, 8, 'nemo', 'old')",
                    (content["gpu"],))  # fmt: skip
        kind = old.execute("SELECT max(id) FROM jointopt_kinds").fetchone()[0]
        old.execute(ROW, (content_hash(content), json.dumps(content)))
        old.execute("UPDATE jointopt_measurements SET kind_id = ? WHERE kind_id IS NULL", (kind,))
        old.commit()
    assert store.read(here).iteration_time_s.tolist() == [1.0, 2.0, 3.0, 10.0]


def test_a_store_counts_its_rows_but_those_retracted(file: Path) -> None:
    store = Store(f"sqlite:///{file}")
    store.add(runs(7), "a")
    store.retract(runs(2), "wrong")
    assert store.count() == 5


def test_a_database_of_the_first_version_is_brought_up_by_its_first_use(file: Path) -> None:
    of_version_1(file, runs(30))
    store = Store(f"sqlite:///{file}")
    assert len(store.read()) == 30  # also by those who may not write
    assert len(store.read(Wanted(related_to({"h100-sxm5-80gb"})))) == 30
    assert store.add(runs(31), "new") == Added(1, 30)
    assert check_store(f"sqlite:///{file}").facts == (f"31 rows, version {VERSION} of {VERSION}",)


def test_a_database_of_the_first_version_that_may_only_be_read_answers_too(file: Path, monkeypatch) -> None:
    of_version_1(file, pd.concat([runs(3), runs(3, gpu="v100")]))
    with closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA locking_mode = NORMAL")
        monkeypatch.setattr("jointopt.runs.store.migrate", _readonly)
        assert len(Store(f"sqlite:///{file}").read(Wanted(related_to({"h100-sxm5-80gb"}), 2))) == 2


def _readonly(_: object) -> None:
    import sqlalchemy as sa

    raise sa.exc.OperationalError("x", {}, sqlite3.OperationalError("attempt to write a readonly database"))


def test_a_backup_is_whole_and_for_its_owner_alone(file: Path, tmp_path: Path) -> None:
    Store(f"sqlite:///{file}").add(runs(20), "a")
    back_up(f"sqlite:///{file}", tmp_path / "copy.db")
    assert len(Store(f"sqlite:///{tmp_path / 'copy.db'}").read()) == 20
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="There is no database"):
        back_up(f"sqlite:///{tmp_path / 'none.db'}", tmp_path / "x.db")


def test_the_rows_of_postgresql_are_backed_up_into_a_file(postgres_url: str, tmp_path: Path) -> None:
    Store(postgres_url).add(runs(20), "a")
    Store(postgres_url).retract(runs(1), "wrong")
    back_up(postgres_url, tmp_path / "copy.db")
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    assert len(Store(copy).read(Wanted(related_to({"h100-sxm5-80gb"})))) == 19
    assert check_store(copy).faults == check_store(postgres_url).faults == ()


def test_a_changed_row_is_found(file: Path) -> None:
    Store(f"sqlite:///{file}").add(runs(3), "a")
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE jointopt_measurements SET content = replace(content, '2', '3') WHERE id = 2")
        db.commit()
    found = CliRunner().invoke(jointopt, ["store", "check", "--storage", f"sqlite:///{file}"])
    assert (found.exit_code, "1 row has changed since it was added" in found.stdout) == (1, True)


def test_a_damaged_file_is_replaced_by_all_that_can_be_read_and_is_kept(file: Path) -> None:
    url = f"sqlite:///{file}"
    Store(url).add(runs(2000), "a")
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw = bytearray(file.read_bytes())
    middle = len(raw) // 2 // 4096 * 4096
    raw[middle : middle + 4096] = b"\xa5" * 4096
    file.write_bytes(raw)
    journal = file.with_name(f"{file.name}-journal")
    journal.touch()
    kept, saved, _ = repair_store(url)
    assert kept is not None
    assert not journal.exists()  # it is of the damaged file
    assert kept.read_bytes() == bytes(raw)
    assert 1500 < saved <= 2000
    assert (check_store(url).faults, len(Store(url).read()), repair_store(url)) == ((), saved, (None, 0, 0))


def test_a_repaired_file_has_the_indexes_of_the_damaged_one(file: Path) -> None:
    def indexes() -> set[str]:
        with closing(sqlite3.connect(file)) as db:
            return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}

    Store(f"sqlite:///{file}").add(runs(2000), "a")
    before = indexes()
    raw = bytearray(file.read_bytes())
    raw[-8192:-4096] = b"\xa5" * 4096
    file.write_bytes(raw)
    assert repair_store(f"sqlite:///{file}")[0] is not None
    assert "jointopt_measurements_by_kind" in before
    assert indexes() == before


def test_an_export_comes_back_in_full(file: Path, tmp_path: Path) -> None:
    Store(f"sqlite:///{file}").add(runs(20), "a")
    out, other = str(tmp_path / "out.csv.gz"), f"sqlite:///{tmp_path / 'other.db'}"
    exported = CliRunner().invoke(jointopt, ["store", "export", out, "--storage", f"sqlite:///{file}"])
    assert exported.stdout == f"{out}: 20 runs.\n"
    CliRunner().invoke(jointopt, ["ingest", out, "--storage", other])
    assert len(Store(other).read()) == 20


def test_a_row_that_the_database_does_not_take_waits_in_a_file_for_the_next_start(file: Path) -> None:
    url, row = f"sqlite:///{file}", {"dp": 2, "iteration_time_s": 1.5}
    kept = (mine := Spill(url, "tune")).keep(row)
    assert [kept] == spill_files(url) == list(file.parent.glob("runs.db.spill.*.jsonl"))
    with kept.open("a") as stream:
        stream.write('{"origin": "tune", "ro')  # torn by a full disk
    assert Store(url).add_spilled() == 0  # a living process has it
    mine.close()
    assert Store(url).add_spilled() == 1
    assert Store(url).read()[["dp", "iteration_time_s", "origin"]].values.tolist() == [[2, 1.5, "tune"]]
    assert (Store(url).add_spilled(), spill_files(url)) == (0, [])


def test_a_file_that_somebody_removed_is_made_again_for_the_next_row(file: Path) -> None:
    mine = Spill(f"sqlite:///{file}", "tune")
    mine.keep({"dp": 1}).unlink()
    kept = mine.keep({"dp": 2})
    assert [row for _, row in rows_in(kept)] == [{"dp": 2}]
    mine.clear()
    assert not kept.exists()


def test_where_the_disk_of_the_database_is_full_the_file_is_elsewhere(small_disk: Path, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url = f"sqlite:///{small_disk / 'runs.db'}"
    (small_disk / "fill").write_bytes(b"x" * 60_000)
    mine = Spill(url, "tune")
    spilled = {mine.keep({"dp": 2, "notes": "n" * 3000, "iteration_time_s": 1.0 + i}) for i in range(5)}
    assert spilled <= set(spill_files(url))
    assert any(file.parent.parent.parent == tmp_path / "state" for file in spilled)
    mine.close()
    assert sum(len(rows) for _, rows in waiting_spills(url)) == 5


@pytest.mark.parametrize(("mode", "faults"), [(0o600, 0), (0o664, 0), (0o666, 1), (0o602, 1)])
def test_a_file_that_every_user_may_change_is_a_fault(file: Path, mode: int, faults: int) -> None:
    Store(f"sqlite:///{file}").add(runs(1), "a")
    file.chmod(mode)
    found = check_store(f"sqlite:///{file}").faults
    assert [f"every user may change {file}" in fault for fault in found] == [True] * faults
