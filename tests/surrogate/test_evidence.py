"""Evidence of measured runs: parts joined, sources renamed, runs drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jointopt.core.schema import CONSTANTS
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.jobs.jobfile import shipped_job
from jointopt.surrogate.dataset import Priced, price, with_results
from jointopt.surrogate.evidence import Evidence, power_log_ratio, source_of_job
from jointopt.surrogate.kernel import FEATURES, Runs
from jointopt.surrogate.sources import sources_of_kind


def evidence(count: int, source: str = "lab", static_w: float = 0.0, first: float = 0.0) -> Evidence:
    """That of runs whose residuals are ``first`` and the numbers after it."""
    features = {name: np.zeros(count) for name in FEATURES}
    runs = Runs(np.zeros((count, 3)), features, np.full(count, source), np.full(count, "model"))
    residual = first + np.arange(count)
    return Evidence(runs, residual, (), np.ones(count, bool), residual, residual, static_w, counts={source: count})


def test_parts_join_in_order_with_the_largest_static_power() -> None:
    found = Evidence.joined([evidence(2, static_w=90.0), Evidence(), evidence(3, "hub", 70.0, first=5.0)])
    assert found.runs is not None
    assert found.runs.source.tolist() == ["lab"] * 2 + ["hub"] * 3
    for column in (found.residual, found.log_power_ratio, found.static_share):
        assert column.tolist() == [0.0, 1.0, 5.0, 6.0, 7.0]
    assert (found.static_w, found.timed.sum(), found.counts) == (90.0, 5, {"lab": 2, "hub": 3})
    assert (Evidence.joined([]).known, Evidence.joined([]).static_w) == (None, 0.0)


def test_runs_of_kin_count_for_time_alone() -> None:
    found = evidence(2, static_w=50.0).with_runs_of([evidence(3, "kin", 99.0, first=7.0)])
    assert found.residual.tolist() == [0.0, 1.0, 7.0, 8.0, 9.0]
    assert (found.log_power_ratio.tolist(), found.static_w, found.counts) == ([0.0, 1.0], 50.0, {"lab": 2})


@pytest.mark.parametrize("most", [1, 4, 9, 10, 11])
def test_at_most_so_many_runs_are_drawn_each_once_and_in_their_order(most: int) -> None:
    found = evidence(10).sample(most)
    assert found.runs is not None
    assert len(found.runs) == len(found.residual) == found.timed.sum() == min(most, 10)
    assert (np.diff(found.residual) > 0).all()


def test_runs_that_a_surrogate_remembers_have_no_rows_to_draw_and_stay_all() -> None:
    remembered = replace(evidence(49), timed=np.zeros(0, bool))
    assert remembered.sample(40) is remembered


def test_measured_power_is_a_column_or_energy_over_time_and_gpus_of_runs_that_ended_well(synthetic_runs) -> None:
    table = synthetic_runs(rows=5, groups=(256,)).assign(status=["ok", "ok", "oom", "ok", "ok"], energy_j=np.nan)
    table = table.assign(avg_power_w=[300.0, np.nan, 300.0, 0.0, -5.0])
    table.loc[[1, 3], "energy_j"] = 250.0 * table["iteration_time_s"] * table["num_gpus"]
    clean = with_results(table)
    priced = price(clean)
    watts = np.array([300.0, 250.0, np.nan, 250.0, np.nan])[priced.rows]
    assert np.exp(power_log_ratio(clean, priced)) * priced.physics["avg_power_w"] == pytest.approx(watts, nan_ok=True)


def of_table(table: pd.DataFrame) -> tuple[Evidence, Priced, np.ndarray]:
    clean = with_results(table)
    priced = price(clean)
    return Evidence.of(clean, priced, "runs"), priced, clean["iteration_time_s"].to_numpy()[priced.rows]


def test_evidence_is_time_and_power_over_those_of_the_physics_and_a_gpu_s_static_power(synthetic_runs) -> None:
    table = synthetic_runs(rows=4, groups=(256,)).assign(avg_power_w=300.0)
    table.loc[2, "status"] = "oom"
    found, priced, time_s = of_table(table)
    expected = np.log(time_s / priced.physics["iteration_time_s"])
    ended = priced.rows != 2
    assert found.residual == pytest.approx(expected[ended])
    assert found.timed.tolist() == ended.tolist()
    assert found.static_w == known_gpu(table["gpu"][0]).power.static_w > 0
    assert found.static_share == pytest.approx(found.static_w / priced.physics["avg_power_w"])
    assert found.counts == {"runs": 3}


def test_on_another_network_each_row_is_priced_anew_and_time_and_power_over_it_move(synthetic_runs) -> None:
    runs = synthetic_runs(rows=4, cuda_graph="full_iteration")  # of which none waits for the host
    # rows of two jobs by turns
    table = runs.iloc[[0, 4, 1, 5, 2, 6]].reset_index(drop=True).assign(avg_power_w=300.0)
    found, priced, time_s = of_table(table)
    by = np.zeros(len(CONSTANTS))
    by[CONSTANTS.index("intra_node")] = 1.0
    again = found.with_constants(by)
    assert again is not None
    alone = [priced.take(np.array([i])).with_constants(by).physics for i in range(6)]
    time, power = (np.array([one[name][0] for one in alone]) for name in ("iteration_time_s", "avg_power_w"))
    assert again.priced[0].physics["iteration_time_s"] == pytest.approx(time)
    assert again.residual == pytest.approx(np.log(time_s / time))
    assert again.log_power_ratio == pytest.approx(np.log(300.0 / power))
    assert again.static_share == pytest.approx(found.static_w / power)
    assert again.runs is not None
    assert again.runs.source.tolist() == priced.runs.source.tolist()
    assert (time > priced.physics["iteration_time_s"]).any()


def test_runs_of_two_tables_are_drawn_with_their_own_prices(synthetic_runs) -> None:
    one, other = (of_table(synthetic_runs(rows=6, groups=(size,), seed=size))[0] for size in (256, 512))
    both = Evidence.joined([one, other])
    few = both.sample(7)
    times = np.concatenate([part.physics["iteration_time_s"] for part in few.priced])
    every = np.concatenate([part.physics["iteration_time_s"] for part in both.priced])
    at = [int(np.flatnonzero(both.residual == value)[0]) for value in few.residual]
    assert times == pytest.approx(every[at])
    assert len(times) == 7


def test_sources_of_a_kind_share_gpu_gpus_per_node_and_framework() -> None:
    job = shipped_job("opt-350m-8x4-gh200")
    like = source_of_job(job, "lab")
    others = [replace(like, gpu="a40"), replace(like, gpus_per_node=like.gpus_per_node + 4)]
    assert sources_of_kind(map(str, [like, *others]), source_of_job(job, "this job"), job) == [like]
