from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.jobs.cluster import PowerConstants
from jointopt.physics import clock_law

A100 = PowerConstants(62.0, 84.0, 80.0, 1.336, 60.0, 0.774, 1.282)
TOP, BOTTOM = 1410.0, 210.0
CLOCKS = np.arange(210.0, 1411.0, 15.0)

seconds = st.floats(1e-4, 1.0)
loads = st.tuples(seconds, st.floats(0.0, 20.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))


def stage(sm_s, other_share, flop_rate, byte_rate):
    """Seconds, flops and bytes of work at given shares of an A100's peak."""
    other_s = sm_s * other_share
    return sm_s, other_s, flop_rate * 312e12 * (sm_s + other_s), byte_rate * 2.04e12 * (sm_s + other_s)


# The heavier Bloom 176B stage of Perseus (SOSP'24): 9 layers, TP 8, forward; measured 0.0512 s and 24.15 J.
BLOOM = (0.0465, 0.0047, 1.164e13, 1.78e10)


def busy(clock, load=BLOOM, constants=A100):
    sm_s, other_s, flops, hbm_bytes = load
    time_s = clock_law.scaled_time_s(sm_s, other_s, clock, TOP)
    return time_s, clock_law.busy_power_w(constants, clock, TOP, time_s, flops, hbm_bytes)


def test_voltage_is_flat_below_the_knee_and_one_at_the_top():
    v = clock_law.relative_voltage(np.array([210.0, 900.0, 0.774 * TOP, TOP]), TOP, 0.774, 1.282)
    assert v == pytest.approx([1 / 1.282, 1 / 1.282, 1 / 1.282, 1.0])


def test_voltage_rises_linearly_above_the_knee():
    v = clock_law.relative_voltage(TOP * np.array([0.8, 0.9, 1.0]), TOP, 0.774, 1.282)
    assert np.diff(v, 2) == pytest.approx([0.0], abs=1e-12)


def test_a_curve_without_a_knee_leaves_the_voltage_alone():
    assert clock_law.squared_voltage(CLOCKS, TOP, 1.0, 1.3) == pytest.approx(np.ones(CLOCKS.size))


def test_vectors_give_what_scalars_give():
    time_s, power_w = busy(CLOCKS)
    assert power_w == pytest.approx([float(busy(c)[1]) for c in CLOCKS])
    assert time_s == pytest.approx([float(busy(c)[0]) for c in CLOCKS])


def test_only_the_sm_bound_part_stretches():
    assert clock_law.scaled_time_s(2.0, 1.0, TOP / 2, TOP) == pytest.approx(5.0)
    assert clock_law.scaled_time_s(2.0, 1.0, TOP, TOP) == pytest.approx(3.0)


@given(loads)
def test_power_falls_and_time_rises_as_the_clock_falls(load):
    time_s, power_w = busy(CLOCKS, stage(*load))
    assert (np.diff(power_w) > 0).all()
    assert (np.diff(time_s) < 0).all()


def test_energy_against_clock_is_a_valley():
    time_s, power_w = busy(CLOCKS)
    slope = np.sign(np.diff(time_s * power_w))
    assert slope[0] == -1
    assert slope[-1] == 1
    assert np.count_nonzero(np.diff(slope)) == 1


def test_the_energy_minimum_of_an_a100_stage_is_where_perseus_measured_it():
    time_s, power_w = busy(CLOCKS)
    energy = time_s * power_w
    best = int(np.argmin(energy))
    assert CLOCKS[best] / TOP == pytest.approx(0.77, abs=0.015)
    assert 0.25 < 1 - energy[best] / energy[-1] < 0.37  # 0.26-0.32, measured against a top clock that is capped
    assert 1.2 < time_s[best] / time_s[-1] < 1.3


def test_an_a100_stage_at_top_clock_draws_about_what_was_measured():
    assert busy(TOP)[1] == pytest.approx(471.4, rel=0.05)
    assert busy(855.0)[1] == pytest.approx(221.2, rel=0.05)


def ceiling(load, limit_w, constants=A100):
    return clock_law.capped_clock_mhz(constants, *load, limit_w, TOP, BOTTOM)


@given(loads, st.floats(70.0, 500.0))
def test_capped_work_draws_the_limit_exactly(load, limit_w):
    work = stage(*load)
    clock = ceiling(work, limit_w)
    drawn = busy(clock, work)[1]
    if clock >= TOP:
        assert drawn <= limit_w * (1 + 1e-9)
    elif clock > BOTTOM:
        assert drawn == pytest.approx(limit_w, rel=1e-6)
    else:
        assert drawn >= limit_w * (1 - 1e-6)


def test_the_limit_that_does_not_bind_changes_nothing():
    assert ceiling(BLOOM, 1000.0) == pytest.approx(TOP)


def test_a_top_clock_written_without_decimals_leaves_clocks_under_a_limit_their_own():
    whole = clock_law.capped_clock_mhz(A100, *BLOOM, np.array([250.0, 250.1]), 1410, 210)
    assert whole.tolist() == ceiling(BLOOM, np.array([250.0, 250.1])).tolist()
    assert whole[0] < whole[1] < 1410


def test_a_lower_limit_never_allows_a_higher_clock():
    limits = np.linspace(30.0, 600.0, 200)
    assert (np.diff(ceiling(BLOOM, limits)) >= 0).all()
    assert ceiling(BLOOM, 30.0) == pytest.approx(BOTTOM)


def test_ceilings_of_a_matrix_of_stages_equal_those_one_by_one():
    sm_s = np.linspace(0.01, 0.1, 12).reshape(3, 4)
    flops = np.linspace(0.2, 0.9, 12).reshape(3, 4) * 312e12 * sm_s
    clock = ceiling((sm_s, 0.2 * sm_s, flops, 1e9), 280.0)
    alone = [float(ceiling((s, 0.2 * s, f, 1e9), 280.0)) for s, f in zip(sm_s.flat, flops.flat, strict=True)]
    assert clock.ravel() == pytest.approx(alone)
    assert len(set(alone)) > 3


def test_ceilings_hold_without_active_power_or_clock_free_time():
    lean = replace(A100, active_w=0.0)
    for load in ((0.05, 0.0, 1.1e13, 0.0), (0.05, 0.05, 1.5e13, 1e10)):
        clock = ceiling(load, 200.0, lean)
        assert busy(clock, load, lean)[1] == pytest.approx(200.0)


def test_work_below_the_lowest_clock_is_paused_until_its_mean_power_is_the_limit():
    time_s = clock_law.duty_cycled_time_s(2.0, 162.0, 112.0, 62.0)
    assert time_s == pytest.approx(4.0)
    assert 2.0 * 162.0 + (time_s - 2.0) * 62.0 == pytest.approx(112.0 * time_s)
    assert clock_law.duty_cycled_time_s(2.0, 100.0, 112.0, 62.0) == pytest.approx(2.0)
    assert clock_law.duty_cycled_time_s(2.0, 100.0, 60.0, 62.0) == np.inf


@given(loads, st.floats(210.0, 1410.0), st.floats(0.0, 3.0))
def test_parts_add_up_to_busy_power_plus_waiting(load, clock, idle_s):
    work = stage(*load)
    time_s, power_w = busy(clock, work)
    parts = clock_law.energy_parts_j(A100, clock, TOP, time_s + idle_s, time_s, work[2], work[3], 5.0)
    assert sum(parts.values()) == pytest.approx(power_w * time_s + 84.0 * idle_s + 5.0)


def test_waiting_never_gives_energy_back():
    cheap = replace(A100, wait_w=50.0)
    parts = clock_law.energy_parts_j(cheap, TOP, TOP, 2.0, 1.0, 0.0, 0.0, 0.0)
    assert parts["waiting"] == pytest.approx(0.0)
    assert clock_law.energy_parts_j(A100, TOP, TOP, 1.0, 2.0, 0.0, 0.0, 0.0)["waiting"] == pytest.approx(0.0)
