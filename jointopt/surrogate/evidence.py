"""Evidence of measured runs of one source on time, power and memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from jointopt.core.facts import Source
from jointopt.core.schema import CONSTANTS, Bools, Floats, Ints
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.jobs.job import Job
from jointopt.physics.sensitivities import HOST, NETWORK, one_constant, with_constants
from jointopt.surrogate.data_doubts import QUESTION, power_log_ratio
from jointopt.surrogate.kernel import Runs, joined_runs, kinship
from jointopt.surrogate.memory import MemoryEvidence, MemoryPosterior, memory_evidence
from jointopt.surrogate.power import MeasuredPower, PowerScale, power_scale, scale_at_limit

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.dataset import Priced


def same_job(job: Job) -> Job:
    """The job unchanged: `Evidence.under` prices runs anew on it under another measured power."""
    return job


@dataclass(frozen=True)
class Evidence:
    """What measured runs of one source say of time, power and memory.

    ``runs`` and what is (n,) may hold timed runs of the source's kin too (`kernel.kinship`); power and memory are of
    its own rows alone.
    """

    runs: Runs | None = None  # with a measured time
    residual: Floats = field(default_factory=lambda: np.empty(0))  # log(measured / physics) of it, (n,)
    priced: tuple[Priced, ...] = ()  # all rows as the physics prices them, own ones first; none: runs kept as features
    timed: Bools = field(default_factory=lambda: np.empty(0, bool))  # (rows,) of ``priced``: which are among ``runs``
    log_power_ratio: Floats = field(default_factory=lambda: np.empty(0))  # log(measured / physics), own rows
    static_share: Floats = field(default_factory=lambda: np.empty(0))  # of the predicted power, as the ratio
    static_w: float = 0.0  # of a GPU of the source
    memory: MemoryEvidence = field(default_factory=MemoryEvidence)
    counts: Mapping[str, int] = field(default_factory=dict)  # timed runs by the place that they come from
    bounded: Bools = field(default_factory=lambda: np.empty(0, bool))  # (n,): of which runs the time is a lower bound

    @classmethod
    def of(cls, table: pd.DataFrame, priced: Priced, name: str) -> Evidence:
        """The evidence of the priced rows of ``table``, all of one source."""
        bounded = is_lower_bound(table)[priced.rows]
        time_s = table["iteration_time_s"].to_numpy(float)[priced.rows]
        ratio = np.where(bounded, priced.residual(time_s), log_time_ratio(table, priced))
        timed = np.flatnonzero(np.isfinite(ratio)).astype(np.int64)
        gpu = known_gpu(table["gpu"].to_numpy()[priced.rows[0]]) if len(priced.rows) else None
        static_w = gpu.power.static_w if gpu and gpu.power else 0.0
        return cls(
            runs=priced.runs.take(timed) if len(timed) else None, residual=ratio[timed],
            priced=(priced,), timed=np.isfinite(ratio), bounded=bounded[timed],
            log_power_ratio=power_log_ratio(table, priced), memory=memory_evidence(table, priced),
            static_share=static_w / priced.physics["avg_power_w"], static_w=static_w,
            counts={name: len(timed)} if len(timed) else {},
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        """All of ``parts``, which are of one source."""
        runs = [part.runs for part in parts if part.runs is not None]
        return cls(
            runs=joined_runs(runs) if runs else None,
            residual=np.concatenate([np.empty(0), *(part.residual for part in parts)]),
            priced=tuple(priced for part in parts for priced in part.priced),
            timed=np.concatenate([np.empty(0, bool), *(part.timed for part in parts)]),
            bounded=np.concatenate([np.empty(0, bool), *(part.bounds for part in parts)]),
            log_power_ratio=np.concatenate([np.empty(0), *(part.log_power_ratio for part in parts)]),
            static_share=np.concatenate([np.empty(0), *(part.static_share for part in parts)]),
            static_w=max((part.static_w for part in parts), default=0.0),
            memory=functools.reduce(MemoryEvidence.__add__, (p.memory for p in parts), MemoryEvidence()),
            counts={name: count for part in parts for name, count in part.counts.items()},
        )

    @property
    def known(self) -> tuple[Runs, Floats] | None:
        """Timed runs and their residuals; None where there are none."""
        return None if self.runs is None else (self.runs, self.residual)

    def with_constants(self, by: Floats) -> Evidence | None:
        """This evidence priced with the physics' constants changed ``by``; None: runs cannot be priced anew."""
        return self.under(lambda job: with_constants(job, by)) if by.any() else self

    def under(self, change: Callable[[Job], Job] = same_job, power: MeasuredPower | None = None) -> Evidence | None:
        """This evidence priced on the jobs that ``change`` makes of its own; None: runs cannot be priced anew.

        ``power``: measured power, by which power limits then hold; None: they hold by the physics.
        """
        if self.runs is None or self.timed.sum() != len(self.runs):
            return None
        own = len(self._own_priced)  # a limit in W of these says nothing of their kin on other GPUs
        again = tuple(priced.under(change, power if i < own else None) for i, priced in enumerate(self.priced))
        time_s, power_w = (
            np.log(np.divide(*(np.concatenate([one.physics[name] for one in parts]) for parts in (self.priced, again))))
            for name in ("iteration_time_s", "avg_power_w")
        )  # (rows,) each, of the physics before over that after
        return replace(
            self, runs=joined_runs([priced.runs for priced in again]).take(np.flatnonzero(self.timed)), priced=again,
            residual=self.residual + time_s[self.timed],
            log_power_ratio=self.log_power_ratio + power_w[: len(self.log_power_ratio)],
            static_share=self.static_share * np.exp(power_w[: len(self.static_share)]),
        )  # fmt: skip

    def shares_guess(self, job: Job) -> bool:
        """Whether some timed run rests on the same guess of precision and attention as ``job``.

        What the guess is off by is then in what the runs teach.
        """
        wanted = job.training.dtype, job.training.attention
        return self.runs is not None and any(
            (one.job.training.dtype, one.job.training.attention) == wanted and not one.as_stated
            for priced in self.priced for one in priced.works
        )  # fmt: skip

    def sample(self, most: int) -> Evidence:
        """At most ``most`` of the runs that ended, drawn at random; all of them where they cannot be priced anew."""
        if self.runs is None or np.count_nonzero(self.timed) != len(self.runs):
            return self  # runs that a surrogate remembers have no rows to draw
        ended = np.flatnonzero(~self.bounds).astype(np.int64)
        if len(self.runs) == len(ended) <= most or not len(ended):
            return self if len(ended) else Evidence()
        drawn = ended[np.sort(np.random.default_rng(0).permutation(len(ended))[:most])]
        rows, ends = np.flatnonzero(self.timed)[drawn], np.cumsum([0, *(len(part.rows) for part in self.priced)])
        priced = (
            p.take(rows[(rows >= a) & (rows < b)] - a) for p, a, b in zip(self.priced, ends, ends[1:], strict=False)
        )
        kept = tuple(part for part in priced if len(part.rows))
        return Evidence(self.runs.take(drawn), self.residual[drawn], kept, np.ones(len(drawn), bool))

    def with_runs_of(self, kin: Iterable[Evidence]) -> Evidence:
        """This evidence with the timed runs of others, of sources that may be off by the same."""
        every = Evidence.joined([self, *kin])
        of_runs = {name: getattr(every, name) for name in ("runs", "residual", "priced", "timed", "bounded")}
        return replace(self, **of_runs)

    @property
    def bounds(self) -> Bools:
        """Mask (n,) of runs whose time is a lower bound."""
        return self.bounded if len(self.bounded) else np.zeros(len(self.residual), bool)

    @functools.cached_property
    def power(self) -> PowerScale:
        """The scale of predicted power."""
        return power_scale(self.log_power_ratio, self.static_share, self.static_w)

    @functools.cached_property
    def power_limit_w(self) -> float | None:
        """The highest limit in W that runs were measured under; None where nothing is known of their power."""
        if self.power.log_sd is None:
            return None
        return max((part.limit_w for part in self._own_priced), default=None)

    @property
    def _own_priced(self) -> tuple[Priced, ...]:
        """Of ``priced`` the first parts, those of the source itself: others are of its kin."""
        starts = np.cumsum([0, *(len(part.rows) for part in self.priced)])
        return tuple(part for part, at in zip(self.priced, starts, strict=False) if at < len(self.log_power_ratio))

    def under_measured_power(self) -> Evidence:
        """This evidence, runs under lower power limits priced at the clocks that these leave by measured power.

        Power is that of the runs under the highest limit (`jointopt.physics.cost_model.BoardPower`).
        """
        limits_w = np.concatenate([np.empty(0), *(part.limits_w for part in self._own_priced)])
        if len(limits_w) != len(self.log_power_ratio) or not len(limits_w) or (limits_w == limits_w.max()).all():
            return self
        scale = scale_at_limit(self.log_power_ratio, self.static_share, self.static_w, limits_w)
        return self if scale.log_sd is None else self.under(power=MeasuredPower(scale, float(limits_w.max()))) or self

    def memory_posterior(self, framework: str = "") -> MemoryPosterior:
        """The memory model after these runs, of one framework's profile."""
        return MemoryPosterior(self.memory, framework)


def informative_rows(table: pd.DataFrame) -> Bools:
    """Rows (n,) of a table, as `with_results` reads it, that ended well, out of memory, or early with a lower bound."""
    return np.asarray(np.isin(table["status"].to_numpy(str), ("ok", "oom")) | is_lower_bound(table))


def evidence_by_source(table: pd.DataFrame, priced: Priced, name: str) -> dict[Source, Evidence]:
    """Evidence of the priced rows of ``table`` that are `informative_rows`, by their source."""
    learned = informative_rows(table)[priced.rows]
    found = {}
    for key in np.unique(priced.runs.source[learned]).tolist():
        rows = np.flatnonzero(learned & (priced.runs.source == key)).astype(np.int64)
        found[Source.parse(key)] = Evidence.of(table, priced.take(rows), name)
    return found


def with_kin(evidence: Mapping[Source, Evidence], source: Source) -> Evidence:
    """The evidence on that source, and beside it the timed runs of others of its origin that are evidence of it."""
    others = [one for one in evidence if one != source]
    alike = kinship(np.array([str(source)]), np.array(others, str))[0] > 0.0 if others else ()
    kin = [evidence[one] for one, counts in zip(others, alike, strict=True) if counts]
    return evidence.get(source, Evidence()).with_runs_of(kin)


def renamed_sources(keys: npt.NDArray[np.str_], name: Callable[[Source], Source]) -> npt.NDArray[np.str_]:
    """Keys (n,) of sources as those of the sources that ``name`` makes of them."""
    found, of = np.unique(keys, return_inverse=True)
    return np.array([str(name(Source.parse(key))) for key in found.tolist()], dtype=str)[of]


def source_of_job(job: Job, origin: str = "") -> Source:
    """The source of a job's runs: framework profile (blank for one that is not fitted), GPU and GPUs per node."""
    profile, cluster = job.training.framework, job.cluster
    return Source(origin, profile.name if profile.fitted else "", cluster.gpu.id, cluster.gpus_per_node)


def is_kin(other: Job, job: Job) -> bool:
    """Whether another job ran on another kind of cluster, but by the same framework or on the same GPU as ``job``."""
    its, own = source_of_job(other), source_of_job(job)
    return its != own and (its.gpu == own.gpu or its.framework == own.framework)


def log_time_ratio(table: pd.DataFrame, priced: Priced) -> Floats:
    """log(measured / predicted time) in the order of ``priced.rows``, NaN where a run has no time or did not end."""
    time_s = table["iteration_time_s"].to_numpy(float)[priced.rows]
    timed = (table["status"].to_numpy(str)[priced.rows] == "ok") & (time_s > 0)
    return priced.residual(np.where(timed, time_s, np.nan))


# Constants of the physics that a few runs show to be far from what was assumed, where no straight line reaches.


# Changes of two constants (logarithms) that runs are tried under, and the share of clusters that each is expected of:
# how much slower the network between nodes is; what the host needs to launch a layer, where the framework's profile has
# no such floor (0.9, 2.2, 4.5 or 9.5 ms of an x86 host, as `jointopt.physics.sensitivities` changes it). Their effect
# on time is not linear: far from zero, sensitivities to the slower network explain every error as one of the network
# (three runs of nanotron, one of them broken, 23 % instead of 4 %), and a host that no run waits for at first has no
# sensitivity at all. Floors of profiles are left alone: ten of nanotron's runs, of which some wait for other things,
# made it twenty times as high.
PRIOR_UNCHANGED = 0.5
FAR_PRIORS: Mapping[int, Mapping[float, float]] = {
    NETWORK: {1.0: 0.12, 1.5: 0.1, 2.0: 0.08, 2.5: 0.05, 3.0: 0.02, -1.0: 0.05},
    HOST: {1.0: 0.03, 1.7: 0.03, 2.3: 0.02, 3.0: 0.01},
}
PRICED_NETWORKS = (-1.0, 0.0, 1.5, 3.0)  # changes that runs are priced at; between them times are interpolated
LEAST_CHANGE = 0.3  # of a logarithm, by residual or linear sensitivity: below it no large change is tried
SURE_OF_CHANGE = 0.8  # probability of a large change from which on plans are priced with it
MOST_COMPARED = 40  # runs, since each is priced under each


def far_constants(priced: Evidence, constants: Floats, log_evidence: Callable[[Evidence], float]) -> Floats:
    """Changes of the physics' constants, (`CONSTANTS`,), where runs show a network or host far from the assumed one.

    Zeros where they do not. ``constants``: what the runs show by linear sensitivities. ``log_evidence``: log marginal
    likelihood of runs as priced. Of networks the mean of those that the runs leave open.
    """
    network = float(constants[NETWORK])
    frameworks = {work.job.training.framework for part in priced.priced for work in part.works}
    floors = [max(one.host_floor_s, one.host_floor_pp_s) for one in frameworks]
    # some run is slow, and the profile of no run's framework says what the host needs for a layer
    waits = float(priced.residual.max(initial=0.0)) >= LEAST_CHANGE and not any(floors)
    tried = {NETWORK: abs(network) >= LEAST_CHANGE, HOST: waits}
    moves, shares = [np.zeros(len(CONSTANTS))], [PRIOR_UNCHANGED]
    for constant, steps in FAR_PRIORS.items():
        for step, expected in steps.items():
            if tried[constant] and (constant != NETWORK or step * network >= 0.0):
                moves.append(one_constant(constant, step))
                shares.append(expected)
    if len(moves) == 1:
        return moves[0]
    few = _ShiftedRuns(priced.sample(MOST_COMPARED))
    likely = np.log(shares) + [few.log_evidence(by, log_evidence) for by in moves]
    share = np.exp(likely - likely.max())
    if share[1:].sum() < SURE_OF_CHANGE * share.sum():
        return moves[0]
    found = moves[1 + int(share[1:].argmax())]
    alike = [i for i, by in enumerate(moves) if by[NETWORK] * found[NETWORK] > 0.0]
    return np.average([moves[i] for i in alike], axis=0, weights=share[alike]) if alike else found


@dataclass
class _ShiftedRuns:
    """A few runs priced with changed constants of the physics, once for each change."""

    few: Evidence
    priced: dict[tuple[float, ...], Evidence | None] = field(default_factory=dict)

    def log_evidence(self, by: Floats, of: Callable[[Evidence], float]) -> float:
        """The log evidence ``of`` the runs with constants changed ``by``; minus infinity where they cannot be priced.

        On a network between two priced ones, time grows by what it takes longer to send.
        """
        network = float(by[NETWORK])
        above = min((one for one in PRICED_NETWORKS if one >= network), default=0.0)
        below = max((one for one in PRICED_NETWORKS if one <= network), default=0.0)
        ends = [by] if not network else [one_constant(NETWORK, below), one_constant(NETWORK, above)]
        first, second = (self._at(ends[0]), self._at(ends[-1]))
        if first is None or second is None or above == below or first.runs is None or second.runs is None:
            return -np.inf if first is None else of(first)
        part = (np.exp(network) - np.exp(below)) / (np.exp(above) - np.exp(below))
        longer = part * np.exp(first.residual - second.residual)
        time = 1.0 - part + longer
        change = second.runs.sensitivity - first.runs.sensitivity
        runs = replace(first.runs, sensitivity=first.runs.sensitivity + (longer / time)[:, None] * change)
        return of(replace(first, runs=runs, residual=first.residual - np.log(time)))

    def _at(self, by: Floats) -> Evidence | None:
        key = tuple(by.tolist())
        if key not in self.priced:
            self.priced[key] = self.few.with_constants(by)
        return self.priced[key]


def far_constants_words(by: Floats, job: Job) -> str:
    """A sentence on the change ``by`` of `far_constants` to the physics of a job; blank where there is none."""
    moves = "The measured runs show"
    if network := float(by[NETWORK]):
        how = "slower" if network > 0.0 else "faster"
        moves += f" a network between nodes {np.exp(abs(network)):.2g} times {how} than assumed"
    elif by[HOST]:
        floor_s = with_constants(job, by).training.framework.host_floor_s
        moves += f" a host that needs {1e3 * floor_s:.2g} ms to launch a layer"
    else:
        return ""
    return f"{moves}: all plans are priced on it."


# Runs that were ended early, as evidence: each counts as what it is expected to have taken beyond its bound.


LEAST_INFORMATIVE = 0.05  # probability of lying below its bound from which on a run's bound says something


def is_lower_bound(table: pd.DataFrame) -> Bools:
    """Rows (n,) of a table, as `with_results` reads it, whose iteration time is the least that it would have been.

    Those of status timeout that have one: runs that were ended early, behind others.
    """
    ended = table["status"].to_numpy(str) == "timeout"
    return np.asarray(ended & (table["iteration_time_s"].to_numpy(float) > 0))


def impossible_bounds(table: pd.DataFrame, priced: Priced, times: float) -> Ints:
    """Rows of ``table`` whose lower bound of time is above ``times`` times the physics, as no plan's is."""
    off = priced.residual(table["iteration_time_s"].to_numpy(float)[priced.rows])
    return np.sort(priced.rows[is_lower_bound(table)[priced.rows] & (np.nan_to_num(off) > np.log(times))])


def impossible_bounds_line(far: Ints, total: int, times: float, named: Callable[[int], str]) -> list[str]:
    """A sentence on `impossible_bounds`, if any, of ``total`` bounds; ``named``: what messages call a row."""
    if not len(far):
        return []
    return [
        f"{len(far):,} of {total:,} runs that were ended early state an iteration_time_s over {times:g} times what the "
        f"physics says ({named(int(far[0]))} is the first): {QUESTION} These times are not used."
    ]


def expected_above(bound: Floats, mean: Floats, deviation: Floats) -> tuple[Ints, Floats]:
    """(Which lower bounds (n,) of normals say something, and the expected values of these, given that they are above).

    A bound far below the expectation says nothing. The mean of a truncated normal, by which Schmee and Hahn (1979, A
    simple method for regression analysis with censored data, equation 3) fill in what tests that were ended early would
    have shown.
    """
    from scipy.special import log_ndtr, ndtr  # here, since every command that loads a surrogate would wait for it

    z = (bound - mean) / deviation
    kept = np.flatnonzero(ndtr(z) > LEAST_INFORMATIVE).astype(np.int64)
    hazard = np.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(-z))
    return kept, np.asarray(np.maximum(mean + deviation * hazard, bound))[kept]


# Use that training makes of the timed runs of a table.


MOST_BROKEN = 0.9  # of a source's rows, above which their unit is in doubt
OTHER_UNIT = 100.0  # times off the physics, as no run is: half of the rows left out in another unit are by more


@dataclass(frozen=True)
class Use:
    """Use of the timed runs of one source, as counts of rows."""

    source: str
    timed: int
    learned: int  # trained on
    broken: int  # further from the physics than training takes
    unpriced: int  # the physics cannot price them
    reason: str  # of the first of those, blank without any
    beyond: float  # times the physics
    off: float = 1.0  # how many times the physics the broken ones are off, their median

    def to_text(self) -> str:
        """One line on how many rows were learned from, and why others were not."""
        doubtful = self.broken > MOST_BROKEN * self.timed or self.off > OTHER_UNIT
        hint = ": is iteration_time_s in seconds?" if doubtful else ""
        reasons = {
            f"{self.broken:,} more than {self.beyond:g} times off the physics{hint}": self.broken,
            f"{self.unpriced:,} that cannot be priced ({self.reason.rstrip('.')})": self.unpriced,
        }
        why = ", ".join(reason for reason, count in reasons.items() if count)
        rest = f"; left out: {why}" if why else ""
        return f"{self.source}: learned from {self.learned:,} of {self.timed:,} timed rows{rest}"
