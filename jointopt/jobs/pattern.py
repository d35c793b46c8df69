"""Patterns of layers as job files and tables state them, read into `Model.layers`, or into fields that say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from jointopt.core.errors import JobError, nearest_hint
from jointopt.jobs.catalog.limits import limit_of
from jointopt.jobs.model import PATTERN_SIZES, Layer, Model, kinds_of
from jointopt.jobs.reading import Section
from jointopt.jobs.windows import skip_freq_of

_FLAGS = {name for name in PATTERN_SIZES if type(getattr(Model, name, 0)) is bool}
_KEYS = ("attention", "ffn", "window", "repeat")
_ENTRY = re.compile(r"(?:(\d{1,4})\*)?([a-z_0-9+]+)(?:@(\d{1,9}))?:([a-z]+)")


def read_layers(section: Section, sizes: Mapping[str, Any]) -> tuple[Layer, ...]:
    """The layers that ``layers`` of a shape lists, ``layers_repeat`` times; ``sizes``: windows where an entry has none.

    Raises JobError for what is no list of kinds.
    """
    stated, most = section.values.get("layers"), limit_of("model.num_layers")
    if not isinstance(stated, list | tuple) or not stated or not all(isinstance(one, Mapping) for one in stated):
        raise section.refuse("layers", "a list such as [{attention: full, ffn: dense, repeat: 4}]")
    found: list[Layer] = []
    for number, mapping in enumerate(stated):
        entry = Section(mapping, section.at(f"layers[{number}]")).only(_KEYS)
        kinds = (entry.text("attention", "full"), entry.text("ffn", "experts" if sizes.get("num_experts") else "dense"))
        layer = layer_of(*kinds, entry.whole("window", 0, default=0), sizes, entry.where)
        found += [layer] * entry.whole("repeat", 1, most, 1)
    return tuple(found * section.whole("layers_repeat", 1, most, 1))[: most + 1]


def layer_of(attention: str, ffn: str, window: int, sizes: Mapping[str, Any], where: str) -> Layer:
    """The layer of these kinds, its window by default that of the model; JobError for a kind that is not known."""
    kinds, mlps = kinds_of("attention"), kinds_of("ffn")
    for key, words, known in (("attention", attention.split("+"), kinds), ("ffn", [ffn], mlps)):
        for word in words:
            if word not in known:
                raise JobError(
                    f"{where}: {key} must be one of {', '.join(known)}; got {word!r:.60}{nearest_hint(word, known)}."
                )
    seen = kinds.get(attention, {}).get("scores", ("",))[0]
    usual = {"sliding": "window_size", "chunked": "attention_chunk_size"}.get(seen, "")
    size = window or int(sizes.get(usual) or 0)
    if usual and not size:
        raise JobError(f"{where}: {attention} attention needs window, the tokens that it sees, or the model's {usual}.")
    if size and not usual and attention != "mla":
        raise JobError(f"{where}: window is of sliding or chunked attention; got one of {attention}.")
    return Layer(attention, ffn, size)


def named_layers(text: str, num_layers: int = 0) -> dict[str, Any] | None:
    """Fields of a model that a cell such as ``3*mamba2:dense;full:dense;mamba_num_heads=128`` states; None for none.

    The layers repeat to ``num_layers``, which they must divide, where that is above 0.
    """
    found, sizes = list[Layer](), dict[str, Any]()
    for word in text.replace(" ", "").strip(";").split(";"):
        name, _, size = word.partition("=")
        if name in PATTERN_SIZES and size.isdecimal():
            sizes[name] = bool(int(size)) if name in _FLAGS else int(size)
        elif entry := _ENTRY.fullmatch(word):
            try:
                layer = layer_of(entry[2], entry[4], int(entry[3] or 0), {}, "layers")
            except JobError:
                return None
            found += [layer] * int(entry[1] or 1)
        else:
            return None
    if not found or num_layers % len(found):
        return None
    return sizes | {"layers": tuple(found * max(num_layers // len(found), 1))}


def layer_fields(layers: Sequence[Layer], latent: bool = False) -> dict[str, Any]:
    """Fields of `Model` that say these layers: windows and leading dense layers where these can, else ``layers``.

    ``latent``: whether the model has latent attention.
    """
    attention, windows = {one.attention for one in layers}, {one.window for one in layers} - {0}
    routed = [one.ffn == "experts" for one in layers]
    dense = routed.index(True) if any(routed) else 0
    plain = attention == {"mla"} if latent else attention <= {"full", "sliding"}
    if (
        plain
        and len(windows) <= 1
        and all(routed[dense:]) | (not any(routed))
        and "none" not in {o.ffn for o in layers}
    ):
        freq = skip_freq_of([one.window > 0 for one in layers]) if windows else 0
        size = max(windows, default=0)
        return {"layers": (), "num_dense_layers": dense, "window_size": size, "window_attn_skip_freq": freq}
    return {"layers": tuple(layers), "num_dense_layers": 0, "window_size": 0, "window_attn_skip_freq": 0}


def layer_mappings(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Layers as ``layers`` of a job file lists them."""
    found = []
    for one, alike in groupby(layers):
        count, window = len(list(alike)), {"window": one.window} if one.window else {}
        found.append({"attention": one.attention, "ffn": one.ffn} | window | ({"repeat": count} if count > 1 else {}))
    return found


def pattern_fault(model: Model) -> str:
    """What contradicts itself in the layers of a model, in words; blank for nothing."""
    layers = model.layers
    if not layers:
        return ""
    if len(layers) != model.num_layers:
        return f"layers lists {len(layers)} layers, and num_layers is {model.num_layers}; they must be as many"
    if model.num_dense_layers or model.window_size or model.window_attn_skip_freq:
        return "layers says which layers are dense or have a window: leave num_dense_layers, window_size out"
    if any(one.parts == 0 for one in layers):
        return "a layer must have attention or a feed-forward; got none of both"
    if any(one.ffn == "experts" for one in layers) != model.is_moe:
        return "layers with experts need num_experts above 0, and num_experts a layer with experts"
    for part, names in (("attention", {k for one in layers for k in one.mixers}), ("ffn", {one.ffn for one in layers})):
        for kind in sorted(names):
            lacking = [name for name in kinds_of(part)[kind].get("needs", ()) if not getattr(model, name)]
            if lacking:
                return f"{kinds_of(part)[kind]['words']} needs {', '.join(lacking)} above 0"
    heads = model.linear_num_key_heads
    if heads and model.linear_num_value_heads % heads:
        return f"linear_num_key_heads ({heads}) must divide linear_num_value_heads ({model.linear_num_value_heads})"
    groups = model.mamba_num_groups
    if groups and model.mamba_num_heads % groups:
        return f"mamba_num_groups ({groups}) must divide mamba_num_heads ({model.mamba_num_heads})"
    return ""
