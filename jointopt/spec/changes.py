"""Changes of a job file by its keys, ``cluster.nodes`` for the key ``nodes`` of its section ``cluster``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import JobError, UsageError, close, did_you_mean
from jointopt.spec.catalog.clusters import KEYS as CLUSTER_KEYS
from jointopt.spec.check import shown
from jointopt.spec.job import Constraints, Search
from jointopt.spec.slurm import SLURM_KEYS
from jointopt.spec.trainingfile import TRAINING_KEYS

JOB_KEYS = ("name", "model", "training", "cluster", "search", "constraints", "objectives", "slurm")
SEARCH_KEYS = tuple(f.name for f in dataclasses.fields(Search))
CONSTRAINT_KEYS = tuple(f.name for f in dataclasses.fields(Constraints))
_SECTIONS = {
    "training": TRAINING_KEYS,
    "cluster": CLUSTER_KEYS,
    "search": SEARCH_KEYS,
    "constraints": CONSTRAINT_KEYS,
    "slurm": SLURM_KEYS,
}


def keys_meant(key: str) -> list[str]:
    """The keys of a job file, with their sections, that an unknown one may mean: those of its name, or the closest."""
    dotted = {f"{section}.{name}": name for section, names in _SECTIONS.items() for name in names}
    section, _, name = key.rpartition(".")
    same = [full for full, own in dotted.items() if own == name and full != key]
    if section in dotted:
        return [section]
    if section in _SECTIONS:
        return same or close(key, [full for full in dotted if full.startswith(f"{section}.")])
    meanings = {own: full for full, own in dotted.items()} | dict(zip(JOB_KEYS, JOB_KEYS, strict=True))
    return same or [meanings[word] for word in close(name, meanings)]


def check_changes(changes: Mapping[str, Any]) -> None:
    """UsageError for a key that no job file has; those of a model are judged with the model."""
    if not isinstance(changes, Mapping):
        kind = type(changes).__name__
        raise UsageError(f"changes must be a mapping such as {{'cluster.nodes': 4}}; got {kind}.")
    for key, value in changes.items():
        section, _, name = str(key).rpartition(".")
        if section != "model" and name not in (_SECTIONS.get(section, ()) if section else JOB_KEYS):
            given = f"{key}={value if isinstance(value, str) else shown(value)}"
            raise JobError(
                f"{given}: the key {key!r} is unknown{did_you_mean(keys_meant(str(key)))}; expected a key of the job "
                f"file: {', '.join(JOB_KEYS)}, or one within them such as cluster.nodes."
            )


def changed(mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of a job with other values for some keys; a section that was a catalogue name keeps it."""
    out = dict(mapping)
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        if not section:
            out[name] = value
            continue
        before = out.get(section)
        kept = {"catalog": before} if isinstance(before, str) and section == "cluster" else before
        if isinstance(kept, str):
            raise JobError(
                f"{key}: {section} is {kept!r}, whose keys are in the catalogue; write it out to change one."
            )
        out[section] = {**(kept or {}), name: value}
    return out
