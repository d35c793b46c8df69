"""``optuna_objective`` and ``enqueue``: plans of a job as trials that any sampler of Optuna chooses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from jointopt.core.errors import EndedEarlyError, RunFailedError, UsageError
from jointopt.core.schema import STATUSES, Columns
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import plan_records
from jointopt.measure.base import EndsEarly, Launcher, load_launcher, narrow_search, run_all
from jointopt.physics.site import with_site
from jointopt.report.proposal import Proposal
from jointopt.runs.rows import is_blank
from jointopt.search.parameters import Parameters
from jointopt.search.studies.objective import OptunaObjective, Study, enqueue_plans
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import accepts_paths, model_of
from jointopt.workflows.by_dask import Evaluator
from jointopt.workflows.campaign.stopping import set_bounds
from jointopt.workflows.feasible_layouts import need_power, prepare_search
from jointopt.workflows.search_steps import Stopwatch
from jointopt.workflows.work import MEAN_POWER, function_problem

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, JobLike, MachineLike, TableLike

_log = logging.getLogger(__name__)
PHYSICS = "physics"


@accepts_paths
def optuna_objective(
    job: JobLike, evaluator: str | Evaluator = "default", *, launcher: Launcher | str | None = None,
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, machine: MachineLike | None = None, **options: Any,
) -> OptunaObjective:  # fmt: skip
    """The objective of ``job`` for `optuna.Study.optimize`: whatever a sampler suggests is a plan that keeps the rules.

    Parameters
    ----------
    job : Job, JobModel or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    evaluator : str or callable, optional
        Answers for plans: "physics", a surrogate's name or folder (by default that of `propose`), or a function as
        ``jointopt work --evaluate`` calls it: the job and columns of one plan in, columns of results (s, J) out.
    launcher : Launcher or str, optional
        Runs plans instead, and ends runs early that are clearly behind the study's, if it can; one, or the name of one
        made with ``options``.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database whose measured runs correct the predictions too; none by default.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.
    **options
        Of the launcher.

    Returns
    -------
    OptunaObjective
        A function of a trial, whose values are the job's objectives, time (s) and energy (J) first.

    Raises
    ------
    InfeasibleError
        Where nothing fits in memory.
    UsageError
        For a launcher that runs listed plans alone.
    """
    runner = None if launcher is None else load_launcher(launcher, **options)
    if runner is not None:
        job = narrow_search(runner, job.job if isinstance(job, JobModel) else cast("Job", job))
        if runner.candidates(job) is not None:
            raise UsageError(f"The launcher {runner.name} runs listed plans alone; a sampler chooses among all.")
    surrogate = ("none" if evaluator == PHYSICS else evaluator) if isinstance(evaluator, str) else "default"
    model = model_of(job, surrogate, measured, calibration, storage, machine)
    need_power(job := model.job)
    found = prepare_search(model, Stopwatch(quiet=True))
    problem = found.all_goals
    if runner is not None:
        problem = function_problem(job, found.problem, partial(_measured, runner), job.goals, runner.name)
    elif not isinstance(evaluator, str):
        called = getattr(evaluator, "__name__", type(evaluator).__name__)
        problem = function_problem(job, found.problem, evaluator, job.goals, called)
    return OptunaObjective(
        Parameters(found.all_goals), problem, job.name, job.objectives, partial(with_site, job), found.excess,
        None if runner is None else partial(_tell_bounds, runner, job),
    )  # fmt: skip


def _tell_bounds(launcher: Launcher, job: Job, measured: Columns) -> None:
    """Have a launcher, if it can, end runs that are clearly behind what was ``measured``."""
    if isinstance(launcher, EndsEarly):
        set_bounds(launcher, job, measured)


def _measured(launcher: Launcher, job: Job, plans: Columns) -> Mapping[str, Any]:
    """What a run of the plan (1,) measured; EndedEarlyError for one that was ended early, RunFailedError for others."""
    record = plan_records(plans, plans["stage_clock_mhz"], [0])
    row = next(run_all(launcher, job, record, lambda _, text: _log.info("%s", text))).row
    if row["status"] != STATUSES[0]:
        ended_early = isinstance(launcher, EndsEarly) and not is_blank(row.get("iteration_time_s"))
        raise (EndedEarlyError if ended_early else RunFailedError)(f"{row['status']}: {row.get('notes', '')}")
    names = dict.fromkeys((*job.goals, MEAN_POWER))
    return {name: [float(row[name])] for name in names if not is_blank(row.get(name))}


def enqueue(study: Study, proposal: Proposal) -> int:
    """Enqueue the plans of a proposal's front in a study of `optuna_objective`, those it has not.

    Each is evaluated with the very clocks of its stages; where parameters cannot say them, they are the nearest ones.

    Parameters
    ----------
    study : optuna.Study
        What evaluates them.
    proposal : Proposal
        What `propose` returned.

    Returns
    -------
    int
        Plans that were enqueued.

    Raises
    ------
    UsageError
        For a proposal that was put together without the model that predicts its plans.
    """
    if proposal.model is None:
        raise UsageError("The plans of a proposal are enqueued by its model; take one that propose returned.")
    found = prepare_search(proposal.model, Stopwatch(quiet=True), allow_tight=not proposal.feasible)
    space, front = Parameters(found.all_goals), proposal.front
    plans = plan_records(front, front["stage_clock_mhz"], range(len(front["pp"])))
    return enqueue_plans(study, plans, space.encode(space.located(front)))
