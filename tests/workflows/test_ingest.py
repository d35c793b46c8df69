"""Tables taken into the store and back: what is counted."""

from __future__ import annotations

from pathlib import Path

from jointopt.workflows.ingest import ingest, retract

HEAD = "gpu,num_gpus,dp,iteration_time_s,status\n"
GOOD = HEAD + "a40,2,2,1.5,ok\na40,4,4,0.8,ok\na40,1,1,,oom\n"


def test_rows_not_in_the_store_and_rows_that_cannot_be_read_are_absent_together(tmp_path: Path) -> None:
    storage, table = f"sqlite:///{tmp_path / 'runs.db'}", tmp_path / "runs.csv"
    table.write_text(GOOD)
    assert ingest(table, storage).text == "3 rows added, 0 known already, 0 refused."
    table.write_text(HEAD + "a40,2,2,1.5,ok\na40,2,2,1.75,ok\na40,8,8,0.5,ok\na40,4,4,never,ok\n")
    taken = retract(table, storage)
    assert taken.text == "1 row retracted, 0 retracted already, 3 not in the store."
    assert taken.refused
    assert any(line.startswith("2 rows equal no row of the store") for line in taken.remarks)


def test_a_table_that_is_all_there_is_retracted_without_a_remark(tmp_path: Path) -> None:
    storage, table = f"sqlite:///{tmp_path / 'runs.db'}", tmp_path / "runs.csv"
    table.write_text(GOOD)
    ingest(table, storage)
    assert (retract(table, storage).text, retract(table, storage).text) == (
        "3 rows retracted, 0 retracted already, 0 not in the store.",
        "0 rows retracted, 3 retracted already, 0 not in the store.",
    )
    again = ingest(table, storage)
    assert again.remarks[-1] == "3 rows were retracted before (ingest --retract) and stay so."
    assert not again.refused
    assert not retract(table, storage).refused


def test_a_plan_with_times_that_contradict_each_other_is_named(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(HEAD + "a40,2,2,1.5,ok\na40,2,2,4.5,ok\n")
    (line,) = [line for line in ingest(table, f"sqlite:///{tmp_path / 'runs.db'}").remarks if "more than once" in line]
    assert "(row 1: 1.5 s, row 2: 4.5 s)" in line
