"""``--plan``: a plan is words, JSON, or a row of a file that another command wrote."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt

JOB = "opt-350m-2x4-a100"
FRONT = [{"dp": 8, "tp": 1, "pp": 1, "clock_mhz": 1410}, {"dp": 4, "tp": 2, "pp": 1, "clock_mhz": 1200}]


def run(*words: object) -> Result:
    return CliRunner().invoke(jointopt, [*map(str, words), "--surrogate", "none", "--storage", "none", "--json"])


@pytest.fixture
def proposal(tmp_path: Path) -> Path:
    (tmp_path / "proposal.json").write_text(json.dumps({"front": FRONT}))
    return tmp_path / "proposal.json"


def test_a_row_of_a_proposal_is_explained_as_its_words_are(proposal: Path) -> None:
    of_file = json.loads(run("explain", JOB, "--plan", f"{proposal}:2").stdout)
    of_words = json.loads(run("explain", JOB, "--plan", "dp=4 tp=2 pp=1 clock=1200").stdout)
    assert of_file["iteration_time_s"] == of_words["iteration_time_s"]


def test_rows_of_a_proposal_are_compared(proposal: Path) -> None:
    found = json.loads(run("compare", JOB, "--plan", f"{proposal}:1", "--plan", f"{proposal}:2").stdout)
    assert [plan["plan"]["tp"] for plan in found["plans"]] == [1, 2]


@pytest.mark.parametrize(
    ("row", "message"), [("", "from proposal.json:1 to proposal.json:2"), (":9", "got row 9"), (":0", "got row 0")]
)
def test_a_row_that_is_not_there_is_named(proposal: Path, row: str, message: str) -> None:
    result = run("explain", JOB, "--plan", f"{proposal}{row}")
    assert (result.exit_code, message in result.stderr) == (2, True)


def test_what_runs_today_may_be_a_row_of_a_file(proposal: Path) -> None:
    found = json.loads(run("propose", JOB, "--baseline", f"{proposal}:2").stdout)
    assert (found["reference"]["tp"], found["reference"]["stage_clock_mhz"]) == (2, [1200.0])
    several = run("propose", JOB, "--baseline", proposal)
    assert (several.exit_code, "say which, from proposal.json:1" in several.stderr) == (2, True)


def test_commands_of_a_study_with_blanks_quotes_and_slashes_run_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "it's a/b study"
    words = ["propose", JOB, "--surrogate", "none", "--set", "search.tp=[1]", "--study", name]
    text = CliRunner().invoke(jointopt, words).stdout
    (start,) = [line for line in text.splitlines() if "jointopt export" in line]
    assert CliRunner().invoke(jointopt, shlex.split(start)[1:]).exit_code == 0
    chosen = CliRunner().invoke(jointopt, ["select", name]).stdout.splitlines()[-1]
    assert CliRunner().invoke(jointopt, shlex.split(chosen)[1:]).exit_code == 0
    today = run("propose", JOB, "--baseline", f"{name}:1", "--storage", "sqlite:///jointopt.db")
    assert json.loads(today.stdout)["baseline"] == f"{name}:1"


def test_adapters_are_started_by_the_target_that_has_them(tmp_path: Path) -> None:
    job = ["--model", "llama-3-8b", "--gpu", "h100-sxm5-80gb", "--gpus", "8", "--global-batch-size", "16"]
    job += ["--seq-length", "4096", "--set", "training.lora_dim=16"]
    refused = CliRunner().invoke(jointopt, ["export", *job, "--plan", "tp=2"])
    assert (refused.exit_code, "--to megatron-bridge starts it" in refused.stderr) == (1, True)
    proposed = run("propose", *job, "--set", "search.pp=[1]")
    assert json.loads(proposed.stdout)["next"]["to"] == "megatron-bridge"
