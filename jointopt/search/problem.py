"""The one seam between a search and the world: feasible layouts, a clock grid, functions that answer.

A search does not know whether physics, a surrogate or a cluster answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, POWER_LIMIT, Columns, Floats, Ints
from jointopt.core.short_repr import ShortRepr
from jointopt.jobs.clocks import without_limits
from jointopt.search.pareto import OBJECTIVES, objectives

Evaluate = Callable[[Ints, Floats], Columns]
OfPlans = Callable[[Ints, Floats], Floats]
LowerBound = Callable[[Ints], tuple[Floats, Floats]]
GoalsOf = Callable[[Ints, Floats, Floats], tuple[Floats, Floats]]
LeastViolation = Callable[[Ints, Floats, Floats, Floats], Floats]
StageClocks = Callable[[Ints, Ints, Floats], Floats]
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True, repr=False)
class Problem(ShortRepr):
    """The space of a search. A plan is a layout and one clock per pipeline stage.

    Three numbers (genes) name a plan: ``layout_index``, a row of ``layouts``; ``clock_index``, a row of ``clocks_mhz``,
    for the bottleneck stage; and ``slack``, the share from 0 to 1 of the other stages' slack that lower clocks use up.

    ``layouts``: columns (L,) named as in `jointopt.core.schema.LAYOUT_COLUMNS`, feasible layouts only. Under power
    limits a layout is there once per limit, in the column `POWER_LIMIT`.
    ``clocks_mhz``: ascending grid (C,).
    ``evaluate(layout_index (n,), stage_clock_mhz (n, S))``: columns (n,) with at least ``iteration_time_s``,
    ``energy_j`` and ``violation`` (<= 0 is feasible, else a distance); S is at least the largest pp of these layouts,
    NaN beyond a layout's pp, or 1 for one clock on all stages.
    ``lower_bound(layout_index (n,))``: least time in s and energy in J of each layout at any clocks, (n,) each.
    ``quick_bound``: weaker bounds of the same kind that cost far less. None = there are none.
    ``stage_clocks(layout_index, clock_index, slack)``: clocks (n, S) of the stages. Slack 0 is one clock everywhere; 1
    makes other stages as slow as they can be without becoming the bottleneck; more slack never raises a clock. None =
    one clock for all stages.
    ``energy_slope_w``: a promise on which exact search rests. A lower clock of any stage is never faster, and the work,
    ``energy_j - energy_slope_w * iteration_time_s``, never falls as a clock rises. The static power of all GPUs, or
    more, is such a slope as long as work costs no less energy at a higher clock. An array (L,) or one number; None =
    not promised.
    ``least_time_s``, ``most_time_s``, ``work_j``, each with the arguments of ``evaluate``: a lower and an upper bound
    of the time, and the work, (n,) each, cheaper than evaluation. None = no cheaper.
    ``goals``: columns of ``evaluate`` to minimise. Bounds and promises are about time and energy, and by ``goals_of``
    about the first two.
    ``goals_of(layout_index, time_s, energy_j)``: the first two goals (n,), or lower bounds of them, from those of time
    and energy of plans; under one layout they never fall as either rises. None = they are time and energy.
    ``third_goal``: values (L,) of the third of three goals if a layout alone decides it, such as memory; else None.
    ``least_violation(layout_index, time_s, energy_j, power_w)``: lower bound (n,) of the violation of plans with at
    least this time, energy and average power. None = unknown.
    ``least_power_w``: lower bound (n,) of the average power at these clocks or higher. None = of no interest.
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
    goals_of: GoalsOf | None = None
    third_goal: Floats | None = None

    @property
    def pair(self) -> tuple[str, ...]:
        """The first two goals."""
        return self.goals[:2]

    def first_goals(self, layout_index: Ints, time_s: Floats, energy_j: Floats) -> tuple[Floats, Floats]:
        """The first two goals (n,), or lower bounds of them, from those of time and energy."""
        return (time_s, energy_j) if self.goals_of is None else self.goals_of(layout_index, time_s, energy_j)

    @property
    def num_layouts(self) -> int:
        """Number of layouts, each as often as it has power limits."""
        return len(self.layouts["pp"])

    @functools.cached_property
    def num_distinct(self) -> int:
        """Number of layouts without their power limits: the first rows of `layouts`, each under its highest limit."""
        return int(without_limits(self.layouts)[1].max(initial=-1)) + 1

    @property
    def num_clocks(self) -> int:
        """Number of clocks of the grid."""
        return len(self.clocks_mhz)

    @property
    def has_slope(self) -> bool:
        """Whether `energy_slope_w` is promised."""
        return self.energy_slope_w is not None

    @property
    def is_countable(self) -> bool:
        """Whether `jointopt.search.exact` finds the front of clocks and slack, so that no trials are needed."""
        return self.stage_clocks is None or self.has_slope

    @property
    def max_pp(self) -> int:
        """Deepest pipeline of any layout."""
        return int(self.layouts["pp"].max()) if self.num_layouts else 1

    @property
    def has_levels(self) -> bool:
        """Whether `jointopt.search.exact` finds the front of three goals, of which the layout decides the third."""
        return self.third_goal is not None and self.has_slope and self.lower_bound is not None

    def under_all_limits(self, layout: int) -> Ints:
        """The rows of a layout under each of its power limits; itself alone where plans have none."""
        parts = (values == values[layout] for name, values in self.layouts.items() if name != POWER_LIMIT)
        same = [part.reshape(self.num_layouts, -1).all(axis=1) for part in parts]
        return np.flatnonzero(np.logical_and.reduce(same)).astype(np.int64)

    def of_layouts(self, rows: Ints) -> Problem:
        """The problem of some of the layouts, (n,); their ``layout_index`` is the position in ``rows``."""

        def of(function: Callable[..., Any] | None) -> Any:
            return None if function is None else lambda index, *more: function(rows[index], *more)

        return replace(
            self, layouts={name: values[rows] for name, values in self.layouts.items()}, evaluate=of(self.evaluate),
            lower_bound=of(self.lower_bound), stage_clocks=of(self.stage_clocks), quick_bound=of(self.quick_bound),
            least_time_s=of(self.least_time_s), work_j=of(self.work_j), least_violation=of(self.least_violation),
            most_time_s=of(self.most_time_s), least_power_w=of(self.least_power_w), goals_of=of(self.goals_of),
            energy_slope_w=None if not self.has_slope else self.slope_w(rows),
            third_goal=None if self.third_goal is None else self.third_goal[rows],
        )  # fmt: skip

    def unconstrained(self) -> Problem:
        """The problem of the same layouts without constraints: every plan is feasible."""
        return replace(
            self, least_violation=None, least_power_w=None,
            evaluate=lambda index, clocks: self.evaluate(index, clocks) | {"violation": np.zeros(len(index))},
        )  # fmt: skip

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

    def evaluate_genes(self, layout_index: Ints, clock_index: Ints, slack: Floats) -> Columns:
        """The plans of these genes, (n,) each, evaluated: genes, stage clocks and all that ``evaluate`` returned."""
        clocks = self.decode_clocks(layout_index, clock_index, slack)
        return self.evaluate_clocks(layout_index, clock_index, slack, clocks)

    def evaluate_again(self, plans: Columns) -> Columns:
        """Plans of another problem of the same layouts and clocks, evaluated by this one."""
        return self.evaluate_clocks(
            *(plans[name] for name in ("layout_index", "clock_index", "slack", "stage_clock_mhz"))
        )

    def evaluate_clocks(self, layout_index: Ints, clock_index: Ints, slack: Floats, clocks: Floats) -> Columns:
        """As `evaluate_genes`, at these stage clocks ``clocks`` (n, S), whatever clocks the genes stand for."""
        genes: Columns = {"layout_index": layout_index, "clock_index": clock_index, "slack": slack}
        return genes | {"stage_clock_mhz": clocks} | self.evaluate(layout_index, clocks)

    def bounds(self, layout_index: Ints, clocks: Floats) -> tuple[Floats, Floats]:
        """Lower bounds of time in s and energy in J, (n,) each, of plans at stage clocks (n, S)."""
        if self.least_time_s is None or not self.has_slope:
            return objectives(self.evaluate(layout_index, clocks))
        time_s = self.least_time_s(layout_index, clocks)
        return time_s, self.work(layout_index, clocks) + self.slope_w(layout_index) * time_s

    def raise_bounds(
        self, layout_index: Ints, time_s: Floats, energy_j: Floats, least_s: Floats
    ) -> tuple[Floats, Floats]:
        """Lower bounds of time and energy (n,) raised for plans that take at least ``least_s``; there is a slope."""
        more_s = np.maximum(least_s - time_s, 0.0)
        return time_s + more_s, energy_j + self.slope_w(layout_index) * more_s

    def least_time(self, layout_index: Ints, clocks: Floats) -> Floats:
        """Lower bound of the time in s, (n,), of plans at stage clocks (n, S)."""
        if self.least_time_s is not None:
            return self.least_time_s(layout_index, clocks)
        return self.evaluate(layout_index, clocks)["iteration_time_s"]

    def work(self, layout_index: Ints, clocks: Floats) -> Floats:
        """The work in J, (n,), of plans at stage clocks (n, S): energy less `energy_slope_w` times the time."""
        if self.work_j is not None:
            return self.work_j(layout_index, clocks)
        time_s, energy_j = objectives(self.evaluate(layout_index, clocks))
        return energy_j - self.slope_w(layout_index) * time_s

    def describe(self, plans: Columns) -> Columns:
        """The same plans with their layouts' columns and the bottleneck's clock, for a table or a study."""
        columns = (name for name in (*LAYOUT_COLUMNS, POWER_LIMIT) if name in self.layouts)
        layouts = {name: self.layouts[name][plans["layout_index"]] for name in columns}
        return layouts | {"clock_mhz": self.clocks_mhz[plans["clock_index"]]} | plans
