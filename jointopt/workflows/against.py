"""How plans differ from the one that an answer compares them with, with the intervals of that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import POWER_LIMIT, Columns, Floats
from jointopt.search.pareto import concat, take
from jointopt.surrogate.job_model import JobModel


@dataclass(frozen=True)
class Against:
    """A model, and the plan (columns of one row) that its plans are compared with."""

    model: JobModel
    reference: Columns

    def differences(self, plans: Columns) -> tuple[Columns, Columns]:
        """(differences of plans (n,) from the reference, those of the reference from itself).

        As `JobModel.differences` has them; nothing where any runs under a power limit: how far one holds clocks down is
        not known as clocks that are set are.
        """
        if self._limited(plans) or not len(plans["pp"]):
            return {}, {}
        found = self.model.differences(self._with_reference(plans), len(plans["pp"]))
        return take(found, slice(0, -1)), take(found, slice(-1, None))

    def known(self, plans: Columns) -> Columns:
        """Plans and results (n,) with intervals of both and of their differences from the reference; doubts too."""
        if not len(plans["pp"]):
            return plans
        if self._limited(plans):
            return self.model.bounded(plans)
        both = self._with_reference(plans)  # the same for both, which are then priced once
        return take(self.model.bounded(both) | self.model.differences(both, len(plans["pp"])), slice(0, -1))

    def _limited(self, plans: Columns) -> bool:
        return bool(self.model.job.search.power_limit_w) or POWER_LIMIT in self.reference or POWER_LIMIT in plans

    def _with_reference(self, plans: Columns) -> Columns:
        """Plans, and the reference behind them, in the columns that both have."""
        parts = [plans, self.reference]
        deepest = max(one["stage_clock_mhz"].shape[1] for one in parts)
        return concat([one | {"stage_clock_mhz": _padded(one["stage_clock_mhz"], deepest)} for one in parts])


def _padded(stage_clock_mhz: Floats, stages: int) -> Floats:
    return np.pad(stage_clock_mhz, ((0, 0), (0, stages - stage_clock_mhz.shape[1])), constant_values=np.nan)
