"""The choice of rungs against a machine that draws more or less than predicted."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.measure.power_control import PowerControl

POWER_KW = np.array([10.0, 9.0, 8.0, 7.0, 6.0, 5.0])


def played(truth: float | np.ndarray, limits: dict[float, float], seconds: float = 60.0) -> list[tuple]:
    """(time, rung, drawn kW) of every half second, with limits that begin at those times."""
    control, out = PowerControl(POWER_KW, 1.1 * POWER_KW), []
    for now_s in np.arange(0.0, seconds, 0.5).tolist():
        limit = [limit for since, limit in limits.items() if since <= now_s][-1]
        rung = control.choose(limit, (truth * POWER_KW)[control.rung], now_s)
        out.append((now_s, rung, float((truth * POWER_KW)[rung])))
    return out


@pytest.mark.parametrize("truth", [0.8, 1.0, 1.08])
def test_a_limit_is_kept_from_its_first_moment_and_then_as_fast_as_what_is_drawn_allows(truth: float) -> None:
    steps = played(truth, {0.0: np.inf, 20.0: 7.2})
    assert steps[39][1] == 0
    assert all(drawn <= 7.2 for now_s, _, drawn in steps if now_s >= 20.0)
    assert steps[-1][2] > 7.2 - 1.0 * truth - 0.05 * 7.2


def test_more_that_is_drawn_than_the_high_prediction_is_corrected_within_five_seconds() -> None:
    steps = played(1.4, {0.0: 7.2})
    assert all(drawn <= 7.2 for now_s, _, drawn in steps if now_s >= 5.0)


def test_power_that_is_steeper_than_predicted_never_passes_the_limit_and_comes_near_to_it() -> None:
    steps = played((1.7 * POWER_KW - 5.6) / POWER_KW, {0.0: 7.2}, 120.0)
    assert max(drawn for _, _, drawn in steps) <= 7.2
    assert steps[-1][2] > 7.2 - 1.7


def test_a_rung_is_kept_where_power_swings_about_the_limit() -> None:
    control, rungs = PowerControl(POWER_KW, POWER_KW), []
    for i, now_s in enumerate(np.arange(0.0, 120.0, 0.5).tolist()):
        rungs.append(control.choose(8.05, float(POWER_KW[control.rung]) * (1.0 + 0.01 * (-1) ** (i // 8)), now_s))
    assert np.count_nonzero(np.diff(rungs)) <= 2


def test_a_limit_below_all_rungs_takes_the_lowest_and_one_that_ends_the_first() -> None:
    steps = played(1.0, {0.0: 1.0, 10.0: np.inf})
    assert {rung for now_s, rung, _ in steps if now_s < 10.0} == {5}
    assert {rung for now_s, rung, _ in steps if now_s >= 10.0} == {0}


def test_without_a_meter_predictions_at_their_high_end_count() -> None:
    control = PowerControl(POWER_KW, 1.1 * POWER_KW)
    assert control.choose(7.8, np.nan, 0.0) == 3
    assert control.choose(7.8, np.nan, 100.0) == 3
