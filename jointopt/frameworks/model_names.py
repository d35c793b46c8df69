"""The catalogue's model that a name, or a shape in Megatron's terms, means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jointopt.jobs.catalog.models import load_model, model_names, named_model
from jointopt.jobs.model import Model

# what a launch script need not state, or states in its own way
_LOOSE = ("name", "config", "vocab_size", "dropout", "norm_weight", "qk_norm_full", "final_norm")
_PADDINGS = (1, 64, 128, 256, 512, 1024, 2048, 4096)


def catalogue_name(text: str) -> str:
    """The catalogue's name of a model that others spell another way (``llama3`` and ``8B``); blank without one."""
    found = named_model(text)
    return found.name if found else ""


def models_of_shape(shape: Mapping[str, Any]) -> list[Model]:
    """The catalogue's models that fit a shape (keys of `Model`), their vocabularies perhaps padded, in its order."""
    return [model for model in map(load_model, model_names()) if _fits(model, shape)]


def _fits(model: Model, shape: Mapping[str, Any]) -> bool:
    fields = {name: value for name, value in vars(model).items() if name not in _LOOSE}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in shape.items()}
    stated = {name: given.get(name, _default(name, model)) for name in fields}
    if model.position_embedding != "learned" or "max_position_embeddings" not in shape:
        fields, stated = ({k: v for k, v in one.items() if k != "max_position_embeddings"} for one in (fields, stated))
    if model.kv_lora_rank:  # heads have widths of their own
        fields, stated = ({k: v for k, v in one.items() if k != "head_dim"} for one in (fields, stated))
    if model.is_moe and not model.num_dense_layers:  # no layer has a dense MLP
        fields, stated = ({k: v for k, v in one.items() if k != "ffn_hidden_size"} for one in (fields, stated))
    vocabulary = shape.get("vocab_size")
    return stated == fields and (vocabulary is None or _padded(model.vocab_size, vocabulary))


def _default(name: str, model: Model) -> Any:
    if name == "head_dim":
        return model.hidden_size // model.num_attention_heads
    found = next(field.default for field in dataclasses.fields(Model) if field.name == name)
    return None if found is dataclasses.MISSING else found


def _padded(size: int, given: int) -> bool:
    """Whether a vocabulary is the given one, perhaps rounded up, or one token larger (Megatron's NullTokenizer)."""
    return given in (size + 1, size - 1) or any(-(-size // step) * step == given for step in _PADDINGS)
