"""For the programs of the figures: rows into ``table.csv`` and the README, and a plot beside them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pandas as pd

from jointopt.studies.marked import replace_between

mpl.use("Agg")

BEGIN, END = "<!-- rows -->", "<!-- end of rows -->"


def publish(
    here: Path, rows: Callable[[], pd.DataFrame], draw: Callable[[pd.DataFrame, Path], None], shown: str = ""
) -> None:
    """Work out the rows of the study in ``here``, and write table, plot and the rows that are ``shown`` in the README.

    ``shown`` is a query of the rows; blank for all.
    """
    parser = argparse.ArgumentParser(description="Writes table.csv, figure.png and the README's table.")
    parser.add_argument("--out", type=Path, default=here, help="folder of what is written")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = rows()
    found.to_csv(out / "table.csv", index=False, float_format="%.5g")
    draw(found, out / "figure.png")
    text = markdown(found.query(shown) if shown else found)
    if (out / "README.md").exists():
        replace_between(out / "README.md", BEGIN, END, text)
    print(text)


def markdown(found: pd.DataFrame) -> str:
    """The rows as a table of three significant digits."""
    lines = [list(map(str, found.columns)), ["---"] * found.shape[1]]
    lines += [[_cell(value) for value in row] for row in found.itertuples(index=False)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if value != value:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100.0 else f"{value:.3g}"
