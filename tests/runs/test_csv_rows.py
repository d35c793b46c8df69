"""Large tables are written as pandas writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.runs import table as tables
from jointopt.runs.csv_rows import csv_text, is_plain
from jointopt.runs.table import write_table

TEXT = st.one_of(st.none(), st.text("ab, \"'\n;é-", max_size=5))
NUMBER = st.floats(width=64)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, NUMBER, st.integers(-(2**63), 2**63 - 1), st.booleans()), min_size=1, max_size=8))
def test_every_cell_is_the_text_that_pandas_makes_of_it(rows: list[tuple[object, ...]]) -> None:
    table = pd.DataFrame(rows, columns=['a "name", quoted', "float", "int", "flag"])
    assert is_plain(table)
    assert "".join(csv_text(table)) == table.to_csv(index=False, lineterminator="\n")


@pytest.mark.parametrize("repeats", [False, True])
def test_columns_that_repeat_their_numbers_and_others_are_written_alike(repeats: bool) -> None:
    values = np.random.default_rng(0).standard_normal(3000) * 10.0 ** np.arange(-30, 30).repeat(50)
    values[::7], values[::11], values[::13] = np.nan, -0.0, np.inf
    table = pd.DataFrame({"x": values[np.arange(3000) % 40] if repeats else values, "blank": None})
    assert "".join(csv_text(table)) == table.to_csv(index=False, lineterminator="\n")


@pytest.mark.parametrize("cells", [pd.Series([1, "a"], dtype=object), pd.Series(["a"], dtype="category"),
                                   pd.Series([0.1], dtype="float32"), pd.Series(pd.to_datetime(["2020"]))])  # fmt: skip
def test_other_columns_are_left_to_pandas(cells: pd.Series) -> None:
    assert not is_plain(pd.DataFrame({"x": cells, "y": 1}))
    assert not is_plain(pd.DataFrame({"y": ["", "a"]}))


def test_a_large_table_is_the_same_file_as_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"words": ["a", "b,c", None] * 10, "x": np.linspace(0.0, 1.0, 30)})
    write_table(table, tmp_path / "small.csv")
    monkeypatch.setattr(tables, "_MANY_ROWS", 20)
    write_table(table, tmp_path / "large.csv")
    assert (tmp_path / "large.csv").read_bytes() == (tmp_path / "small.csv").read_bytes()
