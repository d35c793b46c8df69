"""The answer of ``retrain``: errors on held-out groups, before and after where a surrogate was replaced."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jointopt.report.documents import RETRAIN, Result

if TYPE_CHECKING:
    import pandas as pd

LEAST_SHARED = 10  # held-out rows that two surrogates must share to be compared


@dataclass(frozen=True)
class Retrained(Result):
    """A surrogate that was trained and written to ``out``."""

    keys = RETRAIN
    rows = "sources"
    remarks: tuple[str, ...]  # rows that were left out, and the use of each source
    sources: pd.DataFrame  # median errors per held-out source; the last row, called mean, is their mean
    compared: (
        pd.DataFrame | None
    )  # source, rows, before, now; empty: not comparable; None: nothing was replaced
    forgotten: tuple[str, ...]  # sources that only the replaced surrogate was trained on
    out: Path

    def text(self) -> str:
        """Remarks, errors by source, and the comparison with the surrogate that was replaced."""
        mean = self.sources.set_index("source").round(4).to_dict("index")["mean"]
        table = self.sources.round(3).to_string(index=False, na_rep="")
        errors = f"{_percent(mean.get('group out', math.nan))}, physics alone {mean['physics']:.1%}"
        lines = [*self.remarks, "", f"{table}\n\nheld-out groups: median error {errors}"]
        if self.compared is not None:
            lines += ["", _comparison(self.compared, self.out)]
        if self.forgotten:
            lines.append(f"only the one now there was trained on {', '.join(self.forgotten)}")
        return "\n".join([*lines, f"written to {self.out}"])


def _percent(value: float) -> str:
    return "unknown (no source has two groups)" if math.isnan(value) else f"{value:.1%}"


def _comparison(compared: pd.DataFrame, out: Path) -> str:
    if compared.empty:
        return not_comparable(out)
    table = compared.assign(**{n: compared[n].map("{:.1%}".format) for n in ("before", "now")})
    return (
        f"On the same held-out rows, the surrogate now in {out} (before) and this one (now):\n"
        f"{table.to_string(index=False)}\n"
        f"mean of sources: before {compared['before'].mean():.1%}, now {compared['now'].mean():.1%}"
    )


def not_comparable(out: Path) -> str:
    """A sentence on a surrogate in ``out`` that shares too few held-out rows with the new one."""
    return (
        f"The surrogate now in {out} and the new one are not comparable: fewer than {LEAST_SHARED} of the held-out "
        "rows that one was judged on are among those of the other (other measurements, another physics, or a surrogate "
        "of an earlier version)."
    )
