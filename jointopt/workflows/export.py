"""``export``: what starts a plan in another framework or on a batch system, written without either."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jointopt.core.atomic_write import write_whole
from jointopt.core.errors import ExportError, InfeasibleError
from jointopt.frameworks.exported import Exported, exported, other_target, plan_without_predictions
from jointopt.frameworks.intent import BENCHMARK, TRAINING, Saving
from jointopt.frameworks.targets import target_of, version_in
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan
from jointopt.jobs.reliability import Reliability
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import accepts_paths
from jointopt.workflows.goodput import goodput
from jointopt.workflows.remedy import shortage_of

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

_log = logging.getLogger(__name__)


@accepts_paths
def export(
    job: Job, plan: str | Mapping[str, Any], target: str = "", *, version: str = "", purpose: str = BENCHMARK,
    checkout: Path | None = None, program: str = "", arguments: str = "", surrogate: str = "default",
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    storage: str | None = None, machine: Machine | None = None, allow_tight: bool = False,
) -> Exported:  # fmt: skip
    """The words and files that start ``plan`` in ``target``; PlanError for a plan that is none of the job's.

    Without a ``target`` it is the one of the job's framework.

    ``checkout`` of Megatron-LM states the version, ``program`` is what a batch system starts, ``arguments`` are words
    of the program before those of the plan; ExportError names what the target has no words for. Whether the plan fits
    in memory is predicted as by `explain`, by ``surrogate`` and what follows; InfeasibleError where that is less likely
    than not, unless ``allow_tight``.
    """
    if checkout is not None:
        version = version_in(checkout)
    target = target or target_of(job)
    made = partial(exported, job, plan, target, version=version, purpose=purpose, program=program, arguments=arguments)
    try:
        found = made()  # which refuses a plan that is none of the job's
    except ExportError as error:
        if other := other_target(job, plan, target):
            raise ExportError(f"{error} --to {other} starts it.") from error
        raise
    # the memory that the plan lacks; None for one that is feasible
    model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    parsed = parse_plan(plan_without_predictions(plan), model.job)
    record = parsed.record
    if purpose == TRAINING and job.reliability != Reliability() and job.training.run_tokens is not None:
        found = made(saving=_saving(model, record))
    if short := shortage_of(model, model.cost_model(parsed.layouts), record):
        if not allow_tight:
            raise InfeasibleError(
                f"{short.sentence()} Nothing is written; allow_tight (--allow-tight) writes it all the same."
            )
        _log.warning("%s", short.sentence())
    for note in found.export.notes:
        _log.warning("%s", note)
    return found


def _saving(model: JobModel, plan: Mapping[str, Any]) -> Saving:
    """How often a run of the plan is best saved, by `goodput`, and how it goes on after failures.

    In the background where a checkpoint is written on after it has stopped training.
    """
    found = goodput(model, plan)
    background = bool(found.reliability.checkpoint_write_s)
    return Saving(found.interval_iterations, background, found.chosen.policy, found.chosen.spares)


def write(exported: Exported, path: Path) -> list[Path]:
    """The files that an export was written to: ``path`` itself where it is one file, else a folder of that name."""
    texts = dict(exported.export.files)
    if exported.export.program:
        texts["start.sh"] = exported.command()
    if len(texts) == 1 and not path.is_dir():
        write_whole(path, next(iter(texts.values())))
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(path / name, text)
    return [path / name for name in texts]
