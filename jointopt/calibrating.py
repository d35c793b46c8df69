"""``calibrate``: the clock response of a GPU and its work from a stage profile or measured pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.calibration import Calibration, Constants
from jointopt.catalog.gpus import load_gpu
from jointopt.catalog.power import response_figures
from jointopt.errors import CatalogError, TableError
from jointopt.physics.clock_response import Hierarchy, ResponsePrior, Work, take
from jointopt.physics.rank_response import RankFit, RankRows, fit_ranks
from jointopt.physics.stage_response import Estimate, StageFit, StageRows, fit_stages
from jointopt.response_tables import (
    ResponseTable,
    check_results,
    gpu_id,
    in_no_order,
    keys_of,
    plan_keys,
    response_table,
    stage_blocks,
    unlabelled_stages,
    work_columns,
)
from jointopt.schema import Bools, Floats, Ints
from jointopt.spec.cluster import Gpu

_MOST_READINGS = {"stages": 600, "iterations": 600, "ranks": 280}  # of one fit, spread evenly over the file
_MOST_ASKED = 400  # rows that are predicted in one go
_MOST_WORK = 100  # pieces of work that a calibration lists
_SURE = {
    "knee_sd": 0.01,
    "rise_sd": 0.1,
    "static_sd": 0.08,
    "wait_sd": 0.08,
}  # of a GPU that was measured before
_LIMIT_SD, _LIMIT_SD_OTHER_BOARD = 0.03, 0.1  # relative, of the board's power limit
_TOLD = 0.8  # of a prior's width: what is left of it where readings say something
_ENDS = ("", "_low", "_high")
_NEAR_TOP, _NEAR_KNEE, _BELOW_KNEE = 0.97, 0.05, 0.1  # of the maximum clock


@dataclass(frozen=True)
class Calibrated:
    """The calibration, and the query with predicted columns where one was asked."""

    calibration: Calibration
    predictions: pd.DataFrame | None


@dataclass(frozen=True)
class _Board:
    id: str
    max_clock_mhz: float
    step_mhz: float
    prior: ResponsePrior


@dataclass(frozen=True)
class _Fitted:
    """One fit and the readings it is of."""

    told: StageFit | RankFit
    readings: StageRows | RankRows
    keys: list[tuple[str, ...]]  # of its curves or pipelines
    error_percent: dict[str, float]

    @property
    def x(self) -> Floats:
        """Clocks of the readings over the maximum clock."""
        return np.asarray(self.readings.x.reshape(-1))


def calibrate(table: pd.DataFrame, gpu: str, query: pd.DataFrame | None = None) -> Calibrated:
    """Fits the readings of that GPU in ``table`` and predicts ``query``, a table of the same columns without results.

    ``table`` is a stage profile, measured iterations, or pipeline ranks (see `jointopt.response_tables`). A query row
    that cannot be predicted has blanks and the reason in ``not_predicted``. Raises TableError for a table from which
    nothing can be learned, saying what it lacks.
    """
    measured = response_table(table)
    check_results(measured)
    asked = None if query is None else response_table(query, measured.kind)
    name = gpu_id(gpu)
    measured = ResponseTable(measured.kind, _of_gpu(measured.rows, name))
    found = _gpu(name, measured, asked)
    fit = _calibrate_ranks if measured.kind == "ranks" else _calibrate_stages
    fits, predicted = fit(measured, asked, found)
    predictions = None
    if query is not None and asked is not None:
        predictions = _written(query, predicted, _other_gpus(asked.rows, name))
    return Calibrated(_calibration(measured, found, fits), predictions)


def _of_gpu(rows: pd.DataFrame, gpu: str) -> pd.DataFrame:
    if "gpu" not in rows or rows["gpu"].isna().all():
        return rows
    own = rows[rows["gpu"].isna() | (rows["gpu"] == gpu)]
    if own.empty:
        there = ", ".join(sorted({str(name) for name in rows["gpu"].dropna()})[:5])
        raise TableError(
            f"No row of the table is of GPU {gpu!r}; its column gpu has {there}; give one of them as --gpu."
        )
    return own


def _other_gpus(rows: pd.DataFrame, gpu: str) -> Bools:
    if "gpu" not in rows:
        return np.zeros(len(rows), bool)
    return np.asarray(rows["gpu"].notna() & (rows["gpu"] != gpu))


def _gpu(name: str, measured: ResponseTable, asked: ResponseTable | None) -> _Board:
    """Clocks and prior knowledge of the GPU; of one that no catalogue knows, what the tables show."""
    clocks = [
        c for c in ("clock_mhz", "forward_clock_mhz_mean", "backward_clock_mhz_mean") if c in measured.rows
    ]
    seen = [float(t.rows[c].max()) for t in (measured, asked) if t is not None for c in clocks if c in t.rows]
    top = max((clock for clock in seen if np.isfinite(clock)), default=0.0)
    try:
        known = load_gpu(name)
    except CatalogError:
        known = None
    listed = (known.clock_max_mhz or 0.0) if known else 0.0
    max_clock = listed if listed > 0.0 and top <= 1.01 * listed else top or 1.0
    drawn = float(np.nanmax(measured.rows["power_w"])) if "power_w" in measured.rows else 0.0
    prior = _prior(known, drawn)
    return _Board(name, max_clock, (known.clock_step_mhz if known else None) or 15.0, prior)


def _prior(gpu: Gpu | None, drawn_w: float) -> ResponsePrior:
    """What is known of the GPU before its readings, of which the strongest drew ``drawn_w``."""
    usual = ResponsePrior()
    rated_w = (gpu.tdp_w if gpu else None) or max(1.1 * drawn_w, 1.0)
    prior = usual.scaled(rated_w / usual.limit_w)
    if gpu and gpu.power:
        static_w = max(gpu.power.static_w, 0.1 * rated_w)
        prior = replace(prior, static_w=static_w, wait_w=max(gpu.power.wait_w, static_w))
    figures = response_figures(gpu) if gpu else {}
    if figures:
        rise = figures["voltage_ratio"] - 1.0
        prior = replace(prior, knee=figures["knee_fraction"], rise=rise, static_w=figures["static_w"])
        prior = replace(prior, **_SURE)
    if gpu is None or gpu.tdp_w is None or drawn_w > 1.02 * rated_w:  # another board of that GPU
        return replace(prior, limit_w=max(1.03 * drawn_w, rated_w), limit_sd=_LIMIT_SD_OTHER_BOARD)
    return replace(prior, limit_sd=_LIMIT_SD)


# stage profiles and iterations


def _calibrate_stages(
    measured: ResponseTable, asked: ResponseTable | None, gpu: _Board
) -> tuple[list[_Fitted], pd.DataFrame]:
    """One fit of all curves, and the query's predicted columns by position."""
    rows = measured.rows
    query = asked.rows if asked is not None else rows.iloc[:0]
    columns = [*work_columns(rows, query if asked else rows), *_stage_column(rows, query), "instruction"]
    keys, wanted = keys_of(rows, columns), keys_of(query, columns)
    if unlabelled_stages(rows, keys, query, wanted):
        unordered = in_no_order(rows, keys) or in_no_order(query, wanted)
        keys = _by_profile(keys, stage_blocks(rows, keys))
        wanted = wanted if unordered else _by_profile(wanted, stage_blocks(query, wanted))
    asked_at = rows["clock_mhz"].notna() | rows["power_limit_w"].notna()
    whole = (rows["time_s"].notna() & rows["power_w"].notna() & asked_at).to_numpy()
    if not whole.any():
        raise TableError(
            "No row of the table has a clock or power limit, a time, and an energy or power; all are needed to "
            "calibrate."
        )
    kept = _spread(np.flatnonzero(whole), _MOST_READINGS[measured.kind])
    curves = {key: i for i, key in enumerate(dict.fromkeys(keys[i] for i in kept))}
    readings = _stage_rows(rows.iloc[kept], [keys[i] for i in kept], curves, gpu)
    readings = replace(readings, mixed=measured.kind == "iterations" and _pipelined(rows))
    told = fit_stages(readings, gpu.prior)
    fitted = _Fitted(told, readings, list(curves), _stage_error(told, readings))
    return [fitted], _predict_any(measured.kind, fitted, readings, query, wanted, gpu)


def _pipelined(rows: pd.DataFrame) -> bool:
    return "pp" not in rows or bool((pd.to_numeric(rows["pp"], errors="coerce") != 1).any())


def _by_profile(keys: Sequence[tuple[str, ...]], number: Ints) -> list[tuple[str, ...]]:
    return [(*key, f"profile {i + 1}") for key, i in zip(keys, number, strict=True)]


def _predict_any(
    kind: str,
    fitted: _Fitted,
    readings: StageRows,
    query: pd.DataFrame,
    wanted: list[tuple[str, ...]],
    gpu: _Board,
) -> pd.DataFrame:
    """`_predict_stages`; a row that may be of several profiles gets their mean, and an interval that holds them all."""
    profiles = [_profiles(key, fitted.keys) for key in wanted]
    at = np.repeat(np.arange(len(query)), [len(own) for own in profiles])
    of = [profile for own in profiles for profile in own]
    told = _predict_stages(kind, fitted, readings, query.iloc[at].reset_index(drop=True), of, gpu)
    if len(at) == len(query):
        return told.set_index(query.index)
    how = {"low": "min", "high": "max", "predicted": "first"}
    out = told.groupby(at).agg({str(name): how.get(str(name).rsplit("_", 1)[-1], "mean") for name in told})
    several = [f"mean of {len(own)} profiles" if len(own) > 1 else "" for own in profiles]
    return out.assign(assumed=several).set_index(query.index)


def _profiles(key: tuple[str, ...], known: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The key itself, or all profiles that were told apart where it does not say of which it is."""
    return [k for k in known if k[:-1] == key and k[-1].startswith("profile ")] or [key]


def _stage_column(rows: pd.DataFrame, query: pd.DataFrame) -> list[str]:
    return ["stage"] if "stage" in rows and (query.empty or "stage" in query) else []


def _stage_rows(
    rows: pd.DataFrame,
    keys: Sequence[tuple[str, ...]],
    curves: dict[tuple[str, ...], int],
    gpu: _Board,
    known: bool = True,
) -> StageRows:
    curve = np.array([curves[key] for key in keys], np.int64)
    words = [_direction(key) for key in curves]
    kinds = {word: i for i, word in enumerate(dict.fromkeys(words))}
    unknown = np.full(len(rows), np.nan)
    return StageRows(
        curve=curve,
        kind_of=np.array([kinds[word] for word in words], np.int64),
        x=rows["clock_mhz"].fillna(gpu.max_clock_mhz).to_numpy(float) / gpu.max_clock_mhz,
        limit_w=rows["power_limit_w"].to_numpy(float),
        time_s=rows["time_s"].to_numpy(float) if known else unknown,
        power_w=rows["power_w"].to_numpy(float) if known else unknown,
    )


def _direction(key: tuple[str, ...]) -> str:
    return key[-2] if key[-1].startswith("profile ") else key[-1]


def _stage_error(told: StageFit, rows: StageRows) -> dict[str, float]:
    time = np.abs(told.time.value / rows.time_s - 1.0)
    power = np.abs(told.power.value / rows.power_w - 1.0)
    return {"time": _round(100.0 * float(time.mean())), "power": _round(100.0 * float(power.mean()))}


def _predict_stages(
    kind: str,
    fitted: _Fitted,
    readings: StageRows,
    query: pd.DataFrame,
    wanted: list[tuple[str, ...]],
    gpu: _Board,
) -> pd.DataFrame:
    curves = {key: i for i, key in enumerate(fitted.keys)}
    known = np.array([key in curves for key in wanted], bool)
    clocked = (
        (query["clock_mhz"].notna() | query["power_limit_w"].notna()).to_numpy() if len(query) else known
    )
    parts = [pd.DataFrame(index=query.index[:0])]
    for at in _chunks(np.flatnonzero(known & clocked)):
        rows = query.iloc[at]
        more = _stage_rows(rows, [wanted[i] for i in at], curves, gpu, known=False)
        told = fit_stages(_joined(readings, more), gpu.prior, fitted.told.found)
        names, scale = _stage_names(kind, rows)
        told_of = (told.time, told.energy, told.power)
        ends = {n: _tail(e, len(at), s) for n, e, s in zip(names, told_of, scale, strict=True)}
        parts.append(_columns(ends, rows.index))
    out = pd.concat(parts).reindex(query.index)
    out["not_predicted"] = [
        ""
        if k and c
        else _unknown_work(key, fitted.keys)
        if not k
        else "clock_mhz and power_limit_w are blank"
        for k, c, key in zip(known, clocked, wanted, strict=True)
    ]
    return out


def _stage_names(kind: str, rows: pd.DataFrame) -> tuple[tuple[str, str, str], tuple[Any, Any, Any]]:
    if kind == "iterations":
        gpus = rows["num_gpus"].to_numpy(float) if "num_gpus" in rows else 1.0
        return ("predicted_iteration_time_s", "predicted_energy_j", "predicted_avg_power_w"), (1.0, gpus, 1.0)
    return ("predicted_time_s", "predicted_energy_j", "predicted_avg_power_w"), (1.0, 1.0, 1.0)


def _unknown_work(key: tuple[str, ...], known: list[tuple[str, ...]]) -> str:
    there = "; ".join(" ".join(k) for k in known[:4]) + (
        f" and {len(known) - 4} more" if len(known) > 4 else ""
    )
    return f"no reading of {' '.join(key)}: measure it at one clock at least (measured: {there})"


def _joined(readings: StageRows, more: StageRows) -> StageRows:
    names = ("curve", "x", "limit_w", "time_s", "power_w")
    both: dict[str, Any] = {n: np.concatenate([getattr(readings, n), getattr(more, n)]) for n in names}
    return replace(readings, **both)


def _tail(estimate: Estimate, count: int, scale: Any = 1.0) -> Estimate:
    return Estimate(*(getattr(estimate, end)[-count:] * scale for end in ("value", "low", "high")))


def _columns(estimates: dict[str, Estimate], index: Any) -> pd.DataFrame:
    columns = {}
    for name, estimate in estimates.items():
        for end, values in zip(_ENDS, (estimate.value, estimate.low, estimate.high), strict=True):
            columns[name + end] = values
    return pd.DataFrame(columns, index=index)


# pipeline ranks


def _calibrate_ranks(
    measured: ResponseTable, asked: ResponseTable | None, gpu: _Board
) -> tuple[list[_Fitted], pd.DataFrame]:
    """One fit per pipeline, and the query's predicted columns by position."""
    rows = measured.rows
    query = asked.rows if asked is not None else rows.iloc[:0]
    columns = work_columns(rows, query if asked else rows)
    columns = [c for c in columns if c != "num_micro_batches" or query.empty or query[c].notna().all()]
    keys, wanted = keys_of(rows, columns), keys_of(query, columns)
    plans, asked_plans = plan_keys(rows), plan_keys(query)
    fits, parts = [], [pd.DataFrame(index=query.index[:0])]
    reasons = dict.fromkeys(range(len(query)), "")
    for key in dict.fromkeys(keys):
        own = np.flatnonzero([k == key for k in keys])
        pipeline = _Pipeline(rows.iloc[own], [plans[i] for i in own], gpu)
        fitted = pipeline.fitted(key)
        fits.append(fitted)
        at = np.flatnonzero([k == key for k in wanted])
        parts += pipeline.predicted(fitted, query.iloc[at], [asked_plans[i] for i in at], reasons, at)
    for i, key in enumerate(wanted):
        if key not in set(keys):
            reasons[i] = _unknown_work(key, [f.keys[0] for f in fits])
    out = pd.concat(parts).reindex(query.index)
    out["not_predicted"] = [reasons[i] for i in range(len(query))]
    return fits, out


class _Pipeline:
    """Measured ranks of one pipeline, and what they say of other plans."""

    def __init__(self, rows: pd.DataFrame, plans: list[tuple[str, ...]], gpu: _Board) -> None:
        whole = (
            rows[["forward_time_sum_s", "backward_time_sum_s", "iteration_time_s", "energy_j"]]
            .notna()
            .all(axis=1)
        )
        if not whole.any():
            raise TableError(
                "No row of the table has the rank's forward and backward time, the iteration's time and the rank's "
                "energy; all four are needed to calibrate."
            )
        names = list(dict.fromkeys(plan for plan, full in zip(plans, whole, strict=True) if full))
        most = max(_MOST_READINGS["ranks"] // max(rows["rank"].nunique(), 1), 1)
        kept = {names[i] for i in _spread(np.arange(len(names)), most)}
        use = np.array([full and plan in kept for plan, full in zip(plans, whole, strict=True)])
        self.rows, self.plans, self.gpu = rows[use], [p for p, u in zip(plans, use, strict=True) if u], gpu
        self.ranks = {rank: i for i, rank in enumerate(sorted(self.rows["rank"].unique()))}
        counts = self.rows["num_micro_batches"].dropna()
        self.micro_batches = int(counts.median()) if len(counts) else 1
        self.readings = self._rows(self.rows, self.plans)

    def _rows(
        self, rows: pd.DataFrame, plans: list[tuple[str, ...]], known: bool = True, first: int = 0
    ) -> RankRows:
        number = {plan: i + first for i, plan in enumerate(dict.fromkeys(plans))}
        clocks = rows[["forward_clock_mhz_mean", "backward_clock_mhz_mean"]]
        clocks = clocks.T.bfill().ffill().T  # one of both stands for the other
        counts = rows["num_micro_batches"].fillna(self.micro_batches).to_numpy(float)
        times = rows[["forward_time_sum_s", "backward_time_sum_s"]].to_numpy(float).T / counts
        return RankRows(
            rank=rows["rank"].map(self.ranks).to_numpy(np.int64),
            plan=np.array([number[plan] for plan in plans], np.int64),
            x=(clocks.fillna(self.gpu.max_clock_mhz).to_numpy(float) / self.gpu.max_clock_mhz).T,
            limit_w=rows["power_limit_w"].to_numpy(float),
            num_micro_batches=self.micro_batches,
            time_s=times,
            iteration_s=rows["iteration_time_s"].to_numpy(float),
            energy_j=rows["energy_j"].to_numpy(float) if known else np.full(len(rows), np.nan),
        )

    def fitted(self, key: tuple[str, ...]) -> _Fitted:
        told = fit_ranks(self.readings, self.gpu.prior)
        energy = np.abs(told.energy.value / self.readings.energy_j - 1.0)
        times = np.concatenate([t.value for t in told.time]) / self.readings.time_s.reshape(-1)
        error = {
            "pass_time": _round(100 * float(np.abs(times - 1.0).mean())),
            "energy": _round(100 * float(energy.mean())),
        }
        return _Fitted(told, self.readings, [key], error)

    def predicted(
        self,
        fitted: _Fitted,
        rows: pd.DataFrame,
        plans: list[tuple[str, ...]],
        reasons: dict[int, str],
        at: Ints,
    ) -> Iterator[pd.DataFrame]:
        """Predicted columns of the query's rows of this pipeline, plan by plan whole; reasons for the others."""
        known = rows["rank"].isin(list(self.ranks)).to_numpy()
        for i in at[~known]:
            reasons[int(i)] = (
                f"no reading of that rank: measured are {', '.join(f'{r:g}' for r in self.ranks)}"
            )
        rows, plans = rows[known], [p for p, k in zip(plans, known, strict=True) if k]
        for block in _whole_plans(plans):
            some = rows.iloc[block]
            first = int(self.readings.plan.max()) + 1
            more = self._rows(some, [plans[i] for i in block], known=False, first=first)
            told = fit_ranks(_appended(self.readings, more), self.gpu.prior, fitted.told.found)
            ends = {"predicted_iteration_time_s": _tail(told.iteration, len(block))}
            yield _columns(ends | {"predicted_energy_j": _tail(told.energy, len(block))}, some.index)


def _whole_plans(plans: list[tuple[str, ...]]) -> Iterator[Ints]:
    """Positions of rows, whole plans together, about `_MOST_ASKED` at a time."""
    number = pd.factorize(pd.Series(plans, dtype=object))[0] if plans else np.zeros(0, np.int64)
    order = np.argsort(number, kind="stable")
    start = 0
    while start < len(order):
        end = min(start + _MOST_ASKED, len(order))
        while end < len(order) and number[order[end]] == number[order[end - 1]]:
            end += 1
        yield order[start:end]
        start = end


def _appended(readings: RankRows, more: RankRows) -> RankRows:
    names = ("rank", "plan", "x", "limit_w", "time_s", "iteration_s", "energy_j")
    both: dict[str, Any] = {
        n: np.concatenate([getattr(readings, n), getattr(more, n)], axis=-1) for n in names
    }
    return replace(readings, **both)


# the calibration


def _calibration(measured: ResponseTable, gpu: _Board, fits: list[_Fitted]) -> Calibration:
    rows = measured.rows
    clocks = [c for c in ("clock_mhz", "forward_clock_mhz_mean", "backward_clock_mhz_mean") if c in rows]
    seen = np.unique(rows[clocks].to_numpy(float))
    seen = seen[np.isfinite(seen)]
    limits = np.unique(rows["power_limit_w"].dropna())
    constants, spread = _constants(gpu, fits)
    names = fits[0].error_percent
    weights = [len(f.x) for f in fits]
    error = {n: _round(float(np.average([f.error_percent[n] for f in fits], weights=weights))) for n in names}
    return Calibration(
        gpu=gpu.id,
        constants=constants,
        plus_minus=spread,
        fitted_on={
            "kind": {"stages": "stage profile", "iterations": "iterations", "ranks": "pipeline ranks"}[
                measured.kind
            ],
            "rows": len(rows),
            "clocks_mhz": _listed(seen),
            "power_limits_w": _listed(limits),
        },
        fit_error_percent=error,
        work=tuple(_work_entries(gpu, fits))[:_MOST_WORK],
        measure_next=tuple(_advice(gpu, constants, np.concatenate([f.x for f in fits]))),
    )


def _listed(values: Floats) -> list[float]:
    """All of a few values, else the ends and the quartiles."""
    few = values if len(values) <= 40 else np.quantile(values, np.linspace(0.0, 1.0, 5))
    return [_round(float(value)) for value in few]


def _constants(gpu: _Board, fits: list[_Fitted]) -> tuple[Constants, dict[str, float]]:
    """The GPU's figures: means of the fits, each weighed by how sure it is."""
    columns = {"knee_fraction": 0, "voltage_ratio": 1, "static_w": 6, "board_limit_w": 7}
    figures, spread = {}, {}
    for name, i in columns.items():
        figures[name], spread[name] = _weighed(
            name, np.array([[f.told.theta[i], f.told.theta_sd[i]] for f in fits])
        )
    waits = [
        (f.told.theta[f.told.hierarchy.size], f.told.theta_sd[f.told.hierarchy.size])
        for f in fits
        if isinstance(f.told, RankFit)
    ]
    if waits:
        figures["wait_w"], spread["wait_w"] = _weighed("wait_w", np.array(waits))
    if (
        spread["board_limit_w"] > _TOLD * 1.645 * gpu.prior.limit_sd * figures["board_limit_w"]
    ):  # nothing came near it
        del figures["board_limit_w"], spread["board_limit_w"]
    return Constants(max_clock_mhz=_round(gpu.max_clock_mhz), **figures), spread


def _weighed(name: str, found: Floats) -> tuple[float, float]:
    """Value and half of its 90 % interval from values and deviations (fits, 2) of the parameter."""
    mean, sd = found.T
    weight = 1.0 / np.maximum(sd, 1e-6) ** 2
    value = float(np.average(mean, weights=weight))
    apart = float(np.sqrt(np.average((mean - value) ** 2, weights=weight)))
    width = 1.645 * max(float(np.sqrt(1.0 / weight.sum())), apart)
    if name == "knee_fraction":
        return _round(value), _round(width)
    figure = float(np.exp(value))
    return _round(figure + (1.0 if name == "voltage_ratio" else 0.0)), _round(figure * width)


def _work_entries(gpu: _Board, fits: list[_Fitted]) -> Iterator[dict[str, Any]]:
    for fitted in fits:
        works = fitted.told.hierarchy.work(fitted.told.theta)
        readings = fitted.readings
        saved = (
            _savings(fitted, readings, gpu) if isinstance(readings, StageRows) else [{}] * len(works.share)
        )
        for i, name in enumerate(_curve_names(fitted, fitted.told.hierarchy)):
            yield {"work": name} | _entry(take(works, np.array(i))) | saved[i]


def _curve_names(fitted: _Fitted, hierarchy: Hierarchy) -> list[str]:
    if isinstance(fitted.told, StageFit):
        return [" ".join(key) for key in fitted.keys]
    ranks = hierarchy.curves // 2
    return [
        " ".join([*fitted.keys[0], f"rank {i % ranks}", ("forward", "backward")[i // ranks]])
        for i in range(2 * ranks)
    ]


def _entry(work: Work) -> dict[str, Any]:
    return {
        "time_at_max_clock_s": _round(float(np.exp(work.log_time_s))),
        "clock_sensitive_share": _round(float(work.share)),
        "static_w": _round(float(work.static_w)),
        "switching_w": _round(float(work.switching_w)),
    }


def _savings(fitted: _Fitted, readings: StageRows, gpu: _Board) -> list[dict[str, Any]]:
    """Clock of the least energy, and savings over the maximum clock, of the curves that a calibration lists."""
    grid = np.linspace(min(float(readings.x.min()), 0.95), 1.0, 101)
    out: list[dict[str, Any]] = []
    for curve in range(min(len(fitted.keys), _MOST_WORK)):
        blank = np.full(len(grid), np.nan)
        more = StageRows(np.full(len(grid), curve), readings.kind_of, grid, blank, blank, blank)
        told = fit_stages(_joined(readings, more), gpu.prior, fitted.told.found)
        time, energy = _tail(told.time, len(grid)).value, _tail(told.energy, len(grid)).value
        time, energy = time / time[-1], energy / energy[-1]
        figures = {
            "least_energy_clock_mhz": round(float(grid[np.argmin(energy)]) * gpu.max_clock_mhz),
            "least_energy_saving_percent": _round(100 * float(1 - energy.min())),
        }
        for percent in (1, 5, 10):
            least = float(energy[time <= 1 + percent / 100].min())
            figures[f"saving_percent_at_{percent}_percent_slowdown"] = _round(100 * (1 - least))
        out.append(figures)
    return out + [{}] * (len(fitted.keys) - len(out))


def _advice(gpu: _Board, constants: Constants, x: Floats) -> Iterator[str]:
    """Which clocks would tell what these cannot."""
    knee = constants.knee_fraction

    def clock(fraction: float) -> int:
        return round(fraction * gpu.max_clock_mhz / gpu.step_mhz) * round(gpu.step_mhz)

    if x.min() > knee - _BELOW_KNEE:
        yield (
            f"a clock near {clock(knee - 0.17)} MHz: none is far below the knee, so static power and the share of time "
            f"that follows the clock rest on what is usual, and lower clocks are extrapolated"
        )
    if not (np.abs(x - knee) <= _NEAR_KNEE).any():
        yield f"a clock near {clock(knee)} MHz, where the voltage begins to rise: the least energy lies there"
    if x.max() < _NEAR_TOP:
        yield f"the maximum clock, {clock(1.0)} MHz: where the power limit bites is not seen below"


def _spread(index: Ints, most: int) -> Ints:
    """At most that many of the positions, evenly."""
    if len(index) <= most:
        return index
    at = np.unique(np.linspace(0, len(index) - 1, most).astype(int))
    return np.asarray(index[at])


def _chunks(index: Ints) -> Iterator[Ints]:
    for start in range(0, len(index), _MOST_ASKED):
        yield index[start : start + _MOST_ASKED]


def _round(value: float) -> float:
    return float(f"{value:.4g}") if value < 1e4 else round(value, 1)


def _written(query: pd.DataFrame, predicted: pd.DataFrame, other: Bools) -> pd.DataFrame:
    """The query with its predicted columns; rows of other GPUs have none."""
    columns = predicted.set_index(query.index)
    numbers = [name for name in columns if name != "not_predicted"]
    columns.loc[other, numbers] = np.nan
    columns.loc[other, "not_predicted"] = "the row is of another GPU than --gpu"
    return pd.concat([query.drop(columns=[c for c in columns if c in query]), columns], axis=1)
