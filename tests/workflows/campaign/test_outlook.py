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
from jointopt.surrogate.within_job import Adapted
from jointopt.workflows.campaign.outlook import (
    _probability_below,
    broken_constraints,
    held_to,
    kept_probabilities,
    lower_bound,
    result,
)

OK: dict[str, Any] = {"status": "ok", "iteration_time_s": 2.0, "energy_j": 6400.0, "num_gpus": 8}


def job_with(cluster: dict[str, Any] | None = None, **limits: float) -> Job:
    job = shipped_job("llama-3-8b-1x8-h100")
    changed: Cluster = replace(job.cluster, **(cluster or {}))
    return replace(job, constraints=replace(job.constraints, **limits), cluster=changed)


def test_power_of_the_site_is_that_of_gpus_and_hosts_times_pue() -> None:
    site = {"nodes": 2, "pue": 1.25, "host_power_w": 1000.0, "host_load_share": 0.2}
    job = job_with(site, cluster_power_kw=12.5)
    # 12.5 kW over 1.25 leave 10 kW, of which two hosts take 2 and what follows the GPUs a fifth of theirs
    assert held_to(job, OK | {"avg_power_w": 8000.0 / 1.2 / 16}) == {"cluster_power_kw": (pytest.approx(12.5), 12.5)}
    assert broken_constraints(job, OK | {"avg_power_w": 420.0}) == ("cluster_power_kw",)


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
    broken = broken_constraints(job, OK | {"peak_memory_gib": 45.0})
    assert broken == ("energy_j", "facility_energy_j", "memory_fraction")
    assert broken_constraints(job, {"status": "ok"}) == ()


def test_a_bound_is_kept_with_the_normal_probability_of_the_logarithm() -> None:
    found = _probability_below(np.log([2.0, 4.0, np.nan]), np.array([0.5, 0.2, 0.1]), 3.0)
    expected = [NormalDist(math.log(mean), sd).cdf(math.log(3.0)) for mean, sd in ((2.0, 0.5), (4.0, 0.2))]
    assert found == pytest.approx([*expected, 1.0])


@pytest.mark.parametrize(("limit", "bound"), [("facility_energy_j", 7000.0), ("cluster_power_kw", 3.5)])
def test_a_bound_of_the_site_without_hosts_is_kept_as_surely_as_that_of_its_gpus(limit: str, bound: float) -> None:
    job = job_with({"pue": 1.0, "host_power_w": 0.0, "host_load_share": 0.0}, **{limit: bound})
    means = {"iteration_time_s": 2.0, "energy_j": 6400.0, "avg_power_w": 400.0}
    found = {name: Adapted(np.log([mean]), np.array([0.1]), np.zeros((1, 1)), 0.1) for name, mean in means.items()}
    kept = [float(values[0]) for values in kept_probabilities(job, found)]
    gpus = bound / 6400.0 if limit == "facility_energy_j" else 1e3 * bound / (400.0 * 8)
    assert kept == [pytest.approx(NormalDist().cdf(math.log(gpus) / 0.1))]


def test_a_run_that_was_ended_early_bounds_its_time_and_its_energy_where_that_was_metered() -> None:
    early = {"status": "timeout", "iteration_time_s": 5.0, "energy_j": 100.0}
    assert lower_bound(early) == 5.0
    assert lower_bound(early, "energy_j") == 100.0
    assert math.isnan(lower_bound(early | {"energy_j": None}, "energy_j"))
    assert math.isnan(lower_bound(OK))
