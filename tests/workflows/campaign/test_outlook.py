"""What a job bounds, and how surely a plan keeps it."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from jointopt.spec.cluster import Cluster
from jointopt.spec.job import Job
from jointopt.spec.jobfile import shipped_job
from jointopt.workflows.campaign.outlook import _probability_below, bounds, broken_bounds, held_to, lower_bound, result

OK: dict[str, Any] = {"status": "ok", "iteration_time_s": 2.0, "energy_j": 6400.0, "num_gpus": 8}


def job_with(cluster: dict[str, Any] | None = None, **limits: float) -> Job:
    job = shipped_job("llama-3-8b-1x8-h100")
    changed: Cluster = replace(job.cluster, **(cluster or {}))
    return replace(job, constraints=replace(job.constraints, **limits), cluster=changed)


def test_power_of_the_site_bounds_what_its_gpus_draw() -> None:
    site = {"nodes": 2, "pue": 1.25, "host_power_w": 1000.0, "host_load_share": 0.2}
    # 12.5 kW over 1.25 leave 10 kW, of which two hosts take 2 and what follows the GPUs a fifth of theirs
    assert bounds(job_with(site, cluster_power_kw=12.5)) == {"avg_power_w": pytest.approx(8000.0 / 1.2 / 16)}
    assert bounds(job_with(site, cluster_power_kw=12.5, avg_power_w=300.0)) == {"avg_power_w": 300.0}
    assert bounds(job_with(iteration_time_s=3.0, energy_j=1e4)) == {"iteration_time_s": 3.0, "energy_j": 1e4}


def test_power_follows_from_energy_and_time_where_it_was_not_measured() -> None:
    assert result(OK, "avg_power_w") == 400.0
    assert result(OK | {"avg_power_w": 390.0}, "avg_power_w") == 390.0
    assert math.isnan(result(OK | {"status": "oom"}, "energy_j"))
    assert math.isnan(result({"status": "ok"}, "avg_power_w"))


def test_a_run_breaks_the_bounds_that_its_results_exceed() -> None:
    job = job_with({"pue": 1.5, "host_power_w": 100.0, "host_load_share": 0.1}, iteration_time_s=2.0, energy_j=6000.0,
                   facility_energy_j=10_859.0, memory_fraction=0.5)  # fmt: skip
    held = held_to(job, OK | {"peak_memory_gib": 45.0})
    assert held["facility_energy_j"] == (pytest.approx(1.5 * (1.1 * 6400.0 + 2.0 * 100.0)), 10_859.0)
    assert held["memory_fraction"] == (pytest.approx(45.0 / job.cluster.gpu.memory_gib), 0.5)
    broken = broken_bounds(job, OK | {"peak_memory_gib": 45.0})
    assert broken == ("energy_j", "facility_energy_j", "memory_fraction")
    assert broken_bounds(job, {"status": "ok"}) == ()


def test_a_bound_is_kept_with_the_normal_probability_of_the_logarithm() -> None:
    found = _probability_below(np.log([2.0, 4.0, np.nan]), np.array([0.5, 0.2, 0.1]), 3.0)
    expected = [NormalDist(math.log(mean), sd).cdf(math.log(3.0)) for mean, sd in ((2.0, 0.5), (4.0, 0.2))]
    assert found == pytest.approx([*expected, 1.0])
    assert _probability_below(np.zeros(2), np.ones(2), 0.0).tolist() == [0.0, 0.0]


def test_a_run_that_was_ended_early_bounds_its_time_alone() -> None:
    early = {"status": "timeout", "iteration_time_s": 5.0, "energy_j": 100.0}
    assert lower_bound(early) == 5.0
    assert math.isnan(lower_bound(early, "energy_j"))
    assert math.isnan(lower_bound(OK))
