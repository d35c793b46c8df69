"""A framework's launcher refuses, before the first run, a job that it has no words for at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import jointopt
from jointopt.core.errors import ExportError
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job
from jointopt.measure.framework_program import FrameworkProgram
from tests.stand_in.framework import checkout


def job_of(model: str) -> Job:
    return replace(jointopt.load_job("llama-3-8b-1x8-h100"), model=load_model(model))


def tried(name: str, model: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(ZeRO stage, dp) of the plans that a check tries to write."""
    program, plans = FrameworkProgram(name, checkout=checkout(name, folder)), []
    write = program.export
    monkeypatch.setattr(program, "export", lambda job, plan: plans.append(plan) or write(job, plan))
    program.check(job_of(model))
    return [(plan["zero_stage"], plan["dp"]) for plan in plans]


@pytest.mark.parametrize(("name", "stages"), [("torchtitan", [3]), ("nanotron", [3, 2, 1])])
def test_one_zero_stage_that_the_framework_has_is_enough(name, stages, tmp_path, monkeypatch) -> None:
    assert tried(name, "llama-3-8b", tmp_path, monkeypatch) == [(stage, 8) for stage in stages]


@pytest.mark.parametrize(("name", "words"), [("torchtitan", "no model of the shape"), ("nanotron", "routed experts")])
def test_a_job_that_no_stage_can_express_is_refused_by_name(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=words):
        FrameworkProgram(name, checkout=checkout(name, tmp_path)).check(job_of("mixtral-8x7b"))


def test_the_files_of_a_plan_are_written_into_its_folder(tmp_path: Path) -> None:
    job = jointopt.load_job("llama-3-8b-1x8-h100")
    program = FrameworkProgram("nanotron", checkout=checkout("nanotron", tmp_path))
    plan = {"dp": 8, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "zero_stage": 1,
            "sequence_parallel": False, "recompute": "none"}  # fmt: skip
    program.prepare(job, plan, tmp_path)
    written = program.export(job, plan).files
    assert {name: (tmp_path / name).read_text() for name in written} == written != {}


def test_only_a_checkout_of_megatron_states_its_version(tmp_path: Path) -> None:
    (tmp_path / "megatron" / "core").mkdir(parents=True)
    (tmp_path / "megatron" / "core" / "package_info.py").write_text("MAJOR = 0\nMINOR = 16\nPATCH = 1\n")
    (tmp_path / "pretrain_gpt.py").touch()
    assert FrameworkProgram("megatron", checkout=tmp_path).version == "0.16.1"
    assert FrameworkProgram("nanotron", checkout=checkout("nanotron", tmp_path)).version == ""
