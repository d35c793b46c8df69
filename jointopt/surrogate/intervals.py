"""How far off the physics alone is: 90 % intervals from its errors on recorded runs, and where none support it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Bools, Columns, Floats
from jointopt.spec.catalog.gpus import read_yaml
from jointopt.spec.job import Job

RESULTS = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")


@functools.cache
def _errors() -> dict[str, Any]:
    return dict(read_yaml("physics_error.yaml"))


def in_domain(job: Job, columns: Columns) -> Bools:
    """Whether recorded runs support a plan (n,): a fitted framework profile; GPU, model and layout among the runs.

    Clocks below the maximum count only on GPUs with a published clock response.
    """
    errors = _errors()
    inside = np.full(len(columns["pp"]), _workload_seen(job, errors))
    for name in errors["ranges"].keys() & columns.keys() & set(LAYOUT_COLUMNS):
        low, high = errors["ranges"][name]
        inside &= (columns[name] >= low) & (columns[name] <= high)
    return np.asarray(inside & clocks_supported(job, columns["stage_clock_mhz"]))


def clocks_supported(job: Job, stage_clock_mhz: Floats) -> Bools:
    """Whether recorded runs support clocks (n, S): near the maximum, or of a GPU with a known response."""
    gpu = job.cluster.gpu
    known = gpu.id in _errors()["clock_response_gpus"]
    return np.asarray(known | (np.nanmin(stage_clock_mhz, axis=1) >= 0.95 * (gpu.clock_max_mhz or np.inf)))


def _workload_seen(job: Job, errors: dict[str, Any]) -> bool:
    """Whether runs of such a model on such a cluster under that framework were recorded."""
    training, model = job.training, job.model
    sizes = (
        ("num_gpus", job.cluster.num_gpus),
        ("seq_length", training.seq_length),
        ("hidden_size", model.hidden_size),
    )
    spanned = all(errors["ranges"][name][0] <= size <= errors["ranges"][name][1] for name, size in sizes)
    known = training.framework.fitted and job.cluster.gpu.id in errors["seen_gpus"]
    return bool(spanned and known and not model.is_moe and training.dtype in errors["dtypes"])


def add_intervals(job: Job, columns: Columns) -> Columns:
    """The columns plus ``_low`` and ``_high`` of every result (90 %) and ``in_domain``."""
    errors = _errors()
    inside = in_domain(job, columns)
    power_known = job.cluster.gpu.id in errors["clock_response_gpus"]
    bounds = {"peak_memory_gib": _bounds(errors["peak_memory_gib"], inside)}
    low, high = _widest_time(job)
    known_low, known_high = errors["iteration_time_s"]["known"]
    bounds["iteration_time_s"] = np.where(inside, known_low, low), np.where(inside, known_high, high)
    bounds["avg_power_w"] = _bounds(errors["avg_power_w"], inside & power_known)
    # time and power err independently: their logarithms add in squares
    bounds["energy_j"] = tuple(
        np.exp(sign * np.hypot(np.log(t), np.log(p)))
        for sign, t, p in zip((-1, 1), bounds["iteration_time_s"], bounds["avg_power_w"], strict=True)
    )
    out = dict(columns)
    for name in RESULTS:
        low, high = bounds[name]
        out |= {f"{name}_low": columns[name] * low, f"{name}_high": columns[name] * high}
    return out | {"in_domain": inside}


def supported(job: Job, columns: Columns, known: bool) -> Bools:
    """Whether recorded runs support plans (n,): ``known`` runs of the same cluster do, at clocks that are supported."""
    return clocks_supported(job, columns["stage_clock_mhz"]) if known else in_domain(job, columns)


def with_power_interval(columns: Columns, half_width: float) -> Columns:
    """``columns`` of `add_intervals` with the interval of power replaced by one of measured power, in logarithms."""
    power = columns["avg_power_w"]
    return columns | {"avg_power_w_low": power * np.exp(-half_width), "avg_power_w_high": power * np.exp(half_width)}


def with_time_interval(job: Job, columns: Columns, half_width: Floats, inside: Bools, known: bool = False) -> Columns:
    """``columns`` of `add_intervals` with the interval of time replaced by a learned one, and that of energy with it.

    ``half_width`` (n,) is of the logarithm; ``inside`` (n,): what was learned supports the plan. Where it does not,
    the interval is at least that of the physics in unknown territory; ``known`` runs of the cluster show what a core
    can do. Power keeps its own interval: logarithms of time and power add in squares.
    """
    widest = _errors()["iteration_time_s"]["unknown"] if known else _widest_time(job)
    return _with_time(columns, half_width, inside, widest)


def _with_time(columns: Columns, half_width: Floats, inside: Bools, widest: Sequence[float]) -> Columns:
    out = dict(columns)
    wide = dict(zip(("low", "high"), np.abs(np.log(widest)), strict=True))
    for side, sign in (("low", -1.0), ("high", 1.0)):
        half = np.where(inside, half_width, np.maximum(half_width, wide[side]))
        power = np.log(columns[f"avg_power_w_{side}"] / columns["avg_power_w"])
        out[f"iteration_time_s_{side}"] = columns["iteration_time_s"] * np.exp(sign * half)
        out[f"energy_j_{side}"] = columns["energy_j"] * np.exp(sign * np.hypot(power, half))
    return out


def outside_of_domain(columns: Columns) -> Columns:
    """``columns`` of `add_intervals` where nothing supports any plan: times at least as uncertain as the unknown's."""
    ends = [np.abs(np.log(columns[f"iteration_time_s_{e}"] / columns["iteration_time_s"])) for e in ("low", "high")]
    nowhere = np.zeros(len(ends[0]), bool)
    unknown = _errors()["iteration_time_s"]["unknown"]
    return _with_time(columns, np.maximum(*ends), nowhere, unknown) | {"in_domain": nowhere}


def _widest_time(job: Job) -> tuple[float, float]:
    """Measured over predicted time (90 %) where no recorded runs support a plan; orders of magnitude of cores."""
    cores = job.cluster.gpu.architecture == "CPU"
    low, high = _errors()["iteration_time_s"]["cores" if cores else "unknown"]
    return low, high


def _bounds(error: dict[str, list[float]], known: Bools) -> tuple[Any, Any]:
    (low, high), (wide_low, wide_high) = error["known"], error["unknown"]
    return np.where(known, low, wide_low), np.where(known, high, wide_high)
