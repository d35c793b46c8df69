"""Sentences on what was learned from a cluster's own runs."""

from __future__ import annotations

import math

import numpy as np

from jointopt.surrogate.own_runs import SENSITIVITY, Mix
from jointopt.surrogate.residual_gp import Runs

_NAMED = 2  # features of a plan that are named
_LEAST = 0.003  # of a logarithm, below which a feature is not


def learned_sentence(mix: Mix, log_factor: float, runs: Runs) -> str:
    """By how much the own runs of a cluster move the time of the first of ``runs``, and by which of its features."""
    names, added = mix.contributions(runs)
    total = f"The cluster's own runs: time {_percent(log_factor)} on the physics"
    largest = [i for i in np.argsort(-np.abs(added[0]))[:_NAMED].tolist() if abs(added[0, i]) > _LEAST]
    if not largest:
        return f"{total}."
    values = {name: float(column[0]) for name, column in runs.features.items()}
    because = ", ".join(f"{feature_words(names[i], values.get(names[i]))} {_percent(added[0, i])}" for i in largest)
    return f"{total}; trees: {_percent(float(added[0].sum()))} because {because}."


def feature_words(name: str, value: float | None) -> str:
    """A feature of `shape_columns` or `share_columns` with its value in the words of a plan: log2_tp 3 is tp 8."""
    words = name.removeprefix("log2_").removeprefix("share_").replace("_", " ")
    if value is None or name.startswith(SENSITIVITY):
        return name.replace("_", " ")
    if name.startswith("log2_"):
        return f"{words} {2.0**value:,.6g}"
    return f"{words} {value:.0%}" if name.startswith("share_") else f"{words} {value:g}"


def _percent(log_factor: float) -> str:
    return f"{math.expm1(log_factor):+.1%}"
