"""``--plan``: a plan is words, JSON, or a row of a file that another command wrote."""

from __future__ import annotations

import json
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
