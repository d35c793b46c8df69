"""What was measured on a job's cluster moves the predictions for the job."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import jointopt
from jointopt.core.facts import Source
from jointopt.core.schema import Columns
from jointopt.jobs.catalog.recorded_runs import combination_of, recorded_runs
from jointopt.jobs.job import Job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import parse_plan, uniform_stage_clocks
from jointopt.physics.cost_model import CostModel
from jointopt.report.results import Explanation
from jointopt.runs.store import Store
from jointopt.surrogate.features import watts_at
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.measurements import Measurements
from jointopt.surrogate.memory import cost_of_failing
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.surrogate import Surrogate
from jointopt.workflows.explain import explain
from jointopt.workflows.polish import Schedule, polish
from jointopt.workflows.propose import propose

JOB = "opt-350m-2x4-a100"
PLANS = ("dp=8", "dp=4 tp=2", "dp=2 tp=2 pp=2", "dp=2 pp=4", "dp=4 pp=2 micro_batch_size=2", "dp=1 tp=4 pp=2")


EXPLAINED: dict[str, list[Explanation]] = {}  # by the name of the job: the predictions of the physics for `PLANS`


def by_physics(job: Job) -> list[Explanation]:
    if job.name not in EXPLAINED:
        EXPLAINED[job.name] = [explain(job, plan, surrogate="none") for plan in PLANS]
    return EXPLAINED[job.name]


def measured_runs(job: Job, slower: float, **cells: Any) -> pd.DataFrame:
    """Runs of `PLANS` that took ``slower`` times what the physics predicts."""
    m, t = job.model, job.training
    shape = {
        "num_layers": m.num_layers, "hidden_size": m.hidden_size, "ffn_hidden_size": m.ffn_hidden_size,
        "num_attention_heads": m.num_attention_heads, "num_query_groups": m.num_query_groups, "model": "opt-350m",
        "gated_mlp": m.gated_mlp, "vocab_size": m.vocab_size, "seq_length": t.seq_length, "dtype": t.dtype,
        "global_batch_size": t.global_batch_size, "attention": t.attention, "framework": t.framework.name,
        "gpu": job.cluster.gpu.id, "gpus_per_node": job.cluster.gpus_per_node, "num_gpus": job.cluster.num_gpus,
    }  # fmt: skip
    found = by_physics(job)
    layouts = [{k: v for k, v in one.plan.items() if k != "stage_clock_mhz"} for one in found]
    times = [{"iteration_time_s": slower * one.iteration_time_s, "status": "ok"} for one in found]
    return pd.DataFrame([shape | plan | time | cells for plan, time in zip(layouts, times, strict=True)])


@pytest.fixture(scope="module")
def job() -> Job:
    return jointopt.load_job(JOB)


@pytest.fixture(scope="module")
def layouts(job: Job) -> Columns:
    return enumerate_layouts(job).layouts


def test_without_measured_runs_the_physics_stays(job: Job, layouts: Columns) -> None:
    some = {name: values[:50] for name, values in layouts.items()}
    for model in (JobModel.of(job), JobModel.of(job, "none", measured_runs(job, 1.3))):
        assert (model.cost_model(some).time_factor == 1.0).all()
        assert model.cost_model(some).memory_factor == 1.0
        assert (model.cost_model(some).power_factor == 1.0).all()


def test_slower_runs_make_every_plan_slower(job: Job) -> None:
    plan = "dp=2 tp=4 micro_batch_size=2"
    before = explain(job, plan)
    after = explain(job, plan, measured=measured_runs(job, 1.3))
    assert after.iteration_time_s == pytest.approx(1.3 * before.iteration_time_s, rel=0.08)
    low, high = after.intervals["iteration_time_s"]
    assert low < after.iteration_time_s < high


def test_a_corrected_plan_still_adds_up(job: Job) -> None:
    found = explain(job, "dp=2 tp=2 pp=2 micro_batch_size=2", measured=measured_runs(job, 0.8))
    assert sum(found.time_s.values()) == pytest.approx(found.iteration_time_s)
    assert sum(found.energy_by_part_j.values()) == pytest.approx(found.energy_j)
    assert sum(stage.energy_j for stage in found.stages) == pytest.approx(found.energy_j)
    assert found.stages[0].busy_s + found.stages[0].idle_s == pytest.approx(found.iteration_time_s)


def test_runs_of_other_software_on_another_gpu_are_no_evidence(job: Job) -> None:
    runs = measured_runs(job, 1.3, gpu="h100-sxm5-80gb", framework="nemo")
    evidence = JobModel.of(job, measured=runs).evidence
    assert evidence.known is None
    assert not evidence.counts


@pytest.mark.parametrize("cells", [{"gpu": "h100-sxm5-80gb"}, {"gpus_per_node": 8}, {"framework": "nemo"}])
def test_runs_of_kin_are_no_evidence_of_power_and_memory(job: Job, cells: dict[str, Any]) -> None:
    runs = measured_runs(job, 1.3, **cells, avg_power_w=250.0, peak_memory_gib=20.0)
    evidence = JobModel.of(job, measured=runs).evidence
    assert evidence.known is not None
    assert evidence.power.log_sd is None
    assert evidence.power_limit_w is None
    assert len(evidence.memory) == 0


def test_runs_that_ran_out_of_memory_are_no_evidence_of_time(job: Job) -> None:
    assert JobModel.of(job, measured=measured_runs(job, 1.3, status="oom")).evidence.known is None


def test_measured_memory_moves_the_memory_of_every_plan_and_what_fits(job: Job) -> None:
    found = explain(job, "dp=8 micro_batch_size=4")
    ratio = 1.4
    runs = measured_runs(job, 1.0)
    gib = [one.peak_memory_gib for one in by_physics(job)]
    moved = explain(job, "dp=8 micro_batch_size=4", measured=runs.assign(peak_memory_gib=np.array(gib) * ratio))
    assert moved.peak_memory_gib == pytest.approx(ratio * found.peak_memory_gib, rel=0.05)
    assert sum(moved.memory_gib.values()) == pytest.approx(moved.peak_memory_gib)
    front = propose(job, measured=runs.assign(peak_memory_gib=np.array(gib) * ratio), trials=0).front
    assert front["peak_memory_gib"].max() <= 38


def test_a_run_out_of_memory_raises_what_plans_are_predicted_to_need(job: Job) -> None:
    full = measured_runs(job, 1.0).iloc[:1].assign(micro_batch_size=4, status="oom", iteration_time_s=np.nan)
    evidence = JobModel.of(job, measured=full).evidence
    assert evidence.memory_posterior().factor > 1.01
    assert evidence.known is None


def test_runs_of_two_places_count_together(job: Job) -> None:
    runs = measured_runs(job, 1.2)
    parts = Measurements.of(runs.iloc[:4], "store"), Measurements.of(runs.iloc[4:], "file")
    evidence = JobModel.of(job).fit_evidence(*parts).evidence
    assert evidence.counts == {"store": 4, "file": 2}
    assert len(evidence.residual) == 6


def test_the_exact_search_keeps_its_promise_on_corrected_physics(job: Job, layouts: Columns) -> None:
    model = JobModel.of(job, measured=measured_runs(job, 1.3))
    front = propose(model, trials=0).front
    physics = model.cost_model(layouts)
    rng = np.random.default_rng(0)
    index = rng.integers(0, len(layouts["pp"]), 3000)
    clocks = np.where(np.arange(8) < layouts["pp"][index, None], rng.choice(job.search.clock_mhz, (3000, 1)), np.nan)
    tried = physics.evaluate(index, clocks)
    fits = model.fit_probability(physics)[index][:, None], front["fit_probability"]
    runs = [cost_of_failing(probability) for probability in fits]
    better = [tried[n][:, None] * runs[0] < front[n] * runs[1] * (1 - 1e-6) for n in ("iteration_time_s", "energy_j")]
    assert not (better[0] & better[1] & (tried["violation"] <= 0)[:, None]).any()


def test_propose_and_explain_read_the_measurements_of_the_storage(job: Job, url: str) -> None:
    Store(url).add(measured_runs(job, 1.3), "mine")
    found = propose(job, storage=url, trials=0)
    assert found.informed_by == {url: len(PLANS)}
    plan = "dp=8 micro_batch_size=4"
    found = explain(job, plan, storage=url)
    assert found.iteration_time_s > 1.15 * explain(job, plan).iteration_time_s


@pytest.mark.parametrize("own", [0, len(PLANS)])
def test_a_store_gives_a_job_runs_of_kin_as_a_table_of_measured_runs_does(job: Job, url: str, own: int) -> None:
    kin = measured_runs(job, 1.3, gpu="h100-sxm5-80gb")
    runs = pd.concat([measured_runs(job, 1.2).head(own), kin], ignore_index=True)
    Store(url).add(runs, "mine")
    plan = "dp=8 micro_batch_size=4"
    stored, given = explain(job, plan, storage=url), explain(job, plan, measured=runs)
    assert list(stored.informed_by.values()) == list(given.informed_by.values())
    assert any("counted in part" in place for place in stored.informed_by)
    assert stored.iteration_time_s == pytest.approx(given.iteration_time_s, rel=1e-6)
    assert stored.iteration_time_s > explain(job, plan).iteration_time_s


def test_kin_are_left_out_where_a_store_has_enough_runs_of_the_jobs_kind(job: Job, url: str) -> None:
    Store(url).add(pd.concat([measured_runs(job, 1.3), measured_runs(job, 1.3, gpu="h100-sxm5-80gb")]), "mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jointopt.surrogate.measurements.SAMPLED", len(PLANS))
        assert JobModel.of(job, storage=url).evidence.counts == {url: len(PLANS)}


def test_a_surrogate_of_ones_own_remembers_the_cluster(job: Job, tmp_path: pathlib.Path) -> None:
    runs = pd.concat([measured_runs(job, f, source=s) for f, s in ((1.3, "mine"), (1.25, "mine"), (1.0, "b"))])
    other = runs.assign(framework="nemo", source="c")
    pd.concat([runs, other]).to_csv(tmp_path / "runs.csv", index=False)
    jointopt.retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "own")
    found = explain(job, "dp=8", surrogate=str(tmp_path / "own"))
    assert found.informed_by == {f"the surrogate {tmp_path / 'own'}": 3 * len(PLANS)}
    assert found.iteration_time_s > explain(job, "dp=8", surrogate="none").iteration_time_s


def test_a_plan_without_support_has_the_wider_interval(job: Job) -> None:
    moe = jointopt.load_job("mixtral-8x22b-8x8-h100")
    found = explain(moe, "dp=2 pp=8 cp=4 ep=8")
    low, high = found.intervals["iteration_time_s"]
    runs, combination = recorded_runs(), combination_of(moe)
    step, wider = runs.steps(combination), runs.wider["experts"]
    assert (found.in_domain, step) == (False, 1)  # of its framework no mixture of experts in this precision
    assert wider[step] > wider[0]
    # open settings shift both ends alike, and widen them
    assert np.log(high / low) > wider[step] * sum(runs.half_widths(combination))
    supported = explain(job, "dp=8")
    assert supported.in_domain
    assert supported.intervals["iteration_time_s"][1] < 1.6 * supported.iteration_time_s


def test_a_polished_plan_is_moved_like_the_plan_itself(job: Job) -> None:
    plan, runs = "dp=2 pp=4 micro_batch_size=4", measured_runs(job, 1.3)
    found = explain(job, plan, measured=runs)
    polished = polish(job, plan, solver="linear", measured=runs)
    alone = polish(job, plan, solver="linear", surrogate="none")
    assert polished.iteration_time_s == pytest.approx(found.iteration_time_s)
    assert polished.energy_j == pytest.approx(found.energy_j)
    assert polished.saving(polished.chosen) == pytest.approx(alone.saving(alone.chosen))
    assert polished.informed_by == found.informed_by
    slower = polished.iteration_time_s / alone.iteration_time_s
    assert polished.shortest_pass_s == pytest.approx(slower * alone.shortest_pass_s)
    times_s = [point.iteration_time_s for point in polished.points]
    assert times_s == pytest.approx([slower * point.iteration_time_s for point in alone.points])


def test_a_polished_plan_takes_the_power_that_was_measured(job: Job) -> None:
    plan, watts = "dp=2 pp=4 micro_batch_size=4", np.array([one.avg_power_w for one in by_physics(job)])
    runs = measured_runs(job, 1.3).assign(avg_power_w=0.5 * watts + 60.0)
    found, polished = explain(job, plan, measured=runs), polish(job, plan, solver="linear", measured=runs)
    assert found.avg_power_w != pytest.approx(explain(job, plan).avg_power_w, rel=0.05)
    assert polished.energy_j == pytest.approx(found.energy_j)
    assert polished.chosen.energy_j < polished.energy_j


def learned_clocks(job: Job) -> Surrogate:
    """The shipped surrogate as if many runs of the job's cluster had shown its power at many clocks."""
    default, cluster = load_surrogate("default"), job.cluster
    source = str(Source("mine", job.training.framework.name, cluster.gpu.id, cluster.gpus_per_node))
    power = PowerScale(0.9, np.array([0.01, 0.01]))
    return replace(default, own=(OwnRuns(source, power=power, clocks=(0.6, 1.0)),))


def test_a_polished_plan_draws_what_runs_at_many_clocks_taught(job: Job) -> None:
    model, plan = JobModel(job, learned_clocks(job)), "dp=2 pp=4 micro_batch_size=4 clock_mhz="
    parsed = parse_plan(plan + "1410", job)
    schedule = Schedule(model.cost_model(parsed.layouts), parsed.stage_clock_mhz[0])
    slower = schedule.point(schedule.problem.at_clocks(np.full(4, 1200.0)))
    polished = polish(model, plan + "1410", solver="linear")
    for mhz, at_clock in ((1410, polished), (1200, slower)):
        found = explain(model, plan + str(mhz))
        assert at_clock.iteration_time_s == pytest.approx(found.iteration_time_s)
        assert at_clock.energy_j == pytest.approx(found.energy_j)


def test_measured_power_moves_power_and_energy_and_narrows_their_intervals(job: Job) -> None:
    plan, runs = "dp=2 tp=4 micro_batch_size=2", measured_runs(job, 1.0)
    watts = np.array([one.avg_power_w for one in by_physics(job)])
    before = explain(job, plan, measured=runs)
    after = explain(job, plan, measured=runs.assign(avg_power_w=0.85 * watts))
    assert after.avg_power_w == pytest.approx(0.85 * before.avg_power_w, rel=0.01)
    assert after.energy_j == pytest.approx(after.avg_power_w * 8 * after.iteration_time_s)
    assert sum(after.energy_by_part_j.values()) == pytest.approx(after.energy_j)
    low, high = (bound / after.avg_power_w for bound in after.intervals["avg_power_w"])
    assert (low, high) == pytest.approx((0.92, 1.09), abs=0.02)


def test_a_front_on_corrected_power_is_a_front_of_the_same_plans(job: Job) -> None:
    watts = np.array([one.avg_power_w for one in by_physics(job)])
    runs = measured_runs(job, 1.0)
    plain = propose(job, measured=runs, trials=0).front
    moved = propose(job, measured=runs.assign(avg_power_w=0.85 * watts), trials=0).front
    np.testing.assert_allclose(moved["iteration_time_s"], plain["iteration_time_s"])
    np.testing.assert_allclose(moved["energy_j"] / plain["energy_j"], moved["energy_j"][0] / plain["energy_j"][0])


def test_predict_learns_power_from_energy_as_explain_does(job: Job) -> None:
    runs = measured_runs(job, 1.0)
    plain = jointopt.predict(runs, surrogate="none")
    runs = runs.assign(energy_j=0.9 * plain.predicted_avg_power_w * 8 * runs.iteration_time_s)
    found = jointopt.predict(runs.drop(columns=["energy_j", "iteration_time_s"]), surrogate="default", measured=runs)
    ratio = found.predicted_avg_power_w / plain.predicted_avg_power_w
    assert ratio.to_numpy() == pytest.approx(0.9, abs=0.02)
    used = found.predicted_energy_j / (8 * found.predicted_iteration_time_s)
    assert used.to_numpy() == pytest.approx(found.predicted_avg_power_w.to_numpy())


def test_a_model_has_a_fingerprint_where_something_moves_it_and_the_same_for_the_same_runs(job: Job) -> None:
    models = [JobModel.of(job, measured=measured_runs(job, slower)) for slower in (1.2, 1.2, 1.4)]
    alike, again, other = (model.fingerprint for model in models)
    assert JobModel.of(job, "none").fingerprint == ""
    assert alike == again != ""
    assert alike != other


def test_plans_are_corrected_in_parts_as_all_at_once(
    job: Job, layouts: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: values[:30] for name, values in layouts.items()}
    whole = JobModel.of(job, measured=measured_runs(job, 1.3)).cost_model(some).time_factor
    monkeypatch.setattr("jointopt.surrogate.job_model._CHUNK", 7)
    parts = JobModel.of(job, measured=measured_runs(job, 1.3)).cost_model(some).time_factor
    assert (whole > 1.1).all()
    assert parts == pytest.approx(whole)


def test_watts_are_those_of_a_share_of_the_highest_clock(job: Job, layouts: Columns) -> None:
    some, rows = {name: values[:30] for name, values in layouts.items()}, np.array([3, 17])
    physics = CostModel(job, some)
    found = watts_at(physics, rows, (0.5, 1.0))
    for watts, mhz in zip(found, (0.5 * physics.top_mhz, physics.top_mhz), strict=True):
        clocks = uniform_stage_clocks(some["pp"][rows], mhz)
        assert watts == pytest.approx(physics.evaluate(rows, clocks)["avg_power_w"])
    assert (found[0] < found[1]).all()
