"""The joint space as a few parameters, of which any values are a plan: what samplers such as Optuna's choose.

Degrees as parameters of their own allow far more combinations than there are layouts, and thousands of layouts as one
list leave a sampler nothing to learn from. So the ``layout`` of a trial is how the GPUs are split, and ``variant`` the
rank of a layout among those of that split (micro-batch, recompute, ...) by the least time that it can take.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import COLUMNS, NEUTRAL, POWER_LIMIT, SPLIT_COLUMNS, Columns, Floats, Ints
from jointopt.jobs.plans.text import TRIAL_LAYOUT, plan_records, widened
from jointopt.search.breeding import PRIORITY, SLACK_LEVELS
from jointopt.search.problem import Problem

VARIANT, CLOCK, SLACK = "variant", "clock_mhz", "slack"
SAMPLED = 128  # plans drawn evenly over the space


class Parameters:
    """The parameters of plans of a `Problem`; those but ``layout`` that have one value alone are not in ``names``.

    ``layout``: one of ``splits`` of the GPUs; ``variant``: 1 is the fastest layout of it, numbers beyond its last one
    are the last; ``clock_mhz``: of the bottleneck stage; ``slack``: the share of the other stages' slack that is used;
    ``power_limit_w``: one of ``limits_w`` (ascending) where such are searched.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        columns = [name for name in (*(n for n in PRIORITY if n in SPLIT_COLUMNS), "dp") if name in problem.layouts]
        cells = np.stack([problem.layouts[name][: problem.num_distinct] for name in columns], axis=1)
        _, first, of, counts = np.unique(cells, axis=0, return_index=True, return_inverse=True, return_counts=True)
        self._split, self._counts = of.reshape(-1), counts
        self.splits, self.most_variants = tuple(map(self._words, first.tolist())), int(counts.max())
        limited = problem.num_layouts > problem.num_distinct
        self.limits_w = np.unique(problem.layouts[POWER_LIMIT]) if limited else np.zeros(0)
        sizes = {
            TRIAL_LAYOUT: len(self.splits), VARIANT: self.most_variants, CLOCK: problem.num_clocks,
            POWER_LIMIT: len(self.limits_w), SLACK: 1 + (problem.stage_clocks is not None and problem.max_pp > 1),
        }  # fmt: skip
        self.names = tuple(name for name, size in sizes.items() if size > 1 or name == TRIAL_LAYOUT)

    def _words(self, row: int) -> str:
        """The split of a layout as words of a plan: dp, and the degrees that are not 1 or without effect."""
        given = {name: int(self.problem.layouts[name][row]) for name in SPLIT_COLUMNS if name in self.problem.layouts}
        shown = (name for name, value in given.items() if name == "dp" or value != NEUTRAL.get(name, 1))
        return " ".join(f"{name}={COLUMNS[name].decode(given[name])}" for name in shown)

    @functools.cached_property
    def _ranked(self) -> Ints:
        """The layouts, split by split, in the order of the least time that each can take; of equal ones in the space's.

        Where no bound of it is known that is their time at the highest clock.
        """
        problem, layouts = self.problem, np.arange(self.problem.num_distinct)
        if problem.lower_bound is not None:
            least_s = problem.lower_bound(layouts)[0]
        else:
            top = np.full_like(layouts, problem.num_clocks - 1)
            least_s = problem.evaluate_genes(layouts, top, np.zeros(len(layouts)))["iteration_time_s"]
        return np.lexsort((np.round(np.log(least_s), 9), self._split))

    def decode(self, params: Mapping[str, Any]) -> tuple[Ints, Ints, Floats]:
        """Layout, clock index and slack, (1,) each, of one trial's parameters; PlanError where they are of others."""
        missing = [name for name in self.names if name not in params]
        if missing or (split := params.get(TRIAL_LAYOUT, self.splits[0])) not in self.splits:
            got = f"no {missing[0]}" if missing else f"no such layout as {split!r}"
            raise PlanError(
                f"The parameters of a trial must be {', '.join(self.names)}, as jointopt.optuna_objective suggests "
                f"them for this job; there is {got}."
            )
        place = self.splits.index(split)
        variant = min(int(params.get(VARIANT, 1)), int(self._counts[place]))
        layout = int(self._ranked[self._counts[:place].sum() + variant - 1])
        clock = int(np.abs(self.problem.clocks_mhz - params.get(CLOCK, self.problem.clocks_mhz[-1])).argmin())
        slack = float(params.get(SLACK, 0.0)) if self.problem.layouts["pp"][layout] > 1 else 0.0
        if POWER_LIMIT in self.names:
            rows = self.problem.under_all_limits(layout)
            layout = int(rows[np.abs(self.problem.layouts[POWER_LIMIT][rows] - params[POWER_LIMIT]).argmin()])
        return np.array([layout]), np.array([clock]), np.array([slack])

    def record(self, layout: Ints, stage_clock_mhz: Floats) -> dict[str, Any]:
        """The plan of a layout (1,) at stage clocks (1, pp), as `explain` takes it."""
        return plan_records({name: of[layout] for name, of in self.problem.layouts.items()}, stage_clock_mhz, [0])[0]

    def encode(self, plans: Columns) -> list[dict[str, Any]]:
        """The parameters of plans of a search; of those whose stages' clocks were moved those that come nearest."""
        layout = plans["layout_index"] % self.problem.num_distinct
        split, steps = self._split[layout], SLACK_LEVELS - 1
        place = np.argsort(self._ranked)[layout] - (np.cumsum(self._counts) - self._counts)[split]
        slack = np.where(np.isnan(plans["slack"]), self._nearest_slack(plans), plans["slack"])
        columns: dict[str, Sequence[Any]] = {
            TRIAL_LAYOUT: [self.splits[one] for one in split.tolist()],
            VARIANT: (place + 1).tolist(),
            CLOCK: self.problem.clocks_mhz[plans["clock_index"]].tolist(),
            SLACK: [round(share * steps) / steps for share in slack.tolist()],
        }
        if POWER_LIMIT in self.names:
            columns[POWER_LIMIT] = self.problem.layouts[POWER_LIMIT][plans["layout_index"]].tolist()
        rows = zip(*(columns[name] for name in self.names), strict=True)
        return [dict(zip(self.names, row, strict=True)) for row in rows]

    def located(self, plans: Columns) -> Columns:
        """Plans of the space (layout columns, stage clocks) as those of a search, of which the slack is not known.

        PlanError for others.
        """
        names = [name for name in self.problem.layouts if name in plans]
        cells = [np.stack([of[name] for name in names], axis=1) for of in (self.problem.layouts, plans)]
        place = {row.tobytes(): number for number, row in enumerate(np.ascontiguousarray(cells[0], np.float64))}
        found = [place.get(row.tobytes()) for row in np.ascontiguousarray(cells[1], np.float64)]
        if None in found:
            raise PlanError(
                f"Plan {found.index(None) + 1} is not in the space of the job; take a proposal of this job."
            )
        highest = np.nanmax(plans["stage_clock_mhz"], axis=1)
        return {
            "layout_index": np.array(found, np.int64),
            "clock_index": np.abs(self.problem.clocks_mhz - highest[:, np.newaxis]).argmin(axis=1),
            "slack": np.full(len(highest), np.nan),
            "stage_clock_mhz": widened(plans["stage_clock_mhz"], max(self.problem.max_pp, 1)),
        }

    def _nearest_slack(self, plans: Columns) -> Floats:
        """The share of slack (n,) whose stage clocks come nearest to those of plans, of equal ones the least."""
        layout, clock, wanted = (plans[name] for name in ("layout_index", "clock_index", "stage_clock_mhz"))
        if SLACK not in self.names or not np.isnan(plans["slack"]).any():
            return np.zeros(len(layout))
        shares = np.arange(SLACK_LEVELS) / (SLACK_LEVELS - 1)
        away = [
            np.nansum(np.abs(self.problem.decode_clocks(layout, clock, np.full(len(layout), share)) - wanted), axis=1)
            for share in shares
        ]
        return np.asarray(shares[np.argmin(away, axis=0)])

    def sample(self, seed: int, count: int = SAMPLED) -> Columns:
        """Evaluated plans of layouts, clocks and slack that are drawn evenly, by which importance can be judged."""
        rng, problem = np.random.default_rng(seed), self.problem
        layout, clock = rng.integers(problem.num_layouts, size=count), rng.integers(problem.num_clocks, size=count)
        slack = rng.integers(SLACK_LEVELS, size=count) / (SLACK_LEVELS - 1)
        return problem.evaluate_genes(layout, clock, np.where(problem.layouts["pp"][layout] > 1, slack, 0.0))
