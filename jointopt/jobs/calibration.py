"""The constants that `calibrate` fitted to a GPU: their file, and a job that uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from jointopt.core.errors import UsageError
from jointopt.core.facts import Assumption
from jointopt.jobs.job import Job
from jointopt.jobs.reading import Section, is_number, read_written, write_yaml

VERSION = 1
_HEADER = """\
# Clock response of one GPU, fitted by `jointopt calibrate`; use it with --calibration on propose, explain and predict.
# Those take static, waiting and board power and the voltage curve; times and powers of the work itself stay here.
"""


@dataclass(frozen=True)
class Constants:
    """Figures of the GPU. ``None``: the measurements do not determine it."""

    max_clock_mhz: float
    static_w: float  # drawn at any clock
    knee_fraction: float  # clock / maximum clock below which the voltage no longer falls
    voltage_ratio: float  # V(maximum clock) / V(below the knee)
    wait_w: float | None = None  # of a rank that waits for others
    board_limit_w: float | None = None  # power at which the board holds the clock down


@dataclass(frozen=True)
class Calibration:
    """The constants fitted to one GPU, half their 90 % intervals, and the measurements that they were fitted on."""

    gpu: str
    constants: Constants
    plus_minus: Mapping[str, float] = field(default_factory=dict)  # half of the 90 % interval, by constant
    fitted_on: Mapping[str, Any] = field(default_factory=dict)
    fit_error_percent: Mapping[str, float] = field(default_factory=dict)  # mean, on the readings themselves
    work: tuple[Mapping[str, Any], ...] = ()  # per piece of work: its own constants
    measure_next: tuple[str, ...] = ()
    version: int = VERSION


_KEYS = tuple(f.name for f in fields(Calibration))
_CONSTANTS = tuple(f.name for f in fields(Constants))
_CALIBRATED = ("static_w", "wait_w", "knee_fraction", "voltage_ratio")  # figures of `PowerConstants`
# Highest plausible value of a constant.
_MOST = {
    "max_clock_mhz": 1e4, "static_w": 1e3, "wait_w": 2e3, "board_limit_w": 5e3, "knee_fraction": 1.0,
    "voltage_ratio": 3.0,
}  # fmt: skip


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Writes the YAML file. Raises UsageError where it cannot."""
    known = {name: value for name, value in vars(calibration.constants).items() if value is not None}
    document = {"version": calibration.version, "gpu": calibration.gpu, "constants": known}
    rest = {name: getattr(calibration, name) for name in _KEYS if name not in document}
    document |= {name: list(value) if isinstance(value, tuple) else dict(value) for name, value in rest.items()}
    write_yaml(path, _HEADER, document)


def load_calibration(path: Path) -> Calibration:
    """The calibration of a file; JobError names a key that is unknown, missing or out of range, and the file."""
    return read_written(path, "calibration that `jointopt calibrate` wrote", _parsed)


def _parsed(mapping: Mapping[str, Any]) -> Calibration:
    section = Section(mapping, "").only(_KEYS)
    version = section.version(VERSION)
    constants, known = section.section("constants", _CONSTANTS), {}
    for name in (name for name in _CONSTANTS if constants.has(name) or name not in ("wait_w", "board_limit_w")):
        value, low, most = constants.values.get(name), 1.0 if name == "voltage_ratio" else 0.0, _MOST[name]
        if not is_number(value) or not low <= value <= most or value == 0:
            raise constants.refuse(name, f"a number above {low:g} and at most {most:g}")
        known[name] = float(value)
    rest: dict[str, Any] = {name: section.values[name] for name in _KEYS[2:] if section.values.get(name)}
    for name, kind, words in (("work", Mapping, "a list of mappings"), ("measure_next", str, "a list of texts")):
        given = rest.get(name, [])
        if not isinstance(given, list) or not all(isinstance(each, kind) for each in given):
            raise section.refuse(name, words)
        rest[name] = tuple(given)
    for name in ("plus_minus", "fitted_on", "fit_error_percent"):
        section.section(name)
    return Calibration(**rest | {"gpu": section.text("gpu"), "constants": Constants(**known), "version": version})


def calibrated_if_same_gpu(job: Job, calibration: Calibration | None) -> Job:
    """`calibrated` where the calibration is of the job's GPU, else the job itself."""
    return calibrated(job, calibration if calibration and calibration.gpu == job.cluster.gpu.id else None)


def calibrated(job: Job, calibration: Calibration | None) -> Job:
    """The job with the GPU's static, waiting and board power and voltage curve as calibrated; itself for ``None``.

    Energy per operation and byte and the times of kernels stay: a profile does not state how many operations it ran.
    The board's limit replaces one that no input states (the GPU's rated power). Raises UsageError for another GPU.
    """
    if calibration is None:
        return job
    gpu, constants, on = job.cluster.gpu, calibration.constants, calibration.fitted_on
    if calibration.gpu != gpu.id or gpu.power is None:
        raise UsageError(
            f"The calibration is of GPU {calibration.gpu!r} and the job runs on {gpu.id!r}; "
            f"calibrate on measurements of {gpu.id!r}."
        )
    wait_w = constants.wait_w or gpu.power.wait_w * constants.static_w / gpu.power.static_w
    source = f" ({on['kind']}, {on['rows']} rows)" if {"kind", "rows"} <= set(on) else ""
    brief = "static and waiting power and voltage curve calibrated"
    measured = Assumption("calibration", gpu.id, f"{gpu.id}: {brief}{source}", gpu.id, brief)
    power = replace(
        gpu.power,
        # of busy passes, the part that no clock changes; a GPU that waits draws no less than when idle
        static_w=min(constants.static_w, wait_w),
        wait_w=wait_w,
        knee_fraction=constants.knee_fraction,
        voltage_ratio=constants.voltage_ratio,
        assumed=(*(a for a in gpu.power.assumed if a.key not in _CALIBRATED), measured),
    )
    limit_w = job.cluster.power_limit_w
    if constants.board_limit_w is not None and limit_w == gpu.tdp_w:
        limit_w = constants.board_limit_w
    cluster = replace(job.cluster, gpu=replace(gpu, power=power), power_limit_w=limit_w)
    return replace(job, cluster=cluster)


def check_calibrates(calibration: Calibration | None, jobs: Iterable[Job]) -> None:
    """Raises UsageError where no job runs on the calibrated GPU, so that the calibration would change nothing."""
    gpus = sorted({job.cluster.gpu.id for job in jobs})
    if calibration and gpus and calibration.gpu not in gpus:
        raise UsageError(
            f"The calibration is of GPU {calibration.gpu!r} and no run of the table is on it (they are on "
            f"{', '.join(gpus[:5])}); leave --calibration out, or calibrate one of these."
        )
