"""The user's own command: fields in its words, its result file, and how it fails."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import LauncherError, UsageError
from jointopt.jobs.job import Job
from jointopt.measure.local import CommandLauncher, Template, command_values

PLAN: dict[str, Any] = {
    "dp": 4, "tp": 1, "pp": 2, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 2, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 1, "stage_clock_mhz": "1410;1200",
}  # fmt: skip


def run(job: Job, code: str, *words: str, plan: dict[str, Any] = PLAN, **options: Any) -> Any:
    """The row of a Python program that finds ``{result}`` as its first argument."""
    program = code.replace("{", "{{").replace("}", "}}")
    command = [sys.executable, "-c", f"import sys, json\n{program}", "{result}", *words]
    return CommandLauncher(command, **options).run(job, plan)


def writing(text: str) -> str:
    return f"open(sys.argv[1], 'w').write({text!r})"


def test_fields_of_plan_and_job_stand_in_the_words(job: Job) -> None:
    words = [
        "{dp}",
        "{sequence_parallel}",
        "{stage_clock_mhz}",
        "mbs={micro_batch_size}/{num_micro_batches}",
        "{nodes}",
    ]
    code = "json.dump({'iteration_time_s': 2, 'notes': ' '.join(sys.argv[2:])}, open(sys.argv[1], 'w'))"
    row = run(job, code, *words)
    assert (row["status"], row["iteration_time_s"]) == ("ok", 2.0)
    assert row["notes"].startswith("4 false 1410;1200 mbs=2/32 2")


@given(st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs", "Cc"]), min_size=1))
def test_no_value_is_split_or_read_by_a_shell(value: str) -> None:
    template = Template("train --model {model} --out {result}")
    assert template.fill({"model": value, "result": Path("r")}) == ["train", "--model", value, "--out", "r"]


def test_a_text_is_split_before_values_are_put_in() -> None:
    template = Template("run 'two words' {{dp}} {dp} $(touch x) {result}")
    words = template.fill({"dp": "4; rm -rf /", "result": "a b"})
    assert words == ["run", "two words", "{dp}", "4; rm -rf /", "$(touch", "x)", "a b"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train {micro_batchsize} {result}", "did you mean 'micro_batch_size'"),
        ("train {dp}", r"must hold \{result\}"),
        ("train 'a {result}", "No closing quotation"),
        ("train {dp.real} {result}", "expected a plain field"),
        ("train {dp!r} {result}", "expected a plain field"),
        ("train {dp:03} {result}", "expected a plain field"),
        ("train {} {result}", "expected a plain field"),
        ("train { {result}", "a brace that is meant is written twice"),
        ("", "is empty"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused_before_anything_runs(command: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        CommandLauncher(command)


def test_a_field_that_plan_and_job_leave_blank_is_named(job: Job, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs \{power_limit_w\}"):
        Template("x {power_limit_w} {result}").fill(command_values(job, PLAN, tmp_path))


def test_a_program_that_is_not_there_is_named(job: Job) -> None:
    with pytest.raises(LauncherError, match="'no-such-program' cannot be started"):
        CommandLauncher("no-such-program {result}").run(job, PLAN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("garbage{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[3]", "must hold an object"),
        ('{"iteration_time": 3}', "iteration_time_s is how it is spelled"),
        ('{"energy_j": 5, "iteration_time": 3, "loss": 1}', "iteration_time_s is how it is spelled"),
        ('{"iteration_time_s": NaN}', "iteration_time_s must be a number of seconds; got NaN"),
        ('{"iteration_time_s": null}', "must be a number of seconds; got null"),
        ('{"energy_j": 3}', "iteration_time_s is missing; got energy_j"),
        ('{"iteration_time_s": -3}', "a number above 0"),
        ('{"iteration_time_s": true}', "a number above 0"),
        ('{"iteration_time_s": [1, 2]}', "must be one value"),
        ('{"iteration_time_s": 1, "status": "fine"}', "one of ok, oom, failed, timeout"),
        ('{"iteration_time_s": 1, "energy_j": 1e9}', "at most 2,000 W"),
    ],
)
def test_a_result_that_cannot_be_true_is_a_failed_run_with_the_reason(job: Job, text: str, words: str) -> None:
    row = run(job, writing(text))
    assert row["status"] == "failed"
    assert words in row["notes"]


def test_a_misspelled_result_beside_the_time_is_named(job: Job) -> None:
    row = run(job, writing('{"iteration_time_s": 1, "enrgy_j": 5}'))
    assert row["status"] == "ok"
    assert row["notes"].startswith("not read: enrgy_j (did you mean 'energy_j'?)")


def test_on_several_nodes_a_row_notes_who_set_the_clocks(job: Job) -> None:
    good = writing('{"iteration_time_s": 1}')
    assert "were not set, and the command does not receive them: it has no {stage" in run(job, good)["notes"]
    assert run(job, good, "{stage_clock_mhz}")["notes"] == "clocks of 2 nodes were left to the command"
    without = {name: value for name, value in PLAN.items() if name != "stage_clock_mhz"}
    assert run(job, good, plan=without)["notes"] == ""


def test_the_command_may_report_itself_that_it_ran_out_of_memory(job: Job) -> None:
    assert run(job, writing('{"status": "oom"}') + "; sys.exit(1)")["status"] == "oom"


def test_a_result_before_a_crash_does_not_count(job: Job) -> None:
    row = run(job, writing('{"iteration_time_s": 1}') + "; sys.exit(3)")
    assert (row["status"], row["notes"]) == ("failed", "exit code 3; no log is kept without --logs")


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("pass", "failed", "wrote no result file"),
        ("sys.exit('torch.OutOfMemoryError: CUDA out of memory.')", "oom", "CUDA out of memory"),
        (writing("{") + "; sys.exit('CUDA out of memory')", "oom", "out of memory"),
        ("open('/dev/full', 'w').write('x' * 999999)", "failed", "the disk is full"),
        ("import os; os.abort()", "failed", "exit code -6"),
    ],
)
def test_a_run_that_fails_is_a_row_that_says_how(job: Job, code: str, status: str, words: str) -> None:
    row = run(job, code)
    assert row["status"] == status
    assert words in row["notes"]
    assert row["dp"] == 4


def test_a_disk_that_fills_up_is_named_where_the_log_cannot_record_it(job: Job, small_disk: Path) -> None:
    row = run(job, "print('x' * 100_000, flush=True)", logs=small_disk)
    assert (row["status"], row["notes"].split("; ")[0]) == ("failed", "the disk is full")


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, shutil; shutil.rmtree(os.path.dirname(sys.argv[1]))", "the folder of the run is gone"),
        ("import os; a = os.path.dirname(sys.argv[1]); os.rename(a, a + 'x')", "the folder of the run is gone"),
        ("import os; a = os.path.dirname(sys.argv[1]); os.remove(a + '/log.txt')", "wrote no result file"),
        ("import os; os.mkdir(sys.argv[1])", "wrote no result file"),
        ("import os; os.symlink(sys.argv[1], sys.argv[1])", "wrote no result file"),
        ("import os; a = os.path.dirname(sys.argv[1]) + '/log.txt'; os.remove(a); os.mkdir(a)", "wrote no result file"),
        ("import os; a = os.path.dirname(sys.argv[1]); os.remove(a + '/log.txt'); sys.exit(3)", "exit code 3"),
        ("import os; os.mkfifo(sys.argv[1])", "wrote no result file"),
    ],
)
def test_what_a_program_does_to_the_files_of_its_run_is_its_own_failure(
    job: Job, code: str, words: str, kept: bool, tmp_path: Path
) -> None:
    row = run(job, code, logs=tmp_path / "logs" if kept else None)
    assert (row["status"], row["dp"]) == ("failed", 4)
    assert words in row["notes"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything here")
def test_a_program_that_forbids_to_read_its_folder_has_failed(job: Job) -> None:
    row = run(job, "import os; os.chmod(os.path.dirname(sys.argv[1]), 0)")
    assert (row["status"], "permissions" in row["notes"]) == ("failed", True)


def test_a_command_that_hangs_is_ended_at_its_limit(job: Job) -> None:
    assert run(job, "import time; time.sleep(600)", limit_s=0.5)["status"] == "timeout"


def test_log_and_result_stay_where_a_folder_is_given(job: Job, tmp_path: Path) -> None:
    for _ in range(2):
        run(job, "print('hello');" + writing('{"iteration_time_s": 1}'), logs=tmp_path / "logs")
    folders = sorted((tmp_path / "logs").glob("dp4-tp1-pp2-*"))
    assert [(folder / "log.txt").read_text() for folder in folders] == ["hello\n", "hello\n"]
    assert json.loads((folders[0] / "result.json").read_text()) == {"iteration_time_s": 1}


def test_a_run_that_failed_names_its_log_or_the_option_that_keeps_one(job: Job, tmp_path: Path) -> None:
    kept = run(job, "sys.exit(3)", logs=tmp_path)
    assert kept["notes"] == f"exit code 3; log: {next(tmp_path.glob('*/log.txt'))}"
    assert run(job, "sys.exit(3)")["notes"] == "exit code 3; no log is kept without --logs"
    assert "log" not in run(job, "sys.exit('CUDA out of memory')")["notes"]


def test_gpus_of_this_machine_are_set_and_metered_over_the_window_that_the_command_reports(
    job: Job, driver: Any
) -> None:
    one = replace(job, cluster=replace(job.cluster, nodes=1))
    report = (
        "json.dump({'iteration_time_s': 1, 'measured_s': [t, time.time()], 'iterations': 3}, open(sys.argv[1], 'w'))"
    )
    row = run(
        one, f"import time; t = time.time(); time.sleep(3); {report}", plan=PLAN | {"dp": 2, "stage_clock_mhz": "1410"}
    )
    assert row["energy_j"] > 0, row["notes"]
    assert {call.split()[2] for call in driver.calls() if call.startswith("lock")} == {"1410"}
    assert not driver.held()


def test_a_clock_that_the_gpus_do_not_have_is_a_run_that_failed(job: Job, driver: Any) -> None:
    one = replace(job, cluster=replace(job.cluster, nodes=1))
    row = run(one, "pass", plan=PLAN | {"dp": 2, "stage_clock_mhz": "99999"})
    assert row["status"] == "failed"
    assert "99999" in row["notes"]


@pytest.mark.parametrize("window", ["[2, 1]", "[1]", '"now"', "[1, NaN]", "null"])
def test_a_window_that_makes_no_sense_is_left_out(job: Job, window: str) -> None:
    row = run(job, writing('{"iteration_time_s": 1, "measured_s": ' + window + ', "iterations": 3}'))
    assert row["status"] == "ok"
    assert "measured_s" not in row
