"""Shares of power between jobs: equal to every way tried, within all limits, and at once for jobs that are alike."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from jointopt.search.power_budget import PowerBudget


def budget_of(seed: int, jobs: int, options: int, limits: int) -> PowerBudget:
    rng = np.random.default_rng(seed)
    power_kw, value = (np.sort(rng.uniform(low, 1.0, (jobs, options)), axis=1) for low in (0.3, 0.0))
    power_kw, value = power_kw * rng.uniform(5.0, 50.0, (jobs, 1)), value * rng.uniform(0.5, 2.0, (jobs, 1))
    power_kw[:, 0], value[:, 0] = 0.2 * power_kw[:, -1], 0.0
    inside = np.column_stack([np.ones(jobs), rng.choice([0.0, 0.5, 1.0], (jobs, limits - 1))])
    each = power_kw.reshape(-1)[:, None] * np.repeat(inside, options, axis=0)
    least, most = (each.reshape(jobs, options, limits)[:, row].sum(axis=0) for row in (0, -1))
    limit_kw = np.maximum(least + rng.uniform(0.0, 0.9, limits) * (most - least), 1e-3)
    return PowerBudget(np.repeat(np.arange(jobs), options), value.reshape(-1), each, limit_kw)


@pytest.mark.parametrize("seed", range(100))
def test_the_best_shares_are_those_of_all_ways_tried(seed: int) -> None:
    budget = budget_of(seed, jobs=4, options=4, limits=1 + seed % 3)
    rows, gap = budget.best()
    ways = [np.array(way) for way in itertools.product(*np.split(np.arange(16), 4))]
    best = max(float(budget.value[way].sum()) for way in ways if budget.keeps(way))
    assert budget.keeps(rows)
    assert float(budget.value[rows].sum()) == pytest.approx(best, rel=1e-6)
    assert gap < 1e-6


@pytest.mark.parametrize("limits", [1, 6])
def test_a_hundred_jobs_are_shared_within_all_limits_and_no_worse_than_by_greedy_steps(limits: int) -> None:
    budget = budget_of(7, jobs=100, options=40, limits=limits)
    rows, gap = budget.best()
    assert budget.keeps(rows)
    assert sorted(budget.job[rows]) == list(range(100))
    assert budget.value[rows].sum() >= budget.value[budget.greedy(budget.first)].sum()
    assert gap < (1e-6 if limits == 1 else 0.05)


def test_jobs_that_are_alike_are_counted_together() -> None:
    one = budget_of(3, jobs=1, options=40, limits=1)
    jobs = np.repeat(np.arange(100), 40)
    alike = PowerBudget(jobs, np.tile(one.value, 100), np.tile(one.power_kw, (100, 1)), 100 * one.limit_kw)
    rows, gap = alike.best()
    assert alike.keeps(rows)
    assert gap < 1e-6
    assert alike.value[rows].sum() >= alike.value[alike.equal_share()].sum()


@pytest.mark.parametrize("seed", range(20))
def test_equal_shares_and_greedy_steps_keep_every_limit(seed: int) -> None:
    budget = budget_of(seed, jobs=6, options=5, limits=3)
    assert budget.keeps(budget.greedy(budget.first))
    for job, row in enumerate(budget.equal_share()):
        assert budget.job[row] == job
        most_kw = np.maximum.reduceat(budget.power_kw[:, 0], budget.first)
        share_kw = budget.limit_kw[0] * most_kw[job] / most_kw.sum()
        assert budget.power_kw[row, 0] <= share_kw * (1 + 1e-9) or row == budget.first[job]


def test_the_solver_prints_nothing_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        budget_of(seed, jobs=60, options=40, limits=4).best()
    os.write(1, b"ours\n")
    assert capfd.readouterr().out == "ours\n"
