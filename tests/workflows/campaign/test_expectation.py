"""What a job bounds, and how surely a plan keeps it."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.measure.replay import ReplayLauncher
from jointopt.surrogate.plan_process import USUAL
from jointopt.surrogate.posterior import Joint
from jointopt.workflows.campaign.candidates import listed_candidates
from jointopt.workflows.campaign.expectation import (
    EarlierRuns,
    Outlook,
    _Estimate,
    broken_constraints,
    kept_probabilities,
    lower_bound,
    measured_result,
    values_and_bounds,
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
    assert values_and_bounds(job, OK | {"avg_power_w": 8000.0 / 1.2 / 16}) == {
        "cluster_power_kw": (pytest.approx(12.5), 12.5)
    }
    assert broken_constraints(job, OK | {"avg_power_w": 420.0}) == ("cluster_power_kw",)


def test_power_follows_from_energy_and_time_where_it_was_not_measured() -> None:
    assert measured_result(OK, "avg_power_w") == 400.0
    assert measured_result(OK | {"avg_power_w": 390.0}, "avg_power_w") == 390.0
    assert math.isnan(measured_result(OK | {"status": "oom"}, "energy_j"))
    assert math.isnan(measured_result({"status": "ok"}, "avg_power_w"))


def test_a_run_breaks_the_bounds_that_its_results_exceed() -> None:
    job = job_with({"pue": 1.5, "host_power_w": 100.0, "host_load_share": 0.1}, iteration_time_s=2.0, energy_j=6000.0,
                   facility_energy_j=10_859.0, memory_fraction=0.5)  # fmt: skip
    held = values_and_bounds(job, OK | {"peak_memory_gib": 45.0})
    assert held["facility_energy_j"] == (pytest.approx(1.5 * (1.1 * 6400.0 + 2.0 * 100.0)), 10_859.0)
    assert held["memory_fraction"] == (pytest.approx(45.0 / job.cluster.gpu.memory_gib), 0.5)
    broken = broken_constraints(job, OK | {"peak_memory_gib": 45.0})
    assert broken == ("energy_j", "facility_energy_j", "memory_fraction")
    assert broken_constraints(job, {"status": "ok"}) == ()


def test_a_bound_is_kept_with_the_normal_probability_of_the_logarithm() -> None:
    times = Joint(np.log([2.0, 4.0, np.nan]), np.array([[0.5], [0.2], [0.1]]), 0.0)
    (found,) = kept_probabilities(job_with(iteration_time_s=3.0), {"iteration_time_s": times})
    expected = [NormalDist(math.log(mean), sd).cdf(math.log(3.0)) for mean, sd in ((2.0, 0.5), (4.0, 0.2))]
    assert found == pytest.approx([*expected, 1.0])


@pytest.mark.parametrize(("limit", "bound"), [("facility_energy_j", 7000.0), ("cluster_power_kw", 3.5)])
def test_a_bound_of_the_site_without_hosts_is_kept_as_surely_as_that_of_its_gpus(limit: str, bound: float) -> None:
    job = job_with({"pue": 1.0, "host_power_w": 0.0, "host_load_share": 0.0}, **{limit: bound})
    means = {"iteration_time_s": 2.0, "energy_j": 6400.0, "avg_power_w": 400.0}
    found = {name: Joint(np.log([mean]), np.zeros((1, 1)), 0.1) for name, mean in means.items()}
    kept = [float(values[0]) for values in kept_probabilities(job, found)]
    gpus = bound / 6400.0 if limit == "facility_energy_j" else 1e3 * bound / (400.0 * 8)
    assert kept == [pytest.approx(NormalDist().cdf(math.log(gpus) / 0.1))]


def test_a_run_that_was_ended_early_bounds_its_time_and_its_energy_where_that_was_metered() -> None:
    early = {"status": "timeout", "iteration_time_s": 5.0, "energy_j": 100.0}
    assert lower_bound(early) == 5.0
    assert lower_bound(early, "energy_j") == 100.0
    assert math.isnan(lower_bound(early | {"energy_j": None}, "energy_j"))
    assert math.isnan(lower_bound(OK))


def made(mean: float, loadings: list[float], noise: float, off: float, deviation: float) -> _Estimate:
    """Of two candidates, after six runs that were each missed by so much."""
    known = Joint(np.full(2, mean), np.tile(loadings, (2, 1)), noise)
    return _Estimate(known, f"off by {off}", np.full(6, off), np.full(6, deviation))


def at_eight_gpus() -> Outlook:
    """Of two candidates, which take 2 and 3 s of 8 GPUs at 400 and 500 W."""
    predicted = {"iteration_time_s": np.array([2.0, 3.0]), "avg_power_w": np.array([400.0, 500.0])}
    outlook = object.__new__(Outlook)
    outlook._candidates = SimpleNamespace(predicted=predicted | {"energy_j": np.array([6400.0, 12000.0])})  # type: ignore[assignment]
    return outlook


def test_energy_is_time_by_power_by_gpus_and_errs_by_what_both_err() -> None:
    time, power = made(0.7, [0.03, 0.04], 0.12, 0.02, 0.1), made(6.1, [0.06], 0.05, -0.02, 0.1)
    found = at_eight_gpus()._of_parts(made(9.9, [0.1], 0.1, 0.3, 0.1), time, power)
    assert found.estimates.mean == pytest.approx([0.7 + 6.1 + math.log(8)] * 2)
    assert found.estimates.deviation == pytest.approx(np.sqrt([0.03**2 + 0.04**2 + 0.12**2 + 0.06**2 + 0.05**2] * 2))
    assert found.estimates.loadings == pytest.approx(np.array([[0.03, 0.04, 0.06]] * 2))
    assert found.estimates.noise == pytest.approx(0.13)
    assert found.off == pytest.approx(np.zeros(6))


@pytest.mark.parametrize(("off", "as_one"), [(0.01, True), (0.15, True), (0.17, False)])
def test_energy_stays_one_number_where_that_is_likelier_of_runs_left_out(off: float, as_one: bool) -> None:
    # errors of 0.1 each in time and power are 0.2 in energy; as wide as it takes two parts to be
    direct, part = made(9.9, [0.1], 0.1, off, 0.1), made(1.0, [0.1], 0.1, 0.08, 0.1 / math.sqrt(2))
    assert (at_eight_gpus()._of_parts(direct, part, part) is direct) == as_one


def test_energy_stays_one_number_where_power_of_fewer_than_six_runs_is_known() -> None:
    direct, part = made(9.9, [0.1], 0.1, 3.0, 0.1), made(1.0, [0.1], 0.1, 0.0, 0.1)
    blank = replace(part, off=np.where(np.arange(6) < 1, np.nan, 0.0))
    assert at_eight_gpus()._of_parts(direct, part, blank) is direct
    assert at_eight_gpus()._of_parts(direct, part, part) is not direct


def test_power_measured_in_a_tune_teaches_the_energy_of_plans_still_to_be_run(make_runs, job: Job) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(job), job)
    slope, ran, errors = np.log2(candidates.plans["tp"].astype(float)), np.arange(7), []
    energy_j = candidates.predicted["energy_j"] * np.exp(0.25 * slope)
    time_s = candidates.predicted["iteration_time_s"] * np.exp(0.15 * slope)
    for power in (1.0, math.nan):  # without it energy is one number
        rows = [
            {"status": "ok", "iteration_time_s": time_s[i], "energy_j": energy_j[i], "num_gpus": 8 * power} for i in ran
        ]
        outlook = Outlook(job, candidates, EarlierRuns(), USUAL, np.random.default_rng(0))
        found = outlook.after(("iteration_time_s", "energy_j"), ran, rows).columns["energy_j"]
        errors.append(np.abs(np.log(found / energy_j))[7:].mean())
    assert errors[0] < 0.8 * errors[1]


def test_by_one_goal_gains_are_looked_for_in_what_plans_err_by_together_and_by_two_in_all(make_runs, job: Job) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(job), job)
    time_s, energy_j = (candidates.predicted[name][0] for name in ("iteration_time_s", "energy_j"))
    rows = [{"status": "ok", "iteration_time_s": time_s, "energy_j": energy_j, "num_gpus": 8}]
    shares = []
    for goals in (("iteration_time_s",), ("iteration_time_s", "energy_j")):
        outlook = Outlook(job, candidates, EarlierRuns(), USUAL, np.random.default_rng(0))
        found = outlook.after(goals, np.zeros(1, np.int64), rows)
        high, middle = (found.columns[f"iteration_time_s{end}"][0] for end in ("_high", ""))
        shares.append(found.spread["iteration_time_s"][0] / (np.log(high / middle) / 1.645))
    assert shares[0] < 0.7
    assert shares[1] == pytest.approx(1.0, rel=1e-3)


def test_an_interval_of_90_per_cent_is_as_wide_below_as_above_and_a_tighter_memory_makes_a_plan_fit_less(
    make_runs, job: Job
) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(job), job)
    load = np.zeros(candidates.size) - 0.1
    fits = []
    for room in (0.0, -0.2):
        one = replace(candidates, log_load=load, log_room=np.full(candidates.size, room))
        outlook = Outlook(job, one, EarlierRuns(), USUAL, np.random.default_rng(0))
        found = outlook.after(("iteration_time_s",), np.empty(0, np.int64), []).columns
        middle, low, high = (found[f"iteration_time_s{end}"] for end in ("", "_low", "_high"))
        np.testing.assert_allclose(low * high, middle**2)
        fits.append(found["probability_fits"])
    assert (fits[1] < fits[0]).all()
