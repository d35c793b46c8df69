"""What every launcher must keep, whatever runs behind it: a job in, plans that may be run, one row per run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from jointopt.core.schema import COLUMNS, STATUSES
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job
from jointopt.measure.base import Launcher, launcher_names, load_launcher, run_all
from jointopt.measure.hardware.guard.guarded import MARK
from jointopt.measure.local import CommandLauncher
from jointopt.measure.replay import ReplayLauncher
from jointopt.measure.slurm import SlurmLauncher
from jointopt.measure.torchrun import TorchrunLauncher
from jointopt.runs.rows import RESULTS
from tests.stand_in.framework import checkout

# what a user's program may look like: larger micro-batches run out of memory
PROGRAM = """
import json, sys
dp, size, result = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if size > 1:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
json.dump(dict(iteration_time_s=8 / dp), open(result, "w"))
"""
COMMAND = [sys.executable, "-c", PROGRAM, "{dp}", "{micro_batch_size}", "{result}"]
REST = {
    "cp": 1, "ep": 1, "vpp": 1, "sequence_parallel": False, "recompute": "none", "zero_stage": 1,
    "stage_clock_mhz": "1410",
}  # fmt: skip
CHECKOUT = Path(__file__).parents[1] / "measure" / "launchers"  # a stand-in for Megatron-LM's script
ANY = [
    {"dp": 8, "tp": 1, "pp": 1, "micro_batch_size": 1, **REST},
    {"dp": 4, "tp": 2, "pp": 1, "micro_batch_size": 64, **REST},
]
TWO = [
    {"dp": 2, "tp": 1, "pp": 1, "micro_batch_size": 1, **REST},
    {"dp": 1, "tp": 2, "pp": 1, "micro_batch_size": 2, **REST},
]
Runs = list[tuple[dict[str, Any], Mapping[str, Any]]]


Setting = tuple[Launcher, Job, list[dict[str, Any]]]  # a launcher, a job for it, and plans to run where it takes any
Maker = Callable[[pytest.FixtureRequest, Job, Path], Setting]
WITH_WORDS = {name: load_model("llama-3-8b") for name in ("torchtitan", "nanotron")}  # shapes that these know


def replay(request: pytest.FixtureRequest, job: Job, folder: Path) -> Setting:
    return ReplayLauncher(request.getfixturevalue("make_runs")()), job, []


def command(request: pytest.FixtureRequest, job: Job, folder: Path) -> Setting:
    return CommandLauncher(COMMAND, limit_s=60), job, ANY


def slurm(request: pytest.FixtureRequest, job: Job, folder: Path) -> Setting:
    request.getfixturevalue("cluster")
    return SlurmLauncher(folder, command=COMMAND, meter=False, poll_s=0.5), job, ANY


def torchrun(request: pytest.FixtureRequest, job: Job, folder: Path) -> Setting:
    request.getfixturevalue("torch")
    return TorchrunLauncher(iterations=1, warmup_iterations=0), small(job), TWO[:1]


def megatron(request: pytest.FixtureRequest, job: Job, folder: Path) -> Setting:
    request.getfixturevalue("torch")
    return load_launcher("megatron", checkout=CHECKOUT, iterations=2, warmup_iterations=1), small(job), TWO


def framework(name: str, **options: Any) -> Maker:
    """Maker of a launcher of that framework, whose program is a stand-in that prints its log."""

    def make(request: pytest.FixtureRequest, job: Job, folder: Path) -> Setting:
        request.getfixturevalue("torch")
        place = checkout(name, folder)
        given = {"script": place / "train.py"} if name == "deepspeed" else {"checkout": place}
        given |= {"folder": folder / "runs"} if "command" in options else {}
        launcher = load_launcher(name, **given, **options, iterations=2, warmup_iterations=1)
        return launcher, replace(small(job), model=WITH_WORDS.get(name, small(job).model)), of_framework(name)

    return make


def of_framework(name: str) -> list[dict[str, Any]]:
    """Plans for two GPUs: one that the framework has words for, and one that it has none for."""
    runs = TWO[0] | {"zero_stage": 2 if name == "torchtitan" else 0}
    return [runs, runs | ({"zero_stage": 1} if name == "torchtitan" else {"schedule": "zbv"})]


def small(job: Job) -> Job:
    """A tiny model on two GPUs of one machine."""
    model = replace(
        job.model, num_layers=2, hidden_size=64, ffn_hidden_size=128, num_attention_heads=4, num_query_groups=4,
        vocab_size=256, head_dim=16,
    )  # fmt: skip
    training = replace(job.training, seq_length=32, global_batch_size=4)
    return replace(job, model=model, training=training, cluster=replace(job.cluster, nodes=1, gpus_per_node=2))


MAKERS: dict[str, Maker] = {
    "replay": replay, "command": command, "slurm": slurm, "torchrun": torchrun, "megatron": megatron,
    "torchtitan": framework("torchtitan"), "nanotron": framework("nanotron"),
    "deepspeed": framework("deepspeed", arguments="--steps 3"),
    "megatron-bridge": framework("megatron-bridge", arguments="--recipe llama3_8b_pretrain_config"),
    "nanotron by command": framework("nanotron", command=["bash", "{start}"], meter=False),
}  # fmt: skip
RUNS: dict[str, Runs] = {}  # by launcher: the plan requested, and the row


@pytest.fixture(params=MAKERS)
def setting(request: pytest.FixtureRequest, job: Job, tmp_path: Path) -> Setting:
    return MAKERS[request.param](request, job, tmp_path)


@pytest.fixture
def runs(setting: Setting, request: pytest.FixtureRequest) -> Runs:
    """Every plan of the setting and its row; real runs take their time, so each is run once for all tests."""
    launcher, job, _ = setting
    name = request.node.callspec.params["setting"]
    if name not in RUNS:
        requested = plans(setting)
        ended = run_all(launcher, job, requested, lambda place, text: None)
        RUNS[name] = [(requested[run.place], run.row) for run in sorted(ended, key=lambda run: run.place)]
    return RUNS[name]


def plans(setting: Setting) -> list[dict[str, Any]]:
    launcher, job, given = setting
    candidates = launcher.candidates(job)
    return given if candidates is None else pd.DataFrame(candidates).to_dict("records")


def test_every_shipped_launcher_is_here() -> None:
    assert {name.partition(" ")[0] for name in MAKERS} == set(launcher_names())


def test_candidates_are_columns_of_a_table_without_results(setting: Setting) -> None:
    launcher, job, _ = setting
    candidates = launcher.candidates(job)
    assert candidates is None or {"dp", "tp", "pp", "micro_batch_size"} <= set(candidates) <= set(COLUMNS)
    assert not set(candidates or ()) & set(RESULTS)
    assert len({len(values) for values in (candidates or {"": []}).values()}) == 1


def test_every_plan_runs_and_is_a_row_with_a_status(runs: Runs) -> None:
    assert runs
    for _, row in runs:
        assert row["status"] in STATUSES
        assert set(RESULTS) <= set(row) <= set(COLUMNS) | {"clock_mhz", "failure"}


def test_a_row_has_the_plan_that_was_requested(runs: Runs) -> None:
    for plan, row in runs:
        assert all(row.get(name, plan[name]) == plan[name] for name in ("dp", "tp", "pp", "micro_batch_size"))


def test_a_run_that_succeeds_has_a_time_and_one_that_fails_has_none(runs: Runs) -> None:
    for _, row in runs:
        assert (row["status"] == "ok") == (pd.notna(row["iteration_time_s"]) and row["iteration_time_s"] > 0)


def test_what_was_not_measured_is_blank_and_never_zero(runs: Runs) -> None:
    for _, row in runs:
        assert all(pd.isna(row[name]) or row[name] > 0 for name in ("energy_j", "avg_power_w", "peak_memory_gib"))


def test_a_run_leaves_no_process(runs: Runs) -> None:
    ours = [p for p in psutil.Process().children(recursive=True) if marked_by_a_run(p)]
    assert not ours


def marked_by_a_run(process: psutil.Process) -> bool:
    try:
        return MARK in process.environ()
    except psutil.Error:
        return False


def test_a_plan_alone_ends_as_it_does_among_others(setting: Setting, runs: Runs) -> None:
    launcher, job, _ = setting
    plan, row = runs[0]
    assert launcher.run(job, plan)["status"] == row["status"]


def test_without_plans_nothing_is_run(setting: Setting) -> None:
    launcher, job, _ = setting
    assert list(run_all(launcher, job, [], lambda place, text: None)) == []


def test_listing_candidates_twice_gives_the_same(setting: Setting, runs: Runs) -> None:
    assert plans(setting) == [plan for plan, _ in runs]
