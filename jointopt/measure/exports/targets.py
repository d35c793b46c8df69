"""Every target by its name, its versions, and which one a job's framework is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jointopt.core.errors import ExportError, UsageError, nearest
from jointopt.measure.exports.intent import Export, Intent
from jointopt.measure.exports.options import NEWEST, version_key
from jointopt.spec.framework import Framework


@dataclass(frozen=True)
class Target:
    """One target: its module in this package, and the version that is meant where none is stated."""

    module: str
    version: str = NEWEST
    around: bool = False  # it starts another target's words
    family: str = ""  # of the framework profiles that price what its words start

    def remark(self, framework: Framework) -> str:
        """A sentence where its words start other software than was priced by a framework's profile; else blank."""
        if self.around or framework.family == self.family:
            return ""
        started = self.module.replace("_", "-")
        return f"Priced as {framework.name} software, not as {started}: the times are those of the former."

    def export(self, intent: Intent, version: str = "", program: str = "") -> Export:
        """The export that its module makes of an intent; ``program`` is the target that a batch system starts."""
        module = importlib.import_module(f"jointopt.measure.exports.{self.module}")
        made: Callable[..., Export] = module.export
        if program and not self.around:
            raise UsageError("--program names what a batch system starts: give it with --to slurm or kubernetes.")
        if version:  # it is written into scripts, also where nothing depends on it
            version_key(version)
        found = made(intent, version or self.version, *([program] if self.around else []))
        if self.around or not intent.arguments:
            return found
        return replace(found, words=(*intent.arguments, *_without(found.words, intent.arguments)))


def _without(words: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    """The words without options and overrides that ``arguments`` state too, of which the later would count."""
    names = {word.partition("=")[0] for word in arguments if word.startswith("--") or "=" in word}
    dropped = False
    for word in words:
        if word.startswith("--") or "=" in word or ":" in word:
            dropped = word.partition("=")[0] in names
        if not dropped:
            yield word


TARGETS = {
    "megatron": Target("megatron", family="megatron-core"),
    "megatron-bridge": Target("megatron_bridge", "0.3.1", family="megatron-core"),
    "torchtitan": Target("torchtitan", "0.3.0", family="torchtitan"),
    "deepspeed": Target("deepspeed", "0.19", family="deepspeed"),
    "nanotron": Target("nanotron", family="nanotron"),
    "accelerate": Target("accelerate", "1.15", family="fsdp"),
    "slurm": Target("slurm", around=True),
    "kubernetes": Target("kubernetes", "v1alpha2", around=True),
}
# which target runs a job of a framework profile; of all others, Megatron-LM
_OF_PROFILE = {
    "nemo": "megatron-bridge", "megatron-bridge": "megatron-bridge", "torchtitan": "torchtitan",
    "nanotron": "nanotron", "deepspeed": "deepspeed", "fsdp": "accelerate",
}  # fmt: skip


def target_named(name: str) -> Target:
    """The target of that name; UsageError names the nearest known one."""
    if name not in TARGETS:
        raise UsageError(f"--to must be one of {', '.join(TARGETS)}; got {name!r}{nearest(name, TARGETS)}.")
    return TARGETS[name]


def program_of(intent: Intent, name: str = "") -> Target:
    """The target that a batch system starts: the named one, or that of the job's framework."""
    found = target_named(name or _OF_PROFILE.get(intent.job.training.framework.name, "megatron"))
    if found.around:
        raise ExportError(f"--program must be a training framework; got {name}.")
    return found
