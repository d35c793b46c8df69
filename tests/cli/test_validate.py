"""The command around real runs of proposed plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.measure.replay import ReplayLauncher

JOB = """
model: {num_layers: 24, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16, vocab_size: 50272}
training: {seq_length: 2048, global_batch_size: 256}
cluster: {gpu: a100-sxm4-40gb, nodes: 2, gpus_per_node: 4}
objectives: [iteration_time_s]
"""


@pytest.fixture
def folder(tmp_path: Path, make_runs, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job and its recorded runs."""
    (tmp_path / "job.yaml").write_text(JOB)
    make_runs().to_csv(tmp_path / "runs.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*flags: object) -> Result:
    words = ["validate", "job.yaml", "--launcher", "replay", "--table", "runs.csv", *map(str, flags)]
    return CliRunner().invoke(jointopt, words)


def test_predicted_and_measured_stand_side_by_side(folder: Path) -> None:
    result = run("--top", 3)
    assert result.exit_code == 0, result.stderr
    assert "run 1 of 3: dp=" in result.stderr
    assert "Time is off by" in result.stdout
    assert "runs lie in their 90 % interval" in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_json_is_one_document_with_errors_and_intervals(folder: Path) -> None:
    document = json.loads(run("--top", 2, "--json").stdout)
    keys = {"status", "iteration_time_s", "predicted_iteration_time_s", "error_iteration_time_s", "in_domain"}
    assert len(document["measured"]) == 2
    assert keys <= set(document["measured"][0])
    assert document["stopped"] == "done"


def test_an_interrupt_prints_what_there_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = ReplayLauncher.run, []

    def interrupted(self, job, plan):
        calls.append(plan)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return original(self, job, plan)

    monkeypatch.setattr(ReplayLauncher, "run", interrupted)
    result = run("--top", 3, "--json")
    assert result.exit_code == 130
    assert len(json.loads(result.stdout)["measured"]) == 1


def test_where_no_run_succeeds_the_exit_code_is_1_and_the_reason_is_told(folder: Path, make_runs) -> None:
    make_runs(status="oom", iteration_time_s=float("nan")).to_csv(folder / "runs.csv", index=False)
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
def test_an_option_that_the_launcher_does_not_have_is_a_usage_error(folder: Path, flags, words: str) -> None:
    result = run(*flags)
    assert result.exit_code == 2
    assert words in result.stderr
