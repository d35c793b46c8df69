"""Forms of answers, keys on the command line, a job read without a search, completion."""

import csv
import io
import json
import os
import pty
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from jointopt.cli import common
from jointopt.cli.main import jointopt

JOB = "opt-350m-2x4-a100"
PLAN = ("explain", JOB, "--plan", "dp=8 micro_batch_size=4", "--storage", "none")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(jointopt, list(arguments))


@pytest.fixture(scope="module")
def document() -> dict:
    return json.loads(run("propose", JOB, "--storage", "none", "--json", "--quiet").stdout)


def test_csv_has_a_row_and_markdown_a_line_for_each_plan_of_the_front(document: dict) -> None:
    words = ("propose", JOB, "--storage", "none", "--format")
    rows = list(csv.DictReader(io.StringIO(run(*words, "csv").stdout)))
    assert [float(row["energy_j"]) for row in rows] == [plan["energy_j"] for plan in document["front"]]
    lines = run(*words, "markdown").stdout.splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[0].startswith("| dp | tp | pp | cp | micro_batch_size | sequence_parallel | recompute | zero_stage | ")


def test_format_json_is_what_json_prints(document: dict) -> None:
    again = json.loads(run("propose", JOB, "--storage", "none", "--format", "json").stdout)
    assert again["front"] == document["front"]


def test_quiet_leaves_nothing_on_stderr_and_without_it_there_is_progress() -> None:
    assert run("propose", JOB, "--storage", "none", "--quiet").stderr == ""
    assert "enumerating layouts" in run("propose", JOB, "--storage", "none").stderr


def test_set_stands_in_for_a_key_of_the_job_file_and_named_options_for_theirs() -> None:
    words = ("--set", "training.global_batch_size=512", "--set", "cluster.currency=EUR", "--price-per-gpu-hour", "2")
    found = json.loads(run(*PLAN, *words, "--run-tokens", "1e9", "--json").stdout)
    iterations = -(-(10**9) // (512 * 2048))
    hours = found["iteration_time_s"] * iterations * 8 / 3600
    assert (found["run_gpu_hours"], found["run_gpu_cost"]) == pytest.approx((hours, 2 * hours))
    assert "GPU-hours" in run(*PLAN, *words, "--run-tokens", "1e9").stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--set", "nodes"), "--set takes KEY=VALUE such as cluster.nodes=4; got 'nodes'"),
        (("--set", "cluster.nodse=4"), "the key 'cluster.nodse' is unknown (did you mean 'cluster.nodes'?)"),
        (("--set", "nodes=4"), "--set nodes=4: the key 'nodes' is unknown (did you mean 'cluster.nodes'?)"),
        (("--set", "tp=4"), "(did you mean 'search.tp'?)"),
        (("--set", "model.layers=4"), "model is 'opt-350m', whose keys are in the catalogue"),
        (("--set", "cluster.currency=EUR"), "expected a price of electricity (or price_per_gpu_hour) in that currency"),
        (("--run-tokens", "1.5"), "training.run_tokens must be a whole number of tokens"),
    ],
)
def test_a_key_that_makes_no_sense_is_one_sentence(words: tuple[str, ...], reason: str) -> None:
    result = run(*PLAN, *words)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())


def test_check_reports_what_a_job_stands_for_and_searches_nothing() -> None:
    found = json.loads(run("check", JOB, "--json").stdout)
    assert 0 < found["fitting"] <= found["layouts"] <= found["considered"]
    text = run("check", JOB).stdout
    assert "2 x 4 a100-sxm4-40gb (8 GPUs of" in text
    assert f"{found['fitting']:,} of them may fit in memory" in text
    too_small = run("check", "llama-3-70b-4x8-h200", "--set", "cluster.nodes=1", "--set", "cluster.gpus_per_node=1")
    assert (too_small.exit_code, "Traceback" in too_small.output) == (1, False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_the_program_and_its_variable(shell: str) -> None:
    assert "_JOINTOPT_COMPLETE" in run("completion", shell).stdout


def test_completion_completes() -> None:
    words = {"_JOINTOPT_COMPLETE": "bash_complete", "COMP_WORDS": "jointopt expl", "COMP_CWORD": "1"}
    code = [sys.executable, "-c", "from jointopt.cli.main import jointopt; jointopt(prog_name='jointopt')"]
    done = subprocess.run(code, env=os.environ | words, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["plain,explain"]


@pytest.mark.parametrize(("plain", "coloured"), [("", True), ("1", False)])
def test_a_terminal_has_colours_unless_they_are_not_wanted(
    monkeypatch: pytest.MonkeyPatch, plain: str, coloured: bool
) -> None:
    parent, child = pty.openpty()
    with os.fdopen(parent), os.fdopen(child, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("NO_COLOR", plain)
        text = common.coloured("title\n= first\nrest")
    assert ("\x1b[" in text) is coloured
    assert "rest" in text.splitlines()
