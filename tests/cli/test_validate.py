"""The command around real runs of proposed plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt


def run(*flags: object) -> Result:
    words = ["validate", "job.yaml", "--launcher", "replay", "--table", "runs.csv", *map(str, flags)]
    return CliRunner().invoke(jointopt, words)


def test_predicted_and_measured_stand_side_by_side(recorded: Path) -> None:
    result = run("--top", 3, "-v")
    assert result.exit_code == 0, result.stderr
    assert "run 1 of 3: dp=" in result.stderr
    assert "Time is off by" in result.stdout
    assert "runs lie in their 90 % interval" in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_json_is_one_document_with_errors_and_intervals(recorded: Path) -> None:
    document = json.loads(run("--top", 2, "--json").stdout)
    keys = {"status", "iteration_time_s", "predicted_iteration_time_s", "error_iteration_time_s", "in_domain"}
    assert len(document["measured"]) == 2
    assert keys <= set(document["measured"][0])
    assert document["stopped"] == "done"


def test_an_interrupt_prints_what_there_is(recorded: Path, interrupt_after) -> None:
    interrupt_after(1)
    result = run("--top", 3, "--json")
    assert result.exit_code == 130
    assert len(json.loads(result.stdout)["measured"]) == 1


def test_where_no_run_succeeds_the_exit_code_is_1_and_the_reason_is_reported(recorded: Path, make_runs) -> None:
    make_runs(status="oom", iteration_time_s=float("nan")).to_csv(recorded / "runs.csv", index=False)
    result = run("--top", 2)
    assert result.exit_code == 1
    assert "oom" in result.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--set", "nonsense"], "NAME=VALUE"),
        (["--set", "speed=3"], "no option 'speed'"),
        (["--checkout", "somewhere"], "no option 'checkout'"),
        (["--launcher", "torchrum"], "did you mean 'torchrun'"),
    ],
)
def test_an_option_that_the_launcher_does_not_have_is_a_usage_error(recorded: Path, flags, words: str) -> None:
    result = run(*flags)
    assert result.exit_code == 2
    assert words in result.stderr
