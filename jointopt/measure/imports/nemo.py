"""Configs of NeMo (also of harnesses around it, as CharLLM's) and Megatron-Bridge: Megatron's options in sections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jointopt.core.schema import LORA_TARGETS
from jointopt.measure.imports.megatron import options_taken
from jointopt.measure.imports.taken import Taken, flattened, precision_remarks, stated, whole_of

# Names that differ from those of Megatron's options.
_RENAMED = {
    "encoder_seq_length": "seq_length", "sequence_length": "seq_length", "bias": "add_bias_linear",
    "activations_checkpoint_granularity": "recompute_granularity", "num_moe_experts": "num_experts",
    "activations_checkpoint_method": "recompute_method", "activations_checkpoint_num_layers": "recompute_num_layers",
    "use_flash_attention": "use_flash_attn", "gated_linear_unit": "swiglu", "fsdp": "use_megatron_fsdp",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers", "tokenizer.type": "tokenizer_type",
}  # fmt: skip
_SECTIONS = ("model", "train", "ddp", "dataset", "optimizer", "mixed_precision", "tokenizer")
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


def nemo_taken(config: Mapping[str, Any]) -> Taken:
    """The statements of a NeMo config: ``trainer`` for the cluster and the precision, ``model`` for the rest."""
    flat = flattened(config)
    peft = {name[11:]: flat.pop(name) for name in list(flat) if name.startswith("model.peft.")}
    values = _megatron_names(_resolved({n[6:]: v for n, v in flat.items() if n.startswith("model.")}))
    values |= _precision(str(flat.get("trainer.precision", "")))
    values |= {"use_distributed_optimizer": True} if "dist" in str(flat.get("model.optim.name", "")) else {}
    taken = _of_a_recipe(options_taken(values, "NeMo config"))
    if str(peft.get("peft_scheme")).lower() == "lora":
        tuning = {name[12:]: value for name, value in peft.items() if name.startswith("lora_tuning.")}
        usual = {"target_modules": ["attention_qkv"]}
        taken.training |= _adapters(usual | tuning, "adapter_dim")
    if longest := whole_of(flat.get("model.data.train_ds.max_seq_length")):  # of fine-tuning, which pads to it
        taken.training["seq_length"] = min(longest, taken.training.get("seq_length") or longest)
    taken.cluster = stated(
        nodes=whole_of(flat.get("trainer.num_nodes")), gpus_per_node=whole_of(flat.get("trainer.devices"))
    )
    taken.remarks += precision_remarks("trainer.precision", flat.get("trainer.precision"))
    return _with_places(taken, flat, ("model.",), ("trainer.num_nodes", "trainer.devices", "trainer.precision"))


def bridge_taken(config: Mapping[str, Any]) -> Taken:
    """The statements of a ConfigContainer: sections model, train, ddp, dataset, optimizer, mixed_precision."""
    flat = flattened(config)
    inner = {name.split(".", 1)[1]: v for name, v in flat.items() if name.split(".")[0] in _SECTIONS and "." in name}
    values = _megatron_names(inner) | _precision(str(flat.get("mixed_precision", "")))
    taken = _of_a_recipe(options_taken(values, "Megatron-Bridge config"))
    peft = {name[5:]: flat.pop(name) for name in list(flat) if name.startswith("peft.")}
    if "dim" in peft and not str(peft.get("_target_", "LoRA")).endswith("DoRA"):
        taken.training |= _adapters(peft, "dim")
    taken.remarks += precision_remarks("mixed_precision", flat.get("mixed_precision"))
    return _with_places(taken, flat, tuple(f"{name}." for name in _SECTIONS), ("mixed_precision",))


def _of_a_recipe(taken: Taken) -> Taken:
    """The statements of Megatron's options by a recipe, which overlaps tensor parallelism by default."""
    taken.framework = "nemo"
    if taken.plan.get("overlap") == "none":
        taken.plan["overlap"] = "tp"
    return taken


def _adapters(peft: Mapping[str, Any], dim: str) -> dict[str, Any]:
    """LoRA as the job's training states it; layers by another pattern count as all."""
    named = peft.get("target_modules")
    names = named if isinstance(named, list) else [named] if isinstance(named, str) else []
    found = {target for name in names for target in _TARGETS.get(str(name), LORA_TARGETS)}
    targets = [target for target in LORA_TARGETS if target in found] or None
    alpha = whole_of(peft.get("alpha"))
    return stated(lora_dim=whole_of(peft.get(dim)) or 32, lora_alpha=alpha, lora_target_modules=targets)


def _with_places(taken: Taken, flat: Mapping[str, Any], inside: tuple[str, ...], read: tuple[str, ...]) -> Taken:
    """The record with the options that were not read, by their places in the file."""
    unread = set(taken.unread)
    names = {_short(name, inside): name for name in flat if name.startswith(inside)}
    places = [names.get(name, name) for name in unread]
    places += [name for name in flat if not name.startswith(inside) and name not in read]
    taken.without_effect += sum(bool(_HARMLESS.match(place)) for place in places)
    taken.unread = tuple(sorted(place for place in places if not _HARMLESS.match(place)))
    return taken


def _short(name: str, inside: tuple[str, ...]) -> str:
    rest = next(name.removeprefix(section) for section in inside if name.startswith(section))
    return _RENAMED.get(rest, rest)


def _megatron_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values under Megatron's own names, with its defaults where those of NeMo differ."""
    named = {_RENAMED.get(name, name): value for name, value in values.items() if value is not None}
    activation = str(named.pop("activation", ""))
    named |= {"swiglu": True} if "swiglu" in activation or "geglu" in activation else {}
    named |= {"group_query_attention": True} if named.get("num_query_groups") else {}
    if "share_embeddings_and_output_weights" in named:
        named["untie_embeddings_and_output_weights"] = not named.pop("share_embeddings_and_output_weights")
    if named.get("use_megatron_fsdp") and "fsdp_sharding_strategy" in named:
        words = {"full": "optim_grads_params", "grad": "optim_grads"}
        named["data_parallel_sharding_strategy"] = words.get(named.pop("fsdp_sharding_strategy"), "optim_grads_params")
    return named


# Words of a mixed precision's name beside fp8, mxfp8 and nvfp4: bf16_with_fp8_current_scaling_mixed.
_RECIPES = {"delayed": "delayed", "current": "tensorwise", "subchannel": "blockwise"}


def _precision(text: str) -> dict[str, Any]:
    words = re.split(r"[-_]", text.lower())
    wide = next((_PRECISIONS[word] for word in words if word in _PRECISIONS), None)
    found: dict[str, Any] = {wide: True} if wide else {}
    if "nvfp4" in words:
        return found | {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"}
    if "mxfp8" in words:
        return found | {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"}
    recipe = next((_RECIPES[word] for word in words if word in _RECIPES), None)
    return found | ({"fp8_format": "hybrid"} | ({"fp8_recipe": recipe} if recipe else {}) if "fp8" in words else {})


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """OmegaConf's references within a section: ``${.hidden_size}``, ``${multiply:4, ${.hidden_size}}``."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        text = re.sub(r"\$\{(?:[\w.]*\.)?(\w+)\}", lambda found: str(values.get(found[1], "?")), str(value))
        product = re.fullmatch(r"\$\{multiply:\s*(\d+),\s*(\d+)\}", text)
        quotient = re.fullmatch(r"\$\{divide(?:_ceil)?:\s*(\d+),\s*(\d+)\}", text)
        if product:
            out[name] = int(product[1]) * int(product[2])
        elif quotient:
            out[name] = -(-int(quotient[1]) // int(quotient[2]))
        else:
            out[name] = text if isinstance(value, str) else value
    return out
