"""What an answer had to assume about a job's cluster and GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import jointopt
from jointopt.core.schema import POWER_LIMIT
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.workflows.answers import assumptions, with_power_limits


def assumed(job: Job) -> set[str]:
    return {one.key for one in assumptions(job)}


def test_kernels_that_no_source_measures_are_assumed_until_the_machine_measures_them() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    assert assumed(job) >= {"gemm", "collectives", "network", "cooling", "pue"}
    measured = Machine("a100-sxm4-40gb", 4, {"intra_node_gbytes_per_s": 250.0, "inter_node_gbytes_per_s": 5.0})
    cluster = replace(job.cluster, machine=measured, stated=frozenset())
    gpu = replace(cluster.gpu, product_time_factor={"bf16": 1.1})
    assert assumed(job) - assumed(replace(job, cluster=replace(cluster, gpu=gpu))) >= {"gemm", "collectives", "network"}
    assert "gemm" in assumed(
        replace(job, cluster=replace(cluster, gpu=replace(gpu, product_time_factor={"fp32": 1.1})))
    )


def test_products_of_fp32_are_assumed_to_run_without_tf32_unless_the_framework_allows_it() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    single = replace(job, training=replace(job.training, dtype="fp32"))
    allowed = replace(
        single, training=replace(single.training, framework=replace(single.training.framework, tf32=True))
    )
    assert ["dtype" in assumed(one) for one in (job, single, allowed)] == [False, True, False]


def test_a_power_limit_above_what_the_gpu_is_rated_for_is_taken_and_named() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    raised, rated = (replace(job, cluster=replace(job.cluster, power_limit_w=w)) for w in (450.0, 400.0))
    (text,) = (str(one) for one in assumptions(raised) if one.key == "power_limit_w")
    assert "450 W is more than the 400 W that the GPU is rated for" in text
    assert "power_limit_w" not in assumed(rated)


def test_the_format_of_frozen_weights_is_assumed_where_there_are_any() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    adapted = replace(job, training=replace(job.training, lora_dim=8))
    single = replace(adapted, training=replace(adapted.training, dtype="fp32"))
    assert ["frozen_dtype" in assumed(one) for one in (job, adapted, single)] == [False, True, False]


def test_of_a_plan_s_power_limit_and_the_cluster_s_the_tighter_one_holds() -> None:
    job = shipped_job("opt-350m-2x4-a100")
    limited = replace(job, cluster=replace(job.cluster, power_limit_w=350.0))
    one, other = {"pp": np.ones(3), POWER_LIMIT: np.array([300.0, 400.0, np.nan])}, {"pp": np.ones(1)}
    found = [part[POWER_LIMIT].tolist() for part in with_power_limits([one, other], limited)]
    assert found == [[300.0, 350.0, 350.0], [350.0]]
    assert with_power_limits([other, other], limited) == [other, other]


def test_a_table_of_predictions_has_the_probability_of_fitting_that_explain_has() -> None:
    job, plan = shipped_job("llama-3-8b-1x8-h100"), "dp=4 tp=2 zero_stage=1 recompute=selective"
    alone = jointopt.explain(job, plan).fit_probability
    assert 0.5 < alone < 0.999
    assert jointopt.predict(job, [plan])["fit_probability"].tolist() == pytest.approx([alone], abs=1e-6)
