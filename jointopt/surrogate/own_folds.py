"""Parts of a cluster's runs that are left out at a time, and half-widths of intervals that were judged so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from jointopt.core.progress import steps
from jointopt.core.schema import Floats, Ints
from jointopt.core.units import Z_90
from jointopt.surrogate.clock_response import CLOCK
from jointopt.surrogate.residual_gp import Runs

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
    mean is taken off). On made-up clusters that holds 90 % of models not seen (docs/appendix/surrogate-experiments.md).
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
