"""Stage profiles that are made by the law itself, with known constants."""

import numpy as np
import pytest

from jointopt.core.schema import Floats
from jointopt.physics.calibrate.law_fit import ResponsePrior, StageRows, fit_stages
from jointopt.physics.clock_law import CurveConstants, GpuConstants, log_power_w, log_time_s

SHAPE = GpuConstants(knee=0.72, rise=0.2, softness=0.02, floor=0.2, idle_w=50.0)
WORK = CurveConstants(np.array(-3.0), np.array(0.7), np.array(65.0), np.array(300.0), np.array(1.0))


def profile(x: Floats, known: Floats, limit_w: float = 450.0) -> StageRows:
    limit = np.full_like(x, limit_w)
    time, power = (np.exp(law(SHAPE, WORK, x, limit)) for law in (log_time_s, log_power_w))
    seen = np.isin(x, known)
    one = np.zeros(len(x), np.int64)
    blank = np.full(len(x), np.nan)
    return StageRows(one, np.zeros(1, np.int64), x, blank, np.where(seen, time, np.nan), np.where(seen, power, np.nan))


def test_three_clocks_predict_the_others() -> None:
    x = np.array([0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0])
    predicted = fit_stages(profile(x, np.array([0.5, 0.75, 1.0])), ResponsePrior())
    truth = profile(x, x)
    assert predicted.time.value == pytest.approx(truth.time_s, rel=0.01)
    assert predicted.power.value == pytest.approx(truth.power_w, rel=0.03)


def test_every_interval_holds_its_value_and_energy_is_time_times_power() -> None:
    predicted = fit_stages(profile(np.array([0.5, 0.7, 1.0]), np.array([0.7, 1.0])), ResponsePrior())
    for part in (predicted.time, predicted.power, predicted.energy):
        assert (part.low < part.value).all()
        assert (part.value < part.high).all()
    assert predicted.energy.value == pytest.approx(predicted.time.value * predicted.power.value)


def test_clocks_below_all_readings_have_wider_intervals_than_those_between() -> None:
    x = np.array([0.5, 0.85, 0.9, 1.0])
    predicted = fit_stages(profile(x, np.array([0.9, 1.0])), ResponsePrior())
    width = predicted.energy.high / predicted.energy.low
    assert width[0] > width[1]


def test_rows_queried_later_are_predicted_as_if_queried_at_once() -> None:
    x, known = np.array([0.5, 0.7, 0.9, 1.0]), np.array([0.5, 0.7, 1.0])
    first = fit_stages(profile(known, known), ResponsePrior())
    later = fit_stages(profile(np.array([0.5, 0.7, 1.0, 0.9]), known), ResponsePrior(), first.found)
    at_once = fit_stages(profile(x, known), ResponsePrior())
    assert later.energy.value[3] == pytest.approx(at_once.energy.value[2], rel=1e-3)
