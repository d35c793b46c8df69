"""Every layout that a job allows, enumerated once as masks over the product of all layout columns.

The product is built a column at a time and sieved after each, so that memory stays near the size of the
answer. A combination dropped early stands for all its continuations: it counts with the number of values that
the later columns would have had, and so the dropped and the kept combinations add up to the whole product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jointopt.core.schema import COLUMNS, DEGREES, LAYOUT_COLUMNS, RECOMPUTE_CODES, Bools, Columns, Floats, Ints
from jointopt.spec.job import Job
from jointopt.spec.plans.rules import DUPLICATE, SEARCHED, Rule, layout_rules

# The columns that are not settled by the number of GPUs, those that drop most first.
_EXPANDED = ("ep", "micro_batch_size", "vpp", "sequence_parallel", "recompute", "zero_stage")


@dataclass(frozen=True)
class Space:
    """The layouts that a job allows, and why the others are not among them.

    ``layouts`` has the columns `LAYOUT_COLUMNS`, one row per distinct layout; ``considered`` counts the
    combinations of all columns; ``dropped`` maps a reason to the combinations whose first broken rule it is,
    so that ``considered == size + sum(dropped.values())``. ``clocks_mhz`` are the SM clocks to choose from,
    ascending.
    """

    layouts: Columns
    considered: int
    dropped: dict[str, int] = field(default_factory=dict)
    clocks_mhz: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def size(self) -> int:
        return len(self.layouts["dp"])

    def top_reasons(self, count: int = 3) -> list[str]:
        """The reasons that dropped the most combinations; what the job itself excludes comes last."""
        own = (SEARCHED, DUPLICATE)
        return sorted(self.dropped, key=lambda r: (any(mark in r for mark in own), -self.dropped[r]))[:count]


def enumerate_layouts(job: Job) -> Space:
    """All layouts that ``job`` allows, each once and in canonical form, in lexicographic order.

    Canonical: a choice without effect has one value, so ``sequence_parallel`` is false where tp = 1,
    ``zero_stage`` is 0 where dp*cp = 1, and ``recompute`` is none instead of selective under flash attention
    (which never stores what selective recompute drops). ``job.search`` is read in the same form:
    ``zero_stage: [1]`` keeps dp*cp = 1, as ZeRO 0; whether the framework has a listed value at all is checked
    when the job is loaded (`jointopt.spec.plans.rules.check_abilities`). Nothing is raised where nothing is
    left: the space is then empty and its ``dropped`` has the reasons.
    """
    rules = [rule for rule in layout_rules(job) if rule.counted]
    candidates = {name: _candidates(job, name) for name in _EXPANDED}
    sieve = _Sieve(_factorisations(job.cluster.num_gpus), candidates, rules)
    sieve.keep()
    for name in _EXPANDED:
        sieve.expand(name)
    layouts = {name: sieve.columns[name].astype(COLUMNS[name].array_dtype, copy=False) for name in LAYOUT_COLUMNS}
    return Space(layouts, sieve.considered, sieve.dropped, np.asarray(job.search.clock_mhz, dtype=np.float64))


def unused_search_values(job: Job, space: Space) -> list[str]:
    """A sentence for each value in ``job.search`` that no layout of ``space`` has, with the main reason."""
    sentences = []
    for column in (name for name in LAYOUT_COLUMNS if COLUMNS[name].dtype == "int"):
        for value in getattr(job.search, column) or ():
            if not np.any(space.layouts[column] == value):
                sentences += _why_unused(job, column, value)
    return sentences


def divisors(number: int) -> list[int]:
    """The positive divisors of a positive number, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


class _Sieve:
    """Columns of the combinations still alive, and how many were dropped for which reason."""

    def __init__(self, columns: Columns, candidates: dict[str, Ints], rules: Sequence[Rule]) -> None:
        self.columns = columns
        self.rules = list(rules)  # those to come; each is applied as soon as its columns are there
        self.candidates = candidates
        self.weight = math.prod(len(values) for values in candidates.values())
        self.considered = len(columns["dp"]) * self.weight
        self.dropped: dict[str, int] = {}

    def alive(self, columns: Columns, shape: tuple[int, ...]) -> Bools:
        """Which combinations break no rule on ``columns``; the first broken rule takes the blame."""
        alive = np.ones(shape, dtype=np.bool_)
        due = [rule for rule in self.rules if columns.keys() >= set(rule.columns)]
        self.rules = [rule for rule in self.rules if rule not in due]
        for rule in due:
            broken = rule.broken(columns)
            hits = int(np.count_nonzero(alive & broken))
            if hits:
                self.dropped[rule.counted] = self.dropped.get(rule.counted, 0) + hits * self.weight
                alive &= ~broken
        return alive

    def keep(self) -> None:
        """Drop the rows that break a rule."""
        alive = self.alive(self.columns, self.columns["dp"].shape)
        self.columns = {name: column[alive] for name, column in self.columns.items()}

    def expand(self, name: str) -> None:
        """Cross all rows, as (n, 1), with the (k,) candidates of a new column and sieve the (n, k)."""
        values = self.candidates[name]
        self.weight //= len(values)
        crossed = {key: column[:, np.newaxis] for key, column in self.columns.items()} | {name: values}
        rows, choices = np.nonzero(self.alive(crossed, (len(self.columns["dp"]), len(values))))
        self.columns = {key: column[rows] for key, column in self.columns.items()}
        self.columns[name] = values[choices]


def _factorisations(num_gpus: int) -> Columns:
    """All ordered (tp, pp, cp, dp) whose product is ``num_gpus``, as columns; dp, the last, takes the rest."""
    choices = np.asarray(divisors(num_gpus), dtype=np.int64)
    columns: Columns = {}
    rest = np.asarray([num_gpus], dtype=np.int64)
    for name in ("tp", "pp", "cp"):
        rows, picks = np.nonzero(rest[:, np.newaxis] % choices == 0)
        columns = {key: column[rows] for key, column in columns.items()}
        columns[name] = choices[picks]
        rest = rest[rows] // columns[name]
    columns["dp"] = rest
    return columns


def _candidates(job: Job, column: str) -> Ints:
    """The values of one column that enter the product: what could fit, and whatever the job lists."""
    zero = COLUMNS["zero_stage"]
    stages = range(int(zero.low), int(zero.high) + 1)
    fixed = {"sequence_parallel": (0, 1), "recompute": tuple(RECOMPUTE_CODES.values()), "zero_stage": tuple(stages)}
    if column in fixed:
        return np.asarray(fixed[column], dtype=np.int64)
    whole = {
        "ep": max(job.model.num_experts, 1),
        "micro_batch_size": job.training.global_batch_size,
        "vpp": job.model.num_layers,
    }[column]
    listed = getattr(job.search, column) or ()
    return np.asarray(sorted({*divisors(whole), *listed}), dtype=np.int64)


def _why_unused(job: Job, column: str, value: int) -> list[str]:
    """Why one searched value occurs in no layout: enumerate that value alone and read the main reason."""
    gpus = job.cluster.num_gpus
    head = f"search.{column} {value} is in no layout"
    if column in DEGREES and gpus % value:
        close = sorted(divisors(gpus), key=lambda d: abs(d - value))[:2]
        fitting = " and ".join(str(d) for d in sorted(close))
        return [f"{head}: {column} must divide the {gpus} GPUs (nearest: {fitting})."]
    only: dict[str, Any] = {column: (value,)}
    alone = enumerate_layouts(replace(job, search=replace(job.search, **only)))
    if alone.size:  # the value stands for its canonical form, which the space has
        return []
    return [f"{head}: {reason}." for reason in alone.top_reasons(1)]
