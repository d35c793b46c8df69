"""How a chosen plan stands to one of the limits that it had to keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.report.selection import Limit, Relaxation, Selection, _limit_table, _remarks

LAYOUT = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage")

NOTHING, SOME = Relaxation(0, 21.0, 0.0, 0.0), Relaxation(1, 25.0, 3.0, 1.5)


@pytest.mark.parametrize(("held", "room"), [(20.0, 0.0), (15.0, 25.0), (0.0, 100.0), (22.0, -10.0)])
def test_room_is_what_the_held_value_leaves_of_the_bound(held: float, room: float) -> None:
    limit = Limit("energy_j", 20.0, held - 1.0, held, None, True, NOTHING, None)
    assert limit.room_percent == pytest.approx(room)


def test_the_gain_of_five_percent_is_shown_or_else_the_nearest_that_there_is() -> None:
    useful = [Limit("x", 20.0, 1.0, 1.0, None, True, *pair).useful for pair in
              ((NOTHING, SOME), (SOME, NOTHING), (NOTHING, None))]  # fmt: skip
    assert useful == [SOME, SOME, NOTHING]


def test_a_limit_that_binds_says_by_how_much_it_is_relaxed_and_what_that_buys(job: Job) -> None:
    plans: Columns = {name: np.ones(2, np.int64) for name in LAYOUT if name != "dp"} | {"dp": np.full(2, 8)}
    plans |= {"sequence_parallel": np.zeros(2, bool), "recompute": np.zeros(2, np.int8)}
    plans |= {"iteration_time_s": np.array([2.0, 2.4]), "energy_j": np.array([4e3, 3e3])}
    plans |= {
        "avg_power_w": np.full(2, 3e2),
        "peak_memory_gib": np.full(2, 20.0),
        "stage_clock_mhz": np.full((2, 1), 1410.0),
    }
    limit = Limit("iteration_time_s", 2.0, 1.9, 1.95, 2.1, True, Relaxation(1, 2.5, 1e3, 25.0), None)
    one = Selection("made up", "tiny", job, plans, 0, "energy", "energy_j", "", 1, False, (limit,), (0, 1), False)
    head, units, line = (row.split() for row in _limit_table(one, {"a": 1}))
    assert head == ["limit", "at", "most", "is", "room", "binds", "relaxed", "by", "less", "energy", "row"]
    assert (units, line) == (
        ["%", "to", "%", "%"],
        ["iteration_time_s", "2", "1.9", "2.5", "yes", "2.5", "25.0", "25", "a"],
    )
    (over,) = [text for text in _remarks(one) if "90 % interval" in text]
    assert over.startswith("The 90 % interval of iteration_time_s goes beyond the limit")
    assert not [text for text in _remarks(replace(one, limits=(replace(limit, high=1.99),))) if "90 %" in text]
