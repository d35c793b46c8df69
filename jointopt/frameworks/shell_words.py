"""Words of a shell, each with the place that states it, and what is not known of it.

A value is a row of pieces. A piece is known text, or an `Unknown`: a variable that nobody set, the output of a program,
or one of several texts, by the branch of an ``if`` that was taken (its fork).
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Unknown(NamedTuple):
    """A part of a word that only a running shell knows."""

    name: str  # as the script writes it: $TP, $(hostname)
    variable: str = ""  # what can be set from outside: a variable's name or the number of an argument; blank: nothing
    place: str = ""
    fork: int = 0  # of one of several values: the fork that decides; 0: nothing is known
    ways: tuple[tuple[Text, ...], ...] = ()  # by the branch of that fork: the words of each value
    is_list: bool = False  # any number of words, also between quotes: "$@"
    set_by: str = ""  # a file that was not given, or a batch system, that may set the variable
    nonempty: bool = False  # it is not empty


class Piece(NamedTuple):
    """A part of a word."""

    text: str = ""
    place: str = ""  # file and line that state it
    default: bool = False  # the script's own, where a variable or an argument from outside could say otherwise
    quoted: bool = True  # not split at blanks
    unknown: Unknown | None = None
    ends_word: bool = False  # between two elements of an array
    unset: str = ""  # the variable that is not set, of which this is the empty value


Text = tuple[Piece, ...]
CLASSES = {"digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "space": " \\t", "upper": "A-Z", "lower": "a-z"}
END = Piece(ends_word=True)


class Word(str):
    """A word of a command: its text, in which what is unknown stands as the script writes it, and its pieces."""

    __slots__ = ("pieces",)
    pieces: Text

    def __new__(cls, pieces: Iterable[Piece]) -> Word:
        """The word of these pieces."""
        parts = tuple(pieces)
        word = super().__new__(cls, "".join(p.unknown.name if p.unknown else p.text for p in parts))
        word.pieces = parts
        return word

    @property
    def unknown(self) -> Unknown | None:
        """The first part that is not known; None where all are."""
        return next((p.unknown for p in self.pieces if p.unknown), None)

    @property
    def may_split(self) -> bool:
        """Whether it may expand to no word, or to several."""
        splits = any(p.unknown and (p.unknown.is_list or not p.quoted) for p in self.pieces)
        return splits and all(p.unknown for p in self.pieces)

    @property
    def place(self) -> str:
        """The file and line that state it."""
        return next((p.place for p in self.pieces if p.place), "")

    @property
    def default(self) -> bool:
        """Whether it is the script's own default."""
        return any(p.default for p in self.pieces)

    def rest(self, start: int) -> Word:
        """The word without its first ``start`` characters, which are known."""
        pieces = []
        for piece in self.pieces:
            cut = min(start, len(piece.text)) if piece.unknown is None else 0
            start -= cut
            pieces.append(piece._replace(text=piece.text[cut:]))
        return Word(pieces)


def unknown_of(value: object) -> Unknown | None:
    """The part of a word that is not known; None of a known word, or of a value that no script states."""
    return value.unknown if isinstance(value, Word) else None


def literal(text: str, place: str, default: bool = False) -> Text:
    """The text of one known piece."""
    return (Piece(text, place, default),)


def unknown_text(
    name: str, variable: str = "", place: str = "", quoted: bool = True, is_list: bool = False, set_by: str = "",
    nonempty: bool = False,
) -> Text:  # fmt: skip
    """The text of one unknown piece."""
    unknown = Unknown(name, variable, place, is_list=is_list, set_by=set_by, nonempty=nonempty)
    return (Piece(quoted=quoted, unknown=unknown),)


def intersperse(texts: Iterable[Text], sign: str) -> Text:
    """The texts as one, with a sign between them."""
    return tuple(piece for at, text in enumerate(texts) for piece in ((Piece(sign),) * bool(at) + text))


def merge_pieces(text: Text) -> Text:
    """The text with neighbours merged: known pieces of one kind and place, and those of a variable that is not set."""
    found: list[Piece] = []
    for piece in text:
        last = found[-1] if found else END
        if piece.unset and piece.unset == last.unset:
            continue
        if piece.unknown or last.unknown or last.ends_word or piece.ends_word or piece[1:4] != last[1:4] or piece.unset:
            found.append(piece)
        else:
            found[-1] = last._replace(text=last.text + piece.text)
    return tuple(found)


def split_lines(pieces: Iterable[Piece]) -> list[Text]:
    """The lines of a text, the last of which may lack its end."""
    lines: list[list[Piece]] = [[]]
    for piece in pieces:
        for at, part in enumerate(piece.text.split("\n")):
            if at:
                lines.append([])
            if part or piece.unknown or not piece.text:
                lines[-1].append(piece._replace(text=part))
    return [tuple(line) for line in (lines if lines[-1] else lines[:-1])]


def common_files(files: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The files that have one text in all branches in which they are written."""
    found = {name: text for one in files for name, text in one.items()}
    return {name: text for name, text in found.items() if all(one.get(name, text) == text for one in files)}


def strip_newlines(text: Text) -> Text:
    """A text without trailing newlines, in each of its branches."""
    rest = [*text]
    while rest:
        last = rest.pop()
        if last.unknown and last.unknown.fork:
            ways = tuple((*way[:-1], strip_newlines(way[-1])) if way else way for way in last.unknown.ways)
            return (*rest, last._replace(unknown=last.unknown._replace(ways=ways)))
        if last.unknown or (cut := last.text.rstrip("\n")):
            return (*rest, last if last.unknown else last._replace(text=cut))
    return ()


def known_lines(pieces: Iterable[Piece]) -> list[Text] | None:
    """The lines of what a command writes; None where a program writes some of them."""
    found = [*pieces]
    if any(p.unknown and p.unknown.is_list and p.unknown.name.startswith("$(") for p in found):
        return None
    for piece in found[:-1]:  # one of several texts, which may be of several lines
        if piece.unknown and "\n" in "".join(p.text for way in piece.unknown.ways for text in way for p in text):
            return None
    return split_lines(found)


def split_words(pieces: Iterable[Piece], signs: str = " \t\n") -> list[Word]:
    """The words of pieces, split at blanks, or at other signs, outside of quotes."""
    words: list[Word] = []
    held: list[Piece] = []
    for piece in pieces:
        if piece.ends_word:
            words += [Word(held)] if held else []
            held = []
        elif piece.quoted or piece.unknown or not signs:
            held.append(piece)
        else:
            parts = re.split(f"[{re.escape(signs)}]+", piece.text)
            for at, part in enumerate(parts):
                if at and held:
                    words.append(Word(held))
                    held = []
                if part:
                    held.append(piece._replace(text=part))
    return words + ([Word(held)] if held else [])


def resolve_forks(pieces: Iterable[Piece], choices: Mapping[int, int]) -> Iterator[Piece]:
    """The pieces, with forks whose branch is chosen replaced by its value."""
    for piece in pieces:
        found = piece.unknown
        if found is None or found.fork not in choices:
            yield piece
            continue
        for at, text in enumerate(found.ways[choices[found.fork]]):
            if at:
                yield END if found.is_list else Piece(" ", piece.place, quoted=piece.quoted)
            default = piece.default
            inner = (p._replace(quoted=piece.quoted, default=p.default or default) for p in text)
            yield from resolve_forks(inner, choices)


def forks_of(pieces: Iterable[Piece]) -> Iterator[tuple[int, int]]:
    """(fork, number of its branches) of every fork that pieces depend on, also inside of branches."""
    for piece in pieces:
        if piece.unknown and piece.unknown.fork:
            yield piece.unknown.fork, len(piece.unknown.ways)
            for way in piece.unknown.ways:
                for text in way:
                    yield from forks_of(text)


def _shared_length(rows: Sequence[Sequence[object]]) -> int:
    """The length of the beginning that all rows share."""
    columns = enumerate(zip(*rows, strict=False))
    return next((at for at, column in columns if any(one != column[0] for one in column)), min(map(len, rows)))


def join_branches(fork: int, name: str, texts: list[Text]) -> Text:
    """The value after a fork: the beginning that all texts share, then the rest by branch."""
    shared = _shared_length(texts)
    place = next((p.place for text in texts for p in text[shared:]), "")
    rest = Unknown(f"${name}", name, place, fork, tuple((text[shared:],) for text in texts))
    return (*texts[0][:shared], Piece(place=place, unknown=rest))


def join_arrays(fork: int, name: str, lists: list[list[Text]]) -> list[Text]:
    """The array after a fork: the elements that all share at the beginning, then one for the rest by branch."""
    shared = _shared_length(lists)
    place = next((p.place for one in lists for text in one[shared:] for p in text), "")
    rest = Unknown(f"${{{name}[@]}}", name, place, fork, tuple(tuple(one[shared:]) for one in lists), True)
    return [*lists[0][:shared], (Piece(place=place, unknown=rest),)]


def regex_of(pattern: str) -> str | None:
    """The regular expression of a pattern of file names, also of ``@(a|b)``; None for one too long or nested."""
    pattern = re.sub(r"\[:(\w+):\]", lambda one: CLASSES.get(one[1], one[0]), pattern).replace("[^", "[!")
    found, at = "", 0
    for group in re.finditer(r"([@?*+!])\(([^()]*)\)", pattern):
        inner = "|".join(_plain_regex(part) for part in group[2].split("|"))
        found += f"{_plain_regex(pattern[at : group.start()])}(?:{inner}){group[1].strip('@')}"
        at = group.end()
        if group[1] == "!" or len(pattern) > 100 or "*" in group[2]:
            return None
    return None if len(pattern) > 2_000 else found + _plain_regex(pattern[at:])


def _plain_regex(pattern: str) -> str:
    return re.sub(r"\\[zZ]$", "", fnmatch.translate(pattern))


def pattern_matches(pattern: str, text: str) -> bool | None:
    """Whether a pattern of file names matches a whole text; None where that is not known."""
    found = regex_of(pattern)
    return None if found is None else re.fullmatch(found, text[:10_000]) is not None


def remove_affix(text: str, operator: str, pattern: str) -> str | None:
    """``${X#pattern}``, ``##``, ``%`` and ``%%``: the text without its shortest or longest beginning or end."""
    found = regex_of(pattern)
    if len(text) > 500 or found is None:
        return None
    ends = range(len(text) + 1)
    from_start, longest = operator[0] == "#", len(operator) == 2
    lengths = reversed(ends) if longest else ends
    for length in lengths:
        part = text[:length] if from_start else text[len(text) - length :]
        if re.fullmatch(found, part):
            return text[length:] if from_start else text[: len(text) - length]
    return text


def substitute(text: str, operator: str, pattern: str, by: str) -> str | None:
    """``${X/pattern/by}``, ``//``, ``/#`` and ``/%``: the text with matches replaced; None where it is long."""
    if not pattern:
        return {"/#": by + text, "/%": text + by}.get(operator, text)
    if len(text) > 10_000:
        return None
    inner = regex_of(pattern)
    if inner is None:
        return None
    found = {"/#": rf"\A{inner}", "/%": rf"{inner}\Z"}.get(operator, inner)
    return re.sub(found, lambda _: by, text, count=0 if operator == "//" else 1)


def split_option_text(word: Word) -> list[Word]:
    """The words of one that is a row of options (``"--a 1 --b 2"``); else the word itself."""
    if word.unknown or not re.match(r"\s*--?[A-Za-z]", word) or not re.search(r"\s", word.strip()):
        return [word]
    try:
        return [Word(literal(part, word.place, word.default)) for part in shlex.split(word)]
    except ValueError:
        return [word]


@dataclass
class Run:
    """One command that a script starts."""

    words: list[Word]
    place: str
    variables: dict[str, Text]  # when it starts, exported or not
    branches: dict[int, int]  # the branch of each fork in which it stands
    header: list[tuple[str, list[Word]]] = field(default_factory=list)  # of its batch job, and how that was submitted

    @property
    def environment(self) -> dict[str, str]:
        """The variables whose values are known when it starts."""
        words = {name: Word(resolve_forks(text, self.branches)) for name, text in self.variables.items()}
        return {name: str(word) for name, word in words.items() if word.unknown is None}


@dataclass
class Script:
    """The commands of a script, the words of its batch header, and what of it was not read."""

    runs: list[Run] = field(default_factory=list)
    header: list[tuple[str, list[Word]]] = field(default_factory=list)  # the batch system's word, and its options
    unparsed: list[str] = field(default_factory=list)  # lines that no shell would take
    missing_files: list[str] = field(default_factory=list)  # files that it sources or starts, and that were not given
    written: dict[str, str] = field(default_factory=dict)  # texts of the files that it writes itself
    files_read: set[str] = field(default_factory=set)  # files of those given that it sources or starts
    conditions: dict[int, str] = field(default_factory=dict)  # of each fork, with its place
    fork_variables: dict[int, str] = field(default_factory=dict)  # the variable from outside that a fork hangs on
    default_branches: dict[int, int] = field(default_factory=dict)  # of a fork whose variable nobody sets from outside

    @property
    def commands(self) -> list[list[Word]]:
        """The words of each command."""
        return [run.words for run in self.runs]
