"""What a cluster's own runs at several clocks teach of plans at any clock."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import TableError
from jointopt.core.schema import Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options, with_changes
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.physics.cost_model import CostModel
from jointopt.studies.learning import truths
from jointopt.surrogate.files import load, save, write_card
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.own_cluster import LEAST_BELOW, PARTS, measured_clocks
from jointopt.surrogate.own_mix import swept_runs
from jointopt.surrogate.training import swept, training_set
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict
from jointopt.workflows.retrain import retrain

pytestmark = pytest.mark.long  # each trains surrogates

SMALL = ("llama-3-8b", "llama-2-7b", "llama-2-13b", "qwen2-7b", "pythia-12b")
RESULTS = {"time": "iteration_time_s", "power": "avg_power_w", "energy": "energy_j"}


def table(rows: int = 240, seed: int = 3, truth: str = "T2") -> pd.DataFrame:
    return truths.table(truth, rows, seed, models=SMALL, clocks=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A surrogate of four fifths of a sweep over clocks; ``kept.csv`` beside it has the others."""
    out, runs = tmp_path_factory.mktemp("swept"), table(600, seed=8)
    kept = np.random.default_rng(0).random(len(runs)) < 0.3
    runs[kept].to_csv(out / "kept.csv", index=False)
    runs[~kept].to_csv(out / "runs.csv", index=False)
    (out / "printed.txt").write_text(retrain(tables=[out / "runs.csv"], out=out / "surrogate").text())
    return out / "surrogate"


def small_job() -> Job:
    job = job_from_options("llama-3-8b", truths.GPU, 16, 128, 4096, dtype="bf16", framework=truths.FRAMEWORK)
    return with_changes(job, {"training.attention": "flash2"})  # as the rows were priced, which name none


def learned_physics(folder: Path) -> tuple[CostModel, Columns]:
    """The physics of some layouts as it is searched, and these."""
    layouts = {name: values[::29] for name, values in enumerate_layouts(small_job()).layouts.items()}
    return JobModel.of(small_job(), str(folder)).cost_model(layouts), layouts


def plans_at_clocks(physics: CostModel, count: int, *, uniform: bool) -> tuple[Ints, Floats]:
    rng, depth = np.random.default_rng(1), physics.layouts["pp"]
    index = rng.integers(0, len(depth), count)
    shares = np.repeat(rng.uniform(0.5, 1.0, (count, 1)), depth.max(), 1)
    shares = shares if uniform else rng.uniform(0.5, 1.0, shares.shape)
    return index, np.where(np.arange(depth.max()) < depth[index][:, None], shares * physics.top_mhz, np.nan)


@pytest.mark.parametrize("quantity", RESULTS)
def test_the_printed_error_is_that_of_predictions_of_runs_kept_back(folder: Path, quantity: str) -> None:
    kept, own = pd.read_csv(folder.parent / "kept.csv"), load(folder).own[0]
    found = predict(kept.drop(columns=list(RESULTS.values())), surrogate=str(folder))
    error = (found[f"predicted_{RESULTS[quantity]}"] / kept[RESULTS[quantity]] - 1.0).abs().median()
    assert 100 * error == pytest.approx(100 * own.errors[f"{quantity} of known"], abs=1.0)


def test_a_plan_is_answered_by_the_curve_by_which_runs_left_out_were_judged(folder: Path) -> None:
    runs, surrogate = table(40, seed=5).assign(source="own cluster"), load(folder)
    data, own = training_set(runs, broken=9.0), surrogate.own[0]
    known, found = surrogate.conditioned(own.source, True), predict(runs, surrogate=str(folder))
    for name, of in swept(data.known, own.power_clocks).items():
        every = swept_runs(data.known.runs, of)
        ratio = known.mean(every) if name == "time" else own.log_power(every, of.at_shares.ravel())
        answer = np.exp(of.read(ratio.reshape(len(of.shares), -1))) * of.values
        predicted = found[f"predicted_{RESULTS[name]}"].to_numpy()[data.known.rows]
        assert predicted == pytest.approx(answer, rel=2e-4), name


def test_no_run_of_a_sweep_is_left_out_whatever_moves_it_below_the_top_clock(tmp_path: Path) -> None:
    runs = table(200, truth="T")
    low = runs["clock_mhz"] < 0.97 * runs["clock_mhz"].max()
    runs["iteration_time_s"] *= np.where(low, 1.3, 1.0)  # which no clock law explains
    runs.to_csv(tmp_path / "runs.csv", index=False)
    printed = retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "own").text()
    assert "learned from 200 of 200" in printed
    found = predict(runs, surrogate=str(tmp_path / "own"))["predicted_iteration_time_s"] / runs["iteration_time_s"]
    assert (found - 1.0).abs()[low].median() < 0.04


@pytest.mark.parametrize("uniform", [True, False])
def test_bounds_by_which_plans_are_ruled_out_hold_of_what_was_learned(folder: Path, uniform: bool) -> None:
    physics, _ = learned_physics(folder)
    index, clocks = plans_at_clocks(physics, 500, uniform=uniform)
    found, (time_s, energy_j) = physics.evaluate(index, clocks), physics.lower_bound(index)
    least_j = physics.work_j(index, clocks) + physics.energy_slope_w[index] * found["iteration_time_s"]
    for bound, of in (
        (time_s, "iteration_time_s"), (physics.least_time_s(index, clocks), "iteration_time_s"),
        (energy_j, "energy_j"), (least_j, "energy_j"), (physics.least_power_w(index, clocks), "avg_power_w"),
    ):  # fmt: skip
        assert (bound <= found[of] * (1.0 + 1e-9)).all(), of
    assert (physics.energy_slope_w > 0.0).all()


def test_search_and_prediction_say_the_same_of_stages_at_different_clocks(folder: Path) -> None:
    physics, layouts = learned_physics(folder)
    index, clocks = plans_at_clocks(physics, 50, uniform=False)
    plans = {name: values[index] for name, values in layouts.items()} | {"stage_clock_mhz": clocks}
    found, searched = JobModel.of(small_job(), str(folder)).predict(plans), physics.evaluate(index, clocks)
    for name in RESULTS.values():
        assert found[name] == pytest.approx(searched[name], rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(row=st.integers(0, 10**6), low=st.floats(0.5, 0.95), step=st.floats(0.01, 0.4))
def test_predicted_time_falls_and_power_rises_with_the_clock_of_a_plan(folder: Path, row, low, step) -> None:
    physics, layouts = learned_physics(folder)
    at, top = np.array([row % len(layouts["pp"])]), physics.top_mhz
    slow, fast = (physics.evaluate(at, np.full((1, 64), share * top)) for share in (low, min(low + step, 1.0)))
    assert fast["iteration_time_s"] <= slow["iteration_time_s"]
    assert fast["avg_power_w"] >= slow["avg_power_w"] * (1.0 - 1e-9)


def test_fewer_than_twenty_runs_below_the_top_clock_are_no_measured_clocks() -> None:
    data = training_set(table(60), broken=9.0)
    order = np.argsort(-data.known.runs.features["clock"])
    runs = data.known.runs.take(order)
    few = runs.take(np.flatnonzero(np.cumsum(runs.features["clock"] < 0.97) < LEAST_BELOW))
    assert measured_clocks(few)[0] == measured_clocks(few)[1]
    assert measured_clocks(runs)[0] < 0.7


def test_a_sweep_teaches_the_time_of_models_never_run_at_low_clocks(tmp_path: Path) -> None:
    table(400, truth="C").to_csv(tmp_path / "runs.csv", index=False)
    retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "own")
    new = truths.table("C", 60, 8, models=("opt-30b", "gpt-neox-20b"), clocks=True)
    low = new[new["clock_mhz"] < 0.75 * new["clock_mhz"].max()]
    learned = predict(low, surrogate=str(tmp_path / "own"))["predicted_iteration_time_s"] / low["iteration_time_s"]
    by_physics = predict(low)["predicted_iteration_time_s"] / low["iteration_time_s"]
    assert abs(np.log(learned).median()) < 0.04 < abs(np.log(by_physics).median())


@pytest.mark.parametrize("clock_mhz", [1300, 1980])
def test_explain_says_by_how_much_the_own_runs_move_the_time_at_the_plan_s_clock(folder: Path, clock_mhz) -> None:
    plan = f"dp=2 tp=4 pp=2 micro_batch_size=2 clock={clock_mhz}"
    own, physics = (explain(small_job(), plan, surrogate=name) for name in (str(folder), "none"))
    assert f"{own.iteration_time_s / physics.iteration_time_s - 1:+.1%}" in own.learned[0].split(". Of this")[0]
    assert sum(own.time_s.values()) == pytest.approx(own.iteration_time_s)
    assert sum(own.energy_by_part_j.values()) == pytest.approx(own.energy_j)


def test_a_surrogate_with_a_clock_response_of_an_earlier_version_asks_to_be_retrained(folder: Path, tmp_path) -> None:
    save(load(folder), tmp_path / "mine")
    card = json.loads((tmp_path / "mine" / "card.json").read_text())
    card["model"]["own"][0]["response"] = {"response": {"compute": 0.8, "memory": 0.1}, "before": 0.1, "after": 0.05}
    write_card(tmp_path / "mine", card)
    with pytest.raises(TableError, match="repeat `jointopt retrain`"):
        load(tmp_path / "mine")


def test_a_card_of_own_runs_names_errors_by_models_seen_or_not_and_by_clock(folder: Path) -> None:
    own, printed = load(folder).own[0], (folder.parent / "printed.txt").read_text().splitlines()
    (head,) = (number for number, line in enumerate(printed) if "median errors on runs left out, %" in line)
    assert printed[head].split()[-3:] == [*RESULTS]
    for line, (part, words) in zip(printed[head + 1 :], PARTS.items(), strict=False):
        assert line.split()[-3:] == [f"{100 * own.errors[f'{of} {part}']:.1f}" for of in RESULTS]
        assert line.strip().startswith(words.strip().replace("models", own.held_out))


def test_runs_that_went_wrong_are_counted_and_said_to_count_less(tmp_path: Path) -> None:
    runs = table(200, truth="T")
    runs.loc[runs.index % 40 == 7, "iteration_time_s"] *= 1.9
    runs.to_csv(tmp_path / "runs.csv", index=False)
    printed = retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "own").text()
    assert load(tmp_path / "own").own[0].outlying == 5
    assert "5 runs count less: over " in printed
