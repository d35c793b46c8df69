"""Sentences on what was learned from a cluster's own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import COLUMNS, Columns, Floats
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel
from jointopt.physics.sensitivities import CATEGORY
from jointopt.surrogate.clock_response import CLOCK, LearnedResponse
from jointopt.surrogate.features import heat_of, runs_of, watts_at
from jointopt.surrogate.heat_names import HEAT_NAMES, PEAK
from jointopt.surrogate.kernel import Runs, together
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import SENSITIVITY, Mix, inputs
from jointopt.surrogate.own_targets import at_clock
from jointopt.surrogate.power import PowerScale

if TYPE_CHECKING:
    from jointopt.surrogate.correction import Correction

_NAMED = 3  # groups of features of a plan that are named
_LEAST = 0.003  # of a logarithm, below which one is not
_SHOWN = 0.0005  # of a logarithm: a digit of what is printed
_WHOLE = 0.95  # of what trees predict that counts, below which it is stated


def learned_sentences(
    correction: Correction, job: Job, layout: Columns, stage_clock_mhz: Floats | None
) -> tuple[str, ...]:
    """A sentence on each quantity that a cluster's own runs move, of one ``layout`` of a job at clocks (1, S) in MHz.

    None: at the top clock. ``correction``: by many runs, as `OwnRuns` of them says.
    """
    own, first, moved = correction.own, np.zeros(1, np.int64), correction.moved(job)
    if own is None:
        return ()
    physics, source = CostModel(moved, layout), correction.source
    top = uniform_stage_clocks(layout["pp"], physics.top_mhz)
    stage_clock_mhz = top if stage_clock_mhz is None else stage_clock_mhz
    runs = runs_of(physics, top, first, source)
    by_clock = correction.log_clock_response(job, layout, stage_clock_mhz)
    sentence = learned_sentence(own, float(correction.log_factor(runs)[0]), by_clock, runs)
    if not own.targets:
        return (sentence,)
    measured = CostModel(correction.as_measured(moved), layout)
    one = runs_of(measured, top, first, source)
    values = _targets_of(measured, own, stage_clock_mhz)
    return (sentence, *target_sentences(own, one, _lines(correction, own, measured, one), values))


def _targets_of(physics: CostModel, own: OwnRuns, stage_clock_mhz: Floats) -> Columns:
    """Each of `OwnRuns.targets` of the first layout as the physics has it, (1,)."""
    first = np.zeros(1, np.int64)
    heat = heat_of(physics, first, stage_clock_mhz) if own.heat else {}
    return heat | {"power": physics.evaluate(first, stage_clock_mhz)["avg_power_w"]}


def _lines(correction: Correction, own: OwnRuns, physics: CostModel, one: Runs) -> dict[str, PowerScale]:
    """The line in each of the physics' `OwnRuns.targets` by which plans of its first layout, ``one``, are predicted."""
    clocks = [uniform_stage_clocks(physics.layouts["pp"], share * physics.top_mhz) for share in own.power_clocks]
    values = [_targets_of(physics, own, mhz) for mhz in clocks]
    lines = {
        name: target.line(one, np.stack([each[name] for each in values]), own.power_clocks)
        for name, target in own.targets.items()
    }
    if "power" in lines and (shares := correction.power_clocks) is not None:
        lines["power"] = correction.power(one, watts_at(physics, np.zeros(1, np.int64), shares))
    return lines


def target_sentences(own: OwnRuns, one: Runs, lines: Mapping[str, PowerScale], values: Columns) -> tuple[str, ...]:
    """By how much the own runs of a cluster move power, its peak and temperature of a plan, and why: a sentence each.

    ``one`` (1,): its layout. ``lines``: by which each is predicted from that of the physics, which has ``values`` (1,)
    at the plan's clocks. Reasons of the trees are means over the clocks that lines are learned at.
    """
    found, swept = [], together([at_clock(one, share) for share in own.power_clocks])
    for name, target in own.targets.items():
        log_ratio = float(np.log(lines[name].over(values[name]))[0])
        share = {"power": 1.0, PEAK: target.overshoot}.get(name)  # of the limit, that is not exceeded
        most = np.inf if share is None else math.log(share * own.measured_limit_w / float(values[name][0]))
        total = f"They move its {HEAT_NAMES.get(name, name)} by {_percent(min(log_ratio, most))} at this plan's clocks"
        held = ", where the power limit ends it" * (log_ratio > most - _SHOWN)
        counts = target.mix.trees is not None and target.mix.weight
        found.append(f"{total}{held}.{f' Of this, {_trees_words(target.mix, swept)}.' if counts else ''}")
    return tuple(found)


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
    return f"{total}. Of this, {_trees_words(own.time, runs.take(np.zeros(1, np.int64)))}."


def _clock_words(learned: LearnedResponse, log_factor: float, by_clock: float) -> str:
    """The learned response, with the factor on time at the clocks of a plan where that is another."""
    shares = learned.response.words
    if abs(by_clock) < 0.5 * _LEAST:
        return f", below which {shares} follow the clock"
    return f" and {_percent(log_factor + by_clock)} at this plan's, as {shares} follow the clock"


def _trees_words(mix: Mix, runs: Runs) -> str:
    """All that trees add to a plan: what they do to the cluster's runs in the mean, and why that here.

    By SHAP values, whose sum it is: by groups of features, the largest named. ``runs``: the plan, at one clock or more.
    """
    names, of_each = mix.contributions(runs)
    added = of_each.mean(axis=0, keepdims=True)
    several = len(runs) > 1  # whose clock is none
    values = {name: float(column[0]) for name, column in runs.features.items() if not (several and name == CLOCK)}
    by_group = dict.fromkeys(map(_group_of, names), 0.0)
    for name, value in zip(names, added[0].tolist(), strict=False):
        by_group[_group_of(name)] += value
    largest = sorted((name for name in by_group if abs(by_group[name]) > _LEAST), key=lambda n: -abs(by_group[n]))
    named, of_all = largest[:_NAMED], float(added[0, -1])
    parts = [f"{_percent(of_all)} common to all of these runs"] * (abs(of_all) > _LEAST)
    parts += [f"{_percent(by_group[name])} for {group_words(name, values)}" for name in named]
    others = float(added.sum()) - of_all * (abs(of_all) > _LEAST) - sum(by_group[name] for name in named)
    parts += [f"{_percent(others)} for the rest"] * (abs(others) >= _SHOWN and bool(parts))
    part = 1.0 if mix.trees is None else float(mix.trees.range.gate(inputs(runs, mix.names)).mean())
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
    shares = {name.removeprefix("share_"): v for name, v in values.items() if name.startswith(("share_", CLOCK))}
    share = {name: f"{v:.0%}" for name, v in shares.items()}
    wanted = {
        "tp": [("tp", degree), (" at hidden", degree)], "pp": [("pp", degree), (" with vpp", degree)],
        "cp": [("cp", degree)], "ep": [("ep", degree)], "dp": [("dp", degree)],
        "micro_batch_size": [("micro_batch_size", degree), (" at seq_length", degree)],
        "hidden": [("hidden", degree), (" and layers", degree)], "seq_length": [("seq_length", degree)],
        "gpus": [("gpus", degree)], "compute": [("compute", share)], "host": [("host", share)],
        "optimizer": [("optimizer", share)], "clock": [("clock", share)],
    }.get(group, [])  # fmt: skip
    words = [f"{word} {known[key]}" for word, known in wanted if (key := word.split()[-1]) in known]
    endings = dict.fromkeys(("compute", "host", "optimizer"), " of the time") | {"clock": " of the top"}
    if words:
        return "".join(words) + endings.get(group, "")
    if group == "recompute" and group in values:
        return f"recompute {COLUMNS[group].outside(round(values[group]))}"
    return group.replace("_", " ")


def _percent(log_factor: float) -> str:
    return f"{math.expm1(log_factor):+z.1%}"
