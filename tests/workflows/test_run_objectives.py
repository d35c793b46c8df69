"""Plans chosen for the whole run: its time, energy and money with failures, interval, policy and spares."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import InfeasibleError, JobError
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.report.proposal import Proposal
from jointopt.search.exact import exact_front_of_profiles
from jointopt.search.local_search import two_step_front
from jointopt.search.pareto import front_of, is_beaten, stacked
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.feasible_layouts import PreparedSearch, prepare_search, top_times
from jointopt.workflows.goodput import goodput
from jointopt.workflows.propose import propose
from jointopt.workflows.scale import scale
from jointopt.workflows.search_steps import Stopwatch

RUN = ("time_to_train_s", "useful_energy_j")
OFTEN = {"failures_per_gpu_hour": 3e-3, "storage_gbytes_per_s": 0.1}
FOUR = {"spares": 0, "repair_s": 20_000, "policy": ["restart", "drop_replica", "nonuniform_tp"]}
SEVERAL = {"spares": [0, 1], "policy": ["restart", "drop_replica"]}
SMALL = {"clock_mhz": [600, 900, 1200, 1410], "micro_batch_size": [1, 2, 4], "zero_stage": [0, 1]}


def job(objectives: tuple[str, ...] = RUN, name: str = "opt-350m-2x4-a100", **reliability: Any) -> Any:
    changes: dict[str, Any] = {"training.run_tokens": 1e10, "objectives": list(objectives)}
    changes |= {f"reliability.{key}": value for key, value in (OFTEN | reliability).items()}
    prices = {"cluster.price_per_gpu_hour": 2.0, "cluster.price_per_kwh": 0.1}
    return load_job(name, changes | prices | {f"search.{key}": value for key, value in SMALL.items()})


@functools.cache
def prepared(objectives: tuple[str, ...], **reliability: Any) -> PreparedSearch:
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in reliability.items()}
    return prepare_search(JobModel.of(job(objectives, **lists), "none"), Stopwatch(quiet=True))


def of(section: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}


@pytest.mark.parametrize("reliability", [{}, FOUR, SEVERAL], ids=["restart", "policies", "spares"])
@pytest.mark.parametrize("objectives", [RUN, ("time_to_train_s", "money")], ids=["energy", "money"])
def test_the_exact_front_of_runs_is_that_of_every_plan(objectives: Any, reliability: dict[str, Any]) -> None:
    problem = prepared(objectives, **of(reliability)).searched
    found = exact_front_of_profiles(problem)
    shares = np.linspace(0.0, 1.0, 11)
    axes = np.meshgrid(np.arange(problem.num_layouts), np.arange(problem.num_clocks), shares, indexing="ij")
    every = front_of(problem.evaluate_genes(*(axis.reshape(-1) for axis in axes)), problem.pair)
    assert stacked(found.front, objectives) == pytest.approx(stacked(every, objectives), rel=1e-9)
    assert found.evaluated < 0.5 * axes[0].size


@settings(max_examples=15, deadline=None)
@given(
    rate=st.floats(-4.0, -1.3), storage=st.floats(-2.0, 1.0), restart_s=st.floats(0.0, 900.0),
    spares=st.sampled_from([None, 0, 1]), policy=st.sampled_from(["restart", "drop_replica", "nonuniform_tp"]),
)  # fmt: skip
def test_no_plan_is_worse_than_the_fastest_layout_then_its_interval_and_policy(
    rate: float, storage: float, restart_s: float, spares: int | None, policy: str
) -> None:
    figures = {"failures_per_gpu_hour": 10**rate, "storage_gbytes_per_s": 10**storage, "restart_s": restart_s}
    found = prepared(RUN, **figures, spares=spares, policy=("restart", policy))
    layout = int(top_times(found.problem, found.physics)(np.arange(found.problem.num_layouts)).argmin())
    two_step = two_step_front(found.searched, layout, 0)
    front = exact_front_of_profiles(found.searched).front
    assert is_beaten(stacked(front, RUN) * (1.0 - 1e-9), stacked(two_step, RUN)).all()


@functools.cache
def proposed() -> Proposal:
    return propose(job(**FOUR), surrogate="none")


def test_each_row_is_what_goodput_says_of_its_plan() -> None:
    front = proposed().front
    for row in {0, len(front["pp"]) - 1}:
        found = goodput(proposed().job, proposed()[row].plan, surrogate="none").to_dict()
        for name in ("time_to_train_s", "useful_energy_j", "money", "effective_time_ratio", "checkpoint_interval_s"):
            assert found[name] == pytest.approx(front[name][row], rel=1e-6)
        assert (found["policy"], found["spares"]) == (front["policy"][row], front["spares"][row])


def test_the_answer_names_interval_policy_and_what_the_joint_choice_buys() -> None:
    found = proposed().to_dict()
    assert {"time_to_train_s", "useful_energy_j", "policy", "spares", "checkpoint_interval_s"} <= found["front"][
        0
    ].keys()
    assert found["joint"]["objectives"] == list(RUN)
    assert found["joint"]["fastest_iteration_behind"] >= 0.0
    brief, whole = proposed().text(brief=True), proposed().text()
    assert "to train" in brief
    assert max(map(len, brief.splitlines()[:15])) <= 80
    assert "Joint search against the layout that is fastest in one iteration" in whole


def test_where_checkpoints_are_slow_a_layout_that_keeps_the_state_twice_is_the_one_to_run() -> None:
    often = {"failures_per_gpu_hour": 1e-3, "storage_gbytes_per_s": 0.05, "policy": "spare"}
    changes = {"training.run_tokens": 1e12, "objectives": ["time_to_train_s"], "search.clock_mhz": 1980}
    changes |= {f"reliability.{key}": value for key, value in often.items()} | {"cluster.nodes": 32}
    found = propose(load_job("llama-3-70b-4x8-h200", changes), surrogate="none")
    assert found.joint is not None
    assert found.joint.behind > 0.01
    assert (found.front["zero_stage"][0], found.joint.two_step["zero_stage"][0]) == (0, 1)
    assert "is not the one to run" in found.text(brief=True)


def test_a_stored_study_is_searched_by_the_run_and_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    found = propose(job(**FOUR), surrogate="none", storage=url, study="run")
    study = optuna.load_study(study_name="run", storage=url)
    best = min(trial.values[0] for trial in study.best_trials)
    assert best == pytest.approx(found.front["time_to_train_s"].min())
    notes = str(study._storage.get_study_system_attrs(study._study_id))  # which optuna-dashboard shows
    assert "no other one beats in time to train and useful energy" in notes


def test_one_objective_of_the_run_gives_its_best_plan() -> None:
    for objective in (*RUN, "money"):
        front = propose(job((objective,)), surrogate="none").front
        pair = prepared((objective,)).searched
        assert len(front["pp"]) == 1
        assert front[objective][0] <= exact_front_of_profiles(pair).front[objective].min() * (1.0 + 1e-9)


def test_spares_are_chosen_by_the_money_that_they_save() -> None:
    few, many = ({"spares": [0, 1, 2], "repair_s": repair_s} for repair_s in (100, 200_000))
    spares = [int(propose(job(("money",), **one), surrogate="none").front["spares"][0]) for one in (few, many)]
    assert spares[0] == 0 < spares[1]
    assert goodput(job(("money",), **many), "dp=8 mbs=4", surrogate="none").chosen.spares == spares[1]


def test_sizes_of_a_cluster_are_compared_by_their_calendar_time() -> None:
    one = job(spares=0)
    found, plain = (scale([the], surrogate="none").to_dict() for the in (one, job(OBJECTIVES, spares=0)))
    best, fastest = (document["sizes"][0]["plans"][0] for document in (found, plain))
    assert best["time_to_train_s"] > 1.01 * fastest["run_time_s"]
    picked = scale([one], deadline_days=best["time_to_train_s"] / 86_400 * 1.001, surrogate="none").pick
    assert picked is not None
    assert picked.plan["time_to_train_s"] <= best["time_to_train_s"] * 1.001


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.run_tokens": None}, "time_to_train_s needs training.run_tokens, the tokens of the whole run"),
        ({"objectives": ["time_to_train_s", "energy_j"]}, "of a whole run and energy_j of one iteration"),
        ({"objectives": ["money"]}, "money needs cluster.price_per_gpu_hour or price_per_kwh"),
        ({"reliability.spares": {"min": 2, "max": 1}}, "min not above max"),
        (
            {"objectives": ["useful_energy_j", "money"], "reliability.spares": [0, 1], "cluster.price_per_kwh": 1},
            "useful_energy_j and money rank several reliability.spares differently",
        ),
        ({"reliability.spares": [0, 9]}, "reliability.spares must be a whole number from 0 to 2"),
    ],
)
def test_objectives_of_a_run_that_cannot_be_are_refused_in_a_sentence(changes: dict[str, Any], words: str) -> None:
    usual = {"training.run_tokens": 1e10, "objectives": ["time_to_train_s"]}
    with pytest.raises(JobError) as refused:
        load_job("opt-350m-2x4-a100", usual | changes)
    assert words in str(refused.value)


def test_a_run_that_never_ends_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="The run does not end: it fails every"):
        propose(job(failures_per_gpu_hour=0.1, restart_s=86_400, detection_s=86_400), surrogate="none")
