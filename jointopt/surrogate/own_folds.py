"""Parts of a cluster's runs that are left out at a time, and half-widths of intervals that were judged so."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from jointopt.core.schema import Floats, Ints
from jointopt.core.units import Z_90
from jointopt.surrogate.residual_gp import Runs

FOLDS, LEAST_LEFT_OUT = 5, 3
COVERAGE = 0.9


def units_left_out(runs: Runs) -> tuple[npt.NDArray[np.str_], str]:
    """Models of the runs (n,) where there are three or more, else groups, else the runs themselves; and which of these."""
    models = np.array([group.split("|")[0] for group in runs.group.tolist()])
    kinds = {"models": models, "groups": runs.group, "runs": np.arange(len(runs)).astype(str)}
    name = next((name for name, keys in kinds.items() if len(np.unique(keys)) >= LEAST_LEFT_OUT), "runs")
    return kinds[name], name


def folds_by_model(runs: Runs, seed: int = 0) -> tuple[Ints, str]:
    """The fold (n,) of each run, whole `units_left_out` together, and what these are."""
    keys, name = units_left_out(runs)
    unique, of = np.unique(keys, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(unique)) % FOLDS)[of], name


def held_half_width(error: Floats, units: npt.NDArray[np.str_]) -> float:
    """The 90 % half-width that ``error`` (n,) of runs left out with their ``units`` (n,) asks for on further units.

    Runs of one model err alike, so that a quantile over runs of a few models says little of the next: it is wider by
    Student's t over the normal quantile, of as many degrees of freedom as there are units less one. On made-up
    clusters of seven models others were held by 85 % without and 90 % with it (docs/surrogate-experiments.md).
    """
    few = float(stdtrit(len(np.unique(units)) - 1.0, 0.5 + COVERAGE / 2.0)) / Z_90
    return few * float(np.quantile(np.abs(error), COVERAGE, method="inverted_cdf"))
