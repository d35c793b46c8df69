"""Guardians and records where something fails: nothing is left open, and a sentence has what could not be done."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jointopt.core.errors import LauncherError
from jointopt.measure.hardware.guard import guarded
from jointopt.measure.hardware.guard.guarded import _GUARDIAN as GUARDIAN
from jointopt.measure.hardware.guard.guarded import GuardedProgram, boot_id, remove_leftover_folders, state_folder

from .conftest import Bench, alive


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def a_record(name: str = "", **changes: object) -> Path:
    """The record of a run whose tool is dead."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    mark = "0" * 32
    file = state_folder("runs") / (name or f"{socket.gethostname()}-{mark}.json")
    content = {"mark": mark, "command": "tune", "tool": ended.pid, "born_s": 0.0, "boot": boot_id(), "left": []}
    file.write_text(json.dumps(content | changes))
    return file


def test_a_program_that_cannot_be_started_leaves_no_record_and_nothing_open(bench: Bench) -> None:
    before = descriptors()
    with pytest.raises(LauncherError, match="'no-such-program' cannot be started: No such file or directory"):
        GuardedProgram(["no-such-program"])
    assert (descriptors(), bench.records()) == (before, [])


def test_a_guardian_that_cannot_be_started_leaves_no_record_and_nothing_open(bench: Bench, monkeypatch) -> None:
    before = descriptors()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LauncherError, match="guardian of a run cannot be started: No such file or directory"):
        GuardedProgram(["true"])
    assert (descriptors(), bench.records()) == (before, [])


def test_where_no_record_can_be_written_the_run_is_guarded_all_the_same(bench: Bench, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc")
    program = GuardedProgram(["sh", "-c", "exit 3"])
    assert program.wait(None) == 3
    program.signal(signal.SIGTERM)  # one that has ended takes no orders
    program.end(1.0)
    program.kill()
    assert program.code == 3


def test_a_program_ends_in_its_own_time_or_at_once_as_the_tool_says() -> None:
    patient, other = (GuardedProgram(["sleep", "600"]) for _ in range(2))
    assert patient.wait(0.05) is None
    patient.end(30.0)
    other.kill()
    assert (patient.code, other.code) == (-signal.SIGTERM, -signal.SIGKILL)


def test_what_outlives_a_program_of_the_terminal_may_save_in_its_time(tmp_path: Path) -> None:
    saves = f"trap 'sleep 0.2; echo saved > {tmp_path}/end; exit' TERM"
    child = f"{saves}; echo $$ > {tmp_path}/pid; while true; do sleep 0.02; done"
    shell = f'sh -c "$0" & while [ ! -s {tmp_path}/pid ]; do sleep 0.02; done'
    program = GuardedProgram(["sh", "-c", shell, child], foreground=True, linger_s=20.0)
    assert program.wait(60) == 0
    assert (tmp_path / "end").read_text() == "saved\n"
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("order", [b"kill\n", b"end 0.2\n", b"signal 9\n", b""])
def test_without_a_control_group_and_any_record_a_guardian_ends_its_program(order: bytes, tmp_path: Path) -> None:
    (task_out, lifeline), (heard, answers) = os.pipe(), os.pipe()
    program, gone = ["sh", "-c", "trap '' TERM; sleep 600"], str(tmp_path / "gone.json")
    restore = [shutil.which("touch"), f"{tmp_path}/restored"]
    task = {"command": program, "foreground": False, "mark": "no/group", "linger_s": 0.0, "cwd": str(tmp_path),
            "scratch": [], "restore": restore, "record": gone, "ignored": [], "tool": 1}  # fmt: skip
    command = [sys.executable, "-I", "-S", str(GUARDIAN), str(task_out), str(answers)]
    guardian = subprocess.Popen(command, pass_fds=(task_out, answers))
    os.close(task_out)
    os.close(answers)
    os.write(lifeline, json.dumps(task).encode() + b"\n")
    pid = json.loads(os.read(heard, 999))["pid"]
    os.write(lifeline, order) if order else os.close(lifeline)
    assert guardian.wait(60) == 0
    assert (alive(pid), (tmp_path / "restored").exists()) == (False, not order)  # by the guardian of a dead tool alone
    assert not Path(gone).exists()


def test_a_task_that_is_cut_off_starts_nothing() -> None:
    (task_out, lifeline), (_, answers) = os.pipe(), os.pipe()
    command = [sys.executable, "-I", "-S", str(GUARDIAN), str(task_out), str(answers)]
    guardian = subprocess.Popen(command, pass_fds=(task_out, answers))
    os.write(lifeline, b'{"command": ["sh"')
    os.close(lifeline)
    os.close(task_out)
    assert guardian.wait(60) == 0


def test_processes_that_a_guardian_could_not_end_are_named_with_their_owner(bench: Bench) -> None:
    file = a_record(ended_s=time.time(), left=[os.getpid(), 2**22 + 1])
    (sentence,) = guarded.end_leftover_runs()
    assert f"has left processes that cannot be ended: {os.getpid()} of " in sentence
    assert not file.exists()


def test_a_guardian_that_is_still_at_work_is_waited_for_but_not_for_ever(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(guarded, "_BEING_ENDED_S", 0.2)
    with a_record().open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert (guarded.end_leftover_runs(), len(bench.records())) == ([], 1)
    assert len(guarded.end_leftover_runs()) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"mark": 1}', "\x00"])
def test_a_record_that_is_none_and_those_of_other_machines_are_left_alone(content: str, bench: Bench) -> None:
    a_record().write_text(content)
    a_record(f"another-{'1' * 32}.json")
    assert (guarded.end_leftover_runs(), len(bench.records())) == ([], 2)


def test_folders_of_others_and_new_ones_are_not_swept(bench: Bench) -> None:
    (target := bench.folder / "kept").mkdir()
    (bench.folder / "tmp" / "jointopt-link").symlink_to(target)
    (bench.folder / "tmp" / "jointopt-file").touch()
    (bench.folder / "tmp" / "jointopt-new").mkdir()
    assert (remove_leftover_folders(), len(bench.scratch())) == (0, 3)
    assert target.is_dir()


def test_a_folder_of_state_that_others_could_read_is_closed(bench: Bench) -> None:
    state_folder("runs").chmod(0o755)
    assert state_folder("runs").stat().st_mode & 0o777 == 0o700
