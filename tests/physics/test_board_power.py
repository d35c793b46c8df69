"""What a power limit leaves to GPUs that were measured to draw otherwise than the physics predicts, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.physics.cooling import Cooler
from jointopt.physics.cost_model import LEAST_ROOM, BoardPower, hottest_idle_w

ROW, IDLE_W = np.zeros(1, np.int64), 60.0


def drawn(factor: float = 1.25, offset_w: float = 0.0, mean_w=(1.0, 2.0), burst_w=(400.0, 700.0)) -> BoardPower:
    """One layout, measured under 700 W; by default its mean is below any limit."""
    columns = (np.array([values], float).T for values in ((factor, offset_w), mean_w, burst_w))
    return BoardPower(700.0, *columns)


def left_w(of: BoardPower, *limits_w: float) -> list[float]:
    return [of.limit_in_physics_w(np.full((1, 1), watts), ROW, IDLE_W).item() for watts in limits_w]


def test_kernels_that_draw_a_quarter_more_are_left_four_fifths_of_a_limit() -> None:
    assert left_w(drawn(), 500.0, 600.0) == pytest.approx([400.0, 480.0])
    assert left_w(drawn(1.25, 50.0), 500.0) == pytest.approx([360.0])


def test_the_limit_that_was_measured_under_is_left_whole_and_one_above_no_less() -> None:
    assert left_w(drawn(), 700.0, 800.0, 1000.0) == pytest.approx([700.0, 700.0, 800.0])
    assert left_w(drawn(0.8), 600.0, 500.0, 800.0) == pytest.approx([700.0, 625.0, 800.0])


def test_mean_power_meets_the_limit_where_it_is_what_exceeds_it() -> None:
    of = drawn(1.0, mean_w=(200.0, 400.0, 500.0), burst_w=(160.0, 320.0, 440.0))
    # halfway between two clocks, below the lowest in proportion, and not at all above the highest
    assert left_w(of, 300.0, 450.0, 100.0, 550.0) == pytest.approx([240.0, 380.0, 80.0, 550.0])


def test_every_limit_leaves_something_beside_idling() -> None:
    assert left_w(drawn(20.0), 300.0) == pytest.approx([IDLE_W + LEAST_ROOM * (700.0 - IDLE_W)])
    assert left_w(drawn(20.0), 61.0) == pytest.approx([61.0])


@given(factor=st.floats(0.5, 2.0), offset_w=st.floats(-40.0, 80.0), seed=st.integers(0, 999), below=st.floats(0.3, 1.0))
def test_a_higher_limit_never_leaves_less(factor: float, offset_w: float, seed: int, below: float) -> None:
    mean_w, burst_w = np.sort(np.random.default_rng(seed).uniform(80.0, 700.0, (2, 5)), axis=1)
    found = left_w(drawn(factor, offset_w, mean_w * below, burst_w), *np.linspace(100.0, 900.0, 81))
    assert (np.diff(found) >= -1e-9).all()


def test_cells_read_back_as_the_same_numbers() -> None:
    of = drawn(1.1, 3.0, (100.0, 200.0), (150.0, 250.0))
    again = BoardPower.of_cells(700.0, of.cells)
    assert of.cells[:, 0].tolist() == [1.1, 3.0, 100.0, 200.0, 150.0, 250.0]
    np.testing.assert_array_equal(again.cells, of.cells)


@pytest.mark.parametrize(("inlet_c", "idle_w"), [(60.0, 100.0 / 0.9), (20.0, 100.0)])
def test_a_gpu_in_hot_air_idles_at_its_static_power_and_leakage_and_in_cool_air_at_no_less(inlet_c, idle_w) -> None:
    # 0.1 K/W and 1 W/K: of each watt beyond air of 60 °C, where the power constants hold, a tenth comes on top
    power = replace(load_gpu("h100-sxm5-80gb").power, static_w=100.0)
    assert hottest_idle_w(power, Cooler(inlet_c, 0.1, 1.0, 900.0)) == pytest.approx(idle_w)
