"""Sentences on what was learned from a cluster's own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from jointopt.core.schema import COLUMNS
from jointopt.physics.describe import CATEGORY
from jointopt.surrogate.clock_response import LearnedResponse
from jointopt.surrogate.own_runs import SENSITIVITY, Mix, OwnRuns, inputs
from jointopt.surrogate.residual_gp import Runs

_NAMED = 3  # groups of features of a plan that are named
_LEAST = 0.003  # of a logarithm, below which one is not
_SHOWN = 0.0005  # of a logarithm: a digit of what is printed
_WHOLE = 0.95  # of what trees predict that counts, below which it is stated


def learned_sentence(own: OwnRuns, log_factor: float, by_clock: float, runs: Runs) -> str:
    """By how much the own runs of a cluster move the time of the first of ``runs``, and by which of its features.

    ``log_factor``: of its time at the top clock; ``by_clock``: what the learned clock response adds to that at the
    clocks of the plan.
    """
    total = f"The cluster's own runs move the physics' time by {_percent(log_factor)}"
    if own.response is not None:
        total += f" at the top clock{_clock_words(own.response, log_factor, by_clock)}"
    if own.time.trees is None or not own.time.weight:
        return f"{total}."
    return f"{total}. Of this, {_trees_words(own.time, runs)}."


def _clock_words(learned: LearnedResponse, log_factor: float, by_clock: float) -> str:
    """The learned response, with the factor on time at the clocks of a plan where that is another."""
    shares = learned.response.words
    if abs(by_clock) < 0.5 * _LEAST:
        return f", below which {shares} follow the clock"
    return f" and {_percent(log_factor + by_clock)} at this plan's, as {shares} follow the clock"


def _trees_words(mix: Mix, runs: Runs) -> str:
    """All that trees add to the first of ``runs``: what they do to the cluster's runs in the mean, and why that here.

    By SHAP values, whose sum it is: by groups of features, the largest named.
    """
    names, added = mix.contributions(one := runs.take(np.zeros(1, np.int64)))
    values = {name: float(column[0]) for name, column in runs.features.items()}
    by_group = dict.fromkeys(map(_group_of, names), 0.0)
    for name, value in zip(names, added[0].tolist(), strict=False):
        by_group[_group_of(name)] += value
    largest = sorted((name for name in by_group if abs(by_group[name]) > _LEAST), key=lambda n: -abs(by_group[n]))
    named, of_all = largest[:_NAMED], float(added[0, -1])
    parts = [f"{_percent(of_all)} common to all of these runs"] * (abs(of_all) > _LEAST)
    parts += [f"{_percent(by_group[name])} for {group_words(name, values)}" for name in named]
    others = float(added.sum()) - of_all * (abs(of_all) > _LEAST) - sum(by_group[name] for name in named)
    parts += [f"{_percent(others)} for the rest"] * (abs(others) >= _SHOWN and bool(parts))
    part = 1.0 if mix.trees is None else float(mix.trees.range.gate(inputs(one, mix.names))[0])
    beyond = f" (counted at {part:.0%}, as the plan is beyond these runs)" * (part < _WHOLE)
    return f"trees give {_percent(float(added.sum()))}{beyond}{': ' * bool(parts)}{', '.join(parts)}"


# What a feature, or the sensitivity to a constant, describes, in a word of a plan.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "tp": ("log2_tp", "log2_tp_nodes", "log2_width", "sequence_parallel", "share_tp_comm", "intra_node", "tp_overlap"),
    "pp": ("log2_pp", "log2_vpp", "log2_stage_layers", "share_bubble", "share_pp_comm"),
    "cp": ("log2_cp", "share_cp_comm"),
    "ep": ("log2_ep", "share_ep_comm", "moe"),
    "dp": ("log2_dp", "log2_dp_nodes", "zero_stage", "share_dp_comm", "share_zero_comm", "dp_overlap"),
    "micro_batch_size": ("log2_micro_batch_size", "log2_micro_batches", "log2_rank_tokens", "micro_batch"),
    "hidden": ("log2_hidden", "log2_layers", "log2_head_dim", "attention", "fused_norm", "dtype", "loss"),
    "seq_length": ("log2_seq_length",),
    "gpus": ("log2_gpus", "log2_nodes", "log2_peak", "log2_memory", "framework", "inter_node", "iteration"),
    "recompute": ("recompute",),
    "compute": ("share_compute", "occupancy", "efficiency", "compute", "elementwise"),
    "host": ("share_host", "host"),
    "optimizer": ("share_optimizer",),
    "clock": ("clock",),
}
_GROUP = {feature: name for name, features in _GROUPS.items() for feature in features}


def _group_of(feature: str) -> str:
    """The group of `_GROUPS` of a feature; what is in none is a group of its own."""
    name = feature.removeprefix(SENSITIVITY).split(CATEGORY)[0]
    return _GROUP.get(name, name)


def group_words(group: str, values: Mapping[str, float]) -> str:
    """A group of features in the words of a plan, by the ``values`` of its features: ``tp 8 at hidden 4,096``."""
    degree = {name.removeprefix("log2_"): f"{2.0**v:,.6g}" for name, v in values.items() if name.startswith("log2_")}
    share = {name.removeprefix("share_"): f"{v:.0%}" for name, v in values.items() if name.startswith("share_")}
    wanted = {
        "tp": [("tp", degree), (" at hidden", degree)], "pp": [("pp", degree), (" with vpp", degree)],
        "cp": [("cp", degree)], "ep": [("ep", degree)], "dp": [("dp", degree)],
        "micro_batch_size": [("micro_batch_size", degree), (" at seq_length", degree)],
        "hidden": [("hidden", degree), (" and layers", degree)], "seq_length": [("seq_length", degree)],
        "gpus": [("gpus", degree)], "compute": [("compute", share)], "host": [("host", share)],
        "optimizer": [("optimizer", share)],
    }.get(group, [])  # fmt: skip
    words = [f"{word} {known[key]}" for word, known in wanted if (key := word.split()[-1]) in known]
    endings = {"compute": " of the time", "host": " of the time", "optimizer": " of the time"}
    if words:
        return "".join(words) + endings.get(group, "")
    if group == "recompute" and group in values:
        return f"recompute {COLUMNS[group].outside(round(values[group]))}"
    return group.replace("_", " ")


def _percent(log_factor: float) -> str:
    return f"{math.expm1(log_factor):+.1%}"
