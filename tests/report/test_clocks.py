import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.report.plans import short_clocks, short_plan


def test_one_clock_on_all_stages_is_one_number() -> None:
    assert short_clocks([1410.0] * 16, 10) == "1410"


def test_runs_of_one_clock_are_counted() -> None:
    assert short_clocks([1410.0] * 14 + [1200.0] * 2, 20) == "1410×14,1200×2"


def test_what_does_not_fit_becomes_lowest_and_highest() -> None:
    assert short_clocks([1395.0, 1410.0, 1200.0, 1305.0], 12) == "1200..1410"


@given(st.lists(st.floats(200, 3000), min_size=1, max_size=64), st.integers(10, 40))
def test_clocks_never_take_more_room_than_given(clocks: list[float], width: int) -> None:
    assert len(short_clocks(clocks, width)) <= width


@given(st.lists(st.sampled_from([855.0, 862.5, 1410.0]), min_size=8, max_size=8))
def test_a_short_plan_reads_back_with_every_clock(clocks: list[float]) -> None:
    job = shipped_job("gpt3-175b-128x8-a100")
    given_plan = parse_plan({"dp": 16, "tp": 8, "pp": 8, "stage_clock_mhz": clocks}, job)
    text = short_plan(given_plan.layouts | {"stage_clock_mhz": given_plan.stage_clock_mhz}, 0)
    again = parse_plan(text, job)
    np.testing.assert_array_equal(again.stage_clock_mhz, given_plan.stage_clock_mhz)
    assert {k: v.item() for k, v in again.layouts.items()} == {k: v.item() for k, v in given_plan.layouts.items()}
