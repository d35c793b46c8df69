"""Programs in the user's terminal: exit codes and signals go through, and no process stays."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from jointopt.core.errors import LauncherError
from jointopt.measure.process import run_in_foreground
from tests.processes import gone

RUN = """
import sys
from jointopt.measure.process import run_in_foreground
sys.exit(run_in_foreground(sys.argv[2:], float(sys.argv[1])))
"""
SAVES = "trap 'echo saved; exit 5' {}; echo ready; while true; do sleep 0.05; done"
DEAF = "trap '' TERM; sleep 600 & echo $!; wait; while true; do sleep 1; done"


def started(grace_s: float, shell: str) -> tuple[subprocess.Popen[str], str]:
    """The runner of a shell program, and the first line that the program printed."""
    command = [sys.executable, "-c", RUN, str(grace_s), "sh", "-c", shell]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup would have ignored
    )  # fmt: skip
    return program, program.stdout.readline().strip()


@pytest.mark.parametrize(("shell", "code"), [("exit 0", 0), ("exit 77", 77), ("kill -9 $$", 137), ("kill $$", 143)])
def test_the_exit_code_is_that_of_the_program(shell: str, code: int) -> None:
    assert run_in_foreground(["sh", "-c", shell], 1) == code


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(LauncherError, match="'no-such-program' cannot be started"):
        run_in_foreground(["no-such-program"], 1)


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_signals_are_passed_on_and_the_program_may_save_first(name: str) -> None:
    program, _ = started(30, SAVES.format(name))
    program.send_signal(getattr(signal, f"SIG{name}"))
    assert program.wait(20) == 5
    assert program.stdout.read() == "saved\n"


def test_a_program_that_does_not_listen_is_killed_with_its_children_after_the_grace(tmp_path) -> None:
    program, child = started(0.3, DEAF)
    program.terminate()
    assert program.wait(30) == 137
    assert gone(int(child))


def test_a_second_signal_does_not_wait_for_the_grace() -> None:
    program, _ = started(600, "trap 'echo heard' TERM; echo ready; while true; do sleep 0.05; done")
    program.terminate()
    assert program.stdout.readline() == "heard\n"  # two signals that wait are one
    program.terminate()
    assert program.wait(60) == 137
