"""The diagnosis of `doctor`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.jobs.cluster import Machine
from jointopt.report.tables import Block, Result, TextColumn, figure, lay_out, paragraphs, pick

_FIGURES = {
    **{dtype: f"{dtype} products, TFLOP/s" for dtype in ("fp32", "fp16", "bf16", "fp8")},
    "memory_gbytes_per_s": "memory, GB/s", "link_gbytes_per_s": "link, GB/s per direction",
}  # fmt: skip
_GPU_FACTS = {
    "name": "{}", "memory_gib": "{:.1f} GiB", "clock_min_mhz": "from {:g} MHz", "clock_max_mhz": "to {:g} MHz",
    "power_limit_w": "limited to {:g} W", "power_profiles": "power profiles {}",
}  # fmt: skip


@dataclass(frozen=True)
class Feature:
    """Something that jointopt can do where the machine has what it takes."""

    name: str
    works: bool
    what: str  # it rests on, or what is missing
    fix: str = ""  # what to run, where that helps


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """A machine, what of jointopt works on it, and the cluster section of a job file for it."""

    keys = "machine features speeds nominal cluster notes job_file=cluster_yaml"
    rows = "features"
    machine: Mapping[str, Any]
    features: tuple[Feature, ...]
    speeds: Mapping[str, Any]  # of one GPU or core; empty where they were not measured
    nominal: Mapping[str, float]  # the same figures as the catalogue has them, where it has
    cluster: Mapping[str, Any]  # keys of the job file
    notes: tuple[str, ...] = ()

    def blocks(self) -> Iterator[Block]:
        """The machine, a line per feature, the cluster section, and notes."""
        machine = self.machine
        lines = [f"{machine['cores']} CPU cores, {machine['memory_gib']:g} GiB of memory"]
        for index, gpu in enumerate(machine["gpus"]):
            facts = [form.format(gpu[name]) for name, form in _GPU_FACTS.items() if gpu[name]]
            lines.append(f"GPU {index}: {', '.join(facts)}")
        lines += [] if machine["gpus"] else ["No GPU"]
        lines += [f"Slurm partition, nodes, cores, GPUs of a node: {line}" for line in machine["partitions"]]
        yield [lines]
        features = [
            f"{'ok     ' if one.works else 'missing'}  {'; '.join(filter(None, (f'{one.name}: {one.what}', one.fix)))}"
            for one in self.features
        ]
        yield [paragraphs(features, " " * 9)]
        yield [["For the job file:", "", *self.cluster_yaml.splitlines()]]
        yield from ([note] for note in self.notes)

    @property
    def cluster_yaml(self) -> str:
        """The cluster section; speeds are comments: nominal figures are the physics' input, which knows losses."""
        lines = ["cluster:", *(f"  {name}: {value}" for name, value in self.cluster.items())]
        measured = {**self.speeds.get("matrix_tflops", {})}
        measured |= {name: self.speeds[name] for name in _FIGURES if name in self.speeds}
        for name, value in measured.items():
            nominal = self.nominal.get(name)
            share = f", {value / nominal:.0%} of the catalogue's {figure(nominal)}" if nominal else ""
            lines.append(f"  # measured {_FIGURES.get(name, name)}: {figure(value)}{share}")
        return "\n".join(lines) + "\n"


_PROBED = {
    "intra_node_gbytes_per_s": "link inside a node, GB/s", "inter_node_gbytes_per_s": "link between nodes, GB/s",
    "inter_node_latency_us": "latency between nodes, µs", "memory_gbytes_per_s": "memory, GB/s",
    "memory_gib": "memory, GiB",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class MachineComparison(Result):
    """A measured machine beside what the catalogue has in place of its figures, and the file that holds it."""

    rows = "compared"
    machine: Machine
    nominal: Mapping[str, float | None]  # by the names of the machine's figures; None: the catalogue has none
    out: str

    def document(self) -> dict[str, Any]:
        """The content of the machine file, its figures beside the catalogue's, and where it was written."""
        machine = self.machine
        figures = [(name, machine.figures.get(name), self.nominal[name]) for name in _PROBED]
        figures += [(f"{dtype} products", value, 1.0) for dtype, value in machine.product_time_factor.items()]
        rows = [{"figure": name, "measured": v, "catalogue": other} for name, v, other in figures if v is not None]
        return machine.mapping() | pick(machine, "fit_error_percent readings") | {"compared": rows, "out": self.out}

    def blocks(self) -> Iterator[Block]:
        """A line per figure with what it replaces, how well the times are met, and how to use the file."""
        machine, on, rows = self.machine, self.machine.measured, self.document()["compared"]
        nodes = f"{on['nodes']} node{'s' * (on['nodes'] != 1)} of {machine.gpus_per_node} x {machine.gpu}"
        yield [f"{nodes}, {on['backend']}, PyTorch {on['torch']}, measured in {on['seconds']:g} s"]
        columns = [
            TextColumn("", [_PROBED.get(row["figure"], f"{row['figure']}, times") for row in rows], left=True),
            TextColumn("measured", [figure(row["measured"]) for row in rows]),
            TextColumn("catalogue", ["-" if row["catalogue"] is None else figure(row["catalogue"]) for row in rows]),
        ]
        yield [lay_out(columns)]
        errors = ", ".join(f"{name} {value:g} %" for name, value in machine.fit_error_percent.items())
        yield [
            f"Median error of the times that these give: {errors}.",
            f"Written to {self.out}; predictions take it with --machine {self.out}.",
        ]
