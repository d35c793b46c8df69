"""``tune`` under NVIDIA's workload power profiles, on equal terms with clocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import TableError, UsageError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job, shipped_job
from jointopt.runs.store import Store
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict
from jointopt.workflows.tune import tune

JOB = {
    "model": "llama-3-8b",
    "training": {"seq_length": 4096, "global_batch_size": 32},
    "cluster": {"gpu": "b200-sxm-180gb", "nodes": 1, "gpus_per_node": 8},
}
LAYOUT = ("dp", "tp", "pp", "micro_batch_size", "zero_stage", "recompute")


class Profiled:
    """A launcher whose runs take what the physics predicts, times the factors on time and energy of their profile."""

    name = "profiled"

    def __init__(self, **factors: tuple[float, float]) -> None:
        self.factors = {"": (1.0, 1.0)} | {name.replace("_", "-"): both for name, both in factors.items()}
        self.profiles: list[str] = []

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        found = explain(job, {k: plan[k] for k in (*LAYOUT, "stage_clock_mhz")}, surrogate="none")
        self.profiles.append(plan.get("power_profile", ""))
        slower, dearer = self.factors[self.profiles[-1]]
        times = {"iteration_time_s": slower * found.iteration_time_s, "energy_j": dearer * found.energy_j}
        return dict(plan) | {"status": "ok"} | times


@pytest.fixture
def job() -> Job:
    return parse_job(JOB, "small", Path())


def test_a_profile_that_saves_energy_is_run_on_every_layout_of_the_front_and_one_that_does_not_once(job: Job) -> None:
    launcher = Profiled(max_q=(1.01, 0.6), max_p=(1.2, 1.3))
    found = tune(job, launcher, 12, surrogate="none", power_profiles=["max-p", "max-q"])
    assert launcher.profiles.count("max-p") == 1
    of_front = [found.runs[place].plan.get("power_profile") for place in found.front]
    assert of_front.count("max-q") == launcher.profiles.count("max-q") > 0
    assert "max-q" in found.text()


def test_a_run_is_kept_for_each_profile_however_small_the_budget(job: Job) -> None:
    launcher = Profiled(max_q=(1.0, 0.9), llm_training=(1.0, 0.95))
    found = tune(job, launcher, 4, surrogate="none", power_profiles=["max-q", "llm-training"])
    assert launcher.profiles[:2] == ["", ""]
    assert {*launcher.profiles[2:]} <= {"max-q", "llm-training"}
    assert len(found.runs) == 4


def test_runs_under_profiles_are_stored_not_run_again_and_teach_nothing_of_other_plans(
    job: Job, tmp_path: Path
) -> None:
    storage, launcher = f"sqlite:///{tmp_path}/t.db", Profiled(max_q=(1.0, 0.9))
    first = tune(job, launcher, 4, surrogate="none", storage=storage, power_profiles=["max-q"])
    stored = Store(storage).read()
    assert (stored["power_profile"] == "max-q").sum() == launcher.profiles.count("max-q") > 0
    before = len(launcher.profiles)
    again = tune(job, launcher, 1, surrogate="none", storage=storage, power_profiles=["max-q"])
    assert launcher.profiles[before:].count("max-q") <= 1
    assert len(again.runs) == len(first.runs) + len(launcher.profiles) - before
    with pytest.raises(TableError, match="power_profile, whose effect is measured and never predicted"):
        predict(stored[stored["power_profile"].notna()])


@pytest.mark.parametrize(
    ("gpu", "launcher", "words"),
    [
        ("mi300x", Profiled(), "Power profiles are of NVIDIA's GPUs; the job has mi300x"),
        ("h100-sxm5-80gb", "replay", "measured by a launcher that runs programs"),
    ],
)
def test_profiles_that_cannot_be_measured_are_refused(
    gpu: str, launcher: Any, words: str, tmp_path: Path, synthetic_runs: Any
) -> None:
    table = tmp_path / "runs.csv"
    synthetic_runs(rows=3).to_csv(table, index=False)
    own = parse_job(JOB | {"cluster": JOB["cluster"] | {"gpu": gpu}}, "small", Path())
    options = {"table": table} if launcher == "replay" else {}
    with pytest.raises(UsageError, match=words):
        tune(own if not options else shipped_job("opt-350m-2x4-a100"), launcher, 3, power_profiles=["max-q"], **options)
