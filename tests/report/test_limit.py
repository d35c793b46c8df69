"""How a chosen plan stands to one of the limits that it had to keep."""

from __future__ import annotations

import pytest

from jointopt.report.selection import Limit, Relaxation

NOTHING, SOME = Relaxation(0, 21.0, 0.0, 0.0), Relaxation(1, 25.0, 3.0, 1.5)


@pytest.mark.parametrize(("held", "room"), [(20.0, 0.0), (15.0, 25.0), (0.0, 100.0), (22.0, -10.0)])
def test_room_is_what_the_held_value_leaves_of_the_bound(held: float, room: float) -> None:
    limit = Limit("energy_j", 20.0, held - 1.0, held, None, True, NOTHING, None)
    assert limit.room_percent == pytest.approx(room)


def test_the_gain_of_five_percent_is_shown_or_else_the_nearest_that_there_is() -> None:
    useful = [Limit("x", 20.0, 1.0, 1.0, None, True, *pair).useful for pair in
              ((NOTHING, SOME), (SOME, NOTHING), (NOTHING, None))]  # fmt: skip
    assert useful == [SOME, SOME, NOTHING]
