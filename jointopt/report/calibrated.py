"""The answer of ``calibrate``: constants, their fit, and what was predicted with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jointopt.report.documents import CALIBRATE, Result
from jointopt.report.table import TextColumn, lay_out
from jointopt.spec.calibration import Calibration

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = {
    "static_w": ("static power", "W"),
    "wait_w": ("power while waiting", "W"),
    "board_limit_w": ("the board limits power at", "W"),
    "knee_fraction": ("voltage rises above", "of the maximum clock"),
    "voltage_ratio": ("voltage at the maximum clock over the lowest", ""),
}
_MOST_WORK = 12


@dataclass(frozen=True)
class Calibrated(Result):
    """The calibration, and the query with predicted columns where there is one."""

    keys = CALIBRATE
    rows = "work"
    calibration: Calibration
    predictions: pd.DataFrame | None

    def text(self) -> str:
        """Constants, fit, the clock of the least energy per piece of work, what to measure next, predictions."""
        found, on = self.calibration, self.calibration.fitted_on
        error = ", ".join(f"{n.replace('_', ' ')} {v:g} %" for n, v in found.fit_error_percent.items())
        lines = [f"{found.gpu}: {on['kind']}, {on['rows']:,} rows; mean error on them: {error}.", ""]
        for name, (label, unit) in _SHOWN.items():
            value = getattr(found.constants, name)
            if value is not None:
                spread = found.plus_minus.get(name, 0.0)
                lines.append(f"  {label:<46} {value:>8.4g} ± {spread:.2g} {unit}".rstrip())
        lines += ["", *_work_table(found), ""]
        lines += [f"To know more, measure {advice}." for advice in found.measure_next]
        return "\n".join([*lines, *([] if self.predictions is None else _prediction_lines(self.predictions))])


def _work_table(found: Calibration) -> list[str]:
    shown = found.work[:_MOST_WORK]
    least, saved = zip(*map(_work_cells, shown), strict=True) if shown else ((), ())
    lines = lay_out(
        [
            TextColumn("  work", [f"  {work['work']}" for work in shown], left=True),
            TextColumn("clock-sensitive", [f"{work['clock_sensitive_share']:.0%}" for work in shown]),
            TextColumn("least energy", least),
            TextColumn("saved at 1, 5, 10 % more time", saved),
        ],
        gap="  ",
    )
    more = len(found.work) - _MOST_WORK
    return [*lines, *([f"  and {more} more in the file"] if more > 0 else [])]


def _work_cells(work: Any) -> tuple[str, str]:
    """Clock and saving of the least energy, savings at three slowdowns; dashes where no clock saves energy."""
    if "least_energy_clock_mhz" not in work:
        return "-", "-"
    saved = ", ".join(
        f"{work[f'saving_percent_at_{percent}_percent_slowdown']:.1f}" for percent in (1, 5, 10)
    )
    return f"{work['least_energy_clock_mhz']} MHz -{work['least_energy_saving_percent']:.0f}%", f"{saved} %"


def _prediction_lines(predictions: pd.DataFrame) -> list[str]:
    unknown = predictions["not_predicted"].astype(str) != ""
    lines = [f"{int((~unknown).sum()):,} of {len(predictions):,} rows predicted."]
    several = int((predictions["assumed"].astype(str) != "").sum()) if "assumed" in predictions else 0
    if several:
        lines.append(
            f"  {several:,} in no order, of stages that no column tells apart: the mean of all, with an interval that "
            "holds them all. A column stage would say which."
        )
    reasons = predictions.loc[unknown, "not_predicted"].value_counts()
    return lines + [f"  {count:,} not: {reason}." for reason, count in reasons.head(5).items()]
