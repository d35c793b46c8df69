"""Tables of runs between files and pandas; what cannot be read or written is one sentence."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from jointopt.errors import TableError


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
