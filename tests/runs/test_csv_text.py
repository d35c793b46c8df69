"""Text of CSV files: many rows a piece at a time, each value of a column that repeats once."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jointopt.runs import table
from jointopt.runs.table import csv_texts


def test_rounded_figures_have_seven_digits_and_others_all() -> None:
    frame = pd.DataFrame({"a": [1 / 3, 1e-9 / 3, 2e9 / 3, None], "b": [1 / 3, 2.0, None, -1e300]})
    lines = "".join(csv_texts(frame, rounded=["a"])).splitlines()
    assert lines[1:] == [f"0.3333333,{1 / 3}", "3.333333e-10,2.0", "6.666667e+08,", ",-1e+300"]


def test_rounded_figures_read_back_within_a_ten_millionth() -> None:
    figures = np.exp(np.random.default_rng(0).uniform(-40.0, 40.0, 500))
    text = "".join(csv_texts(pd.DataFrame({"a": figures}), rounded=["a"]))
    read = np.array(text.splitlines()[1:], dtype=np.float64)
    assert np.abs(read / figures - 1.0).max() <= 5e-7


@pytest.mark.parametrize("rows", [1, 4, 65_536])
def test_pieces_and_repeated_values_change_nothing(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    repeated = {
        "text": ["x,y", 'a "b"', None, "x,y"] * 4,
        "float": [0.1, 0.5, None, 0.1] * 4,
        "flag": [True, False] * 8,
    }
    frame = pd.DataFrame(repeated | {"whole": np.arange(16), "mixed": [1, True, "1", None] * 4})
    monkeypatch.setattr(table, "_ROWS", rows)
    assert "".join(csv_texts(frame)) == frame.to_csv(index=False, lineterminator="\n")


@pytest.mark.parametrize("dtype", ["category", "Int64", "datetime64[ns]"])
def test_cells_of_other_kinds_are_their_text(dtype: str) -> None:
    column = pd.Series([20260101, None, 20260101]).astype("Int64").astype(str).replace("<NA>", None)
    frame = pd.DataFrame({"a": column.astype(dtype) if dtype != "Int64" else pd.to_numeric(column).astype(dtype)})
    first, blank, again = "".join(csv_texts(frame)).splitlines()[1:]
    assert (first, blank) == (again, '""')
    assert first.replace("-", "").startswith("20260101")
