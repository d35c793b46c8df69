"""Every target by its name, its versions, and which one a job's framework is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jointopt.core.errors import ExportError, UsageError, nearest_hint
from jointopt.core.schema import COLUMNS, NEUTRAL
from jointopt.frameworks.intent import Export, Intent
from jointopt.frameworks.megatron import checkout_version
from jointopt.frameworks.options import NEWEST, is_of_release, version_key
from jointopt.jobs.catalog.frameworks import framework_names, load_framework
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model, kinds_of
from jointopt.jobs.plans.rules import abilities


@dataclass(frozen=True)
class Target:
    """One target: its module in this package, the releases whose words are known, and the one that is usually meant."""

    module: str
    releases: tuple[str, ...] = ()  # none: the version is that of what it starts
    version: str = NEWEST
    around: bool = False  # it starts another target's words
    family: str = ""  # of the framework profiles that price what its words start
    alternates: bool = False  # writes dense layers and such with experts in any order

    def remark(self, framework: Framework) -> str:
        """A sentence where its words start other software than was priced by a framework's profile; else blank."""
        if self.around or framework.family == self.family:
            return ""
        started = self.module.replace("_", "-")
        return f"Priced as {framework.name} software, not as {started}: the times are those of the former."

    def export(self, intent: Intent, version: str = "", program: str = "") -> Export:
        """The export that its module makes of an intent; ``program`` is the target that a batch system starts."""
        module = importlib.import_module(f"jointopt.frameworks.{self.module}")
        made: Callable[..., Export] = module.export
        if program and not self.around:
            raise UsageError("--program names what a batch system starts: give it with --to slurm or kubernetes.")
        self._check(version, module.NAME)
        if not self.around:
            self._check_layers(intent.model, module.NAME)
            if lacks := self._lacks(intent):
                raise ExportError(f"{module.NAME} cannot express {', '.join(lacks)}; choose another plan or target.")
        found = made(intent, version or self.version, *([program] if self.around else []))
        if self.around or not intent.arguments:
            return found
        return replace(found, words=(*intent.arguments, *_without(found.words, intent.arguments)))

    def _check_layers(self, model: Model, name: str) -> None:
        """ExportError for a model whose layers are of kinds that the export has no words for."""
        plain = ["mla" if model.kv_lora_rank else "full"]
        kinds = [*dict.fromkeys(kind for layer in model.layers for kind in layer.mixers or ("none",))]
        if not kinds or (self.alternates and kinds == plain and all(layer.ffn != "none" for layer in model.layers)):
            return
        words = ", ".join(str(kinds_of("attention")[kind]["words"]) for kind in kinds)
        may = "dense layers and such with experts in any order" if self.alternates else "leading dense layers"
        raise ExportError(
            f"The export to {name} has no words for the layers of {model.name} ({words}); it writes one kind of "
            f"attention in all layers, sliding windows, and {may}."
        )

    def _lacks(self, intent: Intent) -> list[str]:
        """Choices of the plan beside the degrees that no framework profile of the target's family has."""
        profiles = [one for one in map(load_framework, framework_names()) if one.family == self.family]
        offers = [abilities(replace(intent.job.training, framework=profile)) for profile in profiles]
        return [
            f"{name} {intent[name]}"
            for name, value in NEUTRAL.items()
            if COLUMNS[name].offered
            and intent[name] != value
            and not any(intent[name] in found.get(name, (intent[name],)) for found in offers)
        ]

    def _check(self, version: str, name: str) -> None:
        """UsageError for a version of which no release is known; it is written into scripts as it stands."""
        if version and self.releases and not any(is_of_release(version, release) for release in self.releases):
            raise UsageError(f"--version of {name} must be one of {', '.join(self.releases)}; got {version!r:.80}.")


def _without(words: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    """The words without options and overrides that ``arguments`` state too, of which the later would count."""
    names = {word.partition("=")[0] for word in arguments if word.startswith("--") or "=" in word}
    dropped = False
    for word in words:
        if word.startswith("--") or "=" in word or ":" in word:
            dropped = word.partition("=")[0] in names
        if not dropped:
            yield word


# 0.12, 0.16.1 and 0.20 (the development branch of August 2026) were read, those between them by their changes
MEGATRON_CORE = (*(f"0.{minor}" for minor in range(12, 21)), NEWEST)
TARGETS = {
    "megatron": Target("megatron", MEGATRON_CORE, family="megatron-core", alternates=True),
    "megatron-bridge": Target("megatron_bridge", ("0.3.1",), "0.3.1", family="megatron-core", alternates=True),
    "torchtitan": Target("torchtitan", ("0.2.2", "0.3.0"), "0.3.0", family="torchtitan"),
    "deepspeed": Target("deepspeed", ("0.18", "0.19"), "0.19", family="deepspeed"),
    "nanotron": Target("nanotron", ("0.4", NEWEST), family="nanotron"),
    "accelerate": Target("accelerate", ("1.15",), "1.15", family="fsdp"),
    "slurm": Target("slurm", around=True),
    "kubernetes": Target("kubernetes", ("v1alpha2",), "v1alpha2", around=True),  # of JobSet
}
# which target runs a job of a framework profile; of all others, Megatron-LM
_OF_PROFILE = {
    "nemo": "megatron-bridge", "megatron-bridge": "megatron-bridge", "torchtitan": "torchtitan",
    "nanotron": "nanotron", "deepspeed": "deepspeed", "fsdp": "accelerate",
}  # fmt: skip


def target_named(name: str) -> Target:
    """The target of that name; UsageError names the nearest known one."""
    if name not in TARGETS:
        raise UsageError(f"--to must be one of {', '.join(TARGETS)}; got {name!r}{nearest_hint(name, TARGETS)}.")
    return TARGETS[name]


def target_of(job: Job) -> str:
    """The name of the target that runs the framework of a job."""
    return _OF_PROFILE.get(job.training.framework.name, "megatron")


def version_in(checkout: Path) -> str:
    """The version of a checkout of Megatron-LM; the development branch for what is newer than any known release."""
    stated = checkout_version(checkout)
    return NEWEST if version_key(stated) > version_key(f"{MEGATRON_CORE[-2]}.999") else stated


def program_of(intent: Intent, name: str = "") -> Target:
    """The target that a batch system starts: the named one, or that of the job's framework."""
    found = target_named(name or target_of(intent.job))
    if found.around:
        raise ExportError(f"--program must be a training framework; got {name}.")
    return found
