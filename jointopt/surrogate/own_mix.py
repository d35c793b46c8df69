"""Trees beside a process (or a line in the physics), weighed by what both are worth on runs left out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.physics.sensitivities import CONSTANTS
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.trees import Trees

if TYPE_CHECKING:
    from jointopt.surrogate.residual_trees import ResidualBooster
from collections.abc import Callable

import numpy.typing as npt

from jointopt.core.progress import steps
from jointopt.core.units import Z_90
from jointopt.surrogate.clock_response import CLOCK

WEIGHTS = (0.25, 0.5, 0.75, 1.0)  # of the trees
LEAST_GAIN = 0.03  # of the held-out error, below which a part stays out
LARGEST = 1.0  # residual that trees are shown: beyond it lie runs that went wrong
SENSITIVITY = "sensitivity to "
MOST_IMPORTANT, EXPLAINED = 10, 500  # features in a card, and runs that they are judged on
# Best of depths 4-6, of all to a half of the rows and all to a seventh of the columns, on tables of 300 and 1,000 runs
# whose truth is known (studies/learning): trees that do not all see the same follow steps as well, and noise less.
_DEPTH, _TREES, _ROWS, _COLUMNS = 4, 300, 0.7, 0.3


@dataclass(frozen=True)
class Mix:
    """Trees beside a process: ``weight`` of the answer is theirs, (1 - weight) the process's.

    ``beyond``: they were trained on what the process leaves, and add to it; else on the residual of the physics.
    ``names``: their features; all sensitivities follow these.
    """

    trees: Trees | None = None
    weight: float = 0.0
    beyond: bool = False
    names: tuple[str, ...] = ()

    def __call__(self, process: Floats, runs: Runs) -> Floats:
        """log(measured / physics) (n,) out of that of the process and the runs themselves."""
        if self.trees is None or not self.weight or not len(runs):
            return process
        return _blend(process, self.trees.predict(inputs(runs, self.names)), self.weight, self.beyond)

    def contributions(self, runs: Runs) -> tuple[tuple[str, ...], Floats]:
        """Names of features (k,), and what each adds to the logarithm by the trees, at last what they add to all runs.

        Of (n, k + 1), whose sum is all that the trees add; the last falls where a run is unlike those learned from.
        """
        names = (*self.names, *(f"{SENSITIVITY}{name}" for name in CONSTANTS[: runs.sensitivity.shape[1]]))
        if self.trees is None or not self.weight:
            return names, np.zeros((len(runs), len(names) + 1))
        return names, self.weight * self.trees.contributions(inputs(runs, self.names))

    def importance(self, runs: Runs) -> dict[str, float]:
        """Mean size of what features add to the logarithm by the trees: of those that add most, the largest first."""
        names, added = self.contributions(runs.take(np.arange(min(len(runs), EXPLAINED), dtype=np.int64)))
        size = np.abs(added[:, :-1]).mean(axis=0)
        return {names[i]: round(float(size[i]), 4) for i in np.argsort(-size)[:MOST_IMPORTANT] if size[i] > 0.0}


def inputs(runs: Runs, names: Sequence[str]) -> Floats:
    """Features of trees (n, k): those of ``names``, then every sensitivity."""
    return np.hstack([runs.matrix(names), runs.sensitivity])


def _blend(process: Floats, trees: Floats, weight: float, beyond: bool) -> Floats:
    return process + weight * (trees if beyond else trees - process)


@dataclass(frozen=True)
class Blend:
    """How far trees count beside a process, cross-fitted answers (n,) of both together, and the error of these."""

    beyond: bool
    weight: float
    answer: Floats
    error: float


@dataclass(frozen=True)
class CrossedTrees:
    """Trees of runs with that ``residual`` (n,): cross-fitted answers (n,) on it, and on what ``near`` (n,) leaves.

    ``near``: answers of a process with runs of the same models known, as where trees add to it.
    """

    runs: Runs
    residual: Floats
    near: Floats
    fold: Ints
    names: tuple[str, ...]
    seed: int = 0

    @functools.cached_property
    def answers(self) -> tuple[Floats, Floats]:
        """On the residual, and on what is left."""
        columns = inputs(self.runs, self.names)
        beside, beyond = (
            _crossed_trees(columns, _target(self.residual, self.near, of), self.fold, self.names, self.seed)
            for of in (False, True)
        )
        return beside, beyond

    def best(self, process: Floats, most: Floats | float = np.inf) -> Blend:
        """The best `Blend` with cross-fitted answers of a process (n,), which end at ``most``."""
        answer = np.minimum(process, most)
        best = Blend(False, 0.0, answer, median_error(answer - self.residual, self.fold))
        least = (1.0 - LEAST_GAIN) * best.error
        for beyond, trees in zip((False, True), self.answers, strict=True):
            for weight in WEIGHTS:
                mixed = np.minimum(_blend(process, trees, weight, beyond), most)
                if (error := median_error(mixed - self.residual, self.fold)) < least:
                    best, least = Blend(beyond, weight, mixed, error), error
        return best

    def mix(self, blend: Blend) -> Mix:
        """The trees of all runs as far as they count."""
        if not blend.weight:
            return Mix()
        target = _target(self.residual, self.near, blend.beyond)
        trees = Trees.of(booster(inputs(self.runs, self.names), target, self.names, self.seed))
        return Mix(trees, blend.weight, blend.beyond, self.names)


def learn_mix(
    runs: Runs, residual: Floats, process: Floats, near: Floats, fold: Ints, names: tuple[str, ...], seed: int = 0,
    most: Floats | float = np.inf,
) -> tuple[Mix, Floats]:  # fmt: skip
    """Trees beside the cross-fitted answers of a process (n,), and the cross-fitted answers (n,) of both together.

    As `CrossedTrees.best`.
    """
    trees = CrossedTrees(runs, residual, near, fold, names, seed)
    blend = trees.best(process, most)
    return trees.mix(blend), blend.answer


def mixed_again(mix: Mix, runs: Runs, residual: Floats, process: Floats, fold: Ints, seed: int) -> Floats:
    """Cross-fitted answers (n,) of a ``mix`` that is settled, over other folds, of which ``process`` has its own."""
    if not mix.weight:
        return process
    target = _target(residual, process, mix.beyond)
    trees = _crossed_trees(inputs(runs, mix.names), target, fold, mix.names, seed)
    return _blend(process, trees, mix.weight, mix.beyond)


def _target(residual: Floats, near: Floats, beyond: bool) -> Floats:
    return np.clip(residual - near if beyond else residual, -LARGEST, LARGEST)


def _crossed_trees(columns: Floats, target: Floats, fold: Ints, names: Sequence[str], seed: int) -> Floats:
    return crossed(fold, lambda fit, at: booster(columns[fit], target[fit], names, seed).predict(columns[at]))


def booster(columns: Floats, target: Floats, names: Sequence[str], seed: int = 0) -> ResidualBooster:
    """Trees fitted to ``target`` (n,) by ``columns`` (n, k), of which the first are ``names``."""
    from jointopt.physics.sensitivities import CATEGORY
    from jointopt.surrogate.residual_trees import ResidualBooster

    categories = [i for i, name in enumerate(names) if CATEGORY in name]
    return ResidualBooster(
        max_depth=_DEPTH, n_estimators=_TREES, learning_rate=0.05, reg_lambda=1.0, min_child_weight=3.0,
        random_state=seed, categories=categories, subsample=_ROWS, colsample=_COLUMNS,
    ).fit(columns, target)  # fmt: skip


# Parts of a cluster's runs that are left out at a time, and half-widths of intervals that were judged so.


FOLDS, LEAST_LEFT_OUT = 5, 3
LEAST_WIDTH = 1e-3  # where nothing is off: runs that the physics has to the last digit are no promise of others
COVERAGE = 0.9
_LEAST_SQUARE = 1e-18  # beside which nothing is sure, nor matters


def model_names(runs: Runs) -> npt.NDArray[np.str_]:
    """Names (n,) of the models that were trained."""
    return np.array([group.split("|")[0] for group in runs.group.tolist()], dtype=str)


def count_distinct(runs: Runs) -> int:
    """The number of ``runs`` of which no two are of one plan at one clock: repeats are no evidence of other plans."""
    return len(runs.distinct()[0])


def units_left_out(runs: Runs) -> tuple[npt.NDArray[np.str_], str]:
    """Models (n,) of the runs where there are three or more, else groups, layouts, or plans; and which."""
    kinds = {"models": model_names(runs), "groups": runs.group, **_plans(runs)}
    name = next((name for name, keys in kinds.items() if len(np.unique(keys)) >= LEAST_LEFT_OUT), "runs")
    return kinds[name], name


def _plans(runs: Runs) -> dict[str, npt.NDArray[np.str_]]:
    """Layouts (n,) of the runs, and layouts at their clocks: repeats of a plan are one of these."""
    return {name: runs.distinct(but)[1].astype(str) for name, but in (("layouts", CLOCK), ("runs", ""))}


def folds_by_model(runs: Runs, seed: int = 0) -> tuple[Ints, str]:
    """The fold (n,) of each run, whole `units_left_out` together, and what these are."""
    keys, name = units_left_out(runs)
    unique, of = np.unique(keys, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(unique)) % FOLDS)[of], name


def folds_by_layout(runs: Runs, seed: int = 0) -> tuple[Ints, int]:
    """The fold (n,) of each run where other runs of its model are known, and how many layouts there are.

    Whole layouts together, of few layouts whole plans: what is known of a plan says little of how far others are off.
    """
    layouts, plans = _plans(runs).values()
    unique, of = np.unique(layouts if len(np.unique(layouts)) >= FOLDS else plans, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(unique)) % FOLDS)[of], len(unique)


def held_half_width(error: Floats, units: int) -> float:
    """The 90 % half-width that ``error`` (n,) of runs, left out in so many ``units``, needs on further units.

    Runs of one model err alike, so that a quantile over a few models' runs is little evidence of others: it is wider by
    Student's t over the normal quantile, of as many degrees of freedom as there are units (errors are about zero, no
    mean is taken off). On made-up clusters that holds 90 % of models not seen (docs/surrogate-experiments.md).
    """
    from scipy.special import stdtrit  # here, since every command that loads a surrogate would wait for the import

    few = float(stdtrit(float(units), 0.5 + COVERAGE / 2.0)) / Z_90
    return max(few * float(np.quantile(np.abs(error), COVERAGE, method="inverted_cdf")), LEAST_WIDTH)


def crossed(fold: Ints, answer: Callable[[Ints, Ints], Floats]) -> Floats:
    """Answers (n,) for every fold from the runs of the others."""
    out = np.empty(len(fold))
    for one in steps(np.unique(fold).tolist(), "judging on runs left out"):
        at, rest = np.flatnonzero(fold == one), np.flatnonzero(fold != one)
        out[at] = answer(rest.astype(np.int64), at.astype(np.int64))
    return out


def median_error(log_ratio: Floats, fold: Ints) -> float:
    """Median of |predicted / measured - 1|, averaged over what was left out at a time by the roots of its runs.

    A model of many runs does not drown the others, nor do seven runs of one decide by what they happen to show:
    nanotron's 469B, which counted as much as the 484 runs of the 1B, chose trees that made all others worse.
    """
    error = np.abs(np.expm1(log_ratio))
    folds, counts = np.unique(fold, return_counts=True)
    return float(np.average([np.median(error[fold == one]) for one in folds], weights=np.sqrt(counts)))


def sure_part(mean: Floats, half_width: Floats) -> Floats:
    """The part (n,) of a process's ``mean`` (n,) that is signal: mean^2 over mean^2 and variance, 0 to 1.

    An empirical Wiener filter (Ghael, Sayeed and Baraniuk 1997, Improved wavelet denoising via empirical Wiener
    filtering): what is small beside its 90 % ``half_width`` (n,) hardly counts, what stands out does.
    """
    square = np.square(mean)
    return np.asarray(square / np.maximum(square + np.square(half_width / Z_90), _LEAST_SQUARE))
