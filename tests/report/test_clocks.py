from hypothesis import given
from hypothesis import strategies as st

from jointopt.report.clocks import short_clocks


def test_one_clock_on_all_stages_is_one_number() -> None:
    assert short_clocks([1410.0] * 16, 10) == "1410"


def test_runs_of_one_clock_are_counted() -> None:
    assert short_clocks([1410.0] * 14 + [1200.0] * 2, 20) == "1410×14,1200×2"


def test_what_does_not_fit_becomes_lowest_and_highest() -> None:
    assert short_clocks([1395.0, 1410.0, 1200.0, 1305.0], 12) == "1200..1410"


@given(st.lists(st.floats(200, 3000), min_size=1, max_size=64), st.integers(10, 40))
def test_clocks_never_take_more_room_than_given(clocks: list[float], width: int) -> None:
    assert len(short_clocks(clocks, width)) <= width
