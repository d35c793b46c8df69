"""Sentences on what was learned from a cluster's own runs."""

from __future__ import annotations

import math

import numpy as np

from jointopt.core.schema import Floats
from jointopt.surrogate.clock_response import LearnedResponse
from jointopt.surrogate.own_runs import SENSITIVITY, Mix, OwnRuns
from jointopt.surrogate.residual_gp import Runs

_NAMED = 2  # features of a plan that are named
_LEAST = 0.003  # of a logarithm, below which a feature is not


def learned_sentence(own: OwnRuns, log_factor: float, by_clock: float, runs: Runs, known: Runs) -> str:
    """By how much the own runs of a cluster move the time of the first of ``runs``, and by which of its features.

    ``log_factor``: of its time at the top clock; ``by_clock``: what the learned clock response adds to that at the
    clocks of the plan. ``known``: runs that were learned from.
    """
    total = f"The cluster's own runs: time {_percent(log_factor)} on the physics"
    if own.response is not None:
        total += f" at the top clock{_clock_words(own.response, log_factor, by_clock)}"
    if own.time.trees is None or not own.time.weight:
        return f"{total}."
    return f"{total}; {_trees_words(own.time, runs, known)}."


def _clock_words(learned: LearnedResponse, log_factor: float, by_clock: float) -> str:
    """The learned response, with the factor on time at the clocks of a plan where that is another."""
    shares = learned.response.words
    if abs(by_clock) < 0.5 * _LEAST:
        return f", below which {shares} follow the clock"
    return f" and {_percent(log_factor + by_clock)} at this plan's, as {shares} follow the clock"


def _trees_words(mix: Mix, runs: Runs, known: Runs) -> str:
    """All that trees add to the first of ``runs``, in the mean of ``known`` ones, and why it is more or less here."""
    names, added = mix.contributions(runs.take(np.zeros(1, np.int64)))
    share, usual = float(added.sum()), mix.contributions(known)[1].mean(axis=0)
    words = f"trees: {_percent(share)}; {_percent(float(usual.sum()))} for the runs that they learned from in the mean"
    apart = added[0] - usual
    if not (reasons := _reasons(apart)):
        return words
    values = {name: float(column[0]) for name, column in runs.features.items()}
    like = abs(added[0, -1]) > abs(usual[-1])  # trees count in full within the range of training
    named = [feature_words(name, values.get(name)) for name in names]
    named.append("being like most of them" if like else "being unlike most of them")
    because = ", ".join(f"{named[i]} {_percent(float(apart[i]))}" for i in reasons)
    return f"{words}, here {'more' if apart.sum() > 0.0 else 'less'} because of {because}"


def _reasons(apart: Floats) -> list[int]:
    """Positions of the largest parts of a difference that have its sign; none where it is too small to explain."""
    total = float(apart.sum())
    if abs(total) <= _LEAST:
        return []
    along = np.sign(total) * apart
    return [i for i in np.argsort(-along)[:_NAMED].tolist() if along[i] > _LEAST]


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
