"""The command line of Megatron-LM's ``pretrain_gpt.py`` for one plan, and the environment that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.core.schema import COLUMNS, NEUTRAL, STAGE_LAYERS
from jointopt.spec.job import Job
from jointopt.spec.model import Model

# tensor and context parallelism refuse to start with more than one connection before Blackwell
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OMP_NUM_THREADS": "1"}
_FSDP = {2: "optim_grads", 3: "optim_grads_params"}  # by ZeRO stage
# Transformer Engine 2.10 and later offload activations without the weights only so
_OFFLOAD_ENVIRONMENT = {"NVTE_CPU_OFFLOAD_V1": "1"}


def megatron_environment(plan: Mapping[str, Any]) -> dict[str, str]:
    """Variables that a plan needs: Megatron-FSDP refuses to start with one connection, all else with more."""
    found = dict(ENVIRONMENT)
    if int(plan["zero_stage"]) in _FSDP:
        del found["CUDA_DEVICE_MAX_CONNECTIONS"]
    return found | (_OFFLOAD_ENVIRONMENT if plan.get("offload") == "activations" else {})


def megatron_arguments(job: Job, plan: Mapping[str, Any], iterations: int) -> list[str]:
    """Arguments of ``pretrain_gpt.py`` for one plan: mock data, no checkpoint, every iteration logged with its energy.

    Flags are those of Megatron-LM core 0.16 and later. LauncherError for what it has no flag for.
    """
    plan = {name: COLUMNS[name].outside(value) for name, value in NEUTRAL.items()} | {"etp": plan["tp"]} | dict(plan)
    _check(job, plan)
    return [
        *_model(job.model, job.training.seq_length), *_layout(job, plan), *_split(job.model, plan), *_sharding(plan),
        *_flags(micro_batch_size=int(plan["micro_batch_size"]), global_batch_size=job.training.global_batch_size),
        *_PRECISION[job.training.dtype], *_recompute(job, plan), *_offload(job, plan), *_run(job, iterations),
    ]  # fmt: skip


def _check(job: Job, plan: Mapping[str, Any]) -> None:
    if plan["schedule"] != "1f1b":
        raise LauncherError(f"Megatron-LM has no pipeline schedule {plan['schedule']}; expected 1f1b.")
    if job.training.dtype == "fp4":
        raise LauncherError("Megatron-LM has no fp4 training flags; expected fp32, fp16, bf16 or fp8.")


def _flags(**values: Any) -> list[str]:
    """``--name value`` for each value, ``--name`` for True, nothing for False and None; dashes for underscores."""
    out = []
    for name, value in values.items():
        if value is not None and value is not False:
            out += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return out


def _model(model: Model, seq_length: int) -> list[str]:
    grouped = model.num_query_groups != model.num_attention_heads and not model.kv_lora_rank
    undropped = None if model.dropout else 0.0  # Megatron-LM's own are 0.1
    positions = {"learned": "learned_absolute", "alibi": "none"}.get(model.position_embedding, "rope")
    return _flags(
        num_layers=model.num_layers, hidden_size=model.hidden_size, ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads, kv_channels=model.head_dim,
        num_query_groups=model.num_query_groups if grouped else None, seq_length=seq_length,
        max_position_embeddings=max(seq_length, model.max_position_embeddings), position_embedding_type=positions,
        normalization="RMSNorm" if model.rmsnorm else "LayerNorm", group_query_attention=grouped,
        swiglu=model.gated_mlp, disable_bias_linear=not model.linear_bias, add_qkv_bias=model.qkv_bias,
        qk_layernorm=model.qk_norm, untie_embeddings_and_output_weights=not model.tied_embeddings,
        attention_dropout=undropped, hidden_dropout=undropped, **_latent(model),
    ) + (_experts(model) if model.is_moe else [])  # fmt: skip


def _latent(model: Model) -> dict[str, Any]:
    """Flags of multi-head latent attention; none for ordinary attention."""
    if not model.kv_lora_rank:
        return {}
    return {
        "multi_latent_attention": True, "q_lora_rank": model.q_lora_rank or None, "kv_lora_rank": model.kv_lora_rank,
        "qk_head_dim": model.qk_nope_head_dim, "qk_pos_emb_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
    }  # fmt: skip


def _experts(model: Model) -> list[str]:
    dense, shared = model.num_dense_layers, model.num_shared_experts
    return _flags(
        num_experts=model.num_experts, moe_router_topk=model.moe_router_topk,
        moe_ffn_hidden_size=model.moe_ffn_hidden_size, moe_token_dispatcher_type="alltoall",
        moe_shared_expert_intermediate_size=model.moe_ffn_hidden_size * shared if shared else None,
        moe_layer_freq=f"([0]*{dense}+[1]*{model.num_layers - dense})" if dense else None,
        moe_grouped_gemm=True, moe_permute_fusion=True,
    )  # fmt: skip


def _layout(job: Job, plan: Mapping[str, Any]) -> list[str]:
    tp, pp, cp, ep, etp = (int(plan[name]) for name in ("tp", "pp", "cp", "ep", "etp"))
    return _flags(
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, context_parallel_size=cp,
        expert_model_parallel_size=ep if ep > 1 else None,
        expert_tensor_parallel_size=etp if job.model.is_moe and etp != tp else None,
        sequence_parallel=bool(plan["sequence_parallel"]),
    )  # fmt: skip


def _split(model: Model, plan: Mapping[str, Any]) -> list[str]:
    """Virtual stages and the layers of each chunk: by the plain flags where they can say it, else by a layout."""
    pp, vpp = int(plan["pp"]), int(plan["vpp"])
    interleaved = {"num_virtual_stages_per_pipeline_rank": vpp if vpp > 1 else None}
    layers = STAGE_LAYERS.numbers(STAGE_LAYERS.code(plan["stage_layers"]))
    if not layers:
        return _flags(**interleaved)
    counted = [(layers[0] + embedding, *layers[1:-1], layers[-1] + loss) for embedding in (0, 1) for loss in (0, 1)]
    for number, chunks in enumerate(counted):
        if len(set(chunks)) == 1:
            ends = {
                "account_for_embedding_in_pipeline_split": number > 1,
                "account_for_loss_in_pipeline_split": number % 2 > 0,
            }
            return _flags(**interleaved, **ends)
    if vpp == 1 and pp > 1 and len(set(layers[1:-1])) < 2 and min(layers) > 0:
        return _flags(decoder_first_pipeline_num_layers=layers[0], decoder_last_pipeline_num_layers=layers[-1])
    return _flags(pipeline_model_parallel_layout=layout_text(layers))


def layout_text(layers: Sequence[int]) -> str:
    """Megatron's word for chunks of so many layers, in the order of the pipeline: ``Et*7|t*8|t*8|t*7L``."""
    chunks = [f"t*{count}" if count > 1 else "t" * count for count in layers]
    return f"E{'|'.join(chunks)}L"


def _sharding(plan: Mapping[str, Any]) -> list[str]:
    """The distributed optimizer (ZeRO-1), Megatron-FSDP (2, 3), and groups of ranks that shard by themselves."""
    stage, replicas = int(plan["zero_stage"]), int(plan["dp_replicate"])
    fsdp = _FSDP.get(stage)
    return _flags(
        use_distributed_optimizer=stage > 0, overlap_grad_reduce=True, overlap_param_gather=stage > 0,
        use_megatron_fsdp=fsdp is not None, data_parallel_sharding_strategy=fsdp,
        no_gradient_accumulation_fusion=fsdp is not None, ckpt_format="fsdp_dtensor" if fsdp else None,
        num_distributed_optimizer_instances=replicas if replicas > 1 else None,
    )  # fmt: skip


_PRECISION = {
    "fp32": [], "bf16": ["--bf16"], "fp8": ["--bf16", "--fp8-format", "hybrid"],
    "fp16": ["--fp16", "--initial-loss-scale", "4096"],  # from the default 2^32 the first 20 iterations overflow
}  # fmt: skip


def _recompute(job: Job, plan: Mapping[str, Any]) -> list[str]:
    mode, layers = str(plan["recompute"]), int(plan["recompute_num_layers"])
    if mode == "none":
        return []
    words = ["--recompute-granularity", mode]
    if mode == "full":
        method = "block" if layers else "uniform"
        return [*words, *_flags(recompute_method=method, recompute_num_layers=layers or 1)]
    modules = str(plan["recompute_modules"]).split(";") if plan["recompute_modules"] else []
    if {"moe_act", "layernorm"} & set(modules) and job.training.dtype == "fp8":
        words += ["--fp8-recipe", "tensorwise"]  # delayed scaling keeps no such activation
    return [*words, "--recompute-modules", *modules] if modules else words


def _offload(job: Job, plan: Mapping[str, Any]) -> list[str]:
    """The optimizer on the host, or inputs and outputs of attention (and of an expert's activation)."""
    if plan["offload"] == "optimizer":
        return _flags(optimizer_cpu_offload=True, use_precision_aware_optimizer=True)
    if plan["offload"] == "none":
        return []
    recomputed = str(plan["recompute_modules"]).split(";")
    modules = ["core_attn", "attn_proj", *(["moe_act"] if job.model.is_moe and "moe" not in recomputed else [])]
    return ["--fine-grained-activation-offloading", "--offload-modules", *modules]


def _run(job: Job, iterations: int) -> list[str]:
    """Random data of the model's vocabulary, nothing evaluated or saved, each iteration logged."""
    backend = job.training.attention if job.training.attention in ("unfused", "fused") else "flash"
    return _flags(
        train_iters=iterations, log_interval=1, eval_iters=0, eval_interval=10 * iterations, lr="1.0e-4",
        min_lr="1.0e-5", lr_decay_style="cosine", tokenizer_type="NullTokenizer", vocab_size=job.model.vocab_size,
        split="99,1,0", distributed_timeout_minutes=10, attention_backend=backend,
        transformer_impl="transformer_engine", mock_data=True, log_throughput=True, log_energy=True,
        log_memory_interval=max(iterations - 1, 1),
    )  # fmt: skip
