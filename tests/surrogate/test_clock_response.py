"""How a cluster's kernels follow the clock, learned from its own runs at several clocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import TableError
from jointopt.core.schema import CONSTANTS, Floats, Ints
from jointopt.jobs.jobfile import job_from_options, with_changes
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.studies.learning import truths
from jointopt.surrogate.clock_response import (
    BELOW_TOP,
    LEAST_BELOW,
    ClockResponse,
    LearnedResponse,
    Sweep,
    _unexplained_below_top,
    learn_response,
)
from jointopt.surrogate.files import load, save, write_card
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import Runs, default_kernel
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import folds_by_model
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.training import TrainingSet, training_set
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict
from jointopt.workflows.retrain import retrain

pytestmark = pytest.mark.long  # each trains surrogates

KERNEL = default_kernel(len(CONSTANTS))
SMALL = ("llama-3-8b", "llama-2-7b", "llama-2-13b", "qwen2-7b", "pythia-12b")


def swept(truth: str, clocks: bool = True, rows: int = 240, seed: int = 3) -> pd.DataFrame:
    return truths.table(truth, rows, seed, models=SMALL, clocks=clocks)


def sweep(data: TrainingSet) -> Sweep:
    return learn_response(data.known, data.known_residual, KERNEL, *folds_by_model(data.known.runs))


def learned(data: TrainingSet) -> LearnedResponse | None:
    return sweep(data).response


def of_rows(data: TrainingSet, rows: Ints, slower: float = 1.0) -> Sweep:
    """The clock response learned from some rows, those below the top clock so many times slower."""
    some = data.known.take(rows)
    residual = data.known_residual[rows] + np.log(slower) * (some.runs.features["clock"] < BELOW_TOP)
    return learn_response(some, residual, KERNEL, *folds_by_model(some.runs))


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    return training_set(swept("C", seed=4), broken=9.0)


def top_and(data: TrainingSet, below: Ints) -> Ints:
    return np.sort(np.concatenate([below, np.flatnonzero(data.known.runs.features["clock"] >= BELOW_TOP)])).astype(
        np.int64
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A surrogate of a cluster whose kernels follow the clock otherwise than in the physics."""
    out = tmp_path_factory.mktemp("swept")
    swept("C", seed=8).to_csv(out / "runs.csv", index=False)
    (out / "printed.txt").write_text(retrain(tables=[out / "runs.csv"], out=out / "surrogate").text())
    return out / "surrogate"


def test_shares_that_made_the_runs_are_found_beside_what_layouts_are_off_by(data: TrainingSet) -> None:
    found = learned(data)
    assert found is not None
    assert found.after < found.before
    times = [
        data.known.under(ClockResponse(*shares).on).physics["iteration_time_s"]
        for shares in ((found.response.compute, found.response.memory), truths.FOLLOWING, (1.0, 0.0))
    ]
    assert np.abs(np.log(times[0] / times[1])).max() < 0.02 < np.abs(np.log(times[2] / times[1])).max()


@pytest.mark.parametrize(("truth", "clocks"), [("T", True), ("T", False)])
def test_runs_that_follow_the_clock_as_the_physics_has_it_or_have_one_clock_leave_it_alone(truth, clocks) -> None:
    assert learned(training_set(swept(truth, clocks), broken=9.0)) is None


@pytest.mark.parametrize("seed", [3, 6])
def test_a_response_that_makes_errors_less_than_three_percent_smaller_is_none(seed: int) -> None:
    # 1.1 and 1.9 % smaller, of runs that follow the clock as the physics has it
    assert learned(training_set(swept("T", rows=100, seed=seed), broken=9.0)) is None


def test_fewer_than_twenty_runs_below_the_top_clock_teach_nothing_and_are_not_in_domain(data: TrainingSet) -> None:
    below = np.flatnonzero(data.known.runs.features["clock"] < BELOW_TOP)[: LEAST_BELOW - 1]
    found = of_rows(data, top_and(data, below))
    assert (found.response, found.holds) == (None, False)
    assert found.remark.startswith("19 runs below the top clock are fewer than 20: no clock response learned")


def test_runs_below_the_top_clock_of_one_model_teach_nothing_of_others(data: TrainingSet) -> None:
    of_model = np.char.startswith(data.known.runs.group.astype(str), SMALL[0])
    below = np.flatnonzero(of_model & (data.known.runs.features["clock"] < BELOW_TOP))
    found = of_rows(data, top_and(data, below))
    assert len(below) >= LEAST_BELOW
    assert (found.response, found.holds) == (None, False)
    assert "runs below the top clock are of too few models" in found.remark


@pytest.mark.parametrize(("slower", "holds"), [(1.0, True), (1.5, False)])
def test_runs_below_the_top_clock_that_something_else_slowed_are_left_out_with_their_error(slower, holds) -> None:
    low = swept("T", rows=40, seed=6)
    low = low[low["clock_mhz"] < 0.9 * low["clock_mhz"].max()]
    data = training_set(pd.concat([swept("T", clocks=False), low], ignore_index=True), broken=9.0)
    found = of_rows(data, np.arange(len(data.known_residual)), slower)
    assert (found.holds, found.response) == (holds, None)
    assert (found.off_below > 0.25) == (not holds)
    assert found.remark.startswith(f"runs below the top clock are {found.off_below:.0%} off") == (not holds)


def by_clock(wrong: str, clock: Floats) -> Floats:
    """What a broken sweep adds to the logarithm of time, (n,), most of whose runs are below the top clock."""
    depth = np.log(clock.max() / clock)
    below = clock < BELOW_TOP
    return {"slower": np.log(1.5) * below, "faster at a lower clock": -1.3 * depth, "steeper than 1 / clock":
            0.5 * depth, "a third of them sound": np.log(1.5) * (below & (np.arange(len(clock)) % 3 > 0)),
            "sound": 0.0 * depth}[wrong]  # fmt: skip


@pytest.mark.parametrize(
    "wrong", ["slower", "faster at a lower clock", "steeper than 1 / clock", "a third of them sound"]
)
def test_broken_runs_below_the_top_clock_are_found_where_they_outnumber_those_at_it(data: TrainingSet, wrong) -> None:
    clock = data.known.runs.features["clock"]
    assert (clock < BELOW_TOP).mean() > 0.9
    residual = data.known_residual + by_clock(wrong, clock)
    found = learn_response(data.known, residual, KERNEL, *folds_by_model(data.known.runs))
    assert (found.holds, found.response) == (False, None)
    assert found.off_below > 0.05
    assert found.remark.endswith(
        "as no kernel's time follows the clock: no clock response learned, and they are left out"
    )


def test_a_step_below_the_top_clock_is_shrunk_by_a_prior_of_one_and_refused_beyond_five_percent() -> None:
    clock = np.repeat([1.0, 0.5], 4)
    runs = Runs(np.zeros((8, 1)), {"clock": clock}, np.full(8, "s"), np.full(8, "g"))
    precision = 4 / 0.1**2 * (1.0 + np.log(2.0) ** 2)  # of four runs with 10 % of noise, whose step and slope are one
    for step, left in ((np.log(1.5), np.expm1(np.log(1.5) * precision / (1.0 + precision))), (0.04, 0.0)):
        found = _unexplained_below_top(0.1**2 * np.eye(8), np.where(clock < BELOW_TOP, step, 0.0), runs)
        assert found == pytest.approx(left, rel=1e-9)


def test_a_broken_sweep_is_reported_and_moves_no_prediction(tmp_path: Path) -> None:
    table = pd.concat([swept("T", rows=100), swept("T", rows=30, clocks=False, seed=4)], ignore_index=True)
    clock = table["clock_mhz"].to_numpy() / table["clock_mhz"].max()
    low = table["clock_mhz"] < BELOW_TOP * table["clock_mhz"].max()
    table["iteration_time_s"] *= np.exp(by_clock("slower", clock))
    sound, printed = {}, {}
    for name, rows in (("all", table), ("top", table[~low])):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        printed[name] = " ".join(retrain(tables=[tmp_path / f"{name}.csv"], out=tmp_path / name).text().split())
        sound[name] = predict(table.head(40), surrogate=str(tmp_path / name))["predicted_iteration_time_s"]
    assert "as no kernel's time follows the clock: no clock response learned, and they are left out" in printed["all"]
    assert sound["all"].to_numpy() == pytest.approx(sound["top"].to_numpy(), rel=1e-9)


def test_a_cluster_s_sweep_teaches_the_time_of_models_never_run_at_low_clocks(folder: Path) -> None:
    new = truths.table("C", 60, 8, models=("opt-30b", "gpt-neox-20b"), clocks=True)
    low = new[new["clock_mhz"] < 0.75 * new["clock_mhz"].max()]
    errors = {}
    for clock in (low["clock_mhz"], np.nan):  # nan: all at the top clock, of which all layouts were learned
        at = predict(low.assign(clock_mhz=clock), surrogate=str(folder))["predicted_iteration_time_s"]
        errors[clock is np.nan] = at / low["iteration_time_s"]
    by_physics = predict(low)["predicted_iteration_time_s"] / low["iteration_time_s"]
    assert abs(np.log(errors[False]).median()) < 0.03 < abs(np.log(by_physics).median())


def test_the_printed_line_says_what_follows_the_clock_and_what_that_is_worth(folder: Path) -> None:
    line = " ".join((folder.parent / "printed.txt").read_text().split())
    response = load(folder).own[0].response
    assert response is not None
    assert f"{response.response.compute:.0%} of compute-bound and {response.response.memory:.0%} of other" in line
    gain = f"{100 * response.before:.1f} -> {100 * response.after:.1f} %"
    assert f"follow the clock (below the top clock {gain})" in line


@pytest.mark.parametrize("clock_mhz", [1300, 1980])
def test_explain_says_by_how_much_the_own_runs_move_the_time_at_the_plan_s_clock(folder: Path, clock_mhz) -> None:
    job = job_from_options("llama-3-8b", truths.GPU, 16, 128, 4096, dtype="bf16", framework=truths.FRAMEWORK)
    job = with_changes(job, {"training.attention": "flash2"})  # as the rows were priced, which name none
    plan = f"dp=2 tp=4 pp=2 micro_batch_size=2 clock={clock_mhz}"
    own, physics = (explain(job, plan, surrogate=name) for name in (str(folder), "none"))
    moved = f"{own.iteration_time_s / physics.iteration_time_s - 1:+.1%}"
    assert moved in own.learned[0].split(";")[0]
    assert f"{load(folder).own[0].response.response.words} follow the clock" in own.learned[0]


@settings(max_examples=15, deadline=None)
@given(row=st.integers(0, 10**6), low=st.floats(0.5, 0.95), step=st.floats(0.01, 0.4))
def test_predicted_time_falls_as_the_clock_of_a_plan_rises(folder: Path, row: int, low: float, step: float) -> None:
    job = job_from_options("llama-3-8b", truths.GPU, 16, 128, 4096, dtype="bf16", framework=truths.FRAMEWORK)
    layouts = {name: values[::97] for name, values in enumerate_layouts(job).layouts.items()}
    physics = JobModel.of(job, str(folder)).cost_model(layouts)
    at, top = np.array([row % len(layouts["pp"])]), physics.top_mhz
    slow, fast = (physics.evaluate(at, np.full((1, 64), share * top)) for share in (low, min(low + step, 1.0)))
    assert fast["iteration_time_s"] <= slow["iteration_time_s"]
    assert fast["avg_power_w"] >= slow["avg_power_w"] * (1.0 - 1e-9)


def test_what_was_learned_of_the_clock_is_saved_and_read_again(tmp_path: Path) -> None:
    data = training_set(swept("T", rows=60), broken=9.0)
    response = LearnedResponse(ClockResponse(0.8, 0.25), 0.04, 0.02)
    own = OwnRuns(str(data.known.runs.source[0]), response=response, off_below=0.39, clock_remark="why")
    surrogate = Surrogate(KERNEL, data.known.runs, data.known_residual, own=(own,))
    save(surrogate, tmp_path / "mine")
    read = load(tmp_path / "mine").own[0]
    assert (read.response, read.off_below, read.clock_remark) == (response, 0.39, "why")
    save(replace(surrogate, own=(replace(own, response=None),)), tmp_path / "none")
    assert load(tmp_path / "none").own[0].response is None


def test_a_share_that_follows_the_clock_more_than_whole_is_refused(folder: Path, tmp_path: Path) -> None:
    save(load(folder), tmp_path / "mine")
    card = json.loads((tmp_path / "mine" / "card.json").read_text())
    card["model"]["own"][0]["response"]["response"]["compute"] = 1.5
    write_card(tmp_path / "mine", card)
    with pytest.raises(TableError, match="compute is not between 1e-09 and 1"):
        load(tmp_path / "mine")
