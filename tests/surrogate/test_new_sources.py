"""Bounds of sources of which no run is known: by what a profile would be off that was not fitted to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import CONSTANTS
from jointopt.surrogate.kernel import Runs, default_kernel
from jointopt.surrogate.new_sources import (
    FACTOR_DOUBT,
    HOST_WORK,
    MOST_ABOVE,
    NewSource,
    bounds_of_clusters,
    bounds_of_software,
    host_share,
    unfitted_residuals,
)
from jointopt.surrogate.surrogate import Surrogate, Widths

WIDTHS = Widths(new_cluster=(0.2, 0.3), new_software=(0.4, 0.5))


def source(own: list[float], framework: str = "nemo", factor: float = 1.0, generic: float = 0.0) -> NewSource:
    n = len(own)
    return NewSource(
        np.full(n, framework), np.array(own), np.full(n, generic), np.ones(n), np.full(n, np.log(factor)),
        np.full(n, 0.1), np.zeros(n), np.zeros(n),
    )  # fmt: skip


def short(micro_batch: float, n: int = 2) -> Runs:
    slopes = np.zeros((n, len(CONSTANTS)))
    slopes[:, CONSTANTS.index("micro_batch")] = micro_batch
    return Runs(slopes, {"moe": np.zeros(n)}, np.full(n, "new|own|h100-sxm5-80gb|8"), np.full(n, "g"))


def surrogate(widths: Widths = WIDTHS) -> Surrogate:
    return Surrogate(default_kernel(len(CONSTANTS)), short(0.0, 0), np.empty(0), widths)


def test_a_stand_in_is_off_by_what_other_sources_of_its_framework_would_have_fitted() -> None:
    mine, kin = source([0.0, 0.1]), source([0.2, 0.2])
    nearly = 0.2 / (1.0 + FACTOR_DOUBT)
    assert unfitted_residuals(mine, [kin]) == pytest.approx(np.array([-nearly, 0.1 - nearly]))
    unrelated = source([0.0], "nanotron", factor=3.0)
    assert unfitted_residuals(mine, [kin, unrelated]) == pytest.approx(np.array([-nearly, 0.1 - nearly]))


def test_a_framework_of_one_source_stands_in_with_the_products_and_the_network_of_all_others() -> None:
    mine = replace(source([0.0], factor=1.5), log_efficiency=np.log([0.5]))
    others = [source([0.0], "nanotron", factor=factor) for factor in (1.0, 1.21)]
    assert unfitted_residuals(mine, others) == pytest.approx([np.log(1.5 / 1.1) - 0.1 * np.log(0.5)])


def test_a_source_alone_or_without_a_profile_has_no_other_to_stand_in_for_it() -> None:
    assert unfitted_residuals(source([0.3]), []).tolist() == [0.3]
    assert unfitted_residuals(source([0.3], framework=""), [source([0.1])]).tolist() == []
    assert bounds_of_clusters([source([0.3], framework="")]) is None
    assert bounds_of_software([]) is None


def test_sources_that_hardly_depend_on_products_are_weak_evidence_of_them() -> None:
    mine, kin = source([0.0]), replace(source([0.1]), compute=np.array([0.1]))
    assert -0.3 < unfitted_residuals(mine, [kin])[0] < 0.0


def test_a_new_cluster_is_as_far_off_as_one_recorded_source_is_from_another() -> None:
    found = bounds_of_clusters([source([0.0] * 9), source([0.2] * 9)])
    assert found == (pytest.approx(0.2), pytest.approx(0.2))  # the other is off by 0.2 / (1 + DOUBT)


def test_profiles_that_hit_their_own_sources_do_not_narrow_the_bounds() -> None:
    # one of nine stand-ins, more than a tenth, is off by 1.3; with errors under own profiles among them it is less
    found = bounds_of_clusters([*(source([0.0] * 9) for _ in range(8)), source([0.0] * 9, factor=1.3)])
    assert found is not None
    assert found[1] > 0.9 * np.log(1.3)


def spread(n: int, scale: float) -> NewSource:
    return replace(source([0.0] * n), generic=scale * np.linspace(-0.1, 0.3, n))


def test_bounds_hold_nine_tenths_of_runs_and_reach_as_far_below_as_above() -> None:
    found = bounds_of_software([spread(1001, 1.0), spread(101, 1.0)])
    assert found == (pytest.approx(0.26, abs=0.004), pytest.approx(0.26, abs=0.004))


def test_sources_count_alike_in_bounds_however_many_runs_they_have() -> None:
    found = bounds_of_software([spread(1001, 1.0), spread(101, 2.0)])
    assert found is not None
    assert found[1] == pytest.approx(0.44, abs=0.01)  # a fifth of the wider source lies above, nothing of the other


def test_what_short_micro_batches_explain_does_not_widen_the_bounds_of_long_ones() -> None:
    slow = replace(source([0.0] * 9), generic=np.full(9, 0.9), host=np.full(9, 0.7))
    assert bounds_of_software([slow, replace(slow, generic=slow.generic - 0.7, host=0.0 * slow.host)]) == (
        pytest.approx(0.2),
        pytest.approx(0.2),
    )


@pytest.mark.parametrize(("fitted", "upper"), [(True, 0.3), (False, 0.5 + np.log1p(HOST_WORK * 0.2))])
def test_short_micro_batches_widen_the_upper_end_under_unknown_software_alone(fitted: bool, upper: float) -> None:
    found = surrogate().conditioned("new|own|h100-sxm5-80gb|8", fitted).bounds_of_new(short(0.2))
    assert found is not None
    below, above = found
    assert below.tolist() == [0.2 if fitted else 0.4] * 2
    assert above == pytest.approx(np.full(2, upper))


def test_an_upper_end_is_an_order_of_magnitude_above_at_most() -> None:
    found = surrogate().conditioned("new|own|h100-sxm5-80gb|8", False).bounds_of_new(short(1e6))
    assert found is not None
    assert found[1].tolist() == [MOST_ABOVE, MOST_ABOVE]
    assert host_share(short(-1.0)).tolist() == [0.0, 0.0]


def test_a_card_without_such_bounds_has_the_intervals_of_the_process() -> None:
    runs = short(0.1)
    assert surrogate(Widths()).conditioned(str(runs.source[0]), True).bounds_of_new(runs) is None
