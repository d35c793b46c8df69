"""Layouts with no more recomputation than they need: what only costs time and energy never reaches a front.

Recomputing more takes more time and energy at every clock and less memory, so that of layouts that differ in it alone
the first comfortable one, and the tighter ones before it, are all that can be on a front of time and energy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, MODULES, RECOMPUTE_CODES, Bools, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.plans.stages import largest_chunk

COMFORTABLE = 0.9  # probability of fitting from which less memory buys nothing
_OWN = ("recompute", "recompute_modules", "recompute_num_layers")
_SELECTIVE, _FULL = RECOMPUTE_CODES["selective"], RECOMPUTE_CODES["full"]
_QUARTERS = (1, 2, 3)  # of the layers of a model chunk that full recompute may take

Fits = Callable[[Columns], Floats]  # probability that each layout fits in memory, (n,)


def leanest(job: Job, layouts: Columns, fitting: Floats, fits: Fits, least: float) -> tuple[Columns, Floats, Bools]:
    """(layouts and finer steps, their probabilities of fitting, which of them are not needless), (n,) each.

    ``fitting`` is that of ``layouts``, ``least`` the probability below which one is none. Where none is comfortable but
    with everything recomputed, steps in between join them: cheap modules, and full recompute of a quarter, a half,
    three quarters of each chunk. They are what a job that lists none searches, where its framework has them.
    """
    group = _groups(layouts)
    finer = _in_between(job, layouts, fitting, group, least)
    if len(finer[1]):
        steps, owners = finer
        layouts = {name: np.concatenate([layouts[name], steps[name]]) for name in LAYOUT_COLUMNS}
        fitting = np.concatenate([fitting, fits(steps)])
        group = np.concatenate([group, owners])
    return layouts, fitting, _needed(group, _work(job, layouts), fitting)


def _groups(layouts: Columns) -> Ints:
    """A number per layout, (n,), equal for those that differ in recomputation alone: the space has them in a row."""
    new = np.zeros(len(layouts["dp"]), np.bool_)
    for name in LAYOUT_COLUMNS:
        if name not in _OWN:
            new[1:] |= layouts[name][1:] != layouts[name][:-1]
    return np.cumsum(new)


def _needed(group: Ints, work: Floats, fitting: Floats) -> Bools:
    """Which of the layouts come, by their extra work, before or at the first comfortable one of their group."""
    order = np.lexsort((work, group))
    first = np.diff(group[order], prepend=-1) != 0
    comfortable = (fitting[order] >= COMFORTABLE).astype(np.int64)
    before = np.cumsum(comfortable) - comfortable  # comfortable ones up to here, of all groups
    start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    kept = np.zeros(len(order), np.bool_)
    kept[order] = before == before[start]
    return kept


def _work(job: Job, layouts: Columns) -> Floats:
    """Extra forward work as a share of a layer's, (n,): the order in which recomputation grows."""
    share = _module_shares(job)
    modules = sum(
        np.where(layouts["recompute_modules"] & MODULES.bit(name) > 0, part, 0.0) for name, part in share.items()
    )
    usual = (layouts["recompute"] == _SELECTIVE) & (layouts["recompute_modules"] == 0)
    part = np.divide(layouts["recompute_num_layers"], largest_chunk(job.model, layouts))
    full = np.where(layouts["recompute_num_layers"] > 0, part, 1.0)
    some = np.where(usual, max(job.training.framework.selective_share, 0.1), modules)
    return np.asarray(np.where(layouts["recompute"] == _FULL, full, np.where(layouts["recompute"] == 0, 0.0, some)))


def _module_shares(job: Job) -> dict[str, float]:
    """Rough share of a layer's forward work that each module of the model repeats."""
    model = job.model
    shares = {"core_attn": 0.1, "layernorm": 0.01, "moe_act": 0.015, "mla_up_proj": 0.05, "shared_experts": 0.1}
    shares["mlp"] = model.dense_mlp_parameters / (model.dense_mlp_parameters + model.attention_parameters)
    return shares | {"moe": 0.7}


def _in_between(job: Job, layouts: Columns, fitting: Floats, group: Ints, least: float) -> tuple[Columns, Ints]:
    """Steps between none and everything recomputed for groups that need them, and the group of each."""
    plain = np.zeros(group.max(initial=-1) + 1, np.bool_)
    plain[group[(layouts["recompute"] != _FULL) & (fitting >= COMFORTABLE)]] = True
    whole = (layouts["recompute"] == _FULL) & (layouts["recompute_num_layers"] == 0)
    rows = np.flatnonzero(whole & ~plain[group] & (fitting >= least))  # where it may fit at all
    steps = _steps(job, {name: values[rows] for name, values in layouts.items()})
    joined = {name: np.concatenate([step[name] for step, _ in steps]) if steps else values[:0]
              for name, values in layouts.items()}  # fmt: skip
    owners = np.concatenate([group[rows[at]] for _, at in steps]) if steps else rows[:0]
    return joined, owners


def _steps(job: Job, whole: Columns) -> list[tuple[Columns, Ints]]:
    """Per step the layouts that have it, and which of the fully recomputed ones ``whole`` each comes from."""
    found = []
    largest = largest_chunk(job.model, whole)
    if "no_recompute_layers" not in job.training.framework.rules and job.search.recompute_num_layers is None:
        counts = [-(-largest * quarter // 4) for quarter in _QUARTERS]
        for place, count in enumerate(counts):
            new = (count < largest) & (count > (counts[place - 1] if place else 0))
            at = np.flatnonzero(new)
            found.append(({n: v[at] for n, v in whole.items()} | {"recompute_num_layers": count[at]}, at))
    if "no_recompute_modules" not in job.training.framework.rules and job.search.recompute_modules is None:
        everything = np.arange(len(largest))
        for modules in _cheap_modules(job):
            code = np.full(len(largest), sum(map(MODULES.bit, modules)), whole["recompute_modules"].dtype)
            selective = np.full(len(largest), _SELECTIVE, whole["recompute"].dtype)
            found.append((whole | {"recompute": selective, "recompute_modules": code}, everything))
    return found


def _cheap_modules(job: Job) -> list[tuple[str, ...]]:
    """The modules that cost little and drop much; a whole MLP is no better than half of the layers."""
    model = job.model
    if job.search.recompute is not None and "selective" not in job.search.recompute:
        return []
    return [("layernorm", *(["moe_act"] if model.is_moe else []), *(["mla_up_proj"] if model.kv_lora_rank else []))]
