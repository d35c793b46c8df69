"""Plans as a table that is read again as measurements."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.report.plans import plan_frame
from jointopt.report.proposal import WorkerSummary


def test_each_plan_is_a_row_with_its_words_and_the_clocks_of_its_stages(make_front) -> None:
    found = plan_frame(make_front(3, pp=2) | {"recompute": np.array([0, 1, 2], np.int8), "share": np.eye(3)[:, :2]})
    assert found["stage_clock_mhz"].tolist() == ["1410;1410", "1395;1395", "1380;1380"]
    assert found["recompute"].tolist()[0] == "none"
    assert found["recompute"].nunique() == 3
    assert [list(cell) for cell in found["share"]] == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("size", "shown"), [(0, []), (1, [1410]), (2, [1410, 1395]), (3, [1410, 1395, 1380]), (7, [1410, 1365, 1320])]
)
def test_of_a_shared_study_both_ends_and_the_middle_of_the_front_are_shown(make_front, size, shown) -> None:
    text = WorkerSummary("night", 1200, 3, 4000, make_front(size)).text("sqlite:///runs.db")
    assert "1,200 plans evaluated here, 3 could not be evaluated; the study has 4,000" in text
    assert [clock for clock in range(1300, 1420) if f" {clock} " in text] == sorted(shown)
