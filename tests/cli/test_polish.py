"""``jointopt polish``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt

PLAN = "dp=8 pp=4 mbs=16 clock=1980"


def run(*arguments: str, plan: str = PLAN) -> Result:
    return CliRunner().invoke(jointopt, ["polish", "opt-350m-8x4-gh200", "--plan", plan, *arguments])


def test_it_prints_the_saving_of_a_plan() -> None:
    result = run("--solver", "linear")
    assert result.exit_code == 0
    assert "A clock per pass saves" in result.stdout


def test_lowtime_is_the_solver_by_default() -> None:
    pytest.importorskip("lowtime")
    result = run("--json", "--seconds", "0.5")
    assert json.loads(result.stdout)["solver"] == "lowtime"
    assert "in units of" in result.stderr


def test_json_is_one_document_and_the_zeus_file_has_its_clocks(tmp_path: Path) -> None:
    path = tmp_path / "clocks.py"
    result = run("--solver", "linear", "--json", "--zeus", str(path))
    stages = json.loads(result.stdout)["chosen"]["stages"]
    assert eval(path.read_text()) == [[tuple(step) for step in stage] for stage in stages]
    assert "PointSolution3D" in result.stderr


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    result = run("--solver", "linear", "--zeus", str(tmp_path / "nowhere" / "clocks.py"))
    assert result.exit_code == 2
    assert "--zeus" in result.stderr
    assert "polishing" not in result.stderr


def test_a_plan_without_pipeline_cannot_be_polished() -> None:
    result = run("--solver", "linear", plan="dp=32 mbs=4")
    assert result.exit_code == 1
    assert "pp of 2 or more" in result.stderr
