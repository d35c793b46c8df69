"""Rules of one measured run that depend on its GPU: clocks and power limits that it has, results that it can reach."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from jointopt.core.errors import CatalogError
from jointopt.core.schema import Floats
from jointopt.core.units import TERA
from jointopt.runs.cells import named_dtype
from jointopt.runs.rules import RULES, Rule
from jointopt.spec.catalog.gpus import load_gpu
from jointopt.spec.catalog.models import load_model
from jointopt.spec.cluster import Gpu

_TOLERANCE_MHZ = 1.0  # tools round the half steps of V100 clocks differently
_MOST_OF_PEAK = 1.1  # of the rate on the data sheet: boards may boost beyond the clock that it is stated at
Span = tuple[float, float]
ANY: Span = (0.0, math.inf)


def _known_gpu(name: str) -> Gpu | None:
    try:
        return load_gpu(name)
    except CatalogError:
        return None


@functools.cache
def _span(of: Callable[[Gpu], Span], name: str) -> Span:
    """A span of the GPU of that name; `ANY` where the catalogue does not know it."""
    gpu = _known_gpu(name)
    return of(gpu) if gpu else ANY


def _span_of(of: Callable[[Gpu], Span]) -> Callable[[str], Span]:
    return functools.partial(_span, of)


# What spans mean, and where their figures come from, is with the properties of `Gpu`.
_clock_span_mhz = _span_of(lambda gpu: gpu.clock_span_mhz)
_power_limit_span_w = _span_of(lambda gpu: gpu.power_limit_span_w)
_memory_span_gib = _span_of(lambda gpu: gpu.memory_span_gib)
_power_span_w = _span_of(lambda gpu: (0.0, gpu.power_limit_span_w[1]))


def _spans(names: pd.Series, span: Callable[[str], Span]) -> tuple[Floats, Floats]:
    """(lowest, highest) for each row's GPU, (n,) each; none where it names no GPU."""
    codes, distinct = pd.factorize(names)
    known = np.array([*(span(str(name)) for name in distinct), ANY])
    return known[codes, 0], known[codes, 1]


def _outside(column: str, span: Callable[[str], Span], slack: float) -> Callable[[pd.DataFrame], pd.Series]:
    def broken(runs: pd.DataFrame) -> pd.Series:
        if runs[column].isna().all():
            return pd.Series(False, index=runs.index)
        codes, distinct = pd.factorize(runs[column])
        ends = [(min(cell), max(cell)) if isinstance(cell, tuple) else (cell, cell) for cell in distinct]
        bounds = np.array([*ends, (np.nan, np.nan)], np.float64)
        spans = np.array([span(str(name)) for name in runs["gpu"].unique()])
        if np.nanmin(bounds) >= spans[:, 0].max() and np.nanmax(bounds) <= spans[:, 1].min():
            return pd.Series(False, index=runs.index)  # without a look at a million rows
        given = bounds[codes]
        low, high = _spans(runs["gpu"], span)
        return pd.Series((given[:, 0] < low - slack) | (given[:, 1] > high + slack), index=runs.index)

    return broken


def _expected(column: str, span: Callable[[str], Span], unit: str) -> Callable[[pd.Series], str]:
    def words(run: pd.Series) -> str:
        low, high = span(str(run["gpu"]))
        return f"{column} to be from {low:g} to {high:g} {unit} on this GPU"

    return words


def _rule(column: str, span: Callable[[str], Span], unit: str, slack: float = 0.0) -> Rule:
    return Rule((column, "gpu"), _expected(column, span, unit), _outside(column, span, slack))


GPU_RULES = (
    _rule("clock_mhz", _clock_span_mhz, "MHz", _TOLERANCE_MHZ),
    _rule("stage_clock_mhz", _clock_span_mhz, "MHz", _TOLERANCE_MHZ),
    _rule("power_limit_w", _power_limit_span_w, "W"),
)


def _nodes_are_broken(runs: pd.DataFrame) -> pd.Series:
    """Jobs on part of one node are common; those on whole nodes and a part of another are no job that was recorded."""
    return (runs["num_gpus"] > runs["gpus_per_node"]) & (runs["num_gpus"] % runs["gpus_per_node"] > 0)


@functools.cache
def _peak_flops(gpu: str, dtype: str) -> float:
    """The GPU's rate in that precision, the highest of any where none is stated.

    Cores of a CPU differ more among themselves than any slack allows for; they have no bound here.
    """
    known = _known_gpu(gpu)
    if known is None or known.is_cpu or not known.peak_tflops:
        return math.inf
    rates = known.peak_tflops
    return TERA * rates.get(named_dtype(dtype) or "", max(rates.values()))


@functools.cache
def _catalogue_parameters(name: str) -> float:
    """Matrix parameters that a token of that model passes at the least; NaN where the catalogue does not know it."""
    try:
        model = load_model(name)
    except CatalogError:
        return math.nan
    return float(model.active_parameters - model.embedding_parameters)


_SHAPE = (
    "model", "num_layers", "hidden_size", "ffn_hidden_size", "gated_mlp", "num_attention_heads", "num_query_groups",
    "vocab_size",
)  # fmt: skip
_TIMED = (
    "iteration_time_s", "gpu", "num_gpus", "global_batch_size", "seq_length", "dtype", *_SHAPE,
)  # fmt: skip


def _least_parameters(runs: pd.DataFrame) -> pd.Series:
    """Matrix parameters that each token passes, by the cells that are there: a blank one adds nothing, (n,).

    Of experts one is counted: the cells do not say how wide each is next to a layer without experts.
    """
    cells = runs[[name for name in _SHAPE if name != "model"]].astype(float)
    width, known = cells["hidden_size"], cells.fillna(0.0)
    narrower = (cells["num_query_groups"] / cells["num_attention_heads"]).fillna(0.0)
    mlp = (2.0 + (known["gated_mlp"] > 0)) * known["ffn_hidden_size"]
    layer = width * (2.0 * width * (1.0 + narrower) + mlp)
    named = runs["model"].map(lambda name: _catalogue_parameters(str(name)), na_action="ignore")
    return (cells["num_layers"] * layer + width * known["vocab_size"]).fillna(named.astype(float))


def least_time_s(runs: pd.DataFrame) -> Floats:
    """Seconds that an iteration takes at the least, (n,): 6 flop for each parameter and token at the GPU's full rate.

    Attention itself and recomputation come on top, so no run is that fast. NaN where a cell that it needs is blank.
    """
    named = runs[["gpu", "dtype"]].astype(object).fillna("").astype(str)
    codes, pairs = pd.factorize(pd.MultiIndex.from_frame(named))
    rate = np.array([_peak_flops(gpu, dtype) for gpu, dtype in pairs])[codes]
    tokens = (runs["global_batch_size"] * runs["seq_length"]).to_numpy(float)
    flop = 6.0 * _least_parameters(runs).to_numpy(float) * tokens
    return np.asarray(flop / (rate * _MOST_OF_PEAK * runs["num_gpus"].to_numpy(float)))


def _too_fast(runs: pd.DataFrame) -> pd.Series:
    return pd.Series(runs["iteration_time_s"].to_numpy(float) < least_time_s(runs), index=runs.index)


def _slowest_words(run: pd.Series) -> str:
    least_s = float(least_time_s(run.reindex(_TIMED).to_frame().T)[0])
    return (
        f"iteration_time_s to be at least {least_s:.3g}, what 6 flop for each parameter and token take at the full "
        "rate of these GPUs (is it in seconds, and of a whole iteration?)"
    )


def _draws_too_much(runs: pd.DataFrame) -> pd.Series:
    watts = (runs["energy_j"] / (runs["iteration_time_s"] * runs["num_gpus"])).to_numpy(float)
    return pd.Series(watts > _spans(runs["gpu"], _power_span_w)[1], index=runs.index)


def _energy_words(run: pd.Series) -> str:
    most_w = _power_span_w(str(run["gpu"]))[1]
    return f"energy_j over iteration_time_s and num_gpus to be at most {most_w:g} W on this GPU"


def _most(column: str, span: Callable[[str], Span], unit: str) -> Rule:
    def words(run: pd.Series) -> str:
        return f"{column} to be at most {span(str(run['gpu']))[1]:.4g} {unit} on this GPU"

    return Rule((column, "gpu"), words, _outside(column, span, 0.0))


# The first column is what was measured, and cannot be.
RESULT_RULES = (
    _most("peak_memory_gib", _memory_span_gib, "GiB"),
    _most("avg_power_w", _power_span_w, "W"),
    Rule(("energy_j", "iteration_time_s", "num_gpus", "gpu"), _energy_words, _draws_too_much),
    Rule(_TIMED, _slowest_words, _too_fast),
)
MEASUREMENT_RULES = (
    *RULES,
    *GPU_RULES,
    *RESULT_RULES,
    Rule(("num_gpus", "gpus_per_node"), "num_gpus to be a multiple of gpus_per_node, or below it", _nodes_are_broken),
)
