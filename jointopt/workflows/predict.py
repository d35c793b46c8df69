"""``predict``: a table of measurements with what physics and surrogate say of every row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import JointOptError, TableError
from jointopt.core.schema import Columns, Ints
from jointopt.physics.estimate import memory_limit_gib
from jointopt.runs.limits import RESULT_RULES
from jointopt.runs.table import sound_results
from jointopt.spec.calibration import Calibration, calibrated_if_same_gpu, check_calibrates
from jointopt.surrogate.correction import Correction, Move, correct_memory, load_surrogate
from jointopt.surrogate.intervals import RESULTS, add_intervals, outside_of_domain
from jointopt.surrogate.off_scale import checked_scale

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.runs.workloads import Workload
    from jointopt.surrogate.dataset import Part, PricedPlans

_FLAGS = ("predicted_fits", "in_domain")
_MOST_REASONS = 5  # that are told one by one
_MOST_ROWS = 65_536  # that are priced in one go: bounds the memory that features of many plans take


def predict(
    table: pd.DataFrame,
    surrogate: str = "none",
    measured: pd.DataFrame | None = None,
    calibration: Calibration | None = None,
    say: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """The table with predicted columns; rows keep their order and every column stays.

    ``surrogate``: a shipped one's name, a folder, or none for the physics alone. ``measured``: runs at hand (same
    columns, of the same cluster and framework), which the prediction adapts to first; needs a surrogate. Where they
    share no name in the column source with the table, that column tells nothing apart.
    ``calibration``: what was learned of a GPU, used for the rows that run on it. ``say`` is told, a sentence each, of
    measured runs that teach nothing and of rows that cannot be predicted.
    A row that cannot be predicted has blanks there, ``predicted_fits`` false, and the reason in ``not_predicted``.
    Raises TableError for a cell that makes no sense, and where no row can be predicted.
    """
    import pandas as pd

    from jointopt.runs.workloads import workloads
    from jointopt.surrogate.dataset import parts_by_source

    found, reasons = workloads(table)
    check_calibrates(calibration, (work.job for work in found))
    found = [replace(work, job=calibrated_if_same_gpu(work.job, calibration)) for work in found]
    learned = load_surrogate(surrogate if measured is None or surrogate != "none" else "default")
    asked = table
    if measured is not None and not _share_a_source(measured, table):
        # the runs were given for this table: then all rows are taken to be of one source
        asked, measured = (t.drop(columns="source", errors="ignore") for t in (table, measured))
    parts = parts_by_source(asked, found, _MOST_ROWS)
    told = say or (lambda _: None)
    if measured is not None:
        measured = _of_use(measured, {part.source for batch in parts for part in batch}, told)
    correction = None if learned is None else Correction.after(learned, measured)
    if correction is not None and correction.known is not None:
        for line in checked_scale(correction.known[1], correction.known[0].source):
            told(line)
    answers = _answers(parts, correction)
    reasons |= {int(row): a.refused for a in answers if a.refused for row in a.part.work.rows}
    priced = [a for a in answers if not a.refused]
    if not priced:
        raise TableError(
            f"No row of the table can be predicted; row {min(reasons) + 1}: {reasons[min(reasons)]}"
        )
    out = pd.DataFrame(_by_row(priced, len(table)))
    if learned is not None:
        out = correct_memory(out, [answer.part for answer in priced], measured)
    out["not_predicted"] = [reasons.get(row, "") for row in range(len(table))]
    _tell_unpredicted(reasons, told)
    out.index = table.index
    return pd.concat([table.drop(columns=[c for c in out if c in table]), out], axis=1)


def _share_a_source(measured: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Whether some name of a source stands in both tables, or in neither any."""
    named = [set(t["source"].dropna()) if "source" in t else set() for t in (measured, table)]
    return bool(named[0] & named[1]) or not (named[0] or named[1])


def _of_use(measured: pd.DataFrame, asked: set[str], say: Callable[[str], None]) -> pd.DataFrame:
    """The measured runs that can be priced; ``say`` hears of the others, and of those whose source nobody asks about.

    Raises TableError where none can be priced.
    """
    from jointopt.runs.unused import silent_lines
    from jointopt.runs.workloads import workloads
    from jointopt.surrogate.dataset import parts_by_source, with_results

    measured, said = sound_results(measured, RESULT_RULES)
    try:
        measured = with_results(measured)
        found, reasons = workloads(measured)
    except TableError as error:
        text = str(error)
        raise TableError(
            f"Nothing can be learned from the measured runs: {text[:1].lower()}{text[1:]}"
        ) from error
    for reason, count, row in _by_reason(reasons):
        say(f"{_runs(count, len(measured))} teach nothing (row {row + 1}): {reason}")
    for line in [*said, *silent_lines(measured)]:
        say(f"Measured runs: {line}")
    parts = [part for batch in parts_by_source(measured, found, _MOST_ROWS) for part in batch]
    strangers = [part.work for part in parts if part.source not in asked]
    if strangers:
        count = sum(len(work.rows) for work in strangers)
        say(
            f"{_runs(count, len(measured))} are of no source, framework, GPU and node size of the table "
            f"({_kinds(strangers)}): nothing was learned from them."
        )
    return measured.drop(index=measured.index[list(reasons)]) if reasons else measured


def _runs(count: int, total: int) -> str:
    return f"{count:,} of {total:,} measured runs"


def _kinds(works: Sequence[Workload]) -> str:
    """What software and nodes runs are of, at most three kinds by name."""
    jobs = [work.job for work in works]
    named = [f"{j.training.framework.name} on {j.cluster.gpus_per_node} x {j.cluster.gpu.id}" for j in jobs]
    kinds = list(dict.fromkeys(named))
    return ", ".join([*kinds[:3], *(["..."] if len(kinds) > 3 else [])])


def _by_reason(reasons: Mapping[int, str]) -> list[tuple[str, int, int]]:
    """(reason, how many rows, the first of them), the commonest first."""
    rows: dict[str, list[int]] = {}
    for row, reason in sorted(reasons.items()):
        rows.setdefault(reason, []).append(row)
    return sorted(((r, len(at), at[0]) for r, at in rows.items()), key=lambda found: (-found[1], found[2]))


def _tell_unpredicted(reasons: Mapping[int, str], say: Callable[[str], None]) -> None:
    found = _by_reason(reasons)
    for reason, count, row in found[:_MOST_REASONS]:
        say(f"{count:,} row{'s' * (count > 1)} not predicted (row {row + 1}): {reason}")
    if len(found) > _MOST_REASONS:
        rest = sum(count for _, count, _ in found[_MOST_REASONS:])
        say(f"{rest:,} more rows not predicted; the column not_predicted says why.")


@dataclass(frozen=True)
class _Answer:
    """Predicted columns of a part's plans, each once, and which of them every row runs; or why there are none."""

    part: Part
    columns: Columns
    plan_of_row: Ints
    refused: str = ""


def _answers(batches: Sequence[Sequence[Part]], correction: Correction | None) -> list[_Answer]:
    """Batches are independent of each other, and numpy leaves the other cores to other threads while it computes."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = pool.map(lambda batch: list(_answered(batch, correction)), batches)
        return [answer for batch in answers for answer in batch]


def _answered(batch: Sequence[Part], correction: Correction | None) -> Iterator[_Answer]:
    from jointopt.surrogate.dataset import PricedPlans

    priced: list[tuple[Part, PricedPlans]] = []
    runs = []
    for part in batch:
        try:
            found = PricedPlans.of(part.work)
            runs += [] if correction is None else [found.runs(part.source)]
            priced.append((part, found))
        except JointOptError as error:
            yield _Answer(part, {}, np.zeros(0, np.int64), str(error))
    moves: Sequence[Move | None] = [None] * len(priced)
    if correction is not None and runs:
        moves = correction.moves(runs, priced[0][1].plans.job)
    for (part, found), move in zip(priced, moves, strict=True):
        yield _Answer(part, _columns(found, move), found.plan_of_row)


def _columns(priced: PricedPlans, move: Move | None) -> Columns:
    """Predicted columns of plans, (n,) each, named as in the table."""
    job, plans = priced.plans.job, priced.plans
    columns = {name: priced.values[name] for name in RESULTS}
    columns |= plans.plans | {"stage_clock_mhz": plans.stage_clock_mhz}
    columns = add_intervals(job, columns)
    if move is not None:
        columns = move.applied(job, columns)
    if not plans.as_stated:
        columns = outside_of_domain(columns)
    fits = columns["peak_memory_gib"] <= memory_limit_gib(job)
    kept = {f"predicted_{n}": v for n, v in columns.items() if n.startswith(RESULTS)}
    return kept | {"in_domain": columns["in_domain"], "predicted_fits": fits}


def _by_row(answers: Sequence[_Answer], count: int) -> Columns:
    """The columns of all answers in the order of the table's ``count`` rows; blank or false where there is none."""
    out: Columns = {}
    for name in answers[0].columns:
        out[name] = np.zeros(count, bool) if name in _FLAGS else np.full(count, np.nan)
        for answer in answers:
            out[name][answer.part.work.rows] = answer.columns[name][answer.plan_of_row]
    out["assumed"] = np.full(count, "", dtype=object)
    for answer in answers:
        out["assumed"][answer.part.work.rows] = answer.part.work.assumed
    return out
