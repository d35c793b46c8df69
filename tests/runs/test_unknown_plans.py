"""Measured runs without some of their degrees: what num_gpus settles is inferred, other runs teach nothing."""

from __future__ import annotations

import pandas as pd
import pytest

from jointopt.core.errors import TableError
from jointopt.runs.workloads import runs_with_plans, workloads
from jointopt.workflows.predict import predict
from jointopt.workflows.retrain import retrain

ROW = {"model": "llama-3-8b", "seq_length": 2048, "global_batch_size": 64, "gpu": "a100-sxm4-80gb", "num_gpus": 16}


def rows(*changes: dict[str, int | None]) -> pd.DataFrame:
    return pd.DataFrame([ROW | {"dp": 4, "tp": 2, "pp": 2, "cp": 1} | change for change in changes])


@pytest.mark.parametrize(("change", "degrees"), [
    ({"dp": None}, (4, 2, 2)), ({"tp": None}, (4, 2, 2)), ({"pp": None, "cp": None}, (4, 2, 2)),
    ({"dp": 16, "tp": None, "pp": None}, (16, 1, 1)), ({"dp": None, "tp": 16, "pp": None, "cp": None}, (1, 16, 1)),
])  # fmt: skip
def test_degrees_that_the_number_of_gpus_settles_are_inferred_and_learned_from(change, degrees):
    (work,), reasons = runs_with_plans(rows(change))
    assert tuple(int(work.plans[name][0]) for name in ("dp", "tp", "pp")) == degrees
    assert reasons == {}


@pytest.mark.parametrize(("change", "words"), [
    ({"dp": None, "tp": None, "pp": None}, "tp and pp are blank, and num_gpus=16 leaves open what they were"),
    ({"tp": None, "pp": None}, "pp is blank, and num_gpus=16 leaves open what it was"),
])  # fmt: skip
def test_a_measured_run_whose_degrees_are_open_teaches_nothing_and_stops_no_other(change, words):
    (work,), reasons = runs_with_plans(rows({}, change))
    assert work.rows.tolist() == [0]
    assert words in reasons[1]
    assert len(workloads(rows({}, change))[1]) == 0  # predicted all the same


def test_a_table_whose_rows_all_leave_their_degrees_open_is_refused():
    with pytest.raises(TableError, match="No row of the table states its plan; row 1: tp and pp are blank"):
        runs_with_plans(rows({"dp": None, "tp": None, "pp": None}))


def test_measured_runs_without_degrees_are_named_by_every_way_to_learn_from_them(synthetic_runs, caplog, tmp_path):
    runs = synthetic_runs(rows=3)
    bare = runs.drop(columns=["dp", "tp", "pp"])
    with pytest.raises(TableError, match=r"Nothing can be learned .*: no row of the table states its plan"):
        predict(runs, "default", bare)
    bare.to_csv(tmp_path / "bare.csv", index=False)
    with pytest.raises(TableError, match="No row of the table states its plan"):
        retrain(tables=[tmp_path / "bare.csv"], out=tmp_path / "out")
    predict(runs, "default", pd.concat([runs, bare.head(1)], ignore_index=True))
    assert f"1 of {len(runs) + 1} measured runs teaches nothing (row {len(runs) + 1}): tp and pp" in caplog.text
