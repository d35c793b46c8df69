"""Every layout that a job allows, enumerated once as masks over the product of all layout columns.

The product is built a column at a time and sieved after each, so that memory stays near the size of the answer. A
combination dropped early counts for all its continuations, so that dropped and kept ones add up to the whole product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jointopt.core.schema import (
    CHOICES,
    COLUMNS,
    DEGREES,
    LAYOUT_COLUMNS,
    NEUTRAL,
    SCHEDULE,
    STAGE_LAYERS,
    Bools,
    Columns,
    Floats,
    Ints,
    inside,
)
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import even_domain
from jointopt.jobs.plans.rules import Rule, layout_rules
from jointopt.jobs.plans.stages import MOST_CHUNKS, offered_splits

# In the order in which they are tried: those that drop most first.
_EXPANDED: tuple[str, ...] = ("ep", "etp", "micro_batch_size", "vpp", "stage_layers", "schedule")
_EXPANDED += tuple(name for name in CHOICES if name not in _EXPANDED and not name.startswith("recompute"))
_EXPANDED += tuple(name for name in CHOICES if name.startswith("recompute"))  # last: `search.leanest` relies on it


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
    splits = _Splits(job, degrees["pp"], candidates["vpp"])
    sieve = _Sieve(degrees, candidates | {"stage_layers": splits.codes}, rules, {"stage_layers": splits.of})
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

    def __init__(
        self, columns: Columns, candidates: dict[str, Ints], rules: Sequence[Rule],
        dependent: Mapping[str, Callable[[Columns], Ints]],
    ) -> None:  # fmt: skip
        self.rules = list(rules)  # those to come; each is applied as soon as its columns are there
        self.dependent = dependent  # candidates (n, k) that depend on earlier columns, k as many as `candidates` has
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

    def expand(self, name: str) -> None:
        """Cross all rows, as (n, 1), with the (k,) candidates of a new column and sieve the (n, k)."""
        values = self.candidates[name]
        self.weight //= len(values)
        if name in self.dependent:
            values = self.dependent[name](self.columns)
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
    listed = getattr(job.search, column) or ()
    if column in NEUTRAL:
        return np.asarray(sorted({*_usual(job, column), *inside(column, listed).tolist()}), dtype=np.int64)
    experts, batch = max(job.model.num_experts, 1), job.training.global_batch_size
    whole = {"ep": experts, "micro_batch_size": batch, "vpp": job.model.num_layers}.get(column)
    if whole is None:
        return np.asarray(COLUMNS[column].values, dtype=np.int64)
    found = {*divisors(whole), *listed}
    if column == "vpp" and job.training.framework.stage_splits:
        found |= set(range(1, MOST_CHUNKS + 1))
    return np.asarray(sorted(found), dtype=np.int64)


class _Splits:
    """The codes of `offered_splits` of every (pp, vpp), and of the splits that the job lists; -1 fills up."""

    def __init__(self, job: Job, pp: Ints, vpp: Ints) -> None:
        self.width = int(vpp.max())  # pp * width + vpp is another number for each, as vpp is 1 to width
        listed = [COLUMNS["stage_layers"].inside(cell) for cell in job.search.stage_layers or ()]
        self.table = {
            p * self.width + v: [*map(STAGE_LAYERS.of, offered_splits(job, p, v)), *_stated(listed, p * v)]
            for p in np.unique(pp).tolist()
            for v in vpp.tolist()
        }
        self.codes = np.arange(max(map(len, self.table.values())), dtype=np.int64)

    def of(self, columns: Columns) -> Ints:
        """Codes (n, k) of the rows' pipelines, each once."""
        key, place = np.unique(columns["pp"] * self.width + columns["vpp"], return_inverse=True)
        codes = np.full((len(key), len(self.codes)), -1, dtype=np.int64)
        for row, one in enumerate(key.tolist()):
            found = list(dict.fromkeys(self.table[one]))
            codes[row, : len(found)] = found
        return codes[place]


def _stated(listed: list[int], chunks: int) -> list[int]:
    """Codes of listed splits of so many chunks that are not even ones."""
    numbers = {code: STAGE_LAYERS.numbers(code) for code in listed}
    return [code for code, split in numbers.items() if len(split) == chunks and len(set(split)) > 1]


def _usual(job: Job, column: str) -> list[int]:
    """The values of a column that most plans do without, where the job lists none."""
    if column == "etp" and job.model.is_moe:
        return divisors(job.model.num_attention_heads or job.cluster.num_gpus)  # tp is one of them
    if column == "dp_replicate" and job.training.framework.replicates:  # a scale-up domain each
        return divisors(max(job.cluster.num_gpus // even_domain(job.cluster), 1))
    if column == "schedule":
        return [SCHEDULE.code(name) for name in job.training.framework.schedules]
    return [NEUTRAL[column]]
