"""Every layout that a job allows, enumerated once as masks over the product of all layout columns.

The product is built a column at a time and sieved after each, so that memory stays near the size of the answer. A
combination dropped early counts for all its continuations, so that dropped and kept ones add up to the whole product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, NEUTRAL, RECOMPUTE_CODES, Bools, Columns, Floats, Ints, inside
from jointopt.spec.job import Job
from jointopt.spec.plans.rule import DUPLICATE, SEARCHED, Rule
from jointopt.spec.plans.rules import layout_rules

# The columns that are not settled by the number of GPUs, those that drop most first.
_EXPANDED: tuple[str, ...] = (
    "ep",
    "etp",
    "micro_batch_size",
    "vpp",
    "stage_layers",
    "sequence_parallel",
    "recompute",
    "recompute_modules",
    "zero_stage",
)
_EXPANDED += tuple(name for name in NEUTRAL if name not in _EXPANDED)


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

    def top_reasons(self, count: int = 3) -> list[str]:
        """The reasons that dropped the most combinations; what the job itself excludes comes last."""
        own = (SEARCHED, DUPLICATE)
        return sorted(self.dropped, key=lambda r: (any(mark in r for mark in own), -self.dropped[r]))[:count]


def enumerate_layouts(job: Job) -> Space:
    """All layouts that ``job`` allows, each once and in canonical form, in lexicographic order.

    A choice without effect has one value (`jointopt.spec.defaults.canonical`). ``job.search`` is read in the same form:
    ``zero_stage: [1]`` keeps dp*cp = 1, as ZeRO 0. Where nothing is left, the reasons are in ``dropped``.
    """
    rules = [rule for rule in layout_rules(job) if rule.counted]
    candidates = {name: _candidates(job, name) for name in _EXPANDED}
    sieve = _Sieve(_factorisations(job.cluster.num_gpus), candidates, rules)
    for name in _EXPANDED:
        sieve.expand(name)
    layouts = {name: sieve.columns[name].astype(COLUMNS[name].array_dtype, copy=False) for name in LAYOUT_COLUMNS}
    return Space(layouts, sieve.considered, sieve.dropped, np.asarray(job.search.clock_mhz, dtype=np.float64))


def divisors(number: int) -> list[int]:
    """The positive divisors of a positive number, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


class _Sieve:
    """Columns of the combinations still alive, and how many were dropped for which reason."""

    def __init__(self, columns: Columns, candidates: dict[str, Ints], rules: Sequence[Rule]) -> None:
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
                self.dropped[rule.counted] = self.dropped.get(rule.counted, 0) + hits * self.weight
                alive &= ~broken
        return alive

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
    most = {"sequence_parallel": 1, "recompute": len(RECOMPUTE_CODES) - 1, "zero_stage": COLUMNS["zero_stage"].high}
    if column in most:
        return np.arange(int(most[column]) + 1, dtype=np.int64)
    if column in NEUTRAL:
        listed = getattr(job.search, column) or ()
        return np.asarray(sorted({*_usual(job, column), *inside(column, listed).tolist()}), dtype=np.int64)
    experts, batch = max(job.model.num_experts, 1), job.training.global_batch_size
    whole = {"ep": experts, "micro_batch_size": batch, "vpp": job.model.num_layers}[column]
    return np.asarray(sorted({*divisors(whole), *(getattr(job.search, column) or ())}), dtype=np.int64)


def _usual(job: Job, column: str) -> list[int]:
    """The values of a column that most plans do without, where the job lists none."""
    if column == "etp" and job.model.is_moe:
        return divisors(job.model.num_attention_heads)  # tp is one of them
    return [NEUTRAL[column]]
