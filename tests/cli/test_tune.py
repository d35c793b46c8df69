"""The command around the loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt


def run(*flags: object) -> Result:
    return CliRunner().invoke(jointopt, ["tune", "job.yaml", "--launcher", "replay", *map(str, flags)])


def test_json_holds_every_run_with_its_plan_status_and_results(recorded: Path) -> None:
    result = run("--table", "runs.csv", "--budget", 3, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert [entry["round"] for entry in document["measured"]] == [1, 2, 3]
    assert {"dp", "tp", "pp", "stage_clock_mhz", "status", "iteration_time_s", "energy_j"} <= set(
        document["measured"][0]
    )
    assert len(document["hypervolume"]) == 3
    assert document["stopped"] == "budget"
    assert all(0 <= index < 3 for index in document["front"])


def test_a_tune_for_a_short_training_ends_after_a_run_and_gives_both_figures(recorded: Path) -> None:
    flags = ("--table", "runs.csv", "--budget", 9, "--run-tokens", "1e5")
    document, text = json.loads(run(*flags, "--json").stdout), " ".join(run(*flags, "--storage", "none").stdout.split())
    assert (document["stopped"], len(document["measured"])) == ("converged", 1)
    assert document["next_run"]["worth"] < document["next_run"]["cost"]
    assert document["next_run"]["unit"] == "GPU-hours"
    assert "no run that is left is expected to save what it costs. The most promising run costs" in text
    assert "of the planned training of 100,000 tokens" in text


def test_progress_goes_to_stderr_and_the_table_to_stdout(recorded: Path) -> None:
    result = run("--table", "runs.csv", "--budget", 2, "-v")
    assert "run 1: dp=" in result.stderr
    assert "* " in result.stdout
    assert "The budget is spent." in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_measurements_are_kept_beside_the_studies_by_default(recorded: Path) -> None:
    run("--table", "runs.csv", "--budget", 2, "--storage", "none")
    assert not (recorded / "jointopt.db").exists()
    run("--table", "runs.csv", "--budget", 2)
    assert (recorded / "jointopt.db").exists()


@pytest.mark.parametrize(
    ("columns", "bound", "words"),
    [
        ({}, "iteration_time_s: 5", "breaks iteration_time_s by"),
        ({"status": "failed", "iteration_time_s": None, "notes": "no luck"}, "", "succeeded: failed (no luck)"),
    ],
    ids=["a constraint that no run meets", "all runs failed"],
)
def test_where_no_run_gives_a_plan_to_use_the_reason_is_reported_and_the_document_still_printed(
    recorded: Path, make_runs, columns: dict[str, object], bound: str, words: str
) -> None:
    make_runs(**columns).to_csv(recorded / "runs.csv", index=False)
    with (recorded / "job.yaml").open("a") as job:
        job.write(f"constraints: {{{bound}}}\n")
    result = run("--table", "runs.csv", "--budget", 3, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["front"], len(document["measured"]) > 0) == (1, [], True)
    assert result.stderr.splitlines()[-1] == f"Error: {document['fault']}"
    assert words in document["fault"]


def test_an_interrupt_prints_what_there_is(recorded: Path, interrupt_after) -> None:
    interrupt_after(2)
    result = run("--table", "runs.csv", "--budget", 5, "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["stopped"] == "interrupted"
    assert len(json.loads(result.stdout)["measured"]) == 2


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--budget", 3], 2, "--table"),
        (["--budget", 0, "--table", "runs.csv"], 2, "--budget"),
        (["--budget", 3, "--table", "missing.csv"], 2, "missing.csv"),
        (["--budget", 3, "--table", "other.csv"], 1, "seq_length"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(recorded: Path, make_runs, flags, code, words) -> None:
    make_runs(seq_length=1024).to_csv(recorded / "other.csv", index=False)
    result = run(*flags)
    assert result.exit_code == code
    assert words in result.stderr.splitlines()[-1]
