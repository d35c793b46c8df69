"""Rules that the cells of one measured run must keep among each other, and on the GPU that they name."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from jointopt.core.schema import DEGREES, MOST_GPU_POWER_W, Bools, Floats
from jointopt.core.units import TERA
from jointopt.runs import reasons
from jointopt.runs.cells import named_dtype
from jointopt.runs.precision import contradicts, with_precision
from jointopt.runs.rule import Rule, above
from jointopt.spec.catalog.gpus import known_gpu, load_gpu
from jointopt.spec.catalog.models import known_model
from jointopt.spec.cluster import Gpu
from jointopt.spec.model import LATENT, LATENT_NEEDED

_AGREEMENT = 0.2  # between meters: NVML's counters of power and energy, and wall clocks, differ by up to this
_TOLERANCE_MHZ = 1.0  # tools round the half steps of V100 clocks differently
_MOST_OF_PEAK = 1.1  # of the rate on the data sheet: boards may boost beyond the clock that it is stated at
# Of the full rate: more than two thousand recorded runs reach 0.00018 to 0.65.
_MOST_REACHED, _LEAST_REACHED = 0.85, 1e-5
_PEAK_OF_LIMIT = 1.3  # that a peak may reach: boards hold their limit on average over tens of milliseconds
_MOST_OF_LIMIT = 1.03  # of a power limit that a mean power may reach: A40 and A100-PCIe exceed theirs by 2 % at most


def _degrees_contradict(runs: pd.DataFrame) -> pd.Series:
    degrees = runs[list(DEGREES)]
    product = degrees.prod(axis=1)  # a blank counts as 1
    complete = degrees.notna().all(axis=1)
    return (runs["num_gpus"] % product > 0) | (complete & ((product - runs["num_gpus"]).abs() > 0))


def _clocks_miscounted(runs: pd.DataFrame) -> pd.Series:
    cells = runs["stage_clock_mhz"]  # of a million plans mostly blank, and then not walked through
    count = (cells.map(len, na_action="ignore") if cells.notna().any() else cells).astype(float)
    return (count > 1) & ((count - runs["pp"]).abs() > 0)


def _energy_contradicts(runs: pd.DataFrame) -> pd.Series:
    by_power = runs["avg_power_w"] * runs["iteration_time_s"] * runs["num_gpus"]
    return (runs["energy_j"] / by_power - 1).abs() > _AGREEMENT


def _energy_excessive(runs: pd.DataFrame) -> pd.Series:
    return (_drawn_w(runs) > MOST_GPU_POWER_W) & runs["avg_power_w"].isna()


def _at_most(smaller: str, larger: str) -> Rule:
    return Rule((smaller, larger), f"{smaller} to be at most {larger}", above(smaller, larger))


def _partly_latent(runs: pd.DataFrame) -> pd.Series:
    stated = runs[list(LATENT)].fillna(0.0) > 0
    return stated.any(axis=1) & ~stated[list(LATENT_NEEDED)].all(axis=1)


def _kinds_contradict(runs: pd.DataFrame) -> pd.Series:
    return runs["attention_kind"].isin(["mha", "gqa", "mqa"]) & (runs["kv_lora_rank"].fillna(0.0) > 0)


_AGREEING_ENERGY = Rule(
    ("energy_j", "avg_power_w", "iteration_time_s", "num_gpus"),
    f"avg_power_w * iteration_time_s * num_gpus to be energy_j within {_AGREEMENT:.0%}", _energy_contradicts,
)  # fmt: skip
RUN_RULES = (
    Rule(("num_gpus", *DEGREES), f"{'*'.join(DEGREES)} to be num_gpus", _degrees_contradict),
    Rule(("global_batch_size", "dp"), "global_batch_size to be at least dp", above("dp", "global_batch_size"), True),
    _at_most("num_attention_heads", "hidden_size"),
    Rule(("moe_router_topk", "num_experts"), "moe_router_topk to be at most num_experts",  # a single one is no choice
         lambda runs: (runs["moe_router_topk"] > runs["num_experts"]) & (runs["num_experts"] > 1)),
    Rule(("stage_clock_mhz", "pp"), "stage_clock_mhz to have one clock or pp of them", _clocks_miscounted),
    Rule(("moe_load_imbalance", "num_experts", "moe_router_topk"),
         "moe_load_imbalance to be at most num_experts / moe_router_topk, as a token goes to an expert once",
         lambda runs: runs["moe_load_imbalance"] * runs["moe_router_topk"] > runs["num_experts"]),
    Rule(("moe_load_imbalance", "moe_router_force_load_balancing"),
         "moe_load_imbalance to be 1 or blank where balance is forced, which draws experts at random",
         lambda runs: (runs["moe_load_imbalance"] > 1) & (runs["moe_router_force_load_balancing"] > 0)),
    Rule((*LATENT,), "kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim together, for latent attention",
         _partly_latent),
    Rule(("attention_kind", "kv_lora_rank"), "attention_kind to be mla where kv_lora_rank is above 0",
         _kinds_contradict),
    *(Rule(pair, f"{pair[0]} and {pair[1]} to mean the same", contradicts(*pair)) for pair in
      itertools.combinations(("precision", "dtype", "fp8_recipe"), 2)),
)  # fmt: skip
RULES = (
    *RUN_RULES,
    _at_most("ep", "num_gpus"),
    _at_most("num_query_groups", "num_attention_heads"),
    _AGREEING_ENERGY,
    Rule(("energy_j", "iteration_time_s", "num_gpus", "avg_power_w"),
         f"energy_j over iteration_time_s and num_gpus to be at most {MOST_GPU_POWER_W:,} W", _energy_excessive),
    Rule(("peak_power_w", "avg_power_w"), f"peak_power_w to be at least avg_power_w, within {_AGREEMENT:.0%}",
         above("avg_power_w", "peak_power_w", 1 / (1 - _AGREEMENT))),
)  # fmt: skip

# --- rules of a GPU: what the spans mean, and where their figures come from, is with the properties of `Gpu`


@functools.cache
def _span(figure: str, gpu: str) -> tuple[float, float]:
    """A span of the GPU of that name; without bounds where the catalogue does not know it."""
    span: tuple[float, float] = getattr(known_gpu(gpu), figure, (0.0, math.inf))
    return span


def _bound(value: float, low: float, high: float) -> str:
    return f"at least {low:.4g}" if value < low else f"at most {high:.4g}"


def _spans(figure: str, names: pd.Series) -> Floats:
    """(lowest, highest) for each row's GPU, (n, 2); without bounds where it names no GPU."""
    codes, distinct = pd.factorize(names)
    return np.array([*(_span(figure, str(name)) for name in distinct), (0.0, math.inf)])[codes]


def _on_gpu(
    column: str, figure: str, unit: str, slack: float = 0.0, result: Callable[[pd.Series], str] | None = None
) -> Rule:
    """The rule that clocks, limits or results lie in a span of the GPU; of a ``result`` the likeliest reason."""

    def words(run: pd.Series) -> str:
        low, high = _span(figure, str(run["gpu"]))
        if result is None:
            return f"{column} to be from {low:g} to {high:g} {unit} on this GPU"
        return f"{column} to be {_bound(run[column], low, high)} {unit} on this GPU ({result(run)})"

    def broken(runs: pd.DataFrame) -> pd.Series:
        codes, distinct = pd.factorize(runs[column])
        ends = [(min(cell), max(cell)) if isinstance(cell, tuple) else (cell, cell) for cell in distinct]
        bounds = np.array([*ends, (np.nan, np.nan)], np.float64)
        spans = _spans(figure, runs["gpu"].drop_duplicates())
        if not ends or (bounds[:-1].min() >= spans[:, 0].max() and bounds[:-1].max() <= spans[:, 1].min()):
            return pd.Series(False, index=runs.index)  # without a look at a million rows
        given, (low, high) = bounds[codes], _spans(figure, runs["gpu"]).T
        return pd.Series((given[:, 0] < low - slack) | (given[:, 1] > high + slack), index=runs.index)

    return Rule((column, "gpu"), words, broken)


GPU_RULES = (
    _on_gpu("clock_mhz", "clock_span_mhz", "MHz", _TOLERANCE_MHZ),
    _on_gpu("stage_clock_mhz", "clock_span_mhz", "MHz", _TOLERANCE_MHZ),
    _on_gpu("power_limit_w", "power_limit_span_w", "W"),
)


def _limit_without_power(runs: pd.DataFrame) -> pd.Series:
    """Whether a row limits a GPU of which it is not known what a limit does, (n,)."""
    known = {str(name): known_gpu(name) for name in runs["gpu"].dropna().unique()}
    unknown = [name for name, gpu in known.items() if gpu and gpu.power is None]
    return runs["gpu"].isin(unknown) & runs["power_limit_w"].notna()


KNOWN_POWER = Rule(
    ("power_limit_w", "gpu"), "no power limit on a GPU of whose power nothing is known (leave power_limit_w blank to "
    "predict the run without it)", _limit_without_power,
)  # fmt: skip


def _nodes_are_broken(runs: pd.DataFrame) -> pd.Series:
    """Jobs on part of one node are common; those on whole nodes and a part of another are no job that was recorded."""
    return (runs["num_gpus"] > runs["gpus_per_node"]) & (runs["num_gpus"] % runs["gpus_per_node"] > 0)


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
def _catalogue_parameters(name: str) -> float:
    """Matrix parameters that a token of that model passes at the least; NaN where the catalogue does not know it."""
    model = known_model(name)
    return float(model.active_parameters - model.embedding_parameters) if model else math.nan


_SHAPE = (
    "model", "num_layers", "hidden_size", "ffn_hidden_size", "gated_mlp", "num_attention_heads", "num_query_groups",
    "vocab_size",
)  # fmt: skip
_TIMED = (
    "iteration_time_s", "gpu", "num_gpus", "global_batch_size", "seq_length", "dtype", "precision", "fp8_recipe",
    "lora_dim", "block", *_SHAPE,
)  # fmt: skip


def _least_parameters(runs: pd.DataFrame) -> pd.Series:
    """Matrix parameters that each token passes, by the cells that are there: a blank one adds nothing, (n,).

    Of experts one is counted: the cells do not state how wide each is next to a layer without experts.
    """
    cells = runs[[name for name in _SHAPE if name != "model"]].astype(float)
    width, known = cells["hidden_size"], cells.fillna(0.0)
    narrower = (cells["num_query_groups"] / cells["num_attention_heads"]).fillna(0.0)
    block = _cells(runs, "block")
    mlp = (2.0 + (known["gated_mlp"] > 0)) * known["ffn_hidden_size"] * (block != "attention")
    layer = width * (2.0 * width * (1.0 + narrower) * (block != "feed_forward") + mlp)
    named = runs["model"].map(lambda name: _catalogue_parameters(str(name)), na_action="ignore").astype(float)
    head = width * known["vocab_size"] * block.isna()
    return (cells["num_layers"] * layer + head).fillna(named.where(block.isna()))


def _cells(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column that few tables have, blank where this one lacks it, (n,)."""
    return runs.reindex(columns=pd.Index([name]))[name]


def _flop(runs: pd.DataFrame) -> Floats:
    """Operations of a GPU in one iteration at the least, (n,): 6 for each parameter and token, 4 for a frozen one.

    Attention itself and recomputation come on top, so no run does with fewer. NaN where a cell that it needs is blank.
    """
    tokens = (runs["global_batch_size"] * runs["seq_length"]).to_numpy(float)
    each = np.where(_cells(runs, "lora_dim").notna(), 4.0, 6.0)
    return np.asarray(each * _least_parameters(runs).to_numpy(float) * tokens / runs["num_gpus"].to_numpy(float))


def _attention_flop(runs: pd.DataFrame) -> Floats:
    """Flops of causal attention, forward and backward, (n,): 6·layers·width·s² a sequence; 0 where cells are blank."""
    cells = runs[["num_layers", "hidden_size", "global_batch_size", "seq_length"]].astype(float).fillna(0.0)
    whole = 6.0 * cells.prod(axis=1) * cells["seq_length"] / runs["num_gpus"].astype(float)
    return np.asarray(whole * (_cells(runs, "block") != "feed_forward"))


@functools.cache
def _stated_flops(gpu: str, dtype: str) -> float:
    """`_peak_flops`, of fp32 on FP32 cores where no TF32 is stated."""
    known, precision = known_gpu(gpu), reasons.precision(dtype)
    most = _peak_flops(gpu, dtype)
    return reasons.peaks(known).get(precision, most) if known and math.isfinite(most) else most


def _rates(runs: pd.DataFrame, of_pair: Callable[[str, str], float] = _peak_flops) -> Floats:
    """Full rate of the GPU of each row in its precision, (n,) flop/s."""
    named = with_precision(runs)[["gpu", "dtype"]].astype(object).fillna("").astype(str)
    codes, pairs = pd.factorize(pd.MultiIndex.from_frame(named))
    return np.array([of_pair(gpu, dtype) for gpu, dtype in pairs])[codes]


def least_time_s(runs: pd.DataFrame) -> Floats:
    """Seconds that an iteration takes at the least, (n,): `_flop` at the GPU's full rate."""
    return np.asarray(_flop(runs) / (_rates(runs) * _MOST_OF_PEAK))


def _too_fast(runs: pd.DataFrame) -> pd.Series:
    return pd.Series(runs["iteration_time_s"].to_numpy(float) < least_time_s(runs), index=runs.index)


def _reached(runs: pd.DataFrame) -> pd.Series:
    """MFU of each row, (n,): what forward and backward pass take at the full rate over the time stated."""
    least_s = (_flop(runs) + _attention_flop(runs)) / _rates(runs, _stated_flops)
    return pd.Series(least_s / runs["iteration_time_s"].to_numpy(float), index=runs.index)


def _near_peak(runs: pd.DataFrame) -> pd.Series:
    return _reached(runs) > _MOST_REACHED


@functools.cache
def _fastest_flops(gpu: str, _: str) -> float:
    known = known_gpu(gpu)
    return max(reasons.peaks(known).values(), default=math.nan) if known else math.nan


def in_faster_precision(runs: pd.DataFrame) -> Bools:
    """Rows (n,) too fast for the precision that they state, and not for the fastest of their GPU."""
    runs = runs.reindex(columns=pd.Index(_TIMED))
    reached, slower = _reached(runs).to_numpy(float), _rates(runs, _stated_flops) / _rates(runs, _fastest_flops)
    return np.asarray((reached > _MOST_REACHED) & (slower < 1.0) & (reached * slower <= 1.0))


def _too_slow(runs: pd.DataFrame) -> pd.Series:
    reached = _reached(runs)
    return (reached < _LEAST_REACHED) & (reached > 0)  # 0: a core, whose rate has no bound


def _slow_words(run: pd.Series) -> str:
    most_s = float(_reached(run.reindex(_TIMED).to_frame().T).iloc[0] * run["iteration_time_s"]) / _LEAST_REACHED
    return (
        f"iteration_time_s to be at most {most_s:.3g}, {1 / _LEAST_REACHED:,.0f} times what forward and backward pass "
        "take at the full rate of these GPUs (is it in seconds, and of one iteration?)"
    )


def _slowest_words(run: pd.Series) -> str:
    row = run.reindex(_TIMED).to_frame().T
    reason = reasons.of_time(with_precision(row).iloc[0], float(_flop(row)[0] / run["iteration_time_s"]))
    return (
        f"iteration_time_s to be at least {float(least_time_s(row)[0]):.3g}, what 6 flop for each parameter and token "
        f"take at the full rate of these GPUs ({reason})"
    )


def _peak_words(run: pd.Series) -> str:
    row = run.reindex(_TIMED).to_frame().T
    flop = float((_flop(row) + _attention_flop(row))[0])
    rate, reached = float(_rates(row, _stated_flops)[0]), flop / float(run["iteration_time_s"])
    reason = reasons.of_time(with_precision(row).iloc[0], reached)
    return (
        f"iteration_time_s to be at least {flop / rate / _MOST_REACHED:.3g}, what forward and backward pass take at "
        f"{_MOST_REACHED:g} of the full rate of these GPUs: it is {reached / rate:.2f} of that rate ({reason})"
    )


def _drawn_w(runs: pd.DataFrame) -> pd.Series:
    """`reasons.drawn_w` of each row, (n,)."""
    return runs["avg_power_w"].fillna(runs["energy_j"] / (runs["iteration_time_s"] * runs["num_gpus"])).astype(float)


def _limits_w(runs: pd.DataFrame) -> Floats:
    """Power limit of a GPU of each row in W, (n,): its own, else what the board is rated for."""
    rated = {name: gpu.tdp_w or math.inf for name, gpu in _known_gpus(runs).items()}
    limits = runs["power_limit_w"].astype(float).fillna(runs["gpu"].map(rated).astype(float))
    return np.asarray(limits.fillna(math.inf), np.float64)


def _known_gpus(runs: pd.DataFrame) -> dict[object, Gpu]:
    found = {name: known_gpu(name) for name in runs["gpu"].dropna().unique()}
    return {name: gpu for name, gpu in found.items() if gpu}


def _above_limit(runs: pd.DataFrame) -> pd.Series:
    return _drawn_w(runs) > _MOST_OF_LIMIT * _limits_w(runs)


def _limit_words(run: pd.Series) -> str:
    row = run.reindex([*_DRAWN, "power_limit_w"]).to_frame().T
    drawn, limit = float(_drawn_w(row).iloc[0]), float(_limits_w(row)[0])
    return f"at most {limit:g} W of a GPU, its limit, not {drawn:.0f} ({reasons.of_power(run)})"


def _peak_above_limit(runs: pd.DataFrame) -> pd.Series:
    return runs["peak_power_w"].astype(float) > _PEAK_OF_LIMIT * _limits_w(runs)


def _peak_power_words(run: pd.Series) -> str:
    limit = float(_limits_w(run.reindex(["power_limit_w", "gpu"]).to_frame().T)[0])
    reason = reasons.of_power(pd.Series({"gpu": run["gpu"], "avg_power_w": run["peak_power_w"]}))
    return f"at most {_PEAK_OF_LIMIT * limit:.0f} W of a GPU, {_PEAK_OF_LIMIT:g} times its limit, at a peak ({reason})"


def _above_memory(runs: pd.DataFrame) -> pd.Series:
    held = {name: gpu.memory_gib for name, gpu in _known_gpus(runs).items() if not gpu.is_cpu}
    return runs["peak_memory_gib"].astype(float) > runs["gpu"].map(held).astype(float)


def _memory_words(run: pd.Series) -> str:
    gpu = load_gpu(str(run["gpu"]))
    return f"peak_memory_gib to be at most {gpu.memory_gib:.4g} GiB, all that {gpu.id} has ({reasons.of_memory(run)})"


def _energy_beyond(runs: pd.DataFrame) -> pd.Series:
    watts = (runs["energy_j"] / (runs["iteration_time_s"] * runs["num_gpus"])).to_numpy(float)
    low, high = _spans("mean_power_span_w", runs["gpu"]).T
    return pd.Series((watts < low) | (watts > high), index=runs.index)


def _energy_words(run: pd.Series) -> str:
    run = run.drop("avg_power_w", errors="ignore")  # the reason is one of the energy
    words = _bound(reasons.drawn_w(run), *_span("mean_power_span_w", str(run["gpu"])))
    return f"energy_j over iteration_time_s and num_gpus to be {words} W on this GPU ({reasons.of_power(run)})"


# the first column is what was measured, and cannot be
RESULT_RULES = (
    _on_gpu("peak_memory_gib", "memory_span_gib", "GiB", result=reasons.of_memory),
    _on_gpu("avg_power_w", "mean_power_span_w", "W", result=reasons.of_power),
    Rule(("energy_j", "iteration_time_s", "num_gpus", "gpu"), _energy_words, _energy_beyond),
    Rule(_TIMED, _slowest_words, _too_fast),
)
_DRAWN = ("avg_power_w", "gpu", "energy_j", "iteration_time_s", "num_gpus")
# Results that are used, and that one sentence doubts: beyond what the GPU is sold for, and not impossible.
DOUBTS = (
    Rule(("peak_memory_gib", "gpu"), _memory_words, _above_memory),
    Rule((*_DRAWN, "power_limit_w"), _limit_words, _above_limit),
    Rule(("peak_power_w", "gpu", "power_limit_w"), _peak_power_words, _peak_above_limit),
    Rule(_TIMED, _peak_words, _near_peak),
    Rule(_TIMED, _slow_words, _too_slow),
    _AGREEING_ENERGY,
)
MEASUREMENT_RULES = (
    *RULES, *GPU_RULES, *RESULT_RULES,
    Rule(("num_gpus", "gpus_per_node"), "num_gpus to be a multiple of gpus_per_node, or below it", _nodes_are_broken),
)  # fmt: skip
