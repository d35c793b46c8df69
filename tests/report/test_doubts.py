"""Doubts of a front, which text, page and JSON share, and the command that comes next."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.jobs.catalog.recipes import best_mfu
from jointopt.jobs.jobfile import job_from_options
from jointopt.report.doubts import above_best
from jointopt.report.proposal import Proposal
from jointopt.workflows.propose import next_command, propose

OF_A100 = ("llama-3-8b", "a100-sxm4-80gb", 16, 128, 8192)


@pytest.fixture(scope="module", params=["generic", "nemo", "torchtitan"])
def found(request: pytest.FixtureRequest) -> Proposal:
    return propose(job_from_options(*OF_A100, framework=request.param), surrogate="none")


def test_every_doubt_of_the_json_is_in_the_text_and_on_the_page(found: Proposal) -> None:
    text = " ".join(found.text().split())
    page = found.report().page.html()
    for doubt in found.to_dict()["doubts"]:
        stated = re.search(r"--set (\S+=[^\s)]+)", doubt)
        core = f"if {stated[1]}" if stated else doubt.rpartition(" (")[0] if doubt.endswith("plans)") else doubt
        assert core in text, doubt
        assert doubt.replace("'", "&#39;") in page, doubt


def test_a_first_row_above_the_best_recorded_mfu_says_what_to_count_on() -> None:
    job = job_from_options(*OF_A100, framework="nemo")
    best = best_mfu(job)
    assert best is not None
    entry = {"mfu": best.mfu + 0.05, "iteration_time_s_high": 12.0}
    sentence = above_best(job, entry, "The first row's")
    assert f"{best.mfu + 0.05:.1%} is above the best recorded of dense models on a100-sxm4-80gb in bf16" in sentence
    assert f"{best.mfu:.1%} ({best.run}; {best.source}): count on 12.00 s, the slow end" in sentence
    assert above_best(job, entry | {"mfu": best.mfu}, "The first row's") == above_best(job, {}, "The first row's") == ""


def test_a_gpu_without_records_has_no_such_sentence() -> None:
    job = job_from_options("llama-3-8b", "a40", 8, 64, 4096, gpus_per_node=8)
    assert best_mfu(job) is None
    assert above_best(job, {"mfu": 0.99}, "The first row's") == ""


SHAPE = ["--model", "llama-3-8b", "--gpu", "h100-sxm5-80gb", "--gpus", "8", "--global-batch-size", "64",
         "--seq-length", "4096"]  # fmt: skip


@pytest.mark.parametrize("framework", ["generic", "megatron-lm", "nemo", "torchtitan", "deepspeed", "fsdp", "composer"])
@pytest.mark.parametrize("saved", [False, True])
def test_the_next_command_runs_as_it_is_printed(framework: str, saved: bool, tmp_path: Path) -> None:
    save = ["--save-job", str(tmp_path / "a job.yaml")] if saved else ["--set", "search.tp=[1, 2]"]
    answer = CliRunner().invoke(jointopt, ["propose", *SHAPE, "--framework", framework, *save, "--storage", "none"])
    printed = answer.stdout[answer.stdout.rindex("  jointopt ") :]
    words = shlex.split(printed.replace("\\\n", " "))
    assert words[:2] == ["jointopt", "export"]
    again = CliRunner().invoke(jointopt, [*words[1:], "--storage", "none"])
    assert again.exit_code == 0, again.output
    matches = framework in ("megatron-lm", "nemo", "torchtitan", "deepspeed", "fsdp")
    assert ("although" in answer.stdout) == (f"Priced as {framework}" in again.output) == (not matches)


def test_a_proposal_of_a_job_that_no_shell_named_has_no_next_command(found: Proposal) -> None:
    assert found.to_dict()["next"] is None
    assert "jointopt export" not in found.text()
    named = next_command(replace(found, source="job.yaml"))
    assert named is not None
    assert named["command"].startswith("jointopt export job.yaml --to ")
