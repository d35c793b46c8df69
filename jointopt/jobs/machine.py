"""Figures that `doctor --probe` measured of one machine: their file, and a cluster with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.schema import DTYPES
from jointopt.jobs.reading import Section, read_written, write_yaml

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
