"""``evaluate``: predictions against a table of measurements, per group of comparable runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import kendalltau

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.core.schema import Floats
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.cluster import Machine
from jointopt.report.results import Evaluation
from jointopt.runs.cells import is_known, spelled
from jointopt.runs.ignored_columns import without_time
from jointopt.runs.row_names import row_names
from jointopt.runs.table import doubtful_precision
from jointopt.surrogate.correction import load_surrogate
from jointopt.surrogate.data_doubts import (
    MeasuredWatts,
    apart_lines,
    doubts,
    impossible,
    off_scale,
    set_apart,
    static_power_w,
)
from jointopt.surrogate.evidence import Evidence
from jointopt.surrogate.measurements import Measurements, precision_lines
from jointopt.surrogate.surrogate import Fingerprints, fingerprints
from jointopt.workflows.answers import from_files
from jointopt.workflows.predict import predict

_log = logging.getLogger(__name__)
_ALIKE = (
    "model", "num_layers", "hidden_size", "framework", "gpu", "num_gpus", "global_batch_size", "seq_length", "dtype",
)  # fmt: skip
_TO_CLASS = (
    10  # runs of a source that determine its recipe class and precision: to price all takes as long as to judge them
)
# What is judged beside time where it was measured: relative errors, and kelvins of temperature.
_BESIDE_TIME = {
    "avg_power_w": "power_error", "energy_j": "energy_error", "peak_memory_gib": "memory_error",
    "peak_power_w": "peak_power_error", "temperature_c": "temperature_error_k",
}  # fmt: skip
_PREDICTED = "what was predicted"
LEAST_TO_RANK = 3  # plans of a group below which rank and regret are not significant


@from_files
def evaluate(
    table: pd.DataFrame, surrogate: str = "default", measured: pd.DataFrame | Measurements | None = None,
    calibration: Calibration | None = None, storage: str | None = None, machine: Machine | None = None,
) -> Evaluation:  # fmt: skip
    """Errors of predictions on ``table``; rows that ran out of memory count for feasibility only.

    Options as for `predict`. Rows that are not judged are logged. Raises TableError for a table without measured times.
    Rows that the surrogate was trained on are no evidence about it: the answer counts them.
    """
    runs = Measurements.of(table, "the table")
    table = runs.table
    if not (table["iteration_time_s"] > 0).any():
        why = without_time(table) or "; expected at least one row"
        raise TableError(f"The table has no measured iteration_time_s to compare with{why}.")
    names = {"source": table["source"].astype(object).fillna("")} if "source" in table else {}
    names["group"] = _groups(table)
    known = [*names]
    given = None if measured is None else Measurements.given(measured)
    judged = predict(table, surrogate, given, calibration, storage, machine).assign(**names)
    judged, of_unit = _with_possible_times(judged)
    some = _some_of_each(table.assign(iteration_time_s=judged["iteration_time_s"].to_numpy(float)))
    of_precision = precision_lines(some)
    for sentence in [*of_unit, *_doubts(judged, of_precision), *of_precision.values(), *_power_doubts(judged)]:
        _log.warning("%s", sentence)
    groups = [dict(zip(known, key, strict=True)) | _figures(rows) for key, rows in judged.groupby(known, sort=False)]
    learned = _learned_rows(runs, judged, surrogate, given)
    return Evaluation(pd.DataFrame(groups), _figures(judged, ranked=False), _summary(judged), learned)


def _learned_rows(
    runs: Measurements, judged: pd.DataFrame, surrogate: str, measured: Measurements | None
) -> int | None:
    """How many of the judged rows predictions learned from, by their content; None where that is not known.

    Those are rows of the surrogate, where it knows its own, and of the runs that were given as ``measured``.
    """
    learned = load_surrogate(surrogate)
    own = None if learned is None else learned.learned_rows
    sources = [rows for rows in (own, None if measured is None else _fingerprints(measured)) if rows is not None]
    if not sources:
        return None
    ran = (judged["status"] == "ok") & (judged["iteration_time_s"] > 0) & judged["predicted_iteration_time_s"].notna()
    known = _fingerprints(runs)
    return int(np.isin(known[ran.to_numpy(bool)], np.concatenate(sources)).sum()) if len(known) else 0


def _fingerprints(runs: Measurements) -> Fingerprints:
    """Fingerprints of the rows of runs, (n,); none where no row can be priced, which `predict` has logged."""
    try:
        works, _ = runs.workloads
    except TableError:
        return np.empty(0, np.uint64)
    return fingerprints(works, runs.table["iteration_time_s"].to_numpy(float))


def _summary(judged: pd.DataFrame) -> pd.DataFrame | None:
    """Figures by source and GPU, those with the largest signed error first; None where the table names neither."""
    keys = [name for name in ("source", "gpu") if name in judged]
    if not keys:
        return None
    by = judged.groupby(keys, sort=False, dropna=False)
    rows = [dict(zip(keys, key, strict=True)) | _bias(some) | _figures(some, ranked=False) for key, some in by]
    found = pd.DataFrame(rows).drop(columns=["kendall_tau", "top1_regret"])
    return found.sort_values("bias", key=lambda bias: -bias.abs(), kind="stable")


def _bias(rows: pd.DataFrame) -> dict[str, float]:
    """The median of predicted over measured time, less one: its sign says whether predictions are too slow."""
    ran = rows[(rows["status"] == "ok") & (rows["iteration_time_s"] > 0)]
    return {"bias": float((ran["predicted_iteration_time_s"] / ran["iteration_time_s"] - 1.0).median())}


def _with_possible_times(judged: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without times in another unit than the others of their source, and a sentence on each such source."""
    ratio, source = _log_ratio(judged), _source(judged)
    apart = set_apart(ratio, source)
    lines = apart_lines(ratio, np.arange(len(judged)), apart, source, _PREDICTED)
    possible = judged["iteration_time_s"].mask(impossible(ratio, apart))
    return judged.assign(iteration_time_s=possible), lines


def _log_ratio(judged: pd.DataFrame) -> Floats:
    """log(measured / predicted time) of every row, (n,), NaN where there is none."""
    ran = (judged["status"] == "ok") & (judged["iteration_time_s"] > 0)
    ratio = judged["iteration_time_s"] / judged["predicted_iteration_time_s"]
    return np.asarray(np.log(ratio.where(ran).to_numpy(float)))


def _source(judged: pd.DataFrame) -> npt.NDArray[np.str_]:
    return judged["source"].to_numpy(str) if "source" in judged else np.full(len(judged), "")


def _doubts(judged: pd.DataFrame, of_precision: Iterable[Source]) -> list[str]:
    """A sentence on each source whose times are far from those predicted, and of which nothing likelier is suspected.

    That is of a row, or of sources ``of_precision``.
    """
    ratio, source = np.where(doubtful_precision(judged), np.nan, _log_ratio(judged)), _source(judged)
    known = {source.origin for source in of_precision}
    return doubts(off_scale(ratio, source), _PREDICTED, {*known, *set_apart(ratio, source)})


def _power_doubts(judged: pd.DataFrame) -> list[str]:
    """A sentence on each source whose measured power is of something else than one GPU in W, or of a part of a job."""
    if "predicted_avg_power_w" not in judged or "gpu" not in judged:
        return []
    static_w = {name: static_power_w(name) for name in judged["gpu"].dropna().unique()}
    slower = np.exp(_log_ratio(judged))
    predicted_w = judged["predicted_avg_power_w"].to_numpy(float)
    watts = MeasuredWatts.of(judged, predicted_w, slower, judged["gpu"].map(static_w).to_numpy(float))
    rows = np.arange(len(judged), dtype=np.int64)
    return watts.lines(_source(judged), rows, row_names(judged), "errors of power and energy say nothing")


def _some_of_each(table: pd.DataFrame) -> dict[Source, Evidence]:
    """Evidence of each source of timed runs, of many that of some."""
    timed = table[(table["status"] == "ok") & (table["iteration_time_s"] > 0)]
    keys = [name for name in ("source", "framework", "gpu") if name in timed]
    drawn = timed.sample(frac=1.0, random_state=0)
    some = (drawn.groupby(keys, dropna=False, sort=False) if keys else drawn).head(_TO_CLASS)
    some = some.sort_index().reset_index(drop=True)
    try:
        return Measurements(some).evidence_by_source()
    except TableError:
        return {}


def _groups(table: pd.DataFrame) -> pd.Series[Any]:
    """The table's groups; where it names none, runs of one model, GPU, number of GPUs and batch are comparable."""
    blank = pd.Series(None, index=table.index, dtype=object)
    given = table["group"].astype(object) if "group" in table else blank
    alike = table[[name for name in _ALIKE if name in table]]
    words = alike.apply(lambda run: " ".join(str(spelled(cell)) for cell in run if is_known(cell)), axis=1)
    return given.fillna(words if len(alike.columns) else "")


def _figures(rows: pd.DataFrame, ranked: bool = True) -> dict[str, int | float]:
    unpredicted = rows["predicted_iteration_time_s"].isna()
    rows = rows[~unpredicted]
    ran = rows[(rows["status"] == "ok") & (rows["iteration_time_s"] > 0)]
    time_s, predicted = ran["iteration_time_s"], ran["predicted_iteration_time_s"]
    error = (predicted / time_s - 1.0).abs()
    inside = time_s.between(ran["predicted_iteration_time_s_low"], ran["predicted_iteration_time_s_high"])
    enough = ranked and len(ran) >= LEAST_TO_RANK
    return {
        "rows": len(ran),
        "not_predicted": int(unpredicted.sum()),
        "median_error": float(error.median()),
        "mean_error": float(error.mean()),
        "kendall_tau": float(kendalltau(predicted, time_s)[0]) if enough else np.nan,
        "top1_regret": _regret(time_s, predicted) if enough else np.nan,
        "covered": float(inside.mean()) if len(ran) else np.nan,
        **_beside_time(ran),
        **_out_of_memory(rows),
    }


def _beside_time(ran: pd.DataFrame) -> dict[str, float]:
    """Median errors of what was measured beside time, as far as it is predicted."""
    found = {}
    for name, error in _BESIDE_TIME.items():
        if name in ran and f"predicted_{name}" in ran:
            measured, predicted = ran[name].astype(float), ran[f"predicted_{name}"].astype(float)
            apart = predicted - measured if name == "temperature_c" else predicted / measured.where(measured > 0) - 1.0
            if apart.notna().any():
                found[error] = float(apart.abs().median())
    return found


def _regret(time_s: pd.Series[float], predicted: pd.Series[float]) -> float:
    """The share by which the plan predicted fastest is slower than the fastest."""
    chosen = int(predicted.to_numpy(float).argmin())
    return float(time_s.to_numpy(float)[chosen] / time_s.min() - 1.0)


def _out_of_memory(rows: pd.DataFrame) -> dict[str, float]:
    known = rows[rows["status"].isin(["ok", "oom"])]
    was, predicted = known["status"] == "oom", ~known["predicted_fits"].astype(bool)
    hit = float((was & predicted).sum())
    return {
        "oom_recall": hit / was.sum() if was.any() else np.nan,
        "oom_precision": hit / predicted.sum() if predicted.any() and was.any() else np.nan,
    }
