"""Tests of many rows: each row is tried, and all that fail are named."""

from __future__ import annotations

import pytest

from tests.each import each


@each("n", range(6))
def even(n: int) -> None:
    if n > 4:
        pytest.skip("too large")
    assert n % 2 == 0


def test_every_row_that_fails_is_named_and_those_that_hold_or_skip_are_not() -> None:
    with pytest.raises(AssertionError, match=r"^2 rows fail:\nn=1: .*\nn=3: ") as error:
        even()
    assert not {"n=0", "n=2", "n=4", "n=5"} & set(str(error.value).replace(":", " ").split())


def test_rows_of_two_names_multiply_and_a_fixture_is_left_to_pytest() -> None:
    seen = []

    @each("a", "xy")
    @each(("b", "c"), [(1, 2), (3, 4)])
    def one(a: str, b: int, c: int, fixture: str) -> None:
        seen.append((a, b, c, fixture))

    one(fixture="f")
    assert seen == [("x", 1, 2, "f"), ("x", 3, 4, "f"), ("y", 1, 2, "f"), ("y", 3, 4, "f")]


def test_a_test_whose_every_row_skips_is_skipped() -> None:
    with pytest.raises(pytest.skip.Exception, match="not here"):
        each("n", [1, 2])(lambda n: pytest.skip("not here"))()
