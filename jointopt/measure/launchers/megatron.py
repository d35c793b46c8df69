"""Megatron-LM, on this machine or on the nodes of a batch system: the command line of a plan, and the log read."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.core.units import GIB
from jointopt.measure.launchers.local import LocalLauncher
from jointopt.measure.launchers.program import Program, local_torchrun, node_torchrun
from jointopt.measure.launchers.rows import result_row
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


_PRECISION = {"fp32": [], "bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format", "hybrid"]}
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


# --- the log --------------------------------------------------------------------------------------------------------

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|([^\n]*)")
_FIELD = re.compile(r"\s*([a-z][^|:]*?)\s*:\s*([-+]?(?:nan|inf|\d+\.?\d*(?:[eE][-+]?\d+)?))\s*\|")
_MEMORY = re.compile(r"max reserved:\s*([\d.]+)")
_TIME = "elapsed time per iteration (ms)"
_ENERGY, _POWER = "energy per GPU (J/iter/GPU)", "power per GPU (W/GPU)"


@dataclass(frozen=True)
class MegatronLog:
    """Figures of the iterations after the first ``dropped``; NaN where the log has none."""

    iteration_s: tuple[float, ...]
    energy_per_gpu_j: float
    power_per_gpu_w: float
    peak_memory_gib: float
    last_loss: float
    skipped: int  # iterations whose gradients were not finite


def read_log(text: str, dropped: int) -> MegatronLog:
    """The log of one run, of any rank or all mixed, without lines that are cut; ValueError without iterations."""
    rows: dict[int, dict[str, float]] = {}
    for number, rest in _ITERATION.findall(text):
        fields = {name: float(value) for name, value in _FIELD.findall(rest)}
        if fields.get(_TIME, math.nan) > 0:
            rows[int(number)] = fields
    kept = [rows[number] for number in sorted(rows)][dropped:]
    if not kept:
        raise ValueError(f"{len(rows)} iterations in the log, of which {dropped} only warm up")
    return MegatronLog(
        iteration_s=tuple(row[_TIME] / 1e3 for row in kept),
        energy_per_gpu_j=_median(kept, _ENERGY),
        power_per_gpu_w=_median(kept, _POWER),
        peak_memory_gib=max((float(mb) for mb in _MEMORY.findall(text)), default=math.nan) * 2**20 / GIB,
        last_loss=kept[-1].get("lm loss", math.nan),
        skipped=int(kept[-1].get("number of skipped iterations", 0)),
    )


def _median(rows: list[dict[str, float]], name: str) -> float:
    values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
    return statistics.median(values) if values else math.nan


def measured(log: MegatronLog, num_gpus: int) -> dict[str, Any]:
    """The result columns of a log; energy only where Megatron-LM had a meter (0 J means that it had none)."""
    seconds = statistics.median(log.iteration_s)
    spread = (max(log.iteration_s) - min(log.iteration_s)) / seconds
    notes = f"{len(log.iteration_s)} iterations, spread {spread:.1%}, loss {log.last_loss:.5g}"
    if log.skipped:
        notes += f", {log.skipped} skipped for gradients that were not finite"
    energy = {"energy_j": log.energy_per_gpu_j * num_gpus, "avg_power_w": log.power_per_gpu_w}
    if not log.energy_per_gpu_j > 0:
        energy, notes = {}, f"{notes}, energy not measured"
    return result_row(notes, iteration_time_s=seconds, peak_memory_gib=log.peak_memory_gib, **energy)


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
        except ValueError:
            return None

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
