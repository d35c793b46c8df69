"""What the rows of a table say of memory."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.surrogate.dataset import price, with_results
from jointopt.surrogate.memory import log_load, memory_evidence, memory_margin
from jointopt.workflows.predict import predict


def evidence(table):
    clean = with_results(table)
    return memory_evidence(clean, price(clean))


def test_each_row_tells_by_its_status_and_readings(synthetic_runs):
    table = synthetic_runs(rows=4, groups=(256,)).assign(status=["ok", "ok", "oom", "failed"], peak_memory_gib=np.nan)
    table.loc[0, "peak_memory_gib"] = 10.0
    found = evidence(table)
    counts = [len(v) for v in (found.log_ratio, found.ok_load, found.oom_load, found.failed_load)]
    assert counts == [1, 1, 1, 1]


def test_a_row_without_time_and_memory_says_nothing(synthetic_runs):
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
    plain, told = predict(table, "default"), predict(table, "default", small)
    assert told["predicted_fits"].sum() <= plain["predicted_fits"].sum()
    assert (told["predicted_peak_memory_gib"] > plain["predicted_peak_memory_gib"]).all()


def test_the_margin_that_ships_is_one():
    margin = memory_margin()
    assert 0.0 < margin.crash_share < 0.5
    assert margin.cut == pytest.approx(0.5)
    assert 0.02 < margin.plan_sd < margin.source_sd < 0.5
