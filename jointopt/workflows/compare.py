"""``compare``: plans of one job side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import Columns
from jointopt.frameworks.exported import start_command
from jointopt.jobs.plans.text import parse_plan, widened
from jointopt.report.comparison import Compared
from jointopt.search.pareto import concat
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.memory import FEASIBLE
from jointopt.workflows.answers import accepts_paths, as_list, model_of, with_power_limits
from jointopt.workflows.explain import explain
from jointopt.workflows.plan_files import baseline_plan

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, JobLike, MachineLike, TableLike

FEWEST, MOST = 2, 8


@accepts_paths
def compare(
    job: JobLike, plans: Sequence[str | Mapping[str, Any]], *, surrogate: str = "default",
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, machine: MachineLike | None = None, baseline: str = "", source: str = "",
    given: Sequence[str] = (),
) -> Compared:  # fmt: skip
    """Plans of one job by part of time, energy and memory, each against the first.

    Parameters
    ----------
    job : Job, JobModel or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    plans : sequence of str or mapping
        Two to eight plans, with the baseline.
    surrogate : str, optional
        Name of a shipped surrogate, folder that `retrain` wrote, or "none" for physics alone.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database whose measured runs correct the predictions too; none by default.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.
    baseline : str, optional
        The first of them: a plan as ``--plan`` takes it, or the launch script, config or log of a run.
    source : str, optional
        How a shell names the job, for the next command.
    given : sequence of str, optional
        How it names each of ``plans``.

    Returns
    -------
    Compared
        The plans side by side, and what makes the difference.

    Raises
    ------
    UsageError
        For another number of plans, and what `explain` raises of any of them.

    Examples
    --------
    >>> found = jointopt.compare("opt-350m-2x4-a100", ["dp=8", "dp=4 tp=2"], surrogate="none")
    >>> [plan["plan"]["tp"] for plan in found.to_dict()["plans"]]
    [1, 2]
    """
    model = model_of(job, surrogate, measured, calibration, storage, machine)
    plans = as_list(plans)
    plans = [baseline_plan(model.job, baseline, storage), *plans] if baseline else plans
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
