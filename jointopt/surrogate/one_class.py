"""One recipe class for a job and the runs that its predictions rest on."""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import TYPE_CHECKING

import numpy as np

from jointopt.jobs.catalog.frameworks import conflict, job_of_class, of_efficiency, same_efficiency
from jointopt.jobs.job import Job

if TYPE_CHECKING:
    from jointopt.surrogate.dataset import Priced

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


def of_learned_class(job: Job, name: str | None) -> Job:
    """The job by the class that a surrogate's own runs of it were priced by, None for none; a change is logged."""
    found = job if name is None else of_efficiency(job, name)
    if found is not job:
        stated, learned = job.training.recipe_class, found.training.recipe_class
        _log.warning(
            "%s: the surrogate learned this cluster's efficiency from its own runs, whose recipe class is %s.",
            f"Recipe class {stated} is passed over" if stated else f"The job is priced as a {learned} recipe",
            learned or "not stated",
        )
    return found


def learned_classes(priced: Priced) -> dict[str, str]:
    """The recipe class of the priced runs of each source that states one, several joined by commas."""
    found = {}
    for key in np.unique(priced.runs.source).tolist():
        works = np.unique(priced.work[priced.runs.source == key]).tolist()
        names = sorted({priced.works[i].job.training.recipe_class or "none" for i in works})
        if names != ["none"]:
            found[str(key)] = ", ".join(names)
    return found
