"""Every exception that jointopt raises on purpose; the classes give the exit codes.

A message is one sentence: what is wrong, where, what was expected, what was got, what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class JointOptError(Exception):
    """Root of all errors that jointopt raises on purpose; ``exit_code`` is what a command returns."""

    exit_code = 1


class UsageError(JointOptError):
    """The input is wrong; the message names the place and what was expected there."""

    exit_code = 2


class JobError(UsageError):
    """A key of the job file is unknown, missing, of a wrong type, or contradicts another."""


class CatalogError(UsageError):
    """A name that no catalogue knows, or a blank catalogue cell that the job needs."""


class PlanError(UsageError):
    """A plan that is not a point of the job's joint space."""


class TableError(UsageError):
    """A table that cannot be read, or a cell in it that makes no sense."""


@contextmanager
def naming_table(path: object) -> Iterator[None]:
    """Puts the path of a table before the sentence of a TableError that its body raises on "the table"."""
    try:
        yield
    except TableError as error:
        sentence = str(error)
        if not re.match(r"(The|No row of the|Row [\d,]+ of the) table\b", sentence):
            raise
        raise TableError(f"{path}: {sentence[0].lower()}{sentence[1:]}") from error


class OutageError(JointOptError):
    """A database that cannot be used for now (locked, restarting, out of connections), and will be by itself."""


class InfeasibleError(JointOptError):
    """The job is well-formed and nothing satisfies it; the message says why and what would help."""


class LauncherError(JointOptError):
    """No run can be started, whatever the plan; a run that fails is a measurement and no error."""


class ExportError(LauncherError):
    """A framework has no words for a point of a job or a plan; the message names the point and the framework."""


class DeviceError(LauncherError):
    """A GPU of this machine does not answer, has no meter, or cannot be set at all."""


class RankOrderError(DeviceError):
    """A program runs other stages on its ranks than the plan whose clocks were to be set."""


class DevicePermissionError(DeviceError):
    """Clocks and power limits are not this user's to set."""


class RunFailedError(Exception):
    """A run of one plan that ended without a result; the fault of that plan, and no end of a search."""


class EndedEarlyError(RunFailedError):
    """A run that its launcher ended before it had a result, since it was clearly behind others."""


class OutOfMemoryError(RunFailedError):
    """A run that ran out of GPU memory, as its layout does at every clock."""


def nearest_hint(word: object, known: Iterable[str]) -> str:
    """The end of a message, `` (did you mean 'x'?)``, with the known word closest to ``word``; blank where none is."""
    return did_you_mean(close_words(word, known))


def did_you_mean(words: Sequence[str]) -> str:
    """The end of a message, `` (did you mean 'x', 'y' or 'z'?)``; blank for no words."""
    text = " or ".join(filter(None, [", ".join(map(repr, words[:-1])), *map(repr, words[-1:])]))
    return f" (did you mean {text}?)" if text else ""


def close_words(word: object, known: Iterable[str], most: int = 1, alike: float | None = None) -> list[str]:
    """The ``known`` words that are like ``word``, the closest first, at most ``most`` of them.

    ``alike``: the least similarity, from 0 to 1; by default 0.6, and 0.5 where ``word`` has at most three letters.
    """
    text = str(word).lower()
    least = alike if alike is not None else 0.5 if len(text) <= 3 else 0.6
    return difflib.get_close_matches(text, sorted(known), n=most, cutoff=least)
