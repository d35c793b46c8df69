"""What stops the run of a plan: what its job states, what logs of it show, and what stands in for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jointopt.core.facts import Assumption
from jointopt.frameworks.logs import Batch
from jointopt.jobs.job import Job
from jointopt.jobs.reliability import Reliability
from jointopt.measure.run_history import History, read_history
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
