"""The answer of ``evaluate``: figures of accuracy per group of comparable runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jointopt.report.documents import EVALUATE, Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Evaluation(Result):
    """One row of figures per group, and over all rows; blank where a group has too few runs for one.

    Groups of one name are distinguished by their source, where the table has that column.
    """

    keys = EVALUATE
    rows = "groups"
    groups: pd.DataFrame
    overall: dict[str, int | float]

    def text(self) -> str:
        """The groups as a table, then the figures over all rows."""
        head = self.groups.round(3).to_string(index=False, na_rep="")
        known = {name: value for name, value in self.overall.items() if value == value}
        figures = [
            f"{name.replace('_', ' ')} {value:{',' if isinstance(value, int) else '.3f'}}"
            for name, value in known.items()
        ]
        return f"{head}\n\n{', '.join(figures)}"
