"""A surrogate: a Gaussian process of each source, what many runs of one taught, calibrated intervals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import LOG_COLUMNS, RECIPE_CLASSES, Bools, Floats, Ints
from jointopt.core.units import Z_90
from jointopt.surrogate.evidence import expected_above
from jointopt.surrogate.intervals import ALIKE_DEVIATION, difference_half_width, difference_variance, posterior_of_new
from jointopt.surrogate.kernel import CLOCK, Kernel, Runs, joined_runs, kinship
from jointopt.surrogate.new_sources import MOST_ABOVE, Bounds, NewGroups, host_share
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.posterior import Posterior, condition

if TYPE_CHECKING:
    from jointopt.runs.workloads import Workload  # imports pandas


SPEEDS, SAME_SPEED = ("log2_peak", "log2_memory"), 0.07  # of a GPU; of a base-2 logarithm: 5 %
SAME_KIND = ("moe", "dtype")  # runs that differ in these are weak evidence of each other
LEAST_INSIDE = 0.9  # of the features of a run in the domain: share within their training ranges
SIZES = ("log2_seq_length", "log2_gpus", "log2_hidden", "log2_layers")
FARTHEST = 1.0  # of these, beyond a cluster's own runs: intervals held 47 to 57 % at eight and sixteen times the size
# Counts of runs between which the factor on intervals goes from that of few to that of many: the process's own width
# has what three leave open, but not what hundreds do.
FEW_AND_MANY = (3, 20)
# Power of how far a run lies beyond the bounds of a new source, by which these bind less: they double at 12 %. By a
# power of 2 to 4 intervals after two runs hold 65 to 68 % of the least source (generic profile), by 6 71 %.
BEYOND = 6
SAME_LAYOUT = 1e-6  # by which keys of one layout differ, as rounding has it
MOST_REPEATS = 6  # as many runs of one plan as any recorded source has; more are the iterations of one run


@dataclass(frozen=True)
class Widths:
    """Conformal factors on the process's own 90 % half-width, by how much is known of a run's source.

    Of sources of which no run is known, times have bounds of their own, where a card has such.
    """

    measured: float = 1.0  # many runs of the same source are known
    fitted: float = 1.0  # none are, but its framework has a profile
    unknown: float = 1.0
    difference: float = 1.0  # on top of these, of differences between two plans of one job
    # of differences too, on the root of the process's own half-width: where runs are known; none but a profile; neither
    difference_after: float | None = None
    difference_new: float | None = None
    difference_unknown: float | None = None
    few: float = 1.0  # a few runs of the same source are known
    new_cluster: Bounds | None = None  # no runs are known, but a profile of the framework
    new_software: Bounds | None = None  # neither; `host_share` comes on top of the upper

    def of_difference(self, known: bool, fitted: bool) -> float | None:
        """The factor on the root of half-widths of differences, by what is known of a source; None: there is none."""
        return self.difference_after if known else self.difference_new if fitted else self.difference_unknown

    def of_measured(self, count: int) -> float:
        """The factor where ``count`` runs of the same source are known."""
        few, many = np.log(FEW_AND_MANY)
        share = np.clip((np.log(max(count, 1)) - few) / (many - few), 0.0, 1.0)
        return float(self.few ** (1.0 - share) * self.measured**share)


@dataclass(frozen=True)
class Surrogate:
    """Learned correction of the physics' time, power and heat, of many sources."""

    kernel: Kernel  # of the Gaussian process, shared by all sources
    support: Runs  # runs that the process remembers
    residual: Floats  # of these, log(measured / physics)
    widths: Widths = field(default_factory=Widths)
    card: Mapping[str, Any] = field(default_factory=dict)
    own: tuple[OwnRuns, ...] = ()  # of sources with many runs
    new_groups: tuple[NewGroups, ...] = ()  # of each source of which it learned from a few runs
    learned_rows: Fingerprints | None = None  # of all runs that it learned from; None where none were written down
    training_range: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by feature, of several sources

    def predict(
        self, runs: Runs, fitted: bool, measured: tuple[Runs, Floats] | None = None
    ) -> tuple[Floats, Floats, Bools]:
        """As `Conditioned.predict`, for runs of one source."""
        return self.conditioned(runs.source[0], fitted, measured).predict(runs)

    def without_runs(self) -> Surrogate:
        """The surrogate without the runs that it remembers."""
        return replace(self, support=self.support.take(np.empty(0, np.int64)), residual=np.empty(0))

    def conditioned(
        self, source: str, fitted: bool, measured: tuple[Runs, Floats] | None = None, bounded: Bools | None = None
    ) -> Conditioned:
        """The correction of one source, after supporting runs and those at hand, its own and those of its kin.

        ``fitted``: its framework has a profile of its own. ``measured``: runs at hand and their residuals, lower bounds
        of these where ``bounded`` (n,).
        """
        if measured is not None and bounded is not None and bounded.any():
            return self._with_bounds(source, fitted, measured, bounded)
        rows = self.remembered(source)
        known, residual = self.support.take(rows), self.residual[rows]
        if measured is not None:
            own = _kin(measured[0], source)
            few, seen = _few_repeats(measured[0].take(own), measured[1][own])
            known, residual = joined_runs([few, known]), np.concatenate([seen, residual])
        if (many := self.own_of(source)) is not None:
            process = many.process(self.kernel, known, residual)
            return Conditioned(self, source, fitted, known, residual, process, False, many)
        if (new := self.new_groups_of(source)) is not None:
            known, residual = _few_repeats(known, residual)
        posterior = condition(self.kernel, known, residual)
        return Conditioned(self, source, fitted, known, residual, posterior, not len(rows), new_groups=new)

    def remembered(self, source: str) -> Ints:
        """Positions of the supporting runs that are evidence of that source: its own and its kin's."""
        return _kin(self.support, source)

    def _with_bounds(self, source: str, fitted: bool, measured: tuple[Runs, Floats], bounded: Bools) -> Conditioned:
        """As `conditioned`: each bound that says something counts as what is expected beyond it by all other runs.

        Once, by the runs that ended: repeated, what a run is expected to have taken would rest on itself.
        """
        runs, residual = measured
        at, ended = (np.flatnonzero(which).astype(np.int64) for which in (bounded, ~bounded))
        own = at[_kin(runs.take(at), source)]
        alone = self.conditioned(source, fitted, (runs.take(ended), residual[ended]) if len(ended) else None)
        if not len(own):
            return alone
        mean, half_width, _ = alone.predict(runs.take(own))
        kept, expected = expected_above(residual[own], mean, half_width / Z_90)
        counted = runs.take(np.concatenate([ended, own[kept]])), np.concatenate([residual[ended], expected])
        found = self.conditioned(source, fitted, counted) if len(kept) else alone
        of_source = own[runs.source[own] == source]
        return replace(found, least=(runs.take(of_source).keys(CLOCK), residual[of_source]))

    def new_groups_of(self, source: str) -> NewGroups | None:
        """How far the few runs of a source, else of its kin, count for groups without runs; None where none taught."""
        keys = np.array([source])
        taught = [one for one in self.new_groups if (kinship(np.array(one.sources), keys) > 0.0).any()]
        return next((one for one in taught if source in one.sources), taught[0] if taught else None)

    def own_of(self, source: str) -> OwnRuns | None:
        """Learned from many runs of that source; None where there were few."""
        return next((own for own in self.own if own.source == source), None)

    @property
    def importance(self) -> dict[str, Mapping[str, Mapping[str, float]]]:
        """Mean size of the SHAP values of trees that count, of each feature, by source and quantity."""
        return {own.source: own.importance for own in self.own if own.importance}

    def class_of(self, source: str) -> str | None:
        """The recipe class by which the remembered runs of that source were priced, blank for the usual one.

        None where there are none, or some of several classes.
        """
        if not (self.support.source == source).any():
            return None
        name = str(self.card.get("recipe_classes", {}).get(source, ""))
        return name if name in ("", *RECIPE_CLASSES) else None


@dataclass(frozen=True)
class Conditioned:
    """A surrogate's correction of one source; ``known`` are its runs and its kin's, remembered or at hand."""

    surrogate: Surrogate
    source: str
    fitted: bool
    known: Runs
    residual: Floats  # log(measured / physics) of these
    posterior: Posterior
    movable: bool  # all that is known can be priced anew
    own: OwnRuns | None = None  # where many runs of the source were learned from
    new_groups: NewGroups | None = None  # where a few were
    # keys of layouts whose runs were ended early, and log(time / physics) that each took at least
    least: tuple[npt.NDArray[np.complex128], Floats] | None = None

    def mean(self, runs: Runs) -> Floats:
        """The mean of `predict` alone, (n,)."""
        if self.own is not None:
            mean = self.own.mean(self.posterior, runs, self.known)
        else:
            mean = self.parts(runs)[0] * self.posterior.mean(runs)
        return self._not_below(mean, runs)

    def _not_below(self, mean: Floats, runs: Runs) -> Floats:
        """The ``mean`` (n,), raised to the lower bounds of layouts whose runs were ended early."""
        if self.least is None:
            return mean
        keys = runs.keys(CLOCK)
        for key, bound in zip(*self.least, strict=True):
            mean = np.where(np.abs(keys - key) < SAME_LAYOUT, np.maximum(mean, bound), mean)
        return mean

    def parts(self, runs: Runs) -> tuple[Floats, Floats]:
        """`NewGroups.parts` of ``runs``: ones where there is no such."""
        if self.new_groups is None:
            return np.ones(len(runs)), np.ones(len(runs))
        mean, deviation = self.posterior.predict(runs) if self.new_groups.as_sure else 2 * (np.zeros(len(runs)),)
        return self.new_groups.parts(runs, self.known, mean, Z_90 * self.widths(runs) * deviation)

    def predict(self, runs: Runs) -> tuple[Floats, Floats, Bools]:
        """(mean, 90 % half-width, in domain) of log(measured / physics) for runs of the source, (n,) each."""
        # a layout at many clocks is answered once, where what was learned is the same at all
        swept = self.own is not None and len(self.own.power_clocks) > 1
        first, of = runs.distinct("" if swept else CLOCK)
        some = runs.take(first) if self.own is None else self.own.within_clocks(runs.take(first))
        mean, deviation = self.posterior.predict(some)
        if self.own is not None:
            mean = self.own.time(self.own.counted(mean, deviation, some, self.known), some)
        mean, inside, half_width = mean[of], self.inside(runs), Z_90 * (self.widths(some) * deviation)[of]
        if self.new_groups is not None:  # groups may differ where features do not
            part, wider = self.new_groups.parts(runs, self.known, mean, half_width)
            mean, half_width = part * mean, wider * half_width
        return self._not_below(mean, runs), half_width, inside

    def bounds_of_new(self, runs: Runs) -> tuple[Floats, Floats] | None:
        """90 % half-widths (below, above), (n,) each, of a source without known runs; None where many are known.

        Where some are known, wider by how far the furthest of these lies beyond those widths. Runs that are as was
        expected of a new source make nothing less sure: the process, whose prior has every kind of source in it, is
        wider than these bounds after a run or two. None for a card that has no such bounds, too.
        """
        widths = self.surrogate.widths
        bounds = widths.new_cluster if self.fitted else widths.new_software
        if self.own is not None or bounds is None:
            return None
        low, high = bounds
        of_all, of_known = (
            np.minimum(np.full(len(each), high) + (0.0 if self.fitted else host_share(each)), MOST_ABOVE)
            for each in (runs, self.known)
        )
        beyond = np.maximum(-self.residual / low, self.residual / of_known).max(initial=1.0)
        wider = float(np.minimum(beyond, 2.0)) ** BEYOND
        return np.full(len(runs), wider * low), wider * of_all

    def difference(self, runs: Runs, against: Runs) -> tuple[Floats, Floats]:
        """(mean, 90 % half-width) of log(measured / physics) of ``runs`` less that of ``against``, as many or one."""
        wide, mean = self._difference_half_width(runs, against), self.mean(runs) - self.mean(against)
        if self.new_groups is None and (self.own is None or not self.own.in_part):
            return mean, wide
        # what does not count of the process may be true all the same
        whole, counted = self.posterior.mean(runs) - self.posterior.mean(against), mean
        if self.own is not None:
            predicted = ((each, *self.posterior.predict(each)) for each in (runs, against))
            first, other = (self.own.counted(mean, sd, each, self.known) for each, mean, sd in predicted)
            counted = first - other
        return mean, np.asarray(wide + np.abs(whole - counted))

    def _difference_half_width(self, runs: Runs, against: Runs) -> Floats:
        """The half-width of `difference` where all of the process counts, (n,)."""
        widths, known = self.surrogate.widths, bool(len(self.known))
        if self.own is not None:
            own = Z_90 * self.posterior.contrast_deviation(runs, against)
            return np.asarray(self.widths(runs) * widths.difference * own)
        own, by_root = difference_half_width(self.posterior, runs, against), widths.of_difference(known, self.fitted)
        if by_root is None:
            return np.asarray(self.widths(runs) * widths.difference * own)
        # the process is too sure of plans that are alike, or like known ones, and too unsure of others
        found = by_root * np.sqrt(own)
        if not known or (of_new := widths.of_difference(False, self.fitted)) is None:
            return np.asarray(found)
        kernel = self.posterior.kernel
        most = of_new * np.sqrt(difference_half_width(posterior_of_new(kernel), runs, against))
        # that some runs scatter is no evidence that plans which are alike differ more
        return np.minimum(found, most * (1.0 + difference_variance(kernel, runs, against) / ALIKE_DEVIATION**2))

    def widths(self, runs: Runs) -> Floats:
        """Conformal factors on the process's own half-widths, (n,)."""
        widths = self.surrogate.widths
        if self.own is not None:
            return self.own.widths(runs, self.known)
        of_new = widths.fitted if self.fitted else widths.unknown
        return np.full(len(runs), widths.of_measured(len(self.known)) if len(self.known) else of_new)

    def inside(self, runs: Runs) -> Bools:
        """Whether what was learned supports ``runs``, (n,).

        Features lie where training's did, on a GPU of whose peak and memory speed some run is known. Of many own runs,
        as far as these are remembered, some has the dtype, and experts or none as they have, and all sizes are near.
        """
        surrogate, known = self.surrogate, self.known
        gpus = np.unique(np.concatenate([each.matrix(SPEEDS) for each in (surrogate.support, known)]), axis=0)
        inside = (np.abs(runs.matrix(SPEEDS)[:, None] - gpus[None]) < SAME_SPEED).all(axis=2).any(axis=1)
        if surrogate.training_range:
            low, high = np.transpose(list(surrogate.training_range.values()))
            features = runs.matrix(tuple(surrogate.training_range))
            inside &= ((low - 1e-9 <= features) & (features <= high + 1e-9)).mean(axis=1) > LEAST_INSIDE
        if self.own is not None and len(known):
            sizes, of_known = runs.matrix(SIZES), known.matrix(SIZES)
            inside &= (sizes >= of_known.min(axis=0) - FARTHEST).all(axis=1)
            inside &= (sizes <= of_known.max(axis=0) + FARTHEST).all(axis=1)
            kinds = np.unique(known.matrix(SAME_KIND), axis=0)
            inside &= (runs.matrix(SAME_KIND)[:, None] == kinds[None]).all(axis=2).any(axis=1)
        return np.asarray(inside if self.own is not None or len(known) else inside & self.fitted)

    def knows_kind(self, runs: Runs) -> bool:
        """Whether a known run has the dtype of ``runs`` (all of one job), and experts or none as they have."""
        alike = (self.known.matrix(SAME_KIND) == runs.matrix(SAME_KIND)[:1]).all(axis=1)
        return bool((alike & (self.known.source == self.source)).any())


def _kin(runs: Runs, source: str) -> Ints:
    """Positions of the runs that are evidence of that source."""
    return np.flatnonzero(kinship(runs.source, np.array([source]))[:, 0] > 0.0).astype(np.int64)


def _few_repeats(runs: Runs, residual: Floats) -> tuple[Runs, Floats]:
    """Runs without copies; where there are more than `MOST_REPEATS` of one plan, their median alone.

    A log of every iteration, or a file given twice, must not pass for evidence of hundreds of runs.
    """
    if len(residual) < 2:
        return runs, residual
    inputs = np.hstack([runs.sensitivity, runs.matrix(runs.names)]).round(9) + 0.0
    keys = [row.tobytes() + group.encode() for row, group in zip(inputs, runs.group.tolist(), strict=True)]
    of_plan: dict[bytes, dict[float, int]] = {}
    for i, key in enumerate(keys):
        of_plan.setdefault(key, {}).setdefault(float(residual[i]), i)
    kept: list[int] = []
    for found in of_plan.values():
        rows = [found[value] for value in sorted(found)]
        kept += rows if len(rows) <= MOST_REPEATS else [rows[len(rows) // 2]]
    at = np.array(sorted(kept), np.int64)
    return runs.take(at), residual[at]


# Rows of tables recognised by what they state, whatever file they stand in: the work, the plan, the measured time.


# What tables state and no default stands in for but that of a plain run; the time distinguishes what these leave alike.
_DIGITS = 8  # of a time: less than tables write, and rounding of any computation stays far below

Fingerprints = np.ndarray[Any, np.dtype[np.uint64]]


def fingerprints(works: Iterable[Workload], time_s: Floats) -> Fingerprints:
    """A number for the content of each row of a table, (n,); 0 for those of no work or without a time.

    ``works`` hold positions in the table, ``time_s`` (n,) are the measured iteration times of its rows in s. Rows of
    one work, plan and clock whose times agree to eight digits are the same run.
    """
    out = np.zeros(len(time_s), np.uint64)
    for work in works:
        job, timed = work.job, np.flatnonzero(time_s[work.rows] > 0.0)
        alike = (
            job.model.num_layers, job.model.hidden_size, job.training.seq_length, job.training.global_batch_size,
            job.cluster.gpu.id, job.cluster.num_gpus,
        )  # fmt: skip
        plans = np.stack([work.plans[name][timed] for name in LOG_COLUMNS], axis=1).tolist()
        clocks = np.nanmean(work.stage_clock_mhz[timed], axis=1).tolist()
        for row, plan, clock_mhz in zip(work.rows[timed].tolist(), plans, clocks, strict=True):
            text = "|".join(map(str, (*alike, *plan, round(clock_mhz), f"{time_s[row]:.{_DIGITS}g}")))
            out[row] = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return out
