"""A calibration as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.spec.calibration import Calibration

_SHOWN = {
    "static_w": ("static power", "W"),
    "wait_w": ("power while waiting", "W"),
    "board_limit_w": ("the board limits power at", "W"),
    "knee_fraction": ("voltage rises above", "of the maximum clock"),
    "voltage_ratio": ("voltage at the maximum clock over the lowest", ""),
}
_MOST_WORK = 12


def calibration_text(calibration: Calibration, predictions: pd.DataFrame | None = None) -> str:
    """Constants, fit, the clock of the least energy per piece of work, what to measure next, what was predicted."""
    on = calibration.fitted_on
    error = ", ".join(
        f"{name.replace('_', ' ')} {v:g} %" for name, v in calibration.fit_error_percent.items()
    )
    lines = [f"{calibration.gpu}: {on['kind']}, {on['rows']:,} rows; mean error on them: {error}.", ""]
    for name, (label, unit) in _SHOWN.items():
        value = getattr(calibration.constants, name)
        if value is not None:
            spread = calibration.plus_minus.get(name, 0.0)
            lines.append(f"  {label:<46} {value:>8.4g} ± {spread:.2g} {unit}".rstrip())
    lines += ["", *_work_lines(calibration)]
    lines += [f"To know more, measure {said}." for said in calibration.measure_next]
    if predictions is not None:
        lines += _prediction_lines(predictions)
    return "\n".join(lines)


def _work_lines(calibration: Calibration) -> list[str]:
    lines = [f"  {'work':<44} clock-sensitive   least energy    saved at 1, 5, 10 % more time"]
    for work in calibration.work[:_MOST_WORK]:
        line = f"  {work['work']:<44} {work['clock_sensitive_share']:>15.0%}"
        if "least_energy_clock_mhz" in work:
            saved = [work[f"saving_percent_at_{p}_percent_slowdown"] for p in (1, 5, 10)]
            line += f" {work['least_energy_clock_mhz']:>5} MHz -{work['least_energy_saving_percent']:.0f}%"
            line += f"    {', '.join(f'{s:.1f}' for s in saved)} %"
        lines.append(line)
    more = len(calibration.work) - _MOST_WORK
    return [*lines, *([f"  and {more} more in the file"] if more > 0 else []), ""]


def _prediction_lines(predictions: pd.DataFrame) -> list[str]:
    unknown = predictions["not_predicted"].astype(str) != ""
    lines = [f"{len(predictions) - int(unknown.sum()):,} of {len(predictions):,} rows predicted."]
    several = int((predictions["assumed"].astype(str) != "").sum()) if "assumed" in predictions else 0
    if several:
        lines.append(
            f"  {several:,} in no order, of stages that no column tells apart: the mean of all, with an interval that "
            f"holds them all. A column stage would say which."
        )
    reasons = predictions.loc[unknown, "not_predicted"].value_counts()
    return lines + [f"  {count:,} not: {reason}." for reason, count in reasons.head(5).items()]
