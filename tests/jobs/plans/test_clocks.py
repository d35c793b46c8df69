"""Stage clocks as arrays and as text."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import PlanError
from jointopt.jobs.plans.text import format_stage_clocks, parse_stage_clocks, stage_clocks_to_text, uniform_stage_clocks

CLOCKS = st.floats(1, 9999, allow_nan=False)


def test_one_clock_fills_the_stages_of_each_plan_and_no_more():
    clocks = uniform_stage_clocks(np.array([1, 3]), np.array([1410.0, 900.0]))
    np.testing.assert_array_equal(clocks, [[1410.0, np.nan, np.nan], [900.0, 900.0, 900.0]])


def test_a_scalar_clock_holds_for_all_plans():
    assert uniform_stage_clocks(np.array([2, 2]), 600.0).tolist() == [[600.0, 600.0]] * 2


def test_no_plans_have_no_stages_and_no_clocks():
    assert uniform_stage_clocks(np.zeros(0, int), 600.0).shape == (0, 0)


@given(st.lists(CLOCKS, max_size=8))
def test_clock_text_reads_back_exactly(clocks):
    assert parse_stage_clocks(format_stage_clocks(clocks)) == clocks


@given(st.lists(st.lists(CLOCKS, min_size=3, max_size=3), max_size=6))
def test_a_column_of_clock_texts_reads_back_exactly(rows):
    assert [parse_stage_clocks(text) for text in stage_clocks_to_text(rows)] == rows


def test_whole_clocks_are_written_without_a_point():
    assert format_stage_clocks([1410.0, 1395.5, math.nan]) == "1410;1395.5"


def test_numbers_blanks_and_lists_are_read_too():
    cells = [1410, "", None, float("nan"), "1410; 1395", [600, 615.0], "999999"]
    assert [parse_stage_clocks(cell) for cell in cells] == [[1410], [], [], [], [1410, 1395], [600, 615], [999999]]


@pytest.mark.parametrize(
    "bad", ["fast", "1410;;1395", "-5", "0", "inf", "1410;nan", True, [1410, None], "1410..1395", "1410x0", "1000000"]
)
def test_what_is_no_clock_is_named_with_its_place(bad):
    with pytest.raises(PlanError, match="stage_clock_mhz of row 2 must be MHz such as 1410"):
        parse_stage_clocks(bad, "stage_clock_mhz of row 2")
