"""``jointopt import --pid``: real processes that these tests start, and what their scripts say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt

SHAPE = "--num-layers 32 --hidden-size 4096 --seq-length 4096 --num-attention-heads 32 --vocab-size 32000"
WORDS = [*SHAPE.split(), "--micro-batch-size", "4", "--global-batch-size", "64", "--tensor-model-parallel-size", "2"]
SLEEPS = "import time; print('on', flush=True); time.sleep(60)"
PROGRAMS = {
    "pretrain_gpt.py": SLEEPS,
    "run_train.py": SLEEPS,
    # two ranks of its own, each with its number
    "torchrun.py": "import os, subprocess, sys\n"
    "ranks = [subprocess.Popen(sys.argv[1:], env=dict(os.environ, RANK=str(n), LOCAL_RANK=str(n), WORLD_SIZE='2',"
    " LOCAL_WORLD_SIZE='2')) for n in (0, 1)]\nfor rank in ranks: rank.wait()",
}
Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program with words in a folder of its own; the number of its process, which ends after the test."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    with ExitStack() as ends:

        def run(*words: str, **variables: str) -> int:
            environment = {name: value for name, value in os.environ.items() if "RANK" not in name} | variables
            process = subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                                       start_new_session=True)  # fmt: skip
            ends.callback(process.wait)
            ends.callback(lambda: os.killpg(process.pid, 9))
            assert process.stdout is not None
            process.stdout.readline()  # the program has begun
            return process.pid

        yield run


def invoke(pid: int, *words: object) -> Result:
    return CliRunner().invoke(jointopt, ["import", "--pid", str(pid), *map(str, words)])


def document(pid: int, *words: object) -> dict[str, Any]:
    answer = invoke(pid, *words, "--gpu", "h100-sxm5-80gb", "--json")
    assert answer.exit_code == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


LAUNCHED = {  # by what, and the variables that it gives a rank, that of all ranks first
    "torchrun": {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "RANK": "3", "LOCAL_RANK": "3"},
    "srun": {"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "3"},
    "mpirun": {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_COMM_WORLD_RANK": "3"},
}


@pytest.mark.parametrize("variables", LAUNCHED.values(), ids=LAUNCHED)
def test_a_rank_that_runs_states_its_plan_by_its_words_and_its_cluster_by_its_environment(
    start: Start, variables: dict[str, str]
) -> None:
    pid = start("pretrain_gpt.py", *WORDS, **variables)
    found = document(pid)
    assert (found["plan"]["micro_batch_size"], found["plan"]["tp"]) == (4, 2)
    assert (found["job_file"]["cluster"]["nodes"], found["job_file"]["cluster"]["gpus_per_node"]) == (2, 8)
    assert found["origins"]["plan.tp"] == f"process {pid}"
    assert found["origins"]["cluster.nodes"] == f"{next(iter(variables))} of process {pid}"


@pytest.mark.parametrize("before", [True, False])
def test_what_runs_counts_and_a_script_that_says_otherwise_is_named_by_its_line(
    start: Start, tmp_path: Path, before: bool
) -> None:
    script = tmp_path / "train.sh"
    words = " ".join(WORDS).replace("--micro-batch-size 4", "--micro-batch-size 2")
    script.write_text(f"cd /job\ntorchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {words} --sequence-parallel\n")
    pid = start("pretrain_gpt.py", *WORDS, **LAUNCHED["torchrun"])
    found = document(pid, script) if before else json.loads(CliRunner().invoke(
        jointopt, ["import", str(script), "--pid", str(pid), "--gpu", "h100-sxm5-80gb", "--json"]).stdout)  # fmt: skip
    assert found["plan"]["micro_batch_size"] == 4
    assert f"train.sh:2 states micro_batch_size 2, the run has 4 (process {pid})" in found["remarks"]
    assert "train.sh:2 states sequence_parallel True, the run has False (default of Megatron-LM)" in found["remarks"]


def test_the_launcher_of_ranks_is_as_good_as_a_rank(start: Start) -> None:
    pid = start("torchrun.py", sys.executable, "pretrain_gpt.py", *WORDS)
    found = document(pid)
    assert found["job_file"]["cluster"]["gpus_per_node"] == 2
    assert found["origins"]["plan.tp"] != f"process {pid}"


def test_a_config_that_a_rank_names_is_read_where_it_runs(start: Start, tmp_path: Path) -> None:
    config = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nseq_len = 8192\nlocal_batch_size = 1\n"
    (tmp_path / "job.toml").write_text(config)
    pid = start(
        "run_train.py", "--job.config_file", "./job.toml", "--training.local_batch_size", "2", **LAUNCHED["torchrun"]
    )
    found = document(pid)
    assert (found["job_file"]["model"], found["plan"]["micro_batch_size"]) == ("llama-3-8b", 2)
    assert f"process {pid}: job.toml is read in {tmp_path.resolve()}, where it runs" in found["remarks"]
    os.utime(tmp_path / "job.toml", (time.time() + 9, time.time() + 9))
    assert any("though it has changed since the start" in remark for remark in document(pid)["remarks"])


def test_what_trains_nothing_or_runs_no_more_is_refused_in_a_sentence(start: Start) -> None:
    pid = start("-c", "import time; print('on', flush=True); time.sleep(60)")
    assert "and what it started run no training that is known; expected a rank of Megatron-LM" in invoke(pid).stderr
    gone = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    assert f"Process {gone.pid} has exited; give the --pid of one that runs." in invoke(gone.pid).stderr
    gone.wait()
    answer = invoke(gone.pid)
    assert (answer.exit_code, f"There is no process {gone.pid} on this machine" in answer.stderr) == (2, True)


def test_a_process_of_another_user_is_refused_in_a_sentence(start: Start) -> None:
    pid, root = (start("pretrain_gpt.py", *WORDS), True) if os.geteuid() == 0 else (1, False)
    if root:
        os.seteuid(65534)
    try:
        answer = invoke(pid)
    finally:
        if root:
            os.seteuid(0)
    assert (answer.exit_code, f"Process {pid} may not be read: run this as root" in answer.stderr) == (2, True)
