"""The launcher that trains for real, on this machine: the project's own trainer under torchrun."""

from __future__ import annotations

import importlib.util
import json
import math
import shlex
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError, PlanError
from jointopt.core.schema import Columns
from jointopt.measure.devices.conditions import Conditions, under_plan
from jointopt.measure.devices.identity import check_devices
from jointopt.measure.launchers.base import judged, new_log, result_row, with_log
from jointopt.measure.launchers.failures import failure_of
from jointopt.measure.launchers.process import files_of_a_run, run_program
from jointopt.measure.trainer.spec import TrainSpec
from jointopt.spec.job import Job
from jointopt.spec.model import Model

DEFAULT_LIMIT_S = 600.0


class TorchrunLauncher:
    """Runs a plan as processes of this machine, one per GPU of the job, or per core (gloo) where that is cpu-core.

    ``limit_s`` is the longest that a run may take, ``iterations`` are measured after ``warmup_iterations``; the log of
    each run stays in ``logs`` where a folder is given. GPUs run at the clock of their stage, or at what
    the driver chooses (``default_clocks``), and energy is measured, of more iterations where these are over too soon.
    """

    name = "torchrun"

    def __init__(
        self, limit_s: float = DEFAULT_LIMIT_S, iterations: int = 10, warmup_iterations: int = 3,
        logs: Path | None = None, default_clocks: bool = False,
    ) -> None:  # fmt: skip
        if importlib.util.find_spec("torch") is None:
            raise LauncherError(
                "The launcher torchrun needs PyTorch; install it with: pip install 'jointopt[torch]'."
            )
        self.limit_s, self.iterations, self.warmup_iterations = limit_s, iterations, warmup_iterations
        self.logs, self.default_clocks = logs, default_clocks

    def candidates(self, job: Job) -> Columns | None:
        """Any plan; LauncherError where the job needs more than this one machine, or a model that is not built here."""
        if job.cluster.nodes != 1:
            raise LauncherError(
                f"The launcher torchrun runs on one machine, and job {job.name!r} has {job.cluster.nodes} nodes; use "
                "--launcher slurm."
            )
        check_model(job.model)
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """The measurement of ``plan``: median time of the measured iterations, memory, or how it failed."""
        self.candidates(job)
        check_devices(job)
        spec = train_spec(job, plan, self.iterations, self.warmup_iterations)
        with files_of_a_run(), tempfile.TemporaryDirectory(prefix="jointopt-") as scratch:
            log = new_log(self.logs or Path(scratch), plan)
            try:
                with _conditions(spec, plan, self.default_clocks) as conditions:
                    row = self._run(
                        replace(spec, least_s=conditions.measure_s), job.model, Path(scratch), log
                    )
            except PlanError as error:  # the GPUs here have no such clock
                return result_row("failed", str(error))
            window = row.pop("measured_s", None)
            return conditions.added_to(row, window, row.pop("iterations", 1))

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """What `run` does for ``plan`` but for the GPUs' clocks, as lines of a shell, in a folder of its own."""
        self.candidates(job)
        spec = train_spec(job, plan, self.iterations, self.warmup_iterations)
        words = shlex.join(command(spec.processes, Path("spec.json"), Path("result.json")))
        variables = " ".join(f"{name}={value}" for name, value in _ENVIRONMENT.items())
        told = f"cat > spec.json <<'END'\n{spec.text()}\nEND"
        return f'cd "$(mktemp -d)"\n{told}\n{variables} {words}\ncat result.json\n'

    def _run(self, spec: TrainSpec, model: Model, scratch: Path, log: Path) -> dict[str, Any]:
        told, answer = scratch / "spec.json", scratch / "result.json"
        spec.write(told)
        ended = run_program(
            command(spec.processes, told, answer), log, limit_s=self.limit_s, env=_ENVIRONMENT
        )
        whole = ended.code == 0 and not ended.timed_out
        failure = failure_of(ended.tail, ended.code, ended.timed_out, self.limit_s)
        row = judged(read_result(answer, model) if whole else None, whole, failure)
        return with_log(row, log, self.logs is not None)


def _conditions(
    spec: TrainSpec, plan: Mapping[str, Any], default_clocks: bool
) -> AbstractContextManager[Conditions]:
    """What a run is measured under; a training on cores neither sets nor reads the GPUs beside them."""
    return (
        nullcontext(Conditions(plan, None, None, (), False))
        if spec.cores
        else under_plan(plan, default_clocks)
    )


# one thread per process: gloo runs would otherwise compete for cores
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def command(processes: int, spec: Path, answer: Path) -> list[str]:
    """The torchrun command line of one machine; ports are its own choice, so several can run side by side."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
        "-m", "jointopt.measure.trainer", str(spec), str(answer),
    ]  # fmt: skip


def read_result(path: Path, model: Model) -> dict[str, Any] | None:
    """The result columns in a file of the trainer, and its window: ``measured_s``, ``iterations``; None without a file.

    A file that is none of the trainer's is a failed run that says why.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        window = {"measured_s": found["measured_s"], "iterations": len(found["iteration_s"])}
        return _measured(found, model) | window
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        return result_row("failed", f"{path.name} is not what the trainer writes: {error!r}")


def _measured(found: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The result columns of a run that ended well; the spread of its iterations stands in ``notes``."""
    seconds, losses = found["iteration_s"], found["loss"]
    middle = statistics.median(seconds)
    spread = (max(seconds) - min(seconds)) / middle
    notes = f"{len(seconds)} iterations, spread {spread:.1%}, loss {losses[0]:.5g} to {losses[-1]:.5g}"
    if not all(map(math.isfinite, losses)):
        notes += "; the loss is not finite"
    missing = _not_built(model)
    if missing:
        notes += f"; not the exact model: trained without its {', '.join(missing)}"
    notes = "; ".join([notes, *map(str, found.get("remarks", []))])
    return result_row("ok", notes, iteration_time_s=middle, peak_memory_gib=found["peak_memory_gib"])


def _not_built(model: Model) -> list[str]:
    """Parts of ``model`` that the trainer leaves out or replaces: it builds RoPE, RMSNorm, an untied head, no bias."""
    parts = {
        "tied embeddings": model.tied_embeddings,
        f"{model.position_embedding} positions": model.position_embedding != "rope",
        "LayerNorm": not model.rmsnorm,
        "norms without weights": not model.norm_weight,
        "norms of queries and keys": model.qk_norm,
        "norm of the embedding": model.embedding_norm,
        "narrower embedding": model.embedding_size not in (0, model.hidden_size),
        "biases": model.linear_bias or model.qkv_bias,
        "dropout": model.dropout,
    }
    return [part for part, wanted in parts.items() if wanted]


def train_spec(job: Job, plan: Mapping[str, Any], iterations: int, warmup_iterations: int) -> TrainSpec:
    """What the trainer is told of a job and a plan (plan columns)."""
    m, t = job.model, job.training
    degrees = {
        name: int(plan[name])
        for name in ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage")
    }
    return TrainSpec(
        num_layers=m.num_layers, hidden_size=m.hidden_size, ffn_hidden_size=m.ffn_hidden_size,
        num_attention_heads=m.num_attention_heads, num_query_groups=m.num_query_groups, head_dim=m.head_dim,
        vocab_size=m.vocab_size, gated_mlp=m.gated_mlp, num_experts=m.num_experts, moe_router_topk=m.moe_router_topk,
        moe_ffn_hidden_size=m.moe_ffn_hidden_size, num_shared_experts=m.num_shared_experts,
        num_dense_layers=m.num_dense_layers, seq_length=t.seq_length, global_batch_size=t.global_batch_size,
        dtype=t.dtype, sequence_parallel=bool(plan["sequence_parallel"]), recompute=str(plan["recompute"]),
        iterations=iterations, warmup_iterations=warmup_iterations, cores=job.cluster.gpu.id == "cpu-core",
        gpu=job.cluster.gpu.id, selective_share=t.framework.selective_share, **degrees,
    )  # fmt: skip


def check_model(model: Model) -> None:
    """LauncherError for shapes that the trainer does not build."""
    if model.kv_lora_rank:
        raise LauncherError(
            f"The trainer has no multi-head latent attention, which {model.name} uses; measure it with --launcher "
            "megatron or --launcher command."
        )
