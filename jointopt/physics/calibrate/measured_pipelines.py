"""Measured ranks of pipelines: one fit per pipeline, and predictions of other plans of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import TableError
from jointopt.core.schema import Bools, Ints
from jointopt.physics.calibrate import profiles
from jointopt.physics.calibrate.law_fit import Board
from jointopt.physics.calibrate.pipeline_fit import RankFit, RankRows, fit_ranks
from jointopt.physics.calibrate.stage_tables import Key, ResponseTable, keys_of, plan_keys, work_columns

_MOST_READINGS = 280  # of one fit, spread evenly over the plans of the pipeline
_NEEDED = ["forward_time_sum_s", "backward_time_sum_s", "iteration_time_s", "energy_j"]


def fit_pipelines(measured: ResponseTable, queried: pd.DataFrame, board: Board) -> profiles.FitsAndColumns:
    """One fit per pipeline, and the predicted columns of the rows ``queried``, by position."""
    rows = measured.rows
    columns = work_columns(rows, queried)
    columns = [c for c in columns if c != "num_micro_batches" or queried.empty or queried[c].notna().all()]
    keys, wanted = keys_of(rows, columns), keys_of(queried, columns)
    plans, queried_plans = plan_keys(rows), plan_keys(queried)
    pipelines = list(dict.fromkeys(keys))
    fits, parts = [], [pd.DataFrame(index=queried.index[:0])]
    for key in pipelines:
        own, at = ([i for i, other in enumerate(of) if other == key] for of in (keys, wanted))
        pipeline = _Pipeline.of(rows.iloc[own], [plans[i] for i in own], board)
        fits.append(pipeline.fitted(key))
        parts.append(pipeline.predicted(queried.iloc[at], [queried_plans[i] for i in at]))
    fit = pd.concat(parts).reindex(queried.index)
    reasons = fit.pop(profiles.NOT_PREDICTED).tolist()
    pairs = zip(wanted, reasons, strict=True)
    reasons = [reason if key in pipelines else profiles.unknown_work(key, pipelines) for key, reason in pairs]
    return fits, fit.assign(**{profiles.NOT_PREDICTED: reasons})


def _whole_and_kept(rows: pd.DataFrame, plans: Sequence[Key]) -> Bools:
    """Rows with all that a fit needs, of plans spread evenly where there are too many."""
    whole = rows[_NEEDED].notna().all(axis=1)
    if not whole.any():
        raise TableError(
            "No row of the table has the rank's forward and backward time, the iteration's time and the rank's energy; "
            "all four are needed to calibrate."
        )
    names = list(dict.fromkeys(plan for plan, full in zip(plans, whole, strict=True) if full))
    most = max(_MOST_READINGS // max(rows["rank"].nunique(), 1), 1)
    kept = {names[i] for i in profiles.spread_evenly(np.arange(len(names)), most)}
    return np.array([full and plan in kept for plan, full in zip(plans, whole, strict=True)])


@dataclass(frozen=True)
class _Pipeline:
    """One pipeline: the number of each of its ranks, its readings, and their fit."""

    board: Board
    ranks: dict[Any, int]
    micro_batches: int
    readings: RankRows
    fit: RankFit

    @classmethod
    def of(cls, rows: pd.DataFrame, plans: Sequence[Key], board: Board) -> _Pipeline:
        """The pipeline of measured rows, fitted. Raises TableError where no row is whole."""
        use = _whole_and_kept(rows, plans)
        rows, plans = rows[use], [plan for plan, used in zip(plans, use, strict=True) if used]
        ranks = {rank: i for i, rank in enumerate(sorted(rows["rank"].unique()))}
        counts = rows["num_micro_batches"].dropna()
        micro_batches = int(counts.median()) if len(counts) else 1
        readings = _rank_rows(rows, plans, ranks, micro_batches, board)
        return cls(board, ranks, micro_batches, readings, fit_ranks(readings, board.prior))

    def fitted(self, key: Key) -> profiles.ExplainedFit:
        """The fit, and how it explains its readings."""
        times = np.concatenate([time.value for time in self.fit.time])
        error = {
            "pass_time": profiles.mean_error_percent(times, self.readings.time_s.reshape(-1)),
            "energy": profiles.mean_error_percent(self.fit.energy, self.readings.energy_j),
        }
        passes = [(way, rank) for way in ("forward", "backward") for rank in range(self.readings.ranks)]
        names = [" ".join([*key, f"rank {rank}", way]) for way, rank in passes]
        return profiles.ExplainedFit(self.fit, self.readings.x.reshape(-1), error, names)

    def predicted(self, queried: pd.DataFrame, plans: Sequence[Key]) -> pd.DataFrame:
        """Predicted columns of rows of this pipeline, plan by plan whole, and why the others have none."""
        known = queried["rank"].isin(list(self.ranks)).to_numpy(bool)
        rows, plans = queried[known], [plan for plan, is_known in zip(plans, known, strict=True) if is_known]
        parts, first = [pd.DataFrame(index=rows.index[:0])], int(self.readings.plan.max()) + 1
        for block in _whole_plans(plans):
            some = rows.iloc[block]
            more = _rank_rows(some, [plans[i] for i in block], self.ranks, self.micro_batches, self.board)
            more = replace(more, plan=more.plan + first, energy_j=np.full(len(some), np.nan))
            fit = fit_ranks(profiles.with_rows_after(self.readings, more), self.board.prior, self.fit.found)
            names = {"predicted_iteration_time_s": fit.iteration, "predicted_energy_j": fit.energy}
            ends = {name: profiles.last_rows(part, len(some)) for name, part in names.items()}
            parts.append(profiles.estimate_columns(ends, some.index))
        there = ", ".join(f"{rank:g}" for rank in self.ranks)
        reason = np.where(known, "", f"no reading of that rank: measured are {there}")
        return pd.concat(parts).reindex(queried.index).assign(**{profiles.NOT_PREDICTED: reason})


def _rank_rows(
    rows: pd.DataFrame, plans: Sequence[Key], ranks: dict[Any, int], micro_batches: int, board: Board
) -> RankRows:
    clocks = rows[["forward_clock_mhz_mean", "backward_clock_mhz_mean"]]
    clocks = clocks.T.bfill().ffill().T  # one of both stands for the other
    counts = rows["num_micro_batches"].fillna(micro_batches).to_numpy(float)
    return RankRows(
        rank=rows["rank"].map(ranks).to_numpy(np.int64), plan=_numbers(plans),
        x=(clocks.fillna(board.max_clock_mhz).to_numpy(float) / board.max_clock_mhz).T,
        limit_w=rows["power_limit_w"].to_numpy(float), num_micro_batches=micro_batches,
        time_s=rows[["forward_time_sum_s", "backward_time_sum_s"]].to_numpy(float).T / counts,
        iteration_s=rows["iteration_time_s"].to_numpy(float), energy_j=rows["energy_j"].to_numpy(float),
    )  # fmt: skip


def _numbers(plans: Sequence[Key]) -> Ints:
    """The plan of every row, numbered as they come."""
    number = {plan: i for i, plan in enumerate(dict.fromkeys(plans))}
    return np.array([number[plan] for plan in plans], np.int64)


def _whole_plans(plans: Sequence[Key]) -> Iterator[Ints]:
    """Positions of rows, whole plans together, about `MOST_QUERIED` at a time."""
    number = _numbers(plans)
    order = np.argsort(number, kind="stable")
    start = 0
    while start < len(order):
        end = start + profiles.MOST_QUERIED
        while end < len(order) and number[order[end]] == number[order[end - 1]]:
            end += 1
        yield order[start:end]
        start = end
