"""Text cells of a plan as whole numbers, so that every column of many plans is one array.

Each kind of text has ``code`` (from a cell to its number), ``text`` (back) and ``expected`` (the words that complete a
message's "must be").
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

MOST_LAYERS = 10**6  # of a chunk; more than any model has
MOST_CHUNKS = 4096  # numbers in one list; no pipeline has more chunks
_LIST = re.compile(r"\d+(\*\d+)?")
_SEPARATORS = re.compile(r"[;,\s]+")


class Names:
    """One of a few words; the number is the word's position. ``spellings`` are further words for them."""

    def __init__(self, names: Sequence[str], spellings: Mapping[str, str] | None = None) -> None:
        self.names, self._spellings = tuple(names), dict(spellings or {})
        self.expected = f"one of {', '.join(names)}"

    def code(self, value: object) -> int:
        """Position of the word, in any letter case."""
        word = str(value).strip().lower()
        return self.names.index(self._spellings.get(word, word))

    def text(self, code: int) -> str:
        """The word at a position."""
        return self.names[code]


class Sets:
    """A set of a few words, ``mlp;moe_act``; the number has a bit for each. Blank or ``-`` is the empty set.

    The word ``alone`` goes with no other.
    """

    def __init__(self, names: Sequence[str], alone: str = "") -> None:
        self.names, self._alone = tuple(names), alone
        several = f"some of {', '.join(name for name in names if name != alone)}, separated by semicolons"
        self.expected = f"{alone}, or {several}" if alone else several

    def code(self, value: object) -> int:
        """The bits of the words, in any order; ValueError for others, and for more beside the one that stands alone."""
        words = value if isinstance(value, list | tuple) else _SEPARATORS.split(str(value).strip("[] "))
        found = {word.strip("'\"").lower() for word in map(str, words) if word.strip("-")}
        if self._alone in found and len(found) > 1:
            raise ValueError(f"{self._alone} stands alone")
        return sum(1 << self.names.index(word) for word in found)

    def text(self, code: int) -> str:
        """The words of the bits, in the column's order."""
        return ";".join(name for bit, name in enumerate(self.names) if code >> bit & 1)

    def bit(self, name: str) -> int:
        """The number of the set of that one word."""
        return 1 << self.names.index(name)


class Lists:
    """A list of whole numbers, ``7;8;8;7`` or ``7;8*2;7``; the number counts the lists in the order they were met.

    A blank is 0. Other processes have other numbers, so that files hold the text.
    """

    expected = "whole numbers separated by semicolons, such as 7;8;8;7"

    def __init__(self) -> None:
        self._lists: list[tuple[int, ...]] = [()]
        self._codes: dict[tuple[int, ...], int] = {(): 0}

    def code(self, value: object) -> int:
        """The number of a list; ValueError for anything else."""
        words = value if isinstance(value, list | tuple) else _SEPARATORS.split(str(value).strip("[]-; "))
        numbers: list[int] = []
        for word in (str(word).strip() for word in words if str(word).strip()):
            number, _, times = word.partition("*")
            too_many = not _LIST.fullmatch(word) or len(numbers) + int(times or 1) > MOST_CHUNKS
            if too_many or int(number) > MOST_LAYERS:
                raise ValueError(word)
            numbers += [int(number)] * int(times or 1)
        return self.code_of(numbers)

    def code_of(self, numbers: Iterable[int]) -> int:
        """The number of a list, a new one where it was not met before."""
        key = tuple(numbers)
        if key not in self._codes:
            self._codes[key] = len(self._lists)
            self._lists.append(key)
        return self._codes[key]

    def numbers(self, code: int) -> tuple[int, ...]:
        """The list of a number; empty for a blank."""
        return self._lists[code]

    def text(self, code: int) -> str:
        """The list as a cell."""
        return ";".join(map(str, self._lists[code]))

    def short(self, code: int) -> str:
        """The list with runs of equal numbers in one: ``7;8*14;7``."""
        runs = [(number, len(list(equal))) for number, equal in itertools.groupby(self._lists[code])]
        return ";".join(f"{number}*{times}" if times > 1 else str(number) for number, times in runs)


Codes = Names | Sets | Lists
