"""Power limits as a dimension of the search, beside clocks and in their place."""

import json

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import InfeasibleError, PlanError
from jointopt.core.schema import POWER_LIMIT
from jointopt.jobs.jobfile import parse_job, shipped_job, with_changes
from jointopt.search.pareto import front_rows, objectives, take
from jointopt.surrogate import job_model
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.campaign.candidates import listed_candidates, searched_candidates
from jointopt.workflows.campaign.expectation import earlier_runs
from jointopt.workflows.explain import explain
from jointopt.workflows.feasible_layouts import priced_problem, searched_limits
from jointopt.workflows.propose import propose

LIMITS = (400.0, 250.0, 200.0, 150.0)
JOB = with_changes(
    shipped_job("opt-350m-2x4-a100"),
    {f"search.{POWER_LIMIT}": list(LIMITS), "search.clock_mhz": 1410, "search.tp": 1, "search.vpp": 1},
)


@pytest.fixture(scope="module")
def found():
    return propose(JOB, surrogate="none")


def test_the_front_is_that_of_every_layout_under_every_limit(found) -> None:
    problem = priced_problem(JOB)
    every = np.arange(problem.num_layouts)
    plans = problem.evaluate_genes(every, np.zeros_like(every), np.zeros(len(every)))
    best = take(plans, front_rows(plans))
    assert problem.num_layouts % len(LIMITS) == 0
    assert len(found.front["pp"]) >= len(best["slack"]) - 1  # what only its probability of fitting kept is left out
    times, energies = objectives(plans)
    for time_s, energy_j in zip(*objectives(found.front), strict=True):
        assert not ((times < time_s * (1 - 1e-9)) & (energies < energy_j * (1 - 1e-9))).any()


def test_layouts_are_counted_once_whatever_the_number_of_their_limits(found) -> None:
    alone = propose(with_changes(JOB, {f"search.{POWER_LIMIT}": LIMITS[0]}), surrogate="none")
    space, of_one = found.to_dict()["space"], alone.to_dict()["space"]
    assert space["feasible_layouts"] == of_one["feasible_layouts"] <= space["layouts"] == of_one["layouts"]
    near = {tuple(one.plans[0][name] for name in ("dp", "pp", "cp")): one.near for one in alone.best_layouts}
    for one in found.best_layouts:
        assert one.near <= near[tuple(one.plans[0][name] for name in ("dp", "pp", "cp"))]


def test_a_layout_ranks_among_layouts_whatever_the_number_of_their_limits() -> None:
    slow = f"dp=1 pp=8 micro_batch_size=1 {POWER_LIMIT}={LIMITS[0]:g}"
    jobs = (JOB, with_changes(JOB, {f"search.{POWER_LIMIT}": LIMITS[0]}))
    several, one = (explain(job, slow, surrogate="none", ranked=True).rank for job in jobs)
    assert (several.rank, several.of) == (one.rank, one.of)
    assert one.rank > 1


def test_a_lower_limit_is_slower_leaner_and_draws_no_more_than_it(found) -> None:
    front = found.front
    limits = front[POWER_LIMIT][np.argsort(front["iteration_time_s"])]
    assert len(set(limits.tolist())) > 1
    assert (np.diff(limits) <= 0).all()
    assert (front["avg_power_w"] <= front[POWER_LIMIT] * (1 + 1e-9)).all()


def test_limits_that_a_gpu_draws_whatever_runs_are_dropped_and_counted_and_the_others_searched() -> None:
    hot = with_changes(JOB, {"cluster.inlet_temperature_c": 45, f"search.{POWER_LIMIT}": [200, 62]})
    limits, dropped = searched_limits(hot, 7)
    assert (limits, list(dropped.values())) == ((200.0,), [7])
    assert all("power limit of 62 W" in reason for reason in dropped)
    found = propose(hot, surrogate="none")
    assert set(found.front[POWER_LIMIT]) == {200.0}
    assert [n for reason, n in found.infeasible.items() if "62 W" in reason] == [found.feasible_layouts]
    with pytest.raises(InfeasibleError, match="nothing to compute with"):
        propose(with_changes(hot, {f"search.{POWER_LIMIT}": [62, 61]}), surrogate="none")


@pytest.mark.parametrize("limit", ["power_limit_w=2500", "pp=2 stage_power_limit_w=300;2500"])
def test_a_plan_over_the_limit_of_its_cluster_is_refused(limit: str) -> None:
    job = shipped_job("opt-350m-2x4-a100")
    with pytest.raises(PlanError, match=r"its power limit states 2500 W, .* at most 400 W"):
        explain(job, f"dp={4 if 'pp' in limit else 8} {limit}")


def test_a_plan_on_cores_of_a_cpu_states_no_limit() -> None:
    cores = {"cluster": {"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 4}, "objectives": ["iteration_time_s"]}
    training = {"seq_length": 128, "global_batch_size": 8, "dtype": "fp32"}
    job = parse_job({"model": "opt-350m", "training": training} | cores, "job", None)
    assert not explain(job, "dp=4").violations
    (sentence,) = explain(job, "dp=4 power_limit_w=50").violations
    assert "nothing is known of the power of GPU 'cpu-core'" in sentence


def test_answers_of_one_plan_under_a_limit_agree(found) -> None:
    document = json.loads(json.dumps(found.to_dict(), default=str))["front"][-1]
    alone = explain(JOB, {name: document[name] for name in ("dp", "pp", "cp", "micro_batch_size", "zero_stage",
        "dp_replicate", "stage_clock_mhz", POWER_LIMIT)}, surrogate="none")  # fmt: skip
    assert alone.iteration_time_s == pytest.approx(document["iteration_time_s"])
    assert alone.energy_j == pytest.approx(document["energy_j"])


def test_a_limit_is_as_doubtful_as_the_clock_that_it_leaves() -> None:
    llama = {f"search.{POWER_LIMIT}": [700, 350], "search.clock_mhz": 1980}
    front = propose(with_changes(shipped_job("llama-3-8b-1x8-h100"), llama)).front
    width = front["iteration_time_s_high"] / front["iteration_time_s_low"]
    lowest, highest = front[POWER_LIMIT] == 350.0, front[POWER_LIMIT] == 700.0
    assert width[lowest].min() > 1.01 * width[highest].max()
    assert not front["in_domain"][lowest].any()
    assert (front["stage_clock_mhz"][~np.isnan(front["stage_clock_mhz"])] == 1980.0).all()


def test_clocks_that_limits_leave_are_worked_out_once_for_intervals_doubts_and_differences(found, monkeypatch) -> None:
    counted, reached = [], job_model.clocks_reached
    monkeypatch.setattr(job_model, "clocks_reached", lambda *given: counted.append(given) or reached(*given))
    model, plans = JobModel(JOB), {name: values for name, values in found.front.items() if name != "doubts"}
    known = model.bounded(plans)
    model.differences(known, 0)
    assert len(counted) == 1
    model.bounded(plans | {POWER_LIMIT: 0.9 * plans[POWER_LIMIT]})
    assert len(counted) == 2


def test_tables_reports_and_the_study_state_the_limit(found, tmp_path) -> None:
    assert "limit" in found.text(show_all=True)
    assert found.to_frame()[POWER_LIMIT].isin(LIMITS).all()
    stored = propose(JOB, surrogate="none", storage=f"sqlite:///{tmp_path}/s.db")
    import optuna

    trials = optuna.load_study(study_name=stored.study_name, storage=f"sqlite:///{tmp_path}/s.db").trials
    assert {trial.params[POWER_LIMIT] for trial in trials} <= set(LIMITS)


def test_nsga2_breeds_limits_too() -> None:
    wide = with_changes(JOB, {"objectives": ["iteration_time_s", "energy_j", "peak_power_w"]})
    front = propose(wide, surrogate="none", trials=200).front
    assert set(front[POWER_LIMIT].tolist()) >= {250.0, 150.0}
    assert (front["peak_power_w"] <= front[POWER_LIMIT] * (1 + 1e-9)).all()


def test_tune_chooses_among_limits_and_knows_a_run_by_its_own() -> None:
    candidates = searched_candidates(JOB)
    rows = candidates.rows.assign(status="ok", iteration_time_s=3.0)
    first = int(np.flatnonzero(rows[POWER_LIMIT] == 200.0)[0])
    known = earlier_runs(candidates.rows, rows.iloc[[first]])
    assert known.index == (first,)
    assert candidates.record(first)[POWER_LIMIT] == candidates.question(first)[POWER_LIMIT] == 200.0
    other = earlier_runs(candidates.rows, rows.iloc[[first]].assign(power_limit_w=399.0))
    assert not other.index


def test_runs_of_a_table_that_differ_in_their_limit_alone_are_plans_of_their_own() -> None:
    rows = searched_candidates(JOB).rows
    rows = pd.concat([rows.iloc[[0]].assign(power_limit_w=watts) for watts in (400.0, 200.0)])
    found = listed_candidates(rows.to_dict("list"), JOB)
    assert [found.record(i)[POWER_LIMIT] for i in range(2)] == [400.0, 200.0]
    assert found.predicted["iteration_time_s"][0] < found.predicted["iteration_time_s"][1]
