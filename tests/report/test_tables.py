import os
import pty
import sys
import termios
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.report.tables import (
    ENERGY_UNITS,
    TIME_UNITS,
    TextColumn,
    equal_runs,
    figure,
    fit_columns,
    format_numbers,
    format_values,
    lay_out,
    line_width,
    paragraphs,
    unit_of,
)


def test_numbers_align_right_and_words_left() -> None:
    lines = lay_out([TextColumn("name", ["a", "long one"], left=True), TextColumn("J", ["1", "100"])])
    assert lines == ["name        J", "a           1", "long one  100"]


def test_what_rounds_to_nothing_has_no_minus_sign() -> None:
    assert format_values([-0.04, -0.06, None], "+.1f") == ["+0.0", "-0.1", "-"]
    assert format_values([-0.4, -1234.0], ",.0f") == ["0", "-1,234"]
    assert figure(-1e-9) == "0"


def test_spare_columns_go_first_to_last_until_the_table_fits() -> None:
    columns = [TextColumn("a", ["1"]), TextColumn("bbbb", ["2"], spare=True), TextColumn("c", ["3"], spare=True)]
    assert [column.header for column in fit_columns(columns, 10, " ")] == ["a", "bbbb", "c"]
    assert [column.header for column in fit_columns(columns, 7, " ")] == ["a", "c"]
    assert [column.header for column in fit_columns(columns, 1, " ")] == ["a"]


def test_a_header_of_two_lines_lifts_the_others_to_two_lines() -> None:
    lines = lay_out([TextColumn("dp", ["1"]), TextColumn("time\ns", ["2.5"])])
    assert lines == ["dp  time", "       s", " 1   2.5"]


def test_numbers_share_the_decimals_that_the_scale_needs() -> None:
    assert format_numbers([1.23456, 12.3], scale=1.2) == ["1.235", "12.300"]
    assert format_numbers([1.23456, 12345.6], scale=1.2) == ["1.2", "12345.6"]
    assert format_numbers([12345.6], scale=12345.6) == ["12346"]
    assert format_numbers([float("nan"), 0.0], scale=0.0) == ["-", "0"]


def test_the_unit_is_the_largest_that_leaves_one_or_more() -> None:
    assert unit_of(0.5, TIME_UNITS) == (1e-3, "ms")
    assert unit_of(1.0, TIME_UNITS) == (1.0, "s")
    assert unit_of(2.5e6, ENERGY_UNITS) == (1e6, "MJ")
    assert unit_of(1e-9, ENERGY_UNITS) == (1.0, "J")


@given(st.lists(st.text("abc", min_size=1, max_size=12), min_size=1, max_size=60))
def test_a_wrapped_sentence_keeps_its_words_and_fits(words: list[str]) -> None:
    lines = paragraphs([" ".join(words)])
    assert " ".join(lines).split() == words
    assert max(map(len, lines)) <= 100


def test_a_number_of_a_sentence_has_four_digits_or_all_whole_ones() -> None:
    numbers_of_sentences = [1234567.8, 1000.0, 250.0, 7.2, 17.91234, 0.01234567, 0.0, -3.14159]
    assert [figure(number) for number in numbers_of_sentences] == [
        "1,234,568", "1,000", "250", "7.2", "17.91", "0.01235", "0", "-3.142",
    ]  # fmt: skip


@given(st.lists(st.sampled_from("ab"), max_size=20))
def test_runs_of_equal_neighbours_cover_every_position_once(keys: list[str]) -> None:
    runs = equal_runs(keys)
    assert [i for run in runs for i in run] == list(range(len(keys)))
    assert all(len({keys[i] for i in run}) == 1 for run in runs)
    assert all(keys[one[-1]] != keys[two[0]] for one, two in pairwise(runs))


@pytest.mark.parametrize(("columns", "width"), [(40, 60), (80, 80), (200, 100)])
def test_lines_are_as_wide_as_the_terminal_up_to_100(monkeypatch: pytest.MonkeyPatch, columns: int, width: int) -> None:
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (50, columns))
    with os.fdopen(inside, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert line_width(100) == width
    os.close(terminal)
