"""One recipe class and one attention kernel for a job that names none and the runs that its predictions rest on.

What runs show holds for the class and the kernel that they are priced by: applied to another, it would count twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.jobs.catalog.frameworks import conflict, job_of_class, of_efficiency, same_efficiency
from jointopt.jobs.job import ATTENTIONS, Job
from jointopt.surrogate.kernel import Runs

if TYPE_CHECKING:
    from jointopt.surrogate.measurements import Measurements

_log = logging.getLogger(__name__)


def as_measured(job: Job, measurements: Sequence[Measurements]) -> Job:
    """The job by the recipe class and the attention kernel that runs measured on its kind of cluster state."""
    job = of_one_class(job, set().union(*(runs.recipe_classes(job) for runs in measurements)))
    return of_one_attention(job, set().union(*(runs.attentions(job) for runs in measurements)))


def as_learned(job: Job, recipe_class: str | None, runs: Runs) -> Job:
    """The job by the recipe class and the attention kernel that a surrogate's own runs of it were priced by."""
    return of_one_attention(of_learned_class(job, recipe_class), kernels_of(runs))


def of_one_class(job: Job, stated: Set[str]) -> Job:
    """The job by the class that measured runs of its source state, where it states none; a conflict is logged."""
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


def of_one_attention(job: Job, stated: Set[str]) -> Job:
    """The job by the kernel that measured runs of its source state, where it names none; a change is logged."""
    kernel = next(iter(stated)) if len(stated) == 1 else job.training.attention
    if not job.training.attention_assumed or kernel == job.training.attention:
        return job
    _log.info("The job is priced with %s attention, as the runs measured on such a cluster are.", kernel)
    return replace(job, training=replace(job.training, attention=kernel))


def kernels_of(runs: Runs) -> set[str]:
    """The attention kernels that runs which a surrogate remembers were priced by."""
    codes = np.unique(np.rint(runs.features.get("attention", np.empty(0)))).astype(np.int64)
    return {ATTENTIONS[code] for code in codes.tolist()}
