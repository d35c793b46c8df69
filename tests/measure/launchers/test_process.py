"""Programs are started, watched, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jointopt.core.errors import LauncherError
from jointopt.measure.process import run_program

PYTHON = sys.executable


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_the_exit_code_and_the_end_of_the_log_are_reported(tmp_path: Path) -> None:
    ended = run_program([PYTHON, "-c", "print('so far'); exit(3)"], tmp_path / "log", limit_s=30)
    assert (ended.code, ended.timed_out, ended.tail) == (3, False, "so far\n")


def test_a_program_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    ended = run_program([PYTHON, "-c", "import time; time.sleep(600)"], tmp_path / "log", limit_s=0.5)
    assert ended.timed_out
    assert ended.code == -signal.SIGTERM


def test_a_program_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("jointopt.measure.process._POLITE_S", 0.5)
    deaf = "trap '' TERM; setsid sleep 600 & echo $!; wait"  # of a shell, which begins in milliseconds
    ended = run_program(["sh", "-c", deaf], tmp_path / "log", limit_s=3)
    assert ended.timed_out
    assert not alive(int(ended.tail))


def test_children_that_outlive_a_good_end_are_killed(tmp_path: Path) -> None:
    exit_at_once = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    ended = run_program([PYTHON, "-c", exit_at_once], tmp_path / "log", limit_s=30)
    assert ended.code == 0
    assert not alive(int(ended.tail))


def test_a_program_ends_when_the_tool_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = "from jointopt.measure.process import run_program as r; from pathlib import Path as P; import sys; "
    sleeper = "import os, time; print(os.getpid()); time.sleep(600)"
    run += f"r([sys.executable, '-uc', {sleeper!r}], P({str(log)!r}), limit_s=600)"
    tool = subprocess.Popen([PYTHON, "-c", run])
    while not (log.exists() and log.read_text().strip()):
        time.sleep(0.05)
    os.kill(tool.pid, signal.SIGKILL)
    tool.wait()
    psutil.wait_procs([psutil.Process(int(log.read_text()))] if alive(int(log.read_text())) else [], timeout=20)
    assert not alive(int(log.read_text()))


def test_a_second_interrupt_leaves_no_program_that_ignores_the_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = "from jointopt.measure.process import run_program as r; from pathlib import Path as P; import sys; "
    deaf = (
        "import os, signal, time; signal.signal(15, lambda *_: print('deaf', flush=True)); "
        "print(os.getpid(), flush=True)\nwhile True: time.sleep(1)"
    )
    run += f"r([sys.executable, '-c', {deaf!r}], P({str(log)!r}), limit_s=600)"
    tool = subprocess.Popen([PYTHON, "-c", run], stderr=subprocess.DEVNULL)
    for word in ("\n", "deaf"):
        while not (log.exists() and word in log.read_text()):
            time.sleep(0.05)
        tool.send_signal(signal.SIGINT)
    tool.wait(30)
    assert not alive(int(log.read_text().split()[0]))


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="'no-such-program' cannot be started"):
        run_program(["no-such-program"], tmp_path / "log", limit_s=1)


def test_bytes_that_are_no_text_do_not_hide_the_rest(tmp_path: Path) -> None:
    garbage = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe loss 3')"
    assert run_program([PYTHON, "-c", garbage], tmp_path / "log", limit_s=30).tail.endswith(" loss 3")


def test_programs_count_gpus_as_the_meter_does_unless_the_environment_states_another_order(
    tmp_path: Path, monkeypatch
) -> None:
    program = [PYTHON, "-c", "import os; print(os.environ['CUDA_DEVICE_ORDER'])"]
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert run_program(program, tmp_path / "log", limit_s=30).tail == "PCI_BUS_ID\n"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert run_program(program, tmp_path / "second", limit_s=30).tail == "FASTEST_FIRST\n"
