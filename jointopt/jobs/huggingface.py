"""Hugging Face ``config.json`` files of decoder-only transformers, read into a `Model` by ``catalog/families.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError, nearest_hint
from jointopt.core.schema import evaluate
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.model import Model
from jointopt.jobs.model_facts import check_facts, fact_of, facts_in, with_facts
from jointopt.jobs.reading import Section, parse_json, quoted_value, read_text
from jointopt.jobs.shape import checked_model, head_dim, read_size
from jointopt.jobs.windows import windows_of


def read_config(path: Path) -> Model:
    """The model of a ``config.json``; JobError names the file and the key that is missing or wrong."""
    folder = path.resolve().parent.name
    try:
        return model_from_config(parse_json(read_text(path)), folder if path.stem == "config" and folder else path.stem)
    except JobError as error:
        raise JobError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def model_from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a parsed ``config.json`` describes; ``name`` serves where the file has none."""
    section = Section(config, "")
    families, kind = read_yaml("families.yaml")["families"], config.get("model_type")
    if not isinstance(kind, str) or kind not in families:
        kind = kind if kind is not None else config.get("architectures")
        family = family_of_class(kind) if config.get("model_type") is None else None
        if family is None:
            rows: Mapping[str, str] = read_yaml("model_facts.yaml")["families"]
            check_facts([fact] if (fact := fact_of(rows, kind)) else [], f"model_type {quoted_value(kind)}")
            hint = nearest_hint(kind, families) if isinstance(kind, str) else ""
            raise JobError(
                f"model_type must be one of {', '.join(families)}; got {quoted_value(kind)}{hint}; "
                f"write the shape into the job file instead."
            )
        kind = family
    shape: dict[str, Any] = {}
    for field, value in families[kind].items():
        shape[field] = evaluate(value, shape, _functions(section, field)) if isinstance(value, str) else value
    shape = {field: value for field, value in shape.items() if not field.startswith("_")}
    shape |= windows_of(config, kind, shape["num_layers"])
    shape.setdefault("mtp_num_layers", read_size(section, "num_nextn_predict_layers", 0, 0, "mtp_num_layers"))
    shape = with_facts(shape, facts_in(config, "keys"))
    check_facts(shape.get("other", ()), "it")
    shape.setdefault("num_query_groups", shape["num_attention_heads"])
    if "head_dim" not in shape:
        shape["head_dim"] = head_dim(section, shape["hidden_size"], shape["num_attention_heads"])
    stated = config.get("_name_or_path")
    last = stated.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if isinstance(stated, str) else ""
    own_name = last if last.isprintable() and len(last) <= 100 else ""
    return checked_model(Model(name=own_name or name, config=dict(config), **shape), "")


def family_of_class(names: object) -> str | None:
    """``["Qwen2MoeForCausalLM"]`` -> ``qwen2_moe``: old files name the class only."""
    first = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    word = first.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
    families = read_yaml("families.yaml")["families"]
    return next((family for family in families if word and family.replace("_", "") == word), None)


def _functions(section: Section, field: str) -> dict[str, Any]:
    """The functions that an expression of ``families.yaml`` may call (its head lists them), for one field of `Model`.

    A dotted key is one of a mapping within.
    """

    def place(key: str) -> tuple[Section, str]:
        inner, dot, last = key.rpartition(".")
        return (section.section(inner), last) if dot else (section, key)

    def whole_size(keys: str, default: int | None = None, low: int = 1, of: str = field) -> int:
        first, *others = keys.split()
        where, key = place(next((key for key in (first, *others) if section.has(key)), first))
        return read_size(where, key, default, low, of)

    def multiple(key: str, width: int) -> int:
        wide = read_size(section, key, 0, low=0, of="ffn_hidden_size")
        if wide % width:
            raise section.refuse(key, f"a multiple of {width}, the routed expert's")
        return wide // width

    def every(key: str) -> int:
        if section.whole(key, default=1) != 1:
            raise section.refuse(key, "1: models that alternate dense and MoE layers are not read")
        return 1

    def leading(key: str) -> int:
        layers = section.values.get(key) or []
        if not isinstance(layers, list) or layers != list(range(len(layers))):
            raise section.refuse(key, "the leading layers only, for example [0, 1]")
        return len(layers)

    return {
        "size": whole_size, "multiple": multiple, "every": every, "leading": leading,
        "has": section.has, "whole": section.whole, "value": lambda key: place(key)[0].values.get(place(key)[1]),
        "flag": lambda key, default: place(key)[0].flag(place(key)[1], default),
        "number": lambda key, most, default: section.number(key, most, default=default),
        "share": lambda key, default: section.number(key, 1.0, zero=True, default=default),
    }  # fmt: skip
