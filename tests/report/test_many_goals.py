"""A front of many objectives in few lines, and the sentence on those that do not distinguish plans."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.report.proposal import redundant_objective_words, rows_spread_in_goals

TIME, ENERGY = "iteration_time_s", "energy_j"
# as logarithms time rises 0, 1, 2, 4, 10 and energy falls 10, 4, 2, 1, 0 hundredths; memory is the same everywhere
FRONT = {
    TIME: np.exp([0.0, 1.0, 2.0, 4.0, 10.0]),
    ENERGY: np.exp([0.1, 0.04, 0.02, 0.01, 0.0]),
    "peak_memory_gib": np.full(5, 40.0),
}


@pytest.mark.parametrize(
    ("goals", "count", "rows"),
    [
        ((TIME, ENERGY), 3, [0, 2, 4]),
        ((TIME, ENERGY, "peak_memory_gib"), 3, [0, 2, 4]),
        ((TIME,), 2, [0, 4]),
        ((TIME,), 3, [0, 3, 4]),
        ((ENERGY,), 1, [4]),
        ((TIME, ENERGY), 9, [0, 1, 2, 3, 4]),
    ],
)
def test_the_best_in_each_goal_comes_first_then_what_is_farthest_from_them_over_the_extent(
    goals: tuple[str, ...], count: int, rows: list[int]
) -> None:
    assert rows_spread_in_goals(FRONT, goals, count).tolist() == rows


@pytest.mark.parametrize(
    ("objectives", "beginning"),
    [
        ((TIME, ENERGY), ""),
        ((TIME, ENERGY, "cost"), "cost rises with time and energy: "),
        ((TIME, "gpu_cost", "peak_memory_gib"), "gpu cost rises with time: "),
        (("carbon_kg", "cost", "facility_energy_j"), "cost and site energy rise with carbon: "),
    ],
)
def test_objectives_that_follow_are_named_with_what_they_follow(objectives: tuple[str, ...], beginning: str) -> None:
    assert redundant_objective_words(objectives).startswith(beginning)
    assert bool(redundant_objective_words(objectives)) == bool(beginning)
