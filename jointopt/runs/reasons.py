"""The likeliest reason why a GPU seems to have done more than it can: what of the row is probably wrong."""

from __future__ import annotations

import pandas as pd

from jointopt.core.units import TERA
from jointopt.runs.cells import is_known, named_dtype
from jointopt.spec.catalog.gpus import gpu_ids, known_gpu, load_gpu

_GB = 1e9 / 2**30  # GiB
_BOOSTED = 1.1  # of the rate on the data sheet, above which no clock explains it


def of_memory(run: pd.Series) -> str:
    """Which GPU of the same generation has that much memory, or which unit the reading may be in."""
    gpu, held = known_gpu(run["gpu"]), float(run["peak_memory_gib"])
    if gpu is None:
        return ""
    kin = [other for other in map(load_gpu, gpu_ids()) if other.architecture == gpu.architecture]
    larger = min(((other.memory_gib, other.id) for other in kin if other.memory_gib >= held), default=None)
    guesses = [f"{larger[1]} with {larger[0]:.4g} GiB,"] if larger else []
    guesses += ["in GB, not GiB"] if held * _GB <= gpu.memory_gib else ["of several GPUs"]
    return f"is it {' or '.join(guesses)}?"


def of_power(run: pd.Series) -> str:
    """Whether the power is a node's, or the board's limit was raised."""
    gpu = known_gpu(run["gpu"])
    if gpu is not None and _drawn_w(run) > gpu.power_limit_span_w[1]:
        return "is it of a whole node?"
    return "was the board's limit raised? Then power_limit_w is that limit"


def of_time(run: pd.Series, flop_per_s: float) -> str:
    """Which precision would allow that rate of a GPU, or what else makes a run seem fast."""
    gpu = known_gpu(run["gpu"])
    stated = named_dtype(str(run["dtype"])) if is_known(run["dtype"]) else None
    if gpu is not None and stated is not None and stated in gpu.peak_tflops:
        own = gpu.peak_tflops[stated]
        rates = sorted((rate, name) for name, rate in gpu.peak_tflops.items() if rate > own)
        faster = [name for rate, name in rates if rate * TERA >= flop_per_s]
        if flop_per_s <= _BOOSTED * TERA * own:
            return f"was the clock raised{f', or is it {faster[0]}' if faster else ''}?"
        if faster:
            return f"is it {faster[0]}?"
    return "is it in seconds, and of a whole iteration?"


def _drawn_w(run: pd.Series) -> float:
    """Mean power of a GPU in W: as stated, else by energy."""
    if "avg_power_w" in run and is_known(run["avg_power_w"]):
        return float(run["avg_power_w"])
    return float(run["energy_j"] / (run["iteration_time_s"] * run["num_gpus"]))
