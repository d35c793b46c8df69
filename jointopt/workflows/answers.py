"""Pieces of the answers of several verbs: chosen plans with intervals, and what was assumed for a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import PlanError
from jointopt.core.facts import Assumption
from jointopt.core.schema import POWER_LIMIT, Columns, num_gpus
from jointopt.jobs.catalog.kernels import kernel_constants, recipes_of
from jointopt.jobs.clocks import refused_limits
from jointopt.jobs.cluster import MEASURED
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import is_split
from jointopt.physics import cooling
from jointopt.physics.cost_model import CostModel
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel


def answered(model: JobModel, physics: CostModel, plans: Columns) -> Columns:
    """Plan and prediction columns of chosen plans of ``physics``, with heat, intervals and doubts.

    ``plans``: results, ``layout_index`` and ``stage_clock_mhz``.
    """
    layout = plans["layout_index"]
    columns = {name: values[layout] for name, values in physics.layouts.items()}
    columns |= {name: plans[name] for name in (*RESULTS, "fit_probability") if name in plans}
    columns |= physics.heat(layout, plans["stage_clock_mhz"])
    columns["stage_clock_mhz"] = plans["stage_clock_mhz"]
    return model.bounded(columns)


def assumptions(job: Job) -> tuple[Assumption, ...]:
    """Assumptions that stand in for values of the job's cluster and GPU that no source states."""
    gpu = job.cluster.gpu
    power = gpu.power.assumed if gpu.power else ()
    if job.training.dtype == "fp32" and not job.training.framework.tf32:
        reason = "dtype: fp32 products run on FP32 cores, as PyTorch does unless TF32 is allowed"
        power = (*power, Assumption("dtype", "fp32", reason))
    kernels = (one for one in kernel_constants(gpu).assumed if one.key not in _measured(job))
    open_ = (*_open_recipe(job), *_frozen_weights(job))
    return (*job.cluster.assumed, *open_, *power, *_raised_limit(job), *kernels, cooling.ASSUMED)


def _frozen_weights(job: Job) -> tuple[Assumption, ...]:
    """In which format weights beside adapters are held, which no job states; in full fp32 training there is but one."""
    framework = job.training.framework
    if not job.training.frozen or job.training.dtype == "fp32":
        return ()
    held = f"held in {framework.frozen_dtype}, as is usual with {framework.name}"
    return (Assumption("frozen_dtype", framework.frozen_dtype, f"frozen weights are {held}", "frozen weights", held),)


def _raised_limit(job: Job) -> tuple[Assumption, ...]:
    """That a stated power limit is above what the GPU is rated for, as some boards take."""
    limit_w, rated_w = job.cluster.power_limit_w, job.cluster.gpu.tdp_w
    if rated_w is None or limit_w <= rated_w:
        return ()
    reason = f"power_limit_w: {limit_w:g} W is more than the {rated_w:g} W that the GPU is rated for; taken as stated"
    return (Assumption("power_limit_w", limit_w, reason),)


def _open_recipe(job: Job) -> tuple[Assumption, ...]:
    """That it is not stated how products of fp8 are scaled, where the GPU runs them by several recipes."""
    training = job.training
    names = recipes_of(training.dtype, job.cluster.gpu) if training.fp8_recipe is None else ()
    if len(names) < 2:
        return ()
    text = f"one of {', '.join(names)}"
    how = "casts of delayed scaling and products as in recorded runs, which state none either, are assumed"
    return (Assumption.not_given("fp8_recipe", None, text, f"it is {text}; {how}"),)


_MEASURED_BY = {"collectives": "intra_node_gbytes_per_s", "network": "inter_node_gbytes_per_s"}


def _measured(job: Job) -> set[str]:
    """Keys of assumptions about kernels in whose place the machine's own figures stand."""
    found = {key for key, figure in _MEASURED_BY.items() if job.cluster.origin(figure) == MEASURED}
    return found | ({"gemm"} if job.training.dtype in job.cluster.gpu.product_time_factor else set())


def check_priceable(job: Job, record: Mapping[str, Any], broken: list[str]) -> None:
    """Some broken rules leave nothing to compute; the others are reported beside the numbers.

    So does a power limit beyond the cluster's own, above which nothing is known of the GPU.
    """
    batch = job.training.global_batch_size % (record["dp"] * record["micro_batch_size"])
    odd = record["pp"] > job.model.num_layers or not is_split(
        job.model, record["stage_layers"], record["pp"] * record["vpp"]
    )
    if broken and (num_gpus(record) != job.cluster.num_gpus or batch or odd):
        raise PlanError(f"The plan cannot be priced for job {job.name!r}: {' '.join(broken)}")
    limits = [record.get(POWER_LIMIT) or 0.0, *record.get("stage_power_limit_w", ())]
    if job.cluster.gpu.power is not None and max(limits) > job.cluster.power_limit_w:
        refused = refused_limits(job.cluster, [watts for watts in limits if watts])
        raise PlanError(f"The plan cannot be priced for job {job.name!r}: its power limit states {refused}.")
