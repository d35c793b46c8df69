"""``compare``: plans of one job side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import Columns
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan, widened
from jointopt.report.comparison import Compared
from jointopt.search.pareto import concat
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import FEASIBLE
from jointopt.workflows.answers import accepts_paths, as_list, with_power_limits
from jointopt.workflows.explain import explain
from jointopt.workflows.export import start_command
from jointopt.workflows.plan_files import baseline_plan

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

FEWEST, MOST = 2, 8


@accepts_paths
def compare(
    job: Job | JobModel, plans: Sequence[str | Mapping[str, Any]], *, surrogate: str = "default",
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    storage: str | None = None, machine: Machine | None = None, baseline: str = "", source: str = "",
    given: Sequence[str] = (),
) -> Compared:  # fmt: skip
    """Plans of one job by part of time, energy and memory, each against the first; two to eight of them.

    ``baseline``: the first of them, as `baseline_plan` takes it: a plan, or the file of a run.
    ``source`` and ``given``: how a shell names the job and each of ``plans``, for the next command.
    ``surrogate`` and what follows as in `JobModel.of`. Raises UsageError for another number of plans, and what
    `explain` raises of any of them.
    """
    model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    plans = as_list(plans)
    plans = [baseline_plan(model.job, baseline), *plans] if baseline else plans
    if not FEWEST <= len(plans) <= MOST:
        raise UsageError(f"{len(plans)} plan{'s' * (len(plans) != 1)} to compare; give {FEWEST} to {MOST}.")
    explained = tuple(explain(model, plan) for plan in plans)
    found: Columns = {}  # of each plan from the first; not known of plans whose stages have power limits
    if not any("stage_power_limit_w" in one.plan for one in explained):
        parsed = [parse_plan(one.plan, model.job) for one in explained]
        columns = concat(with_power_limits([one.layouts for one in parsed], model.job))
        columns |= {name: np.array([getattr(one, name) for one in explained]) for name in RESULTS}
        deepest = max(one.stage_clock_mhz.shape[1] for one in parsed)
        columns["stage_clock_mhz"] = np.concatenate([widened(one.stage_clock_mhz[:1], deepest) for one in parsed])
        found = model.differences(columns, 0)
    later = range(1, len(explained))
    compared = Compared(explained, tuple({name: float(values[row]) for name, values in found.items()} for row in later))
    at = compared.best[0] - bool(baseline)
    if not given or at < 0:  # it runs today
        return compared
    tight = " --allow-tight" * (explained[compared.best[0]].fit_probability < FEASIBLE)
    command = start_command(model.job, explained[compared.best[0]].plan, source, f"{given[at]}{tight}")
    return replace(compared, next_command=command)
