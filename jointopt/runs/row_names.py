"""Names of rows: the table that each came from, and its place there; pandas is imported by those who have a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Bools

if TYPE_CHECKING:
    import pandas as pd


# attributes of a joined table: (name, number of rows) of each of its tables in order, and of each row that is left its
# position among all of their rows
_PLACES, _KEPT = "places", "kept"


def join_named_tables(tables: list[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """The rows of several tables as one, numbered from 0; it remembers their names for `row_names`."""
    import pandas as pd

    whole = pd.concat([table for _, table in tables], ignore_index=True)
    whole.attrs[_PLACES] = tuple((name, len(table)) for name, table in tables)
    return whole


def row_names(table: pd.DataFrame, kept: Bools | None = None) -> Callable[[int], str]:
    """A function from the number of a row to its name, ``row 3 of runs.csv``, or ``row 3`` in a table without name.

    Numbers count the rows that are ``kept``, a mask (n,), by default all.
    """
    at = np.asarray(table.attrs.get(_KEPT, range(len(table))), np.int64)
    at = at if kept is None else at[kept]

    def name(row: int) -> str:
        place = int(at[row])
        for table_name, count in table.attrs.get(_PLACES, ()):
            if place < count:
                return f"row {place + 1} of {table_name}"
            place -= count
        return f"row {place + 1}"

    return name


def without_rows(table: pd.DataFrame, gone: Bools) -> pd.DataFrame:
    """A table of `join_named_tables` without the rows of the mask (n,), numbered from 0; rows keep their names."""
    rest = table[~gone].reset_index(drop=True)
    rest.attrs[_KEPT] = tuple(np.flatnonzero(~gone).tolist())
    return rest
