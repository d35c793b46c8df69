"""How much of a GPU's full rate measured runs reach, by the flops that their cells state at the least."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from jointopt.core.schema import Bools, Floats
from jointopt.core.units import KWH, TERA
from jointopt.jobs.catalog.gpus import gpu_ids, known_gpu, load_gpu
from jointopt.jobs.catalog.kernels import fp32_time_factor
from jointopt.jobs.catalog.models import known_model
from jointopt.jobs.cluster import Gpu
from jointopt.runs.cells import is_known, with_precision
from jointopt.runs.dtype_names import named_dtype

MOST_OF_PEAK = 1.1  # of the rate on the data sheet: boards may boost beyond the clock that it is stated at
# Of the full rate: more than two thousand recorded runs reach 0.00018 to 0.65.
MOST_REACHED, LEAST_REACHED = 0.85, 1e-5
_SHAPE = (
    "model", "num_layers", "hidden_size", "ffn_hidden_size", "gated_mlp", "num_attention_heads", "num_query_groups",
    "vocab_size",
)  # fmt: skip
HELD = ("peak_memory_gib", "num_gpus", "tp", "pp", "zero_stage", "lora_dim", "block", *_SHAPE)
TIMED = (
    "iteration_time_s", "gpu", "num_gpus", "global_batch_size", "seq_length", "dtype", "precision", "fp8_recipe",
    "lora_dim", "block", "recompute", "recompute_num_layers", *_SHAPE,
)  # fmt: skip


@functools.cache
def _peak_flops(gpu: str, dtype: str) -> float:
    """The GPU's rate in that precision, the highest of any where none is stated.

    Cores of a CPU differ more among themselves than any slack allows for; they have no bound here.
    """
    known = known_gpu(gpu)
    if known is None or known.is_cpu or not known.peak_tflops:
        return math.inf
    return TERA * known.peak_tflops.get(named_dtype(dtype) or "", max(known.peak_tflops.values()))


@functools.cache
def _layer_parameters(name: str) -> float:
    """Matrix parameters of that model's layers that a token passes at the least; NaN of one that is not catalogued."""
    model = known_model(name)
    return float(model.active_parameters - model.embedding_parameters - model.head_parameters) if model else math.nan


@functools.cache
def _head_parameters(name: str) -> float:
    model = known_model(name)
    return float(model.head_parameters) if model else math.nan


@functools.cache
def _catalogue_width(name: str) -> float:
    """Width of that model's attention, the mean of scores and values, summed over layers that see all tokens."""
    model = known_model(name)
    if model is None:
        return 0.0
    latent = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    head = latent / 2.0 if model.kv_lora_rank else model.head_dim
    return (model.num_layers - sum(model.windowed_layers)) * model.num_attention_heads * float(head)


def _of_catalogue(runs: pd.DataFrame, of_model: Callable[[str], float]) -> pd.Series:
    """A figure of the catalogue's model of each row, blank where a row names none."""
    return _cells(runs, "model").map(lambda name: of_model(str(name)), na_action="ignore").astype(float)


def _least_parameters(runs: pd.DataFrame) -> tuple[Floats, Floats]:
    """Matrix parameters that each token passes, of layers and of the head, by the cells that are there, (n,) each.

    A blank one adds nothing. Of experts one is counted: the cells do not state how wide each is next to a layer without
    experts.
    """
    cells = runs[[name for name in _SHAPE if name != "model"]].astype(float)
    width, known = cells["hidden_size"], cells.fillna(0.0)
    narrower = (cells["num_query_groups"] / cells["num_attention_heads"]).fillna(0.0)
    block = _cells(runs, "block")
    mlp = (2.0 + (known["gated_mlp"] > 0)) * known["ffn_hidden_size"] * (block != "attention")
    layers = cells["num_layers"] * width * (2.0 * width * (1.0 + narrower) * (block != "feed_forward") + mlp)
    head = width * known["vocab_size"] * block.isna()
    of_layers, of_head = (
        _of_catalogue(runs, part).where(block.isna()) for part in (_layer_parameters, _head_parameters)
    )
    return np.asarray(layers.fillna(of_layers), float), np.asarray(head.where(layers.notna(), of_head), float)


def _cells(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column that few tables have, blank where this one lacks it, (n,)."""
    return runs.reindex(columns=pd.Index([name]))[name]


def flop(runs: pd.DataFrame) -> Floats:
    """Operations of a GPU in one iteration at the least, (n,): 6 for each parameter and token, 4 for a frozen one.

    Attention itself and recomputation come on top, so no run does with fewer. NaN where a cell that it needs is blank.
    """
    tokens = (runs["global_batch_size"] * runs["seq_length"]).to_numpy(float)
    each = np.where(_cells(runs, "lora_dim").notna(), 4.0, 6.0)
    return np.asarray(each * np.sum(_least_parameters(runs), axis=0) * tokens / runs["num_gpus"].to_numpy(float))


def least_memory_gib(runs: pd.DataFrame) -> Floats:
    """GiB of a GPU's memory at the least, (n,): a byte of each of its layers' matrix parameters.

    They are shared by tp·pp ranks where a row states both and no ZeRO-3, else by all. Frozen weights are no bound.
    """
    whole = runs["tp"].notna() & runs["pp"].notna() & (runs["zero_stage"] < 3)
    ranks = (runs["tp"] * runs["pp"]).where(whole, runs["num_gpus"]).to_numpy(float)
    return np.where(_cells(runs, "lora_dim").isna(), _least_parameters(runs)[0] / ranks / 2**30, 0.0)


def attention_flop(runs: pd.DataFrame) -> Floats:
    """Flops of causal attention, forward and backward, (n,): 6·layers·width·s² a sequence; 0 where cells are blank.

    Of a model that the table names alone, the catalogue's layers but those with windows.
    """
    cells = runs[["num_layers", "hidden_size", "global_batch_size", "seq_length"]].astype(float)
    width = cells["num_layers"] * cells["hidden_size"]
    width = width.fillna(_of_catalogue(runs, _catalogue_width)).fillna(0.0)
    tokens = cells["global_batch_size"].fillna(0.0) * cells["seq_length"].fillna(0.0) ** 2
    whole = 6.0 * width * tokens / runs["num_gpus"].astype(float)
    return np.asarray(whole * (_cells(runs, "block") != "feed_forward"))


def again_flop(runs: pd.DataFrame) -> Floats:
    """Flops of the forward pass of all layers, (n,), where a row states that all are recomputed; else 0."""
    whole = (_cells(runs, "recompute") == "full") & _cells(runs, "recompute_num_layers").isna()
    tokens = (runs["global_batch_size"] * runs["seq_length"]).to_numpy(float) / runs["num_gpus"].to_numpy(float)
    forward = 2.0 * _least_parameters(runs)[0] * tokens + attention_flop(runs) / 3.0
    return np.where(whole, forward, 0.0)


@functools.cache
def stated_flops(gpu: str, dtype: str) -> float:
    """`_peak_flops`, of fp32 on FP32 cores where no TF32 is stated."""
    known, name = known_gpu(gpu), precision(dtype)
    most = _peak_flops(gpu, dtype)
    return peaks(known).get(name, most) if known and math.isfinite(most) else most


def rates(runs: pd.DataFrame, of_pair: Callable[[str, str], float] = _peak_flops) -> Floats:
    """Full rate of the GPU of each row in its precision, (n,) flop/s."""
    named = with_precision(runs)[["gpu", "dtype"]].astype(object).fillna("").astype(str)
    codes, pairs = pd.factorize(pd.MultiIndex.from_frame(named))
    return np.array([of_pair(gpu, dtype) for gpu, dtype in pairs])[codes]


def least_time_s(runs: pd.DataFrame) -> Floats:
    """Seconds that an iteration takes at the least, (n,): `flop` at the GPU's full rate."""
    return np.asarray(flop(runs) / (rates(runs) * MOST_OF_PEAK))


def reached(runs: pd.DataFrame) -> pd.Series:
    """Share of the full rate, (n,): time of forward and backward pass and recomputation at it over the time stated."""
    least_s = (flop(runs) + attention_flop(runs) + again_flop(runs)) / rates(runs, stated_flops)
    return pd.Series(least_s / runs["iteration_time_s"].to_numpy(float), index=runs.index)


@functools.cache
def _fastest_flops(gpu: str, _: str) -> float:
    known = known_gpu(gpu)
    return max(peaks(known).values(), default=math.nan) if known else math.nan


def in_faster_precision(runs: pd.DataFrame) -> Bools:
    """Rows (n,) too fast for the precision that they state, and not for the fastest of their GPU."""
    runs = runs.reindex(columns=pd.Index(TIMED))
    share, slower = reached(runs).to_numpy(float), rates(runs, stated_flops) / rates(runs, _fastest_flops)
    return np.asarray((share > MOST_REACHED) & (slower < 1.0) & (share * slower <= 1.0))


# The likeliest reason why a GPU seems to have done more than it can: what of the row is probably wrong.


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
