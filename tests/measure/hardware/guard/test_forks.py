"""No signal is lost in a hook that Python runs at a fork."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from jointopt.measure.hardware.guard.guarded import GuardedProgram

from .conftest import Bench

GUARDED = "from jointopt.measure.hardware.guard.guarded import GuardedProgram; GuardedProgram(['true']).wait(60)"
DCGM = "from jointopt.measure.hardware.meter import SmActivity; SmActivity([0]).stop()"
CODE = """
import os, signal
def hook():
    print("hook", flush=True)
    signal.raise_signal(signal.{signal})
    print(end="")
os.register_at_fork({place}=hook)
try:
    {start}
    print("not heard of")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("start", [GUARDED, DCGM], ids=["guardian", "dcgmi"])
@pytest.mark.parametrize("place", ["before", "after_in_parent"])
def test_a_ctrl_c_in_a_hook_of_a_fork_ends_the_tool_without_a_traceback(start: str, place: str, bench: Bench) -> None:
    (dcgmi := bench.folder / "dcgmi").write_text("#!/bin/sh\nexec sleep 60\n")
    dcgmi.chmod(0o755)
    code = CODE.format(start=start, place=place, signal="SIGINT")
    environment = {**bench.environment, "PATH": f"{bench.folder}:{bench.environment['PATH']}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["hook", "interrupted"], "")
    assert bench.records() == []


def test_a_signal_in_a_fork_is_left_to_a_tool_that_ignores_it(bench: Bench) -> None:
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + CODE.format(
        start=GUARDED, place="before", signal="SIGHUP"
    )
    done = subprocess.run([sys.executable, "-c", code], env=bench.environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")[1], done.stderr) == (0, "not heard of", "")


def test_a_run_may_be_started_by_any_thread(bench: Bench) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: GuardedProgram(["sh", "-c", "exit 3"]).wait(60)).result() == 3
