"""The one seam between a search and the world: feasible layouts, a clock grid, functions that answer.

A search does not know whether physics, a surrogate or a cluster answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, MODULES, POWER_LIMIT, RECOMPUTE_CODES, Bools, Columns, Floats, Ints
from jointopt.jobs.clocks import without_limits
from jointopt.jobs.job import Job
from jointopt.jobs.plans.stages import largest_chunk
from jointopt.search.pareto import OBJECTIVES, objectives

Evaluate = Callable[[Ints, Floats], Columns]
OfPlans = Callable[[Ints, Floats], Floats]
LowerBound = Callable[[Ints], tuple[Floats, Floats]]
LeastViolation = Callable[[Ints, Floats, Floats, Floats], Floats]
StageClocks = Callable[[Ints, Ints, Floats], Floats]
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Problem:
    """The space of a search. A plan is a layout and one clock per pipeline stage.

    ``layouts``: equal-length arrays named as in `jointopt.core.schema.LAYOUT_COLUMNS`, feasible layouts only. Under
    power limits a layout is there once per limit, in the column `POWER_LIMIT`.
    ``clocks_mhz``: ascending grid.
    ``evaluate(layout_index (n,), stage_clock_mhz (n, S))``: columns (n,) with at least ``iteration_time_s``,
    ``energy_j`` and ``violation`` (<= 0 is feasible, else a distance); S is at least the largest pp of these layouts,
    NaN beyond a layout's pp, or 1 for one clock on all stages.
    ``lower_bound(layout_index)``: time and energy that no clocks of that layout go below.
    ``quick_bound``: the same, lower and for far less. None = no faster than ``lower_bound``.
    ``stage_clocks(layout_index, clock_index, slack)``: clocks (n, S), likewise, from the bottleneck stage's clock and
    the share of slack to use (0: one clock everywhere; 1: other stages as slow as they can be without becoming the
    bottleneck); more slack never raises a clock. None = one clock for all stages.
    ``energy_slope_w``: promises of any stage's clock that a lower one is never faster, and that the work, ``energy_j -
    energy_slope_w * iteration_time_s``, never falls as it rises. True of the static power of all GPUs, or more, as long
    as work costs no less energy at a higher clock. Of every layout (L,), or one of all; None = not promised.
    ``least_time_s``, ``most_time_s`` and ``work_j``, arguments as ``evaluate``: times that the plans' is not below and
    not above, and their work, for less than to evaluate them. None = no faster.
    ``goals``: columns of ``evaluate`` to minimise; what is promised and bounded is of the first two.
    ``third_goal``: values (L,) of the third of three goals where a layout alone decides it, such as memory. None = it
    does not.
    ``least_violation(layout_index, time_s, energy_j, power_w)``: what the violation of plans of those layouts is not
    below where time, energy and average power are not below these. None = unknown.
    ``least_power_w``: average power that plans are not below whose clocks are not below these. None = of no interest.
    """

    layouts: Columns
    clocks_mhz: Floats
    evaluate: Evaluate
    lower_bound: LowerBound | None = None
    stage_clocks: StageClocks | None = None
    energy_slope_w: Floats | float | None = None
    quick_bound: LowerBound | None = None
    least_time_s: OfPlans | None = None
    most_time_s: OfPlans | None = None
    work_j: OfPlans | None = None
    least_violation: LeastViolation | None = None
    least_power_w: OfPlans | None = None
    goals: tuple[str, ...] = OBJECTIVES
    third_goal: Floats | None = None

    @property
    def num_layouts(self) -> int:
        """Number of layouts, each as often as it has power limits."""
        return len(self.layouts["pp"])

    @functools.cached_property
    def num_distinct(self) -> int:
        """Number of layouts, each once; the first so many of `layouts` are these, under their highest power limit."""
        return int(without_limits(self.layouts)[1].max(initial=-1)) + 1

    @property
    def num_clocks(self) -> int:
        """Number of clocks of the grid."""
        return len(self.clocks_mhz)

    @property
    def is_countable(self) -> bool:
        """Whether the exact front of one clock, and of slack where stages may use it, is found without trials."""
        return self.stage_clocks is None or self.has_slope

    @property
    def max_pp(self) -> int:
        """Deepest pipeline of any layout."""
        return int(self.layouts["pp"].max()) if self.num_layouts else 1

    @property
    def has_levels(self) -> bool:
        """Whether the exact front of three goals is found level by level of the third, which the layout decides."""
        return self.third_goal is not None and self.has_slope and self.lower_bound is not None

    def under_all_limits(self, layout: int) -> Ints:
        """The rows of a layout under each of its power limits; itself alone where plans have none."""
        same = [values == values[layout] for name, values in self.layouts.items() if name != POWER_LIMIT]
        return np.flatnonzero(np.logical_and.reduce(same)).astype(np.int64)

    def of_layouts(self, rows: Ints) -> Problem:
        """The problem of some of the layouts, (n,); their ``layout_index`` is the position in ``rows``."""

        def of(function: Callable[..., Any] | None) -> Any:
            return None if function is None else lambda index, *more: function(rows[index], *more)

        return replace(
            self, layouts={name: values[rows] for name, values in self.layouts.items()}, evaluate=of(self.evaluate),
            lower_bound=of(self.lower_bound), stage_clocks=of(self.stage_clocks), quick_bound=of(self.quick_bound),
            least_time_s=of(self.least_time_s), work_j=of(self.work_j), least_violation=of(self.least_violation),
            most_time_s=of(self.most_time_s), least_power_w=of(self.least_power_w),
            energy_slope_w=None if not self.has_slope else self.slope_w(rows),
            third_goal=None if self.third_goal is None else self.third_goal[rows],
        )  # fmt: skip

    def unconstrained(self) -> Problem:
        """The problem of the same layouts without constraints: every plan is feasible."""
        return replace(
            self, least_violation=None, least_power_w=None,
            evaluate=lambda index, clocks: self.evaluate(index, clocks) | {"violation": np.zeros(len(index))},
        )  # fmt: skip

    @property
    def has_slope(self) -> bool:
        """Whether `energy_slope_w` is promised."""
        return self.energy_slope_w is not None

    def slope_w(self, layout_index: Ints) -> Floats:
        """`energy_slope_w` of plans of these layouts, (n,); zeros where it is not promised."""
        slope = 0.0 if self.energy_slope_w is None else self.energy_slope_w
        return np.asarray(np.broadcast_to(slope, self.num_layouts)[layout_index], np.float64)

    def decode_clocks(self, layout_index: Ints, clock_index: Ints, slack: Floats) -> Floats:
        """Clocks per stage, shape (n, S), for the bottleneck's clock and the share of slack to use.

        Without slack it is one clock, whatever a decoder would make of it; NaN beyond each layout's pp.
        """
        beyond = np.arange(self.max_pp)[None, :] >= self.layouts["pp"][layout_index][:, None]
        clocks = np.where(beyond, np.nan, self.clocks_mhz[clock_index][:, None])
        relaxed = np.flatnonzero(slack > 0.0)
        if self.stage_clocks is not None and len(relaxed):
            found = self.stage_clocks(layout_index[relaxed], clock_index[relaxed], slack[relaxed])
            depth = min(found.shape[1], clocks.shape[1])  # a decoder of more layouts may know of deeper ones
            clocks[relaxed, :depth] = found[:, :depth]
        return clocks

    def plans(self, layout_index: Ints, clock_index: Ints, slack: Floats) -> Columns:
        """The evaluated plans of these genes, with genes, stage clocks and all that ``evaluate`` returned."""
        clocks = self.decode_clocks(layout_index, clock_index, slack)
        return self.evaluated(layout_index, clock_index, slack, clocks)

    def again(self, plans: Columns) -> Columns:
        """Known plans evaluated by this problem, which may know more of them."""
        return self.evaluated(*(plans[name] for name in ("layout_index", "clock_index", "slack", "stage_clock_mhz")))

    def evaluated(self, layout_index: Ints, clock_index: Ints, slack: Floats, clocks: Floats) -> Columns:
        """The plans of explicit stage clocks (n, S), evaluated in one call."""
        genes: Columns = {"layout_index": layout_index, "clock_index": clock_index, "slack": slack}
        return genes | {"stage_clock_mhz": clocks} | self.evaluate(layout_index, clocks)

    def bounds(self, layout_index: Ints, clocks: Floats) -> tuple[Floats, Floats]:
        """Time and energy, (n,) each, that plans of explicit stage clocks (n, S) do not go below."""
        if self.least_time_s is None or not self.has_slope:
            return objectives(self.evaluate(layout_index, clocks))
        time_s = self.least_time_s(layout_index, clocks)
        return time_s, self.work(layout_index, clocks) + self.slope_w(layout_index) * time_s

    def raised(self, layout_index: Ints, time_s: Floats, energy_j: Floats, least_s: Floats) -> tuple[Floats, Floats]:
        """Bounds on time and energy (n,) of plans of a problem with a slope whose times are not below ``least_s``."""
        more_s = np.maximum(least_s - time_s, 0.0)
        return time_s + more_s, energy_j + self.slope_w(layout_index) * more_s

    def least_time(self, layout_index: Ints, clocks: Floats) -> Floats:
        """Time (n,) that plans of explicit stage clocks (n, S) do not go below."""
        if self.least_time_s is not None:
            return self.least_time_s(layout_index, clocks)
        return self.evaluate(layout_index, clocks)["iteration_time_s"]

    def work(self, layout_index: Ints, clocks: Floats) -> Floats:
        """Energy less `energy_slope_w`, which is promised, times the time of plans of explicit stage clocks, (n,)."""
        if self.work_j is not None:
            return self.work_j(layout_index, clocks)
        time_s, energy_j = objectives(self.evaluate(layout_index, clocks))
        return energy_j - self.slope_w(layout_index) * time_s

    def describe(self, plans: Columns) -> Columns:
        """The same plans with their layouts' columns and the bottleneck's clock, for a table or a study."""
        columns = (name for name in (*LAYOUT_COLUMNS, POWER_LIMIT) if name in self.layouts)
        layouts = {name: self.layouts[name][plans["layout_index"]] for name in columns}
        return layouts | {"clock_mhz": self.clocks_mhz[plans["clock_index"]]} | plans


# Layouts with no more recomputation than they need: what only costs time and energy never reaches a front.


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
    # a number per layout, equal for those that differ in recomputation alone: the space has them in a row
    own = [values for name, values in layouts.items() if name in LAYOUT_COLUMNS and name not in _OWN]
    group = np.cumsum(np.any([np.diff(values, prepend=values[:1]) != 0 for values in own], axis=0))
    # where none but all is comfortable, all may be too much: steps in between join
    plain = np.zeros(group.max(initial=-1) + 1, np.bool_)
    plain[group[(layouts["recompute"] != _FULL) & (fitting >= COMFORTABLE)]] = True
    whole = (layouts["recompute"] == _FULL) & (layouts["recompute_num_layers"] == 0)
    rows = np.flatnonzero(whole & ~plain[group] & (fitting >= least))  # where it may fit at all
    for step, at in _steps(job, {name: values[rows] for name, values in layouts.items()}):
        layouts = {name: np.concatenate([values, step[name]]) for name, values in layouts.items()}
        group = np.concatenate([group, group[rows[at]]])
    steps = {name: values[len(fitting) :] for name, values in layouts.items()}
    if len(steps["dp"]):
        fitting = np.concatenate([fitting, fits(steps)])
    return layouts, fitting, _needed(group, _work(job, layouts), fitting)


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
    """Per step the layouts that have it, and which of the fully recomputed ones ``whole`` each comes from."""
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
