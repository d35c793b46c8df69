"""Hugging Face ``config.json`` files of decoder-only transformers, read into a `Model`.

Each family is a table from the fields of `Model` to the keys of its configuration class, plus a function for
what is particular to it. Keys that transformers leaves out, being the class default, take it here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError, nearest
from jointopt.jobs.model import LATENT_NEEDED, Model
from jointopt.jobs.reading import Section, parse_json, read_text, shown
from jointopt.jobs.shape import checked, head_dim, size
from jointopt.jobs.windows import windows_of

Fields = dict[str, Any]


@dataclass(frozen=True)
class _Family:
    """``names``: required field -> its keys, the first one given counts; ``more``: all that is no plain number."""

    names: Mapping[str, str]
    more: Callable[[Section, Fields], Fields]
    fixed: Mapping[str, Any]
    tied: bool = False  # the word embedding is the output matrix where tie_word_embeddings is not given


def read_config(path: Path) -> Model:
    """The model of a ``config.json``; JobError names the file and the key that is missing or wrong."""
    try:
        return model_from_config(parse_json(read_text(path)), _name(path))
    except JobError as error:
        raise JobError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def model_from_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a parsed ``config.json`` describes; ``name`` serves where the file has none."""
    section = Section(config, "")
    kind = _model_type(section)
    family = _FAMILIES[kind]
    shape: Fields = dict(family.fixed)
    for key, names in family.names.items():
        first, *others = names.split()
        shape[key] = size(section, next((name for name in (first, *others) if section.has(name)), first), of=key)
    shape["tied_embeddings"] = section.flag("tie_word_embeddings", family.tied)
    shape |= family.more(section, shape) | windows_of(config, kind, shape["num_layers"])
    shape.setdefault("num_query_groups", shape["num_attention_heads"])
    if "head_dim" not in shape:
        shape["head_dim"] = head_dim(section, shape["hidden_size"], shape["num_attention_heads"])
    return checked(Model(name=_own_name(section) or name, config=dict(config), **shape), "")


def _name(path: Path) -> str:
    return path.resolve().parent.name if path.stem == "config" and path.resolve().parent.name else path.stem


def _own_name(section: Section) -> str:
    stated = section.values.get("_name_or_path")
    last = stated.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] if isinstance(stated, str) else ""
    return last if last.isprintable() and 0 < len(last) <= 100 else ""


def _model_type(section: Section) -> str:
    stated = section.values.get("model_type")
    if isinstance(stated, str) and stated in _FAMILIES:
        return stated
    if stated is None:
        stated = section.values.get("architectures")
        if found := family_of_class(stated):
            return found
    hint = nearest(stated, _FAMILIES) if isinstance(stated, str) else ""
    raise JobError(
        f"model_type must be one of {', '.join(_FAMILIES)}; got {shown(stated)}{hint}; "
        f"write the shape into the job file instead."
    )


def family_of_class(names: object) -> str | None:
    """``["Qwen2MoeForCausalLM"]`` -> ``qwen2_moe``: old files name the class only."""
    first = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    word = first.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
    return next((family for family in _FAMILIES if word and family.replace("_", "") == word), None)


# --- the Llama line: RMSNorm, rotary positions, gated MLP


def _llama(section: Section, shape: Fields) -> Fields:
    attention_bias = section.flag("attention_bias", False)
    return {
        "num_query_groups": size(section, "num_key_value_heads", shape["num_attention_heads"], of="num_query_groups"),
        "linear_bias": attention_bias and section.flag("mlp_bias", False),
        "qkv_bias": attention_bias,
    }


def _qwen2(section: Section, shape: Fields) -> Fields:
    return _llama(section, shape) | {"qkv_bias": True}


def _full_width_experts(key: str, section: Section, shape: Fields) -> Fields:
    return _llama(section, shape) | _routed(section, key, shape["ffn_hidden_size"])


def _phi3(section: Section, shape: Fields) -> Fields:
    """Query, key, value and gate, up are one matrix each, which counts as several; no projection has a bias."""
    dropped = [section.number(key, 1.0, zero=True, default=0.0) > 0 for key in ("resid_pdrop", "attention_dropout")]
    groups = size(section, "num_key_value_heads", shape["num_attention_heads"], of="num_query_groups")
    return {"num_query_groups": groups, "dropout": dropped[0], "score_dropout": dropped[1]}


def _gpt_oss(section: Section, shape: Fields) -> Fields:
    """Heads of their own width, a sink for each, biases everywhere; blank fields take its class's figures."""
    top = "num_experts_per_tok" if not section.has("experts_per_token") else "experts_per_token"
    return _routed(section, "num_local_experts", shape["ffn_hidden_size"], top) | {
        "head_dim": size(section, "head_dim", 64), "linear_bias": section.flag("attention_bias", True),
        "num_query_groups": size(section, "num_key_value_heads", 8, of="num_query_groups"),
    }  # fmt: skip


def _routed(section: Section, experts_key: str, width: int, top_key: str = "num_experts_per_tok") -> Fields:
    experts, top = size(section, experts_key, of="num_experts"), size(section, top_key, of="moe_router_topk")
    return {"num_experts": experts, "moe_router_topk": top, "moe_ffn_hidden_size": width}


def _qwen_moe(section: Section, shape: Fields) -> Fields:
    """Experts of their own width, some leading layers dense, and in Qwen2 one wide shared expert."""
    width = size(section, "moe_intermediate_size", of="moe_ffn_hidden_size")
    shared = size(section, "shared_expert_intermediate_size", 0, low=0, of="ffn_hidden_size")
    if shared % width:
        raise section.refuse("shared_expert_intermediate_size", f"a multiple of {width}, the routed expert's")
    _need_every_layer_sparse(section, "decoder_sparse_step")
    dense = section.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        raise section.refuse("mlp_only_layers", "the leading layers only, for example [0, 1]")
    extras = {"num_shared_experts": shared // width, "num_dense_layers": len(dense)}
    return _llama(section, shape) | _routed(section, "num_experts", width) | extras


def _qwen2_moe(section: Section, shape: Fields) -> Fields:
    section.whole("shared_expert_intermediate_size")
    return _qwen_moe(section, shape) | {"qkv_bias": section.flag("qkv_bias", True)}


def _qwen3_moe(section: Section, shape: Fields) -> Fields:
    return _qwen_moe(section, shape) | {"num_shared_experts": 0}


def _need_every_layer_sparse(section: Section, key: str) -> None:
    if section.whole(key, default=1) != 1:
        raise section.refuse(key, "1: models that alternate dense and MoE layers are not read")


def _deepseek(section: Section, shape: Fields) -> Fields:
    latent = {key: size(section, key) for key in LATENT_NEEDED}
    result = _llama(section, shape) | latent | {
        "q_lora_rank": size(section, "q_lora_rank", 0, low=0),
        "head_dim": latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"],
    }  # fmt: skip
    if not section.has("n_routed_experts"):
        return result
    _need_every_layer_sparse(section, "moe_layer_freq")
    width = size(section, "moe_intermediate_size", of="moe_ffn_hidden_size")
    return result | _routed(section, "n_routed_experts", width) | {
        "num_shared_experts": size(section, "n_shared_experts", 0, low=0, of="num_shared_experts"),
        "num_dense_layers": size(section, "first_k_dense_replace", 0, low=0, of="num_dense_layers"),
        "mtp_num_layers": size(section, "num_nextn_predict_layers", 0, low=0, of="mtp_num_layers"),
    } | _expert_groups(section)  # fmt: skip


def _expert_groups(section: Section) -> Fields:
    """Group-limited routing, which one group is none of."""
    groups = size(section, "n_group", 1, of="moe_router_num_groups") if section.has("n_group") else 1
    if groups == 1:
        return {}
    return {
        "moe_router_num_groups": groups,
        "moe_router_group_topk": size(section, "topk_group", groups, of="moe_router_group_topk"),
    }


# --- the GPT line: LayerNorm with a bias, plain MLP


def _gpt2(section: Section, shape: Fields) -> Fields:
    return _learned(section, "n_positions") | {
        "dropout": section.number("resid_pdrop", 1.0, zero=True, default=0.1) > 0,
        "score_dropout": section.number("attn_pdrop", 1.0, zero=True, default=0.1) > 0,
        "ffn_hidden_size": size(section, "n_inner", 4 * shape["hidden_size"], of="ffn_hidden_size"),
    }


def _gpt_neo(section: Section, shape: Fields) -> Fields:
    # q, k and v have no bias here; counting one is 0.01 % of the model.
    return _learned(section, "max_position_embeddings") | {
        "ffn_hidden_size": size(section, "intermediate_size", 4 * shape["hidden_size"], of="ffn_hidden_size")
    }


def _opt(section: Section, shape: Fields) -> Fields:
    """The position table has two rows more than the file states; OPT-350M embeds narrower and has no final norm."""
    width = size(section, "word_embed_proj_dim", shape["hidden_size"], of="embedding_size")
    final = section.flag("do_layer_norm_before", True)
    affine, bias = section.flag("layer_norm_elementwise_affine", True), section.flag("enable_bias", True)
    return _learned(section, "max_position_embeddings", extra_rows=2) | {
        "dropout": section.number("dropout", 1.0, zero=True, default=0.1) > 0,
        "score_dropout": section.number("attention_dropout", 1.0, zero=True, default=0.0) > 0,
        "embedding_size": 0 if width == shape["hidden_size"] else width,
        "final_norm": final and not section.flag("_remove_final_layer_norm", False),
        "norm_weight": affine, "norm_bias": affine, "linear_bias": bias,
    }  # fmt: skip


def _learned(section: Section, key: str, extra_rows: int = 0) -> Fields:
    return {
        "position_embedding": "learned",
        "max_position_embeddings": size(section, key, of="max_position_embeddings") + extra_rows,
    }


def _bloom(section: Section, shape: Fields) -> Fields:
    return {"ffn_hidden_size": 4 * shape["hidden_size"]}


def _mpt(section: Section, shape: Fields) -> Fields:
    attention = section.section("attn_config")
    bias = not section.flag("no_bias", True)
    heads = 1 if attention.values.get("attn_type") == "multiquery_attention" else shape["num_attention_heads"]
    ratio = section.number("expansion_ratio", 1000.0, default=4.0)
    return _mpt_positions(section, attention) | {
        "ffn_hidden_size": max(1, round(ratio * shape["hidden_size"])),
        "num_query_groups": size(attention, "kv_n_heads", heads, of="num_query_groups"),
        "norm_bias": bias,
        "linear_bias": bias,
        "qk_norm": attention.flag("qk_ln", False),
        "qk_norm_full": True,
    }


def _mpt_positions(section: Section, attention: Section) -> Fields:
    if attention.flag("alibi", False):
        return {"position_embedding": "alibi"}
    if attention.flag("rope", False) or not section.flag("learned_pos_emb", True):
        return {"position_embedding": "rope"}
    return _learned(section, "max_seq_len")


_LLAMA_NAMES = {
    "num_layers": "num_hidden_layers", "hidden_size": "hidden_size", "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads", "vocab_size": "vocab_size",
}  # fmt: skip
_GPT_NAMES = {
    "num_layers": "n_layer num_hidden_layers num_layers n_layers", "hidden_size": "n_embd hidden_size n_embed d_model",
    "num_attention_heads": "n_head num_attention_heads num_heads n_heads", "vocab_size": "vocab_size",
}  # fmt: skip
_GPT_NEO_NAMES = _GPT_NAMES | {
    "num_layers": "num_layers num_hidden_layers", "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads num_attention_heads",
}  # fmt: skip
_BLOOM_NAMES = _GPT_NAMES | {"hidden_size": "hidden_size n_embed"}
_MPT_NAMES = _GPT_NAMES | {"num_layers": "n_layers", "hidden_size": "d_model", "num_attention_heads": "n_heads"}
_OPT_NAMES = _LLAMA_NAMES | {"ffn_hidden_size": "ffn_dim"}
_GATED = {"gated_mlp": True, "rmsnorm": True}
_PLAIN = {"gated_mlp": False, "rmsnorm": False, "norm_bias": True, "linear_bias": True}

_FAMILIES: dict[str, _Family] = {
    "llama": _Family(_LLAMA_NAMES, _llama, _GATED),
    "mistral": _Family(_LLAMA_NAMES, _llama, _GATED),
    "mixtral": _Family(_LLAMA_NAMES, partial(_full_width_experts, "num_local_experts"), _GATED),
    "qwen2": _Family(_LLAMA_NAMES, _qwen2, _GATED),
    "qwen2_moe": _Family(_LLAMA_NAMES, _qwen2_moe, _GATED),
    "qwen3": _Family(_LLAMA_NAMES, _llama, _GATED | {"qk_norm": True}),
    "qwen3_moe": _Family(_LLAMA_NAMES, _qwen3_moe, _GATED | {"qk_norm": True}),
    "deepseek_v2": _Family(_LLAMA_NAMES, _deepseek, _GATED),
    "deepseek_v3": _Family(_LLAMA_NAMES, _deepseek, _GATED),
    "olmo": _Family(_LLAMA_NAMES, _llama, {"gated_mlp": True, "rmsnorm": False, "norm_weight": False}),
    "olmo2": _Family(_LLAMA_NAMES, _llama, _GATED | {"qk_norm": True, "qk_norm_full": True}),
    "olmoe": _Family(
        _LLAMA_NAMES, partial(_full_width_experts, "num_experts"), _GATED | {"qk_norm": True, "qk_norm_full": True}
    ),
    "gpt_oss": _Family(_LLAMA_NAMES, _gpt_oss, _GATED | {"attention_sinks": True, "moe_linear_bias": True}),
    "phi3": _Family(_LLAMA_NAMES, _phi3, _GATED),
    "gpt2": _Family(_GPT_NAMES, _gpt2, _PLAIN, tied=True),
    "gpt_neo": _Family(_GPT_NEO_NAMES, _gpt_neo, _PLAIN, tied=True),
    "gpt_neox": _Family(_LLAMA_NAMES, lambda section, shape: {}, _PLAIN),
    "opt": _Family(_OPT_NAMES, _opt, _PLAIN, tied=True),
    "bloom": _Family(_BLOOM_NAMES, _bloom, _PLAIN | {"position_embedding": "alibi", "embedding_norm": True}, tied=True),
    "mpt": _Family(_MPT_NAMES, _mpt, _PLAIN, tied=True),
}
