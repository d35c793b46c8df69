"""Every layout that a job allows, enumerated once as masks over the product of all layout columns.

The product is built a column at a time and sieved after each, so that memory stays near the size of the
answer. A combination dropped early stands for all its continuations: it counts with the number of values that
the later columns would have had, and so the dropped and the kept combinations add up to the whole product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import LAYOUT_COLUMNS, RECOMPUTE_CODES, Bools, Columns, Floats, Ints
from jointopt.spec.job import Job

_DEGREES = ("tp", "pp", "cp", "dp")
_EXPANDED = ("ep", "micro_batch_size", "vpp", "sequence_parallel", "recompute", "zero_stage")
_SEARCHED, _DUPLICATE = "outside the job's search.", "is the same plan"  # reasons that nobody need change

Rule = tuple[str, npt.NDArray[Any]]  # reason, mask of the combinations that break it


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
        own = (_SEARCHED, _DUPLICATE)
        return sorted(self.dropped, key=lambda r: (any(mark in r for mark in own), -self.dropped[r]))[:count]


def enumerate_layouts(job: Job) -> Space:
    """All layouts that ``job`` allows, each once and in canonical form, in lexicographic order.

    Canonical: a choice without effect has one value, so ``sequence_parallel`` is false where tp = 1,
    ``zero_stage`` is 0 where dp*cp = 1, and ``recompute`` is none instead of selective under flash attention
    (which never stores what selective recompute drops). ``job.search`` is read in the same form:
    ``zero_stage: [1]`` keeps dp*cp = 1, as ZeRO 0; that the framework has a listed value at all is checked when
    the job is loaded (see `jointopt.spec.abilities`). Nothing is raised where nothing is left: the space is then
    empty and its ``dropped`` says why.
    """
    sieve = _Sieve(_factorisations(job.cluster.num_gpus), {c: _candidates(job, c) for c in _EXPANDED})
    sieve.keep(_degree_rules(job, sieve.columns))
    sieve.expand("ep", _ep_rules(job, sieve))
    sieve.expand("micro_batch_size", _micro_batch_rules(job, sieve))
    sieve.expand("vpp", _vpp_rules(job, sieve))
    sieve.expand("sequence_parallel", _sequence_parallel_rules(job, sieve))
    sieve.expand("recompute", _recompute_rules(job, sieve))
    sieve.expand("zero_stage", _zero_rules(job, sieve))
    layouts = {name: sieve.columns[name] for name in LAYOUT_COLUMNS}
    layouts["sequence_parallel"] = layouts["sequence_parallel"].astype(np.bool_)
    layouts["recompute"] = layouts["recompute"].astype(np.int8)
    return Space(layouts, sieve.considered, sieve.dropped, np.asarray(job.search.clock_mhz, dtype=np.float64))


def unused_search_values(job: Job, space: Space) -> list[str]:
    """A sentence for each value in ``job.search`` that no layout of ``space`` has, with the main reason."""
    sentences = []
    for column in ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage"):
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

    def __init__(self, columns: Columns, candidates: dict[str, Ints]) -> None:
        self.columns = columns
        self.candidates = candidates
        self.weight = math.prod(len(values) for values in candidates.values())
        self.considered = len(columns["dp"]) * self.weight
        self.dropped: dict[str, int] = {}

    def of(self, name: str) -> Ints:
        """A column as (n, 1), to meet the (k,) candidates of the column that is about to be added."""
        return self.columns[name][:, np.newaxis]

    def alive(self, rules: Iterable[Rule], shape: tuple[int, ...]) -> Bools:
        """Which combinations break no rule; the first broken rule takes the blame."""
        alive = np.ones(shape, dtype=np.bool_)
        for reason, broken in rules:
            hits = int(np.count_nonzero(alive & broken))
            if hits:
                self.dropped[reason] = self.dropped.get(reason, 0) + hits * self.weight
                alive &= ~broken
        return alive

    def keep(self, rules: Iterable[Rule]) -> None:
        """Drop the rows that break a rule; masks are (n,)."""
        alive = self.alive(rules, self.columns["dp"].shape)
        self.columns = {name: column[alive] for name, column in self.columns.items()}

    def expand(self, name: str, rules: Iterable[Rule]) -> None:
        """Cross all rows with the candidates of a new column and sieve; masks broadcast to (n, k)."""
        values = self.candidates[name]
        self.weight //= len(values)
        rows, choices = np.nonzero(self.alive(rules, (len(self.columns["dp"]), len(values))))
        self.columns = {key: column[rows] for key, column in self.columns.items()}
        self.columns[name] = values[choices]


def _factorisations(num_gpus: int) -> Columns:
    """All ordered (tp, pp, cp, dp) whose product is ``num_gpus``, as columns."""
    choices = np.asarray(divisors(num_gpus), dtype=np.int64)
    columns: Columns = {}
    rest = np.asarray([num_gpus], dtype=np.int64)
    for name in _DEGREES[:-1]:
        rows, picks = np.nonzero(rest[:, np.newaxis] % choices == 0)
        columns = {key: column[rows] for key, column in columns.items()}
        columns[name] = choices[picks]
        rest = rest[rows] // columns[name]
    columns["dp"] = rest
    return columns


def _candidates(job: Job, column: str) -> Ints:
    """The values of one column that enter the product: what could fit, and whatever the job lists."""
    fixed = {"sequence_parallel": (0, 1), "recompute": (0, 1, 2), "zero_stage": (0, 1, 2, 3)}
    if column in fixed:
        return np.asarray(fixed[column], dtype=np.int64)
    whole = {
        "ep": max(job.model.num_experts, 1),
        "micro_batch_size": job.training.global_batch_size,
        "vpp": job.model.num_layers,
    }[column]
    listed = getattr(job.search, column) or ()
    return np.asarray(sorted({*divisors(whole), *listed}), dtype=np.int64)


def _outside(job: Job, column: str, values: Ints) -> Rule:
    listed: tuple[int, ...] | None = getattr(job.search, column)
    broken = np.zeros(values.shape, np.bool_) if listed is None else ~np.isin(values, list(listed))
    return _SEARCHED + column, broken


def _degree_rules(job: Job, columns: Columns) -> list[Rule]:
    tp, pp, cp, dp = (columns[name] for name in _DEGREES)
    training, framework, layers = job.training, job.training.framework, job.model.num_layers
    batch, sequence = training.global_batch_size, training.seq_length
    return [
        *(_outside(job, name, columns[name]) for name in _DEGREES),
        *((f"tp does not divide the {count} {what}", count % tp != 0) for what, count in _tp_shards(job)),
        (f"pp is larger than the {layers} layers", pp > layers),
        (f"{framework.name} has no context parallelism", (cp > 1) & (not framework.context_parallel)),
        (f"2*cp does not divide the sequence length {sequence}", (cp > 1) & (sequence % (2 * cp) != 0)),
        (f"dp does not divide the global batch of {batch} sequences", batch % dp != 0),
    ]


def _tp_shards(job: Job) -> list[tuple[str, int]]:
    """What tensor parallelism cuts into equal parts; routed experts only where the framework does."""
    model = job.model
    shards = [("attention heads", model.num_attention_heads), ("KV groups", model.num_query_groups)]
    if model.num_moe_layers < model.num_layers:
        shards.append(("FFN columns", model.ffn_hidden_size))
    if model.is_moe and job.training.framework.expert_tensor_parallel:
        shards.append(("FFN columns of an expert", model.moe_ffn_hidden_size))
    elif model.num_shared_experts:
        shards.append(
            ("FFN columns of the shared experts", model.num_shared_experts * model.moe_ffn_hidden_size)
        )
    return shards


def _ep_rules(job: Job, sieve: _Sieve) -> list[Rule]:
    ep, model = sieve.candidates["ep"], job.model
    return [
        _outside(job, "ep", ep),
        (f"ep > 1 needs experts and {model.name} is a dense model", (ep > 1) & (not model.is_moe)),
        (f"ep does not divide the {model.num_experts} experts", max(model.num_experts, 1) % ep != 0),
        ("ep does not divide dp*cp", (sieve.of("dp") * sieve.of("cp")) % ep != 0),
    ]


def _micro_batch_rules(job: Job, sieve: _Sieve) -> list[Rule]:
    size, batch = sieve.candidates["micro_batch_size"], job.training.global_batch_size
    reason = f"dp*micro_batch_size does not divide the global batch of {batch} sequences"
    return [_outside(job, "micro_batch_size", size), (reason, batch % (sieve.of("dp") * size) != 0)]


def _vpp_rules(job: Job, sieve: _Sieve) -> list[Rule]:
    vpp, pp = sieve.candidates["vpp"], sieve.of("pp")
    micro_batches = job.training.global_batch_size // (sieve.of("dp") * sieve.of("micro_batch_size"))
    layers, framework, interleaved = job.model.num_layers, job.training.framework, vpp > 1
    return [
        _outside(job, "vpp", vpp),
        (
            f"{framework.name} does not interleave stages (vpp > 1)",
            interleaved & (not framework.interleaving),
        ),
        ("vpp > 1 needs pp > 1", interleaved & (pp == 1)),
        (f"vpp > 1 and pp*vpp does not divide the {layers} layers", interleaved & (layers % (pp * vpp) != 0)),
        (
            "vpp > 1 and pp does not divide the number of micro-batches",
            interleaved & (micro_batches % pp != 0),
        ),
    ]


def _sequence_parallel_rules(job: Job, sieve: _Sieve) -> list[Rule]:
    on, tp = sieve.candidates["sequence_parallel"], sieve.of("tp")
    framework, listed = job.training.framework, job.search.sequence_parallel
    uneven = (job.training.seq_length // sieve.of("cp")) % tp != 0
    searched = on[np.newaxis] >= 0 if listed is None else np.isin(on, [int(value) for value in listed])
    offered = np.isin(on, [int(value) for value in framework.sequence_parallel])
    return [
        (f"sequence_parallel without tp > 1 {_DUPLICATE}", (on == 1) & (tp == 1)),
        (_SEARCHED + "sequence_parallel", (tp > 1) & ~searched),
        (f"{framework.name} leaves no such choice of sequence_parallel", (tp > 1) & ~offered),
        ("sequence_parallel and tp does not divide the sequence length per cp rank", (on == 1) & uneven),
    ]


def _recompute_rules(job: Job, sieve: _Sieve) -> list[Rule]:
    code = sieve.candidates["recompute"]
    framework, attention = job.training.framework, job.training.attention
    duplicate = (code == RECOMPUTE_CODES["selective"]) & job.training.selective_is_none
    searched = _canonical_codes(job, job.search.recompute)
    offered = _canonical_codes(job, framework.recomputes)
    return [
        (f"selective recompute with {attention} {_DUPLICATE} as none", duplicate),
        (_SEARCHED + "recompute", ~np.isin(code, searched)),
        (f"{framework.name} has no such recompute", ~np.isin(code, offered)),
    ]


def _canonical_codes(job: Job, names: Iterable[str] | None) -> list[int]:
    codes = RECOMPUTE_CODES | ({"selective": 0} if job.training.selective_is_none else {})
    return [codes[name] for name in (codes if names is None else names)]


def _zero_rules(job: Job, sieve: _Sieve) -> list[Rule]:
    stage, shards = sieve.candidates["zero_stage"], sieve.of("dp") * sieve.of("cp")
    framework = job.training.framework
    reason, unsearched = _outside(job, "zero_stage", stage)
    unknown = ~np.isin(stage, framework.zero_stages)
    unpiped = (sieve.of("pp") > 1) & ~np.isin(stage, framework.zero_stages_with_pipeline)
    return [
        (f"zero_stage > 0 without dp*cp > 1 {_DUPLICATE}", (stage > 0) & (shards == 1)),
        (reason, (shards > 1) & unsearched),
        (f"{framework.name} has no such zero_stage", (shards > 1) & unknown),
        (f"{framework.name} has no such zero_stage with pp > 1", (shards > 1) & unpiped),
    ]


def _why_unused(job: Job, column: str, value: int) -> list[str]:
    """Why one searched value occurs in no layout: enumerate that value alone and read the main reason."""
    gpus = job.cluster.num_gpus
    head = f"search.{column} {value} is in no layout"
    if column in _DEGREES and gpus % value:
        close = sorted(divisors(gpus), key=lambda d: abs(d - value))[:2]
        fitting = " and ".join(str(d) for d in sorted(close))
        return [f"{head}: {column} must divide the {gpus} GPUs (nearest: {fitting})."]
    only: dict[str, Any] = {column: (value,)}
    alone = enumerate_layouts(replace(job, search=replace(job.search, **only)))
    if alone.size:  # the value stands for its canonical form, which the space has
        return []
    return [f"{head}: {reason}." for reason in alone.top_reasons(1)]
