"""Files that a person wrote: YAML and JSON in, plain mappings out, every failure one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from jointopt.core.atomic_write import unwritten, write_whole
from jointopt.core.errors import JobError, UsageError
from jointopt.core.input_files import regular_bytes
from jointopt.spec.check import shown

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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                raise JobError(f"{_line(key)}: the key {shown(key.value)} is given twice or is not a word.")
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
        if not path.exists():
            raise JobError(f"{path} does not exist; check the path.")
        raw = regular_bytes(path, _MOST_BYTES, expected, JobError)
    except (OSError, ValueError) as error:
        raise JobError(f"{shown(str(path))} cannot be read: {error}.") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JobError(f"{path} is not a text file in UTF-8 (byte {error.start:,}).") from error


def package_yaml(path: Path) -> Any:
    """Read a YAML file of this package: trusted, so by the C parser, 8 times faster, where PyYAML has it."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """The mapping as YAML that `parse_yaml` reads back, keys in their order."""
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100, "default_flow_style": None}
    text: str = yaml.dump(dict(mapping), Dumper=_JobDumper, **style)
    return text


def parse_yaml(text: str) -> Mapping[str, Any]:
    """A YAML document that is one mapping; anchors, tags, deep nesting and keys given twice are refused."""
    if len(text) > _MOST_YAML_CHARACTERS:
        raise JobError(f"it has {len(text):,} characters; a job file has at most {_MOST_YAML_CHARACTERS:,}.")
    try:
        _refuse_exotic_yaml(text)
        parsed = yaml.load(text, Loader=_JobLoader)
    except _CONSTRUCTION_ERRORS as error:
        raise JobError(_no_yaml(error)) from error
    return _mapping(parsed)


def _no_yaml(error: BaseException) -> str:
    """Where a text stops being YAML, and why, in words of the file and none of the parser's."""
    mark = getattr(error, "problem_mark", None)
    if mark is None or not isinstance(error, yaml.MarkedYAMLError):
        return f"it is not valid YAML: {_one_line(error)}."
    problem = " ".join(str(error.problem or error.context).split())
    for token, words in _TOKENS.items():
        problem = problem.replace(f"'{token}'", words).replace(token, words)
    return f"line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {problem}."


def _refuse_exotic_yaml(text: str) -> None:
    """Looked for before anything is built: aliases can blow up memory, tags and depth the constructors."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        place = _line(event)
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
        raise UsageError(f"{path} cannot be written: {unwritten(error)}.") from error


def read_written(path: Path, what: str, parsed: Callable[[Mapping[str, Any]], T]) -> T:
    """A YAML file as ``parsed`` reads it; JobError names the file, ``what`` it should be, and the first flaw."""
    text = read_text(path, f"a {what}")
    try:
        return parsed(parse_yaml(text))
    except UsageError as error:
        raise JobError(f"{path} is no {what}: {error}") from error


def _line(marked: yaml.Node | yaml.Event) -> str:
    return f"line {marked.start_mark.line + 1}" if marked.start_mark else "somewhere"


def parse_json(text: str) -> Mapping[str, Any]:
    """A JSON document that is one object, without NaN and without a key given twice."""
    try:
        parsed = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise JobError(f"it is not valid JSON: {_one_line(error)}.") from error
    return _mapping(parsed)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise JobError(f"the key {shown(name)} is given twice.")
        result[name] = value
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _mapping(parsed: object) -> Mapping[str, Any]:
    if not isinstance(parsed, Mapping):
        kind = "nothing" if parsed is None else f"a {type(parsed).__name__}"
        raise JobError(f"expected a mapping of keys to values; the file holds {kind}.")
    return parsed


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
