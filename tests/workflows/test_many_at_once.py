"""tune and validate with several runs in the queue of a real Slurm: kept one by one, cancelled, found again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from jointopt.runs.store import Store
from tests.slurm_cluster import Cluster, wait_for

JOB = """
model: {num_layers: 24, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16, vocab_size: 50272}
training: {seq_length: 2048, global_batch_size: 256}
cluster: {gpu: a100-sxm4-40gb, nodes: 1, gpus_per_node: 4}
search: {cp: [1], vpp: [1], recompute: [none], clock_mhz: 1410}
objectives: [iteration_time_s]
slurm: {gpu_request: none}
"""
WAIT = "until [ -e go ]; do sleep 0.1; done; "
RESULT = """echo '{"iteration_time_s": 1.5}' > "$0" """
FAIL_FIRST = "if mkdir first 2> /dev/null; then echo no luck; exit 3; fi; "
ONE_AT_A_TIME = """#!/bin/bash
[ -z "$(squeue --noheader)" ] || {{ echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }}
exec {sbatch} "$@"
"""
URL = "sqlite:///jointopt.db"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a command over runs of a few words of shell, in a folder with a job; nothing of it is left in Slurm."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    started: list[subprocess.Popen[str]] = []

    def command(shell: str, *words: str) -> subprocess.Popen[str]:
        program = f"bash -c {shlex.quote(shell.replace('{', '{{').replace('}', '}}'))} {{result}}"
        options = ["--launcher", "slurm", "--command", program, "--set", "poll_s=0.5", "--set", "meter=false", "--json"]
        arguments = [sys.executable, "-m", "jointopt", words[0], "job.yaml", *words[1:], *options]
        with (tmp_path / "log").open("a") as log:
            started.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True))
        return started[-1]

    yield command
    for process in started:
        process.kill()
        process.wait()
    cluster.run("scancel", "--user=root")
    wait_for(lambda: not cluster.jobs() and cluster.states() == {"idle"}, "nodes are idle again")


def running(cluster: Cluster, count: int) -> list[str]:
    """Numbers of the jobs, once so many run and the tool has logged it: a job may begin before its number is noted."""
    wait_for(lambda: cluster.jobs() == ["RUNNING"] * count, f"{count} jobs run")
    numbers = sorted(cluster.run("squeue", "--noheader", "--format=%A").split())
    notes = [f"Slurm job {number} is submitted" for number in numbers]
    wait_for(lambda: all(one in Path("log").read_text() for one in notes), "the tool knows their numbers")
    return numbers


def document(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.communicate(timeout=120)[0])
    return found


def jobs_of(rows: Any) -> list[str]:
    """Numbers of the Slurm jobs that rows of the store name."""
    return sorted(note.partition("Slurm job ")[2].split()[0] for note in rows["notes"])


TWO = ("tune", "--budget", "2", "--batch", "2")


def test_the_runs_of_a_round_are_in_the_queue_together_and_their_states_are_logged(
    start: Start, cluster: Cluster, tmp_path: Path
) -> None:
    process = start(WAIT + RESULT, *TWO)
    numbers = running(cluster, 2)
    log = (tmp_path / "log").read_text()
    assert [log.count(f"Slurm job {number} is submitted") for number in numbers] == [1, 1]
    wait_for(lambda: (tmp_path / "log").read_text().count(" runs on n") == 2, "both are logged as running")
    (tmp_path / "go").touch()
    assert [run["status"] for run in document(process)["measured"]] == ["ok", "ok"]
    log = (tmp_path / "log").read_text()
    assert [log.count(f"Slurm job {number} runs on n") for number in numbers] == [1, 1]


def test_a_run_that_fails_is_stored_while_the_other_goes_on(start: Start, cluster: Cluster, tmp_path: Path) -> None:
    process = start(FAIL_FIRST + WAIT + RESULT, *TWO)
    wait_for(lambda: (tmp_path / "jointopt.db").exists() and len(Store(URL).read()) == 1, "one is stored")
    assert Store(URL).read()["status"].tolist() == ["failed"]
    assert len(running(cluster, 1)) == 1
    (tmp_path / "go").touch()
    found = document(process)
    assert sorted(run["status"] for run in found["measured"]) == ["failed", "ok"]
    assert [found["measured"][i]["status"] for i in found["front"]] == ["ok"]


@pytest.mark.parametrize("words", [TWO, ("validate", "--top", "2")], ids=["tune", "validate"])
def test_a_killed_tool_leaves_its_runs_to_the_same_command(
    start: Start, cluster: Cluster, tmp_path: Path, words: tuple[str, ...]
) -> None:
    first = start(WAIT + RESULT, *words)
    numbers = running(cluster, 2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (tmp_path / "go").touch()
    again = document(start(WAIT + RESULT, *words))
    assert [run["status"] for run in again["measured"]] == ["ok", "ok"]
    assert jobs_of(Store(URL).read()) == numbers


def test_after_a_kill_runs_are_collected_although_what_was_measured_since_would_choose_others(
    start: Start, cluster: Cluster, tmp_path: Path
) -> None:
    words = ("tune", "--budget", "4", "--batch", "3")
    first = start(FAIL_FIRST + WAIT + RESULT, *words)
    wait_for(lambda: (tmp_path / "jointopt.db").exists() and len(Store(URL).read()) == 1, "one is stored")
    numbers = running(cluster, 2)
    first.terminate()
    assert first.wait() == -signal.SIGTERM
    assert "Ended by a signal: runs that had ended are kept" in (tmp_path / "log").read_text()
    (tmp_path / "go").touch()
    again = document(start(FAIL_FIRST + WAIT + RESULT, *words))
    assert any("had begun 2 runs" in note for note in again["notes"])
    assert set(numbers) < set(jobs_of(Store(URL).read()))
    assert (len(again["measured"]), again["spent"]["runs"]) == (4, 4)


def test_after_a_kill_validate_collects_runs_that_it_would_not_choose_any_more(
    start: Start, cluster: Cluster, tmp_path: Path
) -> None:
    first = start(WAIT + RESULT, "validate", "--top", "3")
    numbers = running(cluster, 3)
    first.kill()
    first.wait()
    (tmp_path / "go").touch()
    again = document(start(WAIT + RESULT, "validate", "--top", "1"))
    assert [run["status"] for run in again["measured"]] == ["ok"] * 3
    assert jobs_of(Store(URL).read()) == numbers
    assert all(run["predicted_iteration_time_s_high"] > 0 for run in again["measured"])


def test_ctrl_c_cancels_all_that_is_on_its_way_and_the_budget_is_left(start: Start, cluster: Cluster) -> None:
    process = start(WAIT + RESULT, *TWO)
    running(cluster, 2)
    process.send_signal(signal.SIGINT)
    found = document(process)
    assert (process.returncode, found["stopped"], found["spent"]["runs"]) == (130, "interrupted", 0)
    wait_for(lambda: not cluster.jobs(), "both jobs are gone")
    trials = optuna.load_study(study_name=found["study"], storage=URL).trials
    assert [trial.user_attrs["status"] for trial in trials] == ["interrupted"] * 2


def test_time_in_the_queue_costs_no_gpu_hours(start: Start, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "other.sh").write_text("#!/bin/bash\nsleep 600\n")
    other = cluster.run("sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "other.sh")
    process = start(RESULT, *TWO)
    wait_for(lambda: cluster.jobs().count("PENDING") == 2, "both wait")
    wait_for(lambda: "waits (" in (tmp_path / "log").read_text(), "the reason is logged")
    cluster.run("scancel", other)
    found = document(process)
    assert found["spent"]["gpu_hours"] <= 2 * 4 * 5 / 3600


def test_where_slurm_takes_one_job_at_a_time_the_others_follow(
    start: Start, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cluster.run("which", "sbatch")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(ONE_AT_A_TIME.format(sbatch=real))
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    found = document(start(RESULT, *TWO))
    assert [run["status"] for run in found["measured"]] == ["ok", "ok"]
