"""The plan that runs today, from words, a JSON file, or the files of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.errors import UsageError
from jointopt.jobs.job import Job
from jointopt.workflows.plan_files import read_plan_file


def baseline_plan(job: Job, given: str) -> str | Mapping[str, Any]:
    """The plan of ``given`` for ``job``: words, JSON, a JSON file of a plan, or a launch script, a config or a log.

    A file of a run is read as `jointopt import` reads it, with the job's GPUs and vocabulary; UsageError where it is of
    another number of GPUs.
    """
    path = Path(given)
    if "=" in given or given.lstrip().startswith("{") or not path.is_file():
        return given
    if path.suffix.lower() == ".json":
        try:
            return read_plan_file(path)
        except UsageError:
            pass  # a config of a framework may be JSON too
    from jointopt.workflows.import_ import import_  # readers of scripts, configs and logs

    cluster = job.cluster
    found = import_(
        [path], gpu=cluster.gpu.id, nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node,
        vocab_size=job.model.vocab_size,
    )  # fmt: skip
    if found.job.cluster.num_gpus != cluster.num_gpus:
        raise UsageError(
            f"{path} is of a run on {found.job.cluster.num_gpus:,} GPUs and job {job.name!r} has "
            f"{cluster.num_gpus:,}; give the run of this job, or the job of that run."
        )
    return found.plan
