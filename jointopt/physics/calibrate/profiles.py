"""Stage profiles and whole iterations: one fit of all curves, and predictions at other clocks and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from jointopt.core.errors import TableError
from jointopt.core.schema import Floats, Ints
from jointopt.core.units import Z_90
from jointopt.jobs.calibration import Calibration, Constants
from jointopt.physics.calibrate.law_fit import CLOCK_COLUMNS, Board, Estimate, StageFit, StageRows, fit_stages
from jointopt.physics.calibrate.pipeline_fit import RankFit, RankRows
from jointopt.physics.calibrate.stage_tables import (
    Key,
    Kind,
    ResponseTable,
    in_no_order,
    keys_of,
    stage_blocks,
    unlabelled_stages,
    work_columns,
)

_MOST_READINGS = 600  # of one fit, spread evenly over the file
_SLOWDOWNS_PERCENT = (1, 5, 10)
_NUMBERED = "profile "  # last cell of a key, with the number of a stage that no column distinguishes


def fit_profiles(measured: ResponseTable, queried: pd.DataFrame, board: Board) -> FitsAndColumns:
    """One fit of all curves, and the predicted columns of the rows ``queried``, by position."""
    rows = measured.rows
    keys, wanted = _keys(rows, queried)
    stated = rows["clock_mhz"].notna() | rows["power_limit_w"].notna()
    whole = (rows["time_s"].notna() & rows["power_w"].notna() & stated).to_numpy()
    if not whole.any():
        raise TableError(
            "No row of the table has a clock or power limit, a time, and an energy or power; all are needed to "
            "calibrate."
        )
    kept = spread_evenly(np.flatnonzero(whole), _MOST_READINGS)
    curves = list(dict.fromkeys(keys[i] for i in kept))
    readings = _stage_rows(rows.iloc[kept], [keys[i] for i in kept], curves, board)
    pipelined = "pp" not in rows or bool((pd.to_numeric(rows["pp"], errors="coerce") != 1).any())
    readings = replace(readings, mixed=measured.kind == "iterations" and pipelined)
    profiles = _Profiles(measured.kind, board, curves, readings, fit_stages(readings, board.prior))
    pairs = {"time": (profiles.fit.time, readings.time_s), "power": (profiles.fit.power, readings.power_w)}
    error = {name: mean_error_percent(*pair) for name, pair in pairs.items()}
    names, savings = [" ".join(key) for key in curves], list(profiles.savings())
    return [ExplainedFit(profiles.fit, readings.x, error, names, savings)], profiles.predicted(queried, wanted)


def _keys(rows: pd.DataFrame, queried: pd.DataFrame) -> tuple[list[Key], list[Key]]:
    """Keys of the curves of both tables' rows; the last cell numbers stages that no column distinguishes."""
    stage = ["stage"] if "stage" in rows and (queried.empty or "stage" in queried) else []
    columns = [*work_columns(rows, queried), *stage, "instruction"]
    keys, wanted = keys_of(rows, columns), keys_of(queried, columns)
    if not unlabelled_stages(rows, keys, queried, wanted):
        return keys, wanted
    unordered = in_no_order(rows, keys) or in_no_order(queried, wanted)
    keys, numbered = (
        [(*key, f"{_NUMBERED}{i + 1}") for key, i in zip(own, stage_blocks(of, own), strict=True)]
        for of, own in ((rows, keys), (queried, wanted))
    )
    return keys, wanted if unordered else numbered


def _stage_rows(
    rows: pd.DataFrame, keys: Sequence[Key], curves: Sequence[Key], board: Board, known: bool = True
) -> StageRows:
    """The rows, each of the curve of its key; without times and powers unless they are ``known``."""
    number = {key: i for i, key in enumerate(curves)}
    words = [key[-2] if key[-1].startswith(_NUMBERED) else key[-1] for key in curves]
    kinds = {word: i for i, word in enumerate(dict.fromkeys(words))}
    unknown = np.full(len(rows), np.nan)
    return StageRows(
        curve=np.array([number[key] for key in keys], np.int64),
        kind_of=np.array([kinds[word] for word in words], np.int64),
        x=rows["clock_mhz"].fillna(board.max_clock_mhz).to_numpy(float) / board.max_clock_mhz,
        limit_w=rows["power_limit_w"].to_numpy(float),
        time_s=rows["time_s"].to_numpy(float) if known else unknown,
        power_w=rows["power_w"].to_numpy(float) if known else unknown,
    )


@dataclass(frozen=True)
class _Profiles:
    """Curves of passes or iterations, their readings, and the fit of all of them."""

    kind: Kind
    board: Board
    curves: list[Key]
    readings: StageRows
    fit: StageFit

    def with_rows(self, more: StageRows) -> StageFit:
        """The same fit for the readings and ``more`` rows after them."""
        return fit_stages(with_rows_after(self.readings, more), self.board.prior, self.fit.found)

    def predicted(self, queried: pd.DataFrame, wanted: list[Key]) -> pd.DataFrame:
        """Predicted columns of the rows; of one of several profiles the mean, with an interval that holds them all.

        A key that names none of the profiles that were kept apart stands for all of them.
        """
        numbered = [key for key in self.curves if key[-1].startswith(_NUMBERED)]
        profiles = [[known for known in numbered if known[:-1] == key] or [key] for key in wanted]
        at = np.repeat(np.arange(len(queried)), [len(own) for own in profiles])
        of = [profile for own in profiles for profile in own]
        fit = self._predicted_each(queried.iloc[at].reset_index(drop=True), of)
        if len(at) == len(queried):
            return fit.set_index(queried.index)
        how = {"low": "min", "high": "max", "predicted": "first"}
        out = fit.groupby(at).agg({str(name): how.get(str(name).rsplit("_", 1)[-1], "mean") for name in fit})
        several = [f"mean of {len(own)} profiles" if len(own) > 1 else "" for own in profiles]
        return out.assign(assumed=several).set_index(queried.index)

    def _predicted_each(self, queried: pd.DataFrame, wanted: list[Key]) -> pd.DataFrame:
        """Estimates of the rows, and why some have none; of an iteration the energy of all its GPUs."""
        known = np.array([key in self.curves for key in wanted], bool)
        stated = (queried["clock_mhz"].notna() | queried["power_limit_w"].notna()).to_numpy(bool)
        parts, whole = [pd.DataFrame(index=queried.index[:0])], self.kind == "iterations"
        found = np.flatnonzero(known & stated)
        for at in (found[i : i + MOST_QUERIED] for i in range(0, len(found), MOST_QUERIED)):
            rows, count = queried.iloc[at], len(at)
            more = _stage_rows(rows, [wanted[i] for i in at], self.curves, self.board, known=False)
            fit = self.with_rows(more)
            gpus = rows["num_gpus"].to_numpy(float) if whole and "num_gpus" in rows else 1.0
            estimates = {
                "predicted_iteration_time_s" if whole else "predicted_time_s": last_rows(fit.time, count),
                "predicted_energy_j": last_rows(fit.energy, count, gpus),
                "predicted_avg_power_w": last_rows(fit.power, count),
            }
            parts.append(estimate_columns(estimates, rows.index))
        blank = np.where(stated, "", "clock_mhz and power_limit_w are blank").tolist()
        reasons = [
            why if is_known else unknown_work(key, self.curves)
            for key, why, is_known in zip(wanted, blank, known, strict=True)
        ]
        return pd.concat(parts).reindex(queried.index).assign(**{NOT_PREDICTED: reasons})

    def savings(self) -> Iterator[dict[str, Any]]:
        """Clock of the least energy and savings over the maximum clock, of the curves that a calibration lists."""
        grid = np.linspace(min(float(self.readings.x.min()), 0.95), 1.0, 101)
        blank = np.full(len(grid), np.nan)
        for curve in range(min(len(self.curves), MOST_WORK)):
            rows = StageRows(np.full(len(grid), curve), self.readings.kind_of, grid, blank, blank, blank)
            fit = self.with_rows(rows)
            time, energy = (last_rows(part, len(grid)).value for part in (fit.time, fit.energy))
            time, energy = time / time[-1], energy / energy[-1]
            figures = {
                "least_energy_clock_mhz": round(float(grid[np.argmin(energy)]) * self.board.max_clock_mhz),
                "least_energy_saving_percent": rounded(100 * float(1 - energy.min())),
            }
            for percent in _SLOWDOWNS_PERCENT:
                least = float(energy[time <= 1 + percent / 100].min())
                figures[f"saving_percent_at_{percent}_percent_slowdown"] = rounded(100 * (1 - least))
            yield figures


# Results of fits: estimates as columns of a table, constants of a GPU, its work, and clocks to measure next.


MOST_QUERIED = 400  # rows that are predicted in one go
MOST_WORK = 100  # pieces of work that a calibration lists
NOT_PREDICTED = "not_predicted"
_Rows = TypeVar("_Rows", StageRows, RankRows)


@dataclass(frozen=True)
class ExplainedFit:
    """One fit, and how it explains the readings that it is of."""

    fit: StageFit | RankFit
    x: Floats  # clocks of the readings over the maximum clock
    error_percent: Mapping[str, float]
    work: Sequence[str]  # names of its curves
    savings: Sequence[Mapping[str, Any]] = ()  # of its first curves, where one clock sets time and energy


FitsAndColumns = tuple[list[ExplainedFit], pd.DataFrame]


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


def last_rows(estimate: Estimate, count: int, scale: Any = 1.0) -> Estimate:
    """The last ``count`` of an estimate, times ``scale``: the rows that were queried stand after the readings."""
    return Estimate(*(getattr(estimate, end)[-count:] * scale for end in ("value", "low", "high")))


def estimate_columns(estimates: Mapping[str, Estimate], index: Any) -> pd.DataFrame:
    """Value and both ends of every estimate as columns ``name``, ``name_low`` and ``name_high``."""
    ends = {"": "value", "_low": "low", "_high": "high"}
    columns = {name + end: getattr(e, field) for name, e in estimates.items() for end, field in ends.items()}
    return pd.DataFrame(columns, index=index)


def with_rows_after(rows: _Rows, more: _Rows) -> _Rows:
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


def calibration_of(measured: ResponseTable, board: Board, fits: Sequence[ExplainedFit]) -> Calibration:
    """The calibration that fits of these readings add up to."""
    rows = measured.rows
    clocks = np.unique(rows[[name for name in CLOCK_COLUMNS if name in rows]].to_numpy(float))
    constants, spread = _constants(board, fits)
    weights = [len(fitted.x) for fitted in fits]
    errors = {name: [fitted.error_percent[name] for fitted in fits] for name in fits[0].error_percent}
    work: list[dict[str, Any]] = []
    for fitted in fits:
        works = fitted.fit.hierarchy.work(fitted.fit.theta)
        columns = {
            "time_at_max_clock_s": np.exp(works.log_time_s), "clock_sensitive_share": works.share,
            "static_w": works.static_w, "switching_w": works.switching_w,
        }  # fmt: skip
        for i, name in enumerate(fitted.work):
            figures = {key: rounded(float(values[i])) for key, values in columns.items()}
            work.append({"work": name} | figures | dict(fitted.savings[i] if i < len(fitted.savings) else {}))
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
        work=tuple(work[:MOST_WORK]),
        measure_next=tuple(_advice(board, constants, np.concatenate([fitted.x for fitted in fits]))),
    )


def _listed(values: Floats) -> list[float]:
    """All of a few values, else the ends and the quartiles."""
    few = values if len(values) <= 40 else np.quantile(values, np.linspace(0.0, 1.0, 5))
    return [rounded(float(value)) for value in few]


def _constants(board: Board, fits: Sequence[ExplainedFit]) -> tuple[Constants, dict[str, float]]:
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
