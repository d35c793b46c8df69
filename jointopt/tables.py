"""Tables of runs between files and pandas; what cannot be read or written is one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from jointopt.errors import TableError
from jointopt.schema import COLUMNS, RECOMPUTE_NAMES


def read_table(path: Path) -> pd.DataFrame:
    """A CSV file with a header and at least one row; blank cells are NaN. Raises TableError."""
    if path.is_dir():
        raise TableError(f"{path} is a directory; expected a CSV file.")
    try:
        table = pd.read_csv(path, low_memory=False)
    except (OSError, ValueError) as error:  # pandas' parser errors and UnicodeDecodeError are ValueErrors
        reason = error.strerror if isinstance(error, OSError) else error
        raise TableError(f"{path} cannot be read as CSV: {reason}.") from error
    if table.empty:
        raise TableError(f"{path} holds no rows; expected a header and one run per row.")
    return table


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Writes a CSV file that `read_table` reads back, cells of nothing blank. Raises TableError."""
    try:
        table.to_csv(path, index=False)
    except OSError as error:
        raise TableError(f"{path} cannot be written: {error.strerror or error}.") from error


def clean_runs(table: pd.DataFrame) -> pd.DataFrame:
    """A copy of a measurement table whose plan and workload cells are what the schema says, rows numbered from 0.

    Numbers become floats, flags 1.0 and 0.0, ``recompute`` one of its names; blank cells become NaN, and columns that
    no prediction reads stay as they are. Raises TableError that names row, column and value of a cell that makes no
    sense (text where a number belongs, a degree below 1), for a table without rows and for a column given twice.
    """
    _check_columns(table)
    clean = table.reset_index(drop=True)
    for name in clean.columns.intersection(pd.Index([*COLUMNS, "clock_mhz"])):
        column = COLUMNS.get(name, COLUMNS["power_limit_w"])
        if column.role == "result":
            continue
        cells = clean[name].map(lambda v: (v.strip() or None) if isinstance(v, str) else v).astype(object)
        clean[name] = _READERS.get(name, _READERS.get(column.dtype, lambda c, _: c))(cells, name)
    return clean


def _check_columns(table: pd.DataFrame) -> None:
    if table.empty:
        raise TableError("The table holds no rows; expected one run per row.")
    names = [re.sub(r"\.\d+$", "", str(c)) for c in table.columns]  # pandas reads a second tp as tp.1
    twice = [n for n in dict.fromkeys(names) if n in COLUMNS and names.count(n) > 1]
    if twice:
        raise TableError(f"The table has the column {twice[0]!r} more than once; expected every column once.")


def _numbers(cells: pd.Series, name: str) -> pd.Series:
    column = COLUMNS.get(name, COLUMNS["power_limit_w"])
    low, high = _RANGES.get(name, (1, 10**9))
    values = pd.to_numeric(cells, errors="coerce").astype(float)
    wrong = ~values.between(low, high)
    whole = column.dtype == "int"
    if whole:
        wrong |= values % 1 != 0
    kind = "a whole number" if whole else "a number"
    _refuse(cells, name, wrong & cells.notna(), f"{kind} from {low:,} to {high:,}, or blank")
    return values


def _flags(cells: pd.Series, name: str) -> pd.Series:
    values = cells.map(lambda v: _FLAGS.get(str(v).lower()), na_action="ignore").astype(float)
    _refuse(cells, name, values.isna() & cells.notna(), "true, false or blank")
    return values


def _recompute(cells: pd.Series, name: str) -> pd.Series:
    words = cells.map(lambda v: str(v).lower(), na_action="ignore").replace({"true": "full", "false": "none"})
    expected = f"one of {', '.join(RECOMPUTE_NAMES)}, or blank"
    _refuse(cells, name, ~words.isin(RECOMPUTE_NAMES) & cells.notna(), expected)
    return words


def _clocks(cells: pd.Series, name: str) -> pd.Series:
    """Tuples of clocks; ``1410;1395`` or one number for all stages."""
    clocks = cells.map(_clock_tuple, na_action="ignore").astype(object)
    expected = "clocks in MHz above 0, separated by semicolons, or blank"
    _refuse(cells, name, clocks.isna() & cells.notna(), expected)
    return clocks


def _clock_tuple(cell: object) -> tuple[float, ...] | None:
    try:
        clocks = tuple(float(word) for word in re.split(r"[;,\s]+", str(cell).strip("[]; ")))
    except ValueError:
        return None
    return clocks if all(0 < clock < 1e5 for clock in clocks) else None


def _refuse(cells: pd.Series, name: str, wrong: pd.Series, expected: str) -> None:
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        got = f"{cells.iloc[row]!r:.60}"
        raise TableError(f"Row {row + 1} of the table: {name} must be {expected}; got {got}.")


_READERS = {
    "int": _numbers,
    "float": _numbers,
    "bool": _flags,
    "clocks": _clocks,
    "recompute": _recompute,
}
_RANGES = {
    "zero_stage": (0, 3),
    "num_experts": (0, 10**9),
    "moe_router_topk": (0, 10**9),
    "clock_mhz": (1, 10**5),
}
_FLAGS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "yes": 1.0, "no": 0.0}
