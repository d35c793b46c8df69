"""No process of a run outlives its tool, whatever shape the program has and whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jointopt.measure.hardware.guard.guarded import _GUARDIAN as GUARDIAN
from jointopt.measure.hardware.guard.guarded import (
    GuardedProgram,
    end_leftover_runs,
    remove_leftover_folders,
    scratch_folder,
)
from jointopt.measure.process import run_program

from .conftest import Bench, alive, eventually

PYTHON = sys.executable
DAEMON = """
import os, time
print(os.getpid(), flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
time.sleep(600)
"""
SHAPES = {
    "forks": ["sh", "-c", "sleep 600 & echo $$ $!; wait"],
    "sh -c": ["sh", "-c", "echo $$; sleep 600; true"],
    "ignores SIGTERM": ["sh", "-c", "trap '' TERM; echo $$; while true; do sleep 1; done"],
    "daemon": [PYTHON, "-c", DAEMON],
    "stopped": ["sh", "-c", "echo $$; kill -STOP $$; sleep 600"],
}
COUNT = {"forks": 2, "daemon": 2}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_killed_tool_leaves_no_process_no_scratch_and_one_record_of_the_ending(bench: Bench, shape: str) -> None:
    tool = bench.start(*SHAPES[shape])
    pids = bench.pids(COUNT.get(shape, 1))
    assert len(bench.scratch()) == len(bench.records()) == 1
    tool.kill()
    tool.wait()
    eventually(lambda: not any(map(alive, pids)) and not bench.scratch())
    (sentence,) = end_leftover_runs()
    assert f"A run of process {tool.pid} " in sentence
    assert "which was killed, was ended at" in sentence
    assert (bench.records(), end_leftover_runs()) == ([], [])


def test_a_tool_that_dies_before_it_hears_that_its_program_has_started_leaves_nothing(tmp_path: Path) -> None:
    (task_out, lifeline), (deaf, answers) = os.pipe(), os.pipe()
    program = ["sh", "-c", f"sleep 600 & echo $$ $! > {tmp_path}/pids; wait"]
    task = {"command": program, "foreground": False, "mark": "m", "linger_s": 0.0, "cwd": None, "scratch": [],
            "restore": None, "record": None, "ignored": [], "tool": 1}  # fmt: skip
    os.close(deaf)  # no process reads an answer
    guardian = subprocess.Popen([PYTHON, "-I", "-S", str(GUARDIAN), str(task_out), str(answers)],
                                pass_fds=(task_out, answers))  # fmt: skip
    os.close(answers)
    os.close(task_out)
    os.write(lifeline, json.dumps(task).encode() + b"\n")
    eventually(lambda: (tmp_path / "pids").is_file() and len((tmp_path / "pids").read_text().split()) == 2)
    os.close(lifeline)
    assert guardian.wait(30) == 0
    assert not any(map(alive, map(int, (tmp_path / "pids").read_text().split())))


def test_a_killed_guardian_takes_the_program_along_and_the_next_start_finds_the_orphans(bench: Bench) -> None:
    tool = bench.start(PYTHON, "-c", DAEMON)
    first, orphan = bench.pids(2)
    guardian = psutil.Process(first).parent()
    os.kill(tool.pid, signal.SIGKILL)
    guardian.kill()
    tool.wait()
    eventually(lambda: not alive(first))
    assert alive(orphan)
    (sentence,) = end_leftover_runs()
    assert sentence.endswith("was ended: none of its processes is left.")
    assert not alive(orphan)


def test_a_guardian_that_is_killed_alone_ends_the_run_as_a_kill_does(tmp_path: Path) -> None:
    program = GuardedProgram([PYTHON, "-c", DAEMON], stdout=(tmp_path / "log").open("w"))
    eventually(lambda: len((tmp_path / "log").read_text().split()) == 2)
    pids = [int(word) for word in (tmp_path / "log").read_text().split()]
    psutil.Process(pids[0]).parent().kill()
    assert program.wait(60) == -signal.SIGKILL
    eventually(lambda: not any(map(alive, pids)))


def test_a_daemon_that_outlives_a_good_end_is_ended_with_the_run(tmp_path: Path) -> None:
    ended = run_program([PYTHON, "-c", DAEMON.replace("sleep(600)", "sleep(1 if os.getppid() > 1 else 600)")],
                        tmp_path / "log", limit_s=60)  # fmt: skip
    assert ended.code == 0
    assert not any(alive(int(pid)) for pid in ended.tail.split())


def test_a_run_that_a_living_tool_watches_is_left_alone(bench: Bench) -> None:
    tool = bench.start("sh", "-c", "echo $$; sleep 600")
    (pid,) = bench.pids(1)
    assert (end_leftover_runs(), alive(pid), len(bench.records())) == ([], True, 1)
    tool.terminate()
    tool.wait()
    eventually(lambda: not alive(pid))


def test_a_record_holds_no_secret_of_the_command_line_and_is_for_its_owner_alone(bench: Bench) -> None:
    words = ["--storage", "postgresql://me:hidden@host/db?password=hidden", "--api-token", "hidden"]
    sys_argv = f"import sys; sys.argv[1:1] = []; sys.argv += {words!r}\n"
    log = str(bench.folder / "log")
    code = sys_argv + (
        "from pathlib import Path; from jointopt.measure.process import run_program\n"
        f"run_program(['sh', '-c', 'echo $$; sleep 2'], Path({log!r}), limit_s=60)"
    )
    tool = psutil.Popen([PYTHON, "-c", code], env=bench.environment)
    bench.pids(1)
    (record,) = bench.records()
    assert "hidden" not in record.read_text()
    assert "postgresql://me:***@host/db?password=***" in record.read_text()
    assert [path.stat().st_mode & 0o777 for path in (record, record.parent, record.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]
    assert tool.wait(60) == 0
    assert bench.records() == []


def test_a_scratch_folder_is_swept_once_its_process_is_dead_and_no_sooner(bench: Bench) -> None:
    (old := bench.folder / "tmp" / "jointopt-old").mkdir()
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    with scratch_folder() as mine:
        os.utime(mine, (hour_ago, hour_ago))
        assert (remove_leftover_folders(), old.exists(), mine.exists()) == (1, False, True)
    assert not mine.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_falls_into_the_start_of_a_run_is_not_lost_in_a_hook(number: int, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from jointopt.measure.hardware.guard.guarded import GuardedProgram; "
        "signal.signal(15, lambda *_: sys.exit(130)); signal.signal(2, lambda *_: sys.exit(130)); "
        f"os.register_at_fork(before=lambda: os.kill(os.getpid(), {number:d})); GuardedProgram(['sleep', '600'])"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    ended = subprocess.run([PYTHON, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")
