"""One factor on power, as far as power was measured."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.surrogate.power_scale import RUN_SD, power_scale


def test_nothing_measured_moves_nothing() -> None:
    assert power_scale(np.array([np.nan])).factor == 1.0
    assert power_scale(np.empty(0)).half_width is None


def test_more_runs_are_trusted_more_and_leave_less_doubt() -> None:
    few, many = (power_scale(np.full(n, np.log(0.8))) for n in (1, 20))
    assert 1.0 > few.factor > many.factor > 0.8
    assert few.log_sd > many.log_sd > RUN_SD


def test_one_broken_meter_among_many_moves_little() -> None:
    ratios = np.log([0.9, 0.91, 0.89, 0.9, 50.0])
    assert power_scale(ratios).factor == pytest.approx(0.9, abs=0.01)
