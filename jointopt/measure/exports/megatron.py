"""Megatron-LM: the arguments of ``pretrain_gpt.py`` for Megatron Core 0.12 to the development branch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jointopt.core.errors import ExportError
from jointopt.core.schema import MODULES
from jointopt.jobs.framework import is_on
from jointopt.jobs.model import SkipFreq
from jointopt.measure.exports.intent import Export, Gaps, Intent
from jointopt.measure.exports.options import NEWEST, Words, version_key

NAME, SCRIPT = "megatron", "pretrain_gpt.py"
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
    _run(words, gaps, intent)
    return words, gaps.notes


def megatron_environment(intent: Intent) -> dict[str, str]:
    """Environment variables of every rank."""
    found = dict(ENVIRONMENT)
    if intent["zero_stage"] > 1:
        del found["CUDA_DEVICE_MAX_CONNECTIONS"]
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
        add_qkv_bias=model.qkv_bias, qk_layernorm=model.qk_norm or bool(model.kv_lora_rank),
        untie_embeddings_and_output_weights=not model.tied_embeddings, **_dropouts(intent),
        mtp_num_layers=model.mtp_num_layers or None, mtp_loss_scaling_factor=0.1 if model.mtp_num_layers else None,
        **_latent(intent, words.version),
    )  # fmt: skip
    shared = bool(model.num_query_groups % intent["tp"])
    gaps.never(shared and version_key(words.version) < version_key("0.16"), "KV heads that several ranks share")
    gaps.finer(bool(intent.odd_activation), intent.odd_activation)
    gaps.finer(model.attention_sinks, "attention sinks")
    gaps.finer(details.parallel_residual, "parallel attention and MLP")
    gaps.finer(details.post_norm, "norms after attention and MLP")
    gaps.finer(model.qk_norm_full, "norm over all heads' queries and keys at once")
    gaps.finer(not model.norm_weight, "norms without weights")
    gaps.finer(model.embedding_norm, "norm of the embedding")
    gaps.finer(not model.final_norm, "model without a last norm")
    gaps.finer(bool(model.embedding_size), "embedding narrower than the layers")


def _dropouts(intent: Intent) -> dict[str, float | None]:
    """The stated dropouts; where the model has some and does not say how much, Megatron-LM's own 0.1."""
    stated = {"attention_dropout": intent.details.attention_dropout, "hidden_dropout": intent.details.hidden_dropout}
    if not intent.model.dropout:
        return dict.fromkeys(stated, 0.0)
    return dict.fromkeys(stated) if not any(stated.values()) else dict(stated)


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
    kind = {"learned": "learned_absolute", "alibi": "none"}.get(model.position_embedding, "rope")
    words.add(seq_length=seq_length, max_position_embeddings=most, position_embedding_type=kind)
    gaps.finer(model.position_embedding == "alibi", "ALiBi")
    if kind == "rope":
        words.add(rotary_base=int(details.rotary_base),
                  rotary_percent=details.rotary_percent if details.rotary_percent != 1.0 else None)  # fmt: skip
        _rope_scaling(words, gaps, intent)
    if intent.window:
        if words.has("window_size"):
            words.add(window_size=f"{intent.window},0", window_attn_skip_freq=_skip_freq(model.window_attn_skip_freq),
                      cp_comm_type=intent.context_exchange)  # fmt: skip
        gaps.finer(not words.has("window_size"), intent.window_words)


def _skip_freq(freq: SkipFreq) -> str | None:
    """Which layers have the window, as `--window-attn-skip-freq` reads it: ``6``, ``([0,1]*12)``, or blank for all."""
    if not isinstance(freq, tuple):
        return str(freq) if freq else None
    length = len(freq)
    turn = next(n for n in range(1, length + 1) if length % n == 0 and freq[:n] * (length // n) == freq)
    return f"([{','.join(map(str, freq[:turn]))}]*{length // turn})"


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
        usual = (scaling.beta_fast, scaling.beta_slow, scaling.original_length) == (32.0, 1.0, 4096)
        gaps.finer(not usual, "YaRN with other constants than DeepSeek's")
    elif scaling.kind == "linear" and scaling.factor.is_integer() and not latent:
        words.add(rotary_seq_len_interpolation_factor=int(scaling.factor))
    else:
        gaps.finer(True, f"{scaling.kind} scaling of rotary positions")


def _experts(words: Words, intent: Intent) -> None:
    model, routing = intent.model, intent.details.routing
    if not model.is_moe:
        return
    dense, shared, scaled = model.num_dense_layers, model.num_shared_experts, routing.scaling != 1.0
    words.add(
        num_experts=model.num_experts, moe_router_topk=model.moe_router_topk,
        moe_ffn_hidden_size=model.moe_ffn_hidden_size, **dispatcher(words, intent),
        moe_shared_expert_intermediate_size=model.moe_ffn_hidden_size * shared if shared else None,
        moe_shared_expert_gate=shared_gate(intent),
        moe_layer_freq=f"([0]*{dense}+[1]*{model.num_layers - dense})" if dense else None,
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


def forced_balance(intent: Intent) -> bool:
    """Whether experts are drawn at random: as stated, and in a benchmark, whose data would load them unevenly."""
    return not intent.is_training or intent.job.training.moe_router_force_load_balancing


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
    return found | {"overlap_moe_expert_parallel_comm": training.overlap_moe_a2a}


# --- the plan -------------------------------------------------------------------------------------------------------


def _degrees(words: Words, gaps: Gaps, intent: Intent) -> None:
    experts = intent.model.is_moe
    words.add(
        tensor_model_parallel_size=intent["tp"], pipeline_model_parallel_size=intent["pp"],
        context_parallel_size=intent["cp"], expert_model_parallel_size=intent["ep"] if intent["ep"] > 1 else None,
        expert_tensor_parallel_size=intent["etp"] if experts and intent["etp"] != intent["tp"] else None,
        sequence_parallel=bool(intent["sequence_parallel"]), micro_batch_size=intent["micro_batch_size"],
        global_batch_size=intent.job.training.global_batch_size,
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
    overlapped = is_on(training.framework, "tp", intent["overlap"]) and tp <= intent.job.cluster.gpus_per_node
    words.add(
        attention_backend=backend, transformer_impl="transformer_engine", cross_entropy_loss_fusion=True,
        # every kernel of a causal model makes its mask by itself; one of 128k tokens would take 16 GiB
        no_create_attention_mask_in_dataloader=True, manual_gc=True, manual_gc_interval=100,
        tp_comm_overlap=overlapped and tp > 1 and bool(intent["sequence_parallel"]) and training.dtype != "fp32",
    )  # fmt: skip


CAPTURED_OF_EXPERTS: tuple[str, ...] = ("attn", "moe_router", "moe_preprocess")  # of an MoE layer, what has one shape


def _graphs(words: Words, gaps: Gaps, intent: Intent) -> None:
    """CUDA graphs, under the names of each version: of whole layers, of MoE layers what has a fixed shape."""
    kind = intent.job.training.cuda_graph
    if not kind:
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
            load="CHECKPOINTS", save_interval=1000, eval_iters=10, eval_interval=1000, log_interval=10,
            log_throughput=True,
        )  # fmt: skip
        gaps.notes.append("Yours to set: --data-path, --tokenizer-model, --save, --load, and the learning rate.")
        return
    words.add(
        lr="1.0e-4", min_lr="1.0e-5", lr_decay_style="cosine", split="99,1,0", mock_data=True,
        tokenizer_type="NullTokenizer", eval_iters=0, eval_interval=10 * steps, log_interval=1, log_throughput=True,
        log_energy=True, log_memory_interval=max(steps - 1, 1),
    )  # fmt: skip
