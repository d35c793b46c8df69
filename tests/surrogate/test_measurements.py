"""Measured runs at the border: checked once, and their unit doubted where times are far from the physics."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jointopt import explain, load_job, propose
from jointopt.core.errors import TableError
from jointopt.runs.store import Store
from jointopt.surrogate import measurements
from jointopt.surrogate.data_doubts import check_scale, doubted_sources
from jointopt.surrogate.measurements import Measurements
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.ingest import ingest
from jointopt.workflows.predict import predict


@pytest.mark.parametrize(("factor", "found"), [(4.9, False), (5.1, True), (1 / 4.9, False), (1 / 5.1, True)])
def test_a_source_is_doubted_beyond_five_times_either_way(factor, found):
    log_ratio = np.log([1.0, 1.1, 0.9, factor, factor, factor, np.nan])
    source = np.array(["good"] * 3 + ["odd"] * 3 + ["untimed"])
    assert list(doubted_sources(log_ratio, source)) == ["odd"] * found


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_one_odd_run_among_sound_ones_is_no_unit_and_a_source_of_them_is(factor):
    source = np.array(["mine|megatron-lm|a100|8"] * 3)
    check_scale(np.log([1.0, 1.2, factor]), source)
    with pytest.raises(TableError, match=r"\(mine, megatron-lm, a100, 8 GPUs a node\).* seconds"):
        check_scale(np.log([factor, factor, 1.0]), source)


def test_columns_that_nothing_reads_are_named_once_of_the_table_and_once_of_the_measured_runs(synthetic_runs, caplog):
    runs = synthetic_runs(rows=3).rename(columns={"etp": "expert_tensor_parallel_size"})
    evaluate(runs, "default", runs)
    line = "column expert_tensor_parallel_size is kept, but nothing reads it (did you mean 'etp'?)."
    logged = [one.getMessage() for one in caplog.records if "is kept" in one.getMessage()]
    assert sorted(logged) == [f"The table: {line}", f"the measured runs given: {line}"]


@pytest.mark.parametrize(("factor", "times"), [(8.0, "8"), (0.1, "0.1")])
def test_doubtful_runs_are_learned_from_with_a_warning(synthetic_runs, caplog, factor, times):
    runs = synthetic_runs(factor=factor, noise=0.0, rows=3)
    predict(synthetic_runs(noise=0.0), "default", runs)
    assert f"take {times} times what the physics says: is iteration_time_s in seconds" in caplog.text


def test_a_doubt_is_logged_once_however_many_are_given_the_runs(synthetic_runs, caplog):
    runs = Measurements.of(synthetic_runs(factor=8.0, noise=0.0, rows=3))
    predict(synthetic_runs(noise=0.0), "default", runs)
    assert Measurements.given(runs) is runs
    assert caplog.text.count("is iteration_time_s in seconds") == 1


def test_an_impossible_result_is_blank_and_library_callers_see_a_warning(synthetic_runs, caplog):
    runs = synthetic_runs(rows=4, groups=(256,)).assign(peak_memory_gib=[9000.0, 20.0, 21.0, 22.0])
    checked = Measurements.of(runs, "mine.csv")
    assert checked.table["peak_memory_gib"].isna().tolist() == [True, False, False, False]
    assert "mine.csv: 1 row with an impossible peak_memory_gib" in caplog.text


def test_rows_are_priced_once_however_many_predictions_use_them(synthetic_runs, monkeypatch):
    counted, price = [], measurements.price_workloads
    monkeypatch.setattr(measurements, "price_workloads", lambda *a: counted.append(a) or price(*a))
    runs = Measurements.of(synthetic_runs())
    predict(synthetic_runs(), "default", runs)
    predict(synthetic_runs(), "default", runs)
    assert len(counted) == 1


def test_milliseconds_are_not_learned_from(synthetic_runs, tmp_path):
    table = synthetic_runs(noise=0.0)
    runs = table.assign(iteration_time_s=1e3 * table["iteration_time_s"]).head(6)
    with pytest.raises(TableError, match="1,300 times what the physics says"):
        predict(table, "default", runs)
    with pytest.raises(TableError, match="in seconds"):
        explain(load_job("opt-350m-2x4-a100"), "dp=8", measured=runs)
    runs.to_csv(tmp_path / "ms.csv", index=False)
    with pytest.raises(TableError, match="in seconds"):
        ingest(tmp_path / "ms.csv", f"sqlite:///{tmp_path / 'x.db'}")
    assert Store(f"sqlite:///{tmp_path / 'x.db'}").read().empty


def test_evaluate_warns_of_milliseconds(synthetic_runs, caplog):
    table = synthetic_runs(noise=0.0)
    ms = table.assign(iteration_time_s=1e3 * table["iteration_time_s"], source="other")
    evaluate(pd.concat([table, ms], ignore_index=True), "none")
    assert "Measured runs (other) take 1,300 times what was predicted: is iteration_time_s in" in caplog.text


def test_only_runs_on_that_gpu_that_ended_well_or_out_of_memory_are_learned_from(synthetic_runs):
    runs = synthetic_runs().iloc[:6].assign(
        status=["ok", "oom", "error", "ok", "ok", "ok"],
        gpu=["a100-sxm4-40gb"] * 3 + ["NVIDIA A100-SXM4-40GB", "h100-sxm5-80gb", None],
    )  # fmt: skip
    found = Measurements.of(runs).on("a100-sxm4-40gb").table
    assert found["status"].tolist() == ["ok", "oom", "ok"]
    assert not len(Measurements.of(runs.drop(columns="gpu")).on("a100-sxm4-40gb").table)


JOB = "opt-350m-2x4-a100"
VERBS = {
    "explain": lambda runs, _: explain(load_job(JOB), "dp=8", measured=runs),
    "propose": lambda runs, _: propose(load_job(JOB), measured=runs),
    "predict": lambda runs, table: predict(table, measured=runs),
    "evaluate": lambda runs, table: evaluate(table, measured=runs),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("change", [{"gpu": "rtx-1"}, {"dp": 7}, {"recompute": "half"}, {"iteration_time_s": np.nan}])
def test_measured_runs_of_which_none_can_be_used_are_an_error_of_every_verb(verb, change, synthetic_runs):
    runs = synthetic_runs(rows=3)
    with pytest.raises(TableError, match="Nothing can be learned from the measured runs given: no row"):
        VERBS[verb](runs.assign(**change), runs)


@pytest.mark.parametrize("verb", VERBS)
def test_measured_runs_with_times_by_another_name_are_to_be_renamed(verb, synthetic_runs):
    runs = synthetic_runs(rows=3)
    with pytest.raises(TableError, match="; rename the column step_time_ms to iteration_time_s, and divide"):
        VERBS[verb](runs.rename(columns={"iteration_time_s": "step_time_ms"}), runs)


@pytest.mark.parametrize("verb", VERBS)
def test_measured_runs_that_are_left_out_of_others_are_reported_once_by_every_verb(verb, synthetic_runs, caplog):
    runs = synthetic_runs(rows=3)
    modes, times = ["half", *runs["recompute"][1:]], [*runs["iteration_time_s"][:-1], np.nan]
    VERBS[verb](runs.assign(recompute=modes, iteration_time_s=times), runs)
    left_out = f"1 of {len(runs)} measured runs teaches nothing (row 1): recompute must be one of none, selective, full"
    for line in (left_out, "1 row has neither a result (iteration_time_s, "):
        assert caplog.text.count(f"the measured runs given: {line}") == 1


def test_measured_runs_on_another_kind_of_cluster_are_reported_once_however_many_jobs_there_are(synthetic_runs, caplog):
    runs = Measurements.of(synthetic_runs(rows=3).assign(framework="torchtitan", gpu="h100-sxm5-80gb"))
    for job in (load_job(JOB), load_job(JOB)):
        assert explain(job, "dp=8", measured=runs).informed_by == {}
    total, named = len(runs.table), f"{job.training.framework.name} on 4 x a100-sxm4-40gb (torchtitan on "
    line = f"{total} of {total} measured runs are of another framework and GPU than the job, {named}"
    assert caplog.text.count(line) == 1


def test_stored_runs_of_which_none_can_be_used_are_no_condition_of_a_prediction(synthetic_runs, caplog, monkeypatch):
    runs = synthetic_runs(rows=3)
    stored = Measurements(runs.assign(recompute="half"), name="store.db")
    monkeypatch.setattr(Measurements, "stored", lambda *_: stored)
    found = predict(runs, "default", storage="sqlite:///store.db")
    assert "Nothing can be learned from store.db: no row of the table can be predicted; row 1: recompute" in caplog.text
    pd.testing.assert_frame_equal(found, predict(runs, "default"))


@pytest.mark.parametrize("verb", VERBS)
def test_measured_runs_of_which_none_ended_well_are_reported_once_by_every_verb(verb, synthetic_runs, caplog):
    runs = synthetic_runs(rows=3)
    VERBS[verb](runs.assign(status="failed", iteration_time_s=np.nan), runs)
    assert caplog.text.count(f"none of {len(runs)} runs ended well ({len(runs)} failed): they teach nothing.") == 1


def test_refused_results_are_not_reported_a_second_time_as_missing(synthetic_runs, caplog):
    runs = synthetic_runs(rows=3).drop(columns="peak_memory_gib", errors="ignore")
    predict(runs, "default", runs.assign(iteration_time_s=[-1.0, *runs["iteration_time_s"][1:]]))
    assert "1 row with an impossible iteration_time_s (row 1: " in caplog.text
    assert "neither a result" not in caplog.text


def test_a_result_that_is_no_number_is_named_with_its_table(synthetic_runs):
    runs = synthetic_runs(rows=3).assign(energy_j="much")
    with pytest.raises(TableError, match=r"Row 1 of mine\.csv: energy_j must be a number or blank; got 'much'"):
        Measurements.of(runs, "mine.csv")


def test_one_plan_with_times_that_contradict_each_other_is_named_by_whoever_reads_the_runs(synthetic_runs, caplog):
    runs = synthetic_runs(rows=3)
    again = pd.concat([runs, runs.head(1).assign(iteration_time_s=3.0 * runs["iteration_time_s"].iloc[0])])
    again = again.reset_index(drop=True)
    evaluate(again)
    predict(runs, measured=again)
    lines = [line for line in caplog.messages if "more than once" in line]
    assert [line.partition(":")[0] for line in lines] == ["the table", "the measured runs given"]
