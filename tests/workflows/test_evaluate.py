"""What predictions are worth on a table, by figures that can be checked by hand."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import TableError
from jointopt.report.tables import json_text
from jointopt.workflows import evaluate as evaluation
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.predict import predict

PREDICTED = "predicted_iteration_time_s"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., evaluation.Evaluation]:
    """Judges predictions made by hand: times, intervals of ± 10 %, and what fits."""

    def judged(time_s: list[float], predicted: list[float], fits: list[bool] | None = None, **columns: object):
        table = pd.DataFrame({"iteration_time_s": time_s}).assign(**columns)
        middle = np.array(predicted, float)
        predictions = {PREDICTED: middle, f"{PREDICTED}_low": 0.9 * middle, f"{PREDICTED}_high": 1.1 * middle}
        predictions["predicted_fits"] = np.ones(len(middle), bool) if fits is None else np.array(fits)
        monkeypatch.setattr(evaluation, "predict", lambda rows, *_: rows.assign(**predictions))
        return evaluate(table)

    return judged


def test_perfect_predictions_have_no_error_and_the_right_order(judge):
    figures = judge([3.0, 1.0, 2.0], [3.0, 1.0, 2.0]).groups.iloc[0]
    assert figures["median_error"] == figures["mean_error"] == figures["top1_regret"] == 0.0
    assert figures["kendall_tau"] == figures["covered"] == 1.0


def test_figures_of_a_table_made_by_hand(judge):
    # errors 50 %, 30 % and 20 %; the plan predicted fastest takes 2 s, the fastest 1 s; one of three pairs swapped
    figures = judge([1.0, 2.0, 5.0], [1.5, 1.4, 4.0]).groups.iloc[0]
    assert figures["median_error"] == pytest.approx(0.3)
    assert figures["mean_error"] == pytest.approx((0.5 + 0.3 + 0.2) / 3)
    assert figures["top1_regret"] == pytest.approx(1.0)
    assert figures["kendall_tau"] == pytest.approx(1 / 3)
    assert figures["covered"] == 0.0


def test_a_reversed_order_has_tau_minus_one(judge):
    assert judge([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]).groups["kendall_tau"].tolist() == [pytest.approx(-1.0)]


def test_out_of_memory_is_judged_by_recall_and_precision(judge):
    status = ["oom", "oom", "oom", "ok", "ok", "failed"]
    fits = [False, False, True, False, True, False]
    overall = judge([np.nan] * 3 + [1.0, 2.0, np.nan], [1.0] * 6, fits, status=status).overall
    assert overall["oom_recall"] == pytest.approx(2 / 3)
    assert overall["oom_precision"] == pytest.approx(2 / 3)
    assert overall["rows"] == 2


def test_groups_are_judged_apart_and_a_small_one_has_no_rank(judge):
    found = judge([1.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 2.0], group=["a", "a", "a", "b"])
    assert found.groups["group"].tolist() == ["a", "b"]
    assert found.groups["median_error"].tolist() == [0.0, 1.0]
    assert np.isnan(found.groups["kendall_tau"][1])
    assert "kendall_tau" not in found.to_dict()["groups"][1]
    assert "kendall_tau" not in found.to_dict()["overall"]


def test_groups_of_one_name_are_distinguished_by_their_source(judge):
    time_s, source = [1.0, 2.0, 3.0, 9.0, 8.0, 7.0], ["here"] * 3 + ["there"] * 3
    found = judge(time_s, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0], group="8B", source=source)
    assert found.groups[["source", "group"]].to_numpy().tolist() == [["here", "8B"], ["there", "8B"]]
    assert found.groups["kendall_tau"].tolist() == pytest.approx([1.0, -1.0])
    assert found.to_dict()["groups"][1]["source"] == "there"


def test_counts_are_whole_numbers_in_text_and_json(judge):
    found = judge([1.0, 2.0, 3.0], [1.0, np.nan, 3.0], group="8B")
    document = json.loads(json_text(found.to_dict()))
    for figures in (*document["groups"], document["overall"]):
        assert [repr(figures[name]) for name in ("rows", "not_predicted")] == ["2", "1"]
    assert "rows 2, not predicted 1, median error 0.0%" in found.text()


def test_doubtful_measured_runs_are_warned_of_once(synthetic_runs, caplog) -> None:
    runs = synthetic_runs(4)
    evaluate(runs, "none", runs.assign(avg_power_w=-1.0))
    warned = [record.getMessage() for record in caplog.records if "an impossible avg_power_w" in record.getMessage()]
    assert len(warned) == 1


def test_rows_that_could_not_be_predicted_are_counted_and_not_judged(judge):
    figures = judge([1.0, 2.0, 3.0, 4.0], [1.0, np.nan, 3.0, 4.0], [True, False, True, True]).groups.iloc[0]
    assert figures["rows"] == 3
    assert figures["not_predicted"] == 1
    assert figures["covered"] == figures["kendall_tau"] == 1.0
    assert np.isnan(figures["oom_recall"])


def test_a_table_without_times_is_refused_in_one_sentence(synthetic_runs):
    table = synthetic_runs(rows=3)
    for untimed in (table.drop(columns="iteration_time_s"), table.assign(iteration_time_s=np.nan)):
        with pytest.raises(TableError, match="no measured iteration_time_s"):
            evaluate(untimed)


def test_physics_times_a_factor_is_judged_as_that_factor(synthetic_runs):
    found = evaluate(synthetic_runs(factor=1.25, noise=0.0), "none")
    assert found.overall["median_error"] == pytest.approx(0.2)
    assert found.groups["kendall_tau"].tolist() == pytest.approx([1.0, 1.0])
    assert found.groups["top1_regret"].tolist() == [0.0, 0.0]
    assert "median error 20.0%" in found.text()


def test_rows_with_impossible_results_are_named_and_not_judged(synthetic_runs, caplog):
    table = synthetic_runs(factor=1.25, noise=0.0).assign(status="OK")
    table.loc[[0, 1], "iteration_time_s"] = [-1.0, np.inf]
    table.loc[2, "status"] = "success"
    table.loc[3, "clock_mhz"] = 9000.0
    found = evaluate(table, "none")
    assert (found.overall["rows"], found.overall["not_predicted"]) == (16, 1)
    assert found.overall["median_error"] == pytest.approx(0.2)
    words = (
        "1 row with an impossible status",
        "2 rows with an impossible iteration_time_s",
        "1 row not predicted (row 4): expected clock",
    )
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all(start in text for text, start in zip(warned, words, strict=True))


def test_a_misspelt_column_of_times_is_named(synthetic_runs):
    with pytest.raises(TableError, match="rename the column iteration_time_ms to iteration_time_s, and divide"):
        evaluate(synthetic_runs(rows=3).rename(columns={"iteration_time_s": "iteration_time_ms"}))


def test_without_groups_runs_of_one_model_and_batch_are_ranked_together(synthetic_runs):
    table = synthetic_runs(factor=1.25, noise=0.0)
    whole = evaluate(table, "none").groups
    for unnamed in (table.drop(columns="group"), table.assign(group=None)):
        found = evaluate(unnamed, "none").groups
        pd.testing.assert_frame_equal(found.drop(columns="group"), whole.drop(columns="group"))
        assert found["group"].tolist() == [
            f"opt-350m 24 1024 megatron-lm a100-sxm4-40gb 8 {batch} 2048 bf16" for batch in (256, 512)
        ]


def test_all_shares_of_a_text_are_in_percent_and_one_group_is_not_counted(judge):
    text = judge(
        [2.0, 2.0, 2.0, np.nan], [1.5, 2.5, 2.5, 1.0], [True] * 4, status=["ok"] * 3 + ["oom"], source="a"
    ).text(groups=False)
    assert "groups: --groups" not in text
    assert text.splitlines()[-1] == (
        "Overall: rows 3, not predicted 0, median error 25.0%, mean error 25.0%, covered 0%, oom recall 0%."
    )
    assert "oom_precision" not in text


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_runs_too_fast_for_their_precision_are_doubted_for_that_and_not_for_their_unit(factor, caplog):
    run = {"source": "mine", "model": "llama-2-7b", "gpu": "a100-sxm4-80gb", "num_gpus": 8, "seq_length": 2048,
           "global_batch_size": 64, "framework": "megatron-lm", "tp": 2, "pp": 2, "dp": 2}  # fmt: skip
    table = pd.DataFrame([run | {"dtype": "tf32", "micro_batch_size": size} for size in (1, 2, 4, 8)])
    table["iteration_time_s"] = factor * predict(table, "none")["predicted_iteration_time_s"]
    evaluate(table.assign(dtype="fp32"), "none")
    assert "is it TF32?" in caplog.text
    assert "is iteration_time_s in seconds" not in caplog.text
    assert (factor == 1.0) == ("in tf32 1.00 times: is the precision right?" in caplog.text)


def test_a_source_that_is_predicted_too_slow_has_a_positive_bias(judge):
    found = judge([1.0, 1.0, 2.0], [1.2, 1.5, 1.0], source=["slow", "slow", "fast"]).summary
    assert dict(zip(found["source"], found["bias"], strict=True)) == pytest.approx({"slow": 0.35, "fast": -0.5})


def test_errors_of_temperature_are_in_kelvins_and_those_of_power_relative(judge):
    columns = {"temperature_c": [60.0, 70.0], "predicted_temperature_c": [63.0, 65.0]}
    columns |= {"avg_power_w": [400.0, 500.0], "predicted_avg_power_w": [440.0, 400.0]}
    overall = judge([1.0, 2.0], [1.0, 2.0], **columns).overall
    assert (overall["temperature_error_k"], overall["power_error"]) == pytest.approx((4.0, 0.15))


def test_recall_is_of_the_plans_that_ran_out_and_precision_of_those_predicted_to(judge):
    overall = judge([np.nan, np.nan, 1.0, 1.0, 2.0], [1.0] * 5, [False, True, False, False, True],
                    status=["oom", "oom", "ok", "ok", "ok"]).overall  # fmt: skip
    assert (overall["oom_recall"], overall["oom_precision"]) == pytest.approx((1 / 2, 1 / 3))
