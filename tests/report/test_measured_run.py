"""How real runs are listed."""

from __future__ import annotations

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
