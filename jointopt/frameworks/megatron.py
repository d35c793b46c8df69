"""Megatron-LM: the arguments of ``pretrain_gpt.py`` for Megatron Core 0.12 to the development branch."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.errors import ExportError
from jointopt.core.schema import FP8_RECIPES, MODULES, OTHER_CROSS_ENTROPIES, TOKEN_DISPATCHERS
from jointopt.frameworks.intent import Export, Gaps, Intent
from jointopt.frameworks.logs import version_by_options
from jointopt.frameworks.options import (
    NEWEST,
    FileSettings,
    Option,
    Options,
    Words,
    factors,
    flags_of,
    option_table,
    products,
    stated,
    version_key,
    without_effect,
)
from jointopt.jobs.model import Model
from jointopt.jobs.model_facts import fact_of, with_facts
from jointopt.jobs.plans.stages import Chunks
from jointopt.jobs.windows import layer_list, skip_freq_word

NAME, SCRIPT = "megatron", "pretrain_gpt.py"
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "alibi": "none", "none": "none"}
OLDEST = "0.12"
# Before Blackwell, tensor and context parallelism refuse to start with more than one connection, and FSDP with one.
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OMP_NUM_THREADS": "1"}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_RECOMPUTED_SINCE = {"shared_experts": "0.13"}  # modules that 0.12 cannot recompute


def export(intent: Intent, version: str) -> Export:
    """The words after ``pretrain_gpt.py``; ExportError names what that version cannot express."""
    words, notes = megatron_words(intent, version)
    Gaps(f"Megatron-LM {version}", intent).no_adapters()
    return Export(
        NAME, version, tuple(words), megatron_environment(intent), int(intent.job.cluster.num_gpus), SCRIPT,
        notes=tuple(notes),
    )  # fmt: skip


def megatron_words(intent: Intent, version: str = NEWEST) -> tuple[Words, list[str]]:
    """The arguments for a version of Megatron Core, and notes on what they leave open."""
    if version_key(version) < version_key(OLDEST):
        raise ExportError(f"Megatron Core before {OLDEST} is not known; expected {OLDEST} to {NEWEST}, got {version}.")
    words, gaps = Words("megatron", version), Gaps(f"Megatron-LM {version}", intent)
    _shape(words, gaps, intent)
    _positions(words, gaps, intent)
    _experts(words, intent)
    gaps.uneven_experts()
    _degrees(words, gaps, intent)
    _pipeline(words, gaps, intent)
    _data_parallelism(words, gaps, intent)
    _memory_savings(words, gaps, intent)
    _precision(words, gaps, intent)
    _kernels(words, intent)
    _graphs(words, gaps, intent)
    gaps.settings(*OF_MEGATRON, *["cross_entropy"] * (intent.job.training.cross_entropy != "linear"))
    _run(words, gaps, intent)
    return words, gaps.notes


def megatron_environment(intent: Intent) -> dict[str, str]:
    """Environment variables of every rank."""
    found = dict(ENVIRONMENT)
    if intent["zero_stage"] > 1:
        del found["CUDA_DEVICE_MAX_CONNECTIONS"]
    if intent["gtp"] * intent["egtp"] > 1 and intent.job.training.captures_graphs:  # asserted on Blackwell
        found["CUDA_GRAPHS_USE_NODE_PRIORITY"] = "1"
    return found | ({"NVTE_CPU_OFFLOAD_V1": "1"} if intent["offload"] == "activations" else {})


def checkout_version(checkout: Path) -> str:
    """The version of the Megatron Core in a checkout of Megatron-LM; the newest where it does not state one."""
    try:
        text = (checkout / "megatron" / "core" / "package_info.py").read_text(encoding="utf-8")
    except OSError:
        return NEWEST
    parts = [re.search(rf"^{name}\s*=\s*(\d+)", text, re.MULTILINE) for name in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part[1] for part in parts if part) or NEWEST


# --- the model ------------------------------------------------------------------------------------------------------


def _shape(words: Words, gaps: Gaps, intent: Intent) -> None:
    model, details = intent.model, intent.details
    grouped = model.num_query_groups != model.num_attention_heads and not model.kv_lora_rank
    words.add(
        num_layers=model.num_layers, hidden_size=model.hidden_size, ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads, kv_channels=None if model.kv_lora_rank else model.head_dim,
        group_query_attention=grouped, num_query_groups=model.num_query_groups if grouped else None,
        normalization="RMSNorm" if model.rmsnorm else "LayerNorm", norm_epsilon=details.norm_epsilon,
        init_method_std=details.init_std, swiglu=model.gated_mlp, disable_bias_linear=not model.linear_bias,
        add_qkv_bias=model.qkv_bias, qk_layernorm=has_qk_norms(model),
        untie_embeddings_and_output_weights=not model.tied_embeddings, **_dropouts(intent),
        mtp_num_layers=model.mtp_num_layers or None, mtp_loss_scaling_factor=0.1 if model.mtp_num_layers else None,
        **_latent(intent, words.version),
    )  # fmt: skip
    shared = bool(model.num_query_groups % intent["tp"])
    gaps.never(shared and version_key(words.version) < version_key("0.16"), "KV heads that several ranks share")
    flags = {str(one.states): one.names[0] for one in _table() if one.flag and one.states}
    words.add(**{flags[fact]: True for fact in intent.facts if fact in flags})
    gaps.facts({*flags, "qk_norm", "biases", "qkv_biases", "no_positions", "no_latent_norms"})


def has_qk_norms(model: Model) -> bool:
    """Whether queries and keys, or of latent attention the latents, have norms."""
    return model.qk_norm or (model.kv_lora_rank > 0 and "no_latent_norms" not in model.other)


def _dropouts(intent: Intent) -> dict[str, float | None]:
    """The stated dropouts; where the model has some and does not say how much, Megatron-LM's own 0.1."""
    stated = {"attention_dropout": intent.details.attention_dropout, "hidden_dropout": intent.details.hidden_dropout}
    if not intent.model.dropout and "model_type" in (intent.model.config or {}):
        return dict.fromkeys(stated, 0.0)
    return dict.fromkeys(stated) if intent.model.dropout and not any(stated.values()) else dict(stated)


def _latent(intent: Intent, version: str) -> dict[str, Any]:
    model = intent.model
    if not model.kv_lora_rank:
        return {}
    return {
        "multi_latent_attention": True, "q_lora_rank": model.q_lora_rank or None, "kv_lora_rank": model.kv_lora_rank,
        "qk_head_dim": model.qk_nope_head_dim, "qk_pos_emb_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
        "no_rope_fusion": version_key(version) < version_key("0.13"),  # which has none for latent attention
    }  # fmt: skip


def _positions(words: Words, gaps: Gaps, intent: Intent) -> None:
    """Positions reach as far as the model is made for, or the job's sequences are long."""
    model, details, seq_length = intent.model, intent.details, intent.job.training.seq_length
    most = max(seq_length, model.max_position_embeddings or details.max_positions)
    kind = POSITIONS[model.position_embedding]
    words.add(seq_length=seq_length, max_position_embeddings=most, position_embedding_type=kind)
    if kind == "rope":
        words.add(rotary_base=int(details.rotary_base),
                  rotary_percent=details.rotary_percent if details.rotary_percent != 1.0 else None)  # fmt: skip
        _rope_scaling(words, gaps, intent)
    if intent.window:
        if words.has("window_size"):
            words.add(window_size=f"{intent.window},0", cp_comm_type=intent.context_exchange,
                      window_attn_skip_freq=skip_freq_word(model.window_attn_skip_freq))  # fmt: skip
        gaps.finer(not words.has("window_size"), intent.window_words)


def _rope_scaling(words: Words, gaps: Gaps, intent: Intent) -> None:
    """Llama 3's scaling, which Megatron-LM knows with Llama's constants; YaRN with latent attention; linear."""
    scaling, latent = intent.details.rope_scaling, bool(intent.model.kv_lora_rank)
    if latent:
        yarn = scaling is not None and scaling.kind == "yarn"
        words.add(rope_type="yarn" if yarn else "rope")
    if scaling is None:
        return
    llama3 = (scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_length) == (1.0, 4.0, 8192)
    if scaling.kind == "llama3" and llama3 and not latent:
        words.add(use_rope_scaling=True, rope_scaling_factor=scaling.factor)
    elif scaling.kind == "yarn" and latent:
        words.add(rotary_scaling_factor=scaling.factor, mscale=scaling.mscale, mscale_all_dim=scaling.mscale_all_dim)
        default = (scaling.beta_fast, scaling.beta_slow, scaling.original_length) == (32.0, 1.0, 4096)
        gaps.finer(not default, "YaRN with other constants than DeepSeek's")
    elif scaling.kind == "linear" and scaling.factor.is_integer() and not latent:
        words.add(rotary_seq_len_interpolation_factor=int(scaling.factor))
    else:
        gaps.finer(True, f"{scaling.kind} scaling of rotary positions")


def _experts(words: Words, intent: Intent) -> None:
    model, routing = intent.model, intent.details.routing
    if not model.is_moe:
        return
    shared, scaled = model.num_shared_experts, routing.scaling != 1.0
    words.add(
        num_experts=model.num_experts, moe_router_topk=model.moe_router_topk,
        moe_ffn_hidden_size=model.moe_ffn_hidden_size, **dispatcher(words, intent),
        moe_shared_expert_intermediate_size=model.moe_ffn_hidden_size * shared if shared else None,
        moe_shared_expert_gate=shared_gate(intent),
        moe_layer_freq=layers_with_experts(model),
        moe_grouped_gemm=intent.job.training.dtype != "fp16" or version_key(words.version) >= version_key("0.16"),
        moe_permute_fusion=True, moe_router_dtype="fp32",
        moe_router_score_function=None if routing.score == "softmax" else routing.score,
        moe_router_pre_softmax=pre_softmax(intent),
        moe_router_topk_scaling_factor=routing.scaling if scaled else None,
        moe_router_num_groups=model.moe_router_num_groups or None,
        moe_router_group_topk=model.moe_router_group_topk or None,
        moe_router_enable_expert_bias=routing.bias, moe_router_bias_update_rate=1e-3 if routing.bias else None,
        moe_router_load_balancing_type="aux_loss" if routing.aux_loss else "none",
        moe_aux_loss_coeff=routing.aux_loss or None,
        moe_router_force_load_balancing=forced_balance(intent),
    )  # fmt: skip


def layers_with_experts(model: Model) -> str | None:
    """Which layers have experts, in Megatron's words; None for all of them."""
    dense = model.num_dense_layers
    if model.layers:
        return skip_freq_word(tuple(int(one.ffn == "experts") for one in model.layers))
    return f"([0]*{dense}+[1]*{model.num_layers - dense})" if dense else None


def forced_balance(intent: Intent) -> bool:
    """Whether experts are drawn at random: as stated, else in a benchmark, whose data would load them unevenly."""
    stated = intent.job.training.moe_routing
    return stated == "forced" or not (stated or intent.is_training)


def pre_softmax(intent: Intent) -> bool:
    """Whether scores are a softmax over all experts, not over the chosen ones: with one of these it must be."""
    model, routing = intent.model, intent.details.routing
    chosen_alone = routing.normalised and routing.scaling == 1.0 and model.moe_router_topk > 1
    return routing.score == "softmax" and not chosen_alone


def shared_gate(intent: Intent) -> bool:
    """Whether the shared experts have a gate."""
    return intent.details.routing.shared_gate and intent.model.num_shared_experts > 0


def dispatcher(words: Words, intent: Intent) -> dict[str, Any]:
    """Options for how tokens go to experts, and whether that overlaps another micro-batch's kernels."""
    training = intent.job.training
    kind = training.token_dispatcher or training.framework.token_dispatcher
    found: dict[str, Any] = {"moe_token_dispatcher_type": "alltoall" if kind == "alltoall" else "flex"}
    if kind == "hybridep" or (kind != "alltoall" and words.has("moe_flex_dispatcher_backend")):
        found["moe_flex_dispatcher_backend"] = kind
    elif kind == "deepep":
        found["moe_enable_deepep"] = True
    return found | {"overlap_moe_expert_parallel_comm": bool(training.ep_overlap)}


# --- the plan -------------------------------------------------------------------------------------------------------


def _degrees(words: Words, gaps: Gaps, intent: Intent) -> None:
    experts = intent.model.is_moe
    words.add(
        tensor_model_parallel_size=intent["tp"], pipeline_model_parallel_size=intent["pp"],
        context_parallel_size=intent["cp"], expert_model_parallel_size=intent["ep"] if intent["ep"] > 1 else None,
        expert_tensor_parallel_size=intent["etp"] if experts and intent["etp"] != intent["tp"] else None,
        sequence_parallel=bool(intent["sequence_parallel"]), micro_batch_size=intent["micro_batch_size"],
        global_batch_size=intent.job.training.global_batch_size,
        **{one.names[0]: intent[one.times] * intent[one.key] for one in products("megatron") if intent[one.key] > 1},
    )  # fmt: skip
    half = intent.job.training.dtype == "fp16" and version_key(words.version) < version_key("0.16")
    gaps.never(half and intent["ep"] > 1, "experts over ranks in fp16")
    gaps.never(experts and intent["tp"] > 1 and not intent["sequence_parallel"],
               "experts with tp > 1 without sequence_parallel")  # fmt: skip


def _pipeline(words: Words, gaps: Gaps, intent: Intent) -> None:
    """The split of layers in the oldest words that say it: even, ends counted as layers, first and last, a layout."""
    split, pp, vpp = intent.chunk_layers, intent["pp"], intent["vpp"]
    gaps.never(intent["schedule"] != "1f1b", f"the pipeline schedule {intent['schedule']}")
    virtual = vpp if vpp > 1 else None
    ends = _ends(split)
    if intent.even:
        words.add(num_virtual_stages_per_pipeline_rank=virtual)
    elif ends is not None:
        words.add(num_virtual_stages_per_pipeline_rank=virtual, account_for_embedding_in_pipeline_split=ends[0],
                  account_for_loss_in_pipeline_split=ends[1])  # fmt: skip
    elif vpp == 1 and len(set(split[1:-1])) <= 1 and min(split) > 0:
        last = split[-1] if pp > 2 else None  # of two stages, the second has the rest
        words.add(decoder_first_pipeline_num_layers=split[0], decoder_last_pipeline_num_layers=last)
    elif words.has("pipeline_model_parallel_layout"):
        words.add(pipeline_model_parallel_layout=layer_layout(split, intent.model.mtp_num_layers))
    else:
        gaps.never(pp > 1, f"the stage_layers {';'.join(map(str, split))}")


def _ends(split: tuple[int, ...]) -> tuple[bool, bool] | None:
    """Which ends hold a layer less than all between them: (first, last); None where that is not the split."""
    first, middle, last = split[0], split[1:-1], split[-1]
    each = max(split)
    if len(split) < 2 or set(middle) - {each} or {each - first, each - last} - {0, 1}:
        return None
    return (each - first == 1, each - last == 1)


def layer_layout(split: tuple[int, ...], mtp_layers: int = 0) -> str:
    """``Et*7|t*8|...|t*7mL``: layers of each chunk in the order of the pipeline, embedding first and loss last."""
    parts = [f"t*{layers}" if layers > 1 else "t" * layers for layers in split]
    parts[0], parts[-1] = f"E{parts[0]}", f"{parts[-1]}{'m' * mtp_layers}L"
    return "|".join(parts)


def _data_parallelism(words: Words, gaps: Gaps, intent: Intent) -> None:
    """DDP, the distributed optimizer (ZeRO-1), or Megatron-FSDP (ZeRO-2 and 3)."""
    stage, replicas = int(intent["zero_stage"]), int(intent["dp_replicate"])
    fsdp, modern, hidden = stage > 1, words.has("use_megatron_fsdp"), intent.hides_dp
    words.add(
        use_distributed_optimizer=stage > 0, overlap_grad_reduce=hidden, overlap_param_gather=hidden and stage > 0,
        num_distributed_optimizer_instances=replicas if replicas > 1 else None,
    )  # fmt: skip
    if fsdp:
        gaps.never(intent["pp"] > 1, f"zero_stage {stage} with pp > 1")
        words.add(**{"use_megatron_fsdp" if modern else "use_custom_fsdp": True})
        words.add(
            data_parallel_sharding_strategy=SHARDING[stage], ckpt_format="fsdp_dtensor" if modern else None,
            no_gradient_accumulation_fusion=True,
        )  # fmt: skip


def _memory_savings(words: Words, gaps: Gaps, intent: Intent) -> None:
    recompute, modules = intent["recompute"], MODULES.code(intent["recompute_modules"])
    if recompute == "full":
        layers = intent["recompute_num_layers"]
        words.add(recompute_granularity="full", recompute_method="block" if layers else "uniform",
                  recompute_num_layers=layers or 1)  # fmt: skip
    elif recompute == "selective":
        names = tuple(name for name in MODULES.names if modules & MODULES.bit(name))
        for name in names:
            late = version_key(words.version) < version_key(_RECOMPUTED_SINCE.get(name, OLDEST))
            gaps.never(late, f"recompute of {name}")
        words.add(recompute_granularity="selective", recompute_modules=names)
    if intent["offload"] == "optimizer":
        words.add(optimizer_cpu_offload=True, use_precision_aware_optimizer=True)
    elif intent["offload"] == "activations":
        words.add(fine_grained_activation_offloading=True, offload_modules=offloaded_modules(intent))


def offloaded_modules(intent: Intent) -> tuple[str, ...]:
    """Modules whose inputs lie in host memory: attention's, and of experts their activation's."""
    whole = MODULES.code(intent["recompute_modules"]) & MODULES.bit("moe")
    return ("core_attn", "attn_proj", *(("moe_act",) if intent.model.is_moe and not whole else ()))


# --- how it runs ----------------------------------------------------------------------------------------------------


_OF_BLOCKS = ("blockwise", "mxfp8")  # gradients are in range of e4m3 where each block has a scale of its own


def _precision(words: Words, gaps: Gaps, intent: Intent) -> None:
    """16-bit weights under all but fp32; gradients reduced in bf16 where the framework's profile does so."""
    training = intent.job.training
    dtype, modules = training.dtype, MODULES.code(intent["recompute_modules"])
    moments = (training.exp_avg_dtype, training.exp_avg_sq_dtype)
    gaps.never("bf16" in moments and version_key(words.version) < version_key("0.13"), "Adam's moments in bf16")
    recipe = "" if training.fp8_recipe is None else training.fp8_recipe.name
    outputs = modules & (MODULES.bit("moe_act") | MODULES.bit("layernorm"))  # which delayed scaling cannot recompute
    gaps.never(recipe == "delayed" and outputs, f"recompute of {intent['recompute_modules']} with fp8_recipe delayed")
    gaps.never(recipe == "rowwise", "training.fp8_recipe rowwise")
    gaps.never(
        recipe == "blockwise" and version_key(words.version) < version_key("0.14"), "training.fp8_recipe blockwise"
    )
    words.add(
        bf16=dtype in ("bf16", "fp8", "fp4"), fp16=dtype == "fp16",
        # from Megatron-LM's own 2^32 down to what gradients stand, the first iterations would be skipped
        initial_loss_scale=4096 if dtype == "fp16" else None,
        fp8_format=("e4m3" if recipe in _OF_BLOCKS else "hybrid") if dtype == "fp8" else None,
        fp8_recipe=recipe or ("tensorwise" if outputs else None) if dtype == "fp8" else None,
        fp4_format="e2m1" if dtype == "fp4" else None, fp4_recipe=recipe if dtype == "fp4" and recipe else None,
        fp8_param_gather=bool(training.fp8_param_gather) and dtype == "fp8",
        reuse_grad_buf_for_mxfp8_param_ag=bool(training.fp8_param_gather) and recipe == "mxfp8",
        grad_reduce_in_bf16=training.gradient_comm_bytes == 2 and dtype not in ("fp32", "fp16"),
        use_precision_aware_optimizer=bool(training.precision_aware_optimizer) and intent["offload"] != "optimizer",
        main_grads_dtype=training.main_grads_dtype, exp_avg_dtype=training.exp_avg_dtype,
        exp_avg_sq_dtype=training.exp_avg_sq_dtype,
    )  # fmt: skip


def _kernels(words: Words, intent: Intent) -> None:
    training, tp = intent.job.training, intent["tp"]
    backend = training.attention if training.attention in ("unfused", "fused") else "flash"
    overlapped = intent.hides("tp") and tp <= intent.job.cluster.gpus_per_node
    words.add(
        attention_backend=backend, transformer_impl="transformer_engine", **intent.loss_fusion,
        activation_func_fp8_input_store=training.fp8_activations,
        # every kernel of a causal model makes its mask by itself; one of 128k tokens would take 16 GiB
        no_create_attention_mask_in_dataloader=True, manual_gc=True, manual_gc_interval=100,
        tp_comm_overlap=overlapped and tp > 1 and bool(intent["sequence_parallel"]) and training.dtype != "fp32",
    )  # fmt: skip


# settings of a job that its options state, and a loss but one fused with the head, which its branch dev alone has
OF_MEGATRON = ("cuda_graph", "dp_overlap", "tp_overlap", "ep_overlap", "moe_routing", "fp8_activations")
CAPTURED_OF_EXPERTS: tuple[str, ...] = ("attn", "moe_router", "moe_preprocess")  # of an MoE layer, what has one shape


def _graphs(words: Words, gaps: Gaps, intent: Intent) -> None:
    """CUDA graphs, under the names of each version: of whole layers, of MoE layers what has a fixed shape."""
    kind = intent.job.training.cuda_graph
    if not intent.job.training.captures_graphs:
        return
    gaps.never(not words.has("cuda_graph_impl"), f"training.cuda_graph {kind}")
    parts = CAPTURED_OF_EXPERTS if intent.model.is_moe else ()
    old = not words.has("cuda_graph_modules")
    if kind == "full_iteration":
        words.add(no_check_for_nan_in_loss_and_grad=True)
        kind, parts = ("local", (kind,)) if old else (kind, ())
    words.add(cuda_graph_impl=kind, **{"cuda_graph_scope" if old else "cuda_graph_modules": parts}, te_rng_tracker=True)


def _run(words: Words, gaps: Gaps, intent: Intent) -> None:
    """A benchmark: random data of the model's vocabulary, nothing evaluated or saved, each iteration logged."""
    steps = intent.iterations
    words.add(train_iters=steps, distributed_timeout_minutes=10, vocab_size=intent.model.vocab_size)
    if intent.is_training:
        words.add(
            lr="3.0e-4", min_lr="3.0e-5", lr_decay_style="cosine", lr_warmup_iters=max(steps // 100, 1),
            weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, clip_grad=1.0, split="99,1,0", data_path="DATA",
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=intent.model.name, save="CHECKPOINTS",
            load="CHECKPOINTS", save_interval=intent.save_interval, eval_iters=10, eval_interval=1000, log_interval=10,
            log_throughput=True,
        )  # fmt: skip
        background = intent.saves_in_background and intent["zero_stage"] <= 1  # in Megatron's own format alone
        words.add(async_save=background, use_persistent_ckpt_worker=background)
        gaps.notes.append("Yours to set: --data-path, --tokenizer-model, --save, --load, and the learning rate.")
        return
    words.add(
        lr="1.0e-4", min_lr="1.0e-5", lr_decay_style="cosine", split="99,1,0", mock_data=True,
        tokenizer_type="NullTokenizer", eval_iters=0, eval_interval=10 * steps, log_interval=1, log_throughput=True,
        log_energy=True, log_memory_interval=max(steps - 1, 1),
    )  # fmt: skip


# Options of Megatron-LM: on a command line, or as its log lists them; Bridge and NeMo share their names.


SHAPE = ("num_layers", "hidden_size")  # who has both is a Megatron command line
_DUMP = re.compile(r"^\s*(\w+) \.{3,} ?(.*?)\s*$")

_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "uint8": "fp8"}
# options that a command line or a log without them has not on
OFF = dict.fromkeys(("overlap_grad_reduce", "tp_comm_overlap", "overlap_moe_expert_parallel_comm",
                     "moe_router_force_load_balancing"), False) | {"cuda_graph_impl": "none",
      "cross_entropy_loss_fusion": False, "cross_entropy_fusion_impl": "native"}  # fmt: skip


def dump_settings(text: str) -> FileSettings | None:
    """The statements of the arguments that Megatron lists at its start; None where a log holds no such list."""
    found = (_DUMP.match(line) for line in text.splitlines())
    values = {match[1]: _literal(match[2]) for match in found if match}
    if not set(SHAPE) <= values.keys():
        return None
    settings = option_settings(OFF | values, "Megatron-LM log")
    settings.version = version_by_options(values)
    settings.without_effect += len(settings.unread)  # Megatron knows them all
    settings.unread = ()
    return settings


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def option_settings(values: Mapping[str, Any], form: str) -> FileSettings:
    """The statements of Megatron's options, by name with underscores; defaults are those of its parser."""
    options = Options(values)
    # the options that change an iteration's time beside the plan and the job, by their names
    flags = flags_of({one.names[0]: options.take(*one.names) for one in _table() if one.matters})
    settings = FileSettings(
        form, "megatron-lm", model=model_of(options), training=_training(options), plan=plan_of(options),
        cluster=stated(num_gpus=options.whole("world_size")), flags=flags,
    )  # fmt: skip
    if not settings.model.get("num_experts"):  # Megatron sets it to tp for dense models too
        settings.plan = {name: value for name, value in settings.plan.items() if name not in ("etp", "egtp")}
    chunks = chunks_of(options)
    if layers := settings.model.get("num_layers"):
        settings.plan |= chunks(settings.plan, layers)
    else:
        settings.rest = chunks
    settings.remarks += _remarks(options, settings)
    settings.unread, settings.without_effect = options.unused(without_effect("megatron"))
    return settings


@functools.cache
def _table(section: str = "") -> tuple[Option, ...]:
    """The options that state a section as they stand, or all."""
    table = option_table("megatron").values()
    return tuple(one for one in table if one.sets.startswith(section) and not (section and one.sets.endswith("_dtype")))


def _plain(options: Options, section: str) -> dict[str, Any]:
    """Numbers and flags that options state as they stand, of one section: the plan, the model or the training."""
    rows = _table(f"{section}.")
    return stated(**{one.key: options.flag(*one.names) if one.flag else options.plain(*one.names) for one in rows})


def model_of(options: Options) -> dict[str, Any]:
    """The shape, in the keys of `jointopt.jobs.model.Model`; what it has beside its sizes as facts and a config."""
    shape = _plain(options, "model")
    hidden, heads = shape.get("hidden_size"), shape.get("num_attention_heads")
    activation, gated = _activation(options, bool(shape.get("gated_mlp")))
    rms = "rms" in options.word("normalization") or bool(options.flag("use_rms_norm"))
    shape["num_query_groups"] = _groups(options, shape.get("num_query_groups")) or heads
    biased = options.flag("add_bias_linear")
    unbiased = bool(options.flag("disable_bias_linear")) if biased is None else not biased
    dropouts = {name: 0.1 if (stated_one := options.number(name)) is None else stated_one
                for name in ("attention_dropout", "hidden_dropout")}  # fmt: skip
    positions = _read_positions(options)
    width = shape.get("ffn_hidden_size") or _usual_width(hidden, gated and activation != "quick_gelu")
    shape |= stated(
        ffn_hidden_size=width, vocab_size=_vocabulary(options),
        max_position_embeddings=options.whole("max_position_embeddings") if positions == "learned" else None,
    )  # fmt: skip
    shape |= {
        "gated_mlp": gated, "rmsnorm": rms, "norm_bias": not rms, "linear_bias": not unbiased,
        "qkv_bias": bool(shape.get("qkv_bias")) and unbiased, "qk_norm": bool(shape.get("qk_norm")),
        "tied_embeddings": not options.flag("untie_embeddings_and_output_weights"),
        "dropout": dropouts["hidden_dropout"] > 0, "position_embedding": positions,
    }  # fmt: skip
    shape = _read_latent(_read_experts(with_facts(shape | _windows(options), _facts(options)), options), options)
    if set(dropouts.values()) == {0.1 * shape["dropout"]}:  # the usual ones of such a shape
        dropouts = {}
    config = _config(options, shape) | dropouts
    config |= {} if activation == _ACTIVATION[gated] else {"hidden_act": activation}
    return shape | ({"config": config} if config else {})


_ACTIVATION = {True: "silu", False: "gelu"}
_ACTIVATIONS = {"squared|relu2": "relu2", "quick": "quick_gelu", "relu|reglu": "relu", "silu|swi": "silu", "ge": "gelu"}


def _activation(options: Options, swiglu: bool) -> tuple[str, bool]:
    """The activation as config.json names it, and whether the MLP is gated: by flags, or a word such as fast-geglu."""
    flags = {"squared_relu": "squared", "quick_geglu": "quick-geglu", "swiglu": "swiglu"}
    words = [options.word("activation", "glu_activation", "hidden_act", "activation_func", "activation_func._target_")]
    words += [word for name, word in flags.items() if options.flag(name)]
    gated = swiglu or any("glu" in word for word in words)
    named = [kind for word in words for pattern, kind in _ACTIVATIONS.items() if re.search(pattern, word)]
    return (named or [_ACTIVATION[gated]])[0], gated


def _groups(options: Options, stated_groups: int | None) -> int | None:
    """Key-value heads: Megatron reads them only beside its flag, forks have other names; None: as many as heads."""
    grouped = options.flag("group_query_attention")
    other = options.whole("num_key_value_heads", "num_attention_heads_kv", "multi_query_group_num")
    if other or options.word("attention_head_type") == "multiquery":
        return other or 1
    return stated_groups if grouped or (grouped is None and options.flag("multi_latent_attention")) else None


def _facts(options: Options) -> list[str]:
    """Facts by the table's ``states``, and an encoder beside the decoder."""
    found = [fact_of(one.states, options.take(*one.names)) for one in _table() if one.states]
    decoder = options.whole("decoder_num_layers") if options.whole("num_layers", "encoder_num_layers") else None
    return [*({*found} - {"squared_relu"}), "encoder_decoder" if decoder else ""]  # which the config has


_OF_ROUTING = ("scoring_func", "routed_scaling_factor", "router_aux_loss_coef")


def _config(options: Options, shape: Mapping[str, Any]) -> dict[str, Any]:
    """What options state of the model's details and is not usual, in the keys of a config.json."""
    found: dict[str, Any] = {}
    for one in _table("config."):
        number, word = options.number(*one.names), options.word(*one.names)
        found |= {one.key: word if number is None else number} if word and one.default not in (number, word) else {}
    shared, scaling = options.whole("moe_shared_expert_intermediate_size"), _scaling(options)
    routing = stated(
        norm_topk_prob=False if options.flag("moe_router_pre_softmax") else None,
        topk_method="noaux_tc" if options.flag("moe_router_enable_expert_bias") else None,
        shared_expert_intermediate_size=shared if options.flag("moe_shared_expert_gate") else None,
    )  # fmt: skip
    if not shape.get("num_experts"):
        found, routing = {key: value for key, value in found.items() if key not in _OF_ROUTING}, {}
    if shape["position_embedding"] != "rope":
        found, scaling = {key: value for key, value in found.items() if "rot" not in key and "rope" not in key}, {}
    return found | routing | scaling


def _scaling(options: Options) -> dict[str, Any]:
    """The scaling of rotary positions: Llama 3's, which Megatron knows with its constants, linear, or YaRN."""
    linear = options.number("rotary_seq_len_interpolation_factor", "seq_len_interpolation_factor")
    factor, longer = options.number("rope_scaling_factor"), options.number("rotary_scaling_factor")
    kind = options.word("rope_type") or ("yarn" if options.flag("multi_latent_attention") else "")  # MLA's own
    yarn = "yarn" in (kind, options.word("position_embedding_type"))
    mscale = stated(mscale=options.number("mscale"), mscale_all_dim=options.number("mscale_all_dim"))
    length = options.whole("yarn_original_max_position_embeddings", "original_max_position_embeddings") or 4096
    found: dict[str, Any] = {}
    if options.flag("use_rope_scaling", "rope_scaling"):
        found = {"rope_type": "llama3", "factor": factor or 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                 "original_max_position_embeddings": 8192}  # fmt: skip
    elif yarn and longer and longer > 1.0:
        found = {"rope_type": "yarn", "factor": longer, "original_max_position_embeddings": length} | mscale
    elif linear and linear > 1.0:
        found = {"rope_type": "linear", "factor": linear}
    return {"rope_scaling": found} if found else {}


def _usual_width(hidden: int | None, gated: bool) -> int | None:
    """Megatron's own MLP width where none is given."""
    if hidden is None:
        return None
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _vocabulary(options: Options) -> int | None:
    sizes = options.whole("vocab_size"), options.whole("padded_vocab_size")
    if size := sizes[0] or sizes[1]:
        return size
    return 50257 if options.word("tokenizer_type") == "gpt2bpetokenizer" else None


def _remarks(options: Options, settings: FileSettings) -> tuple[str, ...]:
    """What the table ``says`` of options, and the rows that a vocabulary is padded to, where these are many more."""
    rows = ((one.names[0], fact_of(one.says, options.take(*one.names))) for one in _table() if one.says)
    found = [f"{name} {options.word(name)}: {says}" for name, says in rows if says]
    size, step = settings.model.get("vocab_size") or 0, options.whole("make_vocab_size_divisible_by") or 128
    step *= max(settings.plan["tp"], 1)
    padded = options.whole("padded_vocab_size") or -(-size // step) * step
    if 0 < size < 0.99 * padded:
        found.append(f"the vocabulary of {size:,} is trained padded to {padded:,} rows, and priced as stated")
    return tuple(found)


_POSITION_WORDS = {"yarn": "rope", "mrope": "rope", "rotary": "rope", "absolute": "learned", "": "learned"}


def _read_positions(options: Options) -> str:
    """The kind of positions; of one that is not known none, which a fact names."""
    kind = options.word("position_embedding_type")
    if options.flag("use_rotary_position_embeddings") or _POSITION_WORDS.get(kind, kind) == "rope":
        return "rope"
    off = options.flag("no_position_embedding") or options.flag("add_position_embedding") is False
    kind = "learned" if kind.startswith("learned") else _POSITION_WORDS.get(kind, kind)
    return "none" if off else kind if kind in POSITIONS else "none"


def _windows(options: Options) -> dict[str, Any]:
    """Sliding windows: ``4096,0`` or a pair, of which -1 is all, and the layers that have one."""
    size, freq = options.take("window_size"), options.take("window_attn_skip_freq")
    left = re.match(r"[(\[]?(-?\d+)", str(size).replace(" ", ""))
    layers = freq if isinstance(freq, int | list) else layer_list(str(freq))
    if left is None or int(left[1]) <= 0 or (freq is not None and layers is None):
        return {}
    options.take("cp_comm_type")  # all_gather or a2a, without which context parallelism has no windows
    return stated(window_size=int(left[1]), window_attn_skip_freq=layers)


def _read_experts(shape: dict[str, Any], options: Options) -> dict[str, Any]:
    """The shape with its experts; a dense model has no key of theirs."""
    shared, dense = options.whole("moe_shared_expert_intermediate_size"), _dense_layers(options.take("moe_layer_freq"))
    by_deepspeed = options.take("deepspeed", "deepspeed_config") is not None
    residual, interval = options.word("mlp_type") == "residual", options.whole("expert_interval") or 1 + by_deepspeed
    if (shape.get("num_experts") or 1) == 1:  # by default Megatron-DeepSpeed has one
        return {key: value for key, value in shape.items() if not key.startswith(("moe_", "num_experts"))}
    width = shape.get("moe_ffn_hidden_size") or shape.get("ffn_hidden_size")
    facts = ["some_experts"] * (dense is None or interval > 1) + ["residual_experts"] * residual
    facts += ["odd_shared_expert"] * bool(shared and width and shared % width)
    return with_facts(shape, facts) | stated(
        moe_router_topk=shape.get("moe_router_topk") or 2 - by_deepspeed, moe_ffn_hidden_size=width,
        num_dense_layers=dense or None, num_shared_experts=shared // width if width and shared else None,
    ) | ({"num_shared_experts": 1} if residual else {})  # fmt: skip


def _dense_layers(frequency: object) -> int | None:
    """The leading dense layers of ``([0]*3+[1]*58)``, of a list, or of 1; None where dense layers stand elsewhere."""
    layers = frequency if isinstance(frequency, list) else layer_list(str(frequency).strip("'\""))
    if frequency in (None, True) or layers == 1:
        return 0
    first = layers.index(1) if isinstance(layers, list) and 1 in layers else None
    return first if isinstance(layers, list) and first is not None and 0 not in layers[first:] else None


_LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}  # its defaults


def _read_latent(shape: dict[str, Any], options: Options) -> dict[str, Any]:
    """The shape with latent attention as stated or by default; without it, without those keys."""
    if options.flag("multi_latent_attention"):  # whose norms are those of its latents
        shape = with_facts(shape, [] if shape["qk_norm"] else ["no_latent_norms"]) | {"qk_norm": False}
        return shape | {key: shape.get(key) or default for key, default in _LATENT.items()}
    return {key: value for key, value in shape.items() if key not in (*_LATENT, "q_lora_rank")}


def _training(options: Options) -> dict[str, Any]:
    backend = options.word("attention_backend").rpartition(".")[2]
    flash = options.flag("use_flash_attn") or backend == "flash"
    kernel = "flash2" if flash else "unfused" if backend in ("unfused", "local") else None
    dtype = _dtype(options)
    kind, fused = options.word("cross_entropy_fusion_impl"), options.flag("cross_entropy_loss_fusion")
    loss = OTHER_CROSS_ENTROPIES.get(kind, "linear" if kind == "linear" else None) if fused is not False else "unfused"
    found = stated(dtype=dtype, fp8_recipe=_recipe(options, dtype), attention=kernel, cuda_graph=_read_graphs(options))
    return _plain(options, "training") | found | stated(cross_entropy=loss) | _states(options) | _routing(options)


def _routing(options: Options) -> dict[str, Any]:
    """How tokens go to experts, and what that hides under; nothing of a dense model, whose log lists defaults."""
    kind, backend = options.word("moe_token_dispatcher_type"), options.word("moe_flex_dispatcher_backend")
    overlaps, forced = options.flag("overlap_moe_expert_parallel_comm"), options.flag("moe_router_force_load_balancing")
    routing = None if forced is None else "forced" if forced else "natural"
    if not options.whole("num_experts", "num_moe_experts"):
        return {}
    if kind == "flex":
        kind = backend or "deepep"  # the only backend before there was a choice, and the default since
    kind = kind if kind in TOKEN_DISPATCHERS else ""
    return stated(token_dispatcher=kind or None, ep_overlap=overlaps, moe_routing=routing)


def _read_graphs(options: Options) -> str | None:
    """The CUDA graphs: of all passes, else (Megatron's "local" too, and its older flags) of layers."""
    kind, scope = options.word("cuda_graph_impl"), str(options.take("cuda_graph_scope"))
    if options.flag("enable_cuda_graph") or options.flag("external_cuda_graph"):
        kind = "local"
    if kind in ("", "none"):
        return kind or None
    return "full_iteration" if kind == "full_iteration" or "full_iteration" in scope else "transformer_engine"


def _states(options: Options) -> dict[str, Any]:
    """Formats of gradients and moments, which only the precision-aware optimizer does not keep in fp32."""
    if not options.flag("use_precision_aware_optimizer") or options.flag("optimizer_cpu_offload"):
        return {}
    words = {name: options.word(name) for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")}
    formats = {name: _FORMATS.get(word.removeprefix("torch."), word) for name, word in words.items()}
    return {"precision_aware_optimizer": True} | {k: word for k, word in formats.items() if word in _FORMATS.values()}


def _dtype(options: Options) -> str:
    wide = "bf16" if options.flag("bf16") else "fp16" if options.flag("fp16") else "fp32"
    options.take("params_dtype")
    if options.take("fp4_format", "fp4") not in (None, False):
        return "fp4"
    return "fp8" if options.take("fp8_format", "fp8", "fp8_hybrid", "fp8_e4m3") not in (None, False) else wide


def _recipe(options: Options, dtype: str) -> str | None:
    """The recipe that scales fp8 or fp4 where it is stated and one of Transformer Engine's."""
    named = {"fp8": options.word("fp8_recipe"), "fp4": options.word("fp4_recipe")}
    word = named.get(dtype, "").rpartition(".")[2]  # Fp8Recipe.mxfp8 in logs
    return word if word in FP8_RECIPES else None


def plan_of(options: Options) -> dict[str, Any]:
    """The columns of the plan but for those that need the number of layers."""
    plan = dict.fromkeys(("tp", "pp", "cp", "ep"), 1) | _plain(options, "plan")
    plan.pop("vpp", None)  # hangs together with the split of layers
    plan["sequence_parallel"] = bool(plan.get("sequence_parallel")) and plan["tp"] > 1
    plan = factors("megatron", plan)
    copies = options.whole("data_parallel_size")  # ranks that gather weights count apart
    more = stated(dp=copies and copies * plan.get("gtp", 1), zero_stage=_zero_stage(options), offload=_offload(options))
    return plan | more | _recompute(options)


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
    options.take("offload_modules")
    return "activations" if layers or options.flag("fine_grained_activation_offloading") else None


def _recompute(options: Options) -> dict[str, Any]:
    method = options.word("recompute_method", "activations_checkpoint_method")
    layers = options.whole("recompute_num_layers", "activations_checkpoint_num_layers")
    granularity = options.word("recompute_granularity", "activations_checkpoint_granularity")
    if options.word("activations_checkpoint_method") and not granularity:
        granularity = "full"  # of 2022, when nothing else was recomputed
    modules = options.take("recompute_modules")
    if granularity == "full" or options.flag("checkpoint_activations"):
        return {"recompute": "full"} | ({"recompute_num_layers": layers} if method == "block" and layers else {})
    if granularity == "selective" or options.flag("recompute_activations"):
        words = modules if isinstance(modules, list) else [modules] if isinstance(modules, str) else []
        return {"recompute": "selective"} | ({"recompute_modules": ";".join(map(str, words))} if words else {})
    return {"recompute": "none"}


def chunks_of(options: Options) -> Chunks:
    """How the options deal layers out; Megatron takes stages per rank, or layers per stage, or a layout."""
    layout = options.take("pipeline_model_parallel_layout")
    return Chunks(
        layout if isinstance(layout, str) else None,
        (options.whole("decoder_first_pipeline_num_layers"), options.whole("decoder_last_pipeline_num_layers")),
        (bool(options.flag("account_for_embedding_in_pipeline_split")),
         bool(options.flag("account_for_loss_in_pipeline_split"))),
        options.whole("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
        options.whole("num_layers_per_virtual_pipeline_stage"),
    )  # fmt: skip
