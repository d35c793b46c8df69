"""Cells of CSV and Markdown are numbers, text or blank, whatever the document holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.jobs.job import Job
from jointopt.report.comparison import Compared
from jointopt.report.listing import listing
from jointopt.report.proposal import Proposal
from jointopt.report.results import Explanation, Selection
from jointopt.report.scaled import Scaled, Size
from jointopt.report.tables import Result, flat_frame, markdown

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
NESTED = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float | np.generic)


def check_flat(frame: pd.DataFrame) -> None:
    """No cell is a container, and none is the text of one."""
    cells = [value for column in frame for value in frame[column]]
    assert [value for value in cells if not is_plain(value)] == []
    assert [value for value in cells if isinstance(value, str) and value[:2] in ("{'", "['", "('", "[{", "[]")] == []
    assert "nan" not in markdown(frame).split()


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=4), NESTED, max_size=4), max_size=4))
def test_no_cell_of_any_document_is_a_container(rows: list[dict[str, Any]]) -> None:
    frame = flat_frame(rows)
    assert [value for column in frame for value in frame[column] if not is_plain(value)] == []


def test_parts_are_columns_and_lists_are_text_as_tables_have_it() -> None:
    row = {"a": 1, "time_s": {"compute": 0.5, "of": {"x": 2}}, "clocks": [1410.0, 1395.5], "none": []}
    (found,) = flat_frame([row | {"stages": [{"w": 1.0, "on": "a"}, {"w": 2}]}]).to_dict("records")
    assert found == {
        "a": 1, "time_s.compute": 0.5, "time_s.of.x": 2, "clocks": "1410;1395.5", "none": None, "stages.w": "1;2",
        "stages.on": "a;",
    }  # fmt: skip


def every_result(of: type[Result] = Result) -> Iterator[type[Result]]:
    for found in of.__subclasses__():
        yield found
        yield from every_result(found)


def test_every_result_has_the_flat_table_or_is_checked_here(
    job: Job, make_proposal: Callable[..., Proposal], make_explanation: Callable[..., Explanation]
) -> None:
    own = {found for found in every_result() if found.to_frame is not Result.to_frame}
    assert own == {Proposal, Scaled, Selection}  # the last one's is the stored plans', like a proposal's
    plans = (make_explanation().to_dict()["plan"] | {"iteration_time_s": 1.0, "stage_clock_mhz": [1410.0]}, {"dp": 8})
    sizes = (Size(job, plans, {"compute": 1.0}, doubts=("a", "b")), Size(job, reason="it does not fit"))
    check_flat(make_proposal(3).to_frame())
    check_flat(Compared((make_explanation(), make_explanation(violations=("one", "two")))).to_frame())
    check_flat(Scaled(sizes, ()).to_frame())


def test_clusters_side_by_side_have_a_row_for_each_plan_and_one_where_none_fits(job: Job) -> None:
    sizes = (Size(job, ({"dp": 8}, {"dp": 4}), {"compute": 1.0}), Size(job, reason="it does not fit"))
    frame = Scaled(sizes, ()).to_frame()
    assert frame["num_gpus"].tolist() == [8, 8, 8]
    assert frame["dp"].fillna(0).tolist() == [8, 4, 0]
    assert frame["time_s.compute"].notna().tolist() == [True, False, False]
    assert frame["reason"].tolist() == ["", "", "it does not fit"]


@pytest.mark.parametrize("what", ["gpus", "models", "frameworks", "clusters", "jobs"])
def test_listings_of_the_catalogue_are_flat(what: str) -> None:
    check_flat(flat_frame(listing(what)))
