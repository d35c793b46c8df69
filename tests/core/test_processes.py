"""A process is known again by host, number and birth, whatever the clock of the machine shows."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from jointopt.core.system import born, lives, may_live, this_process


def test_a_process_lives_until_it_has_ended_and_its_number_alone_does_not_identify_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    birth = born(child.pid)
    assert (lives(child.pid, birth), lives(child.pid, birth - 1.0)) == (True, False)
    child.communicate(b"\n")
    assert not lives(child.pid, birth)


def test_births_are_those_of_the_kernel_since_its_start() -> None:
    since_1970 = psutil.Process().create_time() - psutil.boot_time()
    assert abs(born(os.getpid()) - since_1970) < 1.0
    assert born(os.getpid()) < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_processes_of_other_machines_are_taken_to_live() -> None:
    assert may_live(this_process())
    assert may_live(f"elsewhere:1:{born(os.getpid())}")
    assert not may_live(this_process().rpartition(":")[0] + ":1.00")
