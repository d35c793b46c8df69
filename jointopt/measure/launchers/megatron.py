"""The launcher for Megatron-LM: the exact command line of a plan, and what its log says."""

from __future__ import annotations

import math
import re
import shlex
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError, PlanError
from jointopt.core.schema import Columns
from jointopt.core.units import GIB
from jointopt.measure.devices.conditions import under_plan
from jointopt.measure.devices.identity import check_devices
from jointopt.measure.launchers.base import new_log, result_row, with_log
from jointopt.measure.launchers.failures import Failure, failure_of
from jointopt.measure.launchers.process import files_of_a_run, run_program, whole
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
        *_model(job.model, job.training.seq_length), *_layout(plan), *_batch(job, plan), *_precision(job),
        *_memory(plan), *_run(job, iterations),
    ]  # fmt: skip


def _check(job: Job, plan: Mapping[str, Any]) -> None:
    model = job.model
    if model.kv_lora_rank:
        raise LauncherError(
            f"Command lines of multi-head latent attention ({model.name}) are not written yet."
        )
    if int(plan["zero_stage"]) > 1:
        raise LauncherError(
            f"Megatron-LM shards the optimizer (ZeRO-1), not gradients or weights; the plan has zero_stage "
            f"{plan['zero_stage']}: set search.zero_stage to [0, 1], or framework: megatron-lm."
        )
    if job.training.dtype == "fp4":
        raise LauncherError("Megatron-LM has no fp4 training flags; expected fp32, fp16, bf16 or fp8.")


def _pairs(**values: Any) -> list[str]:
    """``--name value`` for each that is not None, with dashes for underscores."""
    return [word for name, value in values.items() if value is not None for word in (_flag(name), str(value))]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _switches(**wanted: bool) -> list[str]:
    return [_flag(name) for name, on in wanted.items() if on]


def _model(model: Model, seq_length: int) -> list[str]:
    grouped = model.num_query_groups != model.num_attention_heads
    out = _pairs(
        num_layers=model.num_layers, hidden_size=model.hidden_size, ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads, kv_channels=model.head_dim,
        num_query_groups=model.num_query_groups if grouped else None, seq_length=seq_length,
        max_position_embeddings=max(seq_length, model.max_position_embeddings),
        position_embedding_type={"learned": "learned_absolute", "alibi": "none"}.get(model.position_embedding, "rope"),
        normalization="RMSNorm" if model.rmsnorm else "LayerNorm",
    )  # fmt: skip
    out += _switches(
        group_query_attention=grouped, swiglu=model.gated_mlp, disable_bias_linear=not model.linear_bias,
        add_qkv_bias=model.qkv_bias, qk_layernorm=model.qk_norm,
        untie_embeddings_and_output_weights=not model.tied_embeddings,
    )  # fmt: skip
    if not model.dropout:  # Megatron-LM's own are 0.1
        out += _pairs(attention_dropout=0.0, hidden_dropout=0.0)
    return out + _experts(model)


def _experts(model: Model) -> list[str]:
    if not model.is_moe:
        return []
    dense, shared = model.num_dense_layers, model.num_shared_experts
    return [
        *_pairs(
            num_experts=model.num_experts, moe_router_topk=model.moe_router_topk,
            moe_ffn_hidden_size=model.moe_ffn_hidden_size, moe_token_dispatcher_type="alltoall",
            moe_shared_expert_intermediate_size=model.moe_ffn_hidden_size * shared if shared else None,
            moe_layer_freq=f"([0]*{dense}+[1]*{model.num_layers - dense})" if dense else None,
        ),
        *_switches(moe_grouped_gemm=True, moe_permute_fusion=True),
    ]  # fmt: skip


def _layout(plan: Mapping[str, Any]) -> list[str]:
    tp, pp, cp, ep, vpp = (int(plan[name]) for name in ("tp", "pp", "cp", "ep", "vpp"))
    return [
        *_pairs(
            tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, context_parallel_size=cp,
            expert_model_parallel_size=ep if ep > 1 else None,
            num_virtual_stages_per_pipeline_rank=vpp if vpp > 1 else None,
        ),
        *_switches(
            sequence_parallel=bool(plan["sequence_parallel"]), use_distributed_optimizer=int(plan["zero_stage"]) == 1,
            overlap_grad_reduce=True, overlap_param_gather=int(plan["zero_stage"]) == 1,
        ),
    ]  # fmt: skip


def _batch(job: Job, plan: Mapping[str, Any]) -> list[str]:
    return _pairs(
        micro_batch_size=int(plan["micro_batch_size"]), global_batch_size=job.training.global_batch_size
    )


def _precision(job: Job) -> list[str]:
    dtype = job.training.dtype
    if dtype == "fp8":
        return ["--bf16", "--fp8-format", "hybrid"]
    return [f"--{dtype}"] if dtype in ("bf16", "fp16") else []


def _memory(plan: Mapping[str, Any]) -> list[str]:
    if plan["recompute"] == "full":
        return [
            "--recompute-granularity",
            "full",
            "--recompute-method",
            "uniform",
            "--recompute-num-layers",
            "1",
        ]
    return ["--recompute-granularity", "selective"] if plan["recompute"] == "selective" else []


def _run(job: Job, iterations: int) -> list[str]:
    """Random data of the model's vocabulary, nothing evaluated or saved, each iteration logged."""
    backend = {"unfused": "unfused", "fused": "fused"}.get(job.training.attention, "flash")
    return [
        *_pairs(
            train_iters=iterations, log_interval=1, eval_iters=0, eval_interval=10 * iterations, lr="1.0e-4",
            min_lr="1.0e-5", lr_decay_style="cosine", tokenizer_type="NullTokenizer", vocab_size=job.model.vocab_size,
            split="99,1,0", distributed_timeout_minutes=10, attention_backend=backend,
            transformer_impl="transformer_engine",
        ),
        *_switches(mock_data=True, log_throughput=True, log_energy=True),
        "--log-memory-interval", str(max(iterations - 1, 1)),
    ]  # fmt: skip


# --- the log --------------------------------------------------------------------------------------------------------

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|([^\n]*)")
_FIELD = re.compile(r"\s*([a-z][^|:]*?)\s*:\s*([-+.\deEnaif]+)\s*\|")
_MEMORY = re.compile(r"max reserved:\s*([\d.]+)")
_TIME, _ENERGY, _POWER = (
    "elapsed time per iteration (ms)",
    "energy per GPU (J/iter/GPU)",
    "power per GPU (W/GPU)",
)


@dataclass(frozen=True)
class MegatronLog:
    """What a log tells of the iterations after the first ``dropped``; NaN where it does not."""

    iteration_s: tuple[float, ...]
    energy_per_gpu_j: float
    power_per_gpu_w: float
    peak_memory_gib: float
    last_loss: float
    skipped: int  # iterations whose gradients were not finite


def read_log(text: str, dropped: int) -> MegatronLog:
    """The log of one run, of any rank or of all mixed; lines that are cut or mixed up are left out.

    Memory is the largest ``max reserved`` of any rank. Raises ValueError where no iteration is left.
    """
    rows: dict[int, dict[str, float]] = {}
    for number, rest in _ITERATION.findall(text):
        fields = {name: _number(value) for name, value in _FIELD.findall(rest)}
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


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


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
    energy = {}
    if log.energy_per_gpu_j > 0:
        energy = {"energy_j": log.energy_per_gpu_j * num_gpus, "avg_power_w": log.power_per_gpu_w}
    else:
        notes += ", energy not measured"
    return result_row("ok", notes, iteration_time_s=seconds, peak_memory_gib=log.peak_memory_gib, **energy)


# --- running it -----------------------------------------------------------------------------------------------------


class MegatronLauncher:
    """Runs plans with the Megatron-LM in ``checkout`` on the GPUs of this machine.

    ``iterations`` are measured after ``warmup_iterations``; ``limit_s`` is the longest that a run may take; logs stay
    in the folder ``logs`` where one is given. GPUs run at the clock of their stage, or at what the driver chooses
    (``default_clocks``).
    """

    name = "megatron"

    def __init__(
        self, checkout: Path, limit_s: float = 1800.0, iterations: int = 10, warmup_iterations: int = 5,
        logs: Path | None = None, default_clocks: bool = False,
    ) -> None:  # fmt: skip
        self.script_file = Path(checkout).absolute() / SCRIPT  # runs start in its folder
        if not self.script_file.is_file():
            raise LauncherError(
                f"{checkout} holds no {SCRIPT}; expected a checkout of Megatron-LM, given as --checkout."
            )
        self.limit_s, self.iterations, self.warmup_iterations = limit_s, iterations, warmup_iterations
        self.logs, self.default_clocks = logs, default_clocks

    def candidates(self, job: Job) -> Columns | None:
        """Any plan; LauncherError where the job needs more than this one machine."""
        if job.cluster.nodes != 1:
            raise LauncherError(
                f"The launcher megatron runs on one machine, and job {job.name!r} has {job.cluster.nodes} nodes; use "
                "--launcher slurm."
            )
        return None

    def command(self, job: Job, plan: Mapping[str, Any]) -> list[str]:
        """The command line that runs ``plan`` on one machine."""
        arguments = megatron_arguments(job, plan, self.warmup_iterations + self.iterations)
        start = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={job.cluster.gpus_per_node}",
        ]
        return [sys.executable, *start, str(self.script_file), *arguments]

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """What `run` does for ``plan`` but for the GPUs' clocks, as lines of a shell."""
        self.candidates(job)
        variables = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        folder = shlex.quote(str(self.script_file.parent))
        return f"cd {folder}\n{variables} {shlex.join(self.command(job, plan))}\n"

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """The measurement of ``plan``, or how it failed."""
        self.candidates(job)
        check_devices(job)
        command = self.command(job, plan)
        with files_of_a_run(), tempfile.TemporaryDirectory(prefix="jointopt-") as scratch:
            log = new_log(self.logs or Path(scratch), plan)
            try:
                with under_plan(plan, self.default_clocks) as conditions:
                    ended = run_program(
                        command, log, limit_s=self.limit_s, env=ENVIRONMENT, cwd=self.script_file.parent
                    )
            except PlanError as error:  # the GPUs here have no such clock
                return result_row("failed", str(error))
            failure = failure_of(ended.tail, ended.code, ended.timed_out, self.limit_s)
            row = self._row(job, log, failure, ended.code)
            return conditions.added_to(with_log(row, log, self.logs is not None))

    def _row(self, job: Job, log: Path, failure: Failure, code: int) -> Mapping[str, Any]:
        """What the log tells of a run that ended well, else how it failed."""
        if code == 0 and failure.status != "timeout":
            try:
                return measured(read_log(whole(log), self.warmup_iterations), job.cluster.num_gpus)
            except ValueError as error:
                return result_row("failed", f"the log holds no measured iteration: {error}")
        return result_row(failure.status, failure.reason)
