"""``compare``: plans of one job side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jointopt.core.errors import UsageError
from jointopt.report.comparison import Compared
from jointopt.spec.calibration import Calibration
from jointopt.spec.job import Job
from jointopt.spec.machine import Machine
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.explain import explain

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

FEWEST, MOST = 2, 8


def compare(
    job: Job | JobModel, plans: Sequence[str | Mapping[str, Any]], *, surrogate: str = "default",
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    storage: str | None = None, machine: Machine | None = None,
) -> Compared:  # fmt: skip
    """Plans of one job by part of time, energy and memory, each against the first; two to eight of them.

    ``surrogate`` and what follows as in `JobModel.of`. Raises UsageError for another number of plans, and what
    `explain` raises of any of them.
    """
    if not FEWEST <= len(plans) <= MOST:
        raise UsageError(f"{len(plans)} plan{'s' * (len(plans) != 1)} to compare; give {FEWEST} to {MOST}.")
    model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    return Compared(tuple(explain(model, plan) for plan in plans))
