"""A process is known again by host, number and birth, whatever the clock of the machine shows."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from jointopt.core.system import birth_s, is_alive, may_be_alive, this_process


def test_a_process_lives_until_it_has_ended_and_its_number_alone_does_not_identify_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    birth = birth_s(child.pid)
    assert (is_alive(child.pid, birth), is_alive(child.pid, birth - 1.0)) == (True, False)
    child.communicate(b"\n")
    assert not is_alive(child.pid, birth)


def test_births_are_those_of_the_kernel_since_its_start() -> None:
    since_1970 = psutil.Process().create_time() - psutil.boot_time()
    assert abs(birth_s(os.getpid()) - since_1970) < 1.0
    assert birth_s(os.getpid()) < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_processes_of_other_machines_are_taken_to_live() -> None:
    assert may_be_alive(this_process())
    assert may_be_alive(f"elsewhere:1:{birth_s(os.getpid())}")
    assert not may_be_alive(this_process().rpartition(":")[0] + ":1.00")
