"""The rate of failures that were counted."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.physics.failure_rate import failure_rate


def test_many_failures_leave_the_rate_that_was_counted_within_its_poisson_error() -> None:
    found = failure_rate(419, 54 * 24 * 16_384)  # of Llama 3
    assert found.mean == pytest.approx(1.97e-5, rel=0.005)
    assert (found.high - found.low) / found.mean == pytest.approx(2 * 1.645 / 419**0.5, rel=0.01)


def test_a_run_without_failures_bounds_the_rate() -> None:
    found = failure_rate(0, 1_000.0)
    assert found.mean == 0.0005
    assert 0.0 < found.low < 1e-5 < 0.0018 < found.high < 0.002


def test_nine_intervals_in_ten_hold_the_rate() -> None:
    counts = np.random.default_rng(1).poisson(7.0, 2_000)
    held = [found.low < 0.07 < found.high for found in (failure_rate(int(n), 100.0) for n in counts)]
    assert np.mean(held) == pytest.approx(0.9, abs=0.04)
