"""A model shape written in place, its windows of attention, and the checks that every shape passes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import chain
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.schema import MODEL_BLOCKS
from jointopt.jobs.catalog.limits import limited_whole
from jointopt.jobs.model import LATENT_NEEDED, Model, SkipFreq, block_of
from jointopt.jobs.model_facts import checked_facts
from jointopt.jobs.reading import Section, is_whole

POSITION_EMBEDDINGS = ("rope", "learned", "alibi", "none")
_DEFAULTS = {f.name: f.default for f in fields(Model) if f.default is not MISSING}
_FLAGS = {name: default for name, default in _DEFAULTS.items() if isinstance(default, bool)}
_WHOLES = tuple(n for n, default in _DEFAULTS.items() if type(default) is int and n != "window_attn_skip_freq")
BLOCK_KEYS = ("catalog", "block", "num_layers", "name")  # of a mapping that names the model of which it is a block
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
_OF_A_BLOCK = {"num_layers": 1, "vocab_size": 1}  # what a block does not need to state; it has no vocabulary
INLINE_KEYS = tuple(f.name for f in fields(Model))


def inline_model(mapping: Mapping[str, Any], name: str) -> Model:
    """A model from the keys of `Model`; the layers, width, heads and vocabulary are required, of a block but the width.

    Defaults: a plain MLP four hidden sizes wide with the LayerNorms and biases of GPT (a gated one has the RMSNorms of
    Llama), as many KV groups as heads, an untied head, no experts. Raises JobError for contradictions too.
    """
    section = Section(mapping, "model").only(INLINE_KEYS)
    block = section.choice("block", MODEL_BLOCKS) if section.values.get("block") else ""
    usual = (_OF_A_BLOCK if block else {}) | ({"num_attention_heads": 1} if block == "feed_forward" else {})
    shape: dict[str, Any] = {key: read_size(section, key, usual.get(key)) for key in _REQUIRED}
    shape["ffn_hidden_size"] = read_size(section, "ffn_hidden_size", 4 * shape["hidden_size"])
    shape["num_query_groups"] = read_size(section, "num_query_groups", shape["num_attention_heads"])
    shape["head_dim"] = head_dim(section, shape["hidden_size"], shape["num_attention_heads"])
    gated = section.flag("gated_mlp", False)
    gpt_like = {"gated_mlp": False, "rmsnorm": gated, "norm_bias": not gated, "linear_bias": not gated}
    shape |= {name: section.flag(name, default) for name, default in (_FLAGS | gpt_like).items()}
    shape |= {key: read_size(section, key, 0, low=0) for key in _WHOLES}
    if shape["num_experts"] and not section.has("moe_ffn_hidden_size"):
        shape["moe_ffn_hidden_size"] = shape["ffn_hidden_size"]
    positions = "learned" if shape["max_position_embeddings"] else "rope"
    shape["position_embedding"] = section.choice("position_embedding", POSITION_EMBEDDINGS, positions)
    other = section.values.get("other") or ()
    if not isinstance(other, list | tuple):
        raise section.refuse("other", "a list of facts such as [soft_capping]")
    shape["other"] = checked_facts(other, section.at("other"))
    config = section.values.get("config")
    if config is not None and not isinstance(config, Mapping):
        raise section.refuse("config", "the mapping of a Hugging Face config.json")
    if section.has("window_size") or not config:
        shape["window_attn_skip_freq"] = read_skip_freq(section)
    else:
        try:
            shape |= windows_of(config, str(config.get("model_type")), shape["num_layers"])
        except JobError as error:
            raise JobError(f"{section.at('config')}: {error}") from error
    model = checked_model(Model(name=section.text("name", name), config=config, **shape), "model")
    return block_of(model, block, model.num_layers, model.name) if block else model


def read_size(section: Section, key: str, default: int | None = None, low: int = 1, of: str = "") -> int:
    """One whole number of a shape within its limit, that of the field ``of`` of `Model` where the key is another."""
    return limited_whole(section, key, f"model.{of or key}", low, default)


def head_dim(section: Section, hidden_size: int, heads: int) -> int:
    """The stated width of a head, or the hidden size split evenly among the heads."""
    if not section.has("head_dim") and hidden_size % heads:
        place = f"{section.where}: " if section.where else ""
        raise JobError(
            f"{place}{heads} attention heads do not divide the hidden size {hidden_size}; expected a multiple, or a "
            f"stated head_dim."
        )
    return read_size(section, "head_dim", hidden_size // heads or 1)


def checked_model(m: Model, where: str) -> Model:
    """The model itself; JobError where its figures contradict each other.

    ``where``: the section of the message; blank for the top of a file, whose path the message begins with.
    """
    latent, freq = [getattr(m, name) for name in LATENT_NEEDED], m.window_attn_skip_freq
    extras = m.moe_router_topk or m.num_shared_experts or m.num_dense_layers
    groups, chosen = m.moe_router_num_groups, m.moe_router_group_topk
    faults = (
        (m.num_attention_heads % m.num_query_groups > 0,
         f"num_query_groups ({m.num_query_groups}) must divide num_attention_heads ({m.num_attention_heads})"),
        (m.position_embedding == "learned" and not m.max_position_embeddings,
         "a learned position_embedding needs max_position_embeddings, the rows of its table"),
        (any(latent) != all(latent) or (m.q_lora_rank > 0 and not m.kv_lora_rank),
         "latent attention needs kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim together"),
        (bool(freq) and not m.window_size, "window_attn_skip_freq needs window_size, the tokens that layers look back"),
        (isinstance(freq, tuple) and len(freq) != m.num_layers,
         f"window_attn_skip_freq must have a 0 or 1 for each of the {m.num_layers} layers, or be a whole number"),
        (not m.is_moe and extras > 0,
         "moe_router_topk, num_shared_experts and num_dense_layers need num_experts above 0"),
        (m.is_moe and not 1 <= m.moe_router_topk <= m.num_experts,
         f"moe_router_topk must be from 1 to num_experts ({m.num_experts}); got {m.moe_router_topk}"),
        ((groups > 0) != (chosen > 0) or chosen > groups or (groups > 0 and m.num_experts % groups > 0),
         f"moe_router_num_groups ({groups}) and moe_router_group_topk ({chosen}) must be groups that divide "
         f"num_experts ({m.num_experts}), and how many of them a token is sent to"),
        (groups > 0 and m.moe_router_topk * groups > chosen * m.num_experts,
         f"moe_router_topk ({m.moe_router_topk}) is more than the experts of moe_router_group_topk ({chosen}) groups"),
        (m.is_moe and m.moe_ffn_hidden_size < 1, "moe_ffn_hidden_size must be at least 1"),
        (m.is_moe and m.num_dense_layers >= m.num_layers,
         f"num_dense_layers ({m.num_dense_layers}) must be less than num_layers ({m.num_layers})"),
    )  # fmt: skip
    for wrong, sentence in faults:
        if wrong:
            raise JobError(f"{where}: {sentence}." if where else f"{sentence}.")
    return m


# Windows of attention: which layers look back how many tokens, in Megatron Core's terms: ``window_size`` tokens, and
# ``window_attn_skip_freq`` for which layers.


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
    "gemma2": (4096, 2), "gemma3_text": (4096, 6), "cohere2": (4096, 4), "gpt_oss": (128, 2),
}  # fmt: skip
