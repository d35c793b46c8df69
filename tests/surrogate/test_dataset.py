"""Tables as runs with residuals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import PlanError, TableError
from jointopt.core.facts import Source
from jointopt.core.schema import CONSTANTS
from jointopt.runs.workloads import workloads
from jointopt.surrogate import dataset as learning
from jointopt.surrogate.dataset import _NOTHING_PRICED, PricedPlans, _on, price, source_of, timed_runs, with_results
from jointopt.workflows.predict import predict


def test_the_residual_of_physics_itself_is_zero_and_of_a_factor_its_logarithm(synthetic_runs):
    table = synthetic_runs(factor=1.3, noise=0.0)
    priced = price(table)
    time_s = table["iteration_time_s"].to_numpy()[priced.rows]
    np.testing.assert_allclose(priced.residual(time_s), np.log(1.3), rtol=1e-9)
    np.testing.assert_allclose(
        priced.physics["iteration_time_s"], predict(table)["predicted_iteration_time_s"].to_numpy()[priced.rows]
    )


def test_every_array_follows_the_rows(synthetic_runs):
    priced = price(synthetic_runs())
    assert sorted(priced.rows.tolist()) == list(range(20))
    assert priced.runs.sensitivity.shape == (20, len(CONSTANTS))
    assert all(values.shape == (20,) and np.isfinite(values).all() for values in priced.runs.features.values())
    assert len(priced.fitted) == len(priced.memory_limit_gib) == 20


def test_pricing_does_not_depend_on_the_order_of_rows(synthetic_runs):
    table = synthetic_runs(groups=(256, 512))
    mixed = table.sample(frac=1.0, random_state=1)
    one, two = price(table), price(mixed)
    place = mixed.index.to_numpy()[two.rows]
    back, plain = np.argsort(place), np.argsort(one.rows)
    np.testing.assert_allclose(two.runs.sensitivity[back], one.runs.sensitivity[plain], atol=1e-12)
    assert (two.runs.group[back] == one.runs.group[plain]).all()


def test_no_feature_knows_a_name(synthetic_runs):
    # of a model in the catalogue more is known than its table states
    table = synthetic_runs(model="mine", rows=5)
    other = price(table.assign(model="other", source="other", group="other"))
    one = price(table)
    assert all((other.runs.features[name] == values).all() for name, values in one.runs.features.items())


def test_a_layout_is_described_by_its_top_clock_at_every_clock(synthetic_runs):
    work = workloads(synthetic_runs(rows=5, groups=(256,), clock_mhz=[1410, 1200, 900, 600, 300]))[0][0]
    fast = replace(work, clock_mhz=np.full((5, 1), 1410.0))
    own, top = PricedPlans.of(work).runs("lab"), PricedPlans.of(fast).runs("lab")
    np.testing.assert_allclose(own.sensitivity, top.sensitivity, rtol=1e-12, atol=1e-12)
    differ = [n for n in own.features if not np.allclose(own.features[n], top.features[n], rtol=1e-12)]
    assert differ == ["clock"]


@pytest.mark.parametrize(
    ("column", "value"), [("source", "elsewhere"), ("gpu", "h100-sxm5-80gb"), ("framework", "torchtitan")]
)
def test_another_origin_gpu_or_software_is_another_source(synthetic_runs, column, value):
    table = synthetic_runs()
    both = price(pd.concat([table, table.assign(**{column: value})], ignore_index=True))
    assert len(np.unique(both.runs.source)) == 2
    assert len(np.unique(price(table).runs.source)) == 1


def test_a_job_and_its_rows_have_one_source_key(synthetic_runs):
    table = synthetic_runs("here", rows=3, framework="In-House")
    works, _ = workloads(table)
    assert set(price(table).runs.source) == {str(source_of(works[0].job, "here", "In-House"))}
    assert source_of(works[0].job, "", "In-House") == Source("", "in-house", "a100-sxm4-40gb", 4)


@pytest.mark.parametrize("blank", [None, np.nan])
def test_blank_cells_are_the_same_source_as_absent_columns(synthetic_runs, blank):
    table = synthetic_runs(rows=3)
    absent = price(table.drop(columns=["source", "framework"])).runs.source
    assert (price(table.assign(source=blank, framework=blank)).runs.source == absent).all()


def test_a_framework_without_a_profile_is_distinguished_from_one_with(synthetic_runs):
    table = synthetic_runs(rows=3, groups=(256,))
    assert price(table).fitted.all()
    assert not price(table.assign(framework="inhouse")).fitted.any()


def test_runs_are_priced_on_the_job_s_cluster_with_their_nodes_under_the_lower_power_limit(synthetic_runs):
    work = workloads(synthetic_runs(rows=3, groups=(256,)))[0][0]
    own = work.job.cluster
    for more_w, lower_w in ((-50.0, own.power_limit_w - 50.0), (50.0, own.power_limit_w)):
        cluster = replace(own, nodes=own.nodes + 7, power_limit_w=own.power_limit_w + more_w, pue=1.7)
        there = _on(cluster, work).job.cluster
        assert (there.nodes, there.power_limit_w, there.pue) == (own.nodes, lower_w, 1.7)
    assert _on(replace(own, gpu=replace(own.gpu, id="another")), work) is work


def test_rows_that_cannot_be_priced_are_named_and_the_others_kept(synthetic_runs):
    table = synthetic_runs(rows=4, groups=(256,))
    table.loc[2, "tp"] = 100
    priced = price(table)
    assert sorted(priced.rows.tolist()) == [0, 1, 3]
    assert "tp=100" in priced.reasons[2]


def test_a_table_that_the_physics_refuses_altogether_is_refused_in_one_sentence(synthetic_runs, monkeypatch):
    def refuse(_, **options):
        raise PlanError("no formula holds.")

    table = synthetic_runs(rows=3, groups=(256,))
    monkeypatch.setattr(learning.PricedPlans, "of", refuse)
    with pytest.raises(TableError, match=r"No row of the table can be priced; row 1: no formula holds\."):
        price(table)


def test_results_are_numbers_and_a_blank_status_is_ok():
    table = pd.DataFrame({"iteration_time_s": ["1.5", " ", None], "status": ["ok", None, "oom"]}, index=[7, 8, 9])
    read = with_results(table)
    np.testing.assert_array_equal(read["iteration_time_s"], [1.5, np.nan, np.nan])
    assert read["status"].tolist() == ["ok", "ok", "oom"]
    assert read.index.tolist() == [0, 1, 2]
    assert with_results(pd.DataFrame({"tp": [1]}))["iteration_time_s"].isna().all()


def test_text_for_a_time_is_named_with_its_row():
    with pytest.raises(TableError, match="Row 2 of the table: iteration_time_s must be a number or blank; got 'fast'"):
        with_results(pd.DataFrame({"iteration_time_s": [1.0, "fast"]}))


def test_timed_runs_are_those_that_finished():
    table = pd.DataFrame({"iteration_time_s": [1.0, 2.0, np.nan, 0.0], "status": ["ok", "timeout", "ok", "ok"]})
    assert timed_runs(table)["iteration_time_s"].tolist() == [1.0]
    assert timed_runs(table.drop(columns="iteration_time_s")).empty


def test_where_nothing_is_priced_every_column_is_empty() -> None:
    nothing = _NOTHING_PRICED
    columns = (nothing.rows, nothing.fitted, nothing.memory_limit_gib, nothing.work, nothing.place)
    assert {len(column) for column in (*columns, *nothing.physics.values(), nothing.runs)} == {0}
