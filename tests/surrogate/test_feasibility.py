"""Whether a plan fits, by what was measured of memory."""

from __future__ import annotations

from dataclasses import astuple
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from jointopt.surrogate.memory import (
    GRID,
    MemoryEvidence,
    MemoryMargin,
    MemoryPosterior,
    _fit_table,
    fit_draws,
    fit_probability,
    source_weights,
)
from tests.bench.memory_margin import START, learn_margin, loss, own_margin

MARGIN = MemoryMargin(0.0, 0.14, 0.1, 0.04)
LOADS = np.log([0.5, 0.9, 1.0, 1.1, 2.0])


def probability(**evidence):
    found = {name: np.array(values, float) for name, values in evidence.items()}
    return fit_probability(LOADS, source_weights(MARGIN, MemoryEvidence(**found)), MARGIN)


def test_without_runs_half_of_the_plans_at_the_limit_fit():
    assert probability()[2] == pytest.approx(0.5, abs=0.01)
    assert probability()[0] > 0.99
    assert probability()[-1] < 0.01


EVERY = {"log_ratio": [0.15, -0.1], "ok_load": [0.2, -0.3], "oom_load": [-0.05], "failed_load": [-0.4, 0.1]}
ALL = MemoryEvidence(**{name: np.array(values) for name, values in EVERY.items()})


def likelihood(offset, plan_sd, crashes=None):
    """Of `EVERY` at a source off by ``offset``: Student's errors measured, normal ones bounded, crashes at random."""
    normal, scale = NormalDist(0.0, plan_sd), plan_sd * student.pdf(0.0, 3)
    found = np.prod([student.pdf((one - offset) / plan_sd, 3) / scale for one in EVERY["log_ratio"]])
    found *= np.prod([normal.cdf(-load - offset) for load in EVERY["ok_load"]])
    found *= np.prod([normal.cdf(load + offset) for load in EVERY["oom_load"]])
    if crashes is not None:
        found *= np.prod([crashes + (1 - crashes) * normal.cdf(load + offset) for load in EVERY["failed_load"]])
        found *= (1 - crashes) ** 4  # of runs that fitted
    return float(found)


def prior(margin):
    weights = np.array([NormalDist(margin.centre, margin.source_sd).pdf(offset) for offset in GRID])
    return weights / weights.sum()


@pytest.mark.parametrize("margin", [MARGIN, MemoryMargin(0.05, 0.2, 0.15, 0.1)])
def test_offsets_of_a_source_are_as_likely_as_its_runs_there(margin):
    expected = prior(margin) * [likelihood(offset, margin.plan_sd) for offset in GRID]
    np.testing.assert_allclose(source_weights(margin, ALL), expected / expected.sum(), rtol=1e-9, atol=1e-15)


def test_a_framework_s_margin_is_that_of_its_likely_offsets_and_no_wider_than_half_and_what_is_unsure():
    weights = source_weights(MARGIN, ALL)
    centre = weights @ GRID
    unsure = np.sqrt(weights @ (GRID - centre) ** 2)
    expected = MemoryMargin(centre, np.hypot(0.07, unsure), 0.1, 0.04)
    assert astuple(own_margin(MARGIN, ALL)) == pytest.approx(astuple(expected))
    unknown = own_margin(MARGIN, MemoryEvidence())
    assert (unknown.centre, unknown.source_sd) == (pytest.approx(0.0, abs=1e-9), 0.14)


def test_the_loss_of_a_margin_is_how_unlikely_it_and_the_runs_of_all_sources_are():
    point = np.array([0.05, np.log(0.2), np.log(0.15), -1.0])
    margin, crashes = MemoryMargin(0.05, 0.2, 0.15, 0.0), 1 / (1 + np.e)
    evidence = prior(margin) @ [likelihood(offset, 0.15, crashes) for offset in GRID]
    away = ((point - [0.0, np.log(0.1), np.log(0.08), -2.0]) / [0.1, 0.7, 0.7, 1.0]) ** 2
    assert loss(point, [ALL, MemoryEvidence(), ALL]) == pytest.approx(away.sum() / 2 - 2 * np.log(evidence))


def test_an_oom_makes_plans_that_need_as_much_unlikely_and_spares_the_small():
    after = probability(oom_load=[LOADS[1]])
    assert (after[1:4] < probability()[1:4]).all()
    assert after[1] < 0.6
    assert after[0] > 0.95


def test_a_run_beyond_the_limit_moves_the_limit_up():
    assert (probability(ok_load=[LOADS[3]])[:4] > probability()[:4]).all()


def test_memory_that_was_measured_moves_the_limit_by_as_much():
    weights = source_weights(MARGIN, MemoryEvidence(log_ratio=np.full(20, 0.2)))
    assert weights @ GRID == pytest.approx(0.2, abs=0.02)
    assert (probability(log_ratio=[0.2] * 20)[1:4] < probability()[1:4]).all()


def test_the_limit_is_the_load_of_that_probability():
    posterior = MemoryPosterior(MemoryEvidence(log_ratio=np.full(9, 0.1)))
    limit = np.log(posterior.largest_load(0.3))
    assert posterior.fit_probability(np.array([limit]))[0] == pytest.approx(0.3, abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-0.7, 0.7), max_size=4), st.lists(st.floats(-0.7, 0.7), max_size=4))
def test_a_plan_that_needs_more_never_fits_more_probably(fitted, failed):
    found = probability(ok_load=fitted, oom_load=failed)
    assert (np.diff(found) <= 1e-9).all()
    assert ((found >= 0) & (found <= 1 + 1e-9)).all()


def test_draws_agree_with_the_probability_and_share_the_offset():
    weights = source_weights(MARGIN, MemoryEvidence())
    draws = fit_draws(LOADS, weights, MARGIN, 4000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.mean(axis=1), probability(), atol=0.03)
    assert np.corrcoef(draws[1], draws[3])[0, 1] > 0.2


def test_the_margin_is_learned_from_sources_that_err_by_a_known_spread():
    rng = np.random.default_rng(0)
    offsets = 0.15 * rng.standard_normal(12)
    margin = learn_margin([MemoryEvidence(log_ratio=o + 0.05 * rng.standard_normal(60)) for o in offsets])
    assert margin.source_sd == pytest.approx(0.15, abs=0.06)
    assert margin.plan_sd == pytest.approx(0.045, abs=0.015)


def test_failures_far_below_the_limit_are_crashes():
    fitted = MemoryEvidence(log_ratio=np.zeros(80))
    few = MemoryEvidence(fitted.log_ratio, failed_load=np.full(2, -1.0))
    many = MemoryEvidence(fitted.log_ratio, failed_load=np.full(40, -1.0))
    assert learn_margin([many]).crash_share > learn_margin([few]).crash_share


def test_published_plans_beyond_the_limit_move_the_margin_of_their_framework_by_ten_runs_at_most():
    few, many = (own_margin(MARGIN, MemoryEvidence(ok_load=np.full(n, 0.15))) for n in (10, 200))
    assert astuple(few) == pytest.approx(astuple(many))
    assert many.centre < -0.1
    assert many.source_sd <= MARGIN.source_sd


def test_a_source_of_failures_alone_counts_and_for_no_more_than_so_many_runs():
    most, twice = (MemoryEvidence(failed_load=np.full(n, -1.0)) for n in (100, 200))
    assert loss(START, [most]) > loss(START, []) + 1.0
    assert loss(START, [twice]) == pytest.approx(loss(START, [most]))
    ratios = [MemoryEvidence(log_ratio=np.full(n, 0.1)) for n in (100, 200)]
    assert loss(START, ratios[1:]) == pytest.approx(loss(START, ratios[:1]))


def test_no_probability_is_beyond_its_bounds_by_rounding():
    weights = np.random.default_rng(0).dirichlet(np.ones(len(GRID)), 50)
    found = np.array([fit_probability(np.linspace(-3.0, 3.0, 2001), row / row.sum(), MARGIN) for row in weights])
    assert found.min() >= 0.0
    assert found.max() <= 1.0


@settings(max_examples=30, deadline=None)
@given(st.floats(-5.0, 5.0), st.floats(0.01, 0.5), st.integers(0, 2**32 - 1))
def test_the_table_of_fit_probabilities_is_the_sum_over_the_grid(load, plan_sd, seed):
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(GRID)))
    loads = load + plan_sd / 80 * np.arange(4)  # on points of the table and between them
    found = fit_probability(loads, weights, MemoryMargin(0.0, 0.14, plan_sd, 0.04))
    normal = NormalDist()
    by_hand = [sum(w * normal.cdf((-one - g) / plan_sd) for w, g in zip(weights, GRID, strict=True)) for one in loads]
    assert found == pytest.approx(by_hand, abs=1.5e-13)


def test_draws_of_a_source_that_needs_more_fit_less():
    # the source needs a tenth more than predicted: a plan a tenth below the limit fits in half of the draws
    known = (np.abs(GRID - 0.1) < 1e-9).astype(float)
    loads = np.array([-0.1 - MARGIN.plan_sd, -0.1, 0.1])
    draws = fit_draws(loads, known, MARGIN, 4000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.mean(axis=1), fit_probability(loads, known, MARGIN), atol=0.03)
    assert draws[1].mean() == pytest.approx(0.5, abs=0.03)


def test_the_table_of_fit_probabilities_reaches_as_far_up_as_down():
    first, step, table = _fit_table(tuple(source_weights(MARGIN, MemoryEvidence()).tolist()), MARGIN.plan_sd)
    assert first + step * (table.shape[1] - 1) == pytest.approx(-first)
