"""The best MFU that was ever recorded on a GPU, in a precision, of a kind of model."""

from __future__ import annotations

from dataclasses import dataclass

from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.job import Job


@dataclass(frozen=True)
class BestMfu:
    """A record and the run that holds it."""

    mfu: float  # share of the GPU's dense peak in that precision
    run: str  # model, GPUs and software
    source: str  # the table of recorded runs
    rows: int  # recorded runs of that kind


def model_kind(job: Job) -> str:
    """The kind of model by which records are kept: ``adapters`` (beside frozen weights), ``moe`` or ``dense``."""
    return "adapters" if job.training.frozen else "moe" if job.model.is_moe else "dense"


def best_mfu(job: Job) -> BestMfu | None:
    """The record of the job's GPU, precision and kind of model; None where no tuned runs of these were recorded."""
    of_gpu = read_yaml("best_mfu.yaml")["best"].get(job.cluster.gpu.id, {})
    found = of_gpu.get(job.training.precision, {}).get(model_kind(job))
    return None if found is None else BestMfu(**found)
