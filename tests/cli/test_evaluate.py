"""``jointopt evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt


@pytest.fixture
def runs(synthetic_runs, tmp_path: Path) -> Path:
    synthetic_runs(factor=1.25, noise=0.0).to_csv(tmp_path / "runs.csv", index=False)
    return tmp_path / "runs.csv"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(jointopt, ["evaluate", *map(str, arguments)])


def test_json_is_one_document_with_figures_per_group_and_overall(runs):
    result = run(runs, "--surrogate", "none", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert [group["group"] for group in document["groups"]] == ["batch 256", "batch 512"]
    wanted = {"rows", "median_error", "mean_error", "kendall_tau", "top1_regret", "covered"}
    assert all(wanted <= set(group) for group in document["groups"])
    assert document["overall"]["median_error"] == pytest.approx(0.2)
    assert document["overall"]["rows"] == 20


def test_text_has_a_line_per_source_and_one_for_all(runs):
    table, overall = run(runs, "--surrogate", "none").stdout.split("\n\n")
    assert "median" in table
    assert table.splitlines()[-1].startswith("lab ")
    assert "Overall: rows 20, not predicted 0, median error 2" in overall


def test_a_surrogate_trained_on_the_source_is_better_than_physics(synthetic_runs, trained, tmp_path):
    synthetic_runs("a100", 1.3, seed=21).to_csv(tmp_path / "new.csv", index=False)
    found = [
        json.loads(run(tmp_path / "new.csv", "--surrogate", name, "--json").stdout)["overall"]
        for name in ("none", trained)
    ]
    assert found[1]["median_error"] < 0.05 < found[0]["median_error"]
    assert found[1]["covered"] >= 0.8


@pytest.mark.parametrize(
    ("change", "flags", "words"),
    [
        ({}, ("--surrogate", "defualt"), "did you mean 'default'"),
        ({"iteration_time_s": None}, (), "runs.csv: the table has no measured iteration_time_s"),
        ({"iteration_time_s": "fast"}, (), "runs.csv: row 1 of the table: iteration_time_s"),
        ({"gpu": "abacus"}, (), "runs.csv: no row of the table can be predicted"),
    ],
)
def test_what_cannot_be_judged_is_one_line_and_exit_code_2(synthetic_runs, tmp_path, change, flags, words):
    synthetic_runs(rows=3).assign(**change).to_csv(tmp_path / "runs.csv", index=False)
    result = run(tmp_path / "runs.csv", *flags)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
