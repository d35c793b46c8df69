"""Facts of a model beside its sizes, by name: which ones a file states, and which ones a model has.

``catalog/model_facts.yaml`` says of each whether it is a field of `Model`, kept in ``other`` or refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from jointopt.core.errors import JobError, nearest_hint
from jointopt.core.schema import evaluate
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.model import Model

States = str | Mapping[str, str]  # the fact of an option that is on, or by patterns of its value
_OFF = ("none", "null", "false", "no", "off", "0", "0.0", "", "[]", "{}")
_FLAGS = {field.name for field in fields(Model) if isinstance(field.default, bool)}


@dataclass(frozen=True)
class Fact:
    """One fact in words, how fields show it, and what to do instead where it is refused."""

    words: str
    of: str = ""
    refused: str = ""


@functools.cache
def facts() -> Mapping[str, Fact]:
    """Every fact by its name."""
    return {name: Fact(**entry) for name, entry in read_yaml("model_facts.yaml")["facts"].items()}


def fact_of(states: States, value: object) -> str:
    """The fact that the value of an option or a key states; blank for none."""
    word = str(value).lower()
    if word in _OFF or isinstance(states, str):
        return "" if word in _OFF else str(states)
    return next((fact for pattern, fact in states.items() if re.search(pattern, word)), "")


def facts_in(values: Mapping[str, Any], table: str) -> list[str]:
    """The facts that values by (dotted) names state, by a table of ``model_facts.yaml``."""

    def value(name: str) -> Any:
        outer, _, inner = name.partition(".")
        within = values.get(outer)
        return within if not inner else within.get(inner) if isinstance(within, Mapping) else None

    rows: Mapping[str, States] = read_yaml("model_facts.yaml")[table]
    return [fact for name, states in rows.items() if (fact := fact_of(states, value(name)))]


def with_facts(shape: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A shape with facts: those that are a flag of `Model` set, the others in ``other``."""
    known = set(names) - {""}
    other = tuple(sorted((known - _FLAGS) | set(shape.get("other", ()))))
    return {**shape, **dict.fromkeys(known & _FLAGS, True), **({"other": other} if other or "other" in shape else {})}


def check_facts(names: Iterable[str], where: str) -> tuple[str, ...]:
    """The names, in order; JobError for one that is unknown, a field of its own, or without formulas."""
    kept = [name for name, fact in facts().items() if not fact.refused and (not fact.of or "details" in fact.of)]
    for name in names:
        if (fact := facts().get(name)) and fact.refused:
            raise JobError(f"{where} states {fact.words}, which jointopt has no formulas for; {fact.refused}.")
        if name not in kept:
            raise JobError(f"{where} must be some of {', '.join(kept)}; got {name!r:.60}{nearest_hint(name, kept)}.")
    return tuple(sorted(set(names)))


def facts_of(model: Model, details: Any) -> dict[str, str]:
    """The facts of a model and its details in words, by name."""
    shown = vars(model) | {"details": details}
    has = {name: name in model.other or bool(fact.of and evaluate(fact.of, shown)) for name, fact in facts().items()}
    return {name: facts()[name].words for name, stated in has.items() if stated}
