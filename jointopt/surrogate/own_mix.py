"""Trees beside a process (or a line in the physics), weighed by what both are worth on runs left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from jointopt.core.facts import Source
from jointopt.core.progress import steps
from jointopt.core.schema import CONSTANTS, OCCUPANCY, Floats, Ints
from jointopt.core.units import Z_90
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.physics.curves import Curves
from jointopt.surrogate.kernel import CLOCK, Runs, joined_runs
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.trees import Trees, boosted, fit_trees

WEIGHTS = (0.25, 0.5, 0.75, 1.0)  # of the trees
LEAST_GAIN = 0.03  # of the held-out error, below which a part stays out
LARGEST = 1.0  # residual that trees are shown: beyond it lie runs that went wrong
PREDICTED = "log2_predicted"  # what the physics says of the quantity that is learned, as a feature of its trees
RIDGE = 30.0  # runs of a feature's usual deviation, as many as a slope of 0 counts for
Slopes = Mapping[str, tuple[float, float, float, float]]  # by feature: slope, mean, least and most of the runs
_Part = TypeVar("_Part")
SENSITIVITY = "sensitivity to "
MOST_IMPORTANT, EXPLAINED = 10, 500  # features in a card, and runs that they are judged on


@dataclass(frozen=True)
class Mix:
    """Trees stacked on a Gaussian process: ``weight`` of the answer is theirs, (1 - weight) the process's.

    Where ``beyond``, trees were trained on the residual of the process, and ``weight`` times theirs is added to it;
    ``slopes``: what they were trained on the rest of, and is added to theirs.
    """

    trees: Trees | None = None
    weight: float = 0.0
    beyond: bool = False
    names: tuple[str, ...] = ()  # features of the trees, before all sensitivities
    slopes: Slopes = field(default_factory=dict)

    def __call__(self, process: Floats, runs: Runs) -> Floats:
        """log(measured / physics) (n,) of ``runs``; ``process`` (n,): the same by the process alone."""
        if self.trees is None or not self.weight or not len(runs):
            return process
        trees = self.trees.predict(inputs(runs, self.names)) + sloped(self.slopes, runs).sum(axis=1)
        return _blend(process, trees, self.weight, self.beyond)

    def contributions(self, runs: Runs) -> tuple[tuple[str, ...], Floats]:
        """(Names of the k features; what each adds to the logarithm, and what is common to all, (n, k + 1)).

        A row sums to all that the trees add; the common part falls where a run is unlike those learned from.
        """
        names = (*self.names, *(f"{SENSITIVITY}{name}" for name in CONSTANTS[: runs.sensitivity.shape[1]]))
        if self.trees is None or not self.weight:
            return names, np.zeros((len(runs), len(names) + 1))
        found = self.trees.contributions(inputs(runs, self.names))
        found[:, [names.index(name) for name in self.slopes]] += sloped(self.slopes, runs)
        return names, self.weight * found

    def importance(self, runs: Runs) -> dict[str, float]:
        """Mean size of what features add to the logarithm by the trees: of those that add most, the largest first."""
        names, added = self.contributions(runs.take(np.arange(min(len(runs), EXPLAINED), dtype=np.int64)))
        size = np.abs(added[:, :-1]).mean(axis=0)
        largest = [i for i in np.argsort(-size)[:MOST_IMPORTANT] if size[i] > 0.0]
        return {feature_words(names[i]): round(float(size[i]), 4) for i in largest}


_WORDS = {
    "share_bubble": "bubble fraction", "communication": "communication/compute ratio", "clock": "SM clock",
    "occupancy": "SM occupancy", "efficiency": "FLOPs utilization of kernels", "moe": "mixture of experts",
    "log2_rank_tokens": "tokens per rank", "log2_width": "hidden size per tensor rank", "log2_gpus": "number of GPUs",
    "log2_hidden": "hidden size", "log2_tp_nodes": "nodes of a tensor group", "log2_dp_nodes": "nodes of a data group",
    "log2_peak": "peak FLOP/s", "log2_memory": "memory of a GPU", PREDICTED: "value by the physics",
    "log2_aligned_width": "alignment of hidden size per tensor rank", "log2_queries_per_key": "query heads per KV head",
}  # fmt: skip


def feature_words(name: str) -> str:
    """A feature of trees as engineers call it: ``bubble fraction`` for ``share_bubble``."""
    if name in _WORDS:
        return _WORDS[name]
    if name.startswith("share_"):
        return f"{name.removeprefix('share_').replace('_comm', ' communication').replace('_', ' ')}, share of time"
    return name if name.startswith(SENSITIVITY) else name.removeprefix("log2_").replace("_", " ")


def inputs(runs: Runs, names: Sequence[str]) -> Floats:
    """Features of trees (n, k): those of ``names``, then every sensitivity."""
    return np.hstack([runs.matrix(names), runs.sensitivity])


def with_predicted(runs: Runs, values: Floats) -> Runs:
    """Runs with `PREDICTED` among their features; ``values`` (n,): what the physics says of each."""
    return replace(runs, features=dict(runs.features) | {PREDICTED: np.log2(np.maximum(values, _LEAST_SQUARE))})


def fit_slopes(runs: Runs, target: Floats) -> Slopes:
    """Slopes of a ridge regression of ``target`` (n,) (Hoerl and Kennard 1970), 0 at the mean of the ``runs``.

    On shares of time, clock and `PREDICTED`: power follows smoothly what a GPU does, of which trees would need many
    steps.
    """
    every = [name for name in runs.power_names if name.startswith("share_") or name in (*OCCUPANCY, CLOCK, PREDICTED)]
    columns = runs.matrix(every)
    middle, spread = columns.mean(axis=0), columns.std(axis=0)
    kept = np.flatnonzero(spread > _LEAST_SPREAD)
    z = (columns[:, kept] - middle[kept]) / spread[kept]
    slope = np.linalg.solve(z.T @ z + RIDGE * np.eye(len(kept)), z.T @ (target - target.mean())) / spread[kept]
    found = np.stack([slope, middle[kept], columns.min(axis=0)[kept], columns.max(axis=0)[kept]], axis=1)
    return {every[at]: tuple(one) for at, one in zip(kept.tolist(), found.tolist(), strict=True)}


def sloped(slopes: Slopes, runs: Runs) -> Floats:
    """What each feature of ``slopes`` adds to runs, (n, k), at the nearest value that was learned from."""
    if not slopes:
        return np.zeros((len(runs), 0))
    slope, middle, low, high = np.array([*slopes.values()], np.float64).T
    return np.asarray(slope * (np.clip(runs.matrix([*slopes]), low, high) - middle))


def _blend(process: Floats, trees: Floats, weight: float, beyond: bool) -> Floats:
    return process + weight * (trees if beyond else trees - process)


@dataclass(frozen=True)
class Swept:
    """What the physics says of n runs, and of their layouts at k clocks, ``shares`` of the top one, between which the
    answer to a plan is interpolated.
    """

    shares: tuple[float, ...]
    values: Floats  # (n,) of the runs
    at_shares: Floats  # (k, n)
    most_w: float | None = None  # of power, which is read in W rather than in logarithms: what GPUs may draw

    def take(self, rows: Ints) -> Swept:
        """The runs at those positions."""
        return replace(self, values=self.values[rows], at_shares=self.at_shares[:, rows])

    def read(self, log_ratio: Floats) -> Floats:
        """log(measured / physics) (n,) at the clocks of runs, from that at the shares (k, n): as `JobModel` answers."""
        every, logs, at = np.arange(len(self.values)), np.log(self.values), np.log(self.at_shares)
        if self.most_w is None:
            return np.asarray(Curves.rising(at, at + log_ratio).at(every, logs) - logs)
        curves = Curves.rising(self.at_shares, np.exp(at + log_ratio))
        return np.log(replace(curves, y=np.minimum(curves.y, self.most_w)).at(every, self.values)) - logs


def read(swept: Swept | None, log_ratio: Floats) -> Floats:
    """`Swept.read`; of runs that were not swept, what was said of each."""
    return log_ratio[0] if swept is None else swept.read(log_ratio)


def swept_runs(runs: Runs, swept: Swept | None) -> Runs:
    """Runs at each of the shares, one share after the other; as they are where they were not swept."""
    return runs if swept is None else at_clocks(runs, swept.shares)


def cross_fitted_trees(
    runs: Runs, target: Floats, fold: Ints, names: tuple[str, ...], swept: Swept | None = None, seed: int = 0
) -> Floats:
    """Cross-fitted answers (k, n) of trees trained on ``target`` (n,), over folds (n,)."""
    columns, target = inputs(runs, names), np.clip(target, -LARGEST, LARGEST)

    def answer(fit: Ints, at: Ints) -> Floats:
        trees = boosted(columns[fit], target[fit], random_state=seed)
        found = np.asarray(trees.predict(inputs(swept_runs(runs.take(at), swept), names)), np.float64)
        return found.reshape(-1, len(at))

    return cross_fitted(fold, answer)


def choose(
    found: Sequence[tuple[_Part, Mix, Floats]], residual: Floats, folds: Sequence[Ints]
) -> tuple[_Part, Floats, float]:
    """(The one of several learners that errs least, answers (kinds, n) of one chosen without each fold, their error).

    ``found``: learners, their mix, and answers cross-fitted over each kind of ``folds``, (kinds, n): of models left
    out, whose error is the one returned, and of layouts. Kinds count alike: a few models alone hardly tell learners
    apart. One with trees is taken where it gains `LEAST_GAIN`.
    """
    off = np.abs(np.expm1(np.stack([answer for *_, answer in found]) - residual))
    handicap = np.array([1.0 / (1.0 - LEAST_GAIN * (mix.weight > 0.0)) for _, mix, _ in found])
    medians, weights, places = [], [], []
    for kind, fold in enumerate(folds):
        numbers, counts = np.unique(fold, return_counts=True)
        places += [(kind, fold == one) for one in numbers]
        medians += [np.median(off[:, kind, fold == one], axis=1) for one in numbers]
        weights += (np.sqrt(counts) / np.sqrt(counts).sum()).tolist()
    by_fold, share = np.stack(medians, axis=1), np.array(weights)  # (learners, folds)

    def best(counted: Floats) -> int:
        return int((by_fold @ counted * handicap).round(_DIGITS).argmin())

    nested = np.empty((len(folds), len(residual)))
    for number, (kind, at) in enumerate(places):
        nested[kind, at] = found[best(np.where(np.arange(len(share)) == number, 0.0, share))][2][kind, at]
    return found[best(share)][0], nested, median_error(nested[0] - residual, folds[0])


def mixes(
    process: Sequence[Floats],
    trees: Sequence[Floats],
    names: tuple[str, ...],
    swept: Swept | None,
    *,
    beyond: bool = False,
) -> list[tuple[Mix, Floats]]:
    """Mixes of all `WEIGHTS`, none first and without trees as yet (`with_trees`), and their answers (kinds, n).

    ``process``, ``trees``: cross-fitted over each kind of folds, (k, n) each.
    """
    return [
        (
            Mix(None, weight, beyond, names),
            np.stack([read(swept, _blend(*both, weight, beyond)) for both in zip(process, trees, strict=True)]),
        )
        for weight in (0.0, *WEIGHTS)
    ]


def with_trees(mix: Mix, runs: Runs, target: Floats, seed: int = 0) -> Mix:
    """The mix with the trees of all runs, if they count, trained on ``target`` (n,)."""
    if not mix.weight:
        return Mix()
    target = np.clip(target, -LARGEST, LARGEST)
    return replace(mix, trees=fit_trees(inputs(runs, mix.names), target, random_state=seed))


def cross_fitted_mix(
    mix: Mix, runs: Runs, target: Floats, process: Floats, fold: Ints, swept: Swept | None, seed: int
) -> Floats:
    """Cross-fitted answers (n,) of a ``mix``, over folds (n,) by which ``process`` (k, n) was cross-fitted too."""
    if not mix.weight:
        return read(swept, process)
    trees = cross_fitted_trees(runs, target, fold, mix.names, swept, seed)
    return read(swept, _blend(process, trees, mix.weight, mix.beyond))


# Cross-fitting: which runs are left out together, answers by the others, errors, and half-widths of intervals.


FOLDS, MODEL_FOLDS, LEAST_LEFT_OUT = 5, 8, 3
LEAST_WIDTH = 1e-3  # where nothing is off: runs that the physics has to the last digit are no promise of others
COVERAGE = 0.9
_PLANS = {"layouts": CLOCK, "runs": ""}  # and the feature that does not count: repeats of a plan are one of these
_DIGITS = 9  # of an error, beyond which learners are alike, and the first is taken
_LEAST_SPREAD = 1e-9  # of a feature, below which it is the same in all runs
_LEAST_SQUARE = 1e-18  # beside which nothing is sure, nor matters


def model_names(runs: Runs) -> npt.NDArray[np.str_]:
    """Names (n,) of the models that were trained."""
    return np.array([group.split("|")[0] for group in runs.group.tolist()], dtype=str)


def count_distinct(runs: Runs) -> int:
    """The number of ``runs`` of which no two are of one plan at one clock: repeats are no evidence of other plans."""
    return len(runs.distinct()[0])


def units_left_out(runs: Runs) -> tuple[npt.NDArray[np.str_], str]:
    """(The unit of each run (n,), the kind of units): the first of models, groups, layouts, runs with three units."""
    plans = {name: runs.distinct(but)[1].astype(str) for name, but in _PLANS.items()}
    kinds = {"models": model_names(runs), "groups": runs.group, **plans}
    name = next((name for name, keys in kinds.items() if len(np.unique(keys)) >= LEAST_LEFT_OUT), "runs")
    return kinds[name], name


def folds_by_model(runs: Runs, seed: int = 0) -> tuple[Ints, str]:
    """The fold (n,) of each run, whole `units_left_out` together, and what these are.

    Models one by one where they are few: without two of seven, others are predicted clearly worse than without one.
    """
    keys, name = units_left_out(runs)
    unique, of = np.unique(keys, return_inverse=True)
    folds = MODEL_FOLDS if name == "models" else FOLDS
    return (np.random.default_rng(seed).permutation(len(unique)) % folds)[of], name


def folds_by_layout(runs: Runs, seed: int = 0) -> tuple[Ints, int]:
    """(The fold of each run (n,), how many layouts there are), where other runs of its model are known.

    Layouts are left out whole; where there are few, plans: what is known of a plan says little of how far others are
    off.
    """
    layouts, plans = (runs.distinct(but)[1].astype(str) for but in _PLANS.values())
    unique, of = np.unique(layouts if len(np.unique(layouts)) >= FOLDS else plans, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(unique)) % FOLDS)[of], len(unique)


def held_half_width(error: Floats, units: int) -> float:
    """The 90 % half-width on further units, by the ``error`` (n,) of runs that were left out in ``units`` units.

    Runs of one model err alike, so that a quantile over a few models' runs is little evidence of others: it is wider by
    Student's t over the normal quantile, of as many degrees of freedom as there are units (errors are about zero, no
    mean is taken off). On made-up clusters that holds 90 % of models not seen (docs/appendix/surrogate-experiments.md).
    """
    from scipy.special import stdtrit  # here, since every command that loads a surrogate would wait for the import

    few = float(stdtrit(float(units), 0.5 + COVERAGE / 2.0)) / Z_90
    return max(few * float(np.quantile(np.abs(error), COVERAGE, method="inverted_cdf")), LEAST_WIDTH)


def cross_fitted(fold: Ints, answer: Callable[[Ints, Ints], Floats]) -> Floats:
    """Answers (..., n) for every fold from the runs of the others."""
    parts, places = [], []
    for one in steps(np.unique(fold).tolist(), "judging on runs left out"):
        at, rest = np.flatnonzero(fold == one), np.flatnonzero(fold != one)
        parts.append(answer(rest.astype(np.int64), at.astype(np.int64)))
        places.append(at)
    return np.asarray(np.concatenate(parts, axis=-1)[..., np.argsort(np.concatenate(places))])


def median_error(log_ratio: Floats, fold: Ints) -> float:
    """Median of |predicted / measured - 1|, averaged over what was left out at a time by the roots of its runs.

    A model of many runs does not drown the others, nor do seven runs of one decide by what they happen to show:
    nanotron's 469B, which counted as much as the 484 runs of the 1B, chose trees that made all others worse.
    """
    error = np.abs(np.expm1(log_ratio))
    folds, counts = np.unique(fold, return_counts=True)
    return float(np.average([np.median(error[fold == one]) for one in folds], weights=np.sqrt(counts)))


def signal_share(mean: Floats, half_width: Floats) -> Floats:
    """The share (n,) of a process's ``mean`` (n,) that is signal, 0 to 1: mean^2 / (mean^2 + variance).

    An empirical Wiener filter (Ghael, Sayeed and Baraniuk 1997, Improved wavelet denoising via empirical Wiener
    filtering): what is small beside its 90 % ``half_width`` (n,) hardly counts, what stands out does.
    """
    square = np.square(mean)
    return np.asarray(square / np.maximum(square + np.square(half_width / Z_90), _LEAST_SQUARE))


# Power, peak power and temperature as runs teach them: a line in what the physics predicts, and trees on its rest.


LINE_CLOCKS, LEAST_APART = 6, 0.03  # shares of clock and power by which clocks must differ to show what follows them
LEAST_ABOVE, MOST_ABOVE = 5, 0.95  # runs with peaks above their limit that show by how much, and the share of these
REST_SHARE = 0.4  # of static power, which is drawn at rest at the least: 0.42 in air of 0 °C, 0.65 of 22 °C
LEAST_SLOPE = 0.2  # of a layout's power over that of the physics: by how much less it may follow the clock


@dataclass(frozen=True)
class OwnTarget:
    """A quantity that runs were measured of: ``scale`` on what the physics predicts, ``mix`` with trees on its rest.

    ``overshoot``: of peak power, `limit_overshoot`; None: of another quantity, or by a version that knew of none.
    """

    scale: PowerScale
    mix: Mix
    overshoot: float | None = None

    def log_ratio(self, runs: Runs, values: Floats) -> Floats:
        """log(measured / predicted) (n,) of ``runs``, which the physics has at ``values`` (n,)."""
        return self.mix(np.log(self.scale.over(values)), with_predicted(runs, values))

    def at_shares(self, runs: Runs, values: Floats, clocks: Sequence[float]) -> Floats:
        """The measured value of each of ``runs`` at each clock, (clocks, n), as `line` takes its arguments."""
        ratio = self.log_ratio(at_clocks(runs, clocks), values.ravel())
        return np.asarray(values * np.exp(ratio).reshape(values.shape))

    def swept(self, runs: Runs, values: Floats, clocks: Sequence[float]) -> Runs:
        """What trees see of each of ``runs`` at each clock, one after the other; arguments as of `line`."""
        return with_predicted(at_clocks(runs, clocks), values.ravel())

    def curves(self, runs: Runs, values: Floats, clocks: Sequence[float], rest_w: float = 0.0) -> PowerScale:
        """As `line`, through every clock's value, and beside that a line which none of these is below."""
        found = self.at_shares(runs, values, clocks)
        slope = self._line_through(values, found, rest_w).factor
        return PowerScale.along(Curves.rising(values, found, slope), rest_w, self.scale.log_sd)

    def line(self, runs: Runs, values: Floats, clocks: Sequence[float], rest_w: float = 0.0) -> PowerScale:
        """A line from the physics' value to the measured one for each of ``runs`` (n,), over its clocks.

        ``clocks``: shares of the top clock; ``values`` (clocks, n): of the physics there. A line of least relative
        squares, so that what the search is promised of energy at other clocks holds: its bounds are of work that no
        clock saves, and of GPUs that rest for the least time, which is a bound of a longer one too as long as these
        draw something. So the line is nowhere negative from ``rest_w`` on, which no GPU is predicted to draw less than.
        """
        return self._line_through(values, self.at_shares(runs, values, clocks), rest_w)

    def _line_through(self, values: Floats, found: Floats, rest_w: float) -> PowerScale:
        """The `line` from ``values`` to what was ``found`` there, (clocks, n) both."""
        weight = 1.0 / found**2
        mean_of_physics, mean = ((weight * v).sum(axis=0) / weight.sum(axis=0) for v in (values, found))
        spread = (weight * (values - mean_of_physics) ** 2).sum(axis=0)
        level = mean / mean_of_physics
        apart = spread > (LEAST_APART * mean_of_physics) ** 2 * weight.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (weight * (values - mean_of_physics) * (found - mean)).sum(axis=0) / spread
        steepest = level * mean_of_physics / (mean_of_physics - rest_w)  # through nothing at rest
        slope = np.where(apart, np.clip(slope, LEAST_SLOPE * level, steepest), level)
        return PowerScale(slope, self.scale.log_sd, mean - slope * mean_of_physics)


def at_rest_w(source: str) -> float:
    """Power in W that no GPU of a source is predicted to draw less than, 0 where it is not known.

    `REST_SHARE` of its static power, which is that of a warm one; `jointopt.physics.bounds.idle_power_w` says how much
    less a cold one draws.
    """
    gpu = known_gpu(Source.parse(source).gpu)
    return REST_SHARE * gpu.power.static_w if gpu is not None and gpu.power else 0.0


def limit_overshoot(peak_w: Floats | None, limit_w: Floats | None) -> float | None:
    """The share of a power limit that boards hold peaks to, by measured peaks (n,) and the limit of each run (n,).

    That of nearly all peaks above their limit; 1, the limit itself, where fewer than `LEAST_ABOVE` are: peaks
    below teach nothing of what holds them. None where either is unknown.
    """
    if peak_w is None or limit_w is None:
        return None
    above = peak_w[peak_w > limit_w] / limit_w[peak_w > limit_w]
    return round(float(np.quantile(above, MOST_ABOVE)), 4) if len(above) >= LEAST_ABOVE else 1.0


def peak_cut(
    fold: Ints, log_ratio: Floats, values: Floats, limits_w: Floats | None
) -> tuple[float | None, Floats | float]:
    """`limit_overshoot` of the peaks of runs, and log(highest / physics) (n,) at which each is cut by other folds'.

    ``log_ratio``, ``values`` (n,): of the peaks, and what the physics says. None and infinity where limits are unknown.
    """
    if limits_w is None:
        return None, np.inf
    peak_w = np.exp(log_ratio) * values

    def most(fit: Ints, at: Ints) -> Floats:
        return np.log((limit_overshoot(peak_w[fit], limits_w[fit]) or np.inf) * limits_w[at] / values[at])

    return limit_overshoot(peak_w, limits_w), cross_fitted(fold, most)


def at_clock(runs: Runs, share: float) -> Runs:
    """The runs with a share of the top clock as their feature."""
    return replace(runs, features=dict(runs.features) | {CLOCK: np.full(len(runs), share)})


def at_clocks(runs: Runs, shares: Sequence[float]) -> Runs:
    """The runs at each of these shares of the top clock, one share after the other."""
    return joined_runs([at_clock(runs, share) for share in shares])
