"""``check``: a job read, and its layouts counted, before anything is searched."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jointopt.report.proposal import CheckedJob
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import accepts_paths, assumptions
from jointopt.workflows.feasible_layouts import feasible_layouts
from jointopt.workflows.search_steps import Stopwatch

if TYPE_CHECKING:
    from jointopt.jobs.job import Job
    from jointopt.workflows.answers import JobLike


@accepts_paths
def check(job: JobLike) -> CheckedJob:
    """The job as it is read, the layouts that may fit in memory by the physics alone, and what is assumed.

    Parameters
    ----------
    job : Job, JobModel or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.

    Returns
    -------
    CheckedJob
        ``considered``, ``layouts`` and ``fitting`` count combinations; ``dropped`` says why the others are none.

    Raises
    ------
    InfeasibleError
        Where no layout fits, with reasons and the smallest change that would help.
    """
    model = job if isinstance(job, JobModel) else JobModel(cast("Job", job))
    space, layouts, _, dropped = feasible_layouts(model, Stopwatch(quiet=True))
    return CheckedJob(model.job, space.considered, space.size, len(layouts["pp"]), dropped, assumptions(model.job))
