"""What others reached: plans published for training runs (``studies/recipes/recipes.yaml``), and the best MFU."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jointopt.core.errors import CatalogError
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.models import known_model
from jointopt.jobs.job import Job
from jointopt.jobs.reading import package_yaml

_FILE = Path(__file__).parents[2] / "studies" / "recipes" / "recipes.yaml"


@dataclass(frozen=True)
class Recipe:
    """One published plan: for which model, GPUs and batch, in the words of `jointopt explain --plan`."""

    model: str  # a catalogue name
    gpu: str  # a catalogue id
    num_gpus: int
    gpus_per_node: int
    seq_length: int
    global_batch_size: int
    dtype: str
    framework: str
    plan: str
    source: str
    name: str = ""  # that its source gives it
    iteration_time_s: float | None = None  # as published; None where it is not
    mfu: float | None = None  # of the dense 16-bit peak, as published


@functools.cache
def recipes() -> tuple[Recipe, ...]:
    """Every published plan of the catalogue, in the order of the file."""
    parts = package_yaml(_FILE)
    return tuple(Recipe(source=part["source"], **entry) for part in parts for entry in part["recipes"])


def recipes_of(model: str = "") -> tuple[Recipe, ...]:
    """The published plans of a model (any of its names), all without one; CatalogError where there are none."""
    known = known_model(model)
    wanted = known.name if known else model
    found = tuple(recipe for recipe in recipes() if not model or recipe.model == wanted)
    if not found:
        names = ", ".join(dict.fromkeys(recipe.model for recipe in recipes()))
        raise CatalogError(f"No published plan of model {model!r} is in the catalogue; it has those of {names}.")
    return found


def recipes_for(job: Job) -> Iterator[Recipe]:
    """The published plans of the job's model (whatever its name), GPU, number of GPUs, sequence length and batch."""
    training, cluster = job.training, job.cluster
    key: tuple[Any, ...] = (cluster.gpu.id, cluster.num_gpus, training.seq_length, training.global_batch_size)
    for recipe in recipes():
        if key == (recipe.gpu, recipe.num_gpus, recipe.seq_length, recipe.global_batch_size):
            model = known_model(recipe.model)
            if model is not None and replace(model, name="") == replace(job.model, name=""):
                yield recipe


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
