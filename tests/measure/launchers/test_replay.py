"""Recorded runs as a launcher: which rows belong to a job, and which of them a plan means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import LauncherError, TableError
from jointopt.jobs.job import Job
from jointopt.measure.replay import ReplayLauncher


def size(runs: pd.DataFrame, job: Job) -> int:
    return len(ReplayLauncher(runs).candidates(job)["dp"])


def test_rows_of_another_batch_or_gpu_do_not_belong(make_runs, job: Job) -> None:
    runs = make_runs(group=None)
    other = runs.assign(global_batch_size=512)
    foreign = runs.assign(gpu="h100-sxm5-80gb")
    assert size(pd.concat([runs, other, foreign]), job) == size(runs, job)


def test_a_blank_cell_contradicts_nothing(make_runs, job: Job) -> None:
    runs = make_runs(vocab_size=np.nan, num_attention_heads=np.nan)
    assert size(runs, job) == len(runs)


def test_rows_of_one_group_come_together(make_runs, job: Job) -> None:
    runs = make_runs()
    runs.loc[1:2, "num_attention_heads"] = 32
    assert size(runs, job) == len(runs)
    assert size(runs.drop(columns="group"), job) == len(runs) - 2


def test_the_kernels_of_the_job_are_preferred_where_the_table_has_them(make_runs, job: Job) -> None:
    both = pd.concat([make_runs(attention="flash2"), make_runs(attention="fused")])
    assert size(both, job) == len(both) / 2
    assert size(make_runs(attention="fused"), job) == len(both) / 2


def test_precision_in_free_text_does_not_exclude_a_row(make_runs, job: Job) -> None:
    assert size(make_runs(dtype="bf16 and fp32 master"), job) == len(make_runs())
    with pytest.raises(LauncherError, match="dtype bf16 and the table holds fp16"):
        size(make_runs(dtype="fp16"), job)


def test_runs_in_tf32_are_those_of_a_tf32_job_and_of_no_other(make_runs, job: Job) -> None:
    plain = replace(job, training=replace(job.training, dtype="fp32"))
    tf32 = replace(job, training=replace(plain.training, framework=replace(job.training.framework, tf32=True)))
    both = pd.concat([make_runs(dtype="TF32", group=None), make_runs(dtype="fp32", group=None).iloc[1:]])
    assert [size(both, each) for each in (tf32, plain)] == [len(make_runs()), len(make_runs()) - 1]
    with pytest.raises(LauncherError, match="dtype bf16 and the table holds TF32, fp32"):
        size(both, job)


def test_a_table_of_another_job_is_refused_with_what_differs(make_runs, job: Job) -> None:
    with pytest.raises(LauncherError, match="seq_length 2048 and the table holds 4096"):
        size(make_runs(seq_length=4096), job)


def test_a_table_of_which_no_row_has_all_that_the_job_needs_names_these_columns(make_runs, job: Job) -> None:
    both = pd.concat([make_runs(seq_length=4096, group="a"), make_runs(global_batch_size=64, group="b")])
    with pytest.raises(LauncherError, match=r"none has all of seq_length 2048, global_batch_size \d+; give the table"):
        size(both, job)


def test_rows_of_whole_models_and_of_blocks_are_distinguished_where_every_row_names_its_kind(
    make_runs, job: Job
) -> None:
    runs = make_runs(block="layer", group="layers")
    with pytest.raises(LauncherError):
        size(runs, job)
    assert size(pd.concat([runs, make_runs(block=None)]), job) == len(runs)


def test_of_repeats_the_fastest_is_returned_and_the_plan_counts_once(make_runs, job: Job) -> None:
    runs = make_runs()
    slower = runs.assign(iteration_time_s=runs["iteration_time_s"] * 1.1)
    launcher = ReplayLauncher(pd.concat([slower, runs]))
    assert len(launcher.candidates(job)["dp"]) == len(runs)
    row = launcher.run(job, runs.iloc[0].to_dict())
    assert row["iteration_time_s"] == runs["iteration_time_s"].iloc[0]


def test_a_plan_that_is_no_row_cannot_be_run(make_runs, job: Job) -> None:
    with pytest.raises(LauncherError, match="dp=3"):
        ReplayLauncher(make_runs()).run(job, {"dp": 3, "tp": 1})


def test_a_plan_record_with_a_list_of_clocks_finds_its_row(make_runs, job: Job) -> None:
    runs = make_runs().assign(stage_clock_mhz=lambda t: ["1410;1200" if pp == 2 else "1410" for pp in t["pp"]])
    piped = runs[runs["pp"] == 2].iloc[0]
    plan = {"dp": piped["dp"], "tp": piped["tp"], "pp": 2, "stage_clock_mhz": [1410.0, 1200.0]}
    assert ReplayLauncher(runs).run(job, plan)["pp"] == 2


def test_a_blank_cell_of_a_plan_contradicts_no_row(make_runs, job: Job) -> None:
    runs = make_runs().assign(ep=1.0)
    first = runs.iloc[0]
    row = ReplayLauncher(runs).run(job, {name: first[name] for name in ("dp", "tp", "pp")} | {"ep": None})
    assert [row[name] for name in ("dp", "tp", "pp")] == [first[name] for name in ("dp", "tp", "pp")]


def test_a_table_without_status_is_ok_where_there_is_a_time(make_runs, job: Job) -> None:
    runs = make_runs()
    launcher = ReplayLauncher(runs.drop(columns="status"))
    statuses = [launcher.run(job, plan)["status"] for plan in runs.to_dict("records")]
    assert statuses == ["failed" if status == "oom" else "ok" for status in runs["status"]]


def test_an_unknown_status_is_named_with_its_row(make_runs) -> None:
    runs = make_runs()
    runs.loc[3, "status"] = "meh"
    with pytest.raises(TableError, match=r"Row 4: status must be one of .* got 'meh'"):
        ReplayLauncher(runs)


def test_gpus_go_by_any_name_that_the_catalogue_knows(make_runs, job: Job) -> None:
    runs = make_runs(group="")
    named = runs.assign(gpu="NVIDIA A100-SXM4-40GB")
    assert size(named, job) == len(runs)
    assert size(pd.concat([named, runs]), job) == len(runs)
    plan = named.iloc[1].to_dict()
    assert ReplayLauncher(named).run(job, plan)["gpu"] == job.cluster.gpu.id
    with pytest.raises(LauncherError, match="the table holds TPU v4"):
        size(runs.assign(gpu="TPU v4"), job)


@pytest.mark.parametrize("spell", [str.upper, lambda status: f" {status.title()} "])
def test_statuses_are_read_in_any_case_and_a_blank_one_follows_from_the_time(make_runs, job: Job, spell) -> None:
    runs = make_runs()
    spelled = runs.assign(status=runs["status"].map(spell))
    spelled.loc[spelled["iteration_time_s"].notna(), "status"] = None
    launcher = ReplayLauncher(spelled)
    assert [launcher.run(job, p)["status"] for p in runs.to_dict("records")] == runs["status"].tolist()


def test_a_file_that_is_no_table_of_runs_is_refused_by_its_name(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\ntorchrun train.py\n")
    with pytest.raises(TableError, match=r"train\.sh: the table has no column of a measurement table"):
        ReplayLauncher(script)
