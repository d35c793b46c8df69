"""What stops the run of a plan: what its job states, what logs of it show, and what stands in for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jointopt.core.facts import Assumption
from jointopt.core.schema import Columns
from jointopt.frameworks.logs import Batch
from jointopt.jobs.job import Job
from jointopt.jobs.reliability import Reliability, with_defaults
from jointopt.measure.run_history import History, read_history
from jointopt.physics.checkpoints import checkpoint_s
from jointopt.physics.event_simulation import Failures
from jointopt.physics.failure_rate import Rate, failure_rate

_MEASURED = ("detection_s", "restart_s", "checkpoint_s", "checkpoint_write_s")
_DAY_S = 86_400.0


def history_of(job: Job, files: Sequence[Path]) -> History:
    """The history of a run of the job from its logs and tables of sacct."""
    batch = Batch(job.training.global_batch_size, job.training.seq_length, job.cluster.num_gpus)
    return read_history(files, batch, job.cluster.nodes)


def rate_of(history: History, job: Job) -> Rate:
    """Failures per GPU-hour that the history of a run shows."""
    return failure_rate(history.failures, history.node_hours * job.cluster.gpus_per_node)


def with_measured(job: Job, history: History) -> tuple[Reliability, tuple[Assumption, ...]]:
    """The job's reliability with what a history shows in place of what is not stated, each figure with its source."""
    stated, files = job.reliability, ", ".join(history.sources)
    found = {name: getattr(history, name) for name in _MEASURED}
    whole = f"measured in {files} (starts: {history.starts}, failures: {history.failures})"
    rate = rate_of(history, job)
    if stated.failures_per_node_hour is None:
        found["failures_per_gpu_hour"] = rate.mean
    if history.planned_stops and math.isfinite(history.planned_stop_s) and not stated.planned_stops_per_day:
        found["planned_stops_per_day"] = history.planned_stops * _DAY_S / history.calendar_s
        found["planned_stop_s"] = history.planned_stop_s
    usual = Reliability()
    found = {name: value for name, value in found.items()
             if math.isfinite(value) and getattr(stated, name) == getattr(usual, name)}  # fmt: skip
    origins = []
    for name, value in found.items():
        between = f", 90 % between {rate.low:.3g} and {rate.high:.3g} by Jeffreys' prior" if "gpu_hour" in name else ""
        words = f"{value:.3g} is {whole}{between}"
        origins.append(Assumption.not_given(f"reliability.{name}", value, f"{value:.3g}", words))
    return replace(stated, **found), tuple(origins)


def of_plan(job: Job, layouts: Columns, stated: Reliability) -> tuple[Reliability, tuple[Assumption, ...]]:
    """What is stated with the catalogue's figures for the rest, and checkpoints of the bytes that the plan writes."""
    stated, assumed = with_defaults(stated)
    rates = stated.storage_gbytes_per_s, stated.storage_total_gbytes_per_s
    written = float(checkpoint_s(job, layouts, *rates)[0]) if any(rates) else 0.0
    words = " and ".join(f"{rate:g} GB/s {of}" for rate, of in zip(rates, ("per node", "in all"), strict=True) if rate)
    if stated.checkpoint_s is None:
        how = f"{written:.3g} s are the bytes of the states, each written once, at {words}"
        assumed += (Assumption.not_given("reliability.checkpoint_s", written, f"{written:.3g} s", how),)
        stated = replace(stated, checkpoint_s=written, checkpoint_write_s=stated.checkpoint_write_s or 0.0)
    if stated.checkpoint_write_s is None:
        later_s = max(written - float(stated.checkpoint_s or 0.0), 0.0)
        how = f"{later_s:.3g} s are what is left of the bytes of the states at {words}"
        if not words:
            how = "a checkpoint counts as whole when training goes on (storage_gbytes_per_s would give its time)"
        assumed += (Assumption.not_given("reliability.checkpoint_write_s", later_s, f"{later_s:.3g} s", how),)
        stated = replace(stated, checkpoint_write_s=later_s)
    return stated, assumed


def failures_of(job: Job, stated: Reliability, stages: int) -> Failures:
    """How failures of a run come.

    A rack takes all copies of a state where it holds as many GPUs as a stage: replicas of a stage stand side by side.
    """
    cluster = job.cluster
    return Failures(
        shape=stated.weibull_shape, rack_share=stated.rack_failure_share, rack_nodes=stated.rack_nodes,
        rack_copies=stated.rack_nodes * cluster.gpus_per_node >= cluster.num_gpus / stages, nodes=cluster.nodes,
        lemons=stated.lemon_node_share * cluster.nodes, lemon_factor=stated.lemon_failure_factor,
        lemon_failures=stated.lemon_failures,
    )  # fmt: skip
