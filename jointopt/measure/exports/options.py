"""Command-line options of a framework by version: which exist, and what they state (``*_options.yaml``).

Exports write by these tables and imports read by them, so that each name stands once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointopt.core.errors import ExportError, UsageError
from jointopt.jobs.reading import package_yaml

NEWEST = "development"
_DEVELOPMENT = (NEWEST, "dev", "main")
_HIGHEST = (10**6,)


@dataclass(frozen=True)
class Option:
    """One option: the first version that has it and the first that has it no more; blank where all do."""

    sets: str = ""  # what its value states as it stands, such as plan.tp, model.num_layers, training.seq_length
    since: str = ""
    until: str = ""
    optional: bool = False  # left out, not refused, where a version does not have it
    also: tuple[str, ...] = ()  # other names that files give it
    matters: bool = False  # it changes the time of an iteration, and no column says it

    def known_to(self, version: str) -> bool:
        """Whether a version has it."""
        return version_key(self.since or "0") <= version_key(version) < version_key(self.until or NEWEST, end=True)


def is_of_release(version: str, release: str) -> bool:
    """Whether a version is that release, or one of its patches: ``0.16.1`` of ``0.16``, ``0.3`` of ``0.3.0``."""
    if not release[0].isdigit():
        return version == release or (release == NEWEST and version in _DEVELOPMENT)
    try:
        pairs = zip(version_key(version), version_key(release), strict=False)
    except UsageError:
        return False
    return all(one == other for one, other in pairs)


def version_key(version: str, end: bool = False) -> tuple[int, ...]:
    """A version as numbers to compare by; the newest is above all. UsageError for text that is no version."""
    if version in (*_DEVELOPMENT, ""):
        return (*_HIGHEST, 1) if end else _HIGHEST
    numbers = re.fullmatch(r"(?:core_)?[rv]?(\d+(?:\.\d+)*)[\w.+-]*", version, re.ASCII)
    if numbers is None:
        raise UsageError(f"--version must be a version such as 0.16.1, or {NEWEST}; got {version!r}.")
    return tuple(int(part) for part in numbers[1].split("."))


@functools.cache
def option_table(framework: str) -> Mapping[str, Option]:
    """The options of a framework by their names, without dashes in front."""
    return {name: Option(**(entry or {})) for name, entry in _file(framework)["options"].items()}


@functools.cache
def without_effect(framework: str) -> re.Pattern[str]:
    """Matches names, with underscores, of options that change neither the layout nor the time of an iteration."""
    words = [name.replace("-", "_") for name in _file(framework)["without_effect"]]
    return re.compile("|".join(word[:-1] if word.endswith("*") else rf"{word}\Z" for word in words))


@functools.cache
def _file(framework: str) -> Mapping[str, Any]:
    loaded: dict[str, Any] = package_yaml(Path(__file__).with_name(f"{framework}_options.yaml"))
    return loaded


class Words:
    """The command line of one version, option by option, in the order in which they are given."""

    def __init__(self, framework: str, version: str) -> None:
        self.framework, self.version = framework, version
        self._table, self._key = option_table(framework), version
        self._words: list[str] = []

    def add(self, **values: Any) -> None:
        """``--name value`` of each value, ``--name`` for True, several words for a tuple; None and False are left out.

        ExportError where the version has no such option and does without it only as another run.
        """
        for name, value in values.items():
            if value is None or value is False or value == ():
                continue
            option = name.replace("_", "-")
            entry = self._table[option]
            if entry.known_to(self._key):
                self._words += ["--" + option, *_values(value)]
            elif not entry.optional:
                raise ExportError(f"{self.framework} {self.version} has no --{option}, which the plan needs.")

    def has(self, name: str) -> bool:
        """Whether the version has an option."""
        return self._table[name.replace("_", "-")].known_to(self._key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)


def _values(value: Any) -> list[str]:
    if value is True:
        return []
    return [str(part) for part in value] if isinstance(value, tuple) else [str(value)]
