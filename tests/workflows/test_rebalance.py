"""Clocks of ranks that wait for a slow one, against all others there are."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from jointopt.core.errors import UsageError
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.rebalance import least_energy, rebalance
from jointopt.workflows.watch import watch
from tests.rank_logs import Run

JOB = load_job("llama-3-70b-4x8-h200", {"search.clock_mhz": {"min": 1200, "max": 1980, "step": 60}})
PLAN = "dp=4 tp=4 pp=2 mbs=1 clock=1980"


@pytest.fixture(scope="module")
def model() -> JobModel:
    return JobModel(JOB)


@pytest.mark.parametrize("limit", [1.02, 1.1, 1.2])
def test_the_clocks_save_what_the_best_of_all_save(model: JobModel, limit: float) -> None:
    parsed, grid = parse_plan("dp=2 tp=4 pp=4 mbs=1 clock=1980", JOB), np.sort(np.array(JOB.search.clock_mhz))
    physics = model.cost_model(parsed.layouts)

    def evaluate(clocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = physics.evaluate(np.zeros(len(clocks), int), clocks)
        return found["iteration_time_s"], found["energy_j"]

    limit_s = limit * evaluate(parsed.stage_clock_mhz)[0][0]
    every = np.array(list(itertools.product(grid, repeat=4)))
    seconds, joules = evaluate(every)
    found = least_energy(evaluate, parsed.stage_clock_mhz[0], grid, limit_s, np.ones(4, bool), 0.0)
    (found_s,), (found_j,) = evaluate(found[None])
    own_j = evaluate(parsed.stage_clock_mhz)[1][0]
    assert found_s <= limit_s
    assert own_j - found_j >= 0.95 * (own_j - joules[seconds <= limit_s].min())


def test_nobody_is_slower_and_energy_falls_the_more_the_longer_others_wait(model: JobModel) -> None:
    found = [rebalance(model, PLAN, 1, 2, longer) for longer in (0.02, 0.1, 0.2)]
    for one in found:
        assert one.iteration_time_s <= 1.002 * one.iteration_time_before_s
        assert one.slow_replica_mhz[1] == 1980.0
    assert 0.0 < found[0].saved < found[1].saved < found[2].saved
    assert rebalance(model, "dp=1 tp=4 pp=8 mbs=1 clock=1980", 3, 0, 0.1).others_mhz == ()


def test_watch_names_clocks_of_the_slow_replica_and_of_the_others(tmp_path: Path) -> None:
    run = Run(3, "heat", dp=8, pp=4, slower=0.15)
    run.frame().to_csv(tmp_path / "ranks.csv", index=False)
    plan = "dp=8 tp=1 pp=4 mbs=1 zero=1 clock=1980"
    found = watch(tmp_path / "ranks.csv", plan, job=JOB, rebalance=True)
    assert (found.rebalanced.stage, found.rebalanced.replica) == (run.victim // 8, run.victim % 8)
    assert "less energy" in found.text()
    assert max(map(len, found.text().splitlines())) <= 80
    with pytest.raises(UsageError, match="--job, --plan"):
        watch(tmp_path / "ranks.csv", plan, rebalance=True)
