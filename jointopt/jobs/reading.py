"""Files that a person wrote: YAML and JSON in, plain mappings out, every failure one sentence."""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import yaml

from jointopt.core.atomic_write import write_failure, write_whole
from jointopt.core.errors import JobError, UsageError, close_words, did_you_mean, nearest_hint
from jointopt.core.input_files import regular_bytes

# Typed reading of a mapping that a person wrote: a refusal names key, expectation and value.


# Above any real figure, and small enough that products of three of them stay within float64 and int64 ranges.
MOST = 10**9


def quoted_value(value: object) -> str:
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
        return JobError(f"{self.at(key)} must be {expected}; got {quoted_value(self.values[key])}.")

    def only(self, known: Iterable[str], meant: Callable[[str], Sequence[str]] | None = None) -> Section:
        """Itself, after refusing keys that are not known; ``meant`` are those that an unknown one may stand for."""
        names = list(known)
        for key in self.values:
            if key not in names:
                place = f" in {self.where}" if self.where else ""
                near = (meant or (lambda word: close_words(word, names)))(key) if isinstance(key, str) else []
                hint = did_you_mean(near)
                raise JobError(f"The key {quoted_value(key)}{place} is unknown{hint}; expected {', '.join(names)}.")
        return self

    def has(self, key: str) -> bool:
        """Whether the key is given; a key without a value counts as not given."""
        return self.values.get(key) is not None

    def _value(self, key: str, default: Any, fits: Callable[[Any], bool], expected: str) -> Any:
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
        return int(self._value(key, default, lambda value: is_whole(value) and low <= value <= high, expected))

    def number(
        self, key: str, high: float = 1e15, *, zero: bool = False, default: float | None = None, why: str = ""
    ) -> float:
        """A finite number above 0 (from 0 on with ``zero``) and at most ``high``; ``why`` as for `whole`."""
        expected = f"a number {'from 0 on' if zero else 'above 0'}, at most {high:,.15g}{why}"
        return float(
            self._value(key, default, lambda v: is_number(v) and 0 <= v <= high and (v != 0 or zero), expected)
        )

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false, and nothing else."""
        return bool(self._value(key, default, lambda value: isinstance(value, bool), "true or false"))

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """One word out of a few."""
        words, value = list(choices), self.values.get(key)
        hint = nearest_hint(value, words) if isinstance(value, str) and value not in words else ""
        expected = f"one of {', '.join(words)}{hint}"
        return str(self._value(key, default, lambda word: isinstance(word, str) and word in words, expected))

    def text(self, key: str, default: str | None = None, most: int = 200) -> str:
        """A non-empty line of text of at most ``most`` characters."""
        expected = "one line of text (in quotes where it looks like a number or a bool)"
        text = str(self._value(key, default, lambda value: isinstance(value, str), expected))
        if self.has(key) and not (text.strip() and len(text) <= most and text.isprintable()):
            raise self.refuse(key, expected)
        return text

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


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite real number; bools, NaN and infinities are not."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_whole(value) or (real and math.isfinite(value))  # type: ignore[arg-type]  # which `real` says


T = TypeVar("T")
_MOST_BYTES = 4_000_000  # a job is a page, a config.json at most thousands of lines of quantisation settings
_MOST_YAML_CHARACTERS = 200_000
_DEEPEST = 12  # a job file nests three levels

# What PyYAML's own constructors raise on scalars they take for numbers or dates, besides YAMLError.
_CONSTRUCTION_ERRORS = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)

_TOKENS = {  # of PyYAML's parser, as a message writes them
    "<stream end>": "the end of the file", "<document start>": "'---'", "<block mapping start>": "a key",
    "<block sequence start>": "a list", "<block end>": "a line indented as those before it",
}  # fmt: skip


class _JobLoader(yaml.SafeLoader):
    """YAML without the traps: a key given twice is refused, and ``9e3`` is a number as in YAML 1.2."""

    twice: list[str] | None = None  # gains keys given twice, of which the last counts, instead of a refusal

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if self.twice is not None and isinstance(key, yaml.ScalarNode) and key.value in seen:
                self.twice.append(f"{key.value} (line {key.start_mark.line + 1})")
            elif not isinstance(key, yaml.ScalarNode) or key.value in seen:
                place = f"line {key.start_mark.line + 1}"
                raise JobError(f"{place}: the key {quoted_value(key.value)} is given twice or is not a word.")
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep=deep))


class _JobDumper(yaml.SafeDumper):
    """Writes what `_JobLoader` reads back: no aliases, and text that looks like ``9e3`` in quotes."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_FLOAT_OF_YAML_1_2 = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_JobLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_OF_YAML_1_2, list("-+0123456789"))
_JobDumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_OF_YAML_1_2, list("-+0123456789"))


def read_text(path: Path, expected: str = "a job file or a config.json") -> str:
    """The text of a regular UTF-8 file of at most 4 MB; JobError with what was ``expected`` otherwise."""
    try:
        raw = regular_bytes(path, _MOST_BYTES, expected, JobError)
    except FileNotFoundError as error:
        raise JobError(f"{path} does not exist; check the path.") from error
    except (OSError, ValueError) as error:
        raise JobError(f"{quoted_value(str(path))} cannot be read: {error}.") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JobError(f"{path} is not a text file in UTF-8 (byte {error.start:,}).") from error


class _PackageLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # 8 times faster in C
    """Merged keys (``<<``) stand before a mapping's own, and of several merged ones the first counts.

    PyYAML did so until 6.0.3; later releases put keys elsewhere, and formulas of the catalogue need those before them.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Puts the keys of merged mappings into one that merges them."""
        merged, own = [], []
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                own.append((key, value))
                continue
            for part in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                self.flatten_mapping(part)
                merged += part.value
        node.value = merged + own


def package_yaml(path: Path) -> Any:
    """Read a YAML file of this package, which is trusted."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_PackageLoader)


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """The mapping as YAML that `parse_yaml` reads back, keys in their order."""
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100, "default_flow_style": None}
    text: str = yaml.dump(dict(mapping), Dumper=_JobDumper, **style)
    return text


def parse_yaml(text: str, twice: list[str] | None = None) -> Mapping[str, Any]:
    """A YAML document that is one mapping; anchors, tags, deep nesting and keys given twice are refused.

    ``twice``: gains the keys that are given twice; then the last counts, as programs read them.
    """
    if len(text) > _MOST_YAML_CHARACTERS:
        raise JobError(f"it has {len(text):,} characters; a job file has at most {_MOST_YAML_CHARACTERS:,}.")
    try:
        _refuse_exotic_yaml(text)
        loader = _JobLoader(text)
        loader.twice = twice
        parsed = loader.get_single_data()
    except _CONSTRUCTION_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        if mark is None or not isinstance(error, yaml.MarkedYAMLError):
            raise JobError(f"it is not valid YAML: {_one_line(error)}.") from error
        problem = " ".join(str(error.problem or error.context).split())
        for token, words in _TOKENS.items():  # in words of the file and none of the parser's
            problem = problem.replace(f"'{token}'", words).replace(token, words)
        place = f"line {mark.line + 1}, column {mark.column + 1}"
        raise JobError(f"{place}: not valid YAML: {problem}.") from error
    return _mapping(parsed)


def _refuse_exotic_yaml(text: str) -> None:
    """Looked for before anything is built: aliases can blow up memory, tags and depth the constructors."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        place = f"line {event.start_mark.line + 1}" if event.start_mark else "somewhere"
        if depth > _DEEPEST:
            raise JobError(f"{place}: nested more than {_DEEPEST} levels deep; a job file needs three.")
        if getattr(event, "anchor", None):
            raise JobError(f"{place}: anchors and aliases (& and *) are not read; write the value out.")
        if getattr(event, "tag", None):
            raise JobError(f"{place}: tags (!) are not read; write a plain value.")


def write_yaml(path: Path, header: str, mapping: Mapping[str, Any]) -> None:
    """Writes the mapping below a header of comments. Raises UsageError where it cannot."""
    try:
        write_whole(path, header + dump_yaml(mapping))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {write_failure(error)}.") from error


def read_written(path: Path, what: str, parsed: Callable[[Mapping[str, Any]], T]) -> T:
    """A YAML file as ``parsed`` reads it; JobError names the file, ``what`` it should be, and the first flaw."""
    text = read_text(path, f"a {what}")
    try:
        return parsed(parse_yaml(text))
    except UsageError as error:
        raise JobError(f"{path} is no {what}: {error}") from error


def parse_json(text: str, infinite: bool = False) -> Mapping[str, Any]:
    """A JSON document that is one object, without NaN and without a key given twice.

    ``infinite``: Infinity is a number.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise JobError(f"the key {quoted_value(name)} is given twice.")
            found[name] = value
        return found

    def constant(name: str) -> float:
        if infinite and name == "Infinity":
            return math.inf
        raise ValueError(f"{name} is no number")

    try:
        parsed = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise JobError(f"it is not valid JSON: {_one_line(error)}.") from error
    return _mapping(parsed)


def _mapping(parsed: object) -> Mapping[str, Any]:
    if not isinstance(parsed, Mapping):
        kind = "nothing" if parsed is None else f"a {type(parsed).__name__}"
        raise JobError(f"expected a mapping of keys to values; the file holds {kind}.")
    return parsed


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
