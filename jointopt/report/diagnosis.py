"""The diagnosis of `doctor`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.jobs.cluster import Machine
from jointopt.report.tables import Result, TextColumn, blocks_text, figure, lay_out, paragraphs

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


@dataclass(frozen=True)
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

    def text(self) -> str:
        """The machine, a line per feature, and the cluster section."""
        features = [
            f"{'ok     ' if one.works else 'missing'}  {'; '.join(filter(None, (f'{one.name}: {one.what}', one.fix)))}"
            for one in self.features
        ]
        cluster = ["For the job file:", "", *self.cluster_yaml.splitlines()]
        notes = [paragraphs([note]) for note in self.notes]
        return blocks_text(_machine_lines(self.machine), paragraphs(features, " " * 9), cluster, *notes)

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


@dataclass(frozen=True)
class Probed(Result):
    """A measured machine beside what the catalogue has in place of its figures, and the file that holds it."""

    rows = "compared"
    machine: Machine
    nominal: Mapping[str, float | None]  # by the names of the machine's figures; None: the catalogue has none
    out: str

    def document(self) -> dict[str, Any]:
        """The content of the machine file, its figures beside the catalogue's, and where it was written."""
        more = {"fit_error_percent": self.machine.fit_error_percent, "readings": self.machine.readings}
        return {**self.machine.mapping(), **more, "compared": self._compared(), "out": self.out}

    def _compared(self) -> list[dict[str, Any]]:
        figures = [(name, self.machine.figures.get(name), self.nominal[name]) for name in _PROBED]
        figures += [(f"{dtype} products", value, 1.0) for dtype, value in self.machine.product_time_factor.items()]
        return [{"figure": name, "measured": v, "catalogue": other} for name, v, other in figures if v is not None]

    def text(self) -> str:
        """A line per figure with what it replaces, how well the times are met, and how to use the file."""
        machine, on, rows = self.machine, self.machine.measured, self._compared()
        nodes = f"{on['nodes']} node{'s' * (on['nodes'] != 1)} of {machine.gpus_per_node} x {machine.gpu}"
        columns = [
            TextColumn("", [_PROBED.get(row["figure"], f"{row['figure']}, times") for row in rows], left=True),
            TextColumn("measured", [figure(row["measured"]) for row in rows]),
            TextColumn("catalogue", ["-" if row["catalogue"] is None else figure(row["catalogue"]) for row in rows]),
        ]
        errors = ", ".join(f"{name} {value:g} %" for name, value in machine.fit_error_percent.items())
        return blocks_text(
            paragraphs([f"{nodes}, {on['backend']}, PyTorch {on['torch']}, measured in {on['seconds']:g} s"]),
            lay_out(columns),
            paragraphs([
                f"Median error of the times that these give: {errors}.",
                f"Written to {self.out}; predictions take it with --machine {self.out}.",
            ]),
        )  # fmt: skip


def _machine_lines(machine: Mapping[str, Any]) -> list[str]:
    lines = [f"{machine['cores']} CPU cores, {machine['memory_gib']:g} GiB of memory"]
    for index, gpu in enumerate(machine["gpus"]):
        facts = [form.format(gpu[name]) for name, form in _GPU_FACTS.items() if gpu[name]]
        lines.append(f"GPU {index}: {', '.join(facts)}")
    lines += [] if machine["gpus"] else ["No GPU"]
    return lines + [f"Slurm partition, nodes, cores, GPUs of a node: {line}" for line in machine["partitions"]]
