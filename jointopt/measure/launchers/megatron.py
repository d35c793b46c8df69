"""Megatron-LM, on this machine or on the nodes of a batch system: the command line of a plan, and the log read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.core.facts import Failure, FailureKind
from jointopt.measure.launchers.local import LocalLauncher
from jointopt.measure.launchers.program import Program, local_torchrun, node_torchrun
from jointopt.measure.launchers.rows import failed_row
from jointopt.measure.logs.iterations import NAN, SKIPPED, measured
from jointopt.measure.logs.megatron import read_log
from jointopt.spec.job import Job
from jointopt.spec.model import Model

SCRIPT = "pretrain_gpt.py"
# tensor and context parallelism refuse to start with more than one connection before Blackwell
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OMP_NUM_THREADS": "1"}

# --- the command line -----------------------------------------------------------------------------------------------


def megatron_arguments(job: Job, plan: Mapping[str, Any], iterations: int) -> list[str]:
    """Arguments of ``pretrain_gpt.py`` for one plan: mock data, no checkpoint, every iteration logged with its energy.

    Flags are those of Megatron-LM core 0.12 and later. LauncherError for what it has no flag for.
    """
    _check(job, plan)
    return [
        *_model(job.model, job.training.seq_length), *_layout(plan),
        *_flags(micro_batch_size=int(plan["micro_batch_size"]), global_batch_size=job.training.global_batch_size),
        *_PRECISION[job.training.dtype], *_flags(**_RECOMPUTE[str(plan["recompute"])]), *_run(job, iterations),
    ]  # fmt: skip


def _check(job: Job, plan: Mapping[str, Any]) -> None:
    model = job.model
    if model.kv_lora_rank:
        raise LauncherError(f"Command lines of multi-head latent attention ({model.name}) are not written yet.")
    if int(plan["zero_stage"]) > 1:
        raise LauncherError(
            f"Megatron-LM shards the optimizer (ZeRO-1), not gradients or weights; the plan has zero_stage "
            f"{plan['zero_stage']}: set search.zero_stage to [0, 1], or framework: megatron-lm."
        )
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
    grouped = model.num_query_groups != model.num_attention_heads
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
        attention_dropout=undropped, hidden_dropout=undropped,
    ) + (_experts(model) if model.is_moe else [])  # fmt: skip


def _experts(model: Model) -> list[str]:
    dense, shared = model.num_dense_layers, model.num_shared_experts
    return _flags(
        num_experts=model.num_experts, moe_router_topk=model.moe_router_topk,
        moe_ffn_hidden_size=model.moe_ffn_hidden_size, moe_token_dispatcher_type="alltoall",
        moe_shared_expert_intermediate_size=model.moe_ffn_hidden_size * shared if shared else None,
        moe_layer_freq=f"([0]*{dense}+[1]*{model.num_layers - dense})" if dense else None,
        moe_grouped_gemm=True, moe_permute_fusion=True,
    )  # fmt: skip


def _layout(plan: Mapping[str, Any]) -> list[str]:
    tp, pp, cp, ep, vpp = (int(plan[name]) for name in ("tp", "pp", "cp", "ep", "vpp"))
    sharded = int(plan["zero_stage"]) == 1
    return _flags(
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, context_parallel_size=cp,
        expert_model_parallel_size=ep if ep > 1 else None,
        num_virtual_stages_per_pipeline_rank=vpp if vpp > 1 else None,
        sequence_parallel=bool(plan["sequence_parallel"]), use_distributed_optimizer=sharded,
        overlap_grad_reduce=True, overlap_param_gather=sharded,
    )  # fmt: skip


_PRECISION = {
    "fp32": [], "bf16": ["--bf16"], "fp8": ["--bf16", "--fp8-format", "hybrid"],
    "fp16": ["--fp16", "--initial-loss-scale", "4096"],  # from the default 2^32 the first 20 iterations overflow
}  # fmt: skip
_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


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


# --- running it -----------------------------------------------------------------------------------------------------


class MegatronProgram(Program):
    """``pretrain_gpt.py`` of the ``checkout`` of Megatron-LM, which every node sees.

    ``iterations`` are measured after ``warmup_iterations``. LauncherError where the folder holds no such script.
    """

    name = "megatron"
    environment = ENVIRONMENT
    cwd: Path
    missing = "the log holds no measured iteration"

    def __init__(self, checkout: Path, iterations: int = 10, warmup_iterations: int = 5) -> None:
        self.cwd = Path(checkout).absolute()
        if not (self.cwd / SCRIPT).is_file():
            raise LauncherError(
                f"{checkout} holds no {SCRIPT}; expected a checkout of Megatron-LM, given as --checkout."
            )
        self.iterations, self.warmup_iterations = iterations, warmup_iterations

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start Megatron-LM on every node."""
        variables = (f"{name}={value}" for name, value in ENVIRONMENT.items())
        script = str((self.cwd / SCRIPT).resolve())
        return ["env", *variables, *node_torchrun(job), script, *self._arguments(job, plan)]

    def local_words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start Megatron-LM on this machine alone."""
        start = local_torchrun(job.cluster.gpus_per_node)
        return [*start, str(self.cwd / SCRIPT), *self._arguments(job, plan)]

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """The row of a run that has ended, from its log."""
        try:
            return measured(read_log(log, self.warmup_iterations), job.cluster.num_gpus)
        except ValueError as error:
            if "Traceback" in log or not re.search(f"{SKIPPED}|{NAN}", str(error)):
                return None  # the failure says more
            return failed_row(Failure(FailureKind.RESULT, f"no iteration counts: {error}"))

    def _arguments(self, job: Job, plan: Mapping[str, Any]) -> list[str]:
        return megatron_arguments(job, plan, self.warmup_iterations + self.iterations)


class MegatronLauncher(LocalLauncher):
    """Runs plans with the Megatron-LM in ``checkout`` on the GPUs of this machine."""

    name = "megatron"
    program: MegatronProgram

    def __init__(
        self, checkout: Path, limit_s: float = 1800.0, iterations: int = 10, warmup_iterations: int = 5,
        logs: Path | None = None, default_clocks: bool = False,
    ) -> None:  # fmt: skip
        program = MegatronProgram(checkout, iterations, warmup_iterations)
        super().__init__(program, limit_s, logs, default_clocks)

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The lines of a shell that do what `run` does but for the GPUs' clocks."""
        self.candidates(job)
        variables = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        words = shlex.join(self.program.local_words(job, plan, self.program.cwd))
        return f"cd {shlex.quote(str(self.program.cwd))}\n{variables} {words}\n"
