"""Every layout that a job allows, enumerated once as masks over the product of all layout columns.

The product is built a column at a time and sieved after each, so that memory stays near the size of the answer. A
combination dropped early counts for all its continuations, so that dropped and kept ones add up to the whole product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jointopt.core.schema import (
    CHOICES,
    COLUMNS,
    DEGREES,
    LAYOUT_COLUMNS,
    MODULES,
    NEUTRAL,
    RECOMPUTE_CODES,
    SCHEDULE,
    STAGE_LAYERS,
    Bools,
    Columns,
    Floats,
    Ints,
    encode_cells,
    evaluate,
)
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import even_domain
from jointopt.jobs.plans.rules import Rule, layout_rules
from jointopt.jobs.plans.stages import MOST_CHUNKS, largest_chunk, offered_splits

# In the order in which they are tried: those that drop most first.
_EXPANDED: tuple[str, ...] = ("ep", "etp", "micro_batch_size", "vpp", "stage_layers", "schedule")
_EXPANDED += tuple(name for name in CHOICES if name not in _EXPANDED and not name.startswith("recompute"))
_EXPANDED += tuple(name for name in CHOICES if name.startswith("recompute"))  # last: `add_recompute_steps` relies on it


@dataclass(frozen=True)
class Space:
    """The layouts that a job allows, and why the others are not among them."""

    layouts: Columns  # of `LAYOUT_COLUMNS`, one row per distinct layout
    considered: int  # combinations of all columns: size + sum(dropped.values())
    dropped: dict[str, int] = field(default_factory=dict)  # combinations by the reason of their first broken rule
    clocks_mhz: Floats = field(default_factory=lambda: np.empty(0))  # SM clocks to choose from, ascending

    @property
    def size(self) -> int:
        """Number of layouts."""
        return len(self.layouts["dp"])


def enumerate_layouts(job: Job) -> Space:
    """All layouts that ``job`` allows, each once and in canonical form, in lexicographic order.

    A choice without effect has one value (`jointopt.jobs.defaults.canonical`). ``job.search`` is read in the same form:
    ``zero_stage: [1]`` keeps dp*cp = 1, as ZeRO 0. Where nothing is left, the reasons are in ``dropped``.
    """
    rules = [rule for rule in layout_rules(job) if rule.counted]
    degrees = _factorisations(job.cluster.num_gpus)
    candidates = {name: _candidates(job, name) for name in _EXPANDED}
    splits = _splits(job, degrees["pp"], candidates["vpp"])
    candidates["stage_layers"] = np.arange(max(map(len, splits.values())), dtype=np.int64)
    sieve = _Sieve(degrees, candidates, rules)
    for name in _EXPANDED:
        sieve.expand(name, splits if name == "stage_layers" else None)
    layouts = {name: sieve.columns[name].astype(COLUMNS[name].array_dtype, copy=False) for name in LAYOUT_COLUMNS}
    return Space(layouts, sieve.considered, sieve.dropped, np.asarray(job.search.clock_mhz, dtype=np.float64))


def divisors(number: int) -> list[int]:
    """The positive divisors of a positive number, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


class _Sieve:
    """Columns of the combinations still alive, and how many were dropped for which reason."""

    def __init__(self, columns: Columns, candidates: Columns, rules: Sequence[Rule]) -> None:
        self.rules = list(rules)  # those to come; each is applied as soon as its columns are there
        self.candidates = candidates
        self.weight = math.prod(len(values) for values in candidates.values())
        self.considered = len(columns["dp"]) * self.weight
        self.dropped: dict[str, int] = {}
        alive = self.alive(columns, columns["dp"].shape)
        self.columns = {name: column[alive] for name, column in columns.items()}

    def alive(self, columns: Columns, shape: tuple[int, ...]) -> Bools:
        """Which combinations break no rule on ``columns``; the first broken rule takes the blame."""
        alive = np.ones(shape, dtype=np.bool_)
        due = [rule for rule in self.rules if columns.keys() >= set(rule.columns)]
        self.rules = [rule for rule in self.rules if rule not in due]
        for rule in due:
            broken = rule.broken(columns)
            hits = int(np.count_nonzero(alive & broken))
            if hits:
                self.dropped[rule.counted.format_map(rule.figures)] = hits * self.weight
                alive &= ~broken
        return alive

    def expand(self, name: str, splits: Mapping[tuple[int, int], list[int]] | None) -> None:
        """Cross all rows, as (n, 1), with the (k,) candidates of a new column and sieve the (n, k).

        ``splits``: codes of a column whose candidates depend on (pp, vpp), by these; -1 fills up the (n, k).
        """
        values = self.candidates[name]
        self.weight //= len(values)
        if splits is not None:
            width = max(vpp for _, vpp in splits) + 1  # pp * width + vpp is another number for each
            keys, place = np.unique(self.columns["pp"] * width + self.columns["vpp"], return_inverse=True)
            codes = [splits[divmod(key, width)] for key in keys.tolist()]
            filled = [(*row, *[-1] * (len(values) - len(row))) for row in codes]
            values = np.asarray(filled, np.int64).reshape(-1, len(values))[place]
        crossed = {key: column[:, np.newaxis] for key, column in self.columns.items()} | {name: values}
        rows, choices = np.nonzero(self.alive(crossed, (len(self.columns["dp"]), values.shape[-1])))
        self.columns = {key: column[rows] for key, column in self.columns.items()}
        self.columns[name] = values[rows, choices] if values.ndim == 2 else values[choices]


def _factorisations(num_gpus: int) -> Columns:
    """All ordered degrees whose product is ``num_gpus``, as columns; the first, dp, takes the rest."""
    choices = np.asarray(divisors(num_gpus), dtype=np.int64)
    columns: Columns = {}
    rest = np.asarray([num_gpus], dtype=np.int64)
    for name in DEGREES[1:]:
        rows, picks = np.nonzero(rest[:, np.newaxis] % choices == 0)
        columns = {key: column[rows] for key, column in columns.items()}
        columns[name] = choices[picks]
        rest = rest[rows] // columns[name]
    columns[DEGREES[0]] = rest
    return columns


def _candidates(job: Job, column: str) -> Ints:
    """The values of one column that enter the product: what could fit, and whatever the job lists."""
    framework, num_gpus = job.training.framework, job.cluster.num_gpus
    figures: dict[str, Any] = {
        "model": job.model, "training": job.training, "framework": framework, "num_gpus": num_gpus,
        "domain": even_domain(job.cluster), "most_chunks": MOST_CHUNKS, "divisors": divisors,
        "schedules": [SCHEDULE.code(name) for name in framework.schedules],
    }  # fmt: skip
    usual = [NEUTRAL[column]] if column in NEUTRAL else COLUMNS[column].values
    could_fit = evaluate(COLUMNS[column].searched, {}, figures) if COLUMNS[column].searched else usual
    listed = encode_cells(column, getattr(job.search, column) or ()).tolist()
    return np.asarray(sorted({*could_fit, *listed}), dtype=np.int64)


def _splits(job: Job, pp: Ints, vpp: Ints) -> dict[tuple[int, int], list[int]]:
    """The codes, each once, of `offered_splits` of every (pp, vpp), and of the uneven splits that the job lists."""
    listed = [STAGE_LAYERS.numbers(STAGE_LAYERS.code(cell)) for cell in job.search.stage_layers or ()]
    uneven = [split for split in listed if len(set(split)) > 1]
    found = {}
    for pipeline in itertools.product(np.unique(pp).tolist(), vpp.tolist()):
        stated = [split for split in uneven if len(split) == math.prod(pipeline)]
        found[pipeline] = [*dict.fromkeys(map(STAGE_LAYERS.code_of, [*offered_splits(job, *pipeline), *stated]))]
    return found


# How much recomputation layouts need to fit in memory: more than that costs time and energy and buys nothing.

COMFORTABLE = 0.9  # probability of fitting from which less memory buys nothing
_RECOMPUTE = ("recompute", "recompute_modules", "recompute_num_layers")
_SELECTIVE, _FULL = RECOMPUTE_CODES["selective"], RECOMPUTE_CODES["full"]
_QUARTERS = (1, 2, 3)  # of the layers of a model chunk that full recompute may take

Fits = Callable[[Columns], Floats]  # probability that each layout fits in memory, (n,)


def add_recompute_steps(
    job: Job, layouts: Columns, fitting: Floats, fits: Fits, least: float
) -> tuple[Columns, Floats, Bools]:
    """(``layouts`` and finer steps behind them, their probabilities of fitting, whether each is needed), (n,) each.

    Layouts that differ in recomputation alone are a group. Where no layout of a group fits comfortably without full
    recompute, steps between none and full join it, if the job lists none and its framework has them: cheap modules, and
    full recompute of a quarter, a half and three quarters of each model chunk. A layout is needed if no other of its
    group fits comfortably with less extra work.

    ``fitting``: probabilities of ``layouts``, by ``fits``; one below ``least`` is out of the question.
    """
    # the number of each layout's group: the space has those of one group in a row
    own = [values for name, values in layouts.items() if name in LAYOUT_COLUMNS and name not in _RECOMPUTE]
    group = np.cumsum(np.any([np.diff(values, prepend=values[:1]) != 0 for values in own], axis=0))
    eased = np.zeros(group.max(initial=-1) + 1, np.bool_)  # groups with a comfortable layout short of full recompute
    eased[group[(layouts["recompute"] != _FULL) & (fitting >= COMFORTABLE)]] = True
    whole = (layouts["recompute"] == _FULL) & (layouts["recompute_num_layers"] == 0)
    rows = np.flatnonzero(whole & ~eased[group] & (fitting >= least))
    for step, at in _steps(job, {name: values[rows] for name, values in layouts.items()}):
        layouts = {name: np.concatenate([values, step[name]]) for name, values in layouts.items()}
        group = np.concatenate([group, group[rows[at]]])
    steps = {name: values[len(fitting) :] for name, values in layouts.items()}
    if len(steps["dp"]):
        fitting = np.concatenate([fitting, fits(steps)])
    return layouts, fitting, _needed(group, _extra_work(job, layouts), fitting)


def _needed(group: Ints, work: Floats, fitting: Floats) -> Bools:
    """Whether each layout comes, by its extra work, not after the first comfortable one of its group, (n,)."""
    order = np.lexsort((work, group))
    first = np.diff(group[order], prepend=-1) != 0
    comfortable = (fitting[order] >= COMFORTABLE).astype(np.int64)
    before = np.cumsum(comfortable) - comfortable  # comfortable ones up to here, of all groups
    start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    kept = np.zeros(len(order), np.bool_)
    kept[order] = before == before[start]
    return kept


def _extra_work(job: Job, layouts: Columns) -> Floats:
    """Forward work done twice, as a rough share of all, (n,): its order is that in which recomputation grows."""
    model = job.model
    mlp = model.dense_mlp_parameters / (model.dense_mlp_parameters + model.attention_parameters)
    shares = {  # rough, of each module that is repeated
        "core_attn": 0.1, "layernorm": 0.01, "moe_act": 0.015, "mla_up_proj": 0.05, "shared_experts": 0.1, "mlp": mlp,
        "moe": 0.7,
    }  # fmt: skip
    modules = sum(
        np.where(layouts["recompute_modules"] & MODULES.bit(name) > 0, part, 0.0) for name, part in shares.items()
    )
    usual = (layouts["recompute"] == _SELECTIVE) & (layouts["recompute_modules"] == 0)
    part = np.divide(layouts["recompute_num_layers"], largest_chunk(job.model, layouts))
    full = np.where(layouts["recompute_num_layers"] > 0, part, 1.0)
    some = np.where(usual, max(job.training.framework.selective_share, 0.1), modules)
    return np.asarray(np.where(layouts["recompute"] == _FULL, full, np.where(layouts["recompute"] == 0, 0.0, some)))


def _steps(job: Job, whole: Columns) -> list[tuple[Columns, Ints]]:
    """For each step: the layouts with it, and the row of ``whole``, layouts with full recompute, each was made from."""
    found, largest = [], largest_chunk(job.model, whole)
    rules, searched, model = job.training.framework.rules, job.search, job.model
    if "no_recompute_layers" not in rules and searched.recompute_num_layers is None:
        before = np.zeros_like(largest)
        for quarter in _QUARTERS:
            count = -(-largest * quarter // 4)
            at = np.flatnonzero((count < largest) & (count > before))
            found.append(({n: v[at] for n, v in whole.items()} | {"recompute_num_layers": count[at]}, at))
            before = count
    selective = searched.recompute is None or "selective" in searched.recompute
    if "no_recompute_modules" not in rules and searched.recompute_modules is None and selective:
        # modules that cost little and drop much; a whole MLP is no better than half of the layers
        cheap = ["layernorm", *["moe_act"] * model.is_moe, *["mla_up_proj"] * bool(model.kv_lora_rank)]
        code = np.full(len(largest), sum(map(MODULES.bit, cheap)), whole["recompute_modules"].dtype)
        kind = np.full(len(largest), _SELECTIVE, whole["recompute"].dtype)
        found.append((whole | {"recompute": kind, "recompute_modules": code}, np.arange(len(largest))))
    return found
