"""Rules that the cells of one measured run must keep among each other, and on the GPU that they name."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from jointopt.core.errors import CatalogError, TableError
from jointopt.core.schema import COLUMNS, DEGREES, MOST_GPU_POWER_W, POWER_PROFILE, RECIPE_CLASSES, Floats
from jointopt.jobs.catalog.frameworks import conflict, named_class, recognise_framework, same_efficiency
from jointopt.jobs.catalog.gpus import known_gpu, known_gpus, load_gpu
from jointopt.jobs.catalog.models import known_model, near_models
from jointopt.jobs.model import LATENT, LATENT_NEEDED
from jointopt.runs import peak_share
from jointopt.runs.cells import Rule, above, broken_rules, contradicts, with_precision
from jointopt.runs.peak_share import (
    HELD,
    LEAST_REACHED,
    MOST_REACHED,
    TIMED,
    again_flop,
    attention_flop,
    flop,
    least_memory_gib,
    least_time_s,
    rates,
    reached,
    stated_flops,
)
from jointopt.runs.shapes import SHAPE, whole_name

_AGREEMENT = 0.2  # between meters: NVML's counters of power and energy, and wall clocks, differ by up to this
_TOLERANCE_MHZ = 1.0  # tools round the half steps of V100 clocks differently
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
    use="power and energy are learned from avg_power_w instead",
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
    unknown = [name for name, gpu in known_gpus(runs["gpu"].dropna().unique()).items() if gpu.power is None]
    return runs["gpu"].isin(unknown) & runs["power_limit_w"].notna()


KNOWN_POWER = Rule(
    ("power_limit_w", "gpu"), "no power limit on a GPU of whose power nothing is known (leave power_limit_w blank to "
    "predict the run without it)", _limit_without_power,
)  # fmt: skip


def _nodes_are_broken(runs: pd.DataFrame) -> pd.Series:
    """Jobs on part of one node are common; those on whole nodes and a part of another are no job that was recorded."""
    return (runs["num_gpus"] > runs["gpus_per_node"]) & (runs["num_gpus"] % runs["gpus_per_node"] > 0)


def _too_fast(runs: pd.DataFrame) -> pd.Series:
    return pd.Series(runs["iteration_time_s"].to_numpy(float) < least_time_s(runs), index=runs.index)


def _near_peak(runs: pd.DataFrame) -> pd.Series:
    return reached(runs) > MOST_REACHED


def _too_slow(runs: pd.DataFrame) -> pd.Series:
    share = reached(runs)
    return (share < LEAST_REACHED) & (share > 0)  # 0: a core, whose rate has no bound


def _slow_words(run: pd.Series) -> str:
    most_s = float(reached(run.reindex(TIMED).to_frame().T).iloc[0] * run["iteration_time_s"]) / LEAST_REACHED
    return (
        f"iteration_time_s to be at most {most_s:.3g}, {1 / LEAST_REACHED:,.0f} times what forward and backward pass "
        "take at the full rate of these GPUs (is it in seconds, and of one iteration?)"
    )


def _slowest_words(run: pd.Series) -> str:
    row = run.reindex(TIMED).to_frame().T
    reason = peak_share.of_time(with_precision(row).iloc[0], float(flop(row)[0] / run["iteration_time_s"]))
    return (
        f"iteration_time_s to be at least {float(least_time_s(row)[0]):.3g}, what 6 flop for each parameter and token "
        f"take at the full rate of these GPUs ({reason})"
    )


def _peak_words(run: pd.Series) -> str:
    row = run.reindex(TIMED).to_frame().T
    once, again = float((flop(row) + attention_flop(row))[0]), float(again_flop(row)[0])
    rate, time_s = float(rates(row, stated_flops)[0]), float(run["iteration_time_s"])
    share = (once + again) / time_s / rate
    passes = "forward, backward and recomputed" if again else "forward and backward"
    if again and once / time_s <= MOST_REACHED * rate:
        reason = "was nothing recomputed, or a part?"
    else:
        reason = peak_share.of_time(with_precision(row).iloc[0], share * rate)
    return (
        f"iteration_time_s to be at least {(once + again) / rate / MOST_REACHED:.3g}, what {passes} pass take at "
        f"{MOST_REACHED:g} of the full rate of these GPUs: it is {share:.2f} of that rate ({reason})"
    )


def _drawn_w(runs: pd.DataFrame) -> pd.Series:
    """`reasons.drawn_w` of each row, (n,)."""
    return runs["avg_power_w"].fillna(runs["energy_j"] / (runs["iteration_time_s"] * runs["num_gpus"])).astype(float)


def _limits_w(runs: pd.DataFrame) -> Floats:
    """Power limit of a GPU of each row in W, (n,): its own, else what the board is rated for."""
    rated = {name: gpu.tdp_w or math.inf for name, gpu in known_gpus(runs["gpu"].dropna().unique()).items()}
    limits = runs["power_limit_w"].astype(float).fillna(runs["gpu"].map(rated).astype(float))
    return np.asarray(limits.fillna(math.inf), np.float64)


def _above_limit(runs: pd.DataFrame) -> pd.Series:
    return _drawn_w(runs) > _MOST_OF_LIMIT * _limits_w(runs)


def _limit_words(run: pd.Series) -> str:
    row = run.reindex([*_DRAWN, "power_limit_w"]).to_frame().T
    drawn, limit = float(_drawn_w(row).iloc[0]), float(_limits_w(row)[0])
    return f"at most {limit:g} W of a GPU, its limit, not {drawn:.0f} ({peak_share.of_power(run)})"


def _peak_above_limit(runs: pd.DataFrame) -> pd.Series:
    return runs["peak_power_w"].astype(float) > _PEAK_OF_LIMIT * _limits_w(runs)


def _peak_power_words(run: pd.Series) -> str:
    limit = float(_limits_w(run.reindex(["power_limit_w", "gpu"]).to_frame().T)[0])
    reason = peak_share.of_power(pd.Series({"gpu": run["gpu"], "avg_power_w": run["peak_power_w"]}))
    return f"at most {_PEAK_OF_LIMIT * limit:.0f} W of a GPU, {_PEAK_OF_LIMIT:g} times its limit, at a peak ({reason})"


def _above_memory(runs: pd.DataFrame) -> pd.Series:
    known = known_gpus(runs["gpu"].dropna().unique())
    held = {name: gpu.memory_gib for name, gpu in known.items() if not gpu.is_cpu}
    return runs["peak_memory_gib"].astype(float) > runs["gpu"].map(held).astype(float)


def _memory_words(run: pd.Series) -> str:
    gpu = load_gpu(str(run["gpu"]))
    return (
        f"peak_memory_gib to be at most {gpu.memory_gib:.4g} GiB, all that {gpu.id} has ({peak_share.of_memory(run)})"
    )


def _below_weights(runs: pd.DataFrame) -> pd.Series:
    return runs["peak_memory_gib"].astype(float) < least_memory_gib(runs)


def _weights_words(run: pd.Series) -> str:
    least = float(least_memory_gib(run.reindex(HELD).to_frame().T)[0])
    return (
        f"peak_memory_gib to be at least {least:.3g} GiB, a byte of each weight of its layers that a GPU holds (is it "
        "a share of the memory, or in TiB?)"
    )


def _energy_beyond(runs: pd.DataFrame) -> pd.Series:
    watts = (runs["energy_j"] / (runs["iteration_time_s"] * runs["num_gpus"])).to_numpy(float)
    low, high = _spans("mean_power_span_w", runs["gpu"]).T
    return pd.Series((watts < low) | (watts > high), index=runs.index)


def _energy_words(run: pd.Series) -> str:
    run = run.drop("avg_power_w", errors="ignore")  # the reason is one of the energy
    words = _bound(peak_share.drawn_w(run), *_span("mean_power_span_w", str(run["gpu"])))
    return f"energy_j over iteration_time_s and num_gpus to be {words} W on this GPU ({peak_share.of_power(run)})"


# the first column is what was measured, and cannot be
RESULT_RULES = (
    _on_gpu("peak_memory_gib", "memory_span_gib", "GiB", result=peak_share.of_memory),
    _on_gpu("avg_power_w", "mean_power_span_w", "W", result=peak_share.of_power),
    Rule(("energy_j", "iteration_time_s", "num_gpus", "gpu"), _energy_words, _energy_beyond),
    Rule(TIMED, _slowest_words, _too_fast),
)
_DRAWN = ("avg_power_w", "gpu", "energy_j", "iteration_time_s", "num_gpus")
# Results that are used, and that one sentence doubts: beyond what the GPU is sold for, and not impossible.
DOUBTS = (
    Rule(("peak_memory_gib", "gpu"), _memory_words, _above_memory),
    Rule(HELD, _weights_words, _below_weights),
    Rule((*_DRAWN, "power_limit_w"), _limit_words, _above_limit),
    Rule(("peak_power_w", "gpu", "power_limit_w"), _peak_power_words, _peak_above_limit),
    Rule(TIMED, _peak_words, _near_peak),
    Rule(TIMED, _slow_words, _too_slow),
    _AGREEING_ENERGY,
)
MEASUREMENT_RULES = (
    *RULES, *GPU_RULES, *RESULT_RULES,
    Rule(("num_gpus", "gpus_per_node"), "num_gpus to be a multiple of gpus_per_node, or below it", _nodes_are_broken),
)  # fmt: skip


# Rows of tables that no physics can price, and why.


_REQUIRED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "gpu", "num_gpus")
# nanotron has run such pipelines, with stages that hold an embedding or nothing; the physics has no such stage
_ENOUGH_LAYERS = Rule(("pp", "num_layers"), "pp to be at most num_layers", above("pp", "num_layers"))


def check_required(runs: pd.DataFrame) -> None:
    """Raises TableError for a table that lacks a column without which no run can be predicted."""
    missing = [name for name in _REQUIRED if name not in runs]
    if missing:
        hint = _shape_hint(runs) if missing[0] in SHAPE else ""
        raise TableError(f"The table lacks the column {missing[0]!r}{hint}, without which no run can be predicted.")


def _shape_hint(runs: pd.DataFrame) -> str:
    """A hint at the catalogue names that stand for a column of the model's shape."""
    names = [str(name) for name in runs["model"].dropna().unique()] if "model" in runs else []
    if not names:
        return " (a catalogue name in the column model stands for it)"
    return f" ({names[0]!r} in the column model is not listed by `jointopt catalog models`{near_models(names[0])})"


def impossible(runs: pd.DataFrame) -> dict[int, str]:
    """Rows by position that no physics can price, and the first reason of each."""
    checks = _unknown_models(runs)
    shape = "; a catalogue name in the column model stands for it"
    checks |= {f"{name} is blank{shape * (name in SHAPE)}.": runs[name].isna() for name in _REQUIRED}
    checks |= {message: runs["gpu"] == name for name, message in _unknown_gpus(runs["gpu"]).items()}
    if POWER_PROFILE in runs:
        checks["it ran under a power_profile, whose effect is measured and never predicted."] = runs[
            POWER_PROFILE
        ].notna()
    reasons: dict[int, str] = {}
    for reason, rows in checks.items():
        reasons = {int(row): reason for row in runs.index[rows]} | reasons
    for rule, broken in broken_rules(runs, (*RUN_RULES, _ENOUGH_LAYERS, KNOWN_POWER, *GPU_RULES)):
        reasons = {int(row): f"{rule.complaint(runs.loc[row])}." for row in runs.index[broken]} | reasons
    return reasons


def _unknown_models(runs: pd.DataFrame) -> dict[str, pd.Series]:
    """Rows that leave their shape to a model that the catalogue does not know, by a sentence on each model."""
    if "model" not in runs:
        return {}
    blank = runs[["num_layers", "hidden_size"]].isna()
    open_shape = blank.any(axis=1) & runs["model"].notna()
    cells = runs.reindex(columns=["model", "block"]).assign(**blank)[open_shape].drop_duplicates()
    found = {}
    for name, block, layers, hidden in cells.itertuples(index=False):
        if known_model(whole_name(name, block)) is None:
            rows = open_shape & (runs["model"] == name) & (blank["num_layers"] == layers)
            found[_unknown_model(str(name), layers, hidden)] = rows & (blank["hidden_size"] == hidden)
    return found


def _unknown_model(name: str, layers: bool, hidden: bool) -> str:
    blank = "num_layers and hidden_size are" if layers and hidden else f"{'num_layers' if layers else 'hidden_size'} is"
    return (
        f"{blank} blank, and the model {name[:80]!r} is not in the catalogue{near_models(name)}; "
        "`jointopt catalog models` lists the known ones."
    )


def _unknown_gpus(names: pd.Series) -> dict[object, str]:
    messages: dict[object, str] = {}
    for name in names.dropna().unique():
        try:
            load_gpu(str(name))
        except CatalogError as error:
            messages[name] = str(error)
    return messages


# Runs of one plan of one job that a table has more than once: how far their times are apart.


# slowest over fastest: repeated runs of published tables differ by a few per cent, allocator retries aside
_APART = 1.5
_OTHERWISE = ("framework_version", "framework_flags", "fabric")  # kept beside results, and reasons for another time


def contradicting_lines(runs: pd.DataFrame, clean: pd.DataFrame) -> list[str]:
    """One sentence where rows (as `with_results` leaves them) that state one plan of one job took very unlike times.

    ``clean``: their cells as `readable_runs` reads them.
    """
    timed = runs["iteration_time_s"].where((runs["status"] == "ok") & (runs["iteration_time_s"] > 0))
    stated = ["clock_mhz", *(c.name for c in COLUMNS.values() if c.role != "result"), *_OTHERWISE]
    cells = clean[[name for name in stated if name in clean and name != "group"]].astype(object)
    if cells.columns.empty:
        return []
    group = cells.fillna("").groupby(list(cells), sort=False).ngroup()
    slowest, fastest = (timed.groupby(group.to_numpy()).transform(of) for of in ("max", "min"))
    apart = ((slowest > _APART * fastest) & timed.notna()).to_numpy(bool)
    if not apart.any():
        return []
    plans, first = group[apart].nunique(), int(np.flatnonzero(apart)[0])
    same = np.flatnonzero(apart & (group == group[first]).to_numpy(bool))
    times = timed.to_numpy(float)[same]
    low, high = same[times.argmin()], same[times.argmax()]
    many = f"{plans:,} plans were" if plans > 1 else "1 plan was"
    return [
        f"{many} run more than once with times that are more than {_APART:g} times apart (row {low + 1}: "
        f"{times.min():.4g} s, row {high + 1}: {times.max():.4g} s): did something differ that no column states?"
    ]


# Recipe classes of rows that state none, from rows of the same source and framework.


_SOURCE = ["source", "framework"]


def states_class(table: pd.DataFrame) -> bool:
    """Whether a row of the table states a recipe class, or names one in the framework's text."""
    texts = table["framework"].dropna().unique() if "framework" in table else ()
    stated = "recipe_class" in table and bool(table["recipe_class"].notna().any())
    return stated or any(named_class(str(text)) for text in texts)


def with_classes_of_kin(runs: pd.DataFrame, others: pd.DataFrame | None = None) -> pd.DataFrame:
    """Blank recipe classes filled with that of the same source and framework, where its rows state one efficiency.

    Rows of ``others`` count like those of ``runs``: measured runs and the table that they are for would else be priced
    by different classes, and what the runs show of theirs counted a second time.
    """
    if not (states_class(runs) or (others is not None and states_class(others))):
        return runs
    one = {key: names[0] for key, names in _stated(runs, others).items() if same_efficiency(names)}
    ours = _classes(runs)
    keys = zip(*(ours[name] for name in (*_SOURCE, "recipe_class")), strict=True)
    found = np.array([name or one.get((source, framework), "") for source, framework, name in keys], dtype=object)
    return runs.assign(recipe_class=pd.Series(found, runs.index).where(found != ""))


def taken_lines(runs: pd.DataFrame, others: pd.DataFrame | None = None) -> list[str]:
    """A sentence on each recipe class that `with_classes_of_kin` gives rows which state none."""
    if not (states_class(runs) or (others is not None and states_class(others))):
        return []
    stated, taken = (_classes(table)["recipe_class"] for table in (runs, with_classes_of_kin(runs, others)))
    counts = taken[(stated == "") & (taken != "")].value_counts()
    return [
        f"{count:,} row{'s' * (count > 1)} without a recipe class predicted as a {name} recipe, as other rows of the "
        "same source and framework state (column recipe_class)."
        for name, count in counts.items()
    ]


def class_conflicts(measured: pd.DataFrame, queried: pd.DataFrame) -> list[str]:
    """A sentence on each source of both tables whose rows state classes of different efficiency."""
    if not (states_class(measured) or states_class(queried)):
        return []
    both = [set(zip(*(_classes(table)[name] for name in _SOURCE), strict=True)) for table in (measured, queried)]
    stated = {key: names for key, names in _stated(measured, queried).items() if key in both[0] & both[1]}
    return [
        conflict(", ".join(filter(None, key)), names) for key, names in stated.items() if not same_efficiency(names)
    ]


def _stated(*tables: pd.DataFrame | None) -> dict[tuple[str, str], list[str]]:
    """The classes that rows of each source and framework state."""
    rows = pd.concat([_classes(table) for table in tables if table is not None]).drop_duplicates()
    found: dict[tuple[str, str], list[str]] = {}
    for source, framework, name in rows[rows["recipe_class"] != ""].sort_values("recipe_class").itertuples(index=False):
        found.setdefault((source, framework), []).append(name)
    return found


def _classes(table: pd.DataFrame) -> pd.DataFrame:
    """Source, framework profile (or text) and class of every row; a blank source is a source, a blank class none."""
    cells = table.reindex(columns=[*_SOURCE, "recipe_class"]).astype(object).fillna("").astype(str)
    texts = {text: _framework(text) for text in cells["framework"].unique()}
    words = {word: word.strip().lower() for word in cells["recipe_class"].unique()}
    classes = cells["recipe_class"].map(words)
    named = cells["framework"].map({text: named_class(text) for text in texts})
    return pd.DataFrame({
        "source": cells["source"], "framework": cells["framework"].map(texts),
        "recipe_class": classes.where(classes.isin(RECIPE_CLASSES), named),
    })  # fmt: skip


def _framework(text: str) -> str:
    profile, known = recognise_framework(text)
    return profile.name if known else text.strip().lower()
