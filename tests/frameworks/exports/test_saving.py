"""How often an exported training saves, where its job says what fails."""

from __future__ import annotations

from typing import Any

import pytest

from jointopt.frameworks.exported import Exported
from jointopt.jobs.jobfile import load_job
from jointopt.workflows.export import export
from jointopt.workflows.goodput import goodput

PLAN = "dp=4 tp=2 zero_stage=1"
FAILING = {"failures_per_gpu_hour": 1e-4, "storage_gbytes_per_s": 1, "checkpoint_s": 2, "spares": 1}


def job(framework: str = "megatron-lm", **reliability: Any) -> Any:
    changes = {"training.run_tokens": 1e12, "training.framework": framework}
    return load_job("llama-3-8b-1x8-h100", changes | {f"reliability.{key}": of for key, of in reliability.items()})


def training(target: str, framework: str = "megatron-lm", plan: str = PLAN, **reliability: Any) -> Exported:
    return export(job(framework, **reliability), plan, target, purpose="training", surrogate="none")


@pytest.mark.parametrize(
    ("target", "framework", "plan", "words"),
    [
        ("megatron", "megatron-lm", PLAN, ("--save-interval {}", "--async-save", "--use-persistent-ckpt-worker")),
        ("megatron-bridge", "megatron-lm", PLAN, ("save_interval: {}", "async_save: true")),
        ("torchtitan", "torchtitan", "dp=4 tp=2 zero_stage=2", ("--checkpoint.interval {}", "async_mode async")),
        ("nanotron", "nanotron", PLAN, ("checkpoint_interval: {}",)),
        ("slurm", "megatron-lm", PLAN, ("--requeue", "--save-interval {}")),
    ],
)
def test_a_training_saves_as_often_as_goodput_says(
    target: str, framework: str, plan: str, words: tuple[str, ...]
) -> None:
    every = goodput(job(framework, **FAILING), plan, surrogate="none").interval_iterations
    text = training(target, framework, plan, **FAILING).text()
    assert [word for word in words if word.format(every) not in text] == []


def test_what_an_export_cannot_set_is_noted() -> None:
    notes = training("megatron", **FAILING, policy="drop_replica").export.notes
    assert any("drop_replica" in note and "restarts" in note for note in notes)
    assert any("Spares (1 node) are yours" in note for note in notes)


def test_a_checkpoint_is_written_in_the_background_only_where_the_job_says_so() -> None:
    slow = FAILING | {"checkpoint_s": 900}
    for reliability in (slow, {"failures_per_gpu_hour": 1e-4, "checkpoint_s": 2}):
        text = training("megatron", **reliability).text()
        assert "--save-interval" in text
        assert "--async-save" not in text


def test_nothing_is_set_where_nothing_is_said_of_failures_nor_for_a_benchmark() -> None:
    assert "--save-interval 1000" in training("megatron").text()
    assert "--save-interval" not in export(job(**FAILING), PLAN, "megatron", surrogate="none").text()
