"""A config of a training program by its table: which program it is, and what its keys state (``*.yaml`` beside this).

The head of ``words.yaml`` says what expressions of tables may call.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jointopt.core.schema import LORA_TARGETS, evaluate
from jointopt.frameworks.model_names import catalogue_name
from jointopt.frameworks.options import (
    SECTIONS,
    FileSettings,
    Options,
    Question,
    flags_of,
    flattened,
    matching,
    resolve_references,
    truth_of,
    whole_number,
)
from jointopt.jobs.reading import package_yaml


@dataclass(frozen=True)
class Program:
    """A program by the keys of its configs; the texts are expressions, which `_Keys.functions` evaluates."""

    name: str  # as messages and origins write it
    source: str
    states: Mapping[str, Any]  # what it states by fields such as plan.tp, in order; without a point, of `FileSettings`
    known_by: str = "False"
    imports: str = ""  # a module of Python whose importers are its configs
    refuses: Mapping[str, str] = field(default_factory=dict)  # runs that are no training of a decoder, and which are
    says: Mapping[str, str] = field(default_factory=dict)  # remarks, and where they are due: ``{}`` is what is found
    reads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # other readers: at, where, defaults
    rest: Mapping[str, str] = field(default_factory=dict)  # columns that hang on the plan and the nodes of all files
    without_effect: tuple[str, ...] = ()
    matters: tuple[str, ...] = ()  # keys that change an iteration's time, and no column says it
    unset_value: str = ""  # a value that counts as none given
    dashes: bool = False  # keys are written with dashes too
    merges: bool = False  # several files make one config
    defaults: bool = True  # what `default` gives is what the program does without the key


class _UnknownValueError(Exception):
    """The value of a key is not known; says why."""


class _OpenFieldError(_UnknownValueError):
    """The table asks for a field that any other file may state; says why."""


@functools.cache
def _words() -> Mapping[str, Mapping[str, Any]]:
    """What words mean, by tables, and under ``files`` the names of those of programs."""
    found: dict[str, Any] = package_yaml(Path(__file__).with_name("words.yaml"))
    return found


@functools.cache
def programs() -> Mapping[str, Program]:
    """The programs of the tables by their keys, such as ``trl``, in the order in which they are tried."""
    files = [package_yaml(Path(__file__).with_name(file)) for file in _words()["files"]]
    return {key: Program(**entry) for file in files for key, entry in file.items() if not key.startswith("_")}


def program_of(config: Mapping[str, Any], module: str = "") -> Program | None:
    """The program whose config a mapping is; of Python by the ``module`` that it imports."""
    for one in programs().values():
        keys = _Keys(config, one)
        if one.imports == module and keys.evaluate(one.known_by, {}) is True:
            return one
    return None


def refusal(program: Program, config: Mapping[str, Any]) -> str:
    """What a config trains, in words, where jointopt does not plan that; else blank."""
    return next(iter(_Keys(config, program).sentences(program.refuses, {})), "")


def config_settings(
    program: Program, config: Mapping[str, Any], readers: Mapping[str, Callable[[Mapping[str, Any]], FileSettings]]
) -> FileSettings:  # fmt: skip
    """The settings of a config by the table of its program; ``readers``: by name, of formats that it contains."""
    keys, name = _Keys(config, program), f"{program.name} config"
    settings = FileSettings(name, program=program.name)
    fields: dict[str, Any] = {}
    for reader, how in program.reads.items():
        inner, at = keys.section(how.get("at", ""))
        if inner and keys.holds(how.get("where", "True"), {}):
            settings = readers[reader]({**how.get("defaults", {}), **inner})
            settings.format, settings.program, settings.model = name, program.name, {}  # the model is the table's
            keys.mark_read(at, settings.unread)
    for target, expression in program.states.items():
        value = fields[target] = keys.evaluate(expression, fields)
        section, _, key = target.partition(".")
        if isinstance(value, Question):
            if section in SECTIONS:
                fields[target] = None
                settings.drop(target)
                settings.questions[target] = value
                settings.unstated_fields += (target,) if value.why in keys.asks else ()
        elif key and value is not None:
            getattr(settings, section)[key] = value
        elif not key and not target.startswith("_") and value is not None:
            setattr(settings, target, value)
    if settings.model.get("catalogue"):
        settings.model = {"catalogue": settings.model["catalogue"]}
    elsewhere = settings.rest

    def rest(plan: Mapping[str, Any], layers: int) -> dict[str, Any]:
        known = fields | {"dp": plan.get("dp"), "nodes": plan.get("nodes")}
        found = {column: keys.evaluate(where, known) for column, where in program.rest.items()}
        others = elsewhere(plan, layers) if elsewhere else {}
        return others | {key: value for key, value in found.items() if not isinstance(value, Question | None)}

    settings.rest = rest
    settings.remarks += tuple(keys.sentences(program.says, fields))
    settings.flags |= flags_of({key: keys.options.take(key) for key in program.matters if keys.options.names(key)})
    harmless = matching(tuple(program.without_effect))
    unread, count = keys.options.unused(harmless)
    within = [key for key in keys.unread if not harmless.match(key)]
    settings.unread = (*within, *unread)
    settings.without_effect += count + len(keys.unread) - len(within)
    return settings


class _Keys:
    """The keys of one config, which expressions ask for."""

    def __init__(self, config: Mapping[str, Any], program: Program) -> None:
        flat = {
            key: value
            for key, value in flattened(config).items()
            if not program.unset_value or value != program.unset_value
        }
        if program.dashes:
            flat = {key.replace("-", "_"): value for key, value in flat.items()}
        self._flat = resolve_references(flat)
        self._program = program
        self.options = Options(self._flat)
        self.unread: tuple[str, ...] = ()  # by the readers of parts of it
        self.asks: set[str] = set()  # why `ask` asks

    def section(self, at: str) -> tuple[dict[str, Any], str]:
        """The keys below a place, without it, and the place; all keys where it is blank."""
        place = self._named(f"{at}.*") if "*" in at else f"{at}."
        before = ".".join(place.split(".")[: at.count(".") + 1]) + "." if at else ""
        return {key[len(before) :]: value for key, value in self._flat.items() if key.startswith(before)}, before

    def mark_read(self, at: str, unread: Sequence[str]) -> None:
        """Counts the keys below a place as read by another reader, and those that it left as unread."""
        self.unread = tuple(f"{at}{key}" for key in unread if at)
        read = [key for key in self._flat if key.startswith(at) and (at or key not in unread)]
        for key in read:
            self.options.take(key)

    def evaluate(self, expression: Any, fields: Mapping[str, Any]) -> Any:
        """The value of an expression over the fields before it; a question where it rests on what is not known.

        None where it computes with what is not stated.
        """
        if not isinstance(expression, str):
            return expression
        for name, value in fields.items():
            if isinstance(value, Question) and re.search(rf"\b{name}\b", expression):
                return value
        try:
            return evaluate(expression, fields, self.functions)
        except _UnknownValueError as reason:
            self.asks |= {str(reason)} if isinstance(reason, _OpenFieldError) else set()
            return Question(str(reason))
        except (TypeError, ValueError, ArithmeticError):
            return None

    def holds(self, expression: str, fields: Mapping[str, Any]) -> Any:
        """The value of an expression; False where it rests on what is not known."""
        found = self.evaluate(expression, fields)
        return False if isinstance(found, Question) else found

    def sentences(self, due: Mapping[str, str], fields: Mapping[str, Any]) -> list[str]:
        """The sentences whose expressions hold, with what these found for ``{}``."""
        return [text.format(_short(found)) for text, where in due.items() if (found := self.holds(where, fields))]

    def _named(self, name: str) -> str:
        return next((key for key in self._flat if fnmatchcase(key, name)), name) if "*" in name else name

    def _take(self, names: str) -> tuple[str, Any]:
        """The first of several keys that is given, and its value, None without one."""
        for name in map(self._named, names.split()):
            value = self.options.take(name)
            if isinstance(value, str) and ("${" in value or value == "???"):
                raise _UnknownValueError(f"{name} is {_short(value)}, which the file does not say")
            if value is not None:
                return name, value
        return names.split()[0], None

    def _of_kind(self, names: str, default: Any, kind: str, read: Callable[[Any], Any]) -> Any:
        """The value of the first key that is given, parsed; else the default. A value that is no such kind is asked."""
        name, value = self._take(names)
        found = default if value is None else read(value)
        if found is None and value is not None:
            raise _UnknownValueError(f"{name} is {_short(value)}, which is no {kind}")
        return found

    def _choice(self, words: str, names: str, default: Any = None) -> Any:
        """What a word means by a table of ``words.yaml``."""
        table = _words()[words]
        return self._of_kind(names, table.get(default, default), f"known word for {words}",
                             lambda value: table.get(str(value).lower()))  # fmt: skip

    def _words(self, names: str) -> list[str]:
        """The words of a list, or of text with commas or blanks between, in small letters."""
        _, value = self._take(names)
        parts = value if isinstance(value, list) else re.split(r"[,\s]+", str(value or ""))
        return [str(part).lower() for part in parts if str(part)]

    def _lora_layers(self, names: str) -> list[str] | None:
        """The linear layers with adapters beside them; None for all."""
        words, layers = self._words(names), _words()["layers"]
        if unknown := [word for word in words if word not in layers]:
            raise _UnknownValueError(
                f"{names.split()[0]} names {_short(unknown[0])}, which is no linear layer that is known"
            )
        found = {target for word in words for target in layers[word].split()}
        return [target for target in LORA_TARGETS if target in found] if 0 < len(found) < len(LORA_TARGETS) else None

    def _catalogue(self, text: Any) -> str | None:
        """The catalogue's name of a model; a question for another one of a program."""
        name = catalogue_name(str(text or ""))
        if text and not name and self._program.defaults:
            raise _UnknownValueError(f"{_short(text)} is no model of the catalogue; its config.json may be given too")
        return name or None

    @functools.cached_property
    def functions(self) -> dict[str, Any]:
        """The functions that expressions may call (the head of ``words.yaml`` lists them), and tables of words."""

        def ask(why: str) -> None:
            raise _OpenFieldError(why)

        def file(names: str) -> str | None:
            value = self._take(names)[1]
            return Path(value).name if isinstance(value, str) and re.search(r"\.(?:json|ya?ml)$", value) else None

        return {
            **_words(), "ask": ask, "file": file, "words": self._words, "adapted": self._lora_layers,
            "choice": self._choice, "catalogue": self._catalogue,
            "has": lambda names: any(self._flat.get(self._named(name)) is not None for name in names.split()),
            "value": lambda names, default=None: found if (found := self._take(names)[1]) is not None else default,
            "word": lambda names, default="": str(self._of_kind(names, default, "", str)).strip().lower(),
            "whole": lambda names, default=None: self._of_kind(names, default, "number", whole_number),
            "number": lambda names, default=None: self._of_kind(names, default, "number", _number),
            "flag": lambda names, default=None: self._of_kind(names, default, "yes or no", truth_of),
            "default": lambda value: value if self._program.defaults else None,
        }  # fmt: skip


def _short(value: object) -> str:
    return "".join(c for c in " ".join(str(value).split()) if c.isprintable())[:60]


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def python_config(text: str) -> tuple[str, dict[str, Any]]:
    """The module of a table that Python text imports, and the arguments that its calls are given, by their classes.

    ``Config.degree: 8`` of ``Config(degree=8)``. It is read, never run: what is no literal, and no name or product of
    such, stays as text in ``${}``; calls below a condition are left out.
    """
    wanted = {one.imports for one in programs().values() if one.imports}
    module = next((name for name in wanted if re.search(rf"^(?:from|import) {name}\b", text, re.MULTILINE)), "")
    try:
        tree = ast.parse(text) if module else ast.Module([], [])
    except (SyntaxError, ValueError, RecursionError):
        return "", {}
    known: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for node in _unconditional_nodes(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _literal(node.value, known)
        elif isinstance(node, ast.Call):
            *owner, last = ast.unparse(node.func).split(".")
            name = owner[-1] if owner and owner[-1][:1].isupper() else last
            found |= {f"{name}.made_by": last} if name != last else {}
            for word in node.keywords:
                if word.arg:
                    found.setdefault(f"{name}.{word.arg}", _literal(word.value, known))
            if node.args and name.endswith("Config"):
                found.setdefault(f"{name}.first", _literal(node.args[0], known))
    return module, found


def _unconditional_nodes(node: ast.AST) -> list[ast.AST]:
    """The nodes below one in the order of the text, but for those under a condition or in a loop."""
    below = [one for child in ast.iter_child_nodes(node) if not isinstance(child, ast.If | ast.For | ast.While)
             for one in (child, *_unconditional_nodes(child))]  # fmt: skip
    return below


def _literal(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """A literal, the last name of a dotted one, or sums and products of such; of ``a or 8`` 8, as without an option."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Attribute) and ast.unparse(node.value)[:1].isupper():
        return node.attr
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return _literal(node.values[-1], known)
    if isinstance(node, ast.BinOp):
        left, right = _literal(node.left, known), _literal(node.right, known)
        if isinstance(left, int) and isinstance(right, int):
            does = {ast.Mult: int.__mul__, ast.Add: int.__add__, ast.Sub: int.__sub__}.get(type(node.op))
            return does(left, right) if does else f"${{{ast.unparse(node)}}}"
    return f"${{{ast.unparse(node)}}}"
