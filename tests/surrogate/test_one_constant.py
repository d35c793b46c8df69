"""A few runs of a source with a profile: predictions between one constant from them and the process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.surrogate.model import FEW_AND_MANY, Surrogate, Widths
from jointopt.surrogate.one_constant import ENOUGH, SURE, beside_constant
from jointopt.surrogate.residual_gp import Runs, default_kernel

NONE = np.empty(0, np.int64)


def rows(sizes: list[float], source: str = "lab") -> Runs:
    count = len(sizes)
    features = {"log2_tp": np.array(sizes), "log2_peak": np.full(count, 8.0)}
    return Runs(np.zeros((count, 1)), features, np.full(count, source), np.full(count, "g"))


def predicted(residual: list[float], fitted: bool = True, new: float = 9.0) -> tuple[float, float, float]:
    """(prediction, mean of the process, its deviation without noise) of a plan after runs of these residuals."""
    kernel = replace(default_kernel(1), source=0.1)
    model = Surrogate(kernel, None, ("log2_tp",), rows([]).take(NONE), np.empty(0), Widths())
    measured = rows(list(range(len(residual)))), np.array(residual)
    known = model.conditioned("lab", fitted, measured)
    mean, deviation = known.posterior.predict(rows([new]))
    found = known.mean(rows([new]))
    np.testing.assert_allclose(known.predict(rows([new]))[0], found)
    return float(found[0]), float(mean[0]), float(known.posterior.without_noise(deviation)[0])


def test_as_far_from_the_constant_as_half_a_deviation_the_process_counts_by_half() -> None:
    found = beside_constant(np.array([0.3, 0.2, 0.22]), np.array([0.2, 0.2, 1e-9]), 0.2)
    assert found == pytest.approx([0.25, 0.2, 0.22])
    assert SURE == 0.5


@given(st.floats(-1, 1), st.floats(1e-6, 2), st.floats(-1, 1))
def test_a_prediction_lies_between_the_constant_and_the_process(mean: float, deviation: float, constant: float) -> None:
    (found,) = beside_constant(np.array([mean]), np.array([deviation]), constant)
    assert min(mean, constant) - 1e-12 <= found <= max(mean, constant) + 1e-12
    (surer,) = beside_constant(np.array([mean]), np.array([deviation / 2]), constant)
    assert abs(surer - mean) <= abs(found - mean) + 1e-12


def test_a_few_runs_of_a_source_with_a_profile_draw_predictions_to_their_median() -> None:
    found, process, deviation = predicted([0.2, 0.25, 0.3])
    apart = process - 0.25
    assert found == pytest.approx(0.25 + apart * apart**4 / (apart**4 + (0.5 * deviation) ** 4))
    assert process < found < 0.25


@pytest.mark.parametrize(("count", "fitted"), [(ENOUGH - 1, True), (FEW_AND_MANY[1], True), (5, False)])
def test_fewer_or_many_runs_and_other_software_leave_all_to_the_process(count: int, fitted: bool) -> None:
    found, process, _ = predicted([0.25] * count, fitted)
    assert found == pytest.approx(process, rel=1e-12)
