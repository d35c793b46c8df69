"""What the trainer under torchrun is given, and what is read from what it writes; PyTorch is not needed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.measure.torchrun import TorchrunProgram
from jointopt.runs.rows import with_log

MODEL = Model("tiny", 2, 64, 128, 4, 4, 256, 16, gated_mlp=True)
PLAN: dict[str, Any] = {
    "dp": 2, "tp": 2, "pp": 3, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 2, "sequence_parallel": True,
    "recompute": "full", "zero_stage": 1,
}  # fmt: skip


def test_the_trainer_finds_its_task_and_leaves_its_result_in_the_folder_of_the_run(job: Job) -> None:
    program = TorchrunProgram()
    for words in (program.words(job, PLAN, Path("run")), program.words(job, PLAN, Path("run"), alone=True)):
        assert words[-4:] == ["-m", "jointopt.measure.trainer", "run/spec.json", "run/result.json"]
    assert "--nproc-per-node=12" in words


def test_the_task_of_the_trainer_is_the_model_the_plan_and_the_iterations(job: Job) -> None:
    spec = TorchrunProgram(10, 3).spec(replace(job, model=MODEL), PLAN, 2.5)
    assert (spec.hidden_size, spec.dp, spec.pp, spec.recompute, spec.sequence_parallel) == (64, 2, 3, "full", True)
    assert (spec.iterations, spec.warmup_iterations, spec.least_s, spec.cores) == (10, 3, 2.5, False)
    cpu = replace(job, cluster=replace(job.cluster, gpu=replace(job.cluster.gpu, id="cpu-core")))
    assert TorchrunProgram().spec(cpu, PLAN).cores


def test_the_memory_of_a_run_that_goes_on_is_that_of_its_fullest_rank(job: Job) -> None:
    printed = "peak 3.5000 GiB\npeak 3.2500 GiB\niteration 0.500000 s\n"
    assert TorchrunProgram().progress(job, printed) == ([0.5], {"peak_memory_gib": 3.5})


def row_of(job: Job, folder: Path, model: Model = MODEL, **others: Any) -> Any:
    """The row of a result file as the trainer writes it."""
    found = {"iteration_s": [0.9, 1.0, 1.4], "loss": [5.0, 4.0, 3.0], "peak_memory_gib": 2.5, "measured_s": [0.0, 3.3]}
    (folder / "result.json").write_text(json.dumps(found | others))
    return TorchrunProgram().results(replace(job, model=model), folder, "")


def test_the_time_of_a_run_is_the_median_of_its_iterations_and_notes_give_the_spread(job: Job, tmp_path: Path) -> None:
    row = row_of(job, tmp_path)
    assert (row["status"], row["iteration_time_s"], row["peak_memory_gib"]) == ("ok", 1.0, 2.5)
    assert "3 iterations, spread 50.0%, loss 5 to 3" in row["notes"]


def test_the_time_of_a_run_that_was_ended_early_is_the_least_of_its_iterations_and_no_failure_is_logged(
    job: Job, tmp_path: Path
):
    row = row_of(job, tmp_path, behind_s=0.8)
    assert (row["status"], row["iteration_time_s"], row["peak_memory_gib"]) == ("timeout", 0.9, 2.5)
    assert row["notes"] == "ended early: each of 3 iterations took 0.9 s or more, beyond 0.8"
    assert with_log(row, tmp_path, kept=False)["notes"] == row["notes"]


@pytest.mark.parametrize(("loss", "finite"), [([5.0, 4.0], True), ([5.0, math.nan], False), ([math.inf, 4.0], False)])
def test_a_loss_that_is_not_finite_is_noted(job: Job, tmp_path: Path, loss: list[float], finite: bool) -> None:
    row = row_of(job, tmp_path, loss=loss)
    assert ("the loss is not finite" in row["notes"]) != finite


@pytest.mark.parametrize(("embedding", "missing"), [(0, False), (64, False), (32, True)])
def test_a_narrower_embedding_is_named_as_left_out(job: Job, tmp_path: Path, embedding: int, missing: bool) -> None:
    row = row_of(job, tmp_path, replace(MODEL, embedding_size=embedding))
    assert ("embedding narrower" in row["notes"]) == missing


def test_a_model_that_is_built_otherwise_has_a_note_of_what_is_missing(job: Job, tmp_path: Path) -> None:
    gpt = replace(MODEL, tied_embeddings=True, position_embedding="learned", rmsnorm=False, linear_bias=True)
    exact, other = (row_of(job, tmp_path, model) for model in (MODEL, gpt))
    assert "not the exact model" not in exact["notes"]
    parts = "tied embeddings, learned positions, LayerNorm, biases of projections"
    assert other["notes"].endswith(f"not the exact model: trained without its {parts}")
