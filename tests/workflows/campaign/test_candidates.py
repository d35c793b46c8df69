"""Plans of a job as rows of a measurement table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jointopt
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.runs.workloads import workloads
from jointopt.workflows.campaign.candidates import _limits_gib, measurement_columns, searched_candidates


@pytest.mark.parametrize("offered", [25.0, 6.25])
def test_rows_of_a_job_are_priced_under_its_own_fabric(offered: float) -> None:
    job = jointopt.load_job("opt-350m-2x4-a100")
    job = replace(job, cluster=replace(job.cluster, inter_node_gbytes_per_s=offered))
    layouts = enumerate_layouts(job).layouts
    plan = {name: values[:1] for name, values in layouts.items()} | {"stage_clock_mhz": np.full((1, 1), 1410.0)}
    rows = measurement_columns(job, plan)
    (found,), _ = workloads(rows)
    assert found.job.cluster.inter_node_gbytes_per_s == offered
    assert np.isnan(rows["inter_node_gbytes_per_s"]).tolist() == [
        offered == job.cluster.gpu.usual_inter_node_gbytes_per_s
    ]


@pytest.mark.parametrize("freq", [0, 3, (0, 1) * 12])
def test_rows_of_a_job_have_the_windows_of_its_model(freq: Any) -> None:
    job = jointopt.load_job("opt-350m-2x4-a100")
    job = replace(job, model=replace(job.model, window_size=256, window_attn_skip_freq=freq))
    layouts = enumerate_layouts(job).layouts
    plan = {name: values[:1] for name, values in layouts.items()} | {"stage_clock_mhz": np.full((1, 1), 1410.0)}
    (found,), _ = workloads(measurement_columns(job, plan))
    assert found.job.model.windowed_layers == job.model.windowed_layers
    assert found.job.model.window_cells == job.model.window_cells


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "mpt-7b", "llama-3-8b"])
def test_rows_of_a_job_state_its_attention_and_tf32(name: str) -> None:
    job = jointopt.load_job("opt-350m-2x4-a100")
    tf32 = replace(job.training, dtype="fp32", framework=replace(job.training.framework, tf32=True))
    job = replace(job, model=replace(load_model(name), name="own"), training=tf32)
    plan = {name: values[:1] for name, values in enumerate_layouts(job).layouts.items()}
    (found,), _ = workloads(measurement_columns(job, plan | {"stage_clock_mhz": np.full((1, 1), 1410.0)}))
    assert found.job.model.attention_cells == job.model.attention_cells
    assert found.job.training.precision == "tf32"


def test_candidates_keep_the_bounds_of_the_job_as_its_model_predicts() -> None:
    job = jointopt.load_job("opt-350m-2x4-a100")
    job = replace(job, search=replace(job.search, pp=(1,)))
    least_s = searched_candidates(job).predicted["iteration_time_s"].min()
    bound = replace(job.constraints, iteration_time_s=1.1 * least_s)
    kept = searched_candidates(replace(job, constraints=bound)).predicted["iteration_time_s"]
    assert least_s <= kept.min() < kept.max() <= 1.1 * least_s


@pytest.mark.parametrize(("share", "has"), [(None, 0.9), (0.5, 0.9), (0.95, 0.95)])
def test_runs_have_the_memory_that_is_usual_or_more_where_the_job_allows_more(share, has) -> None:
    job = jointopt.load_job("opt-350m-2x4-a100")
    framework = replace(job.training.framework, memory_fraction=0.9)
    runs = replace(job, training=replace(job.training, framework=framework))
    bound = replace(job, constraints=replace(job.constraints, memory_fraction=share))
    gib = runs.cluster.gpu.memory_gib
    assert _limits_gib(runs, bound) == pytest.approx((has * gib, (share or 0.9) * gib))
