"""How plans differ from the one that an answer compares them with, with the intervals of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import POWER_LIMIT, Columns
from jointopt.jobs.job import Job
from jointopt.search.pareto import concat_plans, take
from jointopt.surrogate.job_model import JobModel

_OF_STAGES = "stage_power_limit_w"


@dataclass(frozen=True)
class Against:
    """A model, and the plan (columns of one row) that its plans are compared with."""

    model: JobModel
    reference: Columns

    def differences(self, plans: Columns) -> tuple[Columns, Columns]:
        """(differences of plans (n,) from the reference, those of the reference from itself).

        As `JobModel.differences` has them; nothing where stages of the reference have limits of their own.
        """
        if _OF_STAGES in self.reference or not len(plans["pp"]):
            return {}, {}
        found = self.model.differences(self._with_reference(plans), len(plans["pp"]))
        return take(found, slice(0, -1)), take(found, slice(-1, None))

    def known(self, plans: Columns) -> Columns:
        """Plans and results (n,) with intervals of both and of their differences from the reference; doubts too."""
        if not len(plans["pp"]):
            return plans
        if _OF_STAGES in self.reference:
            return self.model.bounded(plans)
        both = self.model.bounded(self._with_reference(plans))
        return take(both | self.model.differences(both, len(plans["pp"])), slice(0, -1))

    def _with_reference(self, plans: Columns) -> Columns:
        """Plans, and the reference behind them, in the columns that both have."""
        return concat_plans(with_limits([plans, self.reference], self.model.job))


def with_limits(parts: Sequence[Columns], job: Job) -> list[Columns]:
    """Plans in the columns of ``parts``, all with the power limit that holds for them where any states one."""
    if not any(POWER_LIMIT in one for one in parts):
        return list(parts)
    usual = job.cluster.power_limit_w
    limits = [np.fmin(one.get(POWER_LIMIT, np.full(len(one["pp"]), usual)), usual) for one in parts]
    return [one | {POWER_LIMIT: limit_w} for one, limit_w in zip(parts, limits, strict=True)]
