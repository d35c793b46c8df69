"""Results of fits: estimates as columns of a table, constants of a GPU, its work, and clocks to measure next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from jointopt.core.schema import Floats, Ints
from jointopt.core.units import Z_90
from jointopt.jobs.calibration import Calibration, Constants
from jointopt.physics.calibrate.grouping import Key
from jointopt.physics.calibrate.parameters import CLOCK_COLUMNS, Board
from jointopt.physics.calibrate.rank_fit import RankFit, RankRows
from jointopt.physics.calibrate.stage_fit import Estimate, StageFit, StageRows
from jointopt.physics.calibrate.tables import ResponseTable

MOST_QUERIED = 400  # rows that are predicted in one go
MOST_WORK = 100  # pieces of work that a calibration lists
NOT_PREDICTED = "not_predicted"
_Rows = TypeVar("_Rows", StageRows, RankRows)


@dataclass(frozen=True)
class Fitted:
    """One fit, and how it explains the readings that it is of."""

    fit: StageFit | RankFit
    x: Floats  # clocks of the readings over the maximum clock
    error_percent: Mapping[str, float]
    work: Sequence[str]  # names of its curves
    savings: Sequence[Mapping[str, Any]] = ()  # of its first curves, where one clock sets time and energy


FitsAndColumns = tuple[list[Fitted], pd.DataFrame]


def mean_error_percent(estimate: Estimate | Floats, measured: Floats) -> float:
    """Mean absolute relative difference."""
    value = estimate.value if isinstance(estimate, Estimate) else estimate
    return rounded(100.0 * float(np.abs(value / measured - 1.0).mean()))


def rounded(value: float) -> float:
    """Four digits, of large values one decimal."""
    return float(f"{value:.4g}") if value < 1e4 else round(value, 1)


def spread_evenly(index: Ints, most: int) -> Ints:
    """At most that many of the positions, evenly over all of them."""
    if len(index) <= most:
        return index
    at = np.unique(np.linspace(0, len(index) - 1, most).astype(int))
    return np.asarray(index[at])


def tail(estimate: Estimate, count: int, scale: Any = 1.0) -> Estimate:
    """The last ``count`` of an estimate, times ``scale``: the rows that were queried stand after the readings."""
    return Estimate(*(getattr(estimate, end)[-count:] * scale for end in ("value", "low", "high")))


def estimate_columns(estimates: Mapping[str, Estimate], index: Any) -> pd.DataFrame:
    """Value and both ends of every estimate as columns ``name``, ``name_low`` and ``name_high``."""
    ends = {"": "value", "_low": "low", "_high": "high"}
    columns = {name + end: getattr(e, field) for name, e in estimates.items() for end, field in ends.items()}
    return pd.DataFrame(columns, index=index)


def appended(rows: _Rows, more: _Rows) -> _Rows:
    """The readings with ``more`` rows after them, in every array that has one value per row."""
    names = {f.name for f in fields(rows)} - {"kind_of", "mixed", "num_micro_batches"}
    both: dict[str, Any] = {n: np.concatenate([getattr(rows, n), getattr(more, n)], axis=-1) for n in names}
    return replace(rows, **both)


def unknown_work(key: Key, known: Sequence[Key]) -> str:
    """Why a row of work that no reading is of is not predicted."""
    there = "; ".join(" ".join(k) for k in known[:4])
    more = f" and {len(known) - 4} more" if len(known) > 4 else ""
    return f"no reading of {' '.join(key)}: measure it at one clock at least (measured: {there}{more})"


_KINDS = {"stages": "stage profile", "iterations": "iterations", "ranks": "pipeline ranks"}
_PLACE = {"knee_fraction": 0, "voltage_ratio": 1, "static_w": 6, "board_limit_w": 7}  # in the vector of parameters
_INFORMED = 0.8  # of a prior's width: what is left of it where readings inform it
_NEAR_TOP, _NEAR_KNEE, _BELOW_KNEE = 0.97, 0.05, 0.1  # of the maximum clock


def calibration_of(measured: ResponseTable, board: Board, fits: Sequence[Fitted]) -> Calibration:
    """The calibration that fits of these readings add up to."""
    rows = measured.rows
    clocks = np.unique(rows[[name for name in CLOCK_COLUMNS if name in rows]].to_numpy(float))
    constants, spread = _constants(board, fits)
    weights = [len(fitted.x) for fitted in fits]
    errors = {name: [fitted.error_percent[name] for fitted in fits] for name in fits[0].error_percent}
    return Calibration(
        gpu=board.id,
        constants=constants,
        plus_minus=spread,
        fitted_on={
            "kind": _KINDS[measured.kind],
            "rows": len(rows),
            "clocks_mhz": _listed(clocks[np.isfinite(clocks)]),
            "power_limits_w": _listed(np.unique(rows["power_limit_w"].dropna())),
        },
        fit_error_percent={n: rounded(float(np.average(e, weights=weights))) for n, e in errors.items()},
        work=tuple(_work_entries(fits))[:MOST_WORK],
        measure_next=tuple(_advice(board, constants, np.concatenate([fitted.x for fitted in fits]))),
    )


def _listed(values: Floats) -> list[float]:
    """All of a few values, else the ends and the quartiles."""
    few = values if len(values) <= 40 else np.quantile(values, np.linspace(0.0, 1.0, 5))
    return [rounded(float(value)) for value in few]


def _constants(board: Board, fits: Sequence[Fitted]) -> tuple[Constants, dict[str, float]]:
    """The GPU's figures and half of their intervals: means of the fits, each weighed by how sure it is."""
    figures, spread = {}, {}
    for name, i in _PLACE.items():
        found = np.array([[fitted.fit.theta[i], fitted.fit.theta_sd[i]] for fitted in fits])
        figures[name], spread[name] = _weighed(name, found)
    ranks = [fitted.fit for fitted in fits if isinstance(fitted.fit, RankFit)]
    if ranks:
        waits = np.array([[fit.theta[fit.hierarchy.size], fit.theta_sd[fit.hierarchy.size]] for fit in ranks])
        figures["wait_w"], spread["wait_w"] = _weighed("wait_w", waits)
    if spread["board_limit_w"] > _INFORMED * Z_90 * board.prior.limit_sd * figures["board_limit_w"]:
        del figures["board_limit_w"], spread["board_limit_w"]  # nothing came near it
    return Constants(max_clock_mhz=rounded(board.max_clock_mhz), **figures), spread


def _weighed(name: str, found: Floats) -> tuple[float, float]:
    """Value and half of its 90 % interval from values and deviations (fits, 2) of the parameter."""
    mean, sd = found.T
    weight = 1.0 / np.maximum(sd, 1e-6) ** 2
    value = float(np.average(mean, weights=weight))
    apart = float(np.sqrt(np.average((mean - value) ** 2, weights=weight)))
    width = Z_90 * max(float(np.sqrt(1.0 / weight.sum())), apart)
    if name == "knee_fraction":
        return rounded(value), rounded(width)
    figure = float(np.exp(value))
    return rounded(figure + (1.0 if name == "voltage_ratio" else 0.0)), rounded(figure * width)


def _work_entries(fits: Sequence[Fitted]) -> Iterator[dict[str, Any]]:
    for fitted in fits:
        works = fitted.fit.hierarchy.work(fitted.fit.theta)
        for i, name in enumerate(fitted.work):
            figures = {
                "time_at_max_clock_s": np.exp(works.log_time_s[i]),
                "clock_sensitive_share": works.share[i],
                "static_w": works.static_w[i],
                "switching_w": works.switching_w[i],
            }
            saved = fitted.savings[i] if i < len(fitted.savings) else {}
            yield {"work": name} | {key: rounded(float(value)) for key, value in figures.items()} | dict(saved)


def _advice(board: Board, constants: Constants, x: Floats) -> Iterator[str]:
    """Sentences on the clocks that would add what these readings leave open."""
    knee = constants.knee_fraction

    def clock(fraction: float) -> int:
        return round(fraction * board.max_clock_mhz / board.step_mhz) * round(board.step_mhz)

    if x.min() > knee - _BELOW_KNEE:
        yield (
            f"a clock near {clock(knee - 0.17)} MHz: none is far below the knee, so static power and the share of time "
            f"that follows the clock rest on what is usual, and lower clocks are extrapolated"
        )
    if not (np.abs(x - knee) <= _NEAR_KNEE).any():
        yield f"a clock near {clock(knee)} MHz, where the voltage begins to rise: the least energy lies there"
    if x.max() < _NEAR_TOP:
        yield f"the maximum clock, {clock(1.0)} MHz: where the power limit bites is not seen below"
