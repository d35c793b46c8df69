"""The likeliest reason why a GPU seems to have done more than it can: what of the row is probably wrong."""

from __future__ import annotations

import pandas as pd

from jointopt.core.units import KWH, TERA
from jointopt.jobs.catalog.gpus import gpu_ids, known_gpu, load_gpu
from jointopt.jobs.catalog.kernels import fp32_time_factor
from jointopt.jobs.cluster import Gpu
from jointopt.runs.cells import is_known, named_dtype

_GB = 1e9 / 2**30  # GiB
_BOOSTED = 1.1  # of the rate on the data sheet, above which no clock explains it
_UNIT = "is it in seconds, and of a whole iteration?"


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
    """Whether the power is in another unit or a node's, or the board's limit was raised."""
    gpu = known_gpu(run["gpu"])
    if gpu is not None and drawn_w(run) < gpu.mean_power_span_w[0]:
        return _of_little(run, gpu.mean_power_span_w)
    if gpu is not None and drawn_w(run) > gpu.mean_power_span_w[1]:
        return "is it of a whole node?"
    return "was the board's limit raised? Then power_limit_w is that limit"


def _of_little(run: pd.Series, span_w: tuple[float, float]) -> str:
    """Which unit, or whose figure, a power or an energy is that is less than a GPU draws in W."""
    low, high = span_w
    if not _stated(run):
        return "is it in kWh?" if low <= KWH * drawn_w(run) <= high else "is it in kJ, or of one GPU alone?"
    if 1e3 * drawn_w(run) <= high:
        return "is it in kW, or its energy in kJ?"
    per_node = next((float(run[n]) for n in ("gpus_per_node", "num_gpus") if n in run and is_known(run[n])), 1.0)
    if low <= 1e3 * drawn_w(run) / min(per_node, 8.0) <= high:
        return "is it in kW, of a whole node?"
    return "is it divided by the number of GPUs once more?"


def peaks(gpu: Gpu) -> dict[str, float]:
    """Full rate of a GPU in flop/s by precision: fp32 is that of FP32 cores, TF32 that of tensor cores."""
    rates = {name: TERA * rate for name, rate in gpu.peak_tflops.items()}
    slower = fp32_time_factor(gpu) if not gpu.is_cpu else None
    if slower is None or "fp32" not in rates:
        return rates
    return rates | {"TF32": rates["fp32"], "fp32": TERA * gpu.need("peak_16_bit_tflops", "judge a run") / slower}


def precision(text: str) -> str:
    """The key of `peaks` for the precision that a cell states; blank where it states none."""
    return "TF32" if "tf32" in text.lower() else named_dtype(text) or ""


def of_time(run: pd.Series, flop_per_s: float) -> str:
    """Which precision would allow that rate of a GPU, or what else makes a run seem fast."""
    gpu, stated = known_gpu(run["gpu"]), run.get("dtype")  # a table may lack the column
    rates = peaks(gpu) if gpu is not None and is_known(stated) else {}
    own = rates.get(precision(str(stated)))
    if own is not None:
        above = sorted((rate, name) for name, rate in rates.items() if rate > own)
        faster = [name for rate, name in above if rate >= flop_per_s]
        label = f"{stated} at {flop_per_s / TERA:,.0f} TFLOP/s per GPU: is it {faster[0]}" if faster else ""
        if own < flop_per_s <= _BOOSTED * own:
            return f"{label}, or was the clock raised?" if faster else "was the clock raised?"
        if faster:
            return f"{label}?" if flop_per_s > own else f"{label}? If not: {_UNIT}"
    return _UNIT


def drawn_w(run: pd.Series) -> float:
    """Mean power of a GPU in W: as stated, else by energy."""
    if _stated(run):
        return float(run["avg_power_w"])
    return float(run["energy_j"] / (run["iteration_time_s"] * run["num_gpus"]))


def _stated(run: pd.Series) -> bool:
    """Whether a row states the mean power itself."""
    return "avg_power_w" in run and is_known(run["avg_power_w"])
