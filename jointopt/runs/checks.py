"""What the cells of one measured run must keep among each other, and on the GPU that they name: one table of checks."""

from __future__ import annotations

import functools
import itertools
import math
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from jointopt.core.errors import CatalogError, TableError
from jointopt.core.schema import COLUMNS, DEGREES, MOST_GPU_POWER_W, POWER_PROFILE, Bools, Floats
from jointopt.jobs.catalog.gpus import known_gpu, known_gpus, load_gpu
from jointopt.jobs.catalog.kernels import scaled_dtype
from jointopt.jobs.catalog.models import known_model, near_models
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.job import TF32
from jointopt.jobs.model import KIND_SIZES, LATENT, LATENT_NEEDED, kinds_of
from jointopt.jobs.pattern import named_layers
from jointopt.runs.cells import Cells, cell_as_written, map_distinct
from jointopt.runs.dtype_names import named_precision, named_recipe
from jointopt.runs.peak_share import (
    LEAST_REACHED,
    MEMORY_COLUMNS,
    MOST_REACHED,
    TIME_COLUMNS,
    attention_flop,
    full_rates,
    least_flop,
    least_memory_gib,
    least_time_s,
    reason_of_memory,
    reason_of_power,
    reason_of_time,
    recompute_flop,
    share_reached,
)
from jointopt.runs.rows import is_blank
from jointopt.runs.shapes import SHAPE, whole_name

_AGREEMENT = 0.2  # between meters: NVML's counters of power and energy, and wall clocks, differ by up to this
_TOLERANCE_MHZ = 1.0  # tools round the half steps of V100 clocks differently
_PEAK_OF_LIMIT = 1.3  # that a peak may reach: boards hold their limit on average over tens of milliseconds
_MOST_OF_LIMIT = 1.03  # of a power limit that a mean power may reach: A40 and A100-PCIe exceed theirs by 2 % at most


# Figures of runs that checks compare, arrays in and out; each is NaN where a cell that it needs is blank.


def _of_gpu(runs: Cells, figure: Callable[[Gpu], float | None]) -> Floats:
    """A figure of the GPU of each row, (n,), NaN where it is not known."""
    gpus = known_gpus(pd.Series(runs["gpu"]).dropna().unique())
    figures = {name: figure(gpu) for name, gpu in gpus.items()}
    return map_distinct(runs["gpu"], figures.get, None).astype(np.float64)


def _span(runs: Cells, name: str) -> Floats:
    """(lowest, highest), (2, n), of a span that `Gpu` has by that name; without bounds where the GPU is unknown."""
    none = (0.0, math.inf)
    return map_distinct(runs["gpu"], lambda gpu: getattr(known_gpu(gpu), name, none), none).T


def _off_span(runs: Cells, cells: npt.NDArray[Any], name: str, slack: float = 0.0) -> Bools:
    """Whether a number, or one clock of several, lies outside that span of the row's GPU, (n,)."""
    if pd.isna(cells).all():
        return np.zeros(len(cells), bool)
    low, high = _span(runs, name)
    least = most = cells
    if cells.dtype == object:
        least, most = map_distinct(cells, lambda clocks: (min(clocks), max(clocks)), (math.nan, math.nan)).T
    return np.asarray((least < low - slack) | (most > high + slack))


def _power_by_energy_w(runs: Cells) -> Floats:
    return np.asarray(runs["energy_j"] / (runs["iteration_time_s"] * runs["num_gpus"]))


def _power_w(runs: Cells) -> Floats:
    """Mean power of a GPU in W, (n,): as stated, else by energy."""
    return np.where(np.isnan(runs["avg_power_w"]), _power_by_energy_w(runs), runs["avg_power_w"])


def _limits_w(runs: Cells) -> Floats:
    """Power limit of a GPU of each row in W, (n,): its own, else what the board is rated for, else infinite."""
    rated = _of_gpu(runs, lambda gpu: gpu.tdp_w or None)
    limits = np.where(np.isnan(runs["power_limit_w"]), rated, runs["power_limit_w"])
    return np.where(np.isnan(limits), math.inf, limits)


def _precisions_contradict(runs: Cells, columns: tuple[str, str]) -> Bools:
    """Whether two columns name different precisions, or different recipes where both name one."""

    def dtype(text: object) -> str | None:
        recipe = named_recipe(str(text))
        found = scaled_dtype(recipe) if recipe else named_precision(str(text))
        return "fp32" if found == TF32 else found

    wrong = np.zeros(len(runs.runs), bool)
    if np.logical_and(*(pd.notna(runs[name]) for name in columns)).any():
        for named in (dtype, lambda text: named_recipe(str(text))):
            one, other = (map_distinct(runs[name], named, None) for name in columns)
            wrong |= pd.notna(one) & pd.notna(other) & (one != other)
    return wrong


def _degrees_contradict(runs: Cells) -> Bools:
    degrees = np.stack([runs[name] for name in DEGREES])
    product, complete = np.nanprod(degrees, axis=0), ~np.isnan(degrees).any(axis=0)  # a blank counts as 1
    return np.asarray((runs["num_gpus"] % product > 0) | (complete & (np.abs(product - runs["num_gpus"]) > 0)))


def _partly_latent(runs: Cells) -> Bools:
    stated = {name: runs[name] > 0 for name in LATENT}
    whole = np.all([stated[name] for name in LATENT_NEEDED], axis=0)
    return np.asarray(np.any([*stated.values()], axis=0) & ~whole)


def _layers_contradict(runs: Cells) -> Bools:
    """Rows whose layers do not divide num_layers, or lack a size of their kinds, (n,)."""
    stated, whole = np.flatnonzero(pd.notna(runs["layers"])), np.ones(len(runs["layers"]), bool)
    for row in stated.tolist():
        count = runs["num_layers"][row]
        found = named_layers(str(runs["layers"][row]), 0 if np.isnan(count) else int(count)) or {"layers": ()}
        kinds = {kind for layer in found["layers"] for kind in layer.mixers}
        needs = {name for kind in kinds for name in kinds_of("attention")[kind]["needs"]} & {*KIND_SIZES}
        whole[row] = bool(found["layers"]) and needs <= {*found}
    return ~whole


def _clocks_miscounted(runs: Cells) -> Bools:
    count = map_distinct(runs["stage_clock_mhz"], len, 0)
    return np.asarray((count > 1) & (np.abs(count - runs["pp"]) > 0))


# What sentences quote of one run: names in their braces.


def _bound(run: Cells, watts_or_gib: Floats, name: str) -> str:
    (low,), (high,) = _span(run, name)
    return f"at least {low:.4g}" if watts_or_gib[0] < low else f"at most {high:.4g}"


def _full_rate(run: Cells) -> dict[str, Any]:
    """What a run takes at the full rate of its GPUs, and why it seems to have reached more of that than any run."""
    (once,), (again,) = least_flop(run) + attention_flop(run), recompute_flop(run)
    (rate,), time_s = full_rates(run)[1], float(run["iteration_time_s"][0])
    share = (once + again) / time_s / rate
    part = again and once / time_s <= MOST_REACHED * rate
    return {
        "passes": "forward, backward and recomputed" if again else "forward and backward", "share": share,
        "least_s": (once + again) / rate / MOST_REACHED,
        "reason": "was nothing recomputed, or a part?" if part else reason_of_time(run, share * rate),
    }  # fmt: skip


_QUOTED: dict[str, Callable[[Cells], Any]] = {
    "clock_span_mhz": lambda run: _span(run, "clock_span_mhz")[:, 0],
    "power_limit_span_w": lambda run: _span(run, "power_limit_span_w")[:, 0],
    "gpu": lambda run: load_gpu(str(run["gpu"][0])),
    "memory_bound": lambda run: _bound(run, run["peak_memory_gib"], "memory_span_gib"),
    "memory_reason": reason_of_memory,
    "power_bound": lambda run: _bound(run, run["avg_power_w"], "mean_power_span_w"),
    "energy_bound": lambda run: _bound(run, _power_by_energy_w(run), "mean_power_span_w"),
    "power_w": lambda run: _power_w(run)[0],
    "power_reason": lambda run: reason_of_power(run, _power_w(run)[0], not is_blank(run["avg_power_w"][0])),
    "energy_reason": lambda run: reason_of_power(run, _power_by_energy_w(run)[0], stated=False),
    "peak_reason": lambda run: reason_of_power(run, run["peak_power_w"][0], stated=True),
    "limit_w": lambda run: _limits_w(run)[0],
    "peak_limit_w": lambda run: _PEAK_OF_LIMIT * _limits_w(run)[0],
    "least_memory_gib": lambda run: least_memory_gib(run)[0],
    "least_time_s": lambda run: least_time_s(run)[0],
    "most_time_s": lambda run: share_reached(run)[0] * run["iteration_time_s"][0] / LEAST_REACHED,
    "time_reason": lambda run: reason_of_time(run, least_flop(run)[0] / run["iteration_time_s"][0]),
    "full_rate": _full_rate,
}


# The table of checks.


@dataclass(frozen=True)
class Check:
    """One rule that runs must keep, and the words for those that break it."""

    # cells: all runs, with results or without; row: measured runs; price: what physics cannot price; gpu: settings that
    # the GPU does not have; result: results that it cannot have; nodes: jobs on several nodes; doubt: unlikely results
    kind: str
    columns: tuple[str, ...]  # that it reads; the first one is blamed
    broken: Callable[[Cells], Bools]  # which rows break it, (n,); false where a cell that it needs is blank
    expected: str  # what messages say was expected, with names of `_QUOTED` in braces
    may_fail: bool = False  # a run that failed may break it: that may be just why it failed
    use: str = "used"  # what is done with the first column of a row that breaks a doubt


_AGREEING_ENERGY = Check(
    "row", ("energy_j", "avg_power_w", "iteration_time_s", "num_gpus"),
    lambda runs: np.abs(_power_by_energy_w(runs) / runs["avg_power_w"] - 1) > _AGREEMENT,
    f"avg_power_w * iteration_time_s * num_gpus to be energy_j within {_AGREEMENT:.0%}",
)  # fmt: skip
CHECKS = (
    Check("cells", ("num_gpus", *DEGREES), _degrees_contradict, f"{'*'.join(DEGREES)} to be num_gpus"),
    Check("cells", ("global_batch_size", "dp"), lambda runs: runs["dp"] > runs["global_batch_size"],
          "global_batch_size to be at least dp", may_fail=True),
    Check("cells", ("num_attention_heads", "hidden_size"),
          lambda runs: runs["num_attention_heads"] > runs["hidden_size"],
          "num_attention_heads to be at most hidden_size"),
    Check("cells", ("moe_router_topk", "num_experts"),  # a single one is no choice
          lambda runs: (runs["moe_router_topk"] > runs["num_experts"]) & (runs["num_experts"] > 1),
          "moe_router_topk to be at most num_experts"),
    Check("cells", ("stage_clock_mhz", "pp"), _clocks_miscounted, "stage_clock_mhz to have one clock or pp of them"),
    Check("cells", ("moe_load_imbalance", "num_experts", "moe_router_topk"),
          lambda runs: runs["moe_load_imbalance"] * runs["moe_router_topk"] > runs["num_experts"],
          "moe_load_imbalance to be at most num_experts / moe_router_topk, as a token goes to an expert once"),
    Check("cells", ("moe_load_imbalance", "moe_routing"),
          lambda runs: (runs["moe_load_imbalance"] > 1) & np.isin(runs["moe_routing"], ["forced"]),
          "moe_load_imbalance to be 1 or blank where balance is forced, which draws experts at random"),
    Check("cells", LATENT, _partly_latent,
          "kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim together, for latent attention"),
    Check("cells", ("layers", "num_layers"), _layers_contradict,
          "layers to divide num_layers, and to state the sizes of their kinds (mamba_num_heads=128)"),
    Check("cells", ("attention_kind", "kv_lora_rank"),
          lambda runs: np.isin(runs["attention_kind"], ["mha", "gqa", "mqa"]) & (runs["kv_lora_rank"] > 0),
          "attention_kind to be mla where kv_lora_rank is above 0"),
    *(Check("cells", pair, functools.partial(_precisions_contradict, columns=pair),
            f"{pair[0]} and {pair[1]} to mean the same")
      for pair in itertools.combinations(("precision", "dtype", "fp8_recipe"), 2)),
    # nanotron has run such pipelines, with stages that hold an embedding or nothing; the physics has no such stage
    Check("price", ("pp", "num_layers"), lambda runs: runs["pp"] > runs["num_layers"],
          "pp to be at most num_layers"),
    Check("price", ("power_limit_w", "gpu"),
          lambda runs: ~np.isnan(runs["power_limit_w"]) & (_of_gpu(runs, lambda gpu: gpu.power is None) > 0),
          "no power limit on a GPU of whose power nothing is known (leave power_limit_w blank to predict the run "
          "without it)"),
    Check("row", ("ep", "num_gpus"), lambda runs: runs["ep"] > runs["num_gpus"], "ep to be at most num_gpus"),
    Check("row", ("num_query_groups", "num_attention_heads"),
          lambda runs: runs["num_query_groups"] > runs["num_attention_heads"],
          "num_query_groups to be at most num_attention_heads"),
    _AGREEING_ENERGY,
    Check("row", ("energy_j", "iteration_time_s", "num_gpus", "avg_power_w"),
          lambda runs: (_power_by_energy_w(runs) > MOST_GPU_POWER_W) & np.isnan(runs["avg_power_w"]),
          f"energy_j over iteration_time_s and num_gpus to be at most {MOST_GPU_POWER_W:,} W"),
    Check("row", ("peak_power_w", "avg_power_w"),
          lambda runs: runs["avg_power_w"] > runs["peak_power_w"] / (1 - _AGREEMENT),
          f"peak_power_w to be at least avg_power_w, within {_AGREEMENT:.0%}"),
    Check("gpu", ("clock_mhz", "gpu"),
          lambda runs: _off_span(runs, runs["clock_mhz"], "clock_span_mhz", _TOLERANCE_MHZ),
          "clock_mhz to be from {clock_span_mhz[0]:g} to {clock_span_mhz[1]:g} MHz on this GPU"),
    Check("gpu", ("stage_clock_mhz", "gpu"),
          lambda runs: _off_span(runs, runs["stage_clock_mhz"], "clock_span_mhz", _TOLERANCE_MHZ),
          "stage_clock_mhz to be from {clock_span_mhz[0]:g} to {clock_span_mhz[1]:g} MHz on this GPU"),
    Check("gpu", ("power_limit_w", "gpu"), lambda runs: _off_span(runs, runs["power_limit_w"], "power_limit_span_w"),
          "power_limit_w to be from {power_limit_span_w[0]:g} to {power_limit_span_w[1]:g} W on this GPU"),
    Check("result", ("peak_memory_gib", "gpu"),
          lambda runs: _off_span(runs, runs["peak_memory_gib"], "memory_span_gib"),
          "peak_memory_gib to be {memory_bound} GiB on this GPU ({memory_reason})"),
    Check("result", ("avg_power_w", "gpu"), lambda runs: _off_span(runs, runs["avg_power_w"], "mean_power_span_w"),
          "avg_power_w to be {power_bound} W on this GPU ({power_reason})"),
    Check("result", ("energy_j", "iteration_time_s", "num_gpus", "gpu"),
          lambda runs: _off_span(runs, _power_by_energy_w(runs), "mean_power_span_w"),
          "energy_j over iteration_time_s and num_gpus to be {energy_bound} W on this GPU ({energy_reason})"),
    Check("result", TIME_COLUMNS, lambda runs: runs["iteration_time_s"] < least_time_s(runs),
          "iteration_time_s to be at least {least_time_s:.3g}, what 6 flop for each parameter and token take at the "
          "full rate of these GPUs ({time_reason})"),
    Check("nodes", ("num_gpus", "gpus_per_node"),  # jobs on part of one node are common, on one and a half unheard of
          lambda runs: (runs["num_gpus"] > runs["gpus_per_node"]) & (runs["num_gpus"] % runs["gpus_per_node"] > 0),
          "num_gpus to be a multiple of gpus_per_node, or below it"),
    # beyond what the GPU is sold for, and not impossible
    Check("doubt", ("peak_memory_gib", "gpu"),
          lambda runs: runs["peak_memory_gib"] > _of_gpu(runs, lambda gpu: None if gpu.is_cpu else gpu.memory_gib),
          "peak_memory_gib to be at most {gpu.memory_gib:.4g} GiB, all that {gpu.id} has ({memory_reason})"),
    Check("doubt", MEMORY_COLUMNS, lambda runs: runs["peak_memory_gib"] < least_memory_gib(runs),
          "peak_memory_gib to be at least {least_memory_gib:.3g} GiB, a byte of each weight of its layers that a GPU "
          "holds (is it a share of the memory, or in TiB?)"),
    Check("doubt", ("avg_power_w", "gpu", "energy_j", "iteration_time_s", "num_gpus", "power_limit_w"),
          lambda runs: _power_w(runs) > _MOST_OF_LIMIT * _limits_w(runs),
          "at most {limit_w:g} W of a GPU, its limit, not {power_w:.0f} ({power_reason})"),
    Check("doubt", ("peak_power_w", "gpu", "power_limit_w"),
          lambda runs: runs["peak_power_w"] > _PEAK_OF_LIMIT * _limits_w(runs),
          f"at most {{peak_limit_w:.0f}} W of a GPU, {_PEAK_OF_LIMIT:g} times its limit, at a peak ({{peak_reason}})"),
    Check("doubt", TIME_COLUMNS, lambda runs: share_reached(runs) > MOST_REACHED,
          "iteration_time_s to be at least {full_rate[least_s]:.3g}, what {full_rate[passes]} pass take at "
          f"{MOST_REACHED:g} of the full rate of these GPUs: it is {{full_rate[share]:.2f}} of that rate "
          "({full_rate[reason]})"),
    Check("doubt", TIME_COLUMNS,
          # 0: a core of a CPU, whose rate has no bound
          lambda runs: (share_reached(runs) < LEAST_REACHED) & (share_reached(runs) > 0),
          f"iteration_time_s to be at most {{most_time_s:.3g}}, {1 / LEAST_REACHED:,.0f} times what forward and "
          "backward pass take at the full rate of these GPUs (is it in seconds, and of one iteration?)"),
    replace(_AGREEING_ENERGY, kind="doubt", use="power and energy are learned from avg_power_w instead"),
)  # fmt: skip


def checks_of(*kinds: str) -> tuple[Check, ...]:
    """The checks of these kinds, in their order."""
    return tuple(check for check in CHECKS if check.kind in kinds)


RULES, RESULT_RULES, DOUBTS = checks_of("cells", "row"), checks_of("result"), checks_of("doubt")
MEASUREMENT_RULES = checks_of("cells", "row", "gpu", "result", "nodes")


def broken_checks(runs: pd.DataFrame, checks: Iterable[Check]) -> Iterator[tuple[Check, Bools]]:
    """(check, which rows break it, (n,)) for rows as `clean_runs` leaves them; columns may be missing."""
    cells = Cells(runs)
    for check in checks:
        with np.errstate(all="ignore"):
            yield check, np.asarray(check.broken(cells), bool)


def complaint(check: Check, runs: pd.DataFrame, row: int) -> str:
    """What was expected of a row, and the cells that contradict it."""
    run = Cells(runs.iloc[[row]])
    stated = [(name, cell_as_written(run[name][0])) for name in check.columns if not is_blank(run[name][0])]
    got = " ".join(f"{name}={f'{v:.6g}' if isinstance(v, float) else v}" for name, v in stated)
    fields = (name for _, name, _, _ in string.Formatter().parse(check.expected) if name)
    names = {name.partition("[")[0].partition(".")[0] for name in fields}
    with np.errstate(all="ignore"):
        expected = check.expected.format(**{name: _QUOTED[name](run) for name in names})
    return f"expected {expected}, got {got}"


# Rows of tables that no physics can price, and why.


_REQUIRED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "gpu", "num_gpus")
_near_models = functools.cache(near_models)


def check_required(runs: pd.DataFrame) -> None:
    """Raises TableError for a table that lacks a column without which no run can be predicted."""
    missing = next((name for name in _REQUIRED if name not in runs), None)
    if missing is None:
        return
    names = [str(name) for name in runs["model"].dropna().unique()] if "model" in runs else []
    hint = "" if missing not in SHAPE else " (a catalogue name in the column model stands for it)"
    if hint and names:
        hint = f" ({names[0]!r} in the column model is not listed by `jointopt catalog models`{near_models(names[0])})"
    raise TableError(f"The table lacks the column {missing!r}{hint}, without which no run can be predicted.")


def impossible(runs: pd.DataFrame) -> dict[int, str]:
    """Rows by position that no physics can price, and the first reason of each."""
    cells, reasons = Cells(runs), dict[int, str]()
    open_shape = (np.isnan(cells["num_layers"]) | np.isnan(cells["hidden_size"])) & pd.notna(cells["model"])
    for row in np.flatnonzero(open_shape).tolist():
        name = str(cells["model"][row])
        if known_model(whole_name(name, cells["block"][row])) is None:
            blank = [column for column in ("num_layers", "hidden_size") if np.isnan(cells[column][row])]
            reasons[row] = (
                f"{' and '.join(blank)} {'are' if len(blank) > 1 else 'is'} blank, and the model {name[:80]!r} is not "
                f"in the catalogue{_near_models(name)}; `jointopt catalog models` lists the known ones."
            )
    shape = "; a catalogue name in the column model stands for it"
    refused = {f"{name} is blank{shape * (name in SHAPE)}.": pd.isna(cells[name]) for name in _REQUIRED}
    for name in runs["gpu"].dropna().unique():
        try:
            load_gpu(str(name))
        except CatalogError as error:
            refused[str(error)] = cells["gpu"] == name
    refused["it ran under a power_profile, whose effect is measured and never predicted."] = pd.notna(
        cells[POWER_PROFILE]
    )
    for reason, rows in refused.items():
        reasons = dict.fromkeys(np.flatnonzero(rows).tolist(), reason) | reasons
    for check, broken in broken_checks(runs, checks_of("cells", "price", "gpu")):
        for row in np.flatnonzero(broken).tolist():
            reasons.setdefault(row, f"{complaint(check, runs, row)}.")
    return reasons


# Runs of one plan of one job that a table has more than once: how far their times are apart.


# slowest over fastest: repeated runs of published tables differ by a few per cent, allocator retries aside
_UNLIKE_TIMES = 1.5
_MAY_DIFFER = ("framework_version", "framework_flags", "fabric")  # kept beside results, and reasons for another time


def contradicting_lines(runs: pd.DataFrame, clean: pd.DataFrame) -> list[str]:
    """One sentence where rows (as `with_results` leaves them) that state one plan of one job took very unlike times.

    ``clean``: their cells as `readable_runs` reads them.
    """
    timed = runs["iteration_time_s"].where((runs["status"] == "ok") & (runs["iteration_time_s"] > 0))
    stated = ["clock_mhz", *(c.name for c in COLUMNS.values() if c.role != "result"), *_MAY_DIFFER]
    cells = clean[[name for name in stated if name in clean and name != "group"]].astype(object)
    if cells.columns.empty:
        return []
    group = cells.fillna("").groupby(list(cells), sort=False).ngroup()
    slowest, fastest = (timed.groupby(group.to_numpy()).transform(of) for of in ("max", "min"))
    apart = ((slowest > _UNLIKE_TIMES * fastest) & timed.notna()).to_numpy(bool)
    if not apart.any():
        return []
    plans, first = group[apart].nunique(), int(np.flatnonzero(apart)[0])
    same = np.flatnonzero(apart & (group == group[first]).to_numpy(bool))
    times = timed.to_numpy(float)[same]
    low, high = same[times.argmin()], same[times.argmax()]
    many = f"{plans:,} plans were" if plans > 1 else "1 plan was"
    return [
        f"{many} run more than once with times that are more than {_UNLIKE_TIMES:g} times apart (row {low + 1}: "
        f"{times.min():.4g} s, row {high + 1}: {times.max():.4g} s): did something differ that no column states?"
    ]
