"""Jobs of many clusters: a job file whose cluster has lists of GPUs and of nodes, or numbers of GPUs to try."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jointopt.core.errors import JobError, UsageError
from jointopt.spec.catalog.gpus import load_gpu
from jointopt.spec.catalog.limits import check_batch, most
from jointopt.spec.changes import changed, check_changes
from jointopt.spec.files import parse_yaml
from jointopt.spec.job import Job
from jointopt.spec.jobfile import job_file, job_text, parse_job

MOST_SIZES = 64
_OF_ONE_GPU = ("power_limit_w", "memory_gib", "intra_node_gbytes_per_s", "intra_node_pj_per_bit", "machine")


def sizes_in(text: str) -> tuple[int, ...]:
    """The numbers of GPUs in ``8..1024`` (doubled from the first to at most the last) or ``8,16,48``; UsageError."""
    first, dots, last = text.partition("..")
    highest = most("cluster.num_gpus")
    try:
        numbers = [int(word) for word in ((first, last) if dots else text.split(","))]
    except ValueError:
        numbers = [0]
    if dots and 0 < numbers[0] <= numbers[1] <= highest:
        numbers = [size for step in range(24) if (size := numbers[0] << step) <= numbers[1]]
    elif dots:
        numbers = [0]
    if not all(0 < number <= highest for number in numbers):
        raise UsageError(
            f"--gpus takes numbers of GPUs such as 8..1024 (doubled) or 8,16,48, up to {highest:,}; got {text!r}."
        )
    return tuple(sorted(set(numbers)))


def load_jobs(
    path: str | Path, gpus: Sequence[int] = (), changes: Mapping[str, Any] = MappingProxyType({}), *, weak: bool = False
) -> list[Job]:
    """A job for each cluster that a job file (or a shipped job) stands for, by GPU, then by size.

    ``cluster.gpu``, ``cluster.nodes`` and ``cluster.price_per_gpu_hour`` may be lists (prices one per GPU, in their
    order); ``gpus`` are numbers of GPUs in place of the nodes. For other GPUs in ``changes`` what the file states of
    its own is left out. ``weak``: the batch grows with the GPUs, from the file's
    at the smallest size. UsageError as for `load_job`.
    """
    file = job_file(path)
    check_changes(changes)
    text = job_text(path, file)
    try:
        mapping: Mapping[str, Any] = parse_yaml(text)
        mapping = changed(_without_own_figures(mapping) if "cluster.gpu" in changes else mapping, changes)
        return sized_jobs(mapping, file.stem, file.parent, gpus, weak=weak)
    except UsageError as error:
        raise type(error)(f"{file}: {error}") from error


def _without_own_figures(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A job file without what it states of its own GPU, for others."""
    own = {"cluster": _OF_ONE_GPU, "search": ("clock_mhz",)}
    kept = {
        section: {key: value for key, value in mapping[section].items() if key not in keys}
        for section, keys in own.items()
        if isinstance(mapping.get(section), Mapping)
    }
    return {**mapping, **kept}


def sized_jobs(
    mapping: Mapping[str, Any], stem: str, base_dir: Path, gpus: Sequence[int] = (), *, weak: bool = False
) -> list[Job]:
    """As `load_jobs`, of the mapping of a job file."""
    cluster = mapping.get("cluster")
    cluster = {"catalog": cluster} if isinstance(cluster, str) else cluster
    if not isinstance(cluster, Mapping):
        raise JobError("cluster must be a catalogue name, or a mapping with gpu, nodes and gpus_per_node.")
    kinds, nodes = _listed(cluster, "gpu"), _listed(cluster, "nodes")
    prices = _prices(cluster, len(kinds))
    jobs = [
        parse_job({**mapping, "cluster": one | price}, stem, base_dir)
        for kind, price in zip(kinds, prices, strict=True)
        for one in _clusters(cluster, kind, nodes, gpus)
    ]
    if len(jobs) > MOST_SIZES:
        raise JobError(f"cluster: {len(jobs)} sizes of clusters; at most {MOST_SIZES} are compared at once.")
    least = min(job.cluster.num_gpus for job in jobs)
    return [_named(_grown(job, least) if weak else job) for job in jobs]


def _listed(cluster: Mapping[str, Any], key: str) -> list[Any]:
    value = cluster.get(key)
    if isinstance(value, list) and not value:
        raise JobError(f"cluster.{key} must be a value, or a list of them; got [].")
    return value if isinstance(value, list) else [value]


def _prices(cluster: Mapping[str, Any], kinds: int) -> list[dict[str, Any]]:
    """The price of a GPU of each kind as a part of its cluster."""
    prices = _listed(cluster, "price_per_gpu_hour")
    if len(prices) not in (1, kinds):
        raise JobError(f"cluster.price_per_gpu_hour has {len(prices)} prices for {kinds} GPUs; expected one each.")
    prices = prices * (kinds if len(prices) == 1 else 1)
    return [{} if price is None else {"price_per_gpu_hour": price} for price in prices]


def _clusters(cluster: Mapping[str, Any], kind: Any, nodes: list[Any], gpus: Sequence[int]) -> list[dict[str, Any]]:
    base = {**cluster, **({} if kind is None else {"gpu": kind})}
    base.pop("price_per_gpu_hour", None)
    if not gpus:
        return [{**base, **({} if count is None else {"nodes": count})} for count in nodes]
    per_node = base.get("gpus_per_node")
    if per_node is None and isinstance(kind, str):
        per_node = load_gpu(kind).usual_gpus_per_node
    return [base | _split(size, per_node if isinstance(per_node, int) else 8) for size in gpus]


def _split(size: int, per_node: int) -> dict[str, int]:
    """The nodes that so many GPUs make: whole ones, or a part of one."""
    if size > per_node and size % per_node:
        raise UsageError(f"--gpus: {size} GPUs do not fill whole nodes of {per_node}; choose a multiple of {per_node}.")
    return {"nodes": max(size // per_node, 1), "gpus_per_node": min(size, per_node)}


def _grown(job: Job, least: int) -> Job:
    """The job with a batch that grows with its GPUs."""
    batch, rest = divmod(job.training.global_batch_size * job.cluster.num_gpus, least)
    if rest:
        raise UsageError(
            f"--weak: a batch of {job.training.global_batch_size} does not grow from {least} to {job.cluster.num_gpus} "
            f"GPUs in whole sequences; choose multiples of the smallest size."
        )
    check_batch(batch, job.training.seq_length, f"--weak: the batch of {job.cluster.num_gpus:,} GPUs")
    return dataclasses.replace(job, training=dataclasses.replace(job.training, global_batch_size=batch))


def _named(job: Job) -> Job:
    cluster = job.cluster
    return dataclasses.replace(job, name=f"{job.name}-{cluster.nodes}x{cluster.gpus_per_node}-{cluster.gpu.id}"[:200])
