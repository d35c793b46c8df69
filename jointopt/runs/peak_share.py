"""How much of a GPU's full rate measured runs reach, by the flops that their cells state at the least."""

from __future__ import annotations

import functools
import math

import numpy as np
import pandas as pd

from jointopt.core.schema import Bools, Floats
from jointopt.core.units import KWH, TERA
from jointopt.jobs.catalog.gpus import gpu_ids, known_gpu, load_gpu
from jointopt.jobs.catalog.kernels import fp32_time_factor
from jointopt.jobs.catalog.models import known_model
from jointopt.jobs.cluster import Gpu
from jointopt.runs.cells import Cells, map_distinct, with_precision
from jointopt.runs.dtype_names import named_dtype
from jointopt.runs.rows import is_blank

MOST_OF_PEAK = 1.1  # of the rate on the data sheet: boards may boost beyond the clock that it is stated at
# Of the full rate: more than two thousand recorded runs reach 0.00018 to 0.65.
MOST_REACHED, LEAST_REACHED = 0.85, 1e-5
_SHAPE = (
    "model", "num_layers", "hidden_size", "ffn_hidden_size", "gated_mlp", "num_attention_heads", "num_query_groups",
    "vocab_size",
)  # fmt: skip
MEMORY_COLUMNS = ("peak_memory_gib", "num_gpus", "tp", "pp", "zero_stage", "lora_dim", "block", *_SHAPE)
TIME_COLUMNS = (
    "iteration_time_s", "gpu", "num_gpus", "global_batch_size", "seq_length", "dtype", "precision", "fp8_recipe",
    "lora_dim", "block", "recompute", "recompute_num_layers", *_SHAPE,
)  # fmt: skip


@functools.cache
def _figures_of_model(name: object) -> tuple[float, float, float]:
    """(matrix parameters of layers that a token passes, those of the head, width of attention) of a catalogue model.

    The width is the mean of scores' and values', summed over the layers that see all tokens. NaN for other models.
    """
    model = known_model(str(name))
    if model is None:
        return math.nan, math.nan, math.nan
    layers = float(model.active_parameters - model.embedding_parameters - model.head_parameters)
    latent = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    head = latent / 2.0 if model.kv_lora_rank else float(model.head_dim)
    full = sum(not layer.window and bool({"full", "mla"} & {*layer.mixers}) for layer in model.pattern)
    width = full * model.num_attention_heads * head
    return layers, float(model.head_parameters), width


def _least_parameters(runs: Cells) -> tuple[Floats, Floats]:
    """(of layers, of the head): matrix parameters that a token passes at the least, (n,) each; a blank cell adds none.

    Of experts one is counted, since the cells do not state how wide each is beside a dense layer.
    """
    width, ffn, block = runs["hidden_size"], np.nan_to_num(runs["ffn_hidden_size"]), runs["block"]
    narrower = np.nan_to_num(runs["num_query_groups"] / runs["num_attention_heads"])
    mlp = (2.0 + (runs["gated_mlp"] > 0)) * ffn * (block != "attention")
    layers = runs["num_layers"] * width * (2.0 * width * (1.0 + narrower) * (block != "feed_forward") + mlp)
    whole = np.asarray(pd.isna(block))
    head = width * np.nan_to_num(runs["vocab_size"]) * whole
    of_model = map_distinct(runs["model"], _figures_of_model, _figures_of_model(None)).T
    of_layers, of_head = (np.where(whole, figure, np.nan) for figure in of_model[:2])
    stated = ~np.isnan(layers)
    return np.where(stated, layers, of_layers), np.where(stated, head, of_head)


def least_flop(runs: Cells) -> Floats:
    """Least flops of a GPU in one iteration, (n,): 6 per parameter and token, 4 per frozen one; NaN for blank cells.

    Attention itself and recomputation come on top, so that no run does with fewer.
    """
    tokens = runs["global_batch_size"] * runs["seq_length"]
    each = np.where(np.isnan(runs["lora_dim"]), 6.0, 4.0)
    return np.asarray(each * np.sum(_least_parameters(runs), axis=0) * tokens / runs["num_gpus"])


def least_memory_gib(runs: Cells) -> Floats:
    """Least GiB of a GPU's memory, (n,): a byte per matrix parameter of its layers; 0 for frozen weights.

    Parameters are split over tp·pp ranks where a row states both and no ZeRO-3, else over all.
    """
    split = runs["tp"] * runs["pp"]
    ranks = np.where(~np.isnan(split) & (runs["zero_stage"] < 3), split, runs["num_gpus"])
    return np.where(np.isnan(runs["lora_dim"]), _least_parameters(runs)[0] / ranks / 2**30, 0.0)


def attention_flop(runs: Cells) -> Floats:
    """Flops of a GPU for causal attention, forward and backward, (n,): 6·layers·width·s² a sequence; 0 if blank.

    A model that the table only names has the catalogue's layers without windows.
    """
    stated = runs["num_layers"] * runs["hidden_size"]
    named = map_distinct(runs["model"], _figures_of_model, _figures_of_model(None))[:, 2]
    width = np.nan_to_num(np.where(np.isnan(stated), named, stated))
    tokens = np.nan_to_num(runs["global_batch_size"]) * np.nan_to_num(runs["seq_length"]) ** 2
    whole = 6.0 * width * tokens / runs["num_gpus"]
    return np.asarray(whole * (runs["block"] != "feed_forward"))


def recompute_flop(runs: Cells) -> Floats:
    """Flops of a GPU for the second forward pass, (n,), where a row states that all layers are recomputed; else 0."""
    whole = (runs["recompute"] == "full") & np.isnan(runs["recompute_num_layers"])
    tokens = runs["global_batch_size"] * runs["seq_length"] / runs["num_gpus"]
    forward = 2.0 * _least_parameters(runs)[0] * tokens + attention_flop(runs) / 3.0
    return np.where(whole, forward, 0.0)


def peak_flop_per_s(gpu: Gpu) -> dict[str, float]:
    """Full rate of a GPU in flop/s by precision: fp32 is that of FP32 cores, TF32 that of tensor cores."""
    found = {name: TERA * rate for name, rate in gpu.peak_tflops.items()}
    slower = fp32_time_factor(gpu) if not gpu.is_cpu else None
    if slower is None or "fp32" not in found:
        return found
    return found | {"TF32": found["fp32"], "fp32": TERA * gpu.need("peak_16_bit_tflops", "judge a run") / slower}


def _peak_of(text: str) -> str:
    """The key of `peak_flop_per_s` for the precision that a cell states; blank where it states none."""
    return "TF32" if "tf32" in text.lower() else named_dtype(text) or ""


@functools.cache
def _rates(gpu: str, dtype: str) -> tuple[float, float, float]:
    """(most, stated, fastest) flop/s of a GPU: ``dtype`` at its best, as its words say, and in any precision.

    The first two differ in fp32 without TF32, which runs on FP32 cores. Infinite for a CPU, whose cores differ among
    themselves by more than any slack, and for an unknown GPU.
    """
    known = known_gpu(gpu)
    if known is None:
        return math.inf, math.inf, math.nan
    found = peak_flop_per_s(known)
    fastest = max(found.values(), default=math.nan)
    if known.is_cpu or not known.peak_tflops:
        return math.inf, math.inf, fastest
    most = TERA * known.peak_tflops.get(named_dtype(dtype) or "", max(known.peak_tflops.values()))
    return most, found.get(_peak_of(dtype), most), fastest


def full_rates(runs: Cells) -> Floats:
    """`_rates` of the GPU of each row in its precision, (3, n) flop/s."""
    named = with_precision(pd.DataFrame({name: runs[name] for name in ("dtype", "fp8_recipe", "precision")}))
    gpus, dtypes = (pd.Series(cells, dtype=object).fillna("").astype(str) for cells in (runs["gpu"], named["dtype"]))
    return map_distinct(pd.MultiIndex.from_arrays([gpus, dtypes]), lambda pair: _rates(*pair), _rates("", "")).T


def least_time_s(runs: Cells) -> Floats:
    """Seconds that an iteration takes at the least, (n,): `least_flop` at the GPU's full rate."""
    return np.asarray(least_flop(runs) / (full_rates(runs)[0] * MOST_OF_PEAK))


def share_reached(runs: Cells) -> Floats:
    """Share of the full rate that a run reaches, (n,): its least time, with attention and recompute, over its time."""
    least_s = (least_flop(runs) + attention_flop(runs) + recompute_flop(runs)) / full_rates(runs)[1]
    return np.asarray(least_s / runs["iteration_time_s"])


def in_faster_precision(runs: Cells) -> Bools:
    """Rows (n,) too fast for the precision that they state, and not for the fastest of their GPU."""
    share, (_, stated, fastest) = share_reached(runs), full_rates(runs)
    return np.asarray((share > MOST_REACHED) & (stated < fastest) & (share * stated / fastest <= 1.0))


# The likeliest reason why a GPU seems to have done more than it can: what of the row is probably wrong.


_GB = 1e9 / 2**30  # GiB
_BOOSTED = 1.1  # of the rate on the data sheet, above which no clock explains it
_UNIT = "is it in seconds, and of a whole iteration?"


def reason_of_memory(run: Cells) -> str:
    """Which GPU of the same generation has that much memory, or which unit the reading may be in."""
    gpu, held = known_gpu(run["gpu"][0]), float(run["peak_memory_gib"][0])
    if gpu is None:
        return ""
    same = [other for other in map(load_gpu, gpu_ids()) if other.architecture == gpu.architecture]
    larger = min(((other.memory_gib, other.id) for other in same if other.memory_gib >= held), default=None)
    guesses = [f"{larger[1]} with {larger[0]:.4g} GiB,"] if larger else []
    guesses += ["in GB, not GiB"] if held * _GB <= gpu.memory_gib else ["of several GPUs"]
    return f"is it {' or '.join(guesses)}?"


def reason_of_power(run: Cells, watts: float, stated: bool) -> str:
    """Whether a GPU's power, ``stated`` or by its energy, is in another unit or a node's, or its limit was raised."""
    low, high = getattr(known_gpu(run["gpu"][0]), "mean_power_span_w", (0.0, math.inf))
    if watts > high:
        return "is it of a whole node?"
    if watts >= low:
        return "was the board's limit raised? Then power_limit_w is that limit"
    if not stated:
        return "is it in kWh?" if low <= KWH * watts <= high else "is it in kJ, or of one GPU alone?"
    if 1e3 * watts <= high:
        return "is it in kW, or its energy in kJ?"
    per_node = next((float(run[n][0]) for n in ("gpus_per_node", "num_gpus") if not is_blank(run[n][0])), 1.0)
    if low <= 1e3 * watts / min(per_node, 8.0) <= high:
        return "is it in kW, of a whole node?"
    return "is it divided by the number of GPUs once more?"


def reason_of_time(run: Cells, flop_per_s: float) -> str:
    """Which precision would allow that rate of a GPU, or what else makes a run seem fast."""
    named = with_precision(run.runs)
    gpu, stated = known_gpu(run["gpu"][0]), named["dtype"].iloc[0] if "dtype" in named else None
    found = peak_flop_per_s(gpu) if gpu is not None and not is_blank(stated) else {}
    own = found.get(_peak_of(str(stated)))
    if own is not None:
        above = sorted((rate, name) for name, rate in found.items() if rate > own)
        faster = [name for rate, name in above if rate >= flop_per_s]
        label = f"{stated} at {flop_per_s / TERA:,.0f} TFLOP/s per GPU: is it {faster[0]}" if faster else ""
        if own < flop_per_s <= _BOOSTED * own:
            return f"{label}, or was the clock raised?" if faster else "was the clock raised?"
        if faster:
            return f"{label}?" if flop_per_s > own else f"{label}? If not: {_UNIT}"
    return _UNIT
