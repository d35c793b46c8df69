"""The diagnosis of `doctor`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jointopt.report.plain import plain
from jointopt.report.table import figure, wrapped


@dataclass(frozen=True)
class Feature:
    """Something that jointopt can do where the machine has what it takes."""

    name: str
    works: bool
    what: str  # it rests on, or what is missing
    fix: str = ""  # what to run, where that helps


@dataclass(frozen=True)
class Diagnosis:
    """A machine, what of jointopt works on it, and the cluster section of a job file for it."""

    machine: Mapping[str, Any]
    features: tuple[Feature, ...]
    speeds: Mapping[str, Any]  # of one GPU or core; empty where they were not measured
    nominal: Mapping[str, float]  # the same figures as the catalogue has them, where it has
    cluster: Mapping[str, Any]  # keys of the job file
    notes: tuple[str, ...] = ()


def diagnosis_document(found: Diagnosis) -> dict[str, Any]:
    """Everything in plain lists, numbers and strings; ``job_file`` is YAML text."""
    document: dict[str, Any] = plain(asdict(found))
    return document | {"job_file": cluster_yaml(found)}


def diagnosis_text(found: Diagnosis) -> str:
    """The machine, a line per feature, and the cluster section."""
    lines = _machine_lines(found.machine)
    lines.append("")
    for feature in found.features:
        text = f"{'ok     ' if feature.works else 'missing'}  {feature.name}: {feature.what}"
        lines += wrapped(text + (f"; {feature.fix}" if feature.fix else ""), " " * 9)
    lines += ["", "For the job file:", "", *cluster_yaml(found).splitlines()]
    for note in found.notes:
        lines += ["", *wrapped(note)]
    return "\n".join(lines)


def _machine_lines(machine: Mapping[str, Any]) -> list[str]:
    lines = [f"{machine['cores']} CPU cores, {machine['memory_gib']:g} GiB of memory"]
    for index, gpu in enumerate(machine["gpus"]):
        facts = []
        if gpu["memory_gib"]:
            facts.append(f"{gpu['memory_gib']:.1f} GiB")
        if gpu["clock_max_mhz"]:
            low = f"{gpu['clock_min_mhz']:g} to " if gpu["clock_min_mhz"] else "up to "
            facts.append(f"{low}{gpu['clock_max_mhz']:g} MHz")
        if gpu["power_limit_w"]:
            facts.append(f"limited to {gpu['power_limit_w']:g} W")
        lines.append(f"GPU {index}: {', '.join([gpu['name'], *facts])}")
    if not machine["gpus"]:
        lines.append("No GPU")
    lines += [f"Slurm partition, nodes, cores, GPUs of a node: {line}" for line in machine["partitions"]]
    return lines


def cluster_yaml(found: Diagnosis) -> str:
    """The cluster section; speeds are comments: the catalogue's figures are nominal, and the physics knows losses."""
    lines = ["cluster:", *(f"  {name}: {value}" for name, value in found.cluster.items())]
    for name, value in measured_figures(found.speeds).items():
        nominal = found.nominal.get(name)
        share = f", {value / nominal:.0%} of the catalogue's {figure(nominal)}" if nominal else ""
        lines.append(f"  # measured {_FIGURES.get(name, name)}: {figure(value)}{share}")
    return "\n".join(lines) + "\n"


_FIGURES = {
    "memory_gbytes_per_s": "memory, GB/s", "link_gbytes_per_s": "link, GB/s per direction",
    "fp32": "fp32 products, TFLOP/s", "bf16": "bf16 products, TFLOP/s",
}  # fmt: skip


def measured_figures(speeds: Mapping[str, Any]) -> dict[str, float]:
    """The speeds as one mapping of numbers; products by their precision."""
    figures = dict(speeds.get("matrix_tflops", {}))
    return figures | {
        name: speeds[name] for name in ("memory_gbytes_per_s", "link_gbytes_per_s") if name in speeds
    }
