"""``predict``: a table of measurements with what physics, surrogate and evidence predict of every row."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import JointOptError, TableError
from jointopt.core.facts import Source
from jointopt.core.schema import Columns, Ints
from jointopt.core.system import one_blas_thread
from jointopt.jobs.calibration import Calibration, calibrated_if_same_gpu, check_calibrates
from jointopt.jobs.catalog.frameworks import recognise_framework
from jointopt.jobs.cluster import Machine, machine_lines
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import violations
from jointopt.physics.site import with_site
from jointopt.physics.throughput import throughput
from jointopt.runs.ignored_columns import by_reason, left_out_lines, unread_lines
from jointopt.runs.other_rows import assumed_class_lines, class_conflicts, lacks_heads, states_class
from jointopt.runs.workloads import Workload, workloads
from jointopt.surrogate.dataset import Part, parts_by_source
from jointopt.surrogate.evidence import Evidence, with_kin
from jointopt.surrogate.features import HEAT_COLUMNS
from jointopt.surrogate.files import load_surrogate, surrogate_names
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import kinship
from jointopt.surrogate.measurements import Measurements, nothing_learned, unlike_line
from jointopt.surrogate.memory import FEASIBLE
from jointopt.surrogate.sources import evidence_as_source, of_learned_class, surrogate_for_job

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.surrogate import Surrogate

_log = logging.getLogger(__name__)
_BLANKS: dict[str, tuple[bool | str, type]] = {
    "predicted_fits": (False, bool), "in_domain": (False, bool), "doubts": ("", object),
    "hangs_on": ("", object),
    "violations": ("", object), "assumed": ("", object),
}  # fmt: skip
_RATES = ("tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "tokens_per_j")
_EARLIER = frozenset(  # what an earlier prediction of the same table may have written and this one may not
    f"predicted_{name}{end}"
    for name in (*RESULTS, *HEAT_COLUMNS.values(), "facility_energy_j")
    for end in ("", "_low", "_high")
)
FIGURES = _EARLIER | {*_RATES, "fit_probability"}  # of which seven digits are more than enough
_MOST_REASONS = 5  # that are logged one by one
_MOST_ROWS = 65_536  # that are priced in one go: bounds the memory that features of many plans take


@one_blas_thread  # cores are busy with batches of rows
def predict(
    table: pd.DataFrame, surrogate: str = "none", measured: pd.DataFrame | Measurements | None = None,
    calibration: Calibration | None = None, storage: str | None = None, machine: Machine | None = None,
    pue: float | None = None,
) -> pd.DataFrame:  # fmt: skip
    """The table with predicted columns; rows keep their order and every column stays.

    ``surrogate``: a shipped one's name, a folder, or none (with measured runs: the shipped one). ``measured``: runs at
    hand, with the same columns; their column source counts where it shares a name with the table's. ``calibration``:
    for the rows on its GPU; ``machine``: for those on such nodes, for what they do not state. ``storage``: the URL of a
    database, whose measurements are measured runs too. ``pue``: of a site, whose energy is then predicted too. A row
    that cannot be predicted has blanks, ``predicted_fits`` false, and the reason in ``not_predicted``. ``violations``
    names the rules by which a row's plan cannot be started (``jobs/catalog/framework_rules.yaml``). TableError for a
    number that makes no sense, and where no row can be predicted.
    """
    import pandas as pd

    for line in unread_lines(table):
        _log.warning("The table: %s", line)
    (runs, given), queried = _measurements(measured, storage, table), table
    if runs is not None:
        runs, queried = _with_kin_rows(runs, table)
    measured_rows = None if runs is None else runs.table
    found, reasons = workloads(queried, measured_rows)
    check_calibrates(calibration, (work.job for work in found))
    of_machine = machine_lines(machine, [(work.job.cluster, len(work.rows)) for work in found])
    for line in [*assumed_class_lines(queried, measured_rows), *of_machine]:
        _log.warning("%s", line)
    # with what was measured of their GPU and nodes, on the site that the PUE is of
    found = [replace(w, job=calibrated_if_same_gpu(w.job, calibration)).on_machine(machine) for w in found]
    found = [replace(work, job=work.job.on_site(pue)) for work in found]
    runs = runs if runs is None or machine is None else replace(runs, machine=machine)
    learned = load_surrogate("default" if runs is not None and surrogate == "none" else surrogate)
    parts = parts_by_source(queried, found, _MOST_ROWS)
    evidence = {} if runs is None else _evidence(runs, {part.source for batch in parts for part in batch}, given)
    # batches are independent, and numpy leaves the other cores to other threads while it computes
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        firsts = {batch[0].source: batch[0] for batch in parts}.values()
        of_user = surrogate not in ("none", *surrogate_names())
        models = dict(pool.map(lambda part: (part.source, _model(part, learned, evidence, of_user)), firsts))
        done = pool.map(lambda batch: _predictions([part.work for part in batch], models[batch[0].source]), parts)
        answers = [answer for batch in done for answer in batch]
    reasons |= {int(row): found for work, found, _ in answers if isinstance(found, str) for row in work.rows}
    priced = [(work, found, of) for work, found, of in answers if not isinstance(found, str)]
    if not priced:
        raise TableError(f"No row of the table can be predicted; row {min(reasons) + 1}: {reasons[min(reasons)]}")
    out = pd.DataFrame(_rows_of_table(priced, len(table)), copy=False)
    words = np.full(len(table), "", dtype=object)
    words[list(reasons)] = list(reasons.values())
    out["not_predicted"] = words
    unpredicted = by_reason(reasons)
    for reason, count, row in unpredicted[:_MOST_REASONS]:
        _log.warning("%s row%s not predicted (row %d): %s", f"{count:,}", "s" * (count > 1), row + 1, reason)
    if rest := sum(count for _, count, _ in unpredicted[_MOST_REASONS:]):
        _log.warning("%s more rows not predicted; the column not_predicted says why.", f"{rest:,}")
    out.index = table.index
    return pd.concat([table.drop(columns=[c for c in table if c in out or c in _EARLIER]), out], axis=1)


def _measurements(
    measured: pd.DataFrame | Measurements | None, storage: str | None, table: pd.DataFrame
) -> tuple[Measurements | None, int]:
    """(runs at hand, then those of the database that bear on the table; how many are at hand); None: there are none."""
    import pandas as pd

    given = None if measured is None else Measurements.given(measured)
    stored = None if storage is None else Measurements.stored(storage, table)
    parts = [part for part in (given, stored) if part is not None and len(part.table)]
    at_hand = 0 if given is None else len(given.table)
    if len(parts) < 2:
        return (parts[0] if parts else None), at_hand
    return Measurements(pd.concat([part.table for part in parts], ignore_index=True), (), parts[0].name), at_hand


def _with_kin_rows(runs: Measurements, table: pd.DataFrame) -> tuple[Measurements, pd.DataFrame]:
    """(the runs, the table that they are to correct), so that rows of one source are known as such.

    Where no source is in both, all rows are taken to be of one source. What the runs leave open is filled from the
    table (`Measurements.others`), where that states heads or recipe classes.
    """
    measured, queried = (set(t["source"].dropna()) if "source" in t else set() for t in (runs.table, table))
    if not measured & queried and (measured or queried):
        table = table.drop(columns="source", errors="ignore")
        runs = replace(runs, table=runs.table.drop(columns="source", errors="ignore"))
    names = runs.table["framework"].dropna().unique().tolist() if "framework" in runs.table else []
    if len(names) == 1 and not recognise_framework(str(names[0]))[1]:
        # rows of no framework, or of generic, are of the one that all runs have: no job can name one without a profile
        stated = table.reindex(columns=["framework"])["framework"].astype(object)
        open_rows = stated.isna() | (stated.astype(str).str.strip().str.lower() == "generic")
        table = table.assign(framework=stated.where(~open_rows, names[0]))
    for line in class_conflicts(runs.table, table):
        _log.warning("%s", line)
    return (replace(runs, others=table) if lacks_heads(runs.table) or states_class(table) else runs), table


def _evidence(runs: Measurements, sources: set[str], given: int) -> dict[Source, Evidence]:
    """Evidence of measured runs by source; those that teach nothing, or nothing of ``sources``, are logged.

    The first ``given`` of them were passed by the caller, and their warnings are already logged. Raises TableError
    where they cannot be read.
    """
    try:
        found, reasons = runs.workloads
    except TableError as error:
        if given:
            raise nothing_learned(error, runs.name) from error
        _log.warning("%s", nothing_learned(error, runs.name))
        return {}
    stored = {row - given: reason for row, reason in reasons.items() if row >= given}
    for line in left_out_lines(runs.table.iloc[given:], stored):
        _log.warning("Measured runs of the store: %s", line)
    parts = [part for batch in parts_by_source(runs.table, found, _MOST_ROWS) for part in batch]
    kin = kinship(np.array([part.source for part in parts]), np.array(sorted(sources))).max(axis=1, initial=0.0)
    if unseen := [part.work for part, alike in zip(parts, kin.tolist(), strict=True) if alike == 0.0]:
        of = "source, framework, GPU or node size than the table"
        _log.warning("%s", unlike_line(unseen, len(runs.table), of))
    if 0.0 < kin.max(initial=0.0) < 1.0:
        works = [part.work for part, alike in zip(parts, kin.tolist(), strict=True) if alike > 0.0]
        effect = "they correct its rows in part"
        _log.warning("%s", unlike_line(works, len(runs.table), "framework, GPU or node size than the table", effect))
    return runs.evidence_by_source()


def _model(part: Part, surrogate: Surrogate | None, evidence: Mapping[Source, Evidence], of_user: bool) -> JobModel:
    """The model of the source of a part, which learns once for all jobs there; ``of_user``: no shipped surrogate."""
    stated, job = Source.parse(part.source), part.work.job
    source, known = stated, with_kin(evidence, stated)
    if surrogate is not None and of_user:
        surrogate, source = surrogate_for_job(surrogate, stated, job, known.runs is not None)
        known = evidence_as_source(known, stated, source)
    model = JobModel(job, surrogate, known, stated_source=source)
    if surrogate is not None:
        of_learned_class(job, surrogate.class_of(str(source)))
    model.learn()
    return model


def _predictions(works: Sequence[Workload], model: JobModel) -> list[tuple[Workload, Columns | str, Ints]]:
    """For each of ``works``: itself, predicted columns of its distinct plans or why there are none, each row's plan.

    ``model``: of the source of all these rows.
    """
    out: list[tuple[Workload, Columns | str, Ints]] = []
    asked = []
    for work in works:
        distinct, plan_of_row = work.distinct()
        here, plans = model.of_job(work.job, work.as_stated), distinct.plans | {"stage_clock_mhz": distinct.clock_mhz}
        try:
            described = here.described(plans)
        except JointOptError as error:
            out.append((work, str(error), plan_of_row))
            continue
        broken = violations(work.job, distinct.layouts)[distinct.layout_of_row]
        asked.append((work, here, plans, described, plan_of_row, broken))
    corrections = model.plan_corrections([described for _, _, _, described, *_ in asked])
    for (work, here, plans, _, plan_of_row, broken), correction in zip(asked, corrections, strict=True):
        try:
            columns = here.predict(plans, correction)
        except JointOptError as error:
            out.append((work, str(error), plan_of_row))
            continue
        kept = predicted_columns(work.job, columns, (*RESULTS, *model.learned_heat))
        rates = throughput(work.job, plans, columns["iteration_time_s"], columns["energy_j"])
        fitting = columns["fit_probability"]
        kept |= {name: rates[name] for name in _RATES} | {name: columns[name] for name in ("in_domain", "doubts")}
        kept |= {"predicted_fits": fitting >= FEASIBLE, "fit_probability": fitting}
        if mixture := here.mixture(columns):
            kept["hangs_on"] = np.array(mixture.names, object)
        out.append((work, kept | {"violations": broken}, plan_of_row))
    return out


def predicted_columns(job: Job, columns: Columns, names: tuple[str, ...]) -> Columns:
    """The columns (n,) whose names begin with ``names``, as a table calls them; of a stated site its energy too."""
    if "pue" in job.cluster.stated:
        columns, names = with_site(job, columns), (*names, "facility_energy_j")
    return {f"predicted_{name}": values for name, values in columns.items() if name.startswith(names)}


def _rows_of_table(answers: Sequence[tuple[Workload, Columns, Ints]], count: int) -> Columns:
    """The columns of all answers in the order of the table's ``count`` rows; blank or false where there is none."""
    out: Columns = {}
    for name in dict.fromkeys(name for _, columns, _ in answers for name in columns):
        out[name] = np.full(count, *_BLANKS.get(name, (np.nan, np.float64)))
        for work, columns, plan_of_row in answers:
            if name in columns:  # peaks and temperatures are those of sources that taught some
                out[name][work.rows] = columns[name][plan_of_row]
    out["assumed"] = np.full(count, *_BLANKS["assumed"])
    for work, _, _ in answers:
        out["assumed"][work.rows] = work.assumed
    return out
