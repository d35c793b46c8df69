"""Slow ranks by hand-made times: who is compared with whom, and what is no slow rank."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.physics.stragglers import FIRST, log_excess, slow_episodes, slow_units

STAGE = np.array([0, 0, 0, 0, 1, 1, 1, 1])


def times(iterations: int = 100, noise: float = 0.004, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, noise, (iterations, 8))) * np.where(STAGE, 0.8, 1.0)


def slow(time_s: np.ndarray) -> list[tuple[int, int, int]]:
    found = slow_episodes(log_excess(time_s, STAGE), STAGE)
    return [(one.rank, one.since, one.until) for one in found]


def test_each_rank_is_compared_with_the_others_of_its_stage_of_which_half_may_be_slow() -> None:
    time_s = np.tile(np.where(STAGE, 0.5, 1.0), (40, 1))
    time_s[:, [1, 2]] *= 1.1
    excess = log_excess(time_s, STAGE)
    assert np.allclose(excess[:, [1, 2]], np.log(1.1))
    assert (excess[:, [0, 3]] <= 0).all()
    assert not excess[:, 4:].any()


def test_a_stage_that_slows_down_as_a_whole_is_seen_against_its_own_first_iterations() -> None:
    time_s = times()
    time_s[60:, 4:] *= 1.05
    assert {rank for rank, since, _ in slow(time_s) if abs(since - 60) <= 2} == {4, 5, 6, 7}


@pytest.mark.parametrize("change", [1.0, 1.3], ids=["nothing", "all ranks together"])
def test_runs_without_a_slow_rank_raise_no_alarm(change: float) -> None:
    time_s = times(1000, seed=3)
    time_s[500:] *= change
    assert slow(time_s) == []


def test_single_long_iterations_are_no_slow_rank_and_one_of_two_percent_is_within_20() -> None:
    time_s = times()
    time_s[[30, 45, 52], 2] *= 2.0
    assert slow(time_s) == []
    time_s[70:, 6] *= 1.02
    found = slow_episodes(log_excess(time_s, STAGE), STAGE)
    assert [one.rank for one in found] == [6]
    assert found[0].noticed <= 70 + 20
    assert found[0].excess == pytest.approx(0.02, abs=0.005)


def test_a_rank_that_recovers_was_slow_until_then() -> None:
    time_s = times()
    time_s[30:60, 1] *= 1.1
    ((rank, since, until),) = slow(time_s)
    assert rank == 1
    assert abs(since - 30) <= 1
    assert 60 <= until <= 60 + FIRST


def test_ranks_of_a_unit_are_one_only_where_all_of_them_slow_down_together() -> None:
    time_s = times()
    time_s[40:, [0, 1, 5]] *= 1.1
    episodes = slow_episodes(log_excess(time_s, STAGE), STAGE)
    units = slow_units(episodes, np.arange(8) // 2)
    assert sorted(sorted(one.rank for one in unit) for unit in units) == [[0, 1], [5]]
