"""One recipe class for a job and the runs that its predictions rest on."""

from __future__ import annotations

import logging
from collections.abc import Set

from jointopt.runs.classes import conflict, same_efficiency
from jointopt.spec.catalog.recipe_classes import job_of_class
from jointopt.spec.job import Job

_log = logging.getLogger(__name__)


def of_one_class(job: Job, stated: Set[str]) -> Job:
    """The job by the class that measured runs of its source state, where it states none; a conflict is logged.

    What runs show holds for the class that they are priced by: applied to another, it would count twice.
    """
    own = job.training.recipe_class
    classes = sorted({*stated, own} - {""})
    if not classes:
        return job
    if not same_efficiency(classes):
        _log.warning("%s", conflict("the job's cluster and the job itself", classes))
        return job
    if not own:
        _log.info("The job is priced as a %s recipe, as the measured runs state.", classes[0])
    return job if own else job_of_class(job, classes[0])
