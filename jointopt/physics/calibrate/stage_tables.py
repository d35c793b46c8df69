"""Tables of stage profiles, measured iterations and pipeline ranks: columns and units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from jointopt.core.errors import CatalogError, TableError, nearest_hint
from jointopt.core.schema import DEGREES, Ints
from jointopt.jobs.catalog.gpus import load_gpu

Kind = Literal["stages", "iterations", "ranks"]
Named = Callable[[int], str]  # the name of a row in messages, by its position: row 3 of profile.csv

# What tables call a column, in the order of preference; a number stands for the unit.
_ALIASES: dict[str, tuple[str, ...]] = {
    "clock_mhz": ("frequency", "freq", "frequency_mhz", "freq_mhz", "sm_clock_mhz", "gpu_clock_mhz", "sm_clock",
                  "clock", "gpu_frequency", "stage_clock_mhz"),
    "time_s": ("time", "duration_s", "duration", "latency_s", "epoch_time_s"),
    "energy_j": ("energy", "energy_joules", "gpu_energy_j"),
    "avg_power_w": ("power_w", "power", "average_power_w", "mean_power_w", "avg_power"),
    "power_limit_w": ("power_limit", "limit_w", "power_cap_w"),
    "instruction": ("instr", "direction", "pass", "phase", "kind"),
    "stage": ("stage_id", "pipeline_stage"),
    "rank": ("rank_id", "global_rank", "pipeline_rank"),
    "forward_clock_mhz_mean": ("forward_clock_mhz", "forward_frequency", "forward_clock"),
    "backward_clock_mhz_mean": ("backward_clock_mhz", "backward_frequency", "backward_clock"),
    "forward_time_sum_s": ("forward_time_s", "forward_s"),
    "backward_time_sum_s": ("backward_time_s", "backward_s"),
    "iteration_time_s": ("iter_time_s", "iteration_time", "step_time_s"),
    "num_micro_batches": ("num_microbatches", "micro_batches", "gradient_accumulation_steps"),
    "plan": ("plan_id", "schedule", "iteration", "run"),
    "num_gpus": ("n_gpus", "gpus"),
}  # fmt: skip
_SCALED = {"time_ms": ("time_s", 1e-3), "energy_mj": ("energy_j", 1e-3), "clock_ghz": ("clock_mhz", 1e3)}
_NUMBERS = (
    "clock_mhz", "time_s", "energy_j", "avg_power_w", "power_limit_w", "forward_clock_mhz_mean",
    "backward_clock_mhz_mean", "forward_time_sum_s", "backward_time_sum_s", "iteration_time_s", "num_micro_batches",
    "num_gpus",
)  # fmt: skip


@dataclass(frozen=True)
class ResponseTable:
    """Rows in the names and units of `_NUMBERS`, ``gpu`` as the catalogue spells it; rows keep their position."""

    kind: Kind
    rows: pd.DataFrame


def cell_at(place: str, column: str) -> str:
    """The beginning of a sentence on a cell, of the row that is named so."""
    return f"{place[0].upper()}{place[1:]}, column {column!r}"


def response_table(table: pd.DataFrame, kind: Kind | None = None, named: Named | None = None) -> ResponseTable:
    """The table in canonical columns; ``kind`` for a query, which lacks the results by which it is known.

    Raises TableError for a column that is missing and for a cell that is no number, whose row is ``named``.
    """
    named = named or (lambda row: f"row {row + 1}")
    spelled = table.reset_index(drop=True).rename(
        columns=lambda name: re.sub(r"[^a-z0-9]+", "_", str(name).strip().lower()).strip("_")
    )
    rows = spelled.loc[:, ~spelled.columns.duplicated()]
    for name, others in _ALIASES.items():
        given = next((other for other in others if other in rows), None)
        if name not in rows and given is not None:
            rows = rows.rename(columns={given: name})
    for name, (target, factor) in _SCALED.items():
        if name in rows and target not in rows:
            rows[target] = _numbers(rows[name], name, named) * factor
    for name in _NUMBERS:
        if name in rows:
            rows[name] = _numbers(rows[name], name, named)
    rows = rows.assign(gpu=rows["gpu"].map(gpu_id, na_action="ignore")) if "gpu" in rows else rows
    if kind is None and "iteration_time_s" in rows and "time_s" not in rows:
        kind = "ranks" if "rank" in rows or "forward_time_sum_s" in rows else "iterations"
    kind = kind or "stages"
    return ResponseTable(kind, _COMPLETED[kind](rows))


def gpu_id(name: object) -> str:
    """The catalogue's id of a GPU, or the name itself where the catalogue has none."""
    try:
        return load_gpu(str(name)).id
    except CatalogError:
        return str(name).strip().lower()


def _numbers(cells: pd.Series, name: str, named: Named) -> pd.Series:
    values = pd.to_numeric(cells, errors="coerce").astype(float)
    blank = cells.isna() | (cells.astype(str).str.strip() == "")
    wrong = ~blank & ~((values > 0) & np.isfinite(values))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        value = values.iloc[row]
        got = f"{str(cells.iloc[row])!r:.40}" if np.isnan(value) else f"{value:g}"
        raise TableError(f"{cell_at(named(row), name)}: expected a finite number above 0 or a blank, got {got}.")
    return values


def _stages(rows: pd.DataFrame) -> pd.DataFrame:
    """Stage profiles: time and power of one pass; a limit without a clock is at the maximum clock."""
    columns = ("clock_mhz", "power_limit_w", "time_s", "energy_j", "avg_power_w")
    rows = rows.reindex(columns=list(dict.fromkeys([*rows, *columns])))
    power = (rows["energy_j"] / rows["time_s"]).fillna(rows["avg_power_w"])
    if "instruction" not in rows:
        rows["instruction"] = "work"
    words = rows["instruction"].astype(str).str.strip().str.lower()
    if "stage" not in rows and "rank" in rows:
        rows["stage"] = rows["rank"]
    return rows.assign(power_w=power, instruction=words.replace({"f": "forward", "b": "backward"}))


def _iterations(rows: pd.DataFrame) -> pd.DataFrame:
    """Whole iterations without ranks: one piece of work, at the mean of its clocks, per GPU."""
    rows = rows.reindex(columns=list(dict.fromkeys([*rows, "iteration_time_s", "energy_j", "avg_power_w"])))
    passes = [name for name in ("forward_clock_mhz_mean", "backward_clock_mhz_mean") if name in rows]
    if "clock_mhz" not in rows and passes:
        rows["clock_mhz"] = rows[passes].mean(axis=1)
    gpus = rows.get("num_gpus", 1.0)
    rows = rows.assign(time_s=rows["iteration_time_s"], energy_j=rows["energy_j"] / gpus, instruction="iteration")
    _need(rows, "a table of iterations", "clock_mhz", "power_limit_w")
    return _stages(rows)


def _ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Ranks of pipelines: one row per rank and plan."""
    if "rank" not in rows and "stage" in rows:
        rows = rows.assign(rank=rows["stage"])
    _need(rows, "a table of pipeline ranks", "rank")
    for name in ("forward_clock_mhz_mean", "backward_clock_mhz_mean"):
        if name not in rows and "clock_mhz" in rows:
            rows = rows.assign(**{name: rows["clock_mhz"]})
    _need(rows, "a table of pipeline ranks", "forward_clock_mhz_mean", "power_limit_w")
    if "num_micro_batches" not in rows and {"global_batch_size", "micro_batch_size"} <= set(rows):
        batch = pd.to_numeric(rows["global_batch_size"]) / pd.to_numeric(rows["micro_batch_size"])
        rows = rows.assign(num_micro_batches=batch / pd.to_numeric(rows.get("dp", 1)))
    results = ("forward_time_sum_s", "backward_time_sum_s", "iteration_time_s", "energy_j", "avg_power_w")
    clocks = ("forward_clock_mhz_mean", "backward_clock_mhz_mean", "power_limit_w", "num_micro_batches")
    rows = rows.reindex(columns=list(dict.fromkeys([*rows, *results, *clocks])))
    by_power = rows["avg_power_w"] * rows["iteration_time_s"]
    return rows.assign(energy_j=rows["energy_j"].fillna(by_power))


_COMPLETED = {"stages": _stages, "iterations": _iterations, "ranks": _ranks}


# Per kind the table's name, and what one of these columns must hold, by the column that the error names.
_RESULTS: dict[Kind, tuple[str, dict[str, tuple[tuple[str, ...], str]]]] = {
    "stages": ("a stage profile", {
        "time_s": (("time_s",), "seconds of one pass (also read: time, frequency, energy)"),
        "energy_j": (("power_w",), "joules of one pass, or avg_power_w"),
        "clock_mhz": (("clock_mhz", "power_limit_w"), "the SM clock, or power_limit_w"),
    }),
    "ranks": ("a table of pipeline ranks", {
        "forward_time_sum_s": (("forward_time_sum_s",), "seconds of all forward passes of the rank"),
        "backward_time_sum_s": (("backward_time_sum_s",), "seconds of all backward passes of the rank"),
        "iteration_time_s": (("iteration_time_s",), "seconds of the iteration"),
        "energy_j": (("energy_j",), "joules of the rank, or avg_power_w"),
        "num_micro_batches": (("num_micro_batches",), "micro-batches of one iteration"),
    }),
}  # fmt: skip


def check_results(table: ResponseTable) -> None:
    """Raise TableError where the table lacks a column without which nothing can be fitted."""
    what, needed = _RESULTS.get(table.kind, ("", {}))
    for name, (columns, meaning) in needed.items():
        if table.rows[list(columns)].isna().all(axis=None):
            raise _missing(table.rows, name, what, meaning)


def _missing(rows: pd.DataFrame, name: str, what: str, meaning: str) -> TableError:
    near = nearest_hint(name, [str(c) for c in rows.columns if c != name and rows[c].notna().any()])
    return TableError(f"The table lacks the column {name!r}{near}, which {what} needs: {meaning}.")


def _need(rows: pd.DataFrame, what: str, name: str, *others: str) -> None:
    if not {name, *others} & set(rows.columns):
        raise _missing(rows, name, what, f"or {' or '.join(others)}" if others else "see `jointopt calibrate --help`")


# Groups of rows of such tables: of one piece of work, of one stage that no column names, of one plan.


Key = tuple[str, ...]  # cells that distinguish rows, spelled

# Columns that distinguish pieces of work; `source`, `method` and the like are how they were run.
_WORK = (
    "model", "num_layers", "hidden_size", "seq_length", "batch_size", "micro_batch_size", "num_micro_batches",
    *DEGREES, "dtype", "framework", "recompute",
)  # fmt: skip
_PLAN = ("source", "method", "plan")
_ORDERED = 3  # rows of a sweep through the clocks, at least, that are no chance order
_REPEATS_DIFFER = 0.015  # relative; two readings of one pass at one clock that differ more are of two stages


def work_columns(measured: pd.DataFrame, queried: pd.DataFrame) -> list[str]:
    """The columns by which both tables distinguish pieces of work."""
    return [name for name in _WORK if name in measured and name in queried]


def keys_of(rows: pd.DataFrame, columns: list[str]) -> list[Key]:
    """One key per row; numbers are spelled alike whatever else their column holds."""
    cells = [rows[name].map(lambda cell: str(cell).strip().removesuffix(".0").lower()).tolist() for name in columns]
    return list(zip(*cells, strict=True)) if cells else [()] * len(rows)


def unlabelled_stages(measured: pd.DataFrame, keys: list[Key], queried: pd.DataFrame, wanted: list[Key]) -> bool:
    """Whether rows of equal keys are of several stages that no column distinguishes.

    Either readings at equal clocks differ more than repeats do, or both tables run through the clocks several times.
    """
    by = [pd.Series(keys, index=measured.index), measured["clock_mhz"], measured["power_limit_w"]]
    groups = measured["time_s"].groupby(by, dropna=False)
    twice = groups.transform("count") > 1
    spread = groups.transform("max") / groups.transform("min") - 1.0
    if twice.mean() > 0.5:
        return bool(spread[twice].median() > _REPEATS_DIFFER)
    sweeps = []  # how often each key's rows run through the clocks; of rows in no order none
    for rows, own in ((measured, keys), (queried, wanted)):
        if len(rows):
            counts = pd.Series(stage_blocks(rows, own)).groupby(pd.Series(own)).agg(["max", "size"]).sort_index()
            ordered = (counts["size"] >= _ORDERED * (counts["max"] + 1)).all()
            sweeps.append([int(last) + 1 for last in counts["max"]] if ordered else [])
    return all(found == sweeps[0] and found and min(found) > 1 for found in sweeps)


def stage_blocks(rows: pd.DataFrame, keys: list[Key]) -> Ints:
    """Number of the stage of every row where no column holds it: profiles of stages follow each other in a file.

    A profile runs through its clocks in one direction; where it turns back, or a clock comes again, the next begins.
    Rows in no order are numbered by their time: the stage with more work takes longer at every clock.
    """
    out, by_time = np.zeros(len(rows), np.int64), "time_s" in rows and in_no_order(rows, keys)
    for index, clocks, blocks, again in _turns(rows, keys):
        in_order = len(index) >= _ORDERED * (blocks[-1] + 1) or again.max() == blocks[-1]
        out[index] = blocks if in_order and again.max() <= blocks[-1] else again
        if by_time:
            times = rows["time_s"].iloc[index].fillna(np.inf)
            out[index] = times.groupby(clocks).rank(method="first").to_numpy(np.int64) - 1
    return out


def in_no_order(rows: pd.DataFrame, keys: list[Key]) -> bool:
    """Whether some key's clocks turn back more often than they come again, so that no order distinguishes stages."""
    return any(
        again.max() < blocks[-1] and len(again) < _ORDERED * (blocks[-1] + 1)
        for _, _, blocks, again in _turns(rows, keys)
    )


def _turns(rows: pd.DataFrame, keys: list[Key]) -> Iterator[tuple[Any, Any, Ints, Any]]:
    """Numbers of each key's rows that state a clock or a limit, (n,), with clocks or limits.

    And, for each of them, how often the clocks turned back before it, and how often its clock came before.
    """
    clocks = rows["clock_mhz"].fillna(rows["power_limit_w"]).to_numpy(float)
    key = pd.Series(keys, dtype=object)[np.isfinite(clocks)]
    for _, at in key.groupby(key):
        index = at.index.to_numpy()
        own = clocks[index]
        step = np.diff(own)
        direction = np.sign(np.sum(np.sign(step))) or 1.0
        blocks = np.concatenate([[0], np.cumsum(step * direction < 0)])
        yield index, own, blocks.astype(np.int64), pd.Series(own).groupby(own).cumcount().to_numpy(np.int64)


def plan_keys(rows: pd.DataFrame) -> list[Key]:
    """One key per row of the iteration that it is of: by its columns, and by ranks that come again."""
    keys = keys_of(rows, [name for name in ("gpu", *_WORK, *_PLAN) if name in rows])
    seen = pd.Series([key + rank for key, rank in zip(keys, keys_of(rows, ["rank"]), strict=True)])
    again = seen.groupby(seen).cumcount()
    return [(*key, str(count)) for key, count in zip(keys, again, strict=True)]
