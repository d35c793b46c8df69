"""Peak power and temperature are learned as mean power is, kept with a surrogate, and used by every verb."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.core.units import Z_90
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options, shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.bounds import idle_power_w
from jointopt.physics.cost_model import CostModel, HeatScale, unscaled_heat
from jointopt.physics.curves import Curves
from jointopt.surrogate import own_cluster
from jointopt.surrogate.data_doubts import heat_log_ratios
from jointopt.surrogate.dataset import price, with_results
from jointopt.surrogate.features import PEAK, RISE
from jointopt.surrogate.files import CARD, load, load_surrogate, save, write_card
from jointopt.surrogate.intervals import with_measured_intervals
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.own_cluster import OwnRuns, SourceRuns
from jointopt.surrogate.own_mix import Mix, OwnTarget, at_rest_w, limit_overshoot, peak_cut, with_predicted
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.training import training_set
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict
from jointopt.workflows.propose import propose
from tests.surrogate.test_job_model import measured_runs
from tests.surrogate.test_own_cluster import KERNEL, STATIC_W, noise, runs, steps

PLAN, AIR_C = "dp=4 tp=2 micro_batch_size=4 clock_mhz=1410", 22.5


@functools.cache
def job() -> Job:
    return shipped_job("opt-350m-2x4-a100")


def learned(mix: Mix | None = None, **heat: PowerScale) -> Surrogate:
    """The shipped surrogate as if many runs of the job's cluster had taught its peaks and temperature."""
    cluster, default = job().cluster, load_surrogate("default")
    assert default is not None
    source = str(Source("mine", job().training.framework.name, cluster.gpu.id, cluster.gpus_per_node))
    targets = {name: OwnTarget(scale, mix or Mix()) for name, scale in heat.items()}
    return replace(default, own=(OwnRuns(source, clocks=(0.6, 1.0), heat=targets),))


def heat_of(surrogate: Surrogate | None) -> dict[str, float]:
    parsed = parse_plan(PLAN, job())
    found = JobModel(job(), surrogate).cost_model(parsed.layouts).heat(np.zeros(1, np.int64), parsed.stage_clock_mhz)
    return {name: float(value[0]) for name, value in found.items()}


def test_the_line_of_peaks_and_of_the_rise_over_the_air_moves_what_the_physics_predicts() -> None:
    bare = heat_of(None)
    found = heat_of(learned(peak_power_w=PowerScale(1.1, 0.03), temperature_rise_k=PowerScale(0.9, 0.05)))
    assert found["peak_power_w"] == pytest.approx(1.1 * bare["peak_power_w"])
    assert found["temperature_c"] == pytest.approx(AIR_C + 0.9 * (bare["temperature_c"] - AIR_C))
    assert heat_of(learned()) == pytest.approx(bare, rel=1e-12)


@pytest.mark.parametrize("gpu", ["h100-sxm5-80gb", "a100-sxm4-80gb", "b200-sxm-180gb"])
def test_a_gpu_at_rest_draws_no_less_than_lines_of_power_take_it_to(gpu: str) -> None:
    cold = job_from_options("opt-350m", gpu, 8, 256, 2048, 8, "bf16", "megatron-lm")
    cold = replace(cold, cluster=replace(cold.cluster, inlet_temperature_c=0.0))
    physics = CostModel(cold, parse_plan("dp=8", cold).layouts)
    assert at_rest_w(f"lab|megatron-lm|{gpu}|8") <= idle_power_w(physics.power, physics.cooler)
    assert at_rest_w("lab|megatron-lm|no such GPU|8") == 0.0


def test_peaks_and_temperature_follow_mean_power_where_they_were_not_measured() -> None:
    own = replace(learned().own[0], power=PowerScale(1.1, 0.05))
    bare, found = heat_of(None), heat_of(replace(learned(), own=(own,)))
    assert found["peak_power_w"] == pytest.approx(1.1 * bare["peak_power_w"])
    # a GPU that leaks heats itself by more: within the leakage of what it draws more
    assert found["temperature_c"] - AIR_C == pytest.approx(1.1 * (bare["temperature_c"] - AIR_C), rel=0.05)


def test_measured_peaks_show_by_how_much_boards_exceed_their_limits() -> None:
    peaks, limits = np.linspace(1.0, 1.2, 21) * 500.0, np.full(21, 500.0)
    assert limit_overshoot(peaks, limits) == pytest.approx(1.1905)  # 0.95 of the 20 above it, 1.01 to 1.2
    assert limit_overshoot(np.full(60, 500.0), np.full(60, 500.0)) == 1.0
    assert limit_overshoot(np.array([520.0] * 4 + [300.0] * 60), np.full(64, 500.0)) == 1.0  # four may be the meter's
    assert limit_overshoot(np.array([660.0] * 30), np.array([600.0] * 30)) == pytest.approx(1.1)
    assert limit_overshoot(None, limits) is limit_overshoot(peaks, None) is None


def capped(overshoot: float | None, **limits: Any) -> dict[str, float]:
    """Peak of the plan, its upper bound and mean power, by runs whose peaks are 1.5 times those of the physics."""
    own = learned().own[0]
    of_peak = OwnTarget(PowerScale(1.5, 0.03), Mix(), overshoot)
    limited = replace(job(), cluster=replace(job().cluster, **limits))
    model = JobModel(limited, replace(learned(), own=(replace(own, heat={PEAK: of_peak}),)))
    parsed, one = parse_plan(PLAN, limited), np.zeros(1, np.int64)
    physics = model.cost_model(parsed.layouts)
    plans = physics.evaluate(one, parsed.stage_clock_mhz) | physics.heat(one, parsed.stage_clock_mhz)
    out = model.intervals(plans | parsed.layouts | {"stage_clock_mhz": parsed.stage_clock_mhz})
    return {name: float(out[name][0]) for name in ("peak_power_w", "peak_power_w_high", "avg_power_w")}


def test_learned_peaks_and_their_bounds_end_at_what_boards_draw_at_the_limit() -> None:
    free, at_limit = capped(None), capped(1.05, power_limit_w=250.0)
    assert free["peak_power_w"] > 1.05 * 250.0
    assert (at_limit["peak_power_w"], at_limit["peak_power_w_high"]) == pytest.approx((262.5, 262.5))
    assert capped(2.0)["peak_power_w"] == pytest.approx(free["peak_power_w"])
    assert capped(0.2, power_limit_w=250.0)["peak_power_w"] == pytest.approx(at_limit["avg_power_w"])


def test_no_peak_is_below_the_mean_power_whatever_was_learned_of_both_at_every_clock() -> None:
    parsed, grid = parse_plan(PLAN, job()), np.array(job().search.clock_mhz)[:, None]
    plain, every = CostModel(job(), parsed.layouts), np.zeros(len(grid), np.int64)
    watts = np.sort(plain.evaluate(every, grid)["avg_power_w"])[[0, 20, -1], None]
    of_mean = Curves.rising(watts, watts * [[1.3], [1.1], [1.0]])
    of_peak = HeatScale(peak=np.repeat([[1.05], [-20.0]], len(grid), axis=1))
    physics = plain.corrected(np.ones(1), power_curves=of_mean, heat_scale=lambda index: of_peak)
    mean_w, peak_w = physics.evaluate(every, grid)["avg_power_w"], physics.heat(every, grid)["peak_power_w"]
    assert (peak_w >= mean_w * (1.0 - 1e-9)).all()
    assert (peak_w > 1.05 * mean_w).any()


def test_explain_and_propose_give_learned_peaks_with_their_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    own = JobModel(job(), learned(peak_power_w=PowerScale(1.1, 0.03), temperature_rise_k=PowerScale(0.9, 0.05)))
    explained, bare = explain(own, PLAN), explain(JobModel(job()), PLAN)
    peak_w = max(stage.peak_power_w or 0.0 for stage in explained.stages)
    assert peak_w == pytest.approx(1.1 * max(stage.peak_power_w or 0.0 for stage in bare.stages))
    assert explained.intervals["peak_power_w"] == pytest.approx([peak_w * np.exp(s * 0.03 * Z_90) for s in (-1, 1)])
    assert f"{peak_w:.0f} W at the peak (" in explained.text()
    assert "at the peak" not in bare.text()
    front = propose(own, trials=0).front
    assert (front["peak_power_w_low"] < front["peak_power_w"]).all()
    assert (front["temperature_c"] < front["temperature_c_high"]).all()


def test_a_small_surrogate_s_runs_that_measured_ones_displace_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    default, source = load_surrogate("default"), learned().own[0].source
    assert default is not None
    rows = np.arange(30)
    few = replace(default.support.take(rows), source=np.full(len(rows), source))
    save(replace(default, support=few, residual=default.residual[rows]), tmp_path / "mine")
    assert not JobModel.of(job(), str(tmp_path / "mine")).evidence.priced
    assert "left aside" not in caplog.text
    JobModel.of(job(), str(tmp_path / "mine"), measured_runs(job(), 1.0))
    assert "the 30 runs on this kind of cluster that it learned from are left aside" in caplog.text


def test_predict_and_evaluate_have_what_was_learned_of_heat_and_no_source_else(tmp_path: Path) -> None:
    save(learned(peak_power_w=PowerScale(1.1, 0.03), temperature_rise_k=PowerScale(0.9, 0.05)), tmp_path / "mine")
    table = measured_runs(job(), 1.0).assign(source="mine").reset_index(drop=True)
    bare = price(with_results(table), heat=True)
    peak_w, rise_k = (pd.Series(bare.physics[name], bare.rows).sort_index() for name in (PEAK, RISE))
    found = predict(table, str(tmp_path / "mine"))
    assert found["predicted_peak_power_w"].to_numpy() == pytest.approx(1.1 * peak_w.to_numpy())
    assert found["predicted_temperature_c"].to_numpy() == pytest.approx(AIR_C + 0.9 * rise_k.to_numpy())
    assert (found["predicted_peak_power_w_low"] < found["predicted_peak_power_w"]).all()
    judged = evaluate(table.assign(peak_power_w=peak_w, temperature_c=AIR_C + rise_k), str(tmp_path / "mine")).overall
    assert judged["peak_power_error"] == pytest.approx(0.1)
    assert judged["temperature_error_k"] == pytest.approx(0.1 * rise_k.median())
    assert "predicted_peak_power_w" not in predict(table)


def test_intervals_of_heat_are_factors_on_peaks_and_on_what_is_above_the_air() -> None:
    columns = {"peak_power_w": np.array([400.0]), "temperature_c": np.array([62.5])}
    found = with_measured_intervals(job(), columns, {PEAK: np.log(1.1), RISE: np.log(1.25)})
    assert found["peak_power_w_low"] == pytest.approx([400.0 / 1.1])
    assert found["peak_power_w_high"] == pytest.approx([440.0])
    assert found["temperature_c_low"] == pytest.approx([AIR_C + 32.0])
    assert found["temperature_c_high"] == pytest.approx([AIR_C + 50.0])
    assert with_measured_intervals(job(), {"pp": np.ones(1)}, {PEAK: 0.1}).keys() == {"pp"}


def test_measured_peaks_and_temperatures_are_read_over_the_physics_and_the_air() -> None:
    table = measured_runs(job(), 1.0).reset_index(drop=True)
    bare = price(with_results(table), heat=True)
    peak_w, rise_k = (np.empty(len(table)) for _ in range(2))
    peak_w[bare.rows], rise_k[bare.rows] = bare.physics[PEAK], bare.physics[RISE]
    full = table.assign(peak_power_w=1.2 * peak_w, temperature_c=AIR_C + 0.8 * rise_k)
    full.loc[0, ["peak_power_w", "temperature_c"]] = [np.nan, AIR_C - 1.0]  # cooler than the air: of another inlet
    full.loc[1, "status"] = "failed"
    found = heat_log_ratios(with_results(full), bare)
    sound = ~np.isin(bare.rows, [0, 1])
    for name, ratio in ((PEAK, 1.2), (RISE, 0.8)):
        assert found[name][sound] == pytest.approx(np.log(ratio))
        assert np.isnan(found[name][~sound]).all()
    assert heat_log_ratios(full, price(with_results(table))) == {}


@pytest.mark.parametrize(("name", "factor"), [("peak_power_w", 6.0), ("peak_power_w", 0.1), ("temperature_c", 8.0)])
def test_peaks_and_temperatures_that_cannot_be_true_teach_nothing_and_are_counted(
    name: str, factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    table = measured_runs(job(), 1.0).reset_index(drop=True)
    bare = price(with_results(table), heat=True)
    true = {"peak_power_w": bare.physics[PEAK], "temperature_c": AIR_C + bare.physics[RISE]}[name]
    cells = pd.Series(true, bare.rows).sort_index()
    cells[0] *= factor
    found = heat_log_ratios(with_results(table.assign(**{name: cells})), bare)[PEAK if name == "peak_power_w" else RISE]
    assert np.isnan(found).tolist() == (bare.rows == 0).tolist()
    assert f"1 of {len(table)} cells of {name} are not learned from" in caplog.text


def test_each_cause_why_peaks_are_not_learned_from_has_a_sentence_with_its_first_row(caplog) -> None:
    table = measured_runs(job(), 1.0).reset_index(drop=True)
    bare = price(with_results(table), heat=True)
    peaks = pd.Series(bare.physics[PEAK], bare.rows).sort_index()
    full = table.assign(peak_power_w=peaks, avg_power_w=0.9 * peaks)
    full.loc[1, "peak_power_w"] *= 0.5
    full.loc[2, ["peak_power_w", "avg_power_w"]] *= 9.0
    full.loc[3, "status"] = "failed"
    heat_log_ratios(with_results(full), bare, lambda row: f"row {row + 1} of own.csv")
    for row, cause in ((2, "below the mean power"), (3, "5 times off the physics"), (4, "of which no time is learned")):
        (line,) = [one for one in caplog.messages if cause in one]
        assert line.startswith(f"1 of {len(table)} cells of peak_power_w")
        assert f"(row {row} of own.csv is the first): " in line


def test_tables_with_peaks_and_temperatures_are_priced_with_them() -> None:
    table = measured_runs(job(), 1.0)
    data = training_set(table.assign(peak_power_w=300.0, temperature_c=50.0, source="mine"), 1e9)
    assert np.exp(data.heat[PEAK]) * data.known.physics[PEAK] == pytest.approx(300.0)
    assert np.exp(data.heat[RISE]) * data.known.physics[RISE] == pytest.approx(50.0 - AIR_C)
    assert training_set(table, 1e9).heat == {}


@functools.cache
def own_of_steps() -> OwnRuns:
    """Learned from runs whose peaks are a line with steps, and whose temperature was measured in too few."""
    some = runs(120)
    values = np.random.default_rng(5).uniform(200.0, 600.0, 120)
    peaks = np.log(1.15) + 0.8 * steps(some) + noise(120, 6)
    rare = np.where(np.arange(120) < 40, np.log(0.9), np.nan)
    blank = np.full(120, np.nan)
    heat = {PEAK: (peaks, values), RISE: (rare, values / 10.0)}
    measured = SourceRuns(some, noise(120), blank, np.full(120, 0.25), STATIC_W, heat)
    return own_cluster.learn_own("lab|megatron-lm|h100-sxm5-80gb|8", measured, KERNEL)[0]


def test_peaks_count_with_trees_as_far_as_they_help_and_only_from_fifty_runs_on() -> None:
    own = own_of_steps()
    assert list(own.heat) == [PEAK]
    assert not own.knows_power
    assert own.errors["peak power"] < 0.8 * own.errors["peak power process"] < own.errors["peak power physics"]
    before, after = (100 * own.errors[name] for name in ("peak power process", "peak power"))
    (line,) = (line for line in own.to_text().splitlines() if line.startswith("  peak power: scaled physics "))
    assert f": {before:.1f} -> {after:.1f} % on held-out models (physics " in line
    assert "temperature" not in own.to_text()
    # Student's t of six models over the normal quantile: 1.943 / 1.645
    assert own.heat[PEAK].scale.log_sd == pytest.approx(0.03 * 1.181, rel=0.6)


def test_features_that_make_the_steps_of_peaks_are_the_most_important_of_their_trees() -> None:
    own = own_of_steps()
    importance = own.importance[PEAK]
    assert set(list(importance)[:3]) == {"tp", "pp", "vpp"}
    assert list(importance.values()) == sorted(importance.values(), reverse=True)
    values = np.random.default_rng(5).uniform(200.0, 600.0, 120)  # of `own_of_steps`
    names, added = own.heat[PEAK].mix.contributions(with_predicted(runs(120), values))
    assert importance["tp"] == pytest.approx(np.abs(added[:, names.index("log2_tp")]).mean(), abs=1e-4)
    assert set(own.importance) == {of for of, mix in own.mixes.items() if mix.weight}


@functools.cache
def with_steps() -> Surrogate:
    own = own_of_steps()
    heat = {PEAK: replace(own.heat[PEAK], overshoot=1.04)}
    return Surrogate(KERNEL, runs(3), np.zeros(3), own=(replace(own, power_limit_w=650.0, heat=heat),))


def test_what_was_learned_of_heat_is_kept_with_hashes(tmp_path: Path) -> None:
    save(with_steps(), tmp_path / "mine")
    read, own = load(tmp_path / "mine").own[0], with_steps().own[0]
    new, values = runs(30, 7), np.linspace(200.0, 600.0, 30)
    found, kept = (one.heat[PEAK].log_ratio(new, values) for one in (read, own))
    np.testing.assert_allclose(found, kept, atol=1e-6)
    assert (read.heat[PEAK].scale, read.power_limit_w) == (own.heat[PEAK].scale, 650.0)
    assert (read.width, read.width_of_known) == (own.width, own.width_of_known)
    assert (read.heat[PEAK].overshoot, own.heat[PEAK].overshoot) == (1.04, 1.04)
    trees = tmp_path / "mine" / "own-0-peak_power_w.json"
    trees.write_text(trees.read_text().replace("1", "2", 1))
    with pytest.raises(TableError, match="has changed since it was written"):
        load(tmp_path / "mine")


def _without_hash(model: dict[str, Any]) -> None:
    del model["sha256"]["own-0-peak_power_w.json"]


def _of_another_name(model: dict[str, Any]) -> None:
    model["own"][0]["heat"]["fan_speed"] = model["own"][0]["heat"].pop(PEAK)


def _infinite(model: dict[str, Any]) -> None:
    model["own"][0]["heat"][PEAK]["scale"]["offset_w"] = float("inf")


def _too_heavy(model: dict[str, Any]) -> None:
    model["own"][0]["heat"][PEAK]["mix"]["weight"] = 1.5


def _below_nothing(model: dict[str, Any]) -> None:
    model["own"][0]["heat"][PEAK]["overshoot"] = -1.0


def _of_no_limit(model: dict[str, Any]) -> None:
    model["own"][0]["power_limit_w"] = -1.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_without_hash, "no hash of own-0-peak_power_w.json"), (_of_another_name, "learned of fan_speed"),
        (_infinite, "offset_w is not between"),
        (_too_heavy, "weight is not between 0 and 1"), (_of_no_limit, "power_limit_w is not between"),
        (_below_nothing, "overshoot is not between"),
    ],
)  # fmt: skip
def test_a_card_that_no_training_wrote_is_refused(
    change: Callable[[dict[str, Any]], None], why: str, tmp_path: Path
) -> None:
    save(with_steps(), tmp_path / "mine")
    card = json.loads((tmp_path / "mine" / CARD).read_text())
    change(card["model"])
    write_card(tmp_path / "mine", card)
    with pytest.raises(TableError, match=why):
        load(tmp_path / "mine")


def test_a_card_from_before_heat_was_learned_knows_none_and_takes_the_limit_that_the_gpu_is_sold_with(
    tmp_path: Path,
) -> None:
    save(with_steps(), tmp_path / "mine")
    card = json.loads((tmp_path / "mine" / CARD).read_text())
    del card["model"]["own"][0]["heat"], card["model"]["own"][0]["power_limit_w"]
    write_card(tmp_path / "mine", card)
    own = load(tmp_path / "mine").own[0]
    assert (own.heat, own.power_limit_w, own.measured_limit_w) == ({}, None, 700.0)


def test_importance_is_kept_by_quantity_the_largest_first_and_an_earlier_card_s_is_of_time(tmp_path: Path) -> None:
    (own,) = with_steps().own
    importance = {"time": {"tp": 0.1, "b": 0.3, "a": 0.2}, PEAK: {"clock": 0.05}}
    save(replace(with_steps(), own=(replace(own, importance=importance),)), tmp_path / "mine")
    found = load(tmp_path / "mine").own[0].importance
    assert found == importance
    assert list(found["time"]) == ["b", "a", "tp"]
    card = json.loads((tmp_path / "mine" / CARD).read_text())
    card["model"]["own"][0]["importance"] = importance["time"]
    write_card(tmp_path / "mine", card)
    assert load(tmp_path / "mine").own[0].importance == {"time": importance["time"]}


def test_peaks_of_the_physics_alone_know_nothing_of_what_was_learned() -> None:
    parsed = parse_plan(PLAN, job())
    index = np.zeros(1, np.int64)
    physics = JobModel(job(), learned(peak_power_w=PowerScale(1.3, 0.03))).cost_model(parsed.layouts)
    alone = unscaled_heat(physics, index, parsed.stage_clock_mhz)["peak_power_w"]
    assert alone == pytest.approx(heat_of(None)["peak_power_w"])
    assert physics.heat(index, parsed.stage_clock_mhz)["peak_power_w"] == pytest.approx(1.3 * alone)


def test_runs_under_lower_limits_are_priced_by_the_power_of_those_under_the_highest() -> None:
    from jointopt.surrogate.training import learn_source

    table = pd.concat([measured_runs(job(), 1.0)] * 10, ignore_index=True)
    whole = price(with_results(table))
    watts = np.empty(len(table))
    watts[whole.rows] = 1.2 * whole.physics["avg_power_w"]
    limited = table.assign(avg_power_w=150.0, power_limit_w=150.0, iteration_time_s=table.iteration_time_s * 1.5)
    both = pd.concat([table.assign(avg_power_w=watts, power_limit_w=400.0), limited], ignore_index=True)
    data = training_set(both.assign(source="mine"), 1e9)
    found = learn_source(str(data.known.runs.source[0]), data, np.arange(len(data.source)), shared_kernel())
    slow = data.known.limits_w == 150.0
    assert found.own.power_limit_w == 400.0
    assert (found.residual[slow] < data.known_residual[slow] - 0.02).all()  # the physics is slower there now
    np.testing.assert_allclose(found.residual[~slow], data.known_residual[~slow])


def shared_kernel() -> Any:
    default = load_surrogate("default")
    assert default is not None
    return default.kernel


def test_predictions_of_an_earlier_surrogate_go_where_the_next_one_has_none(synthetic_runs) -> None:
    table = synthetic_runs(rows=3)
    earlier = {f"predicted_{name}": 1.0 for name in ("peak_power_w", "temperature_c_low", "facility_energy_j")}
    found = predict(table.assign(**earlier, predicted_by="me"), "none")
    assert not {*earlier} & {*found}
    assert found["predicted_by"].tolist() == ["me"] * len(table)


def test_a_run_left_out_is_cut_by_what_the_others_show_of_the_limit() -> None:
    fold = np.arange(12) % 2
    peak_w, values, limits_w = np.where(fold == 0, 520.0, 550.0), np.full(12, 400.0), np.full(12, 500.0)
    overshoot, most = peak_cut(fold, np.log(peak_w / values), values, limits_w)
    assert overshoot == pytest.approx(1.1)
    assert np.exp(most) == pytest.approx(np.where(fold == 0, 1.1, 1.04) * 500.0 / 400.0)
    assert peak_cut(fold, np.log(peak_w / values), values, None) == (None, np.inf)


def judged(*, limited: bool) -> tuple[OwnTarget, float]:
    """Peaks of 1.3 times the physics that boards hold at 312 or 520 W, as learned, and their held-out error."""
    values, of_run = np.linspace(200.0, 600.0, 120), np.where(np.arange(120) % 3 == 0, 300.0, 500.0)
    log_ratio = np.log(np.minimum(1.3 * values, 1.04 * of_run) / values)
    blank = np.full(120, np.nan)
    some = SourceRuns(runs(120), blank, blank, STATIC_W / values, STATIC_W, {}, of_run if limited else None)
    target, _, errors = own_cluster.TargetLearner("peak power", some, log_ratio, values, None, 0).learn()
    return target, errors["peak power"]


def test_peaks_are_judged_as_they_are_predicted_and_so_are_their_intervals() -> None:
    (held, error), (free, error_uncut) = judged(limited=True), judged(limited=False)
    assert (held.overshoot, free.overshoot) == (pytest.approx(1.04), None)
    assert error < 0.5 * error_uncut
    assert (held.scale.log_sd or 0.0) < 0.7 * (free.scale.log_sd or 0.0)
    assert (held.scale.factor, held.scale.offset_w) == (free.scale.factor, free.scale.offset_w)
