"""Figures that `doctor --probe` measured of one machine: their file, and a cluster with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jointopt.core.errors import JobError, UsageError
from jointopt.core.facts import Assumption
from jointopt.core.schema import DTYPES
from jointopt.spec.check import Section
from jointopt.spec.files import read_written, write_yaml

if TYPE_CHECKING:
    from jointopt.spec.cluster import Cluster, Gpu
    from jointopt.spec.job import Job

VERSION = 1
_HEADER = """\
# One machine, measured by `jointopt doctor --probe`; use it with --machine, or as cluster.machine in a job file.
# Figures are what the physics takes to reach the measured times: links as the job file has them, per GPU and direction;
# product_time_factor multiplies the catalogue's time of matrix products. The readings are what was measured.
"""
# figures of a cluster, those of its GPU, and the highest plausible value of each
_LINKS = {"intra_node_gbytes_per_s": 1e6, "inter_node_gbytes_per_s": 1e6, "inter_node_latency_us": 1e6}
_OF_GPU = {"memory_gib": 65_536.0, "memory_gbytes_per_s": 1e6}
_LEAST_FACTOR, _MOST_FACTOR = 0.4, 100.0  # the catalogue has products at half of a GPU's peak and more
_MOST_OF_GPU = 1.1  # of the memory and its bandwidth that the GPU is sold with
KEYS = ("version", "gpu", "gpus_per_node", "figures", "measured", "fit_error_percent", "readings")
_WORDS = {
    "intra_node_gbytes_per_s": "links inside a node", "inter_node_gbytes_per_s": "links between nodes",
    "memory_gib": "memory", "memory_gbytes_per_s": "memory bandwidth",
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Figures of nodes of one kind, by their names in the job file; what was not measured is in none of them."""

    gpu: str
    gpus_per_node: int
    figures: Mapping[str, float]  # of `_LINKS` and `_OF_GPU`
    product_time_factor: Mapping[str, float] = field(default_factory=dict)  # by dtype, over the catalogue's time
    measured: Mapping[str, Any] = field(default_factory=dict)  # when, on how many nodes, by which versions
    fit_error_percent: Mapping[str, float] = field(default_factory=dict, compare=False)  # median, by kind of reading
    readings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def mapping(self) -> dict[str, Any]:
        """The machine as a job file holds it in place, without its readings."""
        products = {"product_time_factor": dict(self.product_time_factor)} if self.product_time_factor else {}
        figures = dict(self.figures) | products
        same = {"version": VERSION, "gpu": self.gpu, "gpus_per_node": self.gpus_per_node, "figures": figures}
        return same | ({"measured": dict(self.measured)} if self.measured else {})


def save_machine(machine: Machine, path: Path) -> None:
    """Writes the YAML file. Raises UsageError where it cannot."""
    rest = {"fit_error_percent": dict(machine.fit_error_percent), "readings": dict(machine.readings)}
    write_yaml(path, _HEADER, machine.mapping() | {key: value for key, value in rest.items() if value})


def load_machine(path: Path) -> Machine:
    """The machine of a file; JobError names a key that is unknown, missing or out of range, and the file."""
    return read_written(path, "machine file that `jointopt doctor --probe` wrote", parse_machine)


def parse_machine(mapping: Mapping[str, Any], where: str = "") -> Machine:
    """The machine that a mapping describes; JobError for a bad key or value."""
    section = Section(mapping, where).only(KEYS)
    section.version(VERSION)
    figures = section.section("figures", (*_LINKS, *_OF_GPU, "product_time_factor"))
    factors = figures.section("product_time_factor", DTYPES)
    limits = _LINKS | _OF_GPU
    machine = Machine(
        gpu=section.text("gpu"), gpus_per_node=section.whole("gpus_per_node"),
        figures={k: figures.number(k, most, zero=k.endswith("_us")) for k, most in limits.items() if figures.has(k)},
        product_time_factor={dtype: factors.number(dtype, _MOST_FACTOR) for dtype in DTYPES if factors.has(dtype)},
        **{key: dict(section.section(key).values) for key in ("measured", "fit_error_percent", "readings")},
    )  # fmt: skip
    if not (machine.figures or machine.product_time_factor):
        raise JobError(f"{section.at('figures')} states nothing; expected one of {', '.join(limits)}.")
    return machine


def with_machine(cluster: Cluster, machine: Machine | None) -> Cluster:
    """The cluster with the machine's figures but for those that the job or table states; itself for ``None``.

    Raises UsageError for a machine of another GPU or node size, for more memory or faster products than the GPU has,
    and beside another that the job file names.
    """
    if machine is None or machine == cluster.machine:
        return cluster
    if cluster.machine is not None:
        raise UsageError("The job file names a machine in cluster.machine and --machine gives another; give one.")
    if not is_of(machine, cluster):
        raise UsageError(
            f"The machine file is of {machine.gpu!r}, {machine.gpus_per_node} a node, and the job runs on "
            f"{cluster.gpu.id!r}, {cluster.gpus_per_node} a node; measure that machine with `jointopt doctor --probe`."
        )
    _check_possible(machine, cluster.gpu)
    taken: dict[str, Any] = {key: value for key, value in machine.figures.items() if key not in cluster.stated}
    of_gpu = {key: taken.pop(key) for key in _OF_GPU if key in taken}
    return replace(
        cluster, machine=machine, **taken,
        gpu=replace(cluster.gpu, **of_gpu, product_time_factor=machine.product_time_factor),
        assumed=(*(a for a in cluster.assumed if a.key not in taken), _measured_by(machine, cluster)),
    )  # fmt: skip


def _check_possible(machine: Machine, gpu: Gpu) -> None:
    """Raises UsageError for more memory or faster products than the GPU has; cores differ by more than that."""
    most = {key: _MOST_OF_GPU * getattr(gpu, key) for key in _OF_GPU}
    wrong = [f"{key} {machine.figures[key]:g}, more than" for key in most if machine.figures.get(key, 0.0) > most[key]]
    wrong += [
        f"product_time_factor.{dtype} {factor:g}, faster products than"
        for dtype, factor in machine.product_time_factor.items() if factor < _LEAST_FACTOR
    ]  # fmt: skip
    if wrong and not gpu.is_cpu:
        raise UsageError(
            f"The machine file states {wrong[0]} {gpu.id!r} can have; measure that machine with "
            "`jointopt doctor --probe`."
        )


def is_of(machine: Machine, cluster: Cluster) -> bool:
    """Whether it measured the cluster's GPU in nodes of its size, or of one node a part."""
    part = cluster.nodes == 1 and cluster.gpus_per_node < machine.gpus_per_node
    return machine.gpu == cluster.gpu.id and (part or machine.gpus_per_node == cluster.gpus_per_node)


def on_machine(job: Job, machine: Machine | None) -> Job:
    """The job on its cluster `with_machine`."""
    return job if machine is None else replace(job, cluster=with_machine(job.cluster, machine))


def table_lines(machine: Machine | None, rows: Sequence[tuple[Cluster, int]]) -> Iterator[str]:
    """Where the file changes nothing: runs on other nodes, and figures that a table states otherwise, a sentence each.

    ``rows``: the clusters of a table and on how many rows each is. Raises UsageError where none is of such nodes.
    """
    if machine is None or not rows:
        return
    other = [(cluster, count) for cluster, count in rows if not is_of(machine, cluster)]
    kinds = ", ".join(sorted({f"{c.gpus_per_node} x {c.gpu.id}" for c, _ in other})[:5])
    if len(other) == len(rows):
        raise UsageError(
            f"The machine file is of {machine.gpus_per_node} x {machine.gpu} a node and no run of the table is on "
            f"such nodes (they are {kinds}); leave --machine out, or measure one of these."
        )
    if other:
        runs, total = (sum(count for _, count in some) for some in (other, rows))
        yield (
            f"{runs:,} of {total:,} rows are on other nodes ({kinds}) than the machine file's and are predicted "
            "without it."
        )
    stated: Counter[tuple[str, float]] = Counter()
    for cluster, count in rows:
        if is_of(machine, cluster):
            stated.update(dict.fromkeys(_stated_otherwise(machine, cluster).items(), count))
    for (key, value), count in stated.items():
        yield (
            f"{key} is {value:g} in {count:,} row{'s' * (count > 1)} and {machine.figures[key]:g} in the machine file; "
            "the table's counts: leave its cells blank for the measured one."
        )


def _measured_by(machine: Machine, cluster: Cluster) -> Assumption:
    """Which figures are no assumption any more, since when, and which ones the job states otherwise."""
    parts = [words for key, words in _WORDS.items() if key in machine.figures]
    if machine.product_time_factor:
        parts.append(f"products ({', '.join(machine.product_time_factor)})")
    on = f" on {str(machine.measured['at'])[:10]}" if "at" in machine.measured else ""
    brief = f"{', '.join(parts)} measured{on}"
    kept = [
        f"{key} {value:g} as the job states it, measured {machine.figures[key]:g}"
        for key, value in _stated_otherwise(machine, cluster).items()
    ]
    text = "; ".join([brief, *kept])
    return Assumption("probe", machine.gpu, f"{machine.gpus_per_node} x {machine.gpu}: {text}", machine.gpu, text)


def _stated_otherwise(machine: Machine, cluster: Cluster) -> dict[str, float]:
    """Figures of the machine that the cluster states with another value: that value by name."""
    figures = {key: getattr(cluster.gpu if key in _OF_GPU else cluster, key) for key in machine.figures}
    return {key: value for key, value in figures.items() if key in cluster.stated and value != machine.figures[key]}
