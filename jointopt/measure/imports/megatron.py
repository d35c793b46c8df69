"""Options of Megatron-LM: on a command line, or as its log lists them; Bridge and NeMo share their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from jointopt.measure.imports.taken import Options, Taken, pairs_of, stated

SHAPE = ("num_layers", "hidden_size")  # who has both is a Megatron command line
_DUMP = re.compile(r"^\s*(\w+) \.{3,} ?(.*?)\s*$")
# Options that change neither the layout nor what an iteration computes, by the beginning of their names.
HARMLESS = re.compile(
    r"lr\b|lr_|min_lr|weight_decay|adam_|clip_grad|sgd_|optimizer$|train_iters|train_samples|exit_|save|load|ckpt_|async_"
    r"|no_save|no_load|log_|timing_|tensorboard|wandb|eval_|data_|split|mock_data|tokenizer|vocab_file|merge_file|seed"
    r"|init_method|distributed_timeout|distributed_backend|dataloader|num_workers|num_dataset|norm_epsilon|rotary|rope_"
    r"|use_rope|no_rope|max_position|no_create|attention_softmax|no_masked|no_bias|no_gradient|bias_|apply_|manual_gc"
    r"|use_mcore|transformer_impl|accumulate_|empty_unused|profile|nccl_|rerun|straggler|enable_|disable_straggler"
    r"|overlap_|no_overlap|tp_comm|ddp_|cross_entropy|grad_reduce|loss_scale|initial_loss|min_loss|hysteresis|fp8_"
    r"|fp16_lm|reset_|no_mmap|eod_|short_seq|mask_|moe_aux|moe_router_(?!topk$)|moe_z|moe_token|moe_grouped|moe_permute"
    r"|moe_per|moe_expert_cap|moe_pad|moe_use|moe_enable|check_for|check_weight|no_check|deterministic|override_opt|end_"
    r"|start_|finetune|local_rank|rank$|master_|te_rng|external_|mtp_|use_cpu_init|use_precision|no_shared|use_checkpoint"
    r"|hidden_act|sample_|perform_|result|iteration|consumed|auto_|dist_ckpt|use_dist|legacy|high_priority|cuda_graph"
    r"|lazy_|global_batch|create_|calculate|layernorm_|embedding_init|qk_clip|rampup|decoupled|warmup|spec$|use_tp_pp|tiktoken|flight_recorder"
    r"|no_flight|microbatch_group|moe_routing"
)


def words_taken(words: list[str]) -> Taken:
    """The statements of the words of a command line."""
    return options_taken(dict(pairs_of(words)), "Megatron-LM options")


def dump_taken(text: str) -> Taken | None:
    """The statements of the arguments that Megatron lists at its start; None where a log holds no such list."""
    found = (_DUMP.match(line) for line in text.splitlines())
    values = {match[1]: _literal(match[2]) for match in found if match}
    if not set(SHAPE) <= values.keys():
        return None
    taken = options_taken(values, "Megatron-LM log")
    taken.without_effect += len(taken.unread)  # Megatron knows them all
    taken.unread = ()
    return taken


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def options_taken(values: Mapping[str, Any], form: str) -> Taken:
    """The statements of Megatron's options, by name with underscores; defaults are those of its parser."""
    options = Options(values)
    layout = plan_of(options)
    taken = Taken(
        form, "megatron-lm", model=model_of(options), training=_training(options), plan=layout,
        cluster=stated(num_gpus=options.whole("world_size")),
    )  # fmt: skip
    if not taken.model.get("num_experts"):  # Megatron sets it to tp for dense models too
        layout.pop("etp", None)
    layout |= stated(stage_layers=_stage_layers(options, taken.model.get("num_layers"), layout))
    layout |= _interleaving(options, taken.model.get("num_layers"), layout)
    taken.unread, taken.without_effect = options.left(HARMLESS)
    return taken


def model_of(options: Options) -> dict[str, Any]:
    """The shape, in the keys of `jointopt.spec.model.Model`."""
    hidden, heads = options.whole("hidden_size"), options.whole("num_attention_heads")
    gated = bool(options.flag("swiglu"))
    rms = options.word("normalization") == "rmsnorm"
    groups = options.whole("num_query_groups")
    groups = groups if options.flag("group_query_attention") in (True, None) and groups else heads
    if options.take("group_query_attention") is None and not options.flag("multi_latent_attention"):
        groups = heads  # Megatron reads the groups only beside the flag
    biased = options.flag("add_bias_linear")
    unbiased = bool(options.flag("disable_bias_linear")) if biased is None else not biased
    options.number("attention_dropout")  # inside of the kernel, which keeps no mask
    dropped = options.number("hidden_dropout")
    shape = stated(
        num_layers=options.whole("num_layers", "decoder_num_layers", "encoder_num_layers"), hidden_size=hidden,
        ffn_hidden_size=options.whole("ffn_hidden_size") or _usual_width(hidden, gated), num_attention_heads=heads,
        num_query_groups=groups, vocab_size=_vocabulary(options), head_dim=options.whole("kv_channels"),
        max_position_embeddings=options.whole("max_position_embeddings"),
    )  # fmt: skip
    shape |= {
        "gated_mlp": gated, "rmsnorm": rms, "norm_bias": not rms, "linear_bias": not unbiased,
        "qkv_bias": bool(options.flag("add_qkv_bias")) and unbiased, "qk_norm": bool(options.flag("qk_layernorm")),
        "tied_embeddings": not options.flag("untie_embeddings_and_output_weights"),
        "dropout": dropped is None or dropped > 0, "position_embedding": _positions(options),
    }  # fmt: skip
    if shape["position_embedding"] != "learned":
        shape.pop("max_position_embeddings", None)
    return shape | _experts(options, shape) | _latent(options)


def _usual_width(hidden: int | None, gated: bool) -> int | None:
    """Megatron's own MLP width where none is given."""
    if hidden is None:
        return None
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _vocabulary(options: Options) -> int | None:
    sizes = options.whole("vocab_size"), options.whole("padded_vocab_size")
    options.take("make_vocab_size_divisible_by")
    if size := sizes[0] or sizes[1]:
        return size
    return 50257 if options.word("tokenizer_type") == "gpt2bpetokenizer" else None


def _positions(options: Options) -> str:
    kind = options.word("position_embedding_type")
    if options.flag("use_rotary_position_embeddings") or kind in ("rope", "yarn", "mrope"):
        return "rope"
    return "alibi" if kind == "none" else "learned"


def _experts(options: Options, shape: Mapping[str, Any]) -> dict[str, Any]:
    experts = options.whole("num_experts", "num_moe_experts")
    if not experts:
        return {}
    width = options.whole("moe_ffn_hidden_size") or shape.get("ffn_hidden_size")
    shared = options.whole("moe_shared_expert_intermediate_size") or 0
    return stated(
        num_experts=experts, moe_router_topk=options.whole("moe_router_topk") or 2, moe_ffn_hidden_size=width,
        num_shared_experts=shared // width if width and shared else None,
        num_dense_layers=_dense_layers(options.take("moe_layer_freq")),
        moe_router_num_groups=options.whole("moe_router_num_groups"),
        moe_router_group_topk=options.whole("moe_router_group_topk"),
    )  # fmt: skip


def _dense_layers(frequency: object) -> int | None:
    """The leading dense layers of ``([0]*3+[1]*58)``, of a list, or of 1."""
    if isinstance(frequency, list) and all(isinstance(one, int) for one in frequency):
        return frequency.index(1) if 1 in frequency else None
    found = re.match(r"\(?\[0\]\*(\d+)\+\[1\]", str(frequency).replace(" ", ""))
    return int(found[1]) if found else None


def _latent(options: Options) -> dict[str, Any]:
    if not options.flag("multi_latent_attention"):
        return {}
    found = stated(
        q_lora_rank=options.whole("q_lora_rank"), kv_lora_rank=options.whole("kv_lora_rank") or 32,
        qk_nope_head_dim=options.whole("qk_head_dim") or 128,
        qk_rope_head_dim=options.whole("qk_pos_emb_head_dim") or 64, v_head_dim=options.whole("v_head_dim") or 128,
    )  # fmt: skip
    return found


def _training(options: Options) -> dict[str, Any]:
    backend = options.word("attention_backend").rsplit(".", 1)[-1]
    flash = options.flag("use_flash_attn") or backend == "flash"
    kernel = "flash2" if flash else "unfused" if backend in ("unfused", "local") else None
    return stated(
        seq_length=options.whole("seq_length", "encoder_seq_length"),
        global_batch_size=options.whole("global_batch_size"), dtype=_dtype(options), attention=kernel,
    )  # fmt: skip


def _dtype(options: Options) -> str:
    wide = "bf16" if options.flag("bf16") else "fp16" if options.flag("fp16") else "fp32"
    options.take("params_dtype")
    if options.take("fp4_format", "fp4") not in (None, False):
        return "fp4"
    return "fp8" if options.take("fp8_format", "fp8", "fp8_hybrid", "fp8_e4m3") not in (None, False) else wide


def plan_of(options: Options) -> dict[str, Any]:
    """The columns of the plan but for those that need the number of layers."""
    tp = options.whole("tensor_model_parallel_size") or 1
    return stated(
        tp=tp, pp=options.whole("pipeline_model_parallel_size") or 1, cp=options.whole("context_parallel_size") or 1,
        ep=options.whole("expert_model_parallel_size") or 1, etp=options.whole("expert_tensor_parallel_size"),
        dp=options.whole("data_parallel_size"), micro_batch_size=options.whole("micro_batch_size"),
        sequence_parallel=bool(options.flag("sequence_parallel")) and tp > 1, zero_stage=_zero_stage(options),
        dp_replicate=options.whole("num_distributed_optimizer_instances"), offload=_offload(options),
    ) | _recompute(options)  # fmt: skip


def _zero_stage(options: Options) -> int:
    """0 to 3; the sharding of Megatron FSDP has words."""
    fully = options.flag("use_megatron_fsdp") or options.flag("use_custom_fsdp")
    sharding = options.word("data_parallel_sharding_strategy")
    distributed = bool(options.flag("use_distributed_optimizer"))
    if options.flag("use_torch_fsdp2"):
        return 3
    words = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    return words.get(sharding, int(distributed)) if fully else int(distributed)


def _offload(options: Options) -> str | None:
    if options.flag("optimizer_cpu_offload"):
        options.take("optimizer_offload_fraction")
        return "optimizer"
    layers = options.whole("cpu_offloading_num_layers")
    return "activations" if layers or options.flag("fine_grained_activation_offloading") else None


def _recompute(options: Options) -> dict[str, Any]:
    method, layers = options.word("recompute_method"), options.whole("recompute_num_layers")
    granularity = options.word("recompute_granularity")
    modules = options.take("recompute_modules")
    if granularity == "full" or options.flag("checkpoint_activations"):
        return {"recompute": "full"} | ({"recompute_num_layers": layers} if method == "block" and layers else {})
    if granularity == "selective" or options.flag("recompute_activations"):
        words = modules if isinstance(modules, list) else [modules] if isinstance(modules, str) else []
        return {"recompute": "selective"} | ({"recompute_modules": ";".join(map(str, words))} if words else {})
    return {"recompute": "none"}


def _interleaving(options: Options, layers: int | None, plan: Mapping[str, Any]) -> dict[str, Any]:
    """``vpp``, which Megatron takes as stages per rank, as layers per stage, or from the layout."""
    pp = plan["pp"]
    stages = options.whole("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank")
    each = options.whole("num_layers_per_virtual_pipeline_stage")
    if not stages and each and layers:
        stages = layers // pp // each
    if "stage_layers" in plan and not stages:
        stages = len(plan["stage_layers"].split(";")) // pp
    return {"vpp": stages if stages and stages > 1 else 1}


def _stage_layers(options: Options, layers: int | None, plan: Mapping[str, Any]) -> str | None:
    """Layers of each chunk in the order of the pipeline, where the split is not Megatron's even one."""
    layout = options.take("pipeline_model_parallel_layout")
    first, last = options.whole("decoder_first_pipeline_num_layers"), options.whole("decoder_last_pipeline_num_layers")
    inside = [bool(options.flag(f"account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    if isinstance(layout, str):
        return ";".join(str(stage.count("t")) for stage in _repeated(layout).split("|"))
    pp = plan["pp"]
    if layers is None or pp < 2 or not (first or last or any(inside)):
        return None
    chunks = options.whole("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size") or 1
    if any(inside):
        each = (layers + sum(inside)) // (pp * chunks)
        numbers = [each] * (pp * chunks)
        numbers[0] -= inside[0]
        numbers[-1] -= inside[1]
        return ";".join(map(str, numbers))
    ends = (first is not None) + (last is not None)
    middle = (layers - (first or 0) - (last or 0)) // max(pp - ends, 1)
    row = [middle if first is None else first, *[middle] * (pp - 2), middle if last is None else last]
    return ";".join(str(number // chunks) for _ in range(chunks) for number in row)


def _repeated(layout: str) -> str:
    """``Et*3|(tt|)*2mL`` -> ``Ettt|tt|tt|mL``."""
    text = layout.replace(",", "").replace(" ", "").strip("'\"")
    text = re.sub(r"\(([^()]*)\)\*(\d{1,4})", lambda found: found[1] * int(found[2]), text)
    return re.sub(r"(\w)\*(\d{1,4})", lambda found: found[1] * int(found[2]), text)
