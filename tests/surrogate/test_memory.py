"""The rows of a table as evidence of memory."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.surrogate.dataset import price, with_results
from jointopt.surrogate.memory import (
    FEASIBLE,
    MemoryEvidence,
    MemoryPosterior,
    cost_of_failing,
    log_load,
    memory_evidence,
    memory_margin,
)
from jointopt.workflows.predict import predict


def evidence(table):
    clean = with_results(table)
    return memory_evidence(clean, price(clean))


def test_each_row_is_evidence_by_its_status_and_readings(synthetic_runs):
    table = synthetic_runs(rows=4, groups=(256,)).assign(status=["ok", "ok", "oom", "failed"], peak_memory_gib=np.nan)
    table.loc[0, "peak_memory_gib"] = 10.0
    found = evidence(table)
    counts = [len(v) for v in (found.log_ratio, found.ok_load, found.oom_load, found.failed_load)]
    assert counts == [1, 1, 1, 1]


def test_a_row_without_time_and_memory_is_no_evidence(synthetic_runs):
    assert len(evidence(synthetic_runs(rows=3, groups=(256,)).assign(iteration_time_s=np.nan))) == 0


def test_without_measurements_the_limit_is_the_physics_limit_within_a_per_cent(synthetic_runs):
    table = synthetic_runs(rows=30)
    far = np.abs(log_load(price(table))) > 0.01
    plain, learned = (predict(table, name)["predicted_fits"].to_numpy() for name in ("none", "default"))
    order = price(table).rows
    np.testing.assert_array_equal(plain[order][far], learned[order][far])


def test_runs_out_of_memory_make_fewer_plans_fit_and_raise_predicted_memory(synthetic_runs):
    table = synthetic_runs(rows=60, groups=(256,))
    load = log_load(price(table))
    small = table.iloc[price(table).rows[np.argsort(np.abs(load + 0.2))[:4]]].assign(status="oom")
    plain, corrected = predict(table, "default"), predict(table, "default", small)
    assert corrected["predicted_fits"].sum() <= plain["predicted_fits"].sum()
    assert (corrected["predicted_peak_memory_gib"] > plain["predicted_peak_memory_gib"]).all()


def test_the_margin_that_ships_is_one():
    margin = memory_margin()
    assert 0.0 < margin.crash_share < 0.5
    assert 0.02 < margin.plan_sd < margin.source_sd < 0.5


def test_a_plan_of_even_odds_ranks_a_fifth_behind_and_one_that_hardly_fits_a_million_at_most():
    assert cost_of_failing(np.array([1.0, 0.8, 0.5, 0.3])) == pytest.approx([1.0, 1.0125, 1.2, 1 + 0.2 * (7 / 3) ** 2])
    assert cost_of_failing(np.array([0.0])) == pytest.approx([1.0 + 0.2 * 1e6])


def test_evidence_is_measured_over_predicted_memory_and_the_load_of_runs_and_failures(synthetic_runs):
    table = synthetic_runs(rows=5, groups=(256,)).assign(status=["ok", "ok", "oom", "failed", "ok"])
    table = table.assign(peak_memory_gib=[10.0, 0.0, 10.0, np.nan, np.nan])
    table.loc[4, "iteration_time_s"] = np.nan  # neither time nor memory
    clean = with_results(table)
    priced = price(clean)
    by_row = dict(zip(priced.rows.tolist(), priced.physics["peak_memory_gib"], strict=True))
    limit = dict(zip(priced.rows.tolist(), priced.memory_limit_gib, strict=True))
    found = memory_evidence(clean, priced)
    assert found.log_ratio == pytest.approx([np.log(10.0 / by_row[0])])
    for row, loads in ((1, found.ok_load), (2, found.oom_load), (3, found.failed_load)):
        assert loads == pytest.approx([np.log(by_row[row] / limit[row])])
    none = memory_evidence(clean, priced, np.zeros(len(priced.rows), bool))
    assert len(none) == 0


def test_memory_of_a_source_is_moved_by_its_mean_offset_and_reaches_to_a_twentieth():
    seen = MemoryPosterior(MemoryEvidence(log_ratio=np.full(50, 0.2)))
    assert seen.factor == pytest.approx(np.exp(0.2), rel=0.02)
    assert MemoryPosterior().factor == 1.0
    assert seen.fit_probability(np.array([np.log(seen.reach)])) == pytest.approx([0.05], abs=1e-3)
    loads = np.linspace(-0.6, 0.3, 50)
    assert seen.fits(loads).tolist() == (seen.fit_probability(loads) >= FEASIBLE).tolist()
    assert 0 < seen.fits(loads).sum() < 50
