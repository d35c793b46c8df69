"""Schedules of rungs over a signal: equal to a linear programme, and to every path tried, however they are tied."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from jointopt.core.schema import Floats
from jointopt.search.dispatch import PAUSED, Dispatch, Rungs, Steps


def rungs_of(rng: np.random.Generator, count: int, pause: bool = False, layouts: int = 1) -> Rungs:
    power_kw = np.sort(rng.uniform(10.0, 40.0, count))[::-1]
    rate = np.sort(rng.uniform(100.0, 900.0, count))[::-1]
    layout = np.append(0, rng.integers(0, layouts, count - 1))
    if pause:
        power_kw, rate, layout = np.append(power_kw, 5.0), np.append(rate, 0.0), np.append(layout, PAUSED)
    return Rungs(rate, power_kw, 1.1 * power_kw, layout, *rng.uniform(0.0, 500.0, 2))


def steps_of(rng: np.random.Generator, count: int, *, limited: bool) -> Steps:
    limit_kw = rng.uniform(8.0, 50.0, count) if limited else np.full(count, np.inf)
    return Steps(np.cumsum(np.append(0.0, rng.uniform(100.0, 900.0, count))), limit_kw, rng.uniform(0.05, 0.5, count))


def least_by_lp(rungs: Rungs, steps: Steps, tokens: float) -> float:
    """The least cost where every step may be shared by all rungs within its limit."""
    hours, count = steps.seconds / 3600.0, len(rungs.layout)
    cost = np.outer(hours * steps.cost_per_kwh, rungs.power_kw).reshape(-1)
    made = np.outer(steps.seconds, rungs.tokens_per_s).reshape(-1)
    one = np.kron(np.eye(len(hours)), np.ones(count))
    most = (rungs.power_kw_high <= steps.limit_kw[:, None]).reshape(-1)
    found = linprog(cost, -made[None], [-tokens], one, np.ones(len(hours)), bounds=[(0, float(m)) for m in most])
    return float(found.fun)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_the_schedule_that_makes_so_many_tokens_costs_as_little_as_a_linear_programme_finds(
    seed: int, limited: bool
) -> None:
    rng = np.random.default_rng(seed)
    rungs, steps = rungs_of(rng, int(rng.integers(2, 9))), steps_of(rng, int(rng.integers(2, 12)), limited=False)
    if limited:  # but so that a rung keeps each limit
        limits = rng.uniform(rungs.power_kw_high.min(), 45.0, len(steps.limit_kw))
        steps = Steps(steps.bounds_s, limits, steps.cost_per_kwh)
    dispatch = Dispatch(rungs, steps)
    most, least = (dispatch.best(*args) for args in ((1.0, 0.0), (0.0, 1.0)))
    assert most is not None
    assert least is not None
    tokens = float(rng.uniform(least.totals[1], most.totals[1]))
    found = dispatch.least_cost(tokens)
    assert found is not None
    assert found.totals[1] >= tokens * (1 - 1e-9)
    assert found.totals[0] == pytest.approx(least_by_lp(rungs, steps, tokens), rel=1e-6)
    assert found.gap < 1e-6


def best_of_all(dispatch: Dispatch, worth: float) -> float:
    """The greatest value of any path that keeps all that is asked, each looked at by itself."""
    rungs, steps, values = dispatch.rungs, dispatch.steps, [-np.inf]
    for path in itertools.product(range(len(rungs.layout)), repeat=len(steps.limit_kw)):
        if is_kept(dispatch, path):
            found = dispatch.schedule(np.array(path))
            values.append(worth * found.totals[1] - found.totals[0])
    return max(values)


def is_kept(dispatch: Dispatch, path: tuple[int, ...]) -> bool:
    rungs, bounds_s = dispatch.rungs, dispatch.steps.bounds_s
    if (rungs.power_kw_high[list(path)] > dispatch.steps.limit_kw).any():
        return False
    layouts = [0, *(int(rungs.layout[rung]) for rung in path)]  # it begins with layout 0
    changes = [at for at in range(len(path)) if layouts[at + 1] != layouts[at] or (at and path[at] != path[at - 1])]
    for at, end in zip(changes, [*changes, len(path)][1:], strict=True):
        before, after = layouts[at : at + 2]
        least_s = rungs.lost_s(before, after) if after != PAUSED else rungs.checkpoint_s
        least_s = max(dispatch.dwell_s, least_s if before != after else 0.0)
        minutes = min(np.diff(bounds_s)[at - 1 : at + 1]) / 60.0 if at else np.inf
        power_kw = abs(rungs.power_kw[path[at]] - rungs.power_kw[path[at - 1]])
        lasts = end == len(path) or bounds_s[end] - bounds_s[at] >= least_s
        if power_kw > dispatch.ramp_kw_per_min * minutes or not lasts:
            return False
    return True


TIES = [{}, {"dwell_s": 900.0}, {"ramp_kw_per_min": 1.5}, {"dwell_s": 600.0, "ramp_kw_per_min": 3.0}]


@pytest.mark.parametrize("ties", TIES, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_no_path_under_limits_ramp_dwell_time_pauses_and_restarts_is_better(seed: int, ties: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    rungs, steps = rungs_of(rng, 3, pause=True, layouts=1 + seed % 2), steps_of(rng, 6, limited=True)
    dispatch, worth = Dispatch(rungs, steps, **ties), 2e-5
    found, best = dispatch.best(worth), best_of_all(dispatch, worth)
    if found is None:
        assert best == -np.inf
        return
    assert dispatch.keeps(found)
    assert is_kept(dispatch, tuple(found.rung.tolist()))
    value = worth * found.totals[1] - found.totals[0]
    assert value == pytest.approx(best, rel=1e-9)


def test_a_pause_costs_its_restart_and_lasts_as_long_as_its_checkpoint() -> None:
    rungs = Rungs(np.array([100.0, 0.0]), np.array([10.0, 1.0]), np.array([10.0, 1.0]), np.array([0, PAUSED]), 700, 250)
    limit_kw = np.array([20.0, 5.0, 20.0, 20.0, 20.0])
    steps = Steps(300.0 * np.arange(6), limit_kw, np.zeros(5))
    found = Dispatch(rungs, steps).best(1.0, 0.0)
    assert found is not None
    assert found.rung.tolist() in ([0, 1, 1, 1, 0], [1, 1, 1, 0, 0])  # 700 s are three steps
    assert sorted(found.tokens.tolist()) == [0.0, 0.0, 0.0, 5_000.0, 30_000.0]


def test_where_no_rung_keeps_a_limit_there_is_no_schedule() -> None:
    rng = np.random.default_rng(0)
    rungs, steps = rungs_of(rng, 4, pause=True), steps_of(rng, 5, limited=True)
    short = Steps(steps.bounds_s, np.where(np.arange(5) == 2, 1.0, steps.limit_kw), steps.cost_per_kwh)
    assert Dispatch(rungs, short).best(1.0) is None
    assert Dispatch(rungs, steps).least_cost(1e12) is None


@pytest.mark.parametrize("seed", range(6))
def test_with_dwell_time_the_cost_is_within_the_gap_that_the_schedule_states(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rungs, steps = rungs_of(rng, 3), steps_of(rng, 6, limited=False)
    dispatch = Dispatch(rungs, steps, dwell_s=900.0)
    tokens = 0.7 * float(dispatch.best(1.0, 0.0).totals[1])  # type: ignore[union-attr]
    found = dispatch.least_cost(tokens)
    assert found is not None
    assert dispatch.keeps(found)
    assert found.totals[1] >= tokens
    kept = (p for p in itertools.product(range(3), repeat=6) if is_kept(dispatch, p))
    every = [dispatch.schedule(np.array(path)).totals for path in kept]
    assert found.totals[0] * (1.0 - found.gap) <= min(cost for cost, made in every if made >= tokens) * (1 + 1e-9)


def test_a_hull_keeps_what_is_best_at_some_worth() -> None:
    rungs = rungs_of(np.random.default_rng(3), 30)
    hull = rungs.on_hull()
    worths: Floats = np.geomspace(1e-4, 1.0, 400)
    best = {int((worth * rungs.tokens_per_s - rungs.power_kw).argmax()) for worth in worths}
    assert best <= set(hull.tolist())
    assert len(hull) < 30
