"""Megatron-Bridge: overrides of the ``ConfigContainer`` of a recipe, as words and as YAML.

Names are those of the dataclasses in megatron/bridge/training/config.py and models/gpt_provider.py of 0.3.1, and of
Megatron Core 0.16's TransformerConfig, which they extend. NeMo's own configurations (``nemo.collections.llm``) are
other classes and are not written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jointopt.core.quote import hydra_word, yaml_text
from jointopt.core.schema import LORA_TARGETS, MODULES
from jointopt.frameworks.intent import Export, Gaps, Intent
from jointopt.frameworks.megatron import (
    CAPTURED_OF_EXPERTS,
    POSITIONS,
    SHARDING,
    dispatcher,
    forced_balance,
    has_qk_norms,
    layer_layout,
    megatron_words,
    offloaded_modules,
    option_settings,
    pre_softmax,
    shared_gate,
)
from jointopt.frameworks.options import FileSettings, Words, flattened, precision_remarks, stated, whole_number
from jointopt.jobs.model_facts import facts_in, with_facts

NAME, FILE = "megatron-bridge", "overrides.yaml"
_CORE = "0.16.1"  # the Megatron Core that it brings
_FLAGS = {
    "interleaved_rotary": "rotary_interleaved", "zero_centered_norms": "layernorm_zero_centered_gamma",
    "post_layernorm_residual": "apply_residual_connection_post_layernorm",
}  # fmt: skip
_PRECISION = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
_OF_RECIPE = {
    "delayed": _PRECISION["fp8"], "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": _PRECISION["fp4"],
}  # fmt: skip


def export(intent: Intent, version: str) -> Export:
    """``model.tensor_model_parallel_size=8 ...`` over any pretraining recipe; ExportError as Megatron-LM's export."""
    words, notes = megatron_words(intent, _CORE)  # what its Megatron Core cannot do
    gaps = Gaps(f"Megatron-Bridge {version}", intent)
    gaps.no_choice_of_overlap(("tp",))  # its recipes' comm_overlap
    gaps.facts(intent.facts.keys() - {"squared_relu"})  # a function of PyTorch's; the others as Megatron Core
    precision = _precision(gaps, intent)
    sections = {
        "model": _shape(intent) | _experts(words, intent) | _plan(intent), "train": _train(intent), "ddp": _ddp(intent),
        **_stated_settings(intent),
        "dist": {"use_megatron_fsdp": intent["zero_stage"] > 1},
        "logger": {"log_interval": 10 if intent.is_training else 1},
        "dataset": {"sequence_length": intent.job.training.seq_length},
        "mixed_precision": precision,
    }  # fmt: skip
    training = intent.job.training
    for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):  # which are types of PyTorch there, no text
        gaps.never(getattr(training, name) is not None, f"training.{name} {getattr(training, name)}")
    gaps.never(training.fp8_param_gather, "training.fp8_param_gather true")
    # an override makes text of the enumeration, which no comparison of Megatron Core's finds equal to its own
    gaps.never(training.attention == "unfused", "training.attention unfused")
    if intent["offload"] == "optimizer" or training.precision_aware_optimizer:
        sections["optimizer"] = {
            "optimizer_cpu_offload": intent["offload"] == "optimizer", "use_precision_aware_optimizer": True,
        }  # fmt: skip
    for section, values in _graphs(intent).items():
        sections[section] = {**sections.get(section, {}), **values}  # type: ignore[dict-item]
    if training.frozen:
        sections["peft"] = _adapters(intent)
    if intent["zero_stage"] > 1:
        sections["checkpoint"] = {"ckpt_format": "fsdp_dtensor"}
    if intent.saving:
        saved: dict[str, Any] = {"save_interval": intent.save_interval}
        if intent.saves_in_background and intent["zero_stage"] <= 1:  # in Megatron's own format alone
            saved |= {"async_save": True, "use_persistent_ckpt_worker": True}
        sections["checkpoint"] = {**saved, **sections.get("checkpoint", {})}  # type: ignore[dict-item]
    if not intent.is_training:
        sections["checkpoint"] = {"save": None, **sections.get("checkpoint", {})}  # type: ignore[dict-item]
    recipe = "a LoRA recipe (*_peft_config --peft_scheme lora)" if training.frozen else "the pretraining recipe"
    note = f"Give the words, or the file, to {recipe} of the model (scripts/training/run_recipe.py)."
    if training.frozen:
        gaps.notes.append("Yours to set: checkpoint.pretrained_checkpoint, where the frozen weights lie.")
    environment = {} if intent["zero_stage"] > 1 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    if intent["offload"] == "activations":
        environment["NVTE_CPU_OFFLOAD_V1"] = "1"  # it refuses to start without, lest weights are offloaded too
    return Export(
        NAME, version, tuple(_words(sections)), environment, int(intent.job.cluster.num_gpus),
        "scripts/training/run_recipe.py", files={FILE: yaml_text(sections)}, notes=(note, *notes, *gaps.notes),
    )  # fmt: skip


def _precision(gaps: Gaps, intent: Intent) -> str:
    """The name of its mixed precision: of a stated recipe, else of the dtype: fp8 by delayed scaling, fp4 by nvfp4."""
    training = intent.job.training
    recipe = None if training.fp8_recipe is None else training.fp8_recipe.name
    gaps.never(recipe is None and training.dtype not in _PRECISION, f"training in {training.dtype}")
    if recipe == "tensorwise":
        gaps.notes.append("bf16_with_fp8_current_scaling_mixed keeps the first and the last layer in bf16.")
    return _OF_RECIPE[recipe] if recipe else _PRECISION[training.dtype]


def _shape(intent: Intent) -> dict[str, Any]:
    model, details = intent.model, intent.details
    scaling = details.rope_scaling
    positions = POSITIONS[model.position_embedding]
    found: dict[str, Any] = {
        "num_layers": model.num_layers, "hidden_size": model.hidden_size, "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads, "num_query_groups": model.num_query_groups,
        "kv_channels": model.head_dim, "vocab_size": model.vocab_size, "normalization":
        "RMSNorm" if model.rmsnorm else "LayerNorm", "layernorm_epsilon": details.norm_epsilon,
        "init_method_std": details.init_std, "gated_linear_unit": model.gated_mlp,
        "add_bias_linear": model.linear_bias, "add_qkv_bias": model.qkv_bias or model.linear_bias,
        "qk_layernorm": has_qk_norms(model),
        "share_embeddings_and_output_weights": model.tied_embeddings, "position_embedding_type": positions,
        "seq_length": intent.job.training.seq_length, "attention_dropout": details.attention_dropout,
        "hidden_dropout": details.hidden_dropout, "mtp_num_layers": model.mtp_num_layers or None,
    }  # fmt: skip
    if positions == "rope":
        found |= {"rotary_base": int(details.rotary_base), "rotary_percent": details.rotary_percent}
    if intent.window:
        found |= {"window_size": [intent.window, 0]}
        freq = model.window_attn_skip_freq
        if freq:
            found |= {"window_attn_skip_freq": list(freq) if isinstance(freq, tuple) else freq}
        if intent.context_exchange:
            found |= {"cp_comm_type": intent.context_exchange}
    found |= {name: True for fact, name in _FLAGS.items() if fact in intent.facts}
    if scaling is not None and scaling.kind == "llama3":
        found |= {"rope_scaling": True, "rope_scaling_factor": scaling.factor}
    if scaling is not None and scaling.kind == "linear":
        found |= {"seq_len_interpolation_factor": scaling.factor}
    if model.kv_lora_rank:
        yarn = {"rotary_scaling_factor": scaling.factor, "mscale": scaling.mscale,
                "mscale_all_dim": scaling.mscale_all_dim, "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow} if scaling is not None and scaling.kind == "yarn" else {}  # fmt: skip
        found |= yarn | {
            "multi_latent_attention": True, "q_lora_rank": model.q_lora_rank or None,
            "kv_lora_rank": model.kv_lora_rank, "qk_head_dim": model.qk_nope_head_dim,
            "qk_pos_emb_head_dim": model.qk_rope_head_dim, "v_head_dim": model.v_head_dim,
            "rope_type": "yarn" if yarn else "rope",
        }  # fmt: skip
    return found


def _experts(words: Words, intent: Intent) -> dict[str, Any]:
    model, routing = intent.model, intent.details.routing
    if not model.is_moe:
        return {}
    shared, dense = model.num_shared_experts * model.moe_ffn_hidden_size, model.num_dense_layers
    return {
        "num_moe_experts": model.num_experts, "moe_router_topk": model.moe_router_topk,
        "moe_ffn_hidden_size": model.moe_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": shared or None, "moe_shared_expert_gate": shared_gate(intent),
        "moe_grouped_gemm": True, "moe_permute_fusion": True,
        "moe_layer_freq": [int(one.ffn == "experts") for one in model.pattern] if dense or model.layers else 1,
        "moe_router_score_function": routing.score, "moe_router_dtype": "fp32",
        "moe_router_pre_softmax": pre_softmax(intent),
        "moe_router_topk_scaling_factor": routing.scaling if routing.scaling != 1.0 else None,
        "moe_router_num_groups": model.moe_router_num_groups or None,
        "moe_router_group_topk": model.moe_router_group_topk or None,
        "moe_router_enable_expert_bias": routing.bias,
        "moe_router_load_balancing_type": "aux_loss" if routing.aux_loss else "none",
        **dispatcher(words, intent), "moe_aux_loss_coeff": routing.aux_loss,
        "moe_router_force_load_balancing": forced_balance(intent),
    }  # fmt: skip


def _plan(intent: Intent) -> dict[str, Any]:
    """Degrees, the split of layers as a layout wherever it is not even, recompute and offload."""
    full, modules = intent["recompute"] == "full", MODULES.code(intent["recompute_modules"])
    names = [name for name in MODULES.names if modules & MODULES.bit(name)]
    layers, mtp = intent["recompute_num_layers"], intent.model.mtp_num_layers
    found: dict[str, Any] = {
        "tensor_model_parallel_size": intent["tp"], "pipeline_model_parallel_size": intent["pp"],
        "context_parallel_size": intent["cp"], "expert_model_parallel_size": intent["ep"],
        "expert_tensor_parallel_size": intent["etp"] if intent.model.is_moe else None,
        "virtual_pipeline_model_parallel_size": intent["vpp"] if intent["vpp"] > 1 else None,
        "sequence_parallel": bool(intent["sequence_parallel"]),
        "pipeline_model_parallel_layout": None if intent.even else layer_layout(intent.chunk_layers, mtp),
        "recompute_granularity": None if intent["recompute"] == "none" else intent["recompute"],
        "recompute_method": ("block" if layers else "uniform") if full else None,
        "recompute_num_layers": (layers or 1) if full else None,
        **intent.loss_fusion,
    }  # fmt: skip
    if names:
        found["recompute_modules"] = names
    if intent.job.training.fp8_activations is not None:
        found["activation_func_fp8_input_store"] = intent.job.training.fp8_activations
    if intent["offload"] == "activations":
        found |= {"fine_grained_activation_offloading": True, "offload_modules": list(offloaded_modules(intent))}
    return found


def _graphs(intent: Intent) -> dict[str, dict[str, Any]]:
    """CUDA graphs: of whole layers, of MoE layers what has a fixed shape; or of all passes, without checks for NaN."""
    kind = intent.job.training.cuda_graph
    if not intent.job.training.captures_graphs:
        return {"model": {"cuda_graph_impl": kind}} if kind else {}
    found: dict[str, dict[str, Any]] = {"model": {"use_te_rng_tracker": True}, "rng": {"te_rng_tracker": True}}
    if kind == "full_iteration":
        found["model"] |= {"cuda_graph_impl": "local", "cuda_graph_scope": [kind]}
        return found | {
            "rerun_state_machine": {"check_for_nan_in_loss": False},
            "ddp": {"check_for_nan_in_grad": False},
        }
    scope = list(CAPTURED_OF_EXPERTS if intent.model.is_moe else ("attn", "mlp"))
    found["model"] |= {"cuda_graph_impl": kind, "cuda_graph_scope": scope}
    return found


def _stated_settings(intent: Intent) -> dict[str, dict[str, Any]]:
    """What the job states of overlaps and 8-bit activations, over what a recipe and its CommOverlapConfig have."""
    training = intent.job.training
    overlaps = {} if training.tp_overlap is None else {"tp_comm_overlap": intent.hides("tp")}
    if training.dp_overlap is not None:
        overlaps |= {"overlap_grad_reduce": intent.hides_dp, "overlap_param_gather": intent.hides_dp}
    return {"comm_overlap": overlaps} if overlaps else {}


def _adapters(intent: Intent) -> dict[str, Any]:
    """Fields of megatron/bridge/peft/lora.py's LoRA, which a recipe's own object has."""
    training = intent.job.training
    alpha = {} if training.lora_alpha is None else {"alpha": training.lora_alpha}
    return {"dim": training.lora_dim, **alpha, "target_modules": list(training.adapted)}


def _train(intent: Intent) -> dict[str, Any]:
    quiet = {} if intent.is_training else {"eval_iters": 0}
    return {
        "train_iters": intent.iterations, "global_batch_size": intent.job.training.global_batch_size,
        "micro_batch_size": intent["micro_batch_size"], "manual_gc": True, "manual_gc_interval": 100, **quiet,
    }  # fmt: skip


def _ddp(intent: Intent) -> dict[str, Any]:
    stage = intent["zero_stage"]
    found: dict[str, Any] = {
        "use_distributed_optimizer": stage > 0, "overlap_grad_reduce": intent.hides_dp,
        "overlap_param_gather": intent.hides_dp and stage > 0,
        "num_distributed_optimizer_instances": intent["dp_replicate"],
        "grad_reduce_in_fp32": intent.job.training.gradient_comm_bytes != 2,
    }  # fmt: skip
    fsdp = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": SHARDING.get(stage)}
    return found | (fsdp if stage > 1 else {})


def _words(sections: dict[str, Any]) -> list[str]:
    """Hydra's ``section.name=value``; null takes a recipe's value away."""
    words = []
    for section, values in sections.items():
        if not isinstance(values, dict):
            words.append(hydra_word(section, values))
            continue
        for name, value in values.items():
            words.append(hydra_word(f"{section}.{name}", value))
    return words


# Configs of NeMo (also of harnesses around it, as CharLLM's) and Megatron-Bridge: Megatron's options in sections.


# Names that differ from those of Megatron's options.
_RENAMED = {
    "encoder_seq_length": "seq_length", "sequence_length": "seq_length", "bias": "add_bias_linear",
    "activations_checkpoint_granularity": "recompute_granularity", "num_moe_experts": "num_experts",
    "activations_checkpoint_method": "recompute_method", "activations_checkpoint_num_layers": "recompute_num_layers",
    "use_flash_attention": "use_flash_attn", "gated_linear_unit": "swiglu", "fsdp": "use_megatron_fsdp",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers", "tokenizer.type": "tokenizer_type",
    "optim.overlap_grad_sync": "overlap_grad_reduce", "ub_tp_comm_overlap": "tp_comm_overlap",
}  # fmt: skip
_SECTIONS = ("model", "train", "ddp", "comm_overlap", "dataset", "optimizer", "mixed_precision", "tokenizer")
_HARMLESS = re.compile(
    r"(?:run|exp_manager|hydra|cluster|env_vars|stages|name$|restore|defaults|logger|checkpoint|rng|scheduler|profiling"
    r"|comm_overlap|dist\b|dist\.|peft|validation|inprocess|straggler|nvrx|rerun|ft\b|ft\.|tensor_inspect)"
    r"|trainer\.(?!num_nodes|devices)|model\.(?:data|optim|tokenizer|nsys|gc_|gradient|megatron_amp|native_amp|apex|mcore"
    r"|transformer_engine|ub_|resume|seed|sync|name|openai|fused|headscale|activation_func|share_token|_target_|exp)"
    r"|(?:ddp|dataset|optimizer|train|tokenizer|mixed_precision)\.|.*_target_$"
)
# What NeMo called the layers with adapters before they had Megatron Core's names.
_TARGETS = {
    "attention_qkv": ("linear_qkv",), "attention_dense": ("linear_proj",), "mlp_fc1": ("linear_fc1",),
    "mlp_fc2": ("linear_fc2",), "attention": LORA_TARGETS[:2], "mlp": LORA_TARGETS[2:], "all": LORA_TARGETS,
} | {name: (name,) for name in LORA_TARGETS}  # fmt: skip
_PRECISIONS = {"bf16": "bf16", "16": "fp16", "fp16": "fp16"}  # fp32 is what Megatron's options mean without one


def is_nemo(config: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping is a NeMo config: a trainer and a model, perhaps below ``training``."""
    return isinstance(config.get("model"), Mapping) and ("trainer" in config or "exp_manager" in config)


def is_bridge(config: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping is a ConfigContainer of Megatron-Bridge, or overrides of one."""
    return bool({"train", "model"} & config.keys()) and bool({"ddp", "train", "mixed_precision"} & config.keys())


def nemo_settings(config: Mapping[str, Any]) -> FileSettings:
    """The statements of a NeMo config: ``trainer`` for the cluster and the precision, ``model`` for the rest."""
    flat = flattened(config)
    peft = {name[11:]: flat.pop(name) for name in list(flat) if name.startswith("model.peft.")}
    values = _megatron_names({n[6:]: v for n, v in flat.items() if n.startswith("model.")})
    values |= _read_precision(str(flat.get("trainer.precision", "")))
    values |= {"use_distributed_optimizer": True} if "dist" in str(flat.get("model.optim.name", "")) else {}
    settings = _of_a_recipe(option_settings(values, "NeMo config"))
    settings.model = with_facts(settings.model, facts_in({"scheme": peft.get("peft_scheme")}, "adapters"))
    if str(peft.get("peft_scheme")).lower() == "lora":
        tuning = {name[12:]: value for name, value in peft.items() if name.startswith("lora_tuning.")}
        default = {"target_modules": ["attention_qkv"]}
        settings.training |= adapters_of(default | tuning, "adapter_dim")
    if longest := whole_number(flat.get("model.data.train_ds.max_seq_length")):  # of fine-tuning, which pads to it
        settings.training["seq_length"] = min(longest, settings.training.get("seq_length") or longest)
    settings.cluster = stated(
        nodes=whole_number(flat.get("trainer.num_nodes")), gpus_per_node=whole_number(flat.get("trainer.devices"))
    )
    settings.remarks += precision_remarks("trainer.precision", flat.get("trainer.precision"))
    return _with_places(settings, flat, ("model.",), ("trainer.num_nodes", "trainer.devices", "trainer.precision"))


def bridge_settings(config: Mapping[str, Any]) -> FileSettings:
    """The statements of a ConfigContainer: sections model, train, ddp, dataset, optimizer, mixed_precision."""
    flat = flattened(config)
    inner = {name.split(".", 1)[1]: v for name, v in flat.items() if name.split(".")[0] in _SECTIONS and "." in name}
    inner |= {"model_class": flat.get("model._target_")}
    values = _megatron_names(inner) | _read_precision(str(flat.get("mixed_precision", "")))
    settings = _of_a_recipe(option_settings(values, "Megatron-Bridge config"))
    peft = {name[5:]: flat.pop(name) for name in list(flat) if name.startswith("peft.")}
    settings.model = with_facts(settings.model, facts_in({"class": peft.get("_target_")}, "adapters"))
    if "dim" in peft and not str(peft.get("_target_", "LoRA")).endswith("DoRA"):
        settings.training |= adapters_of(peft, "dim")
    settings.remarks += precision_remarks("mixed_precision", flat.get("mixed_precision"))
    return _with_places(settings, flat, tuple(f"{name}." for name in _SECTIONS), ("mixed_precision",))


def _of_a_recipe(settings: FileSettings) -> FileSettings:
    """The statements of Megatron's options by a recipe, whose own settings are not known."""
    settings.framework = "nemo"
    return settings


def adapters_of(peft: Mapping[str, Any], dim: str) -> dict[str, Any]:
    """LoRA as the job's training states it; layers by another pattern count as all."""
    named = peft.get("target_modules")
    names = named if isinstance(named, list) else [named] if isinstance(named, str) else []
    found = {target for name in names for target in _TARGETS.get(str(name), LORA_TARGETS)}
    targets = [target for target in LORA_TARGETS if target in found] or None
    alpha = whole_number(peft.get("alpha"))
    return stated(lora_dim=whole_number(peft.get(dim)) or 32, lora_alpha=alpha, lora_target_modules=targets)


def _with_places(
    settings: FileSettings, flat: Mapping[str, Any], inside: tuple[str, ...], read: tuple[str, ...]
) -> FileSettings:
    """The record with the options that were not read, by their places in the file."""
    unread = set(settings.unread)
    names = {_short(name, inside): name for name in flat if name.startswith(inside)}
    places = [names.get(name, name) for name in unread]
    places += [name for name in flat if not name.startswith(inside) and name not in read]
    settings.without_effect += sum(bool(_HARMLESS.match(place)) for place in places)
    settings.unread = tuple(sorted(place for place in places if not _HARMLESS.match(place)))
    return settings


def _short(name: str, inside: tuple[str, ...]) -> str:
    rest = next(name.removeprefix(section) for section in inside if name.startswith(section))
    return _RENAMED.get(rest, rest)


def _megatron_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values under Megatron's own names, with its defaults where those of NeMo differ."""
    named = {_RENAMED.get(name, name): value for name, value in values.items() if value is not None}
    named |= {"group_query_attention": True} if named.get("num_query_groups") else {}
    if "share_embeddings_and_output_weights" in named:
        named["untie_embeddings_and_output_weights"] = not named.pop("share_embeddings_and_output_weights")
    if named.get("use_megatron_fsdp") and "fsdp_sharding_strategy" in named:
        words = {"full": "optim_grads_params", "grad": "optim_grads"}
        named["data_parallel_sharding_strategy"] = words.get(named.pop("fsdp_sharding_strategy"), "optim_grads_params")
    return named


# Words of a mixed precision's name beside fp8, mxfp8 and nvfp4: bf16_with_fp8_current_scaling_mixed.
_RECIPES = {"delayed": "delayed", "current": "tensorwise", "subchannel": "blockwise"}


def _read_precision(text: str) -> dict[str, Any]:
    words = re.split(r"[-_]", text.lower())
    wide = next((_PRECISIONS[word] for word in words if word in _PRECISIONS), None)
    found: dict[str, Any] = {wide: True} if wide else {}
    if "nvfp4" in words:
        return found | {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"}
    if "mxfp8" in words:
        return found | {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"}
    recipe = next((_RECIPES[word] for word in words if word in _RECIPES), None)
    return found | ({"fp8_format": "hybrid"} | ({"fp8_recipe": recipe} if recipe else {}) if "fp8" in words else {})
