"""``ingest``: the rows of a table into the store of measurements, and back out of its use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jointopt.core.errors import TableError, naming_table
from jointopt.runs.checks import MEASUREMENT_RULES, contradicting_lines
from jointopt.runs.ignored_columns import unused_lines
from jointopt.runs.store import Store
from jointopt.runs.table import doubtful_lines, problem_lines, read_measurements, readable_runs, refused_rows
from jointopt.surrogate.dataset import with_results
from jointopt.surrogate.evidence import log_time_ratio
from jointopt.surrogate.measurements import Measurements

_UNITS = {"milliseconds": 1e3, "microseconds": 1e6, "minutes": 1 / 60, "hours": 1 / 3600}  # over seconds
_NEAR = 0.5  # decades about such a factor in which predicted times err


@dataclass(frozen=True)
class Ingested:
    """Outcome of a table for people; ``remarks`` on its rows, ``refused`` where some were not taken."""

    text: str
    remarks: tuple[str, ...] = ()
    refused: bool = False


def ingest(table: Path, storage: str) -> Ingested:
    """Adds the rows that can be true to the store of that URL.

    Raises TableError where times are so far from the physics that they are in another unit, and as `Store.add` does.
    """
    with naming_table(table):
        good, problems = read_measurements(table, MEASUREMENT_RULES)
    doubts: list[str] = []
    refused = refused_rows(problems)
    if not good.empty:
        runs = Measurements(with_results(good))
        doubts, odd = _doubts(runs), runs.possible.refused
        good, refused = (
            (good, refused) if odd is None else (good[~odd].reset_index(drop=True), refused + int(odd.sum()))
        )
    store = Store(storage)
    store.add_spilled()
    added = store.add(good, origin=str(table.resolve()))
    if not good.empty:
        repeats = contradicting_lines(with_results(good), readable_runs(good)[0])
        doubts = [*doubtful_lines(good), *repeats, *doubts]
    lines, remarks = problem_lines(problems), [*unused_lines(good), *doubts]
    if added.retracted:
        were, stay = ("was", "stays") if added.retracted == 1 else ("were", "stay")
        remarks.append(f"{_rows(added.retracted)} {were} retracted before (ingest --retract) and {stay} so.")
    text = f"{_rows(added.new)} added, {added.known:,} known already, {refused:,} refused."
    return Ingested(text, (*lines, *remarks), bool(refused))


def retract(table: Path, storage: str) -> Ingested:
    """Marks the stored rows equal to the table's as retracted; ``refused`` where some are not there.

    Rows that an earlier version let pass and no rule would now are found too.
    """
    with naming_table(table):
        rows, problems = read_measurements(table, rules=())
    done = Store(storage).retract(rows, origin=str(table.resolve()))
    absent = done.absent + refused_rows(problems)
    text = f"{_rows(done.new)} retracted, {done.known:,} retracted already, {absent:,} not in the store."
    remarks = problem_lines(problems)
    if done.absent:
        equal = f"equal{'s' * (done.absent == 1)} no row of the store"
        remarks.append(f"{_rows(done.absent)} {equal} in every cell, blanks and notes included.")
    return Ingested(text, tuple(remarks), bool(absent))


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"


def _doubts(runs: Measurements) -> list[str]:
    """Sentences on sources whose times are doubtful; TableError for another unit, with how many rows look like it."""
    try:
        return runs.doubts
    except TableError as error:
        factor = np.exp(log_time_ratio(runs.table, runs.priced))
        found = {unit: int((np.abs(np.log10(factor / times)) < _NEAR).sum()) for unit, times in _UNITS.items()}
        kinds = [f"{count:,} rows look like {unit}" for unit, count in found.items() if count]
        raise TableError(f"{', '.join(kinds)}: {error}" if kinds else str(error)) from error
