"""One attention kernel for a job that names none and the runs that its predictions rest on.

What runs show holds for the kernel that they are priced by: applied to another, it would count twice.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import replace

import numpy as np

from jointopt.spec.job import ATTENTIONS, Job
from jointopt.surrogate.residual_gp import Runs

_log = logging.getLogger(__name__)


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
