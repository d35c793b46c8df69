"""Runs of one plan whose times contradict each other."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from jointopt.runs.checks import contradicting_lines
from jointopt.runs.table import readable_runs

RUN: dict[str, Any] = {
    "model": "llama-2-7b", "gpu": "a100-sxm4-80gb", "num_gpus": 16, "dp": 8, "tp": 2, "clock_mhz": None, "group": "a",
    "seq_length": 4096, "global_batch_size": 512, "framework": "nemo", "iteration_time_s": 40.0, "status": "ok",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"iteration_time_s": 59.0}], ""),
        ([{}, {"iteration_time_s": 61.0, "group": "b"}], "1 plan was run more than once .* (row 1: 40 s, row 3: 61 s)"),
        ([{"iteration_time_s": 9.0}, {"dp": 4, "tp": 4}, {"dp": 4, "tp": 4, "iteration_time_s": 4.0}], "2 plans were"),
        ([{"iteration_time_s": 90.0, "clock_mhz": 1200.0}, {"iteration_time_s": 90.0, "framework_flags": "--x"}], ""),
        ([{"iteration_time_s": -40.0}, {"dp": 4, "tp": 4, "iteration_time_s": -12.0}], ""),
        ([{"iteration_time_s": 90.0, "status": "timeout"}, {"iteration_time_s": None, "status": "oom"}], ""),
    ],
)
def test_times_of_a_plan_more_than_half_as_long_again_are_named(changes: list[dict[str, Any]], words: str) -> None:
    """A clock, an option or another plan is a reason; a run that was ended early states no time of its plan."""
    runs = pd.DataFrame([RUN, *(RUN | change for change in changes)])
    lines = contradicting_lines(runs, readable_runs(runs)[0])
    assert len(lines) == bool(words)
    assert all(part in "".join(lines) for part in words.split(" .* "))
