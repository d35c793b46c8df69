"""A model shape written in place, and the checks that every shape passes wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.schema import MODEL_BLOCKS
from jointopt.jobs.catalog.limits import limited_whole
from jointopt.jobs.model import LATENT_NEEDED, Model, block_of
from jointopt.jobs.model_facts import check_facts
from jointopt.jobs.pattern import layer_fields, pattern_fault, read_layers
from jointopt.jobs.reading import Section
from jointopt.jobs.windows import read_skip_freq, windows_of

POSITION_EMBEDDINGS = ("rope", "learned", "alibi", "none")
_DEFAULTS = {f.name: f.default for f in fields(Model) if f.default is not MISSING}
_FLAGS = {name: default for name, default in _DEFAULTS.items() if isinstance(default, bool)}
_WHOLES = tuple(n for n, default in _DEFAULTS.items() if type(default) is int and n != "window_attn_skip_freq")
BLOCK_KEYS = ("catalog", "block", "num_layers", "name")  # of a mapping that names the model of which it is a block
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
_OF_A_BLOCK = {"num_layers": 1, "vocab_size": 1}  # what a block does not need to state; it has no vocabulary
INLINE_KEYS = (*(f.name for f in fields(Model)), "layers_repeat")


def inline_model(mapping: Mapping[str, Any], name: str) -> Model:
    """A model from the keys of `Model`; the layers, width, heads and vocabulary are required, of a block but the width.

    Defaults: a plain MLP four hidden sizes wide with the LayerNorms and biases of GPT (a gated one has the RMSNorms of
    Llama), as many KV groups as heads, an untied head, no experts. Raises JobError for contradictions too.
    """
    section = Section(mapping, "model").only(INLINE_KEYS)
    block = section.choice("block", MODEL_BLOCKS) if section.values.get("block") else ""
    usual = (_OF_A_BLOCK if block else {}) | ({"num_attention_heads": 1} if block == "feed_forward" else {})
    layers = read_layers(section, section.values) if section.values.get("layers") else ()
    usual |= {"num_layers": len(layers)} if layers else {}
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
    shape["other"] = check_facts(other, section.at("other"))
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
    if layers:
        shape |= layer_fields(layers, shape["kv_lora_rank"] > 0)
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
        (any(latent) != all(latent) or (m.q_lora_rank > 0 and not (m.kv_lora_rank or m.layers)),
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
    for wrong, sentence in (*faults, (bool(fault := pattern_fault(m)), fault)):
        if wrong:
            raise JobError(f"{where}: {sentence}." if where else f"{sentence}.")
    return m
