"""Whether a predicted plan is faster than anything that was recorded, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jointopt.jobs.catalog.best_mfu import best_mfu, kind_of
from jointopt.jobs.job import Job
from jointopt.report.table import result

_KINDS = {"adapters": "with adapters", "moe": "of mixtures of experts", "dense": "of dense models"}


def above_best(job: Job, plan: Mapping[str, Any], whose: str) -> str:
    """That the MFU of a plan (an entry with it and its interval) is above the best recorded; blank where it is not.

    Its own time is then not what to count on, but the slow end of its interval.
    """
    best, mfu = best_mfu(job), plan.get("mfu")
    if best is None or mfu is None or not mfu > best.mfu:
        return ""
    high_s = plan.get("iteration_time_s_high")
    count = f": count on {result('iteration_time_s', high_s)}, the slow end of its interval" if high_s else ""
    return (
        f"{whose} MFU of {mfu:.1%} is above the best recorded {_KINDS[kind_of(job)]} on {job.cluster.gpu.id} in "
        f"{job.training.precision}, {best.mfu:.1%} ({best.run}; {best.source}){count}."
    )
