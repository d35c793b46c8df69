"""``evaluate``: predictions against a table of measurements, per group of comparable runs."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.report.results import Evaluation
from jointopt.runs.cells import cell_as_written
from jointopt.runs.ignored_columns import without_time
from jointopt.runs.row_names import row_names
from jointopt.runs.rows import is_blank
from jointopt.runs.table import doubtful_precision
from jointopt.surrogate.data_doubts import (
    MeasuredWatts,
    doubted_sources,
    impossible_outliers,
    outlier_lines,
    static_power_w,
    unit_lines,
    unit_outliers,
)
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.measurements import Measurements, precision_lines
from jointopt.surrogate.surrogate import Fingerprints, fingerprints
from jointopt.workflows.answers import accepts_paths
from jointopt.workflows.predict import predict

if TYPE_CHECKING:
    from jointopt.jobs.calibration import Calibration
    from jointopt.jobs.cluster import Machine
    from jointopt.workflows.answers import CalibrationLike, MachineLike, TableLike

_log = logging.getLogger(__name__)
_ALIKE = (
    "model", "num_layers", "hidden_size", "framework", "gpu", "num_gpus", "global_batch_size", "seq_length", "dtype",
)  # fmt: skip
# Runs of a source that determine its recipe class and precision: to price all takes as long as to judge them.
_TO_CLASS = 10
# What is judged beside time where it was measured: relative errors, and kelvins of temperature.
_BESIDE_TIME = {
    "avg_power_w": "power_error", "energy_j": "energy_error", "peak_memory_gib": "memory_error",
    "peak_power_w": "peak_power_error", "temperature_c": "temperature_error_k",
}  # fmt: skip
_PREDICTED = "what was predicted"
LEAST_TO_RANK = 3  # plans of a group below which rank and regret are not significant


@accepts_paths
def evaluate(
    table: TableLike, surrogate: str = "default", measured: TableLike | None = None,
    calibration: CalibrationLike | None = None, storage: str | None = None, machine: MachineLike | None = None,
) -> Evaluation:  # fmt: skip
    """Errors of predictions on ``table``; rows that ran out of memory count for feasibility only.

    Rows that are not judged are logged. Rows that the surrogate was trained on are no evidence about it: the answer
    counts them.

    Parameters
    ----------
    table : DataFrame or path
        Measured runs, units in the names of their columns.
    surrogate : str, optional
        Name of a shipped surrogate, folder that `retrain` wrote, or "none" for physics alone.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database whose measured runs correct the predictions too; none by default.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.

    Returns
    -------
    Evaluation
        By group: errors of time and energy (%), Kendall tau, regret of the best plan, coverage of intervals.

    Raises
    ------
    TableError
        For a table without measured times.
    """
    calibration, machine = cast("Calibration | None", calibration), cast("Machine | None", machine)
    runs = Measurements.of(cast("pd.DataFrame", table), "the table")
    table = runs.table
    if not (table["iteration_time_s"] > 0).any():
        why = without_time(table) or "; expected at least one row"
        raise TableError(f"The table has no measured iteration_time_s to compare with{why}.")
    names = {"source": table["source"].astype(object).fillna("")} if "source" in table else {}
    # where the table names no group, runs of one model, GPU, number of GPUs and batch are comparable
    given_groups = table["group"].astype(object) if "group" in table else pd.Series(None, table.index, dtype=object)
    alike = table[[name for name in _ALIKE if name in table]]
    words = alike.apply(lambda run: " ".join(str(cell_as_written(cell)) for cell in run if not is_blank(cell)), axis=1)
    names["group"] = given_groups.fillna(words if len(alike.columns) else "")
    known = [*names]
    given = None if measured is None else Measurements.given(cast("Measurements", measured))
    judged = predict(table, surrogate, given, calibration, storage, machine).assign(**names)
    judged, sentences = _with_doubts(judged, table)
    for sentence in sentences:
        _log.warning("%s", sentence)
    groups = [dict(zip(known, key, strict=True)) | _figures(rows) for key, rows in judged.groupby(known, sort=False)]
    learned = _learned_rows(runs, judged, surrogate, given)
    return Evaluation(pd.DataFrame(groups), _figures(judged, ranked=False), _summary(judged), learned)


def _with_doubts(judged: pd.DataFrame, table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows without times in another unit than the others of their source, and a sentence on each doubtful source.

    That is of its times, of its precision where that would explain them, or of its power: in another unit than W, of
    more than one GPU, or of a part of a job.
    """
    source = judged["source"].to_numpy(str) if "source" in judged else np.full(len(judged), "")
    ran = (judged["status"] == "ok") & (judged["iteration_time_s"] > 0)
    ratio = np.log((judged["iteration_time_s"] / judged["predicted_iteration_time_s"]).where(ran).to_numpy(float))
    apart, rows = unit_outliers(ratio, source), np.arange(len(judged))
    lost = impossible_outliers(ratio, apart)
    lines = outlier_lines(ratio, rows, apart, source, _PREDICTED)
    judged = judged.assign(iteration_time_s=judged["iteration_time_s"].mask(lost))
    # evidence of each source, of many runs that of some, of which the next precision may explain the times
    timed = table.assign(iteration_time_s=judged["iteration_time_s"].to_numpy(float))
    timed = timed[(timed["status"] == "ok") & (timed["iteration_time_s"] > 0)]
    keys = [name for name in ("source", "framework", "gpu") if name in timed]
    drawn = timed.sample(frac=1.0, random_state=0)
    some = (drawn.groupby(keys, dropna=False, sort=False) if keys else drawn).head(_TO_CLASS)
    of_precision: dict[Source, str] = {}
    with suppress(TableError):
        of_precision = precision_lines(Measurements(some.sort_index().reset_index(drop=True)).evidence_by_source())
    ratio = np.where(lost, np.nan, ratio)
    unasked = np.where(doubtful_precision(judged), np.nan, ratio)
    explained = {*(one.origin for one in of_precision), *unit_outliers(ratio, source)}
    lines += [*unit_lines(doubted_sources(unasked, source), _PREDICTED, explained), *of_precision.values()]
    if "predicted_avg_power_w" in judged and "gpu" in judged:
        static_w = {name: static_power_w(name) for name in judged["gpu"].dropna().unique()}
        predicted_w, idle_w = (
            values.to_numpy(float) for values in (judged["predicted_avg_power_w"], judged["gpu"].map(static_w))
        )
        watts = MeasuredWatts.of(judged, predicted_w, np.exp(ratio), idle_w)
        lines += watts.lines(source, rows, row_names(judged), "errors of power and energy say nothing")
    return judged, lines


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
    """Figures by source and GPU, those with the largest signed error first; None where the table names neither.

    ``bias``: the median of predicted over measured time, less one: its sign says whether predictions are too slow.
    """
    keys = [name for name in ("source", "gpu") if name in judged]
    if not keys:
        return None
    rows = []
    for key, some in judged.groupby(keys, sort=False, dropna=False):
        ran = some[(some["status"] == "ok") & (some["iteration_time_s"] > 0)]
        bias = float((ran["predicted_iteration_time_s"] / ran["iteration_time_s"] - 1.0).median())
        rows.append(dict(zip(keys, key, strict=True)) | {"bias": bias} | _figures(some, ranked=False))
    found = pd.DataFrame(rows).drop(columns=["kendall_tau", "top1_regret"])
    return found.sort_values("bias", key=lambda bias: -bias.abs(), kind="stable")


def _figures(rows: pd.DataFrame, ranked: bool = True) -> dict[str, int | float]:
    """Median errors, coverage, ranks (``ranked``, of enough plans) and failures foreseen of judged rows.

    ``top1_regret``: the share by which the plan predicted fastest is slower than the fastest.
    """
    unpredicted = rows["predicted_iteration_time_s"].isna()
    rows = rows[~unpredicted]
    ran = rows[(rows["status"] == "ok") & (rows["iteration_time_s"] > 0)]
    time_s, predicted = ran["iteration_time_s"], ran["predicted_iteration_time_s"]
    error = (predicted / time_s - 1.0).abs()
    inside = time_s.between(ran["predicted_iteration_time_s_low"], ran["predicted_iteration_time_s_high"])
    tau = regret = np.nan
    if ranked and len(ran) >= LEAST_TO_RANK:
        chosen, tau = int(predicted.to_numpy(float).argmin()), float(kendalltau(predicted, time_s)[0])
        regret = float(time_s.to_numpy(float)[chosen] / time_s.min() - 1.0)
    found = {
        "rows": len(ran), "not_predicted": int(unpredicted.sum()), "median_error": float(error.median()),
        "mean_error": float(error.mean()), "kendall_tau": tau, "top1_regret": regret,
        "covered": float(inside.mean()) if len(ran) else np.nan,
    }  # fmt: skip
    for name, called in _BESIDE_TIME.items():
        if name in ran and f"predicted_{name}" in ran:
            measured, expected = ran[name].astype(float), ran[f"predicted_{name}"].astype(float)
            apart = expected - measured if name == "temperature_c" else expected / measured.where(measured > 0) - 1.0
            if apart.notna().any():
                found[called] = float(apart.abs().median())
    known = rows[rows["status"].isin(["ok", "oom"])]
    was, foreseen = known["status"] == "oom", ~known["predicted_fits"].astype(bool)
    hit = float((was & foreseen).sum())
    return found | {
        "oom_recall": hit / was.sum() if was.any() else np.nan,
        "oom_precision": hit / foreseen.sum() if foreseen.any() and was.any() else np.nan,
    }
