"""The project's own trainer under torchrun, on this machine or on the nodes of a batch system."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.core.facts import Failure, FailureKind, joined_notes
from jointopt.core.quote import sh_command, sh_file, sh_word
from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, NEUTRAL
from jointopt.jobs.details import details_of
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.jobs.model_facts import facts_of
from jointopt.measure.local import LocalLauncher, row_ended_early
from jointopt.measure.process import Program, exclude_columns, local_torchrun, node_torchrun, refuse_columns
from jointopt.measure.trainer.spec import TrainSpec
from jointopt.runs.rows import failed_row, is_blank, result_row

_SPEC, _RESULT = "spec.json", "result.json"
_NAME = "The project's trainer"
_PRINTED_S = re.compile(r"^iteration (\d+\.\d+) s$", re.MULTILINE)  # of the trainer's `_print_progress`
_PRINTED_GIB = re.compile(r"^peak (\d+\.\d+) GiB$", re.MULTILINE)
_NOT_BUILT = tuple(name for name in NEUTRAL if name != "etp")
_OF_MODEL = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "head_dim", "vocab_size",
    "gated_mlp", "num_experts", "moe_router_topk", "moe_ffn_hidden_size", "num_shared_experts", "num_dense_layers",
)  # fmt: skip
_OF_PLAN = tuple(f.name for f in fields(TrainSpec) if f.name in LAYOUT_COLUMNS and COLUMNS[f.name].dtype == "int")
_TRAINER = ("-m", "jointopt.measure.trainer")
# one thread per process: gloo runs would otherwise compete for cores
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class TorchrunProgram(Program):
    """The trainer, one process per GPU or core."""

    name = "torchrun"
    environment = _ENVIRONMENT
    missing = "the training ended well and wrote no result file"

    def __init__(self, iterations: int = 10, warmup_iterations: int = 3) -> None:
        self.iterations, self.warmup_iterations = iterations, warmup_iterations

    def check(self, job: Job) -> None:
        """LauncherError for shapes that the trainer does not build."""
        check_model(job.model)
        if job.training.frozen:
            raise LauncherError(f"{_NAME} trains all weights, no adapters (training.lora_dim); use another launcher.")

    def narrow_search(self, job: Job) -> Job:
        """The job without what the trainer does not build: even 1F1B pipelines and whole layers are what it has."""
        return exclude_columns(job, _NAME, _NOT_BUILT)

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path, alone: bool = False) -> list[str]:
        """The words that start the trainer."""
        start = node_torchrun(job)
        if alone:
            spec = self.spec(job, plan)
            start = local_torchrun(spec.dp * spec.tp * spec.pp * spec.cp, folder)
        return [*start, *_TRAINER, str(folder / _SPEC), str(folder / _RESULT)]

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path, least_s: float = 0.0) -> None:
        """Write the files that the trainer reads."""
        (folder / _SPEC).write_text(self.spec(job, plan, least_s).text(), encoding="utf-8")

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """The result columns in the file of the trainer, and its window; of another's file a failed run.

        The spread of its iterations stands in ``notes``, and the parts of the model that the trainer leaves out or
        replaces: it builds RoPE, RMSNorm, an untied head, no bias.
        """
        model = job.model
        try:
            found = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
            measured_s, seconds = found["measured_s"], found["iteration_s"]
            window = {"measured_s": measured_s, "iterations": len(seconds)}
            if found.get("behind_s"):
                return (
                    row_ended_early(seconds, found["behind_s"]) | {"peak_memory_gib": found["peak_memory_gib"]} | window
                )
            losses = found["loss"]
            middle = statistics.median(seconds)
            spread = (max(seconds) - min(seconds)) / middle
            parts = {
                "tied embeddings": model.tied_embeddings,
                "learned positions": model.position_embedding == "learned",
                "LayerNorm": not model.rmsnorm,
                "biases of experts": model.moe_linear_bias,
                "dropout": model.dropout,
                "windows of attention": bool(model.window_cells) and not model.layers,
                "layers of several kinds": bool(model.layers),
            }
            others = facts_of(model, details_of(model)).values()
            missing = ", ".join([*(part for part, wanted in parts.items() if wanted), *others])
            notes = joined_notes(
                f"{len(seconds)} iterations, spread {spread:.1%}, loss {losses[0]:.5g} to {losses[-1]:.5g}",
                "" if all(map(math.isfinite, losses)) else "the loss is not finite",
                f"not the exact model: trained without its {missing}" if missing else "",
                *map(str, found.get("remarks", [])),
            )
            return result_row(notes, iteration_time_s=middle, peak_memory_gib=found["peak_memory_gib"]) | window
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            return failed_row(Failure(FailureKind.RESULT, f"{_RESULT} is not what the trainer writes: {error!r}"))

    def progress(self, job: Job, log: str) -> tuple[Sequence[float], Mapping[str, Any]]:
        """Measured iterations of a run that goes on, and the memory of its fullest rank, as the trainer prints them."""
        of_ranks = [float(gib) for gib in _PRINTED_GIB.findall(log)]
        known = {"peak_memory_gib": max(of_ranks)} if of_ranks else {}
        return [float(seconds) for seconds in _PRINTED_S.findall(log)], known

    def spec(self, job: Job, plan: Mapping[str, Any], least_s: float = 0.0) -> TrainSpec:
        """The task of the trainer: model, plan, iterations. LauncherError for a plan that it does not build."""
        refuse_columns(_NAME, plan, _NOT_BUILT)
        if job.model.is_moe and not is_blank(plan.get("etp")) and int(plan["etp"]) != int(plan["tp"]):
            raise LauncherError(
                f"{_NAME} cuts experts as it does layers: etp must be tp {plan['tp']}, got {plan['etp']}."
            )
        training, gpu = job.training, job.cluster.gpu.id
        shape: dict[str, Any] = {name: getattr(job.model, name) for name in _OF_MODEL}
        shape |= {name: int(plan[name]) for name in _OF_PLAN}
        shape |= {name: getattr(training, name) for name in ("seq_length", "global_batch_size", "dtype")}
        return TrainSpec(
            **shape, sequence_parallel=bool(plan["sequence_parallel"]), recompute=str(plan["recompute"]),
            iterations=self.iterations, warmup_iterations=self.warmup_iterations, least_s=least_s,
            behind_s=self.behind_s, prints=bool(self.behind_both), cores=gpu == "cpu-core", gpu=gpu,
            selective_share=training.framework.selective_share,
        )  # fmt: skip


class TorchrunLauncher(LocalLauncher):
    """Runs a plan with the trainer on this machine, one process per GPU of the job, or per core (gloo).

    ``iterations`` after ``warmup_iterations`` are measured, and more where energy counters need longer.
    """

    name = TorchrunProgram.name
    program: TorchrunProgram

    def __init__(
        self, limit_s: float = 600.0, iterations: int = 10, warmup_iterations: int = 3, logs: Path | None = None,
        default_clocks: bool = False,
    ) -> None:  # fmt: skip
        if importlib.util.find_spec("torch") is None:
            raise LauncherError("The launcher torchrun needs PyTorch; install it with: pip install 'jointopt[torch]'.")
        super().__init__(TorchrunProgram(iterations, warmup_iterations), limit_s, logs, default_clocks)

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The lines of a shell that do what `run` does but for the GPUs' clocks, in a folder of their own."""
        self.candidates(job)
        words = sh_command(self.program.words(job, plan, Path(), alone=True))
        variables = " ".join(f"{name}={sh_word(value)}" for name, value in _ENVIRONMENT.items())
        spec = sh_file(_SPEC, self.program.spec(job, plan).text())
        return f'cd "$(mktemp -d)"\n{spec}{variables} {words}\ncat {_RESULT}\n'


def check_model(model: Model) -> None:
    """LauncherError for shapes that the trainer does not build."""
    if model.block:
        raise LauncherError(
            f"The trainer has whole models alone, and {model.name} is a block (model.block {model.block}); measure it "
            "with --launcher command, or train the whole model."
        )
    if model.kv_lora_rank:
        raise LauncherError(
            f"The trainer has no multi-head latent attention, which {model.name} uses; measure it with --launcher "
            "megatron or --launcher command."
        )
