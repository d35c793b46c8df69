"""Runs on a real Slurm of three nodes: queues, failures of every kind, nodes and tools that vanish."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import LauncherError, UsageError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.measure import slurm_commands as control
from jointopt.measure.local import CommandProgram
from jointopt.measure.slurm import SlurmLauncher
from jointopt.runs.rows import is_bounded
from tests.slurm_cluster import NODES, Cluster, wait_for

PLAN: dict[str, Any] = {
    "dp": 8, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 1, "stage_clock_mhz": "1410",
}  # fmt: skip
RESULT = """[ $NODE_RANK -gt 0 ] || echo '{"iteration_time_s": 1.5}' > "$0"; """
Make = Callable[..., SlurmLauncher]
Instead = Callable[[str, str], None]


@pytest.fixture
def job(job: Job) -> Job:
    """Its nodes have no GPU that could be set or metered."""
    return replace(job, slurm=replace(job.slurm, gpu_request="none"))


@pytest.fixture
def make(cluster: Cluster, tmp_path: Path) -> Iterator[Make]:
    """Maker of launchers that run a few words of shell on two nodes; nothing of a test is left in Slurm."""

    def launcher(shell: str = RESULT, **options: Any) -> SlurmLauncher:
        words = ["bash", "-c", shell.replace("{", "{{").replace("}", "}}"), "{result}"]
        return SlurmLauncher(**({"folder": tmp_path / "runs", "command": words, "poll_s": 0.5} | options))

    yield launcher
    cluster.replace_nodes()
    cluster.run("scancel", "--user=root")
    wait_for(lambda: not cluster.jobs() and cluster.states() == {"idle"}, "nodes are idle again")


def in_background(launcher: SlurmLauncher, job: Job) -> tuple[threading.Thread, dict[str, Any]]:
    """A run that goes on while the test looks at it, and the row that it will have filled."""
    row: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: row.update(launcher.run(job, PLAN)), daemon=True)
    thread.start()
    return thread, row


def running(cluster: Cluster, folder: Path) -> str:
    """The number of the job in ``folder``, once its program runs on both nodes (each touches a file there).

    And once the tool has noted it, which a job may begin before.
    """
    wait_for(lambda: len(list(folder.glob("runs/*/*/up*"))) == 2, "both nodes run")
    wait_for(lambda: list(folder.glob("runs/*/*/state.json")), "the number is noted")
    return cluster.run("squeue", "--noheader", "--format=%A")


UP = 'touch "$(dirname "$0")/up$NODE_RANK-${SLURM_RESTART_COUNT:-0}"; '


def test_a_run_on_two_nodes_is_a_row_that_names_its_job(make: Make, job: Job) -> None:
    row = make().run(job, PLAN)
    assert (row["status"], row["iteration_time_s"], row["dp"]) == ("ok", 1.5, 8)
    assert "Slurm job" in row["notes"]
    assert "on n[0-1]" in row["notes"]


def test_requesting_a_plan_twice_runs_it_twice_and_keeps_both_logs(make: Make, job: Job, tmp_path: Path) -> None:
    launcher = make("echo here;" + RESULT)
    first, second = launcher.run(job, PLAN), launcher.run(job, PLAN)
    assert first["notes"] != second["notes"]
    assert len(list(tmp_path.glob("runs/*/[12]/log.txt"))) == 2


@pytest.mark.parametrize(
    ("shell", "status", "words"),
    [
        ("[ $NODE_RANK = 0 ] && sleep 600; sleep 1; exit 3", "failed", "n1: task 1: Exited with exit code 3"),
        ("echo 'torch.OutOfMemoryError: CUDA out of memory.'; exit 1", "oom", "CUDA out of memory"),
        ("echo '{' > \"$0\"", "failed", "no JSON"),
        ("true", "failed", "left no result"),
        ("echo x > /dev/full", "failed", "the disk is full"),
        ("kill -SEGV $$", "failed", "SIGSEGV"),
    ],
    ids=["one rank crashes, the other hangs", "memory", "garbage", "nothing", "disk full", "crash"],
)
def test_a_run_that_fails_is_a_row_that_says_how(make: Make, job: Job, shell: str, status: str, words: str) -> None:
    row = make(shell).run(job, PLAN)
    assert row["status"] == status, row["notes"]
    assert words in row["notes"]


def test_a_run_that_hangs_is_ended_at_its_limit(make: Make, job: Job, cluster: Cluster) -> None:
    row = make("sleep 600", limit_s=2).run(job, PLAN)
    assert row["status"] == "timeout", row["notes"]
    assert "did not end within 2 s" in row["notes"]


class Logged(CommandProgram):
    """A program whose log holds the seconds of its iterations, one a line."""

    def progress(self, job: Job, log: str) -> tuple[list[float], dict[str, float]]:
        return [float(line.removeprefix("s ")) for line in log.splitlines() if line.startswith("s ")], {}


def test_a_run_that_is_behind_is_cancelled_and_stands_as_a_lower_bound(
    make: Make, job: Job, cluster: Cluster, tmp_path: Path
) -> None:
    shell = "[ $NODE_RANK -gt 0 ] || for s in 2.5 2.25 2.75; do echo s $s; done; sleep 600"
    launcher = make(program=Logged(["bash", "-c", shell, "{result}"]), command=None)
    launcher.behind_s = 2.0
    row = launcher.run(job, PLAN)
    assert is_bounded(row), row["notes"]
    assert (row["iteration_time_s"], row["dp"]) == (2.25, 8)
    assert "ended early" in row["notes"]
    assert "Slurm job" in row["notes"]
    wait_for(lambda: not cluster.jobs(), "the job is cancelled")


@pytest.mark.usefixtures("torch")
def test_a_training_that_is_behind_ends_by_itself_on_every_node(cluster: Cluster, tmp_path: Path) -> None:
    small = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "vocab_size": 256}
    training = {"seq_length": 32, "global_batch_size": 8, "dtype": "fp32", "framework": "torchtitan"}
    on = {"gpu": "cpu-core", "nodes": 2, "gpus_per_node": 1, "inter_node_gbytes_per_s": 1}
    whole = {"model": small, "training": training, "cluster": on, "slurm": {"gpu_request": "none"}}
    own = PLAN | {"dp": 2, "zero_stage": 0, "stage_clock_mhz": [3000.0]}
    launcher = SlurmLauncher(tmp_path / "runs", iterations=200, warmup_iterations=1, poll_s=0.5)
    launcher.behind_s = 1e-6
    row = launcher.run(parse_job(whole, "small", tmp_path), own)
    assert is_bounded(row), row["notes"]
    assert row["iteration_time_s"] > 1e-6
    assert "ended early: each of" in row["notes"]
    wait_for(lambda: not cluster.jobs() and cluster.states() == {"idle"}, "the job has left both nodes")


def test_waiting_in_the_queue_is_not_running(make: Make, job: Job, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "other.sh").write_text("#!/bin/bash\nsleep 600\n")
    other = cluster.run(
        "sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", f"{tmp_path}/other.sh"
    )
    thread, row = in_background(make(limit_s=5), job)
    wait_for(lambda: "PENDING" in cluster.jobs(), "the run waits")
    thread.join(8)
    assert thread.is_alive()
    cluster.run("scancel", other)
    thread.join(60)
    assert row["status"] == "ok"
    assert "s in the queue" in row["notes"]


def test_a_job_that_somebody_cancels_is_a_run_that_failed(
    make: Make, job: Job, cluster: Cluster, tmp_path: Path
) -> None:
    thread, row = in_background(make(UP + "sleep 600"), job)
    cluster.run("scancel", running(cluster, tmp_path))
    thread.join(60)
    assert row["status"] == "failed"
    assert "cancelled, not by jointopt" in row["notes"]


def test_a_run_survives_a_node_that_vanishes(make: Make, job: Job, cluster: Cluster, tmp_path: Path) -> None:
    first_try = UP + '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || sleep 600; '
    thread, row = in_background(make(first_try + RESULT), job)
    running(cluster, tmp_path)
    cluster.lose_node(NODES[1])
    thread.join(120)
    assert row.get("status") == "ok", row
    assert "requeued 1 times" in row["notes"]


def test_without_a_requeue_a_vanished_node_is_named(make: Make, job: Job, cluster: Cluster, tmp_path: Path) -> None:
    once = replace(job, slurm=replace(job.slurm, requeue=False))
    thread, row = in_background(make(UP + "sleep 600"), once)
    running(cluster, tmp_path)
    cluster.lose_node(NODES[1])
    thread.join(120)
    assert row.get("status") == "failed", row
    assert "a node failed" in row["notes"]


TOOL = """
import sys, pickle
from pathlib import Path
from jointopt.measure.slurm import SlurmLauncher
job, plan, options = pickle.load(open(sys.argv[1], "rb"))
SlurmLauncher(**options).run(job, plan)
"""


@pytest.fixture
def tool(job: Job, tmp_path: Path) -> Iterator[Callable[[SlurmLauncher, str], subprocess.Popen[bytes]]]:
    """Starts the same run in a process of its own."""
    import pickle

    started: list[subprocess.Popen[bytes]] = []

    def start(launcher: SlurmLauncher, shell: str) -> subprocess.Popen[bytes]:
        words = launcher.program.template.words  # type: ignore[union-attr]
        options = {"folder": launcher.folder, "command": words, "poll_s": 0.5}
        (tmp_path / "call").write_bytes(pickle.dumps((job, PLAN, options)))
        started.append(
            subprocess.Popen([sys.executable, "-c", TOOL, str(tmp_path / "call")], stderr=subprocess.DEVNULL)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_job_outlives_the_tool_and_is_found_again(
    make: Make, job: Job, cluster: Cluster, tmp_path: Path, tool: Any
) -> None:
    launcher = make(UP + f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; " + RESULT)
    process = tool(launcher, "")
    number = running(cluster, tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    thread, row = in_background(launcher, job)
    (tmp_path / "go").touch()
    thread.join(60)
    assert row["status"] == "ok"
    assert f"Slurm job {number} " in row["notes"]


def test_a_job_is_found_by_its_name_where_the_tool_died_before_it_noted_the_number(
    make: Make, job: Job, cluster: Cluster, tmp_path: Path, tool: Any
) -> None:
    launcher = make(UP + f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; " + RESULT)
    process = tool(launcher, "")
    number = running(cluster, tmp_path)
    process.kill()
    process.wait()
    next(tmp_path.glob("runs/*/1/state.json")).unlink()
    thread, row = in_background(launcher, job)
    (tmp_path / "go").touch()
    thread.join(60)
    assert row["status"] == "ok"
    assert len(list(tmp_path.glob("runs/*/*/log.txt"))) == 1
    assert row["notes"] == "" or f"Slurm job {number} " in row["notes"]  # over before it was looked for, or after


def test_a_result_is_fetched_although_the_number_of_its_job_is_lost_and_the_job_over(
    make: Make, job: Job, tmp_path: Path
) -> None:
    make().run(job, PLAN)
    next(tmp_path.glob("runs/*/1/state.json")).unlink()
    row = make().run(job, PLAN)
    assert (row["status"], row["notes"]) == ("ok", "")
    assert len(list(tmp_path.glob("runs/*/*/log.txt"))) == 1


@pytest.fixture
def instead(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a few words of shell in place of a command of Slurm; REAL in them stands for it."""

    def put(command: str, shell: str) -> None:
        tool = tmp_path / "bin" / command
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/bash\n{shell}\n".replace("REAL", f'{cluster.run("which", command)} "$@"'))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    return put


def test_a_controller_that_stays_away_is_an_error_and_the_job_is_found_again_later(
    make: Make, job: Job, cluster: Cluster, tmp_path: Path, instead: Instead, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead("scontrol", f"[ ! -e {tmp_path}/away ] || exit 1; exec REAL")
    monkeypatch.setattr(control, "_PATIENCE_S", 1.0)
    launcher = make(f"touch {tmp_path}/away; until [ -e {tmp_path}/go ]; do sleep 0.1; done; " + RESULT)
    with pytest.raises(LauncherError, match="the same command picks them up"):
        launcher.run(job, PLAN)
    number = cluster.run("squeue", "--noheader", "--format=%A")
    (tmp_path / "away").rename(tmp_path / "go")
    assert f"Slurm job {number} " in launcher.run(job, PLAN)["notes"]


def test_that_slurm_does_not_answer_is_reported_at_once(make: Make, job: Job, tmp_path: Path, instead: Instead) -> None:
    instead("squeue", f"[ -e {tmp_path}/back ] || {{ touch {tmp_path}/back; echo away >&2; exit 1; }}; exec REAL")
    messages: list[str] = []
    (ended,) = make().run_all(job, [PLAN], lambda place, text: messages.append(text))
    assert ended.row["status"] == "ok"
    assert messages[0] == "Slurm does not answer (away); waiting up to 10 min"
    assert len([text for text in messages if "does not answer" in text]) == 1


def test_a_result_that_was_never_fetched_is_not_measured_again(
    make: Make, job: Job, cluster: Cluster, tmp_path: Path, tool: Any
) -> None:
    launcher = make(UP + f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; " + RESULT)
    process = tool(launcher, "")
    running(cluster, tmp_path)
    process.kill()
    process.wait()
    (tmp_path / "go").touch()
    wait_for(lambda: not cluster.jobs(), "the job is over")
    row = launcher.run(job, PLAN)
    assert (row["status"], len(list(tmp_path.glob("runs/*/*/log.txt")))) == ("ok", 1)


def test_ctrl_c_cancels_the_job(make: Make, cluster: Cluster, tmp_path: Path, tool: Any) -> None:
    process = tool(make(UP + "sleep 600"), "")
    running(cluster, tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) != 0
    wait_for(lambda: not cluster.jobs(), "the job is gone")


def interrupt_when_it_runs(place: int, text: str) -> None:
    if " runs on " in text:
        raise KeyboardInterrupt


def test_a_run_requested_while_its_cancelled_job_still_ends_is_a_new_one(make: Make, job: Job) -> None:
    deaf = make("trap '' TERM; while true; do sleep 0.1; done")
    with pytest.raises(KeyboardInterrupt):
        list(deaf.run_all(job, [PLAN], interrupt_when_it_runs))
    row = make().run(job, PLAN)
    assert row["status"] == "ok", row["notes"]


def test_a_job_that_could_not_be_cancelled_is_reported_and_found_again(
    make: Make, job: Job, cluster: Cluster, tmp_path: Path, instead: Instead
) -> None:
    instead("scancel", f"[ ! -e {tmp_path}/away ] || {{ echo 'scancel: error: no answer' >&2; exit 1; }}; exec REAL")
    (tmp_path / "away").touch()
    messages: list[str] = []
    launcher = make(f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; " + RESULT)
    runs = launcher.run_all(
        job, [PLAN], lambda place, text: messages.append(text) or interrupt_when_it_runs(place, text)
    )
    with pytest.raises(KeyboardInterrupt):
        list(runs)
    number = cluster.run("squeue", "--noheader", "--format=%A")
    assert f"Slurm does not cancel it: scancel: error: no answer; scancel {number} does" in messages
    (tmp_path / "away").rename(tmp_path / "go")
    assert f"Slurm job {number} " in launcher.run(job, PLAN)["notes"]


@pytest.mark.parametrize(
    "shell", ["REAL > /dev/null; exit 1", "echo Welcome to the 2nd cluster; exec REAL"], ids=["lost", "banner"]
)
def test_a_job_is_known_whatever_becomes_of_the_answer_of_sbatch(
    make: Make, job: Job, tmp_path: Path, instead: Instead, shell: str
) -> None:
    instead("sbatch", shell)
    row = make().run(job, PLAN)
    assert row["status"] == "ok", row["notes"]
    assert len(list(tmp_path.glob("runs/*/*/log.txt"))) == 1


def test_a_tool_that_is_started_inside_a_job_does_not_hand_on_its_size(
    make: Make, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE", "SLURM_GPUS"):
        monkeypatch.setenv(name, "1")
    row = make().run(job, PLAN)
    assert row["status"] == "ok", row["notes"]


def test_a_site_that_exports_no_environment_runs_all_nodes(make: Make, job: Job) -> None:
    row = make().run(replace(job, slurm=replace(job.slurm, sbatch=("--export=NONE",))), PLAN)
    assert row["status"] == "ok", row["notes"]


FEWER = PLAN | {"dp": 4, "tp": 2}
NOBODY = lambda place, text: None  # noqa: E731


def test_an_interrupt_cancels_what_goes_on_and_keeps_what_has_ended(
    make: Make, job: Job, cluster: Cluster, tmp_path: Path
) -> None:
    one = replace(job, cluster=replace(job.cluster, nodes=1))
    turns = "".join(f"mkdir {tmp_path}/{turn} 2> /dev/null && {{ {does}; exit 0; }}; " for turn, does in TURNS)
    plans = [PLAN | {"dp": 4, "micro_batch_size": size} for size in (1, 2, 4)]
    runs = make(turns.replace("GO", f"{tmp_path}/go")).run_all(one, plans, NOBODY)
    assert next(runs).row["status"] == "ok"
    (tmp_path / "go").touch()
    wait_for(lambda: len(list(tmp_path.glob("runs/*/1/exit.txt"))) == 2, "the second has ended")
    assert runs.throw(KeyboardInterrupt()).row["status"] == "ok"
    with pytest.raises(KeyboardInterrupt):
        next(runs)
    wait_for(lambda: not cluster.jobs(), "the third is gone")


TURNS = (
    ("first", RESULT.rstrip("; ")),
    ("second", "until [ -e GO ]; do sleep 0.1; done; " + RESULT.rstrip("; ")),
    ("third", "sleep 600"),
)


class FullDisk(CommandProgram):
    """The second plan finds no room for its files."""

    def prepare(self, job: Job, plan: Any, folder: Path) -> None:
        if plan["dp"] == FEWER["dp"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().prepare(job, plan, folder)


def test_a_run_that_cannot_be_started_waits_for_those_that_were(make: Make, job: Job) -> None:
    words = make("sleep 2; " + RESULT).program.template.words  # type: ignore[union-attr]
    messages: list[str] = []
    runs = make(command=None, program=FullDisk(words)).run_all(
        job, [PLAN, FEWER], lambda place, text: messages.append(f"{place} {text}")
    )
    assert next(runs).row["status"] == "ok"
    assert any(text.startswith("1 ") and "No space left" in text for text in messages)
    with pytest.raises(LauncherError, match="No space left"):
        next(runs)


def test_a_job_that_slurm_forgot_is_judged_by_what_it_wrote(make: Make, job: Job, tmp_path: Path) -> None:
    make().run(job, PLAN)
    folder = next(tmp_path.glob("runs/*/1"))
    (folder / "state.json").write_text('{"job": 999999}')
    row = make().run(job, PLAN)
    assert (row["status"], row["notes"]) == ("ok", "")


def test_the_controller_may_restart_meanwhile(make: Make, job: Job, cluster: Cluster, tmp_path: Path) -> None:
    thread, row = in_background(make(UP + "sleep 4; " + RESULT), job)
    running(cluster, tmp_path)
    cluster.restart_controller()
    thread.join(60)
    assert row["status"] == "ok"


def test_a_job_that_can_never_start_is_an_error_and_leaves_nothing(make: Make, job: Job, cluster: Cluster) -> None:
    limited = replace(job, slurm=replace(job.slurm, partition="short", time_limit_min=30))
    with pytest.raises(LauncherError, match="PartitionTimeLimit"):
        make().run(limited, PLAN)
    wait_for(lambda: not cluster.jobs(), "the job is gone")


@pytest.mark.parametrize("key", ["partition", "reservation", "constraint"])
def test_what_slurm_refuses_is_reported_in_its_words(make: Make, job: Job, key: str) -> None:
    with pytest.raises(LauncherError, match="Slurm does not take the job"):
        make().run(replace(job, slurm=replace(job.slurm, **{key: "nowhere"})), PLAN)


def test_a_full_shared_folder_is_named(make: Make, job: Job, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        row = make('head -c 1000000 /dev/zero > "$0"', folder=small).run(job, PLAN)
        assert row["status"] == "failed"
        assert "the disk is full" in row["notes"]
        with pytest.raises(LauncherError, match="cannot be written: No space left"):
            make(folder=small).run(job, PLAN | {"dp": 4, "tp": 2})
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.mark.usefixtures("torch")
def test_the_trainer_trains_on_two_nodes(make: Make, job: Job) -> None:
    model = replace(
        job.model, num_layers=2, hidden_size=64, ffn_hidden_size=128, num_attention_heads=4, num_query_groups=4,
        vocab_size=256, head_dim=16,
    )  # fmt: skip
    training = replace(job.training, seq_length=32, global_batch_size=4, dtype="fp32")
    two = replace(job, model=model, training=training, cluster=replace(job.cluster, gpus_per_node=1))
    row = make(command=None).run(two, PLAN | {"dp": 2})
    assert row["status"] == "ok", row["notes"]
    assert row["iteration_time_s"] > 0
    assert "10 iterations" in row["notes"]


def with_gpus(job: Job) -> Job:
    return replace(job, slurm=replace(job.slurm, gpu_request="--gpus-per-node={gpus}"))


def test_gpus_that_cannot_be_set_are_an_error_that_names_the_choice(make: Make, job: Job) -> None:
    with pytest.raises(LauncherError, match=r"On a node: No GPU is found.*--default-clocks"):
        make().run(with_gpus(job), PLAN)


def test_at_default_clocks_a_run_goes_on_and_claims_no_clock(make: Make, job: Job) -> None:
    row = make(default_clocks=True).run(with_gpus(job), PLAN)
    assert (row["status"], row["stage_clock_mhz"]) == ("ok", None)
    assert "at default clocks" in row["notes"]


def test_gpus_of_a_node_are_set_metered_and_put_back(
    make: Make, job: Job, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", driver.environment["LD_LIBRARY_PATH"])
    one = replace(with_gpus(job), cluster=replace(job.cluster, nodes=1))
    row = make("sleep 3; " + RESULT).run(one, PLAN | {"dp": 4})
    assert row["status"] == "ok", row["notes"]
    assert row["peak_power_w"] > 0
    assert {call.split()[2] for call in driver.calls() if call.startswith("lock")} == {"1410"}
    assert not driver.held()


def test_a_machine_that_cannot_submit_is_an_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(LauncherError, match="needs sbatch, which is not on the PATH"):
        SlurmLauncher().candidates(job)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"program": "torchrum"}, "did you mean 'torchrun'"),
        ({"program": "command"}, "--command"),
        ({"program": "megatron"}, "--checkout"),
    ],
)
def test_a_program_is_named_and_has_what_it_needs(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SlurmLauncher(**options)
