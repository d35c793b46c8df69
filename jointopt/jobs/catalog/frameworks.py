"""Framework profiles: load by name, or recognise one in a table's free text."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jointopt.core.errors import CatalogError, nearest_hint
from jointopt.core.schema import OVERLAPS, RECIPE_CLASSES, evaluate
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import SETTINGS, Job, ScalingRecipe, Training


@functools.cache
def _profiles() -> dict[str, Framework]:
    profiles: dict[str, Framework] = {}
    for name, entry in read_yaml("frameworks.yaml").items():
        base = profiles[entry["like"]] if "like" in entry else Framework()
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items() if k != "like"}
        fields["changes"] = (*base.changes, *fields.get("changes", ()))
        # a relative neither answers to its parent's names nor shares its measurements
        own: dict[str, Any] = {"aliases": (), "fitted": False} | fields
        own["rules"] = framework_rules(own.get("family", base.family))
        profiles[name] = dataclasses.replace(base, name=name, **own)
    return profiles


def framework_rules(family: str, version: str = "") -> tuple[str, ...]:
    """Names of the rules that a ``version`` of a family of frameworks adds to those of every one; blank: the newest."""
    rules = read_yaml("framework_rules.yaml").get(family, {})

    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)]

    older = {name: rule["before"] for name, rule in rules.items() if "before" in rule}
    return tuple(n for n in rules if n not in older or (version and numbers(version) < numbers(older[n])))


def framework_names() -> tuple[str, ...]:
    """Every framework name of the catalogue."""
    return tuple(_profiles())


def load_framework(name: str) -> Framework:
    """The profile of that name; CatalogError names the nearest known one."""
    profiles = _profiles()
    if name not in profiles:
        raise CatalogError(
            f"training.framework must be one of {', '.join(profiles)} (generic is for all others); got {name!r}"
            f"{nearest_hint(name, profiles)}."
        )
    return profiles[name]


def recognise_framework(text: str) -> tuple[Framework, bool]:
    """The profile that a table's free text means, and whether it was recognised (else ``generic``)."""
    low, named = text.strip().lower(), dict[str, Framework]()
    for profile in reversed(_profiles().values()):
        named |= {alias: profile for alias in profile.aliases if mentions(low, alias)}
        if low == profile.name:
            named[low] = profile
    return (named[max(named, key=len)], True) if named else (load_framework("generic"), False)


def named_release(text: str) -> str:
    """The release that text on software names: 24.07 of "NeMo 24.07", 0.12.0 of "core_v0.12.0", v1; no >=0.16."""
    found = _RELEASE.search(text) or _MAJOR.search(text)
    return found[1] if found else ""


def release_numbers(text: str) -> tuple[int, ...]:
    """The numbers of the release that a text names, (26, 4, 1); empty where it names none."""
    return tuple(int(part) for part in named_release(text).lstrip("v").split(".") if part)


def newer_than_known(profile: Framework, text: str) -> bool:
    """Whether a text names a newer release than any that the profile's changes know of."""
    return bool(profile.newest_release) and release_numbers(text) > release_numbers(profile.newest_release)


KIND_WORDS = ("dtype", "fp8_recipe", "architecture", "model", "attention_kind")


def kind_of_runs(
    gpu: Gpu, dtype: str, recipe: ScalingRecipe | None, experts: object, latents: object
) -> dict[str, str]:  # fmt: skip
    """What a profile's changes are chosen by beside settings, by `KIND_WORDS`: a blank word where nothing is meant."""
    scaling = recipe.name if recipe else ""
    words = (dtype, scaling, gpu.architecture.lower(), "moe" if experts else "dense", "mla" if latents else "")
    return dict(zip(KIND_WORDS, words, strict=True))


def with_settings(profile: Framework, settings: Mapping[str, Any], **kind: str) -> Framework:
    """The profile of runs with ``settings`` (of `jointopt.jobs.job.SETTINGS`): its changes that apply, in their order.

    What a change sets may be an expression of the profile's fields before it. ``when`` names the settings, None where
    they are not stated, ``release`` (numbers of a release, as in ``release >= (26, 6)``), and what ``kind`` names.
    """
    values: dict[str, Any] = dict.fromkeys(SETTINGS) | dict(settings)
    values |= dict.fromkeys(KIND_WORDS, "")
    values["release"] = release_numbers(values["framework_release"] or "")
    for change in profile.changes:
        if evaluate(change["when"], values | kind):
            fields = {k: evaluate(v, vars(profile)) if isinstance(v, str) else v for k, v in change["set"].items()}
            profile = replace(profile, **fields)
    for name, share in values.items():
        if name in OVERLAPS and share is not None:
            # what hides by itself goes on to hide
            usual = max(getattr(profile, f"chosen_{name}"), getattr(profile, name))
            on = usual if share is True else float(share)
            fields = {name: on} | ({f"chosen_{name}": on} if on else {})
            if name == "ep_overlap" and share is not True:  # whatever the fabric
                fields["network_ep_share"] = 1.0
            profile = replace(profile, **fields)
    return replace(profile, kind=kind)


def with_another(training: Training, settings: Mapping[str, Any], **kind: str) -> Training:
    """The training with ``settings`` beside those that it states: its profile has what these change, else its own.

    ``kind``: what they change of the kind of job that changes are chosen for.
    """
    of_kind = {**training.framework.kind, **kind}
    before, after = (
        profile_of_class(with_settings(load_framework(training.framework.name), stated, **words), training.recipe_class)
        for stated, words in (
            (training.settings, training.framework.kind), (training.settings | dict(settings), of_kind),
        )
    )  # fmt: skip
    changed = {name: value for name, value in vars(after).items() if value != getattr(before, name)}
    return replace(training, framework=replace(training.framework, **changed | {"kind": of_kind}), **settings)


def is_newer(framework: Framework, text: str, otherwise: bool) -> bool:
    """Whether ``text`` names a release (its first number with a dot) that is none of the framework's older ones.

    ``otherwise``: the answer where it names none.
    """
    found = _RELEASE.search(text)
    return otherwise if found is None else not any(f"{found[1]}.".startswith(f"{r}.") for r in framework.older_releases)


_RELEASE = re.compile(r"(?<![\d.<>=])(\d+(?:\.\d+)+)")
_MAJOR = re.compile(r"(?<![\w.])(v\d+)(?![\w.])")  # a release of one number, which needs its v


def framework_of_words(text: str) -> Framework | None:
    """The profile that free text of several words means ("MLPerf submission, NeMo"), else None.

    None too where the text is nearer to another profile's name: "megatron deepsped" is no megatron-lm.
    """
    profile, known = recognise_framework(text)
    close = difflib.get_close_matches(text.strip().lower(), framework_names(), n=1)
    one_word = len(re.split(r"[\s,;]+", text.strip())) < 2
    return None if one_word or not known or (close and close != [profile.name]) else profile


_DENIED = re.compile(r"(\b(not|no|non|never|without|unlike|like|instead of|rather than)|n't)[\s-]+(\w+[\s-]+){0,2}$")


def mentions(text: str, alias: str) -> bool:
    """Whether lower-case ``text`` names ``alias``: "megatron_lm 2.4" does; "not Megatron", "Megatron-like" do not."""
    return any(not _DENIED.search(text[: found.start()]) for found in _whole_words(alias).finditer(text))


@functools.cache
def _whole_words(alias: str) -> re.Pattern[str]:
    words = r"[\s_-]*".join(map(re.escape, alias.split("-")))
    return re.compile(rf"(?<![a-z0-9]){words}(?![a-z])(?![\s-]*(like|style|inspired)\b)")


# Recipe classes: how well tuned the runs of a framework are, as multiples of what its kernels take.


def class_factors(name: str) -> tuple[float, float]:
    """(products, element-wise kernels): times under a class of `RECIPE_CLASSES` over those of a vendor's recipe."""
    entry: Mapping[str, float] = read_yaml("recipe_classes.yaml")[name]
    return entry["compute"], entry["elementwise"]


def profile_of_class(profile: Framework, name: str) -> Framework:
    """The profile with the kernel times of class ``name``; itself where that is blank or its own class."""
    if name in ("", profile.recipe_class):
        return profile
    pairs = zip(class_factors(name), class_factors(profile.recipe_class), strict=True)
    compute, elementwise = (wanted / own for wanted, own in pairs)
    return replace(
        profile,
        compute_factor=profile.compute_factor * compute,
        elementwise_factor=profile.elementwise_factor * elementwise,
    )


def job_of_efficiency(job: Job, name: str) -> Job:
    """The job as `job_of_class`, or itself where its own class has the same kernel times."""
    training = job.training
    usual = training.framework.recipe_class
    same = class_factors(name or usual) == class_factors(training.recipe_class or usual)
    return job if same else job_of_class(job, name)


def job_of_class(job: Job, name: str) -> Job:
    """The job with recipe class ``name`` in place of its own; blank: the usual one of its framework."""
    profile, now = job.training.framework, job.training.recipe_class
    usual = profile.recipe_class
    efficient = profile_of_class(replace(profile, recipe_class=now or usual), name or usual)
    framework = replace(efficient, recipe_class=usual)
    return replace(job, training=replace(job.training, framework=framework, recipe_class=name))


def same_efficiency(classes: list[str]) -> bool:
    """Whether all classes, of which none is blank, have the same kernel times."""
    return len({class_factors(name) for name in classes}) == 1


def conflict_sentence(source: str, classes: list[str]) -> str:
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
