"""Dask's workers evaluate plans while one process keeps the study; a lost worker or coordinator loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest

import jointopt
from jointopt.core.errors import UsageError
from jointopt.workflows.work import work
from tests.processes import gone
from tests.slurm_cluster import Cluster, wait_for

JOB = "opt-350m-2x4-a100"
SLURM_WORKERS = int(os.environ.get("SLURM_WORKERS", "6"))  # 16 by hand: docs/reliability.md
# every call is written down as it begins and as it ends, with the process that it is made in
SIMULATOR = """
import os, time
def run(job, plans):
    name = " ".join(str(plans[key][0]) for key in sorted(plans))
    log = open("calls", "a", buffering=1)
    log.write(f"begun|{os.getpid()}|{name}\\n")
    time.sleep(0.5)
    log.write(f"ended|{os.getpid()}|{name}\\n")
    return {"iteration_time_s": 2.0 / plans["tp"], "energy_j": 100.0 * plans["tp"]}
"""


@pytest.fixture
def url(dask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database in a working directory that has a slow simulator."""
    (tmp_path / "a_slow_simulator.py").write_text(SIMULATOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"sqlite:///{tmp_path / 'shared.db'}"


def calls(word: str) -> list[tuple[int, str]]:
    """The process and the plan of all calls that have begun or ended."""
    lines = Path("calls").read_text().splitlines() if Path("calls").exists() else []
    return [(int(pid), plan) for what, pid, plan in (line.split("|") for line in lines) if what == word]


def coordinator(url: str, trials: int, *more: str) -> subprocess.Popen[str]:
    """`jointopt work` with three workers, in a process of its own."""
    words = [
        "work",
        JOB,
        "--storage",
        url,
        "--evaluate",
        "a_slow_simulator:run",
        "--batch",
        "1",
        "--trials",
        str(trials),
    ]
    return subprocess.Popen([sys.executable, "-m", "jointopt", *words, "--workers", "3", "--lease", "2", *more],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip


def has_begun(count: int) -> None:
    """Wait for so many calls."""
    until = time.monotonic() + 120
    while len(calls("begun")) < count and time.monotonic() < until:
        time.sleep(0.05)


def answered_once_without(lost: set[int]) -> bool:
    """Whether no plan was answered twice by processes other than ``lost``, whose last answer may not have arrived."""
    return max(Counter(plan for pid, plan in calls("ended") if pid not in lost).values()) == 1


def finished(url: str) -> Counter[str]:
    """States of the trials of the only study."""
    (name,) = optuna.get_all_study_names(url)
    return Counter(trial.state.name for trial in optuna.load_study(study_name=name, storage=url).trials)


def test_a_lost_worker_costs_nothing_but_its_call(url: str) -> None:
    tool = coordinator(url, 24)
    has_begun(6)
    lost = calls("begun")[-1][0]
    os.kill(lost, signal.SIGKILL)
    output = tool.communicate(timeout=300)[0]
    assert (tool.returncode, finished(url)) == (0, Counter(COMPLETE=24)), output
    assert len({plan for _, plan in calls("ended")}) == 24
    assert answered_once_without({lost})
    assert len({pid for pid, _ in calls("begun")}) >= 3


def test_a_killed_coordinator_takes_its_workers_along_and_the_next_goes_on_from_the_study(url: str) -> None:
    first = coordinator(url, 20)
    has_begun(7)
    first.kill()
    first.communicate()
    workers = {pid for pid, _ in calls("begun")}
    before = finished(url)["COMPLETE"]
    second = coordinator(url, 20)
    output = second.communicate(timeout=300)[0]
    assert (second.returncode, finished(url)) == (0, Counter(COMPLETE=20)), output
    assert len(calls("begun")) <= 20 + 2 * 3  # what was on its way is evaluated again, nothing else
    assert before > 0
    assert gone(*workers)


def test_workers_on_three_nodes_of_slurm_of_which_two_are_killed_lose_nothing(cluster: Cluster, url: str) -> None:
    tool = coordinator(url, 3 * SLURM_WORKERS, "--dask", "slurm", "--workers", str(SLURM_WORKERS))
    while len({pid for pid, _ in calls("begun")}) < SLURM_WORKERS and tool.poll() is None:
        time.sleep(0.1)
    begun = calls("begun")  # before those that have ended, or one process may seem to be in two calls
    ended = {plan for _, plan in calls("ended")}
    lost = [pid for pid, plan in begun if plan not in ended][:2]
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    output = tool.communicate(timeout=400)[0]
    assert (tool.returncode, finished(url)) == (0, Counter(COMPLETE=3 * SLURM_WORKERS)), output
    assert answered_once_without(set(lost))
    wait_for(lambda: cluster.jobs() == [], "no job is left")
    assert [file.name for file in Path().glob(".*")] == []  # no key


def test_what_cannot_be_shared_out_is_refused_in_a_sentence(url: str) -> None:
    job = jointopt.load_job(JOB)
    for options, words in (
        ({"workers": 2}, "name one"),
        ({"dask": "slurm", "evaluate": "a_slow_simulator:run"}, "how many jobs with --workers"),
        ({"dask": "nowhere", "evaluate": "a_slow_simulator:run"}, "no scheduler answers"),
        ({"workers": 2, "evaluate": "a_slow_simulator:walk"}, "no function 'walk'"),
    ):
        with pytest.raises(UsageError, match=words):
            work(job, url, trials=4, **options)
