"""A plan is run by one process at a time, and by none that has not seen its last result; SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from jointopt.runs import reservations
from jointopt.runs.reservations import Reservations

MANY = """
import sys
from jointopt.runs.reservations import Reservations
mine = Reservations(sys.argv[1], "study")
print("ready", flush=True)
sys.stdin.readline()  # all have looked before anybody begins
for plan in range(40):
    if mine.take(f"plan {plan}"):
        print(plan, flush=True)
        mine.end(f"plan {plan}")
"""
DIES = """
import os, sys
from jointopt.runs.reservations import Reservations
assert Reservations(sys.argv[1], "study").take("plan", again=len(sys.argv) > 2)
os._exit(9)
"""


def dies(url: str, *more: str) -> int:
    return subprocess.run([sys.executable, "-c", DIES, url, *more], timeout=60).returncode


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.mark.long
def test_of_eight_processes_one_takes_each_plan(shared_url: str) -> None:
    command = [sys.executable, "-c", MANY, shared_url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(8)]
    assert {process.stdout.readline() for process in processes} == {"ready\n"}
    taken = Counter(line for process in processes for line in process.communicate("go", timeout=120)[0].split())
    assert [process.returncode for process in processes] == [0] * 8
    assert set(taken.values()) == {1}
    assert len(taken) == 40


def test_a_plan_that_was_run_since_the_last_look_is_not_run_again(shared_url: str) -> None:
    first, second = Reservations(shared_url, "study"), Reservations(shared_url, "study")
    assert first.take("plan")
    assert not second.take("plan")
    first.end("plan")
    assert not second.take("plan")
    second.read()  # now it may read the result, and want another
    assert second.take("plan")


def test_a_plan_that_was_given_back_is_free(shared_url: str) -> None:
    first, second = Reservations(shared_url, "study"), Reservations(shared_url, "study")
    first.take("plan")
    first.end("plan", ran=False)
    assert second.take("plan")
    assert Reservations(shared_url, "another job").take("plan")


def test_a_dead_runners_plan_is_taken_once_more_and_no_third_time(shared_url: str) -> None:
    assert dies(shared_url) == 9
    assert dies(shared_url) == 9
    third = Reservations(shared_url, "study")
    assert [one.abandoned for one in third.read().values()] == [True]
    assert not third.take("plan")
    assert third.take("plan", again=True)


def other_machines(url: str, monkeypatch: pytest.MonkeyPatch) -> Reservations:
    """A runner of another machine that holds the plan."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "node-7")
        other = Reservations(url, "study")
        assert other.take("plan")
    return other


def test_a_silent_runner_of_another_machine_loses_its_plan_when_its_lease_is_over(shared_url, monkeypatch) -> None:
    at_s = [0.0]
    monkeypatch.setattr(reservations, "now_s", lambda _: at_s[0])
    monkeypatch.setattr(Reservations, "_renew", lambda _: None)
    other_machines(shared_url, monkeypatch)
    mine = Reservations(shared_url, "study")
    at_s[0] = reservations.LEASE_S - 1.0
    assert not mine.take("plan")
    monkeypatch.setattr(time, "sleep", lambda _: at_s.__setitem__(0, reservations.LEASE_S + 1.0))
    assert mine.wait_for_freed()
    assert mine.take("plan")


def test_a_runner_that_renews_its_reservation_keeps_it(shared_url, monkeypatch) -> None:
    here, at_s = threading.current_thread(), itertools.count(0.0, 0.01)  # this thread's clock; it is renewed at 1 s

    def now_s(_: object) -> float:
        return next(at_s) if threading.current_thread() is here else 1.0

    monkeypatch.setattr(reservations, "LEASE_S", 4.0)
    monkeypatch.setattr(reservations, "now_s", now_s)
    other = other_machines(shared_url, monkeypatch)
    mine = Reservations(shared_url, "study")
    assert not mine.wait_for_freed()
    until = time.monotonic() + 60
    while mine.read()["plan"].silent_s > next(at_s) - 0.9 and time.monotonic() < until:
        time.sleep(0.05)
    at_s = itertools.count(4.1, 0.01)
    assert not mine.take("plan")
    other.close()


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_a_clock_that_is_set_takes_no_plan_from_a_runner_of_this_machine(tmp_path: Path, ahead_s, monkeypatch) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    runner, other = Reservations(url, "study"), Reservations(url, "study")
    assert runner.take("plan")
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + ahead_s)
    assert (other.read()["plan"].runs_elsewhere, other.take("plan")) == (True, False)
