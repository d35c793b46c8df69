"""Hugging Face ``config.json`` files of decoder-only transformers, read into a `Model` by ``catalog/families.yaml``."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.schema import evaluate
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.model import Layer, Model
from jointopt.jobs.model_facts import check_facts, fact_of, facts_in, with_facts
from jointopt.jobs.pattern import layer_fields, layer_of
from jointopt.jobs.reading import Section, parse_json, quoted_value, read_text
from jointopt.jobs.shape import checked_model, head_dim, read_size
from jointopt.jobs.windows import window_keys, windows_of


def read_config(path: Path) -> Model:
    """The model of a ``config.json``; JobError names the file and the key that is missing or wrong."""
    folder = path.resolve().parent.name
    try:
        return model_from_config(
            parse_json(read_text(path), infinite=True), folder if path.stem == "config" and folder else path.stem
        )
    except JobError as error:
        raise JobError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def model_from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a parsed ``config.json`` describes; ``name`` serves where the file has none.

    Of a model of several modes it is the one in ``text_config``. Raises JobError for a key that is not understood too.
    """
    text, parts = text_part(config)
    section, kind = Section(text, ""), _family(text)
    _check_keys(text, kind)
    shape: dict[str, Any] = {}
    for field, value in read_yaml("families.yaml")["families"][kind].items():
        functions = _Reader(section, field, shape).functions()
        shape[field] = evaluate(value, shape, functions) if isinstance(value, str) else value
    layers = shape.pop("layers", ())
    shape = {field: value for field, value in shape.items() if not field.startswith("_")}
    latent = shape.get("kv_lora_rank", 0) > 0
    shape |= layer_fields(layers, latent) if layers else windows_of(text, kind, shape["num_layers"])
    shape.setdefault("mtp_num_layers", read_size(section, "num_nextn_predict_layers", 0, 0, "mtp_num_layers"))
    shape = with_facts(shape, [*facts_in(text, "keys"), *parts])
    check_facts(shape.get("other", ()), "it")
    shape.setdefault("num_query_groups", shape["num_attention_heads"])
    if "head_dim" not in shape:
        shape["head_dim"] = head_dim(section, shape["hidden_size"], shape["num_attention_heads"])
    stated = config.get("_name_or_path")
    last = stated.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if isinstance(stated, str) else ""
    own_name = last if last.isprintable() and len(last) <= 100 else ""
    return checked_model(Model(name=own_name or name, config=dict(text), **shape), "")


def text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The configuration of the language model alone, and facts on what it leaves out of a model of several modes."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return config, []
    # the outer class names the family of an inner one that has no name, and may state these two for it
    outer = {key: config[key] for key in ("model_type", "tie_word_embeddings", "quantization_config") if key in config}
    return {**outer, **inner}, ["unpriced_encoder"]


def _family(config: Mapping[str, Any]) -> str:
    """The family of a configuration; JobError says what to do where it has none that is read."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in read_yaml("families.yaml")["families"]:
        return kind
    key, kind = ("model_type", kind) if kind is not None else ("architectures", config.get("architectures"))
    family = family_of_class(kind) if key == "architectures" else None
    if family is not None:
        return family
    rows: Mapping[str, str] = read_yaml("model_facts.yaml")["families"]
    check_facts([fact] if (fact := fact_of(rows, kind)) else [], f"{key} {quoted_value(kind)}")
    if kind is None:
        raise JobError(f"model_type is missing; expected the family of the model, as transformers names it{_INSTEAD}")
    raise JobError(f"{key} {quoted_value(kind)} is of no family that is read{_INSTEAD}")


_INSTEAD = (
    "; state the fields of its model in the job file (num_layers, hidden_size, ffn_hidden_size, num_attention_heads, "
    "num_query_groups, vocab_size, and layers where they differ), since under the name of another family what only "
    "this one has would not be priced."
)


def _check_keys(config: Mapping[str, Any], family: str) -> None:
    """JobError for a key that neither the family nor any table understands, unless its value says that it is off."""
    tables = read_yaml("model_facts.yaml")
    known = known_keys(family) | {key.partition(".")[0] for key in tables["keys"]}
    patterns = [pattern for group in tables["ignored"].values() for pattern in group]
    for key, value in config.items():
        if key in known or any(fnmatchcase(str(key), pattern) for pattern in patterns) or not fact_of("on", value):
            continue
        raise JobError(
            f"{quoted_value(key)} (here {quoted_value(value)}) is no key that is known of a {family} model; leave it "
            f"out if it changes neither layers nor sizes, or state the fields of the model in the job file instead."
        )


@functools.cache
def known_keys(family: str) -> frozenset[str]:
    """The keys of a configuration that the expressions of a family name, and those on windows where it has them."""
    rows: Mapping[str, Any] = read_yaml("families.yaml")["families"].get(family, {})
    stated = " ".join(value for value in rows.values() if isinstance(value, str))
    words = {word.partition(".")[0] for text in re.findall(r'"([^"]*)"', stated) for word in text.split()}
    return frozenset(words | {"num_nextn_predict_layers", "head_dim"} | set(window_keys(family)))


def family_of_class(names: object) -> str | None:
    """``["Qwen2MoeForCausalLM"]`` -> ``qwen2_moe``: old files name the class only."""
    first = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    word = first.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
    families = read_yaml("families.yaml")["families"]
    return next((family for family in families if word and family.replace("_", "") == word), None)


@dataclass(frozen=True)
class _Reader:
    """What an expression of ``families.yaml`` may call (its head lists them), for one field of `Model`.

    ``keys`` are several names of one key, of which the first that is given counts; a dotted one is of a mapping within.
    ``shape`` has the fields before it.
    """

    section: Section
    field: str
    shape: Mapping[str, Any]

    def functions(self) -> dict[str, Any]:
        """The functions by their names."""
        own = ("size", "multiple", "every", "leading", "length", "kinds", "chosen", "layers", "has", "value", "flag")
        return {
            **{name: getattr(self, name) for name in own}, "whole": self.section.whole,
            "number": lambda key, most, default: self.section.number(key, most, default=default),
            "share": lambda key, default: self.section.number(key, 1.0, zero=True, default=default),
        }  # fmt: skip

    def _at(self, keys: str) -> tuple[Section, str]:
        places = []
        for key in keys.split():
            inner, dot, last = key.rpartition(".")
            places.append((self.section.section(inner), last) if dot else (self.section, key))
        return next((place for place in places if place[0].has(place[1])), places[0])

    def has(self, keys: str) -> bool:
        where, key = self._at(keys)
        return where.has(key)

    def value(self, keys: str) -> Any:
        where, key = self._at(keys)
        return where.values.get(key)

    def flag(self, keys: str, default: bool) -> bool:
        where, key = self._at(keys)
        return where.flag(key, default)

    def size(self, keys: str, default: int | None = None, low: int = 1, of: str = "") -> int:
        where, key = self._at(keys)
        value = where.values.get(key)
        if isinstance(value, list) and len(value) == self.shape.get("num_layers") and len(set(map(str, value))) == 1:
            where = Section({**where.values, key: value[0]}, where.where)
        return read_size(where, key, default, low, of or self.field)

    def multiple(self, key: str, width: int) -> int:
        wide = read_size(self.section, key, 0, low=0, of="ffn_hidden_size")
        if wide % width:
            raise self.section.refuse(key, f"a multiple of {width}, the routed expert's")
        return wide // width

    def every(self, key: str) -> int:
        if self.section.whole(key, default=1) != 1:
            raise self.section.refuse(key, "1: models that alternate dense and MoE layers are not read")
        return 1

    def leading(self, key: str) -> int:
        layers = self.section.values.get(key) or []
        if not isinstance(layers, list) or layers != list(range(len(layers))):
            raise self.section.refuse(key, "the leading layers only, for example [0, 1]")
        return len(layers)

    def _words(self, keys: str) -> list[str]:
        where, key = self._at(keys)
        stated = where.values.get(key) or []
        if not isinstance(stated, list | str):
            raise where.refuse(key, "a list, one for each layer")
        return list(map(str, stated.split(",") if isinstance(stated, str) and "," in stated else stated))

    def length(self, keys: str) -> int:
        return len(self._words(keys))

    def kinds(self, keys: str) -> list[str]:
        words, known = self._words(keys), read_yaml("families.yaml")["layer_types"] | self.shape.get("_kinds", {})
        strange, count = set(words) - known.keys(), self.shape["num_layers"]
        predicted = self.section.whole("num_nextn_predict_layers", 0, default=0)  # some lists have these layers too
        if strange or (words and len(words) not in (count, count + predicted)):
            none = f", none of {', '.join(sorted(strange))[:80]}" if strange else ""
            where, key = self._at(keys)
            raise where.refuse(key, f"{count} of {', '.join(known)}{none}")
        return [known[word] for word in words[:count]]

    def chosen(self, keys: str, inside: str, outside: str, first: int = 0) -> list[str]:
        layers, numbers = range(first, first + self.shape["num_layers"]), set(self._words(keys))
        if not numbers <= set(map(str, layers)):
            where, key = self._at(keys)
            raise where.refuse(key, f"numbers of layers from {first} to {layers[-1]}")
        return [inside if str(layer) in numbers else outside for layer in layers] if numbers else []

    def layers(self, mixers: list[str], ffns: list[str]) -> tuple[Layer, ...]:
        sizes = {"window_size": self.section.whole("sliding_window", 0, 100_000_000, 0), **self.shape}
        kinds = [(mixers[at % len(mixers)], ffns[at % len(ffns)]) for at in range(self.shape["num_layers"])]
        both = [tuple(mixer.split(":")) if ":" in mixer else (mixer, ffn) for mixer, ffn in kinds]
        return tuple(layer_of(mixer, ffn, 0, sizes, "layers") for mixer, ffn in both)
