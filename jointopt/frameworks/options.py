"""Command-line options of a framework by version: which exist, and what they state (``*_options.yaml``).

Exports write by these tables and imports read by them, so that each name stands once."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jointopt.core.errors import ExportError, UsageError
from jointopt.frameworks.shell_words import Word
from jointopt.jobs.model_facts import States
from jointopt.jobs.reading import package_yaml
from jointopt.runs.dtype_names import named_precision, named_recipe

_T = TypeVar("_T")
NEWEST = "development"
_DEVELOPMENT = (NEWEST, "dev", "main")
_HIGHEST = (10**6,)
SECTIONS = ("model", "training", "plan", "cluster")  # of a job and its plan


@dataclass(frozen=True)
class Option:
    """One option: the first version that has it and the first that has it no more; blank where all do."""

    sets: str = ""  # what its value states as it stands, such as plan.tp, model.num_layers, training.seq_length
    times: str = ""  # the column of the plan that its value counts with the one that it sets: it states their product
    since: str = ""
    until: str = ""
    optional: bool = False  # left out, not refused, where a version does not have it
    also: tuple[str, ...] = ()  # other names that files give it
    flag: bool = False  # it states true or false
    matters: bool = False  # it changes the time of an iteration, and no column says it
    states: States = ""  # the fact of a model (``model_facts.yaml``) that it states where it is on, or by its value
    default: float | str | None = None  # the program's default, where it is also what `Details` take for none
    says: Mapping[str, str] = field(default_factory=dict)  # remarks by patterns of its value
    names: tuple[str, ...] = ()  # its own and the others, with underscores

    @property
    def key(self) -> str:
        """What it sets, without the section."""
        return self.sets.partition(".")[2]

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
    table = {name: Option(**(entry or {})) for name, entry in _file(framework)["options"].items()}
    return {name: replace(one, names=tuple(word.replace("-", "_") for word in (name, *one.also)))
            for name, one in table.items()}  # fmt: skip


def products(framework: str) -> list[Option]:
    """The options that state a product of two columns of the plan, such as all shards of a weight, tp and gtp."""
    return [one for one in option_table(framework).values() if one.times]


def factors(framework: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with the columns of `products` in the place of their products; without those of 1 and below."""
    found = dict(plan)
    for one in products(framework):
        share = found.pop(one.key, 1) / max(found.get(one.times) or found["tp"], 1)  # experts are cut as layers are
        found |= {one.key: int(share) if share % 1 == 0 else share} if share > 1 else {}
    return found


@functools.cache
def without_effect(framework: str) -> re.Pattern[str]:
    """Matches names, with underscores, of options that change neither the layout nor the time of an iteration."""
    return matching(tuple(name.replace("-", "_") for name in _file(framework)["without_effect"]))


@functools.cache
def matching(names: tuple[str, ...]) -> re.Pattern[str]:
    """Matches these names, and those that begin as one does that ends with ``*``; none where there are none."""
    words = [name[:-1] or "." if name.endswith("*") else rf"{name}\Z" for name in names]
    return re.compile("|".join(words) or r"\Z.")


@functools.cache
def _file(framework: str) -> Mapping[str, Any]:
    loaded: dict[str, Any] = package_yaml(Path(__file__).with_name(f"{framework}_options.yaml"))
    return loaded


class Words:
    """The command line of one version, option by option, in the order in which they are given."""

    def __init__(self, framework: str, version: str) -> None:
        self.framework, self.version = framework, version
        self._table = option_table(framework)
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
            if entry.known_to(self.version):
                parts = () if value is True else value if isinstance(value, tuple) else (value,)
                self._words += ["--" + option, *map(str, parts)]
            elif not entry.optional:
                raise ExportError(f"{self.framework} {self.version} has no --{option}, which the plan needs.")

    def has(self, name: str) -> bool:
        """Whether the version has an option."""
        return self._table[name.replace("_", "-")].known_to(self.version)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)


# The content of one file: what it states of a job and its plan, and which of its options were not read.


def truth_of(value: object) -> bool | None:
    """True or false in any spelling; None for another word."""
    word = str(value).lower()
    return True if word in _TRUE else False if word in _FALSE else None


_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "none", "null", "")


class Options:
    """Options by name, and which of them were read; None, and text that is no such value, count as not given."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._read: set[str] = set()

    def take(self, *names: str) -> Any:
        """The value of the first of ``names`` that is given; None without one."""
        for name in names:
            if name in self._values:
                self._read.add(name)
                value = self._values[name]
                if value is not None and value != "None":
                    return value
        return None

    def whole(self, *names: str) -> int | None:
        """A whole number; one that cannot be read stays among the options not read."""
        return self._parse(whole_number, names)

    def plain(self, *names: str) -> int | bool | None:
        """A whole number, or true or false; what is neither stays among the options not read."""
        flag = self.flag(*names)
        return self._parse(lambda value: flag if (number := whole_number(value)) is None else number, names)

    def _parse(self, parse: Callable[[Any], _T], names: Sequence[str]) -> _T:
        """The first value as a type; one that is not of it counts as not read."""
        value = self.take(*names)
        found = parse(value)
        if value is not None and found is None:
            self._read -= set(names)
        return found

    def number(self, *names: str) -> float | None:
        """A number, or None."""
        try:
            return float(self.take(*names))
        except (TypeError, ValueError):
            return None

    def flag(self, *names: str) -> bool | None:
        """True or false in any spelling; None where not given, or another word."""
        value = self.take(*names)
        return None if str(value).lower() == "none" else truth_of(value)

    def word(self, *names: str) -> str:
        """The text of an option in small letters; blank without one."""
        value = self.take(*names)
        return "" if value is None else str(value).strip().lower()

    def names(self, before: str) -> list[str]:
        """Names of the options that begin so."""
        return [name for name in self._values if name.startswith(before)]

    def unused(self, harmless: re.Pattern[str]) -> tuple[tuple[str, ...], int]:
        """Names of the options not read, and how many more there are that have no effect on time and energy."""
        rest = [name for name in self._values if name not in self._read]
        unknown = tuple(name for name in rest if not harmless.match(name))
        return unknown, len(rest) - len(unknown)


def whole_number(value: object) -> int | None:
    """The whole number that a value means: 8, "8", "1_024", "4e6"; None for anything else."""
    try:
        number = float(str(value).replace("_", "").strip("'\""))
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


class Question(NamedTuple):
    """Why a field is asked for, and the variable or argument of a script that answers it; blank: none does."""

    why: str
    variable: str = ""


@dataclass
class FileSettings:
    """What one file states of a job and its plan; each mapping holds only what it states."""

    format: str  # "Megatron-LM options"
    framework: str = ""  # a profile's name; blank: the file does not say
    program: str = ""  # whose defaults it takes, where that is not the framework
    model: dict[str, Any] = field(default_factory=dict)  # keys of Model, or "catalogue": a name
    training: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)  # gpu, nodes, gpus_per_node, num_gpus
    plan: dict[str, Any] = field(default_factory=dict)
    # the columns of the plan that depend on others, perhaps of another file: from the plan and the model's layers
    rest: Callable[[Mapping[str, Any], int], dict[str, Any]] | None = None
    accumulation: int | None = None  # micro-batches of a rank in one iteration
    unread: tuple[str, ...] = ()
    without_effect: int = 0  # options that change neither time nor energy
    remarks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of other files that it reads
    version: str = ""  # of the framework
    command: str = ""  # the place of the command line that it was read from
    flags: dict[str, Any] = field(default_factory=dict)  # options that change an iteration's time, and no column says
    log: str = ""  # the text, where it is a log
    meter: str = ""  # the text, where a meter wrote it: windows of Zeus, or a trace
    source: str = ""  # the file's name
    process: int = 0  # the number of the running one whose arguments they are
    origins: dict[str, str] = field(default_factory=dict)  # of fields such as plan.tp: file and line, or whose default
    reads: tuple[str, ...] = ()  # names of files among those given that it sources, starts or looks into
    questions: dict[str, Question] = field(default_factory=dict)  # fields that it states by what only a shell knows
    unstated_fields: tuple[str, ...] = ()  # asked since nothing in it states them: any other file answers

    def drop(self, field: str) -> None:
        """Takes away the statement of a field such as plan.tp."""
        section, _, key = field.partition(".")
        if section in SECTIONS:
            getattr(self, section).pop(key, None)


def precision_remarks(name: str, value: object) -> tuple[str, ...]:
    """A sentence where the value of that option means no precision; none where it states one, or is not given."""
    text = str(value).strip()
    if text.lower() in ("", "no", "none") or named_precision(text) or named_recipe(text):
        return ()
    return (f"{name} {text!r:.60} means no precision and is not read; expected one like bf16, fp16, fp32 or fp8.",)


def stated(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def flags_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given and not off, in the order of their names."""
    off = (None, False, "None", "False", "false", "null")
    return {name: values[name] for name in sorted(values) if values[name] not in off}


def flattened(mapping: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A nested mapping with dotted names; lists are values."""
    out: dict[str, Any] = {}
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            out |= flattened(value, f"{before}{name}.")
        else:
            out[f"{before}{name}"] = value
    return out


# References of configs: OmegaConf's ${model.x}, ${.x}, ${..x}, ${oc.env:X,1}, NeMo's products, Primus's ${X:1}


_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_MOST_NESTED = 10  # references to references
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "multiply": int.__mul__, "divide": int.__floordiv__, "divide_floor": int.__floordiv__,
    "divide_ceil": lambda a, b: -(-a // b), "sum": int.__add__,
}  # fmt: skip


def resolve_references(config: Mapping[str, Any], given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A config whose references to its own keys, or to variables, are replaced by their values where these are known.

    ``given``: values of variables.
    """
    flat = flattened(config)

    def fill(value: Any, at: str) -> Any:
        if isinstance(value, Mapping):
            return {name: fill(inner, f"{at}.{name}".lstrip(".")) for name, inner in value.items()}
        for _ in range(_MOST_NESTED):
            found = [*_REFERENCE.finditer(value)] if isinstance(value, str) else []
            values = {one[0]: _resolve_reference(one[1], flat, at, given or {}) for one in found}
            text = next((text for text, known in values.items() if known is not None), None)
            if text is None:
                return value
            value = values[text] if text == value else value.replace(text, str(values[text]))
            value = None if value in ("null", "") else value
        return value

    return {name: fill(value, name) for name, value in config.items()}


def _resolve_reference(inside: str, flat: Mapping[str, Any], at: str, given: Mapping[str, str]) -> Any:
    """The value of the reference at a key; None where neither the config nor a variable gives it."""
    name, colon, rest = (part.strip() for part in inside.partition(":"))
    if colon and name in _ARITHMETIC:
        numbers = [number for part in rest.split(",") if (number := whole_number(part)) is not None]
        return _ARITHMETIC[name](*numbers) if len(numbers) == 2 and numbers[1] else None
    if name == "oc.decode":
        return rest
    default: str | None = None
    if name in ("oc.env", "oc.select"):
        name, comma, default = (part.strip() for part in rest.partition(","))
        default = default if comma else None
    elif colon:
        default = rest if re.fullmatch(r"[A-Z][A-Z0-9_]*", name) else None
    up = len(name) - len(name.lstrip("."))
    place = [*at.split(".")[:-up], name[up:]] if up else name.split(".")
    for start in range(len(place)):  # its file may be the part of a larger one
        if (found := flat.get(".".join(place[start:]))) is not None and (start < len(place) - 1 or not start):
            return found
    return given.get(name, default)


def unresolved_references(config: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a config whose references are not resolved, with their text."""
    return {key: value for key, value in flattened(config).items() if isinstance(value, str) and "${" in value}


def listed_words(parts: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def pairs_of(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(name, value) of ``--name value``, ``--name=value`` and ``--name``, names with underscores; several make a list.

    A value of True stands for none. Words that only a shell knows, and may be none or many, are a value only right
    behind the name.
    """
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        values = [word.rest(len(name) + 3) if isinstance(word, Word) else value] if equals else []
        while not equals and at < len(words) and not re.match(r"--?[A-Za-z]|\S+\.py$", words[at]):
            following = words[at]
            many = isinstance(following, Word) and following.may_split
            if many and values:
                break
            values.append(following)
            at += 1
            if many:
                break
        yield name.replace("-", "_"), True if not values else values[0] if len(values) == 1 else values
