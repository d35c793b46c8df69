"""Peak power and temperature of plans as learned from a cluster's own runs, worked out for the plans that need it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel, HeatScale
from jointopt.surrogate.features import heat_of, runs_of
from jointopt.surrogate.heat_names import PEAK, RISE
from jointopt.surrogate.own_targets import OwnTarget

_KINDS = (PEAK, RISE)


class LearnedHeat:
    """`HeatScale` of layouts by their index; each layout is worked out once.

    ``layouts`` (L,) of ``job``; ``source``: key of that whose runs taught ``targets``, read at shares of the top clock.
    """

    def __init__(
        self, job: Job, layouts: Columns, source: str, targets: Mapping[str, OwnTarget], clocks: tuple[float, ...]
    ) -> None:
        self._job, self._layouts, self._source = job, layouts, source
        self._targets, self._clocks = targets, clocks
        self._lines = np.full((2 * len(_KINDS), len(layouts["pp"])), np.nan)  # factor and offset of every kind

    def __call__(self, index: Ints) -> HeatScale:
        """The scales of layouts ``index`` (n,)."""
        unknown = np.unique(index[np.isnan(self._lines[0, index])])
        if len(unknown):
            self._lines[:, unknown] = self._worked_out(unknown)
        peak, rise = self._lines[:2, index], self._lines[2:, index]
        of_peak = self._targets.get(PEAK)
        overshoot = np.inf if of_peak is None or of_peak.overshoot is None else of_peak.overshoot
        return HeatScale(peak if of_peak else None, rise if RISE in self._targets else None, overshoot)

    def _worked_out(self, index: Ints) -> Floats:
        layouts = {name: self._layouts[name][index] for name in LAYOUT_COLUMNS}
        physics, every = CostModel(self._job, layouts), np.arange(len(index))
        depth = physics.layouts["pp"]
        runs = runs_of(physics, uniform_stage_clocks(depth, physics.top_mhz), every, self._source)
        clocks = [uniform_stage_clocks(depth, share * physics.top_mhz) for share in self._clocks]
        values = [heat_of(physics, every, mhz) for mhz in clocks]
        out = np.ones((2 * len(_KINDS), len(index)))
        for at, name in enumerate(_KINDS):
            if name in self._targets:
                line = self._targets[name].line(runs, np.stack([one[name] for one in values]), self._clocks)
                out[2 * at], out[2 * at + 1] = line.factor, line.offset_w
        return out
