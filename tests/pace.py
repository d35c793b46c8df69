"""``--cpu N``: the seconds of processor time of the slowest N tests and files, children included.

On a shared machine they are worth more than `--durations`. A fixture counts for the test that makes it first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

_SEEN = {"cpu_s": 0.0}  # when the last report of this process was made


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", type=int, default=0, metavar="N", help="list the N slowest tests by processor time")


def pytest_runtest_logstart() -> None:
    _SEEN["cpu_s"] = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    report = yield
    now = _cpu_s()
    report.cpu_s, _SEEN["cpu_s"] = now - _SEEN["cpu_s"], now
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    by_test: Counter[str] = Counter()
    by_file: Counter[str] = Counter()
    for report in (report for kind in terminalreporter.stats.values() for report in kind):
        if cpu_s := getattr(report, "cpu_s", 0.0):
            by_test[report.nodeid] += cpu_s
            by_file[report.nodeid.split("::")[0]] += cpu_s
    if count := config.getoption("--cpu"):
        terminalreporter.section(f"{sum(by_test.values()):.0f} s of processor time")
        for name, cpu_s in (*by_file.most_common(count), *by_test.most_common(count)):
            terminalreporter.write_line(f"{cpu_s:8.2f} s  {name}")


def _cpu_s() -> float:
    """User and system time of this process and of its children that have ended."""
    return sum(os.times()[:4])
