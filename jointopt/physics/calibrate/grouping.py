"""Groups of rows of such tables: of one piece of work, of one stage that no column names, of one plan."""

from __future__ import annotations

import numpy as np
import pandas as pd

from jointopt.core.schema import DEGREES, Floats, Ints

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
    cells = [rows[name].map(_word).tolist() for name in columns]
    return list(zip(*cells, strict=True)) if cells else [()] * len(rows)


def _word(cell: object) -> str:
    text = str(cell).strip()
    return text.removesuffix(".0").lower()


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
    sweeps = [_sweeps(rows, own) for rows, own in ((measured, keys), (queried, wanted)) if len(rows)]
    return all(found == sweeps[0] and found and min(found) > 1 for found in sweeps)


def _sweeps(rows: pd.DataFrame, keys: list[Key]) -> list[int]:
    """Number of times that each key's rows run through the clocks, by key; empty where they are in no order."""
    counts = pd.Series(stage_blocks(rows, keys)).groupby(pd.Series(keys)).agg(["max", "size"]).sort_index()
    ordered = (counts["size"] >= _ORDERED * (counts["max"] + 1)).all()
    return [int(last) + 1 for last in counts["max"]] if ordered else []


def stage_blocks(rows: pd.DataFrame, keys: list[Key]) -> Ints:
    """Number of the stage of every row where no column holds it: profiles of stages follow each other in a file.

    A profile runs through its clocks in one direction; where it turns back, or a clock comes again, the next begins.
    Rows in no order are numbered by their time: the stage with more work takes longer at every clock.
    """
    out, order = np.zeros(len(rows), np.int64), _clocks(rows)
    by_time = "time_s" in rows and in_no_order(rows, keys)
    for index in _positions(keys, order):
        blocks, again = _turns(order[index])
        in_order = len(index) >= _ORDERED * (blocks[-1] + 1) or again.max() == blocks[-1]
        out[index] = blocks if in_order and again.max() <= blocks[-1] else again
        if by_time:
            times = rows["time_s"].iloc[index].fillna(np.inf)
            out[index] = times.groupby(order[index]).rank(method="first").to_numpy(np.int64) - 1
    return out


def in_no_order(rows: pd.DataFrame, keys: list[Key]) -> bool:
    """Whether some key's clocks turn back more often than they come again, so that no order distinguishes stages."""
    order = _clocks(rows)
    turns = [_turns(order[index]) for index in _positions(keys, order)]
    return any(again.max() < blocks[-1] and len(again) < _ORDERED * (blocks[-1] + 1) for blocks, again in turns)


def _clocks(rows: pd.DataFrame) -> Floats:
    return rows["clock_mhz"].fillna(rows["power_limit_w"]).to_numpy(float)


def _positions(keys: list[Key], clocks: Floats) -> list[Ints]:
    """Rows of each key that state a clock or a limit."""
    key = pd.Series(keys, dtype=object)[np.isfinite(clocks)]
    return [at.index.to_numpy() for _, at in key.groupby(key)]


def _turns(clocks: Floats) -> tuple[Ints, Ints]:
    """For every row, how often the clocks turned back before it, and how often its clock came before."""
    step = np.diff(clocks)
    direction = np.sign(np.sum(np.sign(step))) or 1.0
    blocks = np.concatenate([[0], np.cumsum(step * direction < 0)])
    again = pd.Series(clocks).groupby(clocks).cumcount()
    return blocks.astype(np.int64), np.asarray(again, np.int64)


def plan_keys(rows: pd.DataFrame) -> list[Key]:
    """One key per row of the iteration that it is of: by its columns, and by ranks that come again."""
    keys = keys_of(rows, [name for name in ("gpu", *_WORK, *_PLAN) if name in rows])
    seen = pd.Series([(*key, rank) for key, rank in zip(keys, rows["rank"].map(_word), strict=True)])
    again = seen.groupby(seen).cumcount()
    return [(*key, str(count)) for key, count in zip(keys, again, strict=True)]
