"""The verbs from Python: what they return, and what they refuse."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import optuna
import pandas as pd
import pytest

import jointopt
from jointopt.core.errors import CatalogError, PlanError, UsageError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options, with_changes
from jointopt.physics.cost_model import memory_limit_gib
from jointopt.report.results import Proposal
from jointopt.report.tables import json_text
from jointopt.search.problem import Problem
from jointopt.search.studies.trials import FRONT_SHARE, MAX_TRIALS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import cost_of_failing
from jointopt.workflows.explain import explain
from jointopt.workflows.feasible_layouts import NEEDLESS, NO_MEMORY, RISKY, TIGHT, prepare_search, top_times
from jointopt.workflows.propose import propose
from jointopt.workflows.search_steps import Stopwatch
from tests.each import each
from tests.places import DATA

JOB = "opt-350m-2x4-a100"


@pytest.fixture(scope="module")
def proposal() -> Proposal:
    return propose(jointopt.load_job(JOB), trials=200, seed=3)


def problem_of(job: Job) -> Problem:
    return prepare_search(JobModel.of(job), Stopwatch(quiet=True)).problem


def test_a_proposal_is_a_front_sorted_by_time_that_contains_its_reference(proposal: Proposal) -> None:
    time, energy = proposal.front["iteration_time_s"], proposal.front["energy_j"]
    assert (np.diff(time) > 0).all()
    assert (np.diff(energy) < 0).all()
    assert time[0] <= proposal.reference["iteration_time_s"][0] * (1 + 1e-9)


def test_the_count_of_layouts_adds_up(proposal: Proposal) -> None:
    lost = sum(proposal.infeasible.get(reason, 0) for reason in (NO_MEMORY, TIGHT, RISKY, NEEDLESS))
    assert proposal.layouts == proposal.feasible_layouts + lost
    assert proposal.considered == proposal.layouts + sum(proposal.infeasible.values()) - lost


def test_the_same_seed_gives_the_same_front_and_progress_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = propose(jointopt.load_job(JOB), trials=100, seed=5)
    messages = list(caplog.messages)
    again = propose(jointopt.load_job(JOB), trials=100, seed=5)
    np.testing.assert_array_equal(first.front["energy_j"], again.front["energy_j"])
    assert len(messages) == len(first.seconds)


def test_trials_are_spent_only_where_they_are_requested_and_every_method_reports_what_it_added(
    proposal: Proposal,
) -> None:
    counted = propose(proposal.job)
    assert list(counted.searched) == ["exact", "local"]
    assert list(proposal.searched) == ["exact", "local", "nsga2"]
    for found in (counted, proposal):
        gains = found.searched.values()
        assert sum(gain["added"] for gain in gains) == len(found.front["energy_j"])
        assert sum(gain["hypervolume"] for gain in gains) == pytest.approx(1.0)
        assert sum(gain["evaluated"] for gain in gains) == found.evaluated_plans
        assert "Plans of the front by method" in found.text()


def test_no_feasible_plan_of_one_clock_dominates_the_front(proposal: Proposal) -> None:
    problem = problem_of(proposal.job)
    rng = np.random.default_rng(0)
    layout, clock = rng.integers(0, problem.num_layouts, 2000), rng.integers(0, problem.num_clocks, 2000)
    tried = problem.evaluate_genes(layout, clock, np.zeros(2000))
    faster = tried["iteration_time_s"][:, None] < proposal.front["iteration_time_s"] * (1 - 1e-9)
    thriftier = tried["energy_j"][:, None] < proposal.front["energy_j"] * (1 - 1e-9)
    assert not (faster & thriftier & (tried["violation"] <= 0)[:, None]).any()


def test_a_plan_that_does_not_fit_is_explained_as_such() -> None:
    job = jointopt.load_job("llama-3-8b-1x8-h100")
    explained = explain(job, "dp=8 micro_batch_size=8 zero_stage=0")
    assert not explained.feasible
    assert explained.to_dict()["missing_gib"] == pytest.approx(explained.peak_memory_gib - memory_limit_gib(job))
    assert "GiB too many. It would fit with micro_batch_size=" in explained.refusal()
    assert explained.violations == explained.exceeded == ()  # it could be started
    assert sum(explained.memory_gib.values()) == pytest.approx(explained.peak_memory_gib)


@pytest.mark.parametrize("plan", ["dp=3", "dp=8 pp=1 micro_batch_size=1000", "dp=1 tp=1 pp=8 clock_mhz=-5"])
def test_a_plan_that_cannot_be_priced_is_refused(plan: str) -> None:
    with pytest.raises(PlanError):
        explain(jointopt.load_job(JOB), plan)


def test_prediction_and_explanation_of_one_plan_agree() -> None:
    job = jointopt.load_job(JOB)
    explained = explain(job, "dp=2 tp=2 pp=2 micro_batch_size=2 zero_stage=1 sequence_parallel=true clock_mhz=1200")
    m, t = job.model, job.training
    row = {
        "num_layers": m.num_layers, "hidden_size": m.hidden_size, "ffn_hidden_size": m.ffn_hidden_size,
        "num_attention_heads": m.num_attention_heads, "num_query_groups": m.num_query_groups, "gated_mlp": m.gated_mlp,
        "vocab_size": m.vocab_size, "seq_length": t.seq_length, "global_batch_size": t.global_batch_size,
        "dtype": t.dtype, "attention": t.attention, "fused_norm": t.fused_norm, "framework": t.framework.name,
        "gpu": job.cluster.gpu.id, "gpus_per_node": 4, "num_gpus": 8, "dp": 2, "tp": 2, "pp": 2, "vpp": 1,
        "micro_batch_size": 2, "zero_stage": 1, "sequence_parallel": True, "recompute": "none", "clock_mhz": 1200,
    }  # fmt: skip
    found = jointopt.predict(pd.DataFrame([row]), surrogate="none")
    # the job's position table and its network's own figures are not columns of a table
    assert found.predicted_iteration_time_s[0] == pytest.approx(explained.iteration_time_s, rel=0.05)
    assert found.predicted_energy_j[0] == pytest.approx(explained.energy_j, rel=0.05)


def test_predict_keeps_index_order_and_foreign_columns() -> None:
    row = {"num_layers": 24, "hidden_size": 1024, "seq_length": 2048, "global_batch_size": 64, "num_gpus": 8}
    runs = pd.DataFrame([row | {"gpu": g, "mine": g} for g in ("h200", "a40", "h200")], index=[5, 5, 9])
    found = jointopt.predict(runs, surrogate="none")
    assert found.index.tolist() == [5, 5, 9]
    assert found.mine.tolist() == ["h200", "a40", "h200"]
    times = found.predicted_iteration_time_s.tolist()
    assert times[0] == times[2] < times[1]
    assert list(jointopt.predict(found, surrogate="none").columns) == list(found.columns)


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded measurements are not beside the repository")
@each("path", sorted(DATA.glob("layouts_*.csv")))
def test_every_recorded_run_is_predicted_or_has_a_reason(path: pathlib.Path) -> None:
    runs = pd.read_csv(path, nrows=150)
    found = jointopt.predict(runs, surrogate="none")
    known = found.not_predicted == ""
    assert known[runs.status == "ok"].all()
    assert np.isfinite(found.predicted_energy_j[known]).all()
    assert found.predicted_energy_j[~known].isna().all()


def test_a_storage_that_cannot_be_written_is_refused_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "jointopt.workflows.search_steps.exact_front_of_profiles", lambda problem: pytest.fail("the search was started")
    )
    with pytest.raises(UsageError, match="study storage"):
        propose(jointopt.load_job(JOB), storage="sqlite:////no/such/folder/x.db")


def test_a_study_has_the_name_given_and_its_best_trials_span_the_front(url: str) -> None:
    found = propose(jointopt.load_job(JOB), trials=100, storage=url, study="mine")
    best = optuna.load_study(study_name="mine", storage=url).best_trials
    shown, front = sorted(trial.values[0] for trial in best), found.front["iteration_time_s"].tolist()
    assert set(shown) <= set(front)
    assert (shown[0], shown[-1]) == (front[0], front[-1])
    assert len(shown) == min(len(front), MAX_TRIALS * FRONT_SHARE)


@pytest.mark.parametrize("more", [(), ("peak_power_w",)])
def test_the_best_trials_of_a_study_are_the_front(url: str, more: tuple[str, ...]) -> None:
    job = jointopt.load_job(JOB)
    job = dataclasses.replace(job, objectives=(*job.objectives, *more))
    found = propose(job, storage=url, study="mine")
    best = sorted(trial.values for trial in optuna.load_study(study_name="mine", storage=url).best_trials)
    np.testing.assert_array_equal(best, sorted(np.column_stack([found.front[goal] for goal in job.goals]).tolist()))


def test_a_study_that_is_stored_under_another_name_than_the_one_given_says_so(url, caplog) -> None:
    job = jointopt.load_job(JOB)
    names = [propose(job, storage=url, study="mine", trials=0).study_name for _ in range(2)]
    assert (names, [line for line in caplog.messages if "mine" in line]) == (["mine", "mine"], [])
    assert propose(job.on_site(1.7), storage=url, study="mine", trials=0).study_name == "mine-2"
    assert caplog.messages[-1] == "The name 'mine' belongs to another study; this one is stored as 'mine-2'."


def test_a_storage_in_memory_stores_no_study() -> None:
    found = propose(jointopt.load_job(JOB), trials=0, storage="sqlite:///")
    assert (found.study_name, found.storage) == (None, None)


def test_a_long_search_logs_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("jointopt.workflows.search_steps.SECONDS_BETWEEN_TICKS", 0.0)
    propose(jointopt.load_job(JOB), trials=80)
    ticks = [line for line in caplog.messages if line.startswith(("40 of 80 plans, ", "80 of 80 plans, "))]
    assert ticks == caplog.messages[-2:]


def test_plans_of_cores_are_proposed_and_explained_by_time_with_no_word_of_energy() -> None:
    job = job_from_options("gpt2", "cpu-core", 4, 16, 128)
    found = propose(job, trials=10, storage="sqlite://")
    (best,) = found.front["iteration_time_s"]
    problem = problem_of(job)
    layouts, top = np.arange(problem.num_layouts), np.zeros(problem.num_layouts, np.int64)
    times = problem.evaluate_genes(layouts, top, np.zeros(len(layouts)))["iteration_time_s"]
    assert best == pytest.approx(times.min())
    explained = explain(job, "dp=2 pp=2 mbs=1").text()
    for text in (found.text(), explained, json_text(found.to_dict())):
        assert "nan" not in text.lower()
    assert "Energy" not in explained


def test_energy_of_cores_is_refused_wherever_a_job_comes_from() -> None:
    job = job_from_options("gpt2", "cpu-core", 4, 16, 128)
    with pytest.raises(CatalogError, match="predict power and energy"):
        propose(dataclasses.replace(job, objectives=("iteration_time_s", "energy_j")), trials=10)


@pytest.mark.parametrize(
    ("name", "nodes", "some"), [("mixtral-8x22b-8x8-h100", 4, True), ("llama-3-8b-1x8-h100", 1, False)]
)
def test_a_layout_that_may_not_fit_is_searched_where_it_is_faster_by_more_than_a_failed_start_costs(
    name: str, nodes: int, some: bool
) -> None:
    job = with_changes(jointopt.load_job(name), {"cluster.nodes": nodes})
    found = prepare_search(JobModel.of(job), Stopwatch(quiet=True))
    time_s = top_times(found.problem, found.physics)(np.arange(found.problem.num_layouts))
    tight = found.fitting < 0.8
    assert (time_s * cost_of_failing(found.fitting))[tight].max(initial=0.0) < time_s[~tight].min()
    assert tight.any() == some
    assert found.fitting.min() >= 0.5


def test_a_stated_bound_on_memory_is_kept_by_every_plan() -> None:
    job = jointopt.load_job(JOB)
    bound = dataclasses.replace(job.constraints, memory_fraction=0.3)
    found = propose(dataclasses.replace(job, constraints=bound), trials=0)
    assert (found.front["peak_memory_gib"] <= 0.3 * job.cluster.gpu.memory_gib).all()
