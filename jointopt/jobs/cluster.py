"""A GPU, a measured machine and a cluster as frozen objects; ``None`` is a figure that no source states."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jointopt.core.errors import CatalogError, JobError, UsageError
from jointopt.core.facts import Assumption
from jointopt.core.schema import DTYPES
from jointopt.core.short_repr import ShortRepr
from jointopt.jobs.reading import Section, read_written, write_yaml

MEASURED = "measured"
CLOCK_RANGE = "clock_range"  # the key of the assumption that stands in for a range of clocks that no source states
FAR_LINK = 4  # times a GPU's reference system: eight is a figure in Gb/s, and two the next generation of networks
_WITHOUT_TF32 = ("CDNA 2", "CDNA 4")  # which have bf16
_MOST_OF_TDP = 1.5
_MOST_OF_MEMORY = 1.08  # a reading in GB passes for GiB by 7.4 %


@dataclass(frozen=True)
class PowerConstants:
    """Constants of one GPU's power model (`jointopt.physics.clock_law` has the formulas).

    All watts and picojoules are at the maximum clock; dynamic parts scale with the voltage curve.
    """

    static_w: float  # drawn whenever the board is powered and awake, whatever runs
    wait_w: float  # drawn while a rank blocks on communication or sits in a bubble
    active_w: float  # extra while any kernel runs, at the maximum clock (clock tree, issue, caches)
    pj_per_flop: float  # extra per tensor-core floating-point operation in 16 bit, at the maximum clock
    pj_per_hbm_byte: float  # extra per byte moved to or from device memory, clock-independent
    knee_fraction: float  # clock / maximum clock below which the voltage no longer falls
    voltage_ratio: float  # V(maximum clock) / V(below the knee)
    assumed: tuple[Assumption, ...] = ()  # which of these were not measured on this GPU, and what stands in


@dataclass(frozen=True, repr=False)
class Gpu(ShortRepr):
    """One GPU as the software sees it. ``None`` means that no source states the figure."""

    id: str
    name: str
    vendor: str
    architecture: str
    peak_tflops: Mapping[str, float]  # dense, by dtype: fp32 (tensor cores, TF32), fp16, bf16, fp8, fp4
    memory_gib: float
    memory_gbytes_per_s: float
    sm_count: int | None
    intra_node_gbytes_per_s: float | None  # scale-up link, per GPU, one direction
    scale_up_gpus: int | None  # GPUs within one scale-up domain (NVLink switch); None = the node
    usual_gpus_per_node: int | None
    usual_inter_node_gbytes_per_s: float | None  # per GPU, one direction, as in the vendor's reference system
    clock_min_mhz: float | None
    clock_max_mhz: float | None
    clock_step_mhz: float | None
    tdp_w: float | None
    idle_w: float | None
    wait_w: float | None
    throttle_temperature_c: float | None
    host_gbytes_per_s: float | None = None  # link to host memory, one direction; None = its architecture's PCIe x16
    host_time_factor: float | None = None  # Python and driver time of its host over an x86 server; None = 1
    process_memory_gib: float | None = None  # held by a process before it trains; None = the framework's overhead
    power_limit_min_w: float | None = None  # the least limit that its driver takes
    power: PowerConstants | None = None
    product_time_factor: Mapping[str, float] = field(default_factory=dict)  # by dtype, measured over the catalogue's
    sources: Mapping[str, str] = field(default_factory=dict)
    like: str = ""  # of a GPU that a job states itself: the catalogue's that stands in for what it leaves out
    own_figures: Mapping[str, Any] = field(default_factory=dict)  # the mapping in the job file; empty: the catalogue's

    @property
    def catalogue_id(self) -> str:
        """The id of the GPU in the catalogue whose kernels, links and hosts it has: its own, or that of ``like``."""
        return self.like or self.id

    @property
    def has_tf32(self) -> bool:
        """Whether its tensor cores multiply fp32 numbers in 19 bits: NVIDIA's since Ampere, of AMD's CDNA 3."""
        return not self.is_cpu and "bf16" in self.peak_tflops and self.architecture not in _WITHOUT_TF32

    @property
    def clock_span_mhz(self) -> tuple[float, float]:
        """(lowest, highest) SM clock in MHz, as far as a source states them."""
        return self.clock_min_mhz or 0.0, self.clock_max_mhz or math.inf

    @property
    def rest_w(self) -> float:
        """Power in W of one GPU at rest, as stated or by its power law; NaN where neither is known."""
        return self.idle_w if self.idle_w is not None else self.power.static_w if self.power else math.nan

    @property
    def power_limit_span_w(self) -> tuple[float, float]:
        """(least, most) W that a power limit lies between.

        The least is what its driver takes, where a source states it, else what it draws at rest. No board is sold with
        half as much again as its rated power.
        """
        return self.power_limit_min_w or self.idle_w or 0.0, _MOST_OF_TDP * (self.tdp_w or math.inf)

    @property
    def mean_power_span_w(self) -> tuple[float, float]:
        """(least, most) W of a run's mean power: half of what it draws at rest, since boards differ, to its top limit.

        A hundredth of its rated power where no source states what it draws at rest: those stated are 0.09 and more.
        """
        return (self.idle_w / 2.0 if self.idle_w else 0.01 * (self.tdp_w or 0.0)), self.power_limit_span_w[1]

    @property
    def memory_span_gib(self) -> tuple[float, float]:
        """(0, most) GiB of a reading of its memory; a core of a CPU shares that of its host."""
        return 0.0, math.inf if self.is_cpu else _MOST_OF_MEMORY * self.memory_gib

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU, of which only times are predicted."""
        return self.architecture == "CPU"

    @property
    def peak_16_bit_tflops(self) -> float | None:
        """The dense rate in bf16, else in fp16; None where it has neither."""
        return self.peak_tflops.get("bf16", self.peak_tflops.get("fp16"))

    def need(self, figure: str, why: str) -> float:
        """The figure, or a CatalogError that says what its absence makes impossible."""
        value = getattr(self, figure)
        if value is None:
            raise CatalogError(
                f"The catalogue has no {figure} for GPU {self.id!r} (no source states it), which is needed to {why}; "
                f"choose another GPU or give the figure in the job file where it has a key for it."
            )
        return float(value)


VERSION = 1
_HEADER = """\
# One machine, measured by `jointopt doctor --probe`; use it with --machine, or as cluster.machine in a job file.
# Figures are what the physics takes to reach the measured times: links as the job file has them, per GPU and direction;
# product_time_factor multiplies the catalogue's time of matrix products. The readings are what was measured.
"""
# figures of a cluster, those of its GPU, and the highest plausible value of each
_LINKS = {"intra_node_gbytes_per_s": 1e6, "inter_node_gbytes_per_s": 1e6, "inter_node_latency_us": 1e6}
OF_GPU = {"memory_gib": 65_536.0, "memory_gbytes_per_s": 1e6}
LEAST_FACTOR, _MOST_FACTOR = 0.4, 100.0  # the catalogue has products at half of a GPU's peak and more
KEYS = ("version", "gpu", "gpus_per_node", "figures", "measured", "fit_error_percent", "readings")


@dataclass(frozen=True)
class Machine:
    """Figures of nodes of one kind, by their names in the job file; what was not measured is in none of them."""

    gpu: str
    gpus_per_node: int
    figures: Mapping[str, float]  # of `_LINKS` and `OF_GPU`
    product_time_factor: Mapping[str, float] = field(default_factory=dict)  # by dtype, over the catalogue's time
    measured: Mapping[str, Any] = field(default_factory=dict)  # when, on how many nodes, by which versions
    fit_error_percent: Mapping[str, float] = field(default_factory=dict, compare=False)  # median, by kind of reading
    readings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def mapping(self) -> dict[str, Any]:
        """The machine as a job file holds it in place, without its readings."""
        products = {"product_time_factor": dict(self.product_time_factor)} if self.product_time_factor else {}
        measured = {"measured": dict(self.measured)} if self.measured else {}
        same = {"version": VERSION, "gpu": self.gpu, "gpus_per_node": self.gpus_per_node}
        return same | {"figures": dict(self.figures) | products} | measured


@dataclass(frozen=True, repr=False)
class Cluster(ShortRepr):
    """Nodes and GPUs that the job runs on. Bandwidths are per GPU and one direction; no field is blank."""

    gpu: Gpu
    nodes: int
    gpus_per_node: int
    intra_node_gbytes_per_s: float
    inter_node_gbytes_per_s: float
    inter_node_latency_us: float
    intra_node_pj_per_bit: float
    inter_node_pj_per_bit: float
    inlet_temperature_c: float
    host_power_w: float  # per node, whatever its GPUs do
    pue: float
    power_limit_w: float  # per GPU
    name: str = ""
    assumed: tuple[Assumption, ...] = ()  # what was not stated anywhere and what stands in for it
    carbon_kg_per_kwh: float | None = None  # of the site's electricity; None = carbon is not reported
    price_per_kwh: float | None = None  # in ``currency``; None = cost is not reported
    price_per_gpu_hour: float | None = None  # in ``currency`` too; None = the cost of GPUs is not reported
    currency: str = ""
    host_load_share: float = 0.0  # W that a host draws beyond that for each W of its GPUs: fans, supplies, switches
    exhaust_rise_k: float = 0.0  # air of the GPUs in a node's exhaust row above the inlet temperature
    exhaust_ranks: tuple[int, ...] | None = None  # local ranks in that row; None: any rank may be there
    cooling: str | None = None  # of the nodes, air or liquid, in ``host_load_share``; None: as usual for the GPU
    machine: Machine | None = None  # whose measured figures are in the others
    stated: frozenset[str] = field(default=frozenset(), compare=False)  # figures that the job or table gives itself

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes together."""
        return self.nodes * self.gpus_per_node

    @property
    def has_price(self) -> bool:
        """Whether the price of a GPU-hour or of a kWh is stated."""
        return self.price_per_gpu_hour is not None or self.price_per_kwh is not None

    @property
    def stated_gbytes_per_s(self) -> float:
        """The fabric between nodes in GB/s per GPU as a table states it: NaN for the GPU's usual or a measured one."""
        key = "inter_node_gbytes_per_s"
        usual = self.inter_node_gbytes_per_s == self.gpu.usual_inter_node_gbytes_per_s
        if self.machine is not None:  # whose figure would stand in for a blank
            usual = self.origin(key) != "stated"
        return math.nan if usual else self.inter_node_gbytes_per_s

    def origin(self, key: str) -> str:
        """Whether a figure is ``stated`` by the job, ``measured`` on the machine, ``assumed``, or the catalogue's."""
        if key in self.stated:
            return "stated"
        if self.machine is not None and key in self.machine.figures:
            return MEASURED
        return "assumed" if any(one.key == key for one in self.assumed) else "catalogue"

    @property
    def has_far_link(self) -> bool:
        """Whether a link that the job uses is over `FAR_LINK` times as fast as the GPU's usual one."""
        if self.gpu.is_cpu:  # of which the catalogue has orders of magnitude
            return False
        links = [(self.intra_node_gbytes_per_s, self.gpu.intra_node_gbytes_per_s)]
        if self.nodes > 1:
            links.append((self.inter_node_gbytes_per_s, self.gpu.usual_inter_node_gbytes_per_s))
        return any(usual and gbytes > FAR_LINK * usual for gbytes, usual in links)

    @property
    def scale_up_gpus(self) -> int:
        """GPUs that reach each other over the scale-up link; a node unless a rack-wide switch is known."""
        return max(self.gpus_per_node, self.gpu.scale_up_gpus or 0)


# A cluster with the figures that `doctor --probe` measured of its machine.


_MOST_OF_GPU = 1.1  # of the memory and its bandwidth that the GPU is sold with
_WORDS = {
    "intra_node_gbytes_per_s": "links inside a node", "inter_node_gbytes_per_s": "links between nodes",
    "memory_gib": "memory", "memory_gbytes_per_s": "memory bandwidth",
}  # fmt: skip


def with_machine(cluster: Cluster, machine: Machine | None) -> Cluster:
    """The cluster with the machine's figures but for those that the job or table states; itself for ``None``.

    Raises UsageError for a machine of another GPU or node size, for more memory or faster products than the GPU has,
    and beside another that the job file names.
    """
    if machine is None or machine == cluster.machine:
        return cluster
    if cluster.machine is not None:
        raise UsageError("The job file names a machine in cluster.machine and --machine gives another; give one.")
    gpu, factors = cluster.gpu, machine.product_time_factor
    if not machine_fits(machine, cluster):
        raise UsageError(
            f"The machine file is of {machine.gpu!r}, {machine.gpus_per_node} a node, and the job runs on "
            f"{gpu.id!r}, {cluster.gpus_per_node} a node; measure that machine with `jointopt doctor --probe`."
        )
    wrong = [f"{key} {machine.figures[key]:g}, more than" for key in OF_GPU
             if machine.figures.get(key, 0.0) > _MOST_OF_GPU * getattr(gpu, key)]  # fmt: skip
    wrong += [f"product_time_factor.{d} {factors[d]:g}, faster products than" for d in factors
              if factors[d] < LEAST_FACTOR]  # fmt: skip
    if wrong and not gpu.is_cpu:  # whose cores differ by more than that
        raise UsageError(
            f"The machine file states {wrong[0]} {gpu.id!r} can have; measure that machine with "
            "`jointopt doctor --probe`."
        )
    taken: dict[str, Any] = {key: value for key, value in machine.figures.items() if key not in cluster.stated}
    of_gpu = {key: taken.pop(key) for key in OF_GPU if key in taken}
    # which figures are no assumption any more, since when, and which ones the job states otherwise
    parts = [words for key, words in _WORDS.items() if key in machine.figures]
    parts += [f"products ({', '.join(factors)})"] if factors else []
    on = f" on {str(machine.measured['at'])[:10]}" if "at" in machine.measured else ""
    kept = [
        f"{key} {value:g} as the job states it, measured {machine.figures[key]:g}"
        for key, value in _stated_otherwise(machine, cluster).items()
    ]
    text = "; ".join([f"{', '.join(parts)} measured{on}", *kept])
    sentence = f"{machine.gpus_per_node} x {machine.gpu}: {text}"
    measured = Assumption("probe", machine.gpu, sentence, machine.gpu, text)
    return replace(
        cluster, machine=machine, **taken, gpu=replace(gpu, **of_gpu, product_time_factor=factors),
        assumed=(*(a for a in cluster.assumed if a.key not in taken), measured),
    )  # fmt: skip


def machine_fits(machine: Machine, cluster: Cluster) -> bool:
    """Whether the machine has the cluster's GPU in nodes of the same size, or the job fills a part of one node."""
    part = cluster.nodes == 1 and cluster.gpus_per_node < machine.gpus_per_node
    return machine.gpu == cluster.gpu.id and (part or machine.gpus_per_node == cluster.gpus_per_node)


def _stated_otherwise(machine: Machine, cluster: Cluster) -> dict[str, float]:
    """The cluster's own values, by figure, where the job or table states another one than the machine measured."""
    figures = {key: getattr(cluster.gpu if key in OF_GPU else cluster, key) for key in machine.figures}
    return {key: value for key, value in figures.items() if key in cluster.stated and value != machine.figures[key]}


def machine_lines(machine: Machine | None, rows: Sequence[tuple[Cluster, int]]) -> list[str]:
    """A sentence each on rows on other nodes, and on figures that a table states: there the machine changes nothing.

    ``rows``: (cluster, number of its rows) of a table. Raises UsageError where the machine fits none of them.
    """
    if machine is None or not rows:
        return []
    other = [(cluster, count) for cluster, count in rows if not machine_fits(machine, cluster)]
    kinds = ", ".join(sorted({f"{c.gpus_per_node} x {c.gpu.id}" for c, _ in other})[:5])
    if len(other) == len(rows):
        raise UsageError(
            f"The machine file is of {machine.gpus_per_node} x {machine.gpu} a node and no run of the table is on "
            f"such nodes (they are {kinds}); leave --machine out, or measure one of these."
        )
    runs, total = (sum(count for _, count in some) for some in (other, rows))
    where = f"are on other nodes ({kinds}) than the machine file's and are predicted without it."
    stated: Counter[tuple[str, float]] = Counter()
    for cluster, count in rows:
        if machine_fits(machine, cluster):
            stated.update(dict.fromkeys(_stated_otherwise(machine, cluster).items(), count))
    return [f"{runs:,} of {total:,} rows {where}"] * bool(other) + [
        f"{key} is {value:g} in {count:,} row{'s' * (count > 1)} and {machine.figures[key]:g} in the machine file; "
        "the table's counts: leave its cells blank for the measured one."
        for (key, value), count in stated.items()
    ]


# The file of a machine.


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
    figures = section.section("figures", (*_LINKS, *OF_GPU, "product_time_factor"))
    factors = figures.section("product_time_factor", DTYPES)
    limits = _LINKS | OF_GPU
    machine = Machine(
        gpu=section.text("gpu"), gpus_per_node=section.whole("gpus_per_node"),
        figures={k: figures.number(k, most, zero=k.endswith("_us")) for k, most in limits.items() if figures.has(k)},
        product_time_factor={dtype: factors.number(dtype, _MOST_FACTOR) for dtype in DTYPES if factors.has(dtype)},
        **{key: dict(section.section(key).values) for key in ("measured", "fit_error_percent", "readings")},
    )  # fmt: skip
    if not (machine.figures or machine.product_time_factor):
        raise JobError(f"{section.at('figures')} states nothing; expected one of {', '.join(limits)}.")
    return machine
