"""Names of rows: the table that each came from, and its place there; pandas is imported by those who have a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Bools

if TYPE_CHECKING:
    import pandas as pd


_PLACES = "places"  # of a table's attributes: (name, rows) of each table that it was put together from, in order
_KEPT = "kept"  # and the positions of its rows among those, where some were taken out


def join_named_tables(tables: list[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """The rows of several named tables, numbered from 0, with what `row_names` needs."""
    import pandas as pd

    whole = pd.concat([table for _, table in tables], ignore_index=True)
    whole.attrs[_PLACES] = tuple((name, len(table)) for name, table in tables)
    return whole


def row_names(table: pd.DataFrame, kept: Bools | None = None) -> Callable[[int], str]:
    """A function: the name of a row by its number among those that are ``kept`` (n,), by default of all.

    That is ``row 3 of runs.csv``, or ``row 3`` where the table has no name.
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
    """The other rows of a table that `join_named_tables` returned, numbered from 0, by their names as before."""
    rest = table[~gone].reset_index(drop=True)
    rest.attrs[_KEPT] = tuple(np.flatnonzero(~gone).tolist())
    return rest
