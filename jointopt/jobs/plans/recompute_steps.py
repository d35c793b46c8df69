"""How much recomputation layouts need to fit in memory: more than that costs time and energy and buys nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, MODULES, RECOMPUTE_CODES, Bools, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.plans.stages import largest_chunk

COMFORTABLE = 0.9  # probability of fitting from which less memory buys nothing
_RECOMPUTE = ("recompute", "recompute_modules", "recompute_num_layers")
_SELECTIVE, _FULL = RECOMPUTE_CODES["selective"], RECOMPUTE_CODES["full"]
_QUARTERS = (1, 2, 3)  # of the layers of a model chunk that full recompute may take

Fits = Callable[[Columns], Floats]  # probability that each layout fits in memory, (n,)


def add_recompute_steps(
    job: Job, layouts: Columns, fitting: Floats, fits: Fits, least: float
) -> tuple[Columns, Floats, Bools]:
    """(``layouts`` and finer steps behind them, their probabilities of fitting, whether each is needed), (n,) each.

    Layouts that differ in recomputation alone are a group. Where no layout of a group fits comfortably without full
    recompute, steps between none and full join it, if the job lists none and its framework has them: cheap modules, and
    full recompute of a quarter, a half and three quarters of each model chunk. A layout is needed if no other of its
    group fits comfortably with less extra work.

    ``fitting``: probabilities of ``layouts``, by ``fits``; one below ``least`` is out of the question.
    """
    # the number of each layout's group: the space has those of one group in a row
    own = [values for name, values in layouts.items() if name in LAYOUT_COLUMNS and name not in _RECOMPUTE]
    group = np.cumsum(np.any([np.diff(values, prepend=values[:1]) != 0 for values in own], axis=0))
    eased = np.zeros(group.max(initial=-1) + 1, np.bool_)  # groups with a comfortable layout short of full recompute
    eased[group[(layouts["recompute"] != _FULL) & (fitting >= COMFORTABLE)]] = True
    whole = (layouts["recompute"] == _FULL) & (layouts["recompute_num_layers"] == 0)
    rows = np.flatnonzero(whole & ~eased[group] & (fitting >= least))
    for step, at in _steps(job, {name: values[rows] for name, values in layouts.items()}):
        layouts = {name: np.concatenate([values, step[name]]) for name, values in layouts.items()}
        group = np.concatenate([group, group[rows[at]]])
    steps = {name: values[len(fitting) :] for name, values in layouts.items()}
    if len(steps["dp"]):
        fitting = np.concatenate([fitting, fits(steps)])
    return layouts, fitting, _needed(group, _extra_work(job, layouts), fitting)


def _needed(group: Ints, work: Floats, fitting: Floats) -> Bools:
    """Whether each layout comes, by its extra work, not after the first comfortable one of its group, (n,)."""
    order = np.lexsort((work, group))
    first = np.diff(group[order], prepend=-1) != 0
    comfortable = (fitting[order] >= COMFORTABLE).astype(np.int64)
    before = np.cumsum(comfortable) - comfortable  # comfortable ones up to here, of all groups
    start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    kept = np.zeros(len(order), np.bool_)
    kept[order] = before == before[start]
    return kept


def _extra_work(job: Job, layouts: Columns) -> Floats:
    """Forward work done twice, as a rough share of all, (n,): its order is that in which recomputation grows."""
    model = job.model
    mlp = model.dense_mlp_parameters / (model.dense_mlp_parameters + model.attention_parameters)
    shares = {  # rough, of each module that is repeated
        "core_attn": 0.1, "layernorm": 0.01, "moe_act": 0.015, "mla_up_proj": 0.05, "shared_experts": 0.1, "mlp": mlp,
        "moe": 0.7,
    }  # fmt: skip
    modules = sum(
        np.where(layouts["recompute_modules"] & MODULES.bit(name) > 0, part, 0.0) for name, part in shares.items()
    )
    usual = (layouts["recompute"] == _SELECTIVE) & (layouts["recompute_modules"] == 0)
    part = np.divide(layouts["recompute_num_layers"], largest_chunk(job.model, layouts))
    full = np.where(layouts["recompute_num_layers"] > 0, part, 1.0)
    some = np.where(usual, max(job.training.framework.selective_share, 0.1), modules)
    return np.asarray(np.where(layouts["recompute"] == _FULL, full, np.where(layouts["recompute"] == 0, 0.0, some)))


def _steps(job: Job, whole: Columns) -> list[tuple[Columns, Ints]]:
    """For each step: the layouts with it, and the row of ``whole``, layouts with full recompute, each was made from."""
    found, largest = [], largest_chunk(job.model, whole)
    rules, searched, model = job.training.framework.rules, job.search, job.model
    if "no_recompute_layers" not in rules and searched.recompute_num_layers is None:
        before = np.zeros_like(largest)
        for quarter in _QUARTERS:
            count = -(-largest * quarter // 4)
            at = np.flatnonzero((count < largest) & (count > before))
            found.append(({n: v[at] for n, v in whole.items()} | {"recompute_num_layers": count[at]}, at))
            before = count
    selective = searched.recompute is None or "selective" in searched.recompute
    if "no_recompute_modules" not in rules and searched.recompute_modules is None and selective:
        # modules that cost little and drop much; a whole MLP is no better than half of the layers
        cheap = ["layernorm", *["moe_act"] * model.is_moe, *["mla_up_proj"] * bool(model.kv_lora_rank)]
        code = np.full(len(largest), sum(map(MODULES.bit, cheap)), whole["recompute_modules"].dtype)
        kind = np.full(len(largest), _SELECTIVE, whole["recompute"].dtype)
        found.append((whole | {"recompute": kind, "recompute_modules": code}, np.arange(len(largest))))
    return found
