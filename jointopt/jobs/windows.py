"""Windows of attention: which layers look back how many tokens, as configurations and tables state it.

A shape holds them in Megatron Core's terms: ``window_size`` tokens, and ``window_attn_skip_freq`` for which layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from jointopt.jobs.model import SkipFreq
from jointopt.jobs.reading import Section, is_whole

_MOST = 10_000


def skip_freq_of(windowed: Sequence[bool]) -> SkipFreq:
    """The shortest ``window_attn_skip_freq`` that means these layers: 0 for all, every N-th full, or one by one."""
    layers = tuple(map(int, windowed))
    if all(layers):
        return 0
    first = layers.index(0) + 1  # the first layer that sees all
    every = tuple(int(number % first != 0) for number in range(1, len(layers) + 1))
    return first if every == layers else layers


def read_skip_freq(section: Section) -> SkipFreq:
    """The frequency that a shape states: 0 where it is left out. Raises JobError for what is neither form."""
    key = "window_attn_skip_freq"
    stated = section.values.get(key, 0)
    one_by_one = isinstance(stated, list | tuple) and stated and all(type(one) is int for one in stated)
    if one_by_one and set(stated) <= {0, 1}:
        return tuple(stated)
    if not (is_whole(stated) and 0 <= stated <= _MOST):
        raise section.refuse(key, "a whole number N (every N-th layer sees all tokens) or a list of 1 (window) and 0")
    return int(stated)


def named_skip_freq(text: str) -> SkipFreq | None:
    """The frequency that a cell means, or None where it means none."""
    words = [word for word in re.split(r"[;,\s\[\]]+", text) if word]
    if len(words) == 1 and (whole := words[0].removesuffix(".0")).isdecimal():
        return int(whole)
    return tuple(map(int, words)) if words and set(words) <= {"0", "1"} else None


def windows_of(config: Mapping[str, Any], family: str, num_layers: int) -> dict[str, Any]:
    """``window_size`` and ``window_attn_skip_freq`` of a Hugging Face configuration; nothing where no layer has one.

    ``layer_types`` state it layer by layer, else the rule of the family's configuration class in transformers
    (configuration_<family>.py). Raises JobError for kinds of layers that are neither full nor sliding.
    """
    if family not in _FAMILIES:
        return {}
    usual, rule = _FAMILIES[family]
    section = Section(config, "")
    if not section.flag("use_sliding_window", not family.startswith("qwen")):
        return {}
    key = "window_size" if family == "gpt_neo" else "sliding_window"
    # a null is the statement that there is none
    size = section.whole(key, 0, 100_000_000, 0 if key in config else usual)
    windowed = _layer_types(section, num_layers) if section.has("layer_types") else rule(section, num_layers)
    if not size or not any(windowed):
        return {}
    return {"window_size": size, "window_attn_skip_freq": skip_freq_of(windowed)}


def _layer_types(section: Section, num_layers: int) -> list[bool]:
    stated = section.values["layer_types"]
    known = {"sliding_attention": True, "full_attention": False}
    if not isinstance(stated, list) or len(stated) != num_layers or any(one not in known for one in map(str, stated)):
        raise section.refuse("layer_types", f"a list of {num_layers} of sliding_attention and full_attention")
    return [known[one] for one in stated]


def _every_layer(section: Section, num_layers: int) -> list[bool]:
    return [True] * num_layers


def _all_but_each(usual: int) -> Callable[[Section, int], list[bool]]:
    """Every so many-th layer sees all: the second of Gemma 2, the sixth of Gemma 3, the fourth of Cohere 2."""

    def windowed(section: Section, num_layers: int) -> list[bool]:
        keys = "_sliding_window_pattern", "sliding_window_pattern"
        each = section.whole(next((key for key in keys if section.has(key)), keys[0]), default=usual)
        return [number % each != 0 for number in range(1, num_layers + 1)]

    return windowed


def _last_layers(section: Section, num_layers: int) -> list[bool]:
    """Qwen 2 and 3: the first ``max_window_layers`` see all."""
    first = section.whole("max_window_layers", 0, 100_000, 28)
    return [number >= first for number in range(num_layers)]


def _first_in_turn(section: Section, num_layers: int) -> list[bool]:
    """Qwen 2 MoE: every other of the first ``max_window_layers``."""
    first = section.whole("max_window_layers", 0, 100_000, 28)
    return [number % 2 == 0 and number < first for number in range(num_layers)]


def _local_layers(section: Section, num_layers: int) -> list[bool]:
    """GPT-Neo: ``[[["global", "local"], 12]]``, which is its default for its 24 layers."""
    stated = section.values.get("attention_types") or [[["global", "local"], -(-num_layers // 2)]]
    try:
        kinds = list(chain.from_iterable(list(group) * int(times) for group, times in stated))
    except (TypeError, ValueError) as error:
        raise section.refuse("attention_types", 'a list like [[["global", "local"], 12]]') from error
    if len(kinds) < num_layers:
        raise section.refuse("attention_types", f"kinds of attention of all {num_layers} layers")
    return [kind == "local" for kind in kinds[:num_layers]]


# Tokens that the family's class takes where a file states none, and which layers look back so far.
_FAMILIES: dict[str, tuple[int, Callable[[Section, int], list[bool]]]] = {
    "mistral": (4096, _every_layer), "mixtral": (0, _every_layer), "phi3": (0, _every_layer),
    "qwen2": (4096, _last_layers), "qwen2_moe": (4096, _first_in_turn), "qwen3": (4096, _last_layers),
    "qwen3_moe": (4096, _every_layer), "gpt_neo": (256, _local_layers), "gemma2": (4096, _all_but_each(2)),
    "gemma3_text": (4096, _all_but_each(6)), "cohere2": (4096, _all_but_each(4)), "gpt_oss": (128, _all_but_each(2)),
}  # fmt: skip
