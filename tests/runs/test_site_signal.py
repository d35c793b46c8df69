"""The signal of a site: what a table of it must have, and what stands in for what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jointopt.core.errors import TableError
from jointopt.runs.site_signal import read_signal

REFUSED = {
    "time_s,limit_w\n0,4\n9,4": "limit_w (did you mean 'limit_kw'?); expected time_s and one of",
    "seconds,limit_kw\n0,4\n9,4": "expected time_s and one of",
    "time_s,limit_kw,price_per_kwh\n0,4,1\n9,4,1": "expected time_s and one of",
    "time_s,limit_kw\n0,4": "1 row; expected 2 to",
    "time_s,limit_kw\n0,4\n300,four\n600,4": "row 2: limit_kw must be a number; got 'four'",
    "time_s,limit_kw\n0,4\n300,-4\n600,4": "row 2: limit_kw must be a number from 0; got -4",
    "time_s,reduce_percent\n0,4\n300,400\n600,4": "row 2: reduce_percent must be a number from 0 to 100; got 400",
    "time_s,price_per_kwh\n0,4\n300,inf\n600,4": "row 2: price_per_kwh must be a number",
    "time_s,limit_kw\n0,4\n,4\n600,4": "row 2: time_s is blank",
    "time_s,limit_kw\n0,4\n600,4\n300,4": "row 3: time_s 300 is not after 600 of the row before; expected rows",
    "time_s,limit_kw\n1700003600,4\n1700000300,4\n1700000600,4": "by a clock that is never set back (UTC)",
    "time_s,limit_kw\n0,4\n0,5\n600,4": "row 2: time_s 0 is not after 0",
    "time_s,limit_kw\n0,\n300,\n600,4": "has no limit_kw at all",
    "time_s,limit_kw\n2026-01-01T00:00,4\n2026-01-01T00:05,4": "row 1: time_s must be a number",
}


@pytest.mark.parametrize("text", REFUSED, ids=list(REFUSED.values()))
def test_a_bad_signal_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.csv"
    file.write_text(text)
    with pytest.raises(TableError) as caught:
        read_signal(file)
    assert REFUSED[text] in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


FILLED = {
    "time_s,limit_kw\n0,4\n300,\n600,3\n900,": ([4, 3, 3], "limit_kw is blank in 1 row (row 2); the stricter one"),
    "time_s,reduce_percent\n0,4\n300,\n600,3\n900,": ([4, 4, 3], "the stricter one of its neighbours holds"),
    "time_s,price_per_kwh\n0,4\n300,NaN\n600,3\n900,": ([4, 4, 3], "the value before holds"),
    "time_s,limit_kw\n0,9\n10,9\n20,9\n30,9\n990,5\n1000,9\n1010,": (
        [9, 9, 9, 5, 5, 9],
        "1 step is longer than the others",
    ),
    "time_s,price_per_kwh\n0,4\n10,4\n20,4\n30,4\n990,5\n1000,4\n1010,": ([4, 4, 4, 4, 5, 4], ""),
    "time_s,limit_kw\n0,9\n50,8\n200,inf\n210,": ([9, 8, np.inf], ""),  # steps as long as they like
    "time_s,limit_kw\n0,4\n300,3\n600,2": ([4, 3], "the last row is the end of the signal; its limit_kw of 2 holds"),
    "time_s,reduce_percent\n0,0.25\n300,0\n600,": ([0.25, 0], "reduce_percent is at most 0.25, as if it were a share"),
    "time_s,reduce_percent\n0,25\n300,1\n600,": ([25, 1], ""),
    "time_s,price_per_kwh\n0,80\n300,95\n600,": ([80, 95], "87.5 in the median, as if it were the price of a MWh"),
    "time_s,limit_kw\n0,4\n1,3\n2,4\n24,": ([4, 3, 4], "steps last 1 s or less, as if time_s were in minutes or hours"),
}


@pytest.mark.parametrize("text", FILLED, ids=[f"{one[0]}" for one in FILLED.values()])
def test_what_is_blank_a_gap_or_in_doubt_is_named_and_the_stricter_of_its_neighbours_holds(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "s.csv"
    file.write_text(text)
    found, (values, remark) = read_signal(file), FILLED[text]
    assert found.values.tolist() == values
    assert len(found.bounds_s) == len(values) + 1
    assert len(found.remarks) == (remark != "")
    assert remark in " ".join(found.remarks)
