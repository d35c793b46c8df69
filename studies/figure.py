"""For the programs of the figures: rows into ``table.csv`` and the README, and a plot beside them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from cycler import cycler
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullLocator

from jointopt.studies.marked import replace_between

mpl.use("Agg")
# Okabe and Ito's colours, which are told apart without colour vision, each with a marker of its own
BLUE, RED, GREEN, BLACK, PURPLE, SKY, ORANGE = COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#56B4E9", "#E69F00",
)  # fmt: skip
STYLE: Any = {
    "axes.prop_cycle": cycler(color=COLOURS) + cycler(marker=("o", "s", "^", "D", "v", "P", "X")),
    "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.3, "lines.markersize": 4.5, "figure.dpi": 80,
    "font.size": 9, "axes.titlesize": 10, "legend.fontsize": 8.5, "legend.framealpha": 0.7,
    "figure.constrained_layout.use": True,
}  # fmt: skip

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
    with mpl.rc_context(STYLE):
        draw(found, out / "figure.png")
    text = markdown(found.query(shown) if shown else found)
    if (out / "README.md").exists():
        replace_between(out / "README.md", BEGIN, END, text)
    print(text)


def plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


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
