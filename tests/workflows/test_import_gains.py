"""What a proposal changes beside today's plan."""

from __future__ import annotations

import math

import pytest

from jointopt.core.units import Z_90
from jointopt.report.imported import Gain
from jointopt.workflows.import_gains import gain_of

PLAN = {"iteration_time_s": 0.9, "iteration_time_s_low": 0.6, "iteration_time_s_high": 1.5}


def gain(value: float, low: float, high: float, **plan: float) -> Gain:
    return gain_of(PLAN | plan, {"iteration_time_s": (value, low, high)}, "iteration_time_s")


def test_beside_a_measured_plan_the_gain_is_as_unsure_as_the_proposal() -> None:
    found, half = gain(1.2, 1.2, 1.2), math.sqrt(1.5 / 0.6)
    assert (found.expected, found.low, found.high) == pytest.approx((-0.25, 0.75 / half - 1, 0.75 * half - 1))
    assert found.text() == f"-25.0 % ({100 * (0.75 / half - 1):+.1f} to {100 * (0.75 * half - 1):+.1f})"


def test_of_two_predictions_half_of_each_width_is_common() -> None:
    found = gain(1.2, 0.8, 2.0)
    half = math.exp(0.5 * math.hypot(0.5 * math.log(1.5 / 0.6), 0.5 * math.log(2.0 / 0.8)))
    assert (1 + found.low, 1 + found.high) == pytest.approx((0.75 / half, 0.75 * half))
    assert pytest.approx(1.645, abs=1e-3) == Z_90


@pytest.mark.parametrize("plan", [{"iteration_time_s": math.nan}, {"iteration_time_s_low": 0.0}])
def test_a_gain_that_is_not_known_is_a_hyphen(plan: dict[str, float]) -> None:
    assert gain(1.2, 1.2, 1.2, **plan).text() == "-"
    assert gain(math.nan, math.nan, math.nan).text() == "-"
