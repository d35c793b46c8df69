"""Samplers of Optuna go on with a job: plans are legal, a proposal's are enqueued, and studies of others refused."""

import json
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import jointopt
from jointopt.core.errors import RunFailedError, UsageError
from jointopt.jobs.job import Constraints
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import parse_plan
from jointopt.search.studies.study_plans import read_study
from jointopt.workflows import feasible_layouts

JOB = jointopt.load_job("opt-350m-2x4-a100")
SAMPLERS = {name: getattr(optuna.samplers, f"{name}Sampler") for name in ("TPE", "NSGAII", "NSGAIII", "GP", "CmaEs")}
EACH = ["TPE", "NSGAII", "NSGAIII", "CmaEs", pytest.param("GP", marks=pytest.mark.services)]


def optimized(objective, trials=12, sampler="NSGAII", **more):
    study = optuna.create_study(directions=["minimize"] * 2, sampler=SAMPLERS[sampler](seed=0), **more)
    study.optimize(objective, n_trials=trials)
    return study


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("sampler", EACH)
def test_whatever_a_sampler_suggests_is_a_plan_that_keeps_the_rules_and_fits(sampler, request):
    if sampler == "GP":
        request.getfixturevalue("torch")
    elif sampler == "CmaEs":
        pytest.importorskip("cmaes", reason="cmaes is not installed")
    job = replace(JOB, objectives=("energy_j",)) if sampler == "CmaEs" else JOB
    objective = jointopt.optuna_objective(job)
    directions = ["minimize"] * len(job.objectives)  # CMA-ES knows one objective
    study = optuna.create_study(directions=directions, sampler=SAMPLERS[sampler](seed=0))
    study.optimize(objective, n_trials=30)
    plans = [objective.plan(trial) for trial in study.trials]
    assert [broken for plan in plans for broken in check_plan(job, parse_plan(plan, job).record)] == []
    explained = jointopt.explain(job, plans[-1])
    assert explained.feasible
    np.testing.assert_allclose(study.trials[-1].values, [getattr(explained, name) for name in job.objectives])


@pytest.mark.parametrize("form", [dict, json.dumps])
def test_what_is_asked_can_be_explained_and_told(form):
    study, objective = optimized(objective := jointopt.optuna_objective(JOB), 4), objective
    for _ in range(3):
        trial = study.ask(objective.distributions)
        found = jointopt.explain(JOB, form(trial.params))
        assert found.plan == objective.plan(trial)
        study.tell(trial, [found.iteration_time_s, found.energy_j])
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 7


def test_a_trial_is_explained_with_its_rank_by_one_search_of_the_job(monkeypatch):
    searches, prepare = [], feasible_layouts.prepare_search
    monkeypatch.setattr(feasible_layouts, "prepare_search", lambda *one: searches.append(one) or prepare(*one))
    study, objective = optuna.create_study(directions=["minimize"] * 2), jointopt.optuna_objective(JOB)
    trial = study.ask(objective.distributions)
    found = jointopt.explain(JOB, trial.params, ranked=True)
    assert (found.plan, len(searches)) == (objective.plan(trial), 1)
    assert found.rank == jointopt.explain(JOB, found.plan, ranked=True).rank


def test_any_sampler_goes_on_with_a_study_that_propose_stored(url):
    name = jointopt.propose(JOB, storage=url).study_name
    study = optuna.load_study(study_name=name, storage=url, sampler=SAMPLERS["TPE"](seed=0))
    before, plans = len(study.trials), len(read_study(url, name)[0])
    study.optimize(jointopt.optuna_objective(JOB), n_trials=5)
    assert {trial.state for trial in study.trials[before:]} == {TrialState.COMPLETE}
    assert len(read_study(url, name)[0]) == plans


def test_the_front_of_a_proposal_is_enqueued_with_its_clocks_and_once_alone():
    job = replace(JOB, search=replace(JOB.search, pp=(4,)))  # stages with clocks of their own
    proposal, study = jointopt.propose(job), optimized(objective := jointopt.optuna_objective(job), 3)
    count = len(proposal.front["pp"])
    assert (jointopt.enqueue(study, proposal), jointopt.enqueue(study, proposal)) == (count, 0)
    study.optimize(objective, n_trials=count)
    found = np.array([trial.values for trial in study.trials[3:]])
    np.testing.assert_allclose(found[:, 0], proposal.front["iteration_time_s"])
    np.testing.assert_allclose(found[:, 1], proposal.front["energy_j"])


@pytest.mark.parametrize(
    "job", [replace(JOB, constraints=Constraints(avg_power_w=200.0)), replace(JOB, constraints=Constraints())]
)
def test_the_limits_of_a_job_are_constraints_for_samplers_and_the_dashboard(job, url):
    study = optimized(jointopt.optuna_objective(job), storage=url)
    stored = optuna.load_study(study_name=jointopt.propose(job, storage=url).study_name, storage=url)
    limited = job.constraints.avg_power_w is not None
    for trial in (study.trials[0], stored.trials[0]):
        assert ({"avg_power_w", "memory (GiB)"} <= trial.constraints.keys()) is limited
        assert ("constraints" in trial.system_attrs) is limited
    if limited:
        over = study.trials[0].user_attrs["avg_power_w"] / 200.0 - 1.0
        assert study.trials[0].constraints["avg_power_w"] == pytest.approx(over)
        assert study.trials[0].system_attrs["constraints"] == [max(study.trials[0].constraints.values())]


def test_a_study_of_other_layouts_or_directions_is_refused():
    study = optimized(jointopt.optuna_objective(JOB), 2)
    other = jointopt.optuna_objective(replace(JOB, search=replace(JOB.search, tp=(1,))))
    with pytest.raises(UsageError, match=r"of other layouts than job .* begin a new study"):
        study.optimize(other, n_trials=1)
    with pytest.raises(UsageError, match=r"directions MAXIMIZE, .* minimise time and energy; make it with directions="):
        optuna.create_study(directions=["maximize"] * 2).optimize(other, n_trials=1)


def test_a_function_may_answer_for_plans():
    def simulated(job, plans):
        return {"iteration_time_s": 2.0 / plans["tp"], "energy_j": 100.0 * plans["tp"]}

    study = optimized(objective := jointopt.optuna_objective(JOB, simulated), 5)
    assert [trial.values[0] for trial in study.trials] == [2.0 / objective.plan(one)["tp"] for one in study.trials]


class Cluster:
    """A launcher whose runs take 2 s, 8 s with data parallelism alone, and end early where that is behind."""

    name, behind_s = "cluster", 0.0

    def candidates(self, job):
        return None

    def run(self, job, plan):
        time_s = 8.0 if plan["dp"] == 8 else 2.0
        if plan["cp"] > 2:
            return {"status": "failed", "notes": "no such device"}
        if 0.0 < self.behind_s < time_s:
            return {"status": "timeout", "notes": "ended early", "iteration_time_s": time_s}
        return {"status": "ok", "iteration_time_s": time_s, "energy_j": 9e3}


def test_runs_that_are_clearly_behind_are_pruned_and_failed_ones_fail():
    job = replace(JOB, objectives=("iteration_time_s",))
    objective = jointopt.optuna_objective(job, launcher=Cluster())
    study = optuna.create_study(sampler=SAMPLERS["TPE"](seed=0))
    for split in ("dp=4 tp=2", "dp=8", "dp=2 cp=4"):
        study.enqueue_trial({"layout": split, "variant": 1, "clock_mhz": 1410.0, "slack": 0.0})
    study.optimize(objective, n_trials=3, catch=(RunFailedError,))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "FAIL"]
    assert study.trials[0].values == [2.0]


def test_runs_without_a_heartbeat_are_warned_of(url, caplog):
    optimized(jointopt.optuna_objective(JOB, launcher=Cluster()), 1, storage=url)
    assert "heartbeat_interval=60" in caplog.text
