"""The memory model after measured runs: evidence of a source, and the plans that fit by it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import LAYOUT_COLUMNS, RECOMPUTE_CODES, Bools, Columns, Floats, Ints
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.job import Job
from jointopt.physics.memory import peak_memory_bytes

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.runs.workloads import Workload
    from jointopt.surrogate.dataset import Priced


GRID = np.linspace(-1.0, 1.0, 201)  # log(measured / predicted memory) of a source
_FINENESS = 40.0  # points of the table of `fit_probability` per standard deviation of a plan
_REACH = 9.0  # standard deviations beyond which a plan is certain to fit, or not to, in double precision
_TAIL = 3.0  # degrees of freedom of measured memory: allocators keep what they once had


@dataclass(frozen=True)
class MemoryMargin:
    """Error of predicted memory, as standard deviations of log(measured / predicted)."""

    centre: float
    source_sd: float  # of one source against the next
    plan_sd: float  # of one plan against the others of its source
    crash_share: float  # of runs that fail for other reasons, where a table does not keep them apart from OOM


@dataclass(frozen=True)
class MemoryEvidence:
    """Memory evidence from the runs of one source; loads are log(predicted memory / limit)."""

    log_ratio: Floats = field(default_factory=lambda: np.empty(0))  # log(measured / predicted memory), where measured
    ok_load: Floats = field(default_factory=lambda: np.empty(0))  # runs that fitted, memory not measured
    oom_load: Floats = field(default_factory=lambda: np.empty(0))
    failed_load: Floats = field(default_factory=lambda: np.empty(0))  # out of memory or crashed: in learning alone

    def __len__(self) -> int:
        return len(self.log_ratio) + len(self.ok_load) + len(self.oom_load)

    def __add__(self, other: MemoryEvidence) -> MemoryEvidence:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return MemoryEvidence(*map(np.concatenate, pairs))


def source_weights(margin: MemoryMargin, evidence: MemoryEvidence) -> Floats:
    """Probability (201,) of every value of `GRID` after what was measured at a source; sums to 1."""
    log_weight = log_prior(margin.centre, margin.source_sd) + log_likelihood(evidence, margin.plan_sd)
    return np.asarray(np.exp(log_weight - np.logaddexp.reduce(log_weight)))


def fit_probability(log_load: Floats, weights: Floats, margin: MemoryMargin) -> Floats:
    """Probability (n,) that plans of that load fit, by `source_weights` of their source; falls with the load.

    The sum over `GRID` of normal distribution functions, by its Taylor series of order 5 around the next of
    `_FINENESS` points per standard deviation, whose remainder is below 1e-13.
    """
    first, step, table = _fit_table(tuple(weights.tolist()), margin.plan_sd)
    place = np.clip((-log_load - first) / step, 0.0, table.shape[1] - 1.0)
    nearest = np.rint(place).astype(np.int64)
    beyond = (place - nearest) * (step / margin.plan_sd)
    total = np.zeros(len(log_load))
    for derivative in table[::-1]:
        total = total * beyond + derivative[nearest]
    return np.clip(total, 0.0, 1.0)


@functools.lru_cache(maxsize=64)
def _fit_table(weights: tuple[float, ...], plan_sd: float) -> tuple[float, float, Floats]:
    """(first room, step, Taylor coefficients (6, points) of the probability in standard deviations around each room).

    Room is -log(load). Rooms are so spaced that their distances to `GRID` are multiples of one step.
    """
    apart = float(GRID[1] - GRID[0])
    finer = math.ceil(_FINENESS * apart / plan_sd)
    step = apart / finer
    points = 2 * math.ceil((GRID[-1] + _REACH * plan_sd) / step) + 1
    room = step * (np.arange(points + (len(GRID) - 1) * finer) - (points - 1) // 2 - (len(GRID) - 1) * finer // 2)
    x = room / plan_sd
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x.tolist()])
    density = np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)
    # derivatives of the density are Hermite polynomials times it
    series = (below, density, -x * density / 2, (x**2 - 1) * density / 6, (3 * x - x**3) * density / 24,
              (x**4 - 6 * x**2 + 3) * density / 120)  # fmt: skip
    windows = (np.lib.stride_tricks.sliding_window_view(part, (len(GRID) - 1) * finer + 1) for part in series)
    table = np.stack([window[:, ::finer] @ np.array(weights)[::-1] for window in windows])
    return float(room[0] + GRID[-1]), step, table


def fit_draws(log_load: Floats, weights: Floats, margin: MemoryMargin, count: int, rng: np.random.Generator) -> Bools:
    """Fit or not of each plan in ``count`` draws (n, count); the source's offset is common to all plans of a draw."""
    offset = rng.choice(GRID, count, p=weights)
    own = margin.plan_sd * rng.standard_normal((len(log_load), count))
    return np.asarray(log_load[:, None] + offset + own <= 0.0)


def log_prior(centre: float, deviation: float) -> Floats:
    """Log of the probability (201,) of every value of `GRID` before a source is measured."""
    log_weight = -0.5 * ((GRID - centre) / deviation) ** 2
    return np.asarray(log_weight - np.logaddexp.reduce(log_weight))


def log_likelihood(evidence: MemoryEvidence, plan_sd: float, crash_share: float | None = None) -> Floats:
    """Log-likelihood (201,) of a source's runs at every offset; failures count where the share of crashes is given."""
    if not len(evidence) and not len(evidence.failed_load):
        return np.zeros(len(GRID))
    from scipy.special import log_ndtr, ndtr

    error = (evidence.log_ratio[:, None] - GRID) / plan_sd
    total = (-0.5 * (_TAIL + 1.0) * np.log1p(error**2 / _TAIL) - np.log(plan_sd)).sum(axis=0)
    total += log_ndtr((-evidence.ok_load[:, None] - GRID) / plan_sd).sum(axis=0)
    total += log_ndtr((evidence.oom_load[:, None] + GRID) / plan_sd).sum(axis=0)
    if crash_share is not None and len(evidence.failed_load):
        out = ndtr((evidence.failed_load[:, None] + GRID) / plan_sd)
        total += np.log(crash_share + (1.0 - crash_share) * out).sum(axis=0)
        total += (len(evidence.log_ratio) + len(evidence.ok_load)) * np.log1p(-crash_share)
    return np.asarray(total)


FEASIBLE = 0.5  # a plan that fits in memory with at least this probability is feasible, for every verb
NOT_TIGHT = 0.8  # one that fits at least so probably is not marked as tight
CERTAIN = 0.05  # one below this is certain not to fit, and never run
FAILED_START = 0.2  # of its time and energy: what a plan of even odds is charged where runs decide


@functools.cache
def memory_margin(framework: str = "") -> MemoryMargin:
    """The memory model's errors on recorded sources (catalog/memory_margin.yaml), by framework where known."""
    entry = dict(read_yaml("memory_margin.yaml"))
    own = entry.pop("frameworks", {}).get(framework, {})
    return MemoryMargin(**{name: float(value) for name, value in (entry | own).items()})


def cost_of_failing(fitting: Floats) -> Floats:
    """Factor (n,) by which plans that may not fit rank behind their time and energy: `FAILED_START` x odds².

    A judgement: nothing to speak of down to a probability of 0.8 (1 %), 20 % at even odds, twofold at 0.3.
    """
    return np.asarray(1.0 + FAILED_START * ((1.0 - fitting) / np.maximum(fitting, 1e-3)) ** 2)


@dataclass(frozen=True)
class MemoryPosterior:
    """The memory model of one source after its measured runs; without any, by the errors on recorded sources."""

    evidence: MemoryEvidence = field(default_factory=MemoryEvidence)
    framework: str = ""

    @functools.cached_property
    def _weights(self) -> Floats:
        return source_weights(self.margin, self.evidence)

    @property
    def margin(self) -> MemoryMargin:
        """The errors on recorded sources."""
        return memory_margin(self.framework)

    @property
    def factor(self) -> float:
        """Measured over predicted memory; 1 where nothing was measured: then the physics' figure stands."""
        return float(np.exp(self._weights @ GRID)) if len(self.evidence) else 1.0

    @functools.cached_property
    def reach(self) -> float:
        """Predicted memory (by the physics alone) over the limit up to which a plan is not certain to fail."""
        return self.largest_load(CERTAIN)

    def largest_load(self, probability: float = FEASIBLE) -> float:
        """Predicted memory (by the physics alone) over the limit at which a plan fits with that probability."""
        loads = np.linspace(-2.0, 2.0, 4001)
        return float(np.exp(np.interp(-probability, -self.fit_probability(loads), loads)))

    def fits(self, log_load: Floats) -> Bools:
        """Whether plans fit (n,); ``log_load``: log(memory by the physics alone / what a GPU may use)."""
        return np.asarray(self.fit_probability(log_load) >= FEASIBLE)

    def fit_probability(self, log_load: Floats) -> Floats:
        """Probability that plans of that load fit (n,)."""
        return fit_probability(log_load, self._weights, self.margin)

    def fit_draws(self, log_load: Floats, count: int, rng: np.random.Generator) -> Bools:
        """Joint draws of whether plans fit (n, count)."""
        return fit_draws(log_load, self._weights, self.margin, count, rng)


def log_load(priced: Priced) -> Floats:
    """Log of predicted memory over what a GPU may use (n,), in the order of ``priced.rows``."""
    return np.asarray(np.log(priced.physics["peak_memory_gib"] / priced.memory_limit_gib))


def memory_log_ratio(table: pd.DataFrame, priced: Priced) -> Floats:
    """log(measured / predicted) peak memory (n,) in the order of ``priced.rows``, NaN where it was not measured."""
    measured_gib = np.asarray(table.get("peak_memory_gib", np.full(len(table), np.nan)), float)[priced.rows]
    return np.asarray(np.log(np.where(measured_gib > 0, measured_gib, np.nan) / priced.physics["peak_memory_gib"]))


def memory_evidence(table: pd.DataFrame, priced: Priced, own: Bools | None = None) -> MemoryEvidence:
    """Evidence on memory of rows of ``table`` (as `with_results` reads them); ``own`` (n,): of which priced rows."""
    rows = priced.rows
    own = np.ones(len(rows), bool) if own is None else own
    status, timed = table["status"].to_numpy(str)[rows], table["iteration_time_s"].to_numpy(float)[rows] > 0
    load, ran, ratio = log_load(priced), own & (status == "ok"), memory_log_ratio(table, priced)
    read = ran & np.isfinite(ratio)
    failed = (load[own & (status == kind)] for kind in ("oom", "failed"))
    return MemoryEvidence(ratio[read], load[ran & timed & ~read], *failed)


# Plans that surely run out of memory, since a run did: memory belongs to the layout, whatever clocks and power limits.


OOM_STATUS = "oom"  # the status of such runs
_RECOMPUTE = ("recompute", "recompute_modules", "recompute_num_layers")
_OTHERS = tuple(name for name in LAYOUT_COLUMNS if name not in (*_RECOMPUTE, "micro_batch_size"))
_NONE, _FULL = RECOMPUTE_CODES["none"], RECOMPUTE_CODES["full"]
_ALIKE = 1e-6  # share by which the physics may differ on the memory of two runs that need the same


def needs_as_much(layouts: Columns, peak: Floats, of: Columns, of_peak: Floats) -> Bools:
    """Which of ``layouts`` (n,) surely need the memory of one of the layouts ``of`` (m,), of the same training.

    ``peak`` (n,) and ``of_peak`` (m,): memory by the physics, in one unit, or as a share of the same limit.
    """
    found = np.zeros(len(peak), bool)
    for one, least in enumerate(of_peak.tolist()):
        rows = np.flatnonzero(~found & (peak >= least * (1.0 - _ALIKE)))
        for name in _OTHERS:
            rows = rows[layouts[name][rows] == of[name][one]]
        rows = rows[layouts["micro_batch_size"][rows] >= of["micro_batch_size"][one]]
        if of["recompute"][one] != _FULL or of["recompute_num_layers"][one] != 0:
            same = np.all([layouts[name][rows] == of[name][one] for name in _RECOMPUTE], axis=0)
            rows = rows[same | (layouts["recompute"][rows] == _NONE)]
        found[rows] = True
    return found


def layouts_out_of_memory(works: Sequence[Workload], status: npt.NDArray[np.str_], job: Job) -> Columns:
    """Layouts by which the job's very training ran out of memory, of rows of ``works``; ``status``: of all rows."""
    out = status == OOM_STATUS
    found: list[Columns] = []
    for work in works:
        layouts = work.take(np.flatnonzero(out[work.rows]).astype(np.int64)).plans
        if len(layouts["pp"]) and _training(work.job) == _training(job):
            same = np.isclose(peak_memory_bytes(work.job, layouts), peak_memory_bytes(job, layouts), rtol=_ALIKE)
            found.append({name: values[same] for name, values in layouts.items()})
    return {name: np.concatenate([one[name] for one in found]) for name in LAYOUT_COLUMNS} if found else {}


def certain_oom(job: Job, layouts: Columns, ran: Sequence[Columns]) -> Bools:
    """Which ``layouts`` (n,) of a job surely run out of memory, by parts ``ran`` of `layouts_out_of_memory`."""
    found = np.zeros(len(layouts["pp"]), bool)
    for out in filter(None, ran):
        rows = np.flatnonzero(np.isin(layouts["tp"], out["tp"]) & np.isin(layouts["pp"], out["pp"]))
        some = {name: layouts[name][rows] for name in LAYOUT_COLUMNS}
        if len(rows) and len(out["pp"]):
            found[rows] |= needs_as_much(some, peak_memory_bytes(job, some), out, peak_memory_bytes(job, out))
    return found


def certain_oom_rows(priced: Priced, plans: Ints, runs: Ints) -> Bools:
    """Which of the rows ``plans`` (n,) surely run out of memory where the rows ``runs`` did, each of its own job."""
    found = np.zeros(len(plans), bool)
    trainings = [_training(work.job) for work in priced.works]
    peak = priced.physics["peak_memory_gib"]
    for work in np.unique(priced.work[runs]).tolist():
        like = [other for other, training in enumerate(trainings) if training == trainings[work]]
        here = np.flatnonzero(np.isin(priced.work[plans], like))
        there = runs[priced.work[runs] == work]
        of, layouts = _layouts(priced, there), _layouts(priced, plans[here])
        found[here] |= needs_as_much(layouts, peak[plans[here]], of, peak[there])
    return found


def _layouts(priced: Priced, at: Ints) -> Columns:
    """The layouts of priced rows, (n,)."""
    out = {name: np.empty(len(at)) for name in LAYOUT_COLUMNS}
    for work in np.unique(priced.work[at]).tolist():
        mine = priced.work[at] == work
        plans = priced.works[work].take(priced.place[at][mine]).plans
        for name in LAYOUT_COLUMNS:
            out[name][mine] = plans[name]
    return out


def _training(job: Job) -> tuple[Any, ...]:
    """Sizes in which jobs of one training agree, and without which a layout of one may be none of the other."""
    model, training = job.model, job.training
    return model.parameters, model.num_layers, training.seq_length, training.global_batch_size, job.cluster.num_gpus
