"""Differences between plans of one job: what both are off by cancels."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from jointopt.core.schema import Columns
from jointopt.core.units import Z_90
from jointopt.jobs.jobfile import job_from_options, shipped_job, with_changes
from jointopt.jobs.plans.text import parse_plan
from jointopt.surrogate.held_out import (
    HeldOut,
    Scores,
    predict_pairs,
    run_pairs,
    with_calibrated_widths,
    with_conformal_widths,
)
from jointopt.surrogate.intervals import (
    DifferenceDoubt,
    difference_half_width,
    difference_variance,
    dissimilarity,
    limit_half_widths,
    physics_difference_half_width,
    physics_errors,
    plan_differences,
    posterior_of_new,
)
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import Kernel, Runs, covariance_terms, default_kernel, variances
from jointopt.surrogate.posterior import condition_alone
from jointopt.surrogate.surrogate import Surrogate, Widths
from jointopt.workflows.propose import propose

NONE = np.empty(0, np.int64)


def runs(tp: list[float], sensitivity: list[list[float]], source: str = "a", group: str = "g") -> Runs:
    n = len(tp)
    return Runs(np.array(sensitivity), {"log2_tp": np.array(tp)}, np.full(n, source), np.full(n, group))


def kernel(**terms: float) -> Kernel:
    """The default kernel of two constants with standard deviations of its own."""
    return replace(default_kernel(2), **terms)


THREE = runs([0.0, 0.0, 3.0], [[1.0, 0.0], [1.0, 0.0], [0.2, 0.5]])


def test_the_variance_of_a_difference_is_that_of_both_less_twice_what_they_share() -> None:
    first, second = THREE.take(np.array([0, 1, 2])), THREE.take(np.array([2, 0, 1]))
    shared = np.diagonal(covariance_terms(kernel(), first, second), axis1=1, axis2=2)
    expected = variances(kernel(), first) + variances(kernel(), second) - 2.0 * shared
    assert variances(kernel(), first, second) == pytest.approx(expected)


def test_one_factor_and_equal_sensitivities_cancel_and_noise_counts_twice() -> None:
    alone = condition_alone(kernel(source=5.0, constants=(5.0, 5.0), noise=0.03), THREE.take(NONE), np.zeros(0))
    twin = alone.contrast_deviation(THREE.take(np.array([0])), THREE.take(np.array([1])))
    assert twin == pytest.approx([0.03 * np.sqrt(2.0 * 2.0)])  # its variance twice, as for single predictions
    assert alone.predict(THREE)[1].min() > 5.0


def test_the_noise_of_both_runs_is_left_of_a_difference_of_equal_plans_after_runs_too() -> None:
    known = condition_alone(kernel(noise=0.03), THREE, np.array([0.1, 0.1, -0.1]))
    assert known.noise_variance is not None
    twin = known.contrast_deviation(THREE.take(np.array([0])), THREE.take(np.array([1])))
    assert twin == pytest.approx(np.sqrt(2.0 * known.share @ known.noise_variance))
    assert known.noise_variance[0] >= 0.3 * 0.03**2


def test_a_measured_run_narrows_differences_from_plans_that_are_unlike_it() -> None:
    known = condition_alone(kernel(shape=0.5), THREE, np.array([0.1, 0.1, -0.1]))
    nothing = condition_alone(kernel(shape=0.5), THREE.take(NONE), np.zeros(0))
    first, other = THREE.take(np.array([0])), THREE.take(np.array([2]))
    assert known.contrast_deviation(first, other)[0] < 0.5 * nothing.contrast_deviation(first, other)[0]


def test_pairs_are_of_one_source_and_group_and_of_each_pair_of_runs_once() -> None:
    every = Runs(np.zeros((5, 2)), {}, np.array(list("aaaab")), np.array(list("xxyxx")))
    first, second = run_pairs(every, np.arange(5))
    assert sorted(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 1), (0, 3), (1, 3)]


def test_of_the_pairs_of_a_large_group_four_hundred_are_drawn_and_all_of_a_small_one() -> None:
    group = np.repeat(["large", "small"], [40, 6])  # 780 pairs and 15
    first, second = run_pairs(Runs(np.zeros((46, 2)), {}, np.full(46, "a"), group), np.arange(46))
    assert np.bincount((first >= 40).astype(int)).tolist() == [400, 15]
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == 415
    assert (group[first] == group[second]).all()


def test_differences_take_one_factor_on_top_of_the_width_of_their_kind() -> None:
    off = HeldOut(np.linspace(0.0, 1.0, 11), np.zeros(11), np.full(11, 0.3), np.arange(11))
    unseen = Surrogate(kernel(), THREE.take(NONE), np.zeros(0))
    widths = with_conformal_widths(unseen, {"fitted": [off]}, {"fitted": [replace(off, truth=2.0 * off.truth)]}).widths
    assert (widths.fitted, widths.difference) == (pytest.approx(3.0), pytest.approx(2.0))
    known = replace(unseen, widths=Widths(fitted=3.0, difference=2.0)).conditioned("a", True)
    one = THREE.take(np.array([0]))
    assert known.difference(THREE, one)[1] == pytest.approx(6.0 * difference_half_width(known.posterior, THREE, one))


def test_after_a_few_runs_differences_are_as_wide_as_the_roots_of_those_of_the_process() -> None:
    roots = np.linspace(0.1, 0.4, 11)
    off = HeldOut(1.5 * roots, np.zeros(11), roots**2, np.arange(11), known=3)
    unseen = Surrogate(kernel(), THREE.take(NONE), np.zeros(0))
    widths = with_conformal_widths(unseen, {"few": [off]}, {"few": [off]}).widths
    assert widths.difference_after == pytest.approx(1.5)
    known = replace(unseen, widths=widths).conditioned("a", True, (THREE, np.array([0.1, 0.2, 0.1])))
    one = THREE.take(np.array([0]))
    own = difference_half_width(known.posterior, THREE, one)
    assert known.difference(THREE, one)[1] == pytest.approx(1.5 * np.sqrt(own))


@pytest.mark.parametrize(("fitted", "factor"), [(True, 1.5), (False, 3.0)])
def test_of_a_new_source_a_profile_makes_differences_as_sure_as_those_of_sources_left_out(
    fitted: bool, factor: float
) -> None:
    roots = np.linspace(0.1, 0.4, 11)
    by = {"source_out": 1.5, "unseen": 3.0}
    off = {kind: HeldOut(of * roots, np.zeros(11), roots**2, np.arange(11)) for kind, of in by.items()}
    none = Surrogate(kernel(), THREE.take(NONE), np.zeros(0))
    scores = Scores("a", 0.1, off, off)
    found = with_calibrated_widths(none, [scores]).conditioned("b", fitted)
    one = THREE.take(np.array([0]))
    own = difference_half_width(posterior_of_new(found.posterior.kernel), THREE, one)
    assert found.difference(THREE, one)[1] == pytest.approx(factor * np.sqrt(own))


def alike(share: float) -> tuple[Runs, Runs]:
    """Two runs that differ by that share of what the first constant takes."""
    return runs([0.0], [[share, 0.0]]), runs([0.0], [[0.0, 0.0]])


def test_plans_alike_are_as_sure_as_repeats_and_half_of_the_noise_counts_where_they_are_15_percent_apart() -> None:
    new = kernel(noise=0.03, constants=(0.1, 0.1))
    # the mean square of the scales of noise, 0.8 and 4 by 0.6 and 0.4, is 6.784
    noise = 4 * 6.784 * 0.03**2
    assert difference_half_width(posterior_of_new(new), *alike(0.0)) == pytest.approx(Z_90 * 2 * 0.03)
    share = 0.15 / np.sqrt(difference_variance(new, *alike(1.0)))[0]
    assert difference_variance(new, *alike(share)) == pytest.approx(0.15**2)
    found = difference_half_width(posterior_of_new(new), *alike(share))
    assert found == pytest.approx(Z_90 * np.sqrt(0.15**2 + noise / 2), rel=1e-3)


def test_what_the_physics_was_off_by_counts_in_full_of_plans_30_percent_apart_and_in_part_of_plans_alike() -> None:
    new = kernel(noise=0.03, constants=(0.1, 0.1))
    usual = np.sqrt(difference_variance(new, *alike(1.0)))[0]
    near, mid, far = (dissimilarity(new, *alike(by / usual))[0] for by in (0.0, 0.15, 0.4))
    noise = 4 * 6.784 * 0.03**2
    unlike = np.sqrt(0.3**2 + noise * 0.09 / (0.09 + 0.15**2))
    assert (near, far) == (pytest.approx(np.sqrt(0.06 / unlike), rel=1e-3), 1.0)
    assert mid == pytest.approx(np.sqrt(np.sqrt(0.15**2 + noise / 2) / unlike), rel=1e-3)


def test_runs_that_scatter_do_not_make_plans_alike_unsure() -> None:
    none = Surrogate(kernel(noise=0.03), THREE.take(NONE), np.zeros(0))
    widths = Widths(difference_after=2.0, difference_new=0.3)
    scattered = THREE.take(np.array([0, 0, 0, 2, 2])), np.array([0.5, -0.5, 0.0, 0.4, -0.4])
    known = replace(none, widths=widths).conditioned("a", True, scattered)
    near, far = known.difference(*alike(0.01))[1][0], known.difference(*alike(1.0))[1][0]
    of_new = difference_half_width(posterior_of_new(known.posterior.kernel), *alike(0.01))[0]
    assert near == pytest.approx(0.3 * np.sqrt(of_new), rel=1e-2)
    assert far > 1.8 * near


def test_pairs_of_one_plan_do_not_calibrate_differences_of_two() -> None:
    none = Surrogate(kernel(), THREE.take(NONE), np.zeros(0))
    some = np.arange(3), NONE, True
    counts = [len(predict_pairs(none, THREE, np.zeros(3), *some, twins=twins).rows) for twins in (True, False)]  # type: ignore[union-attr]
    assert counts == [3, 2]


FUSED = {"training.attention": "fused"}
JOB = job_from_options("llama-2-13b", "a100-sxm4-80gb", 64, 128, 4096, dtype="bf16", framework="megatron-lm")
JOB = with_changes(JOB, FUSED)


def plans(clocks_mhz: list[float], time_s: list[float], energy_j: list[float]) -> Columns:
    clocks = np.array(clocks_mhz)[:, None]
    return {"stage_clock_mhz": clocks, "iteration_time_s": np.array(time_s), "energy_j": np.array(energy_j)}


def test_probabilities_are_those_of_a_normal_error_and_none_of_the_plan_itself() -> None:
    columns = plans([1410.0, 1410.0], [10.0, 9.0], [100.0, np.nan])
    found = plan_differences(JOB, columns, 0, DifferenceDoubt(np.array([0.0, 0.2]), np.array([False, True])))
    assert found["time_vs_first_percent"] == pytest.approx([0.0, -10.0])
    assert found["time_vs_first_percent_high"] == pytest.approx([0.0, 100 * (0.9 * np.exp(0.2) - 1)])
    better = NormalDist().cdf(-np.log(0.9) / (0.2 / 1.645))
    assert found["faster_probability"] == pytest.approx([0.0, better])
    assert found["leaner_probability"].tolist() == pytest.approx([0.0, np.nan], nan_ok=True)


def test_a_clock_of_the_same_layout_is_doubted_by_its_distance_alone() -> None:
    columns = plans([1410.0, 1395.0, 1005.0], [10.0, 10.1, 13.0], [100.0, 97.0, 70.0])
    same = DifferenceDoubt(np.full(3, 0.3), np.zeros(3, bool))
    found = plan_differences(JOB, columns, 0, same)
    width = found["time_vs_first_percent_high"] - found["time_vs_first_percent_low"]
    assert width[1] < 0.3 < width[2] < 10.0
    assert found["leaner_probability"][1:].tolist() == pytest.approx([1.0, 1.0])
    unmeasured = replace(JOB, cluster=replace(JOB.cluster, gpu=replace(JOB.cluster.gpu, id="h100-sxm5-80gb")))
    wider = plan_differences(unmeasured, columns, 0, same)
    assert wider["energy_vs_first_percent_high"][2] > found["energy_vs_first_percent_high"][2] + 10.0


@pytest.mark.parametrize("surrogate", ["default", "none"])
def test_a_front_states_how_surely_each_plan_beats_the_reference(surrogate: str) -> None:
    job = job_from_options("llama-2-13b", "a100-sxm4-80gb", 8, 32, 4096, dtype="bf16", framework="megatron-lm")
    found = propose(with_changes(job, FUSED), surrogate=surrogate)
    front, reference_s = found.to_frame(), found.reference["iteration_time_s"][0]
    percent = front["time_vs_first_percent"]
    assert percent.to_numpy() == pytest.approx(100 * (front["iteration_time_s"] / reference_s - 1).to_numpy(), abs=1e-6)
    assert (front["time_vs_first_percent_low"] <= percent).all()
    assert front["leaner_probability"].iloc[-1] > 0.98
    assert found.to_dict()["front"][-1]["faster_probability"] < 0.1


def test_differences_of_a_job_are_narrower_than_the_times_themselves() -> None:
    model = JobModel.of(JOB)
    found = propose(model)
    times = found.front["iteration_time_s_high"] / found.front["iteration_time_s"] - 1.0
    apart = (found.front["time_vs_first_percent_high"] - found.front["time_vs_first_percent"]) / 100.0
    assert np.median(apart) < 0.5 * np.median(times)


def test_coverage_is_the_share_of_truths_within_so_many_half_widths() -> None:
    found = HeldOut(np.array([1.0, 1.0, 1.0, 1.0]), np.array([1.0, 1.2, 0.6, 3.0]), np.full(4, 0.3), np.arange(4))
    assert found.coverage == 0.5
    assert found.covered(1.5) == 0.75
    assert found.median_error == pytest.approx(np.median(np.abs(np.expm1([0.0, 0.2, -0.4, 2.0]))))


def test_plans_that_nothing_recorded_supports_differ_by_more_than_those_of_a_measured_cluster() -> None:
    job = shipped_job("mixtral-8x22b-8x8-h100")
    layouts = parse_plan("dp=64 ep=8", job).layouts
    columns = {name: np.repeat(values, 2, axis=0) for name, values in layouts.items()}
    columns |= {"stage_clock_mhz": np.full((2, 1), 1980.0)}
    errors = physics_errors()["difference"]
    assert physics_difference_half_width(job, columns, 0).tolist() == [errors["unknown"]] * 2
    assert physics_difference_half_width(job, columns, 0, known=True).tolist() == [errors["known"]] * 2
    assert errors["known"] < errors["unknown"]


def test_what_limits_leave_cancels_where_all_gpus_are_off_by_the_same_but_for_what_layouts_are_off_by() -> None:
    moved = np.array([[-0.04, -0.04, -0.04, 0.0], [0.02, 0.02, 0.02, 0.0]])
    found = limit_half_widths(moved, np.full(4, 0.2), 0, np.array([False, False, True, False]))
    assert found[0] == pytest.approx([0.0, 0.0, 0.25 * 0.04, 0.04])  # 5 % of power of layouts, of the 20 % of all
    assert found[1] == pytest.approx([0.0, 0.0, 0.25 * 0.02, 0.02])
    assert limit_half_widths(moved, np.zeros(4), 0, np.full(4, True))[0] == pytest.approx([0.04] * 3 + [0.04])


def test_a_plan_under_a_limit_is_in_doubt_by_what_gpus_that_draw_less_would_run_at() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    parsed, model = parse_plan("dp=4 tp=2 micro_batch_size=4", job), JobModel(job)
    limits = np.array([400.0, 200.0])
    layouts = {name: np.repeat(values, 2) for name, values in parsed.layouts.items()}
    clocks, every = np.full((2, 1), 1410.0), np.arange(2)

    def at(limits_w: np.ndarray) -> Columns:
        return model.cost_model(layouts | {"power_limit_w": limits_w}).evaluate(every, clocks)

    columns = layouts | at(limits) | {"power_limit_w": limits, "stage_clock_mhz": clocks}
    found = model.differences(columns, 0)
    less = at(limits / 0.9)["iteration_time_s"][1] / columns["iteration_time_s"][1]  # power is known within a tenth
    held = model._held(columns)["stage_clock_mhz"][:, 0]
    by_clock = 0.1 * np.log(held[0] / held[1])
    half = np.hypot(by_clock, np.log(less))
    change = np.log(columns["iteration_time_s"][1] / columns["iteration_time_s"][0])
    assert found["time_vs_first_percent_high"][1] == pytest.approx(100.0 * np.expm1(change + half))
    assert found["time_vs_first_percent_high"][0] == 0.0
