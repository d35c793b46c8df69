"""Recipe classes: how well tuned the runs of a framework are, as multiples of what its kernels take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jointopt.core.schema import RECIPE_CLASSES
from jointopt.spec.catalog.frameworks import mentions
from jointopt.spec.catalog.gpus import read_yaml
from jointopt.spec.framework import Framework
from jointopt.spec.job import Job


def class_factors(name: str) -> tuple[float, float]:
    """Time of products and of element-wise kernels of a class of `RECIPE_CLASSES`, over those of a vendor's recipe."""
    entry: Mapping[str, float] = read_yaml("recipe_classes.yaml")[name]
    return entry["compute"], entry["elementwise"]


def of_class(profile: Framework, name: str) -> Framework:
    """The profile with the efficiency of class ``name``; itself where that is its own, or blank."""
    if name in ("", profile.recipe_class):
        return profile
    pairs = zip(class_factors(name), class_factors(profile.recipe_class), strict=True)
    compute, elementwise = (wanted / own for wanted, own in pairs)
    return replace(
        profile,
        compute_factor=profile.compute_factor * compute,
        elementwise_factor=profile.elementwise_factor * elementwise,
    )


def job_of_class(job: Job, name: str) -> Job:
    """The job by class ``name`` in place of its own; blank: the usual one of its framework."""
    training = job.training
    profile, now = training.framework, training.recipe_class
    moved = replace(
        of_class(replace(profile, recipe_class=now or profile.recipe_class), name or profile.recipe_class),
        recipe_class=profile.recipe_class,
    )
    return replace(job, training=replace(training, framework=moved, recipe_class=name))


def of_efficiency(job: Job, name: str) -> Job:
    """`job_of_class`, or the very job where its own class is as efficient."""
    training = job.training
    usual = training.framework.recipe_class
    same = class_factors(name or usual) == class_factors(training.recipe_class or usual)
    return job if same else job_of_class(job, name)


def same_efficiency(classes: list[str]) -> bool:
    """Whether classes, none blank, have one efficiency."""
    return len({class_factors(name) for name in classes}) == 1


def conflict(source: str, classes: list[str]) -> str:
    """The sentence on measured and predicted rows of one source that state ``classes`` of different efficiency."""
    return (
        f"Rows of {source or 'one source'} state different recipe classes ({', '.join(classes)}): each is priced by "
        "its own and those that state none as usual, and what measured runs of one class show moves the others too. "
        "Give one recipe_class to all, or each class a source of its own."
    )


def named_class(text: str) -> str:
    """The class of `RECIPE_CLASSES` that a table's free text names; blank where it names none, or several."""
    entries, low = read_yaml("recipe_classes.yaml"), text.strip().lower()
    found = [name for name in RECIPE_CLASSES if any(mentions(low, alias) for alias in entries[name]["aliases"])]
    return found[0] if len(found) == 1 else ""
