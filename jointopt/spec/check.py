"""Typed reading of a mapping that a person wrote: a refusal names key, expectation and value."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jointopt.core.errors import JobError, close, did_you_mean, nearest

# Above any real figure, and small enough that products of three of them stay within float64 and int64 ranges.
MOST = 10**9


def shown(value: object) -> str:
    """A value as a message shows it: one line, cut off, never failing (``repr`` of a huge int can)."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Section:
    """One mapping of a file and the place where it stands, for example ``training`` or ``config.json``."""

    values: Mapping[Any, Any]
    where: str

    def at(self, key: str) -> str:
        """The place of a key, as a message names it."""
        return f"{self.where}.{key}" if self.where else key

    def refuse(self, key: str, expected: str) -> JobError:
        """The error for a key whose value is not what was expected."""
        if self.values.get(key) is None:
            return JobError(f"{self.at(key)} is missing; expected {expected}.")
        return JobError(f"{self.at(key)} must be {expected}; got {shown(self.values[key])}.")

    def only(self, known: Iterable[str], meant: Callable[[str], Sequence[str]] | None = None) -> Section:
        """Itself, after refusing keys that are not known; ``meant`` are those that an unknown one may stand for."""
        names = list(known)
        for key in self.values:
            if key not in names:
                place = f" in {self.where}" if self.where else ""
                near = (meant or (lambda word: close(word, names)))(key) if isinstance(key, str) else []
                hint = did_you_mean(near)
                raise JobError(f"The key {shown(key)}{place} is unknown{hint}; expected {', '.join(names)}.")
        return self

    def has(self, key: str) -> bool:
        """Whether the key is given; a key without a value counts as not given."""
        return self.values.get(key) is not None

    def _checked(self, key: str, default: Any, fits: Callable[[Any], bool], expected: str) -> Any:
        """The value, which must fit; the default where there is one and no value."""
        if default is not None and not self.has(key):
            return default
        if not fits(self.values.get(key)):
            raise self.refuse(key, expected)
        return self.values[key]

    def whole(self, key: str, low: int = 1, high: int = MOST, default: int | None = None, why: str = "") -> int:
        """A whole number from ``low`` to ``high``; a bool is none. Without a default the key is required.

        ``why``: of the highest, which a refusal adds.
        """
        expected = f"a whole number from {low:,} to {high:,}{why}"
        return int(self._checked(key, default, lambda value: is_whole(value) and low <= value <= high, expected))

    def number(
        self, key: str, high: float = 1e15, *, zero: bool = False, default: float | None = None, why: str = ""
    ) -> float:
        """A finite number above 0 (from 0 on with ``zero``) and at most ``high``; ``why`` as for `whole`."""
        expected = f"a number {'from 0 on' if zero else 'above 0'}, at most {high:,.15g}{why}"
        return float(
            self._checked(key, default, lambda v: is_number(v) and 0 <= v <= high and (v != 0 or zero), expected)
        )

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false, and nothing else."""
        return bool(self._checked(key, default, lambda value: isinstance(value, bool), "true or false"))

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """One word out of a few."""
        words, value = list(choices), self.values.get(key)
        hint = nearest(value, words) if isinstance(value, str) and value not in words else ""
        expected = f"one of {', '.join(words)}{hint}"
        return str(self._checked(key, default, lambda word: isinstance(word, str) and word in words, expected))

    def text(self, key: str, default: str | None = None, most: int = 200) -> str:
        """A non-empty line of text of at most ``most`` characters."""

        def fits(value: Any) -> bool:
            return isinstance(value, str) and value.strip() != "" and len(value) <= most and value.isprintable()

        expected = "one line of text (in quotes where it looks like a number or a bool)"
        return str(self._checked(key, default, fits, expected))

    def version(self, known: int) -> int:
        """The version of the file, which must be the known one."""
        if self.whole("version") != known:
            raise self.refuse("version", f"{known}, the only one that this jointopt reads")
        return known

    def section(self, key: str, known: Iterable[str] | None = None) -> Section:
        """The mapping under a key, with known keys only (None: any); an empty one where the key is not given."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.refuse(key, "a mapping of keys to values")
        return Section(value or {}, self.at(key)).only(value or () if known is None else known)


def is_whole(value: object) -> bool:
    """Whether it is an integer; a bool is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a finite real number; bools, NaN and infinities are not."""
    if is_whole(value):
        return True
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
