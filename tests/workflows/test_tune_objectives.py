"""``tune`` by three objectives and more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.search.pareto import non_dominated
from jointopt.workflows.campaign.candidates import leading_fronts, listed_candidates, searched_candidates
from jointopt.workflows.campaign.stopping import hypervolumes
from jointopt.workflows.explain import explain
from jointopt.workflows.tune import tune

SMALL = {
    "model": "llama-3-8b",
    "training": {"seq_length": 4096, "global_batch_size": 32},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8},
    "objectives": ["iteration_time_s", "energy_j", "peak_memory_gib"],
}
RESULTS = ("iteration_time_s", "energy_j", "peak_memory_gib", "peak_power_w")


@pytest.fixture
def job() -> Job:
    return parse_job(SMALL, "small", Path())


class Physics:
    """A launcher whose runs take what the physics predicts, a tenth more."""

    name = "physics"

    def __init__(self, *results: str) -> None:
        self.results = results

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        own = {k: plan[k] for k in ("dp", "tp", "pp", "micro_batch_size", "zero_stage", "recompute", "stage_clock_mhz")}
        found = explain(job, own, surrogate="none")
        return {"status": "ok"} | {name: 1.1 * getattr(found, name) for name in self.results}


def test_a_tune_of_three_objectives_keeps_the_leanest_run_in_memory_on_its_front(job: Job) -> None:
    found = tune(job, Physics(*RESULTS[:3]), 8, surrogate="none")
    assert found.objectives == RESULTS[:3]
    memory = [run.result("peak_memory_gib") for run in found.runs]
    by_two = tune(replace(job, objectives=RESULTS[:2]), Physics(*RESULTS[:3]), 8, surrogate="none")
    assert int(np.argmin(memory)) in found.front
    assert min(memory) < min(run.result("peak_memory_gib") for run in by_two.runs)
    assert found.hypervolume[-1] > found.hypervolume[0] > 0.0
    assert "memory" in found.text()


def test_an_objective_that_no_run_measures_is_left_out_with_a_note(job: Job, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/t.db"
    found = tune(job, Physics(*RESULTS[:2]), 3, surrogate="none", storage=storage)
    assert found.objectives == RESULTS[:2]
    assert any("peak_memory_gib is left out, since no run measures it" in note for note in found.notes)
    study = optuna.load_study(study_name=found.study_name, storage=storage)
    assert len(study.directions) == 2


def test_an_objective_that_later_runs_measure_is_no_longer_noted_as_left_out(job: Job, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/t.db"
    first = tune(job, Physics(*RESULTS[:2]), 2, surrogate="none", storage=storage)
    found = tune(job, Physics(*RESULTS[:3]), 3, surrogate="none", storage=storage)
    assert [len(first.runs), len(found.runs)] == [2, 5]
    assert any("is left out" in note for note in first.notes)
    assert not any("is left out" in note for note in found.notes)
    assert found.objectives == RESULTS[:3]
    assert set(found.front) <= {2, 3, 4}


def test_the_study_of_a_tune_has_as_many_values_as_objectives(job: Job, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/t.db"
    found = tune(job, Physics(*RESULTS[:3]), 2, surrogate="none", storage=storage)
    study = optuna.load_study(study_name=found.study_name, storage=storage)
    assert study.trials[0].values == [found.runs[0].result(name) for name in RESULTS[:3]]


def test_peak_power_is_foreseen_of_plans_searched_and_of_plans_listed(job: Job) -> None:
    wanted = replace(job, objectives=(*RESULTS[:2], "peak_power_w"))
    candidates = searched_candidates(wanted)
    rows = candidates.rows.iloc[:3].to_dict("list")
    again = listed_candidates(rows, wanted)
    np.testing.assert_allclose(again.predicted["peak_power_w"], candidates.predicted["peak_power_w"][:3], rtol=0.01)
    assert (candidates.predicted["peak_power_w"] >= candidates.predicted["avg_power_w"] * 0.999).all()


def test_candidates_of_three_objectives_hold_the_leanest_plan_of_all(job: Job) -> None:
    two, three = (searched_candidates(replace(job, objectives=RESULTS[:n])) for n in (2, 3))
    least = [float(np.exp(found.log_load.min())) for found in (two, three)]
    assert least[1] <= least[0]


def test_volumes_of_three_objectives_never_fall_and_count_what_each_run_adds() -> None:
    values = np.array([[1.0, 1.0, 0.5], [np.nan] * 3, [1.0, 1.0, 1.0], [0.5, 1.0, 1.0]])
    assert non_dominated(values).tolist() == [3, 0]
    found = hypervolumes(values)
    assert found[0] == found[1] == found[2] < found[3]
    assert found[0] == pytest.approx((0.1 / 1.1) ** 2 * (0.6 / 1.1), rel=0.15)


def test_a_front_that_is_too_large_for_the_candidates_is_thinned_and_keeps_both_of_its_ends() -> None:
    time_s = np.linspace(1.0, 2.0, 50)
    front = np.column_stack([time_s, 1 / time_s, 1 + (time_s - 1.5) ** 2])
    values = np.concatenate([front, front * 3])  # what is beaten comes after
    kept = leading_fronts(values, 10)
    assert len(set(kept.tolist())) == len(kept) == 10
    assert kept.max() < 50
    assert {0, 49} <= set(kept.tolist())
    assert np.diff(np.sort(time_s[kept])).max() < 0.25
    assert set(range(50)) < set(leading_fronts(values, 60).tolist())
