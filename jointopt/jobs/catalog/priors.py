"""What the settings that a job leaves open may well be: priors by framework, GPU, release and kind of model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from jointopt.core.schema import evaluate
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.frameworks import release_numbers, with_another
from jointopt.jobs.catalog.kernels import recipes_of, runnable_attention, scaling_recipe
from jointopt.jobs.job import Job

USUAL = "usual"  # of a setting that is not stated: what the profile has then


def open_priors(job: Job) -> dict[str, Mapping[Any, float]]:
    """Weights of the values of each setting of ``training`` that the job does not state, `USUAL` among them."""
    training, architecture = job.training, job.cluster.gpu.architecture.lower()
    framework, stated = training.framework, {*training.settings}
    stated |= {"fp8_recipe"} if training.fp8_recipe is not None else set()
    stated |= set() if training.attention_assumed and job.model.has_attention else {"attention"}
    stated |= {"moe_routing"} if training.moe_load_imbalance > 1.0 else set()
    words = {
        "framework": framework.name, "family": framework.family, "architecture": architecture, "dtype": training.dtype,
        "model": "moe" if job.model.is_moe else "dense", "nodes": job.cluster.nodes,
        "release": release_numbers(training.framework_release),
    }  # fmt: skip
    found = {}
    for setting, rows in read_yaml("priors.yaml").items():
        row = None if setting in stated else next((row for row in rows if evaluate(row["when"], words)), None)
        if row is not None:
            found[setting] = row["values"]
    return found


def alternatives(job: Job) -> Iterator[tuple[str, Any, float, Job]]:
    """(setting, value, weight, the job that states it) of the values of `open_priors` that change a job's price."""
    for setting, values in open_priors(job).items():
        for value, weight in values.items():
            if value != USUAL and (there := _with_value(job, setting, value)) is not None:
                yield setting, value, weight, there


def _with_value(job: Job, setting: str, value: Any) -> Job | None:
    """The job with a value of an open setting; None where it is priced as it is, or the GPU cannot run it so."""
    training, gpu = job.training, job.cluster.gpu
    if setting == "attention":
        changed = replace(training, attention=runnable_attention(gpu, value), attention_assumed=False)
        return None if changed.attention == training.attention else replace(job, training=changed)
    if setting == "fp8_recipe":
        if value not in recipes_of(training.dtype, gpu):
            return None
        changed = replace(with_another(training, {}, fp8_recipe=value), fp8_recipe=scaling_recipe(value, gpu))
        return replace(job, training=changed)
    changed = with_another(training, {setting: value})
    same = changed.framework == training.framework and not (setting == "moe_routing" and job.model.is_moe)
    return None if same else replace(job, training=changed)
