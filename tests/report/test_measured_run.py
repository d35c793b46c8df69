"""How real runs are listed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jointopt.report.real_runs import run_table
from jointopt.report.results import MeasuredRun

ONES = dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage"), 1)
PLAN = ONES | {"sequence_parallel": False, "recompute": "none", "stage_clock_mhz": [1410.0]}


def table(*changes: dict[str, Any], broken: tuple[str, ...] = ()) -> list[str]:
    row = {"status": "ok"}
    runs = [MeasuredRun(plan=PLAN | change, row=row, predicted={}, broken=broken) for change in changes]
    return run_table(runs, [], {})


@pytest.mark.parametrize(
    ("change", "head"),
    [({"tp": 2}, "dp tp pp mbs clock status"), ({"ep": 4}, "dp tp pp ep mbs clock status"),
     ({"recompute": "full"}, "dp tp pp mbs rc clock status")],
)  # fmt: skip
def test_columns_in_which_runs_differ_are_listed_beside_the_usual_ones(change: dict[str, Any], head: str) -> None:
    assert head in (" ".join(line.split()) for line in table({"dp": 8}, change))


def test_a_run_beyond_a_bound_has_another_status() -> None:
    assert [line.split()[-1] for line in table({"dp": 8}, {}, broken=("energy_j",))[-2:]] == ["over", "over"]


@pytest.mark.parametrize(
    ("low", "high", "inside"),
    [(1.0, 3.0, True), (2.5, 3.0, False), (1.0, 1.5, False), (math.nan, math.nan, None), (2.0, 2.0, True)],
)
def test_a_measurement_is_inside_its_interval_outside_of_it_or_that_is_not_known(
    low: float, high: float, inside: bool | None
) -> None:
    predicted = {"iteration_time_s": 2.5, "iteration_time_s_low": low, "iteration_time_s_high": high}
    run = MeasuredRun(plan=PLAN, row={"status": "ok", "iteration_time_s": 2.0}, predicted=predicted)
    assert run.inside("iteration_time_s") is inside
    assert run.error("iteration_time_s") == pytest.approx(0.25)
    failed = MeasuredRun(plan=PLAN, row={"status": "oom", "iteration_time_s": 2.0}, predicted=predicted)
    assert failed.inside("iteration_time_s") is None
    assert math.isnan(failed.error("iteration_time_s"))
