"""How real runs are listed."""

from __future__ import annotations

from typing import Any

from jointopt.report.results import MeasuredRun
from jointopt.report.runs_text import plan_columns
from jointopt.report.table import lay_out

ONES = dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage"), 1)
PLAN = ONES | {"sequence_parallel": False, "recompute": "none", "stage_clock_mhz": [1410.0]}


def head(*changes: dict[str, Any]) -> list[str]:
    runs = [MeasuredRun(plan=PLAN | change, row={"status": "ok"}, predicted={}) for change in changes]
    return lay_out(plan_columns(runs))[0].split()


def test_degrees_beyond_the_usual_three_are_listed_where_any_run_has_them() -> None:
    assert head({"dp": 8}, {"tp": 2})[:4] == ["dp", "tp", "pp", "mbs"]
    assert head({"dp": 8}, {"ep": 4})[:5] == ["dp", "tp", "pp", "ep", "mbs"]
    assert head({"cp": 2}, {"vpp": 2})[:5] == ["dp", "tp", "pp", "cp", "vpp"]
