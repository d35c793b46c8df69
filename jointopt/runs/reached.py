"""How much of a GPU's full rate measured runs reach, by the flops that their cells state at the least."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from jointopt.core.schema import Bools, Floats
from jointopt.core.units import TERA
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.jobs.catalog.models import known_model
from jointopt.runs import reasons
from jointopt.runs.cells import named_dtype
from jointopt.runs.precision import with_precision

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
    known, precision = known_gpu(gpu), reasons.precision(dtype)
    most = _peak_flops(gpu, dtype)
    return reasons.peaks(known).get(precision, most) if known and math.isfinite(most) else most


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
    return max(reasons.peaks(known).values(), default=math.nan) if known else math.nan


def in_faster_precision(runs: pd.DataFrame) -> Bools:
    """Rows (n,) too fast for the precision that they state, and not for the fastest of their GPU."""
    runs = runs.reindex(columns=pd.Index(TIMED))
    share, slower = reached(runs).to_numpy(float), rates(runs, stated_flops) / rates(runs, _fastest_flops)
    return np.asarray((share > MOST_REACHED) & (slower < 1.0) & (share * slower <= 1.0))
