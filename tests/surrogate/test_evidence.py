"""Evidence of measured runs: parts joined, sources renamed, runs drawn."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.surrogate.evidence import Evidence
from jointopt.surrogate.residual_gp import FEATURES, Runs


def evidence(count: int, source: str = "lab", static_w: float = 0.0, first: float = 0.0) -> Evidence:
    """That of runs whose residuals are ``first`` and the numbers after it."""
    features = {name: np.zeros(count) for name in FEATURES}
    runs = Runs(np.zeros((count, 3)), features, np.full(count, source), np.full(count, "model"))
    residual = first + np.arange(count)
    return Evidence(runs, residual, (), np.ones(count, bool), residual, residual, static_w, counts={source: count})


def test_parts_join_in_order_with_the_largest_static_power() -> None:
    found = Evidence.joined([evidence(2, static_w=90.0), Evidence(), evidence(3, "hub", 70.0, first=5.0)])
    assert found.runs is not None
    assert found.runs.source.tolist() == ["lab"] * 2 + ["hub"] * 3
    for column in (found.residual, found.log_power_ratio, found.static_share):
        assert column.tolist() == [0.0, 1.0, 5.0, 6.0, 7.0]
    assert (found.static_w, found.timed.sum(), found.counts) == (90.0, 5, {"lab": 2, "hub": 3})
    assert (Evidence.joined([]).known, Evidence.joined([]).static_w) == (None, 0.0)


def test_runs_of_one_source_are_renamed_and_others_stay() -> None:
    both = Evidence.joined([evidence(2), evidence(1, "hub")]).of_source("lab", "own")
    assert both.runs is not None
    assert both.runs.source.tolist() == ["own", "own", "hub"]
    assert Evidence().of_source("lab", "own").runs is None


def test_runs_of_kin_count_for_time_alone() -> None:
    found = evidence(2, static_w=50.0).beside([evidence(3, "kin", 99.0, first=7.0)])
    assert found.residual.tolist() == [0.0, 1.0, 7.0, 8.0, 9.0]
    assert (found.log_power_ratio.tolist(), found.static_w, found.counts) == ([0.0, 1.0], 50.0, {"lab": 2})


@pytest.mark.parametrize("most", [1, 4, 9, 10, 11])
def test_at_most_so_many_runs_are_drawn_each_once_and_in_their_order(most: int) -> None:
    found = evidence(10).some(most)
    assert found.runs is not None
    assert len(found.runs) == len(found.residual) == found.timed.sum() == min(most, 10)
    assert (np.diff(found.residual) > 0).all()
