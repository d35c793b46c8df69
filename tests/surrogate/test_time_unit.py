"""Times of which some or all seem to be in another unit: which rows, the sentences on them, and intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jointopt import explain, load_job
from jointopt.runs.store import Store
from jointopt.surrogate.data_doubts import impossible_outliers, span_of_doubt, unit_outliers, widen_to_doubt
from jointopt.surrogate.measurements import Measurements
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.ingest import ingest
from jointopt.workflows.predict import predict

HALF = np.array([0, 1, 0, 1], bool)


def with_times(table: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The table with every second time multiplied."""
    return table.assign(iteration_time_s=table["iteration_time_s"] * np.where(np.arange(len(table)) % 2, factor, 1.0))


@pytest.mark.parametrize(("ratios", "apart"), [
    ([1.0, 30.0, 1.2, 33.0], HALF), ([1.0, 0.01, 1.2, 0.02], HALF), ([1.0, 4.9, 1.2, 4.8], None),
    ([1.0, 3.0, 7.0, 20.0], None), ([20.0, 25.0, 30.0, 18.0], None), ([4.0, 19.0, 4.0, np.nan], None),
])  # fmt: skip
def test_runs_are_set_apart_by_a_gap_of_five_times_beyond_five_times_the_physics(ratios, apart):
    found = unit_outliers(np.log(ratios), np.full(4, "mine"))
    assert found == {} if apart is None else found["mine"].tolist() == apart.tolist()


def test_runs_are_compared_with_those_of_their_own_source_alone():
    assert unit_outliers(np.log([1.0, 1.1, 30.0, 31.0]), np.array(["a", "a", "b", "b"])) == {}


@pytest.mark.parametrize(("factor", "odd"), [(49.0, 0), (51.0, 2), (1 / 51, 2)])
def test_times_are_impossible_where_they_are_set_apart_beyond_fifty_times(factor, odd):
    log_ratio = np.log([1.0, factor, 1.0, factor])
    assert impossible_outliers(log_ratio, unit_outliers(log_ratio, np.full(4, ""))).sum() == odd


@pytest.mark.parametrize(("ratios", "span"), [
    ([4.9, 4.9, 4.9], None), ([8.0, 8.0, 9.0], (1.0, 8.0)), ([0.1, 0.1], (0.1, 1.0)), ([0.5, 10.0], (0.5, 10.0)),
])  # fmt: skip
def test_the_span_of_doubt_holds_the_physics_and_the_measured_times(ratios, span):
    found = span_of_doubt(np.log(ratios))
    assert found is None if span is None else np.exp(found) == pytest.approx(span)


def test_intervals_reach_as_far_beyond_both_ends_of_the_doubt_as_they_did_beyond_the_prediction():
    columns = {"iteration_time_s_low": np.array([7.2]), "iteration_time_s_high": np.array([8.8])}
    found = widen_to_doubt(columns, np.log([8.0]), (0.0, np.log(10.0)))  # 8 s, the physics 1 s, runs of up to 10
    assert found["iteration_time_s_low"] == pytest.approx(0.9)
    assert found["iteration_time_s_high"] == pytest.approx(11.0)
    assert widen_to_doubt(columns, np.log([8.0]), None) is columns


def test_evaluate_says_that_times_look_like_milliseconds(synthetic_runs, caplog):
    table = synthetic_runs(noise=0.0)
    evaluate(table.assign(iteration_time_s=1e3 * table["iteration_time_s"]), "none")
    assert "They look like milliseconds: divide them by 1,000." in caplog.text


def test_predictions_by_doubtful_runs_are_as_wide_as_the_doubt(synthetic_runs):
    table = synthetic_runs(noise=0.0)
    physics = predict(table, "none")["predicted_iteration_time_s"]
    found = predict(table, "default", synthetic_runs(factor=30.0, noise=0.0, rows=3))
    assert (found["predicted_iteration_time_s_low"] < physics).all()
    assert (found["predicted_iteration_time_s_high"] > 25.0 * physics).all()
    assert found["doubts"].str.contains("unit").all()


def test_explain_names_the_doubtful_unit_among_its_reasons(synthetic_runs):
    runs = synthetic_runs(factor=30.0, noise=0.0, rows=3).assign(framework="megatron-deepspeed")
    found = explain(load_job("opt-350m-2x4-a100"), "dp=8", measured=runs)
    assert any("check the unit of iteration_time_s" in why for why in found.doubts)


def test_times_in_milliseconds_among_others_are_not_used_with_one_sentence(synthetic_runs, caplog):
    table = synthetic_runs(noise=0.0)
    few = table.head(6)
    found = predict(table, "default", with_times(few, 1e3))
    assert caplog.text.count("3 of 6 measured runs") == 1
    assert "take 1,300 times what the physics says (the first is row 2), the others 1.3 times: is " in caplog.text
    assert "neither a result" not in caplog.text
    sound = predict(table, "default", few.iloc[::2])
    np.testing.assert_allclose(found["predicted_iteration_time_s"], sound["predicted_iteration_time_s"])


def test_evaluate_judges_no_times_in_milliseconds(synthetic_runs, caplog):
    found = evaluate(with_times(synthetic_runs(noise=0.0), 1e3), "none")
    assert found.overall["rows"] == np.ceil(len(synthetic_runs()) / 2)
    assert "what was predicted (the first is row 2), the others 1.3 times" in caplog.text


def test_ingest_refuses_rows_in_milliseconds_among_others(synthetic_runs, tmp_path):
    with_times(synthetic_runs(noise=0.0).head(6), 1e3).to_csv(tmp_path / "mixed.csv", index=False)
    found = ingest(tmp_path / "mixed.csv", url := f"sqlite:///{tmp_path / 'x.db'}")
    assert found.text == "3 rows added, 0 known already, 3 refused."
    assert found.refused
    assert "3 of 6 measured runs" in " ".join(found.remarks)
    assert len(Store(url).read()) == 3


def test_runs_that_are_all_possible_are_used_as_they_are(synthetic_runs):
    runs = Measurements.of(synthetic_runs(rows=3))
    assert runs.possible is runs
