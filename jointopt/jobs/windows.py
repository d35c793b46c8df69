"""Windows of attention: which layers look back how many tokens, as configurations and tables state it.

A shape holds them in Megatron Core's terms: ``window_size`` tokens, and ``window_attn_skip_freq`` for which layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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


def skip_freq_word(freq: SkipFreq) -> str | None:
    """Which layers have the window, as `--window-attn-skip-freq` reads it: ``6``, ``([0,1]*12)``, or blank for all."""
    if not isinstance(freq, tuple):
        return str(freq) if freq else None
    length = len(freq)
    turn = next(n for n in range(1, length + 1) if length % n == 0 and freq[:n] * (length // n) == freq)
    return f"([{','.join(map(str, freq[:turn]))}]*{length // turn})"


def layer_list(text: str) -> int | list[int] | None:
    """The whole number, or the list of 0 and 1 that an expression like ``([0]*3+[1,0]*29)`` means; None for neither."""
    text = re.sub(r"[\s()]", "", text)
    if text.isdecimal():
        return int(text)
    part = r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?"
    if not re.fullmatch(rf"{part}(?:\+{part})*", text):
        return None
    return [int(one) for ones, times in re.findall(part, text) for one in ones.split(",") * int(times or 1)]


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
    section = Section(config, "")
    if family not in _FAMILIES and not section.has("layer_types"):
        return {}
    usual, rule = _FAMILIES.get(family, (0, "all"))
    if not section.flag("use_sliding_window", not family.startswith("qwen")):
        return {}
    key = "window_size" if family == "gpt_neo" else "sliding_window"
    # a null is the statement that there is none
    size = section.whole(key, 0, 100_000_000, 0 if key in config else usual)
    if section.has("layer_types"):
        stated, known = section.values["layer_types"], {"sliding_attention": True, "full_attention": False}
        kinds = list(map(str, stated)) if isinstance(stated, list) else []
        if len(kinds) != num_layers or not set(kinds) <= known.keys():
            raise section.refuse("layer_types", f"a list of {num_layers} of sliding_attention and full_attention")
        windowed = [known[kind] for kind in kinds]
    else:
        windowed = _windowed_layers(section, rule, num_layers)
    if not size or not any(windowed):
        return {}
    return {"window_size": size, "window_attn_skip_freq": skip_freq_of(windowed)}


def window_keys(family: str) -> tuple[str, ...]:
    """The keys on windows that the configuration class of a family reads."""
    return _KEYS if family in _FAMILIES else ()


def _windowed_layers(section: Section, rule: str | int, num_layers: int) -> list[bool]:
    """Of each layer whether it has the window, by the rule of its family (`_FAMILIES`)."""
    layers = range(num_layers)
    if rule == "all":
        return [True] * num_layers
    if isinstance(rule, int):
        keys = "_sliding_window_pattern", "sliding_window_pattern"
        each = section.whole(next((key for key in keys if section.has(key)), keys[0]), default=rule)
        return [(layer + 1) % each != 0 for layer in layers]
    if rule in ("last", "in turn"):
        first = section.whole("max_window_layers", 0, 100_000, 28)
        return [layer >= first if rule == "last" else layer % 2 == 0 and layer < first for layer in layers]
    # [[["global", "local"], 12]], which is the default for GPT-Neo's 24 layers
    stated = section.values.get("attention_types") or [[["global", "local"], -(-num_layers // 2)]]
    try:
        kinds = list(chain.from_iterable(list(group) * int(times) for group, times in stated))
    except (TypeError, ValueError) as error:
        raise section.refuse("attention_types", 'a list like [[["global", "local"], 12]]') from error
    if len(kinds) < num_layers:
        raise section.refuse("attention_types", f"kinds of attention of all {num_layers} layers")
    return [kind == "local" for kind in kinds[:num_layers]]


# Tokens that the family's class takes where a file states none, and which layers look back so far: all of them, all but
# every N-th (the second of Gemma 2, the sixth of Gemma 3, the fourth of Cohere 2), those from ``max_window_layers`` on,
# every other one before it, or those that ``attention_types`` names local.
_FAMILIES: dict[str, tuple[int, str | int]] = {
    "mistral": (4096, "all"), "mixtral": (0, "all"), "phi3": (0, "all"), "qwen2": (4096, "last"),
    "qwen2_moe": (4096, "in turn"), "qwen3": (4096, "last"), "qwen3_moe": (4096, "all"), "gpt_neo": (256, "local"),
    "gemma2": (4096, 2), "gemma3": (4096, 6), "gemma3_text": (4096, 6), "cohere2": (4096, 4), "gpt_oss": (128, 2),
    "mistral3": (0, "all"), "olmo3": (4096, 4), "qwen2_5_vl": (4096, "last"), "qwen2_5_vl_text": (4096, "last"),
    "smollm3": (0, "all"),
}  # fmt: skip
_KEYS = (
    "layer_types", "sliding_window", "window_size", "sliding_window_pattern", "_sliding_window_pattern",
    "use_sliding_window", "max_window_layers", "attention_types",
)  # fmt: skip
