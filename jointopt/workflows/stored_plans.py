"""Plans that a search has left behind, read back: a proposal.json, a front.csv, or a study."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import InfeasibleError, JobError, JointOptError, TableError, UsageError
from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, NEUTRAL, POWER_LIMIT, Columns, encode_cells, num_gpus
from jointopt.core.secrets import masked
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.reading import parse_json, parse_yaml
from jointopt.physics.site import SITE_COLUMNS
from jointopt.physics.throughput import THROUGHPUT, with_rates
from jointopt.runs.cells import STRICT_READERS, floats, quoted_cell, read_columns
from jointopt.runs.database import STORAGE
from jointopt.runs.table import read_table
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel, surrogate_place
from jointopt.surrogate.sources import kin_place
from jointopt.workflows.answers import with_power_limits

_SUFFIXES = (".json", ".csv", ".gz")  # a study's name may have dots too
KNOWN = (*RESULTS, "power_limit_w", "peak_power_w", "temperature_c", *SITE_COLUMNS, *THROUGHPUT)
_NEEDED = (*LAYOUT_COLUMNS, "stage_clock_mhz", *RESULTS)
_EXPECTED = "expected proposal.json or front.csv of `jointopt propose --out`, or what `propose --json` printed"


@dataclass(frozen=True)
class StoredPlans:
    """Plans as columns (n,): the plan, its predictions, and as far as known throughput, intervals and doubts."""

    source: str  # as a message calls it
    plans: Columns
    job_name: str
    job: Job | None = None
    surrogate: str = ""  # that alone predicted them; blank: not known, or measured runs did so too
    measured: bool = False  # by real runs, and not predicted: what no run measured is NaN
    front: Sequence[Mapping[str, Any]] = ()  # that ``--plan PLACE:2`` counts in, of a file or a study with its job
    place: str = ""
    storage: str | None = None  # of a study, None for the usual one

    @property
    def has_energy(self) -> bool:
        """True where the energy of any plan is known; of some processors no source states the power."""
        return bool(np.isfinite(self.plans["energy_j"]).any())


def stored_plans(
    source: str, storage: str | None = None, job: Job | None = None, pue: float | None = None
) -> StoredPlans:
    """The plans of a file (a folder means its proposal.json; - reads JSON from standard input) or of a study by name.

    A given ``storage`` means that ``source`` is a study. ``job`` replaces the one that was stored with the plans,
    ``pue`` that of its site.
    Raises UsageError: no such file or study, another kind of file, no plans, plans for another number of GPUs.
    """
    path = Path(source) / PROPOSAL if Path(source).is_dir() else Path(source)
    if source == "-":
        found = _plans_of_document(sys.stdin.read, "standard input")
    elif storage is None and names_a_file(source):
        found = _plans_of_file(path)
    else:
        found = _plans_of_study(source, storage or STORAGE)
    if job is not None:
        stored = found.job
        shapes = [replace(model, name="") for model in (job.model if stored is None else stored.model, job.model)]
        if stored is not None and (shapes[0] != shapes[1] or stored.cluster.gpu.id != job.cluster.gpu.id):
            raise UsageError(
                f"The plans of {found.source} are for {stored.model.name} on {stored.cluster.gpu.id}, and job "
                f"{job.name!r} is for {job.model.name} on {job.cluster.gpu.id}; give the job that they were proposed "
                "for."
            )
        found = replace(found, job=job, job_name=job.name)
    if found.job is None and pue is not None:
        raise UsageError(f"--pue needs the job of the plans, whose hosts count too; {source} states none: give --job.")
    if found.job is None:  # what the site draws and pays stays as it was stored
        return found
    sizes, expected = num_gpus(found.plans), found.job.cluster.num_gpus
    if (sizes != expected).any():
        raise UsageError(
            f"The plans of {found.source} are for {int(sizes.max()):,} GPUs and job {found.job.name!r} has "
            f"{expected:,}; give the job that they were proposed for."
        )
    there = found.job.on_site(pue)
    return replace(found, job=there, plans=with_rates(there, found.plans))


def with_predictions_of(stored: StoredPlans, surrogate: str) -> StoredPlans:
    """The plans as a surrogate predicts them for their job. UsageError where they state none, or were measured."""
    if stored.measured:
        raise UsageError(f"The plans of {stored.source} have been run and measured; --surrogate is for predicted ones.")
    if stored.job is None:
        raise UsageError(f"--surrogate needs the job of the plans, and {stored.source} states none: give it by --job.")
    model, (plans,) = JobModel.of(stored.job, surrogate), with_power_limits([stored.plans], stored.job)
    layouts = {name: plans[name] for name in (*LAYOUT_COLUMNS, POWER_LIMIT) if name in plans}
    physics, clocks = model.cost_model(layouts), plans["stage_clock_mhz"]
    values = physics.evaluate(np.arange(len(clocks)), clocks)
    known = {name: values[name] for name in (*RESULTS, "peak_power_w", "temperature_c") if name in values}
    known["fit_probability"] = model.fit_probability(physics)
    found = model.bounded(layouts | known | {"stage_clock_mhz": clocks})
    return replace(stored, plans=with_rates(model.job, found), surrogate=surrogate)


def names_a_file(source: str) -> bool:
    """True of a file, a folder, standard input, and what is written like one; else it is the name of a study."""
    path = Path(source)
    within = path.name != source and path.parent.is_dir()  # names of studies may have slashes
    return source == "-" or path.exists() or path.suffix.lower() in _SUFFIXES or within


def _plans_of_file(path: Path) -> StoredPlans:
    if not path.is_file():
        raise UsageError(f"{path} does not exist or is not a regular file; {_EXPECTED}.")
    if path.suffix.lower() == ".json":
        return _plans_of_document(lambda: path.read_text(encoding="utf-8-sig"), str(path))
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path} is no .json or .csv file; {_EXPECTED}.")
    return StoredPlans(str(path), _columns(read_table(path), str(path)), "")


def _plans_of_document(read: Callable[[], str], source: str) -> StoredPlans:
    try:
        document = parse_json(read())
    except (JobError, OSError, ValueError) as error:
        raise UsageError(f"{source} cannot be read as JSON: {str(error).rstrip('.')}; {_EXPECTED}.") from error
    entries = document.get("front")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{source} holds no front of plans; {_EXPECTED}.")
    plans = _columns(_frame(entries, source), source)
    job = _job(document["job_file"], source) if "job_file" in document else None
    surrogate = str(document.get("surrogate") or "")
    known = surrogate_place(surrogate)
    at_hand = set(document.get("informed_by") or ()) <= {known, kin_place(known)}  # others are not kept with plans
    front = entries if job is not None and source.endswith(".json") else []
    named = str(document.get("job") or "")
    return StoredPlans(source, plans, named, job, surrogate if at_hand else "", front=front, place=source)


def _plans_of_study(name: str, storage: str) -> StoredPlans:
    from jointopt.search.studies.measured import KIND
    from jointopt.search.studies.study_plans import read_document, read_study

    rows, attributes = read_study(storage, name)
    source = f"study {name} in {masked(storage)}"
    if attributes.get("kind") == KIND:
        if not rows:
            raise InfeasibleError(
                f"{source} holds no run that succeeded and kept the job's constraints, so there is nothing to choose "
                "from."
            )
        plans = _columns(_frame(rows, source), source, blank=RESULTS)
        # power follows from energy and time where no meter measured it
        power = plans["energy_j"] / plans["iteration_time_s"] / num_gpus(plans)
        plans["avg_power_w"] = np.where(np.isfinite(plans["avg_power_w"]), plans["avg_power_w"], power)
        text = str(attributes.get("job") or "")
        measured_job = _job(parse_yaml(text), source) if text else None
        return StoredPlans(source, plans, measured_job.name if measured_job else "", measured_job, measured=True)
    plans = _columns(_frame(rows, source), source)
    try:
        job = _job(parse_yaml(str(attributes["job"])), source)
    except JobError as error:
        raise UsageError(f"The job of {source}: {error}") from error
    try:
        front = parse_json(read_document(storage, name))["front"]
    except UsageError:  # of workers
        front = []
    where = None if storage == STORAGE else masked(storage)
    return StoredPlans(source, plans, job.name, job, front=front, place=name, storage=where)


def _frame(rows: Sequence[Mapping[str, Any]], source: str) -> pd.DataFrame:
    if not rows:
        raise UsageError(f"{source} holds no feasible plan; expected at least one.")
    return pd.DataFrame(list(rows))


def _job(mapping: Any, source: str) -> Job:
    try:
        return parse_job(mapping, "job", Path())
    except JointOptError as error:
        raise UsageError(
            f"The job that is stored in {source} cannot be read: {error} Give the job by --job."
        ) from error


def _columns(table: pd.DataFrame, source: str, blank: Sequence[str] = ()) -> Columns:
    """Columns of a table of plans, where those of ``blank`` may have blank cells.

    UsageError that names a column that is missing or a cell that makes no sense.
    """
    # files of earlier versions lack the columns that most plans do without
    table = table.assign(**{name: None for name in NEUTRAL if name not in table})
    missing = [name for name in _NEEDED if name not in table]
    if missing:
        raise TableError(f"{source} has no column {', '.join(missing)}; {_EXPECTED}.")
    clean, faults = read_columns(table, [*_NEEDED, "power_limit_w", "peak_power_w", "temperature_c"], STRICT_READERS)
    for name, wrong, expected in faults:
        row = int(wrong.to_numpy().argmax())
        raise TableError(f"{source}: {name} of plan {row + 1} must be {expected}; got {quoted_cell(table, row, name)}.")
    # of some processors no source states the power, so that no plan has any
    powerless = [name for name in ("energy_j", "avg_power_w") if clean[name].isna().all()]
    needed = [name for name in _NEEDED if name not in (*blank, *powerless, *NEUTRAL)]
    missing_cells = clean[needed].isna().to_numpy()
    if missing_cells.any():
        row, column = np.argwhere(missing_cells)[0]
        raise TableError(f"{source}: {needed[column]} of plan {row + 1} is blank; expected a value.")
    usual = {name: clean[name].where(clean[name].notna(), COLUMNS[name].decode(NEUTRAL[name])) for name in NEUTRAL}
    clean, read = clean.assign(**usual), clean
    columns: Columns = {name: clean[name].to_numpy(np.float64).astype(np.int64) for name in _WHOLE}
    columns |= {name: clean[name].to_numpy(np.float64) > 0 for name in _SWITCHED}
    columns |= {name: encode_cells(name, clean[name]) for name in LAYOUT_COLUMNS if COLUMNS[name].codes is not None}
    clocks: list[tuple[float, ...]] = clean["stage_clock_mhz"].tolist()
    stages = np.array([len(row) for row in clocks])
    if (stages != columns["pp"]).any():
        row = int((stages != columns["pp"]).argmax())
        raise TableError(
            f"{source}: stage_clock_mhz of plan {row + 1} must have one clock for each of its {columns['pp'][row]} "
            f"pipeline stages; got {stages[row]}."
        )
    columns["stage_clock_mhz"] = np.array([(*row, *[np.nan] * (stages.max() - len(row))) for row in clocks])
    # predictions with their intervals, and what the site pays where the file states it
    names = [name for name in (*KNOWN, "fit_probability") if name in read]
    names += [f"{name}_{side}" for name in KNOWN for side in ("low", "high") if f"{name}_{side}" in read]
    columns |= {name: floats(read[name]).to_numpy(np.float64) for name in names}
    if "in_domain" in read:
        words = read["in_domain"].astype(str).str.lower()
        columns["in_domain"] = words.map({"true": True, "1.0": True, "false": False, "0.0": False}).to_numpy(object)
    if "doubts" in read:
        columns["doubts"] = read["doubts"].astype(object).fillna("").to_numpy(object)
    return columns


_WHOLE, _SWITCHED = ([n for n in LAYOUT_COLUMNS if COLUMNS[n].dtype == dtype] for dtype in ("int", "bool"))


# The whole document of a proposal, read back from a file of ``propose --out``, from a pipe, or from its study.


PROPOSAL = "proposal.json"  # in a folder of `propose --out`
_DOCUMENT_KEYS = ("job", "job_file", "front", "surrogate")
_DOCUMENT = "expected a folder of `jointopt propose --out`, its proposal.json, or the name of a stored study"


def stored_proposal(source: str, storage: str | None = None) -> dict[str, Any]:
    """The document that `propose --json` prints: of a folder, a file, - for standard input, or a study's name.

    A given ``storage`` means that ``source`` is a study. UsageError where there is none, or it is incomplete.
    """
    path = Path(source) / PROPOSAL if Path(source).is_dir() else Path(source)
    if source == "-":
        return _parse_proposal(sys.stdin.read(), "standard input")
    if storage is None and names_a_file(source):
        try:
            return _parse_proposal(path.read_text(encoding="utf-8-sig"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}; {_DOCUMENT}.") from error
    from jointopt.search.studies.study_plans import read_document

    url = storage or STORAGE
    study = {"name": source, "storage": masked(url)}
    return _parse_proposal(read_document(url, source), f"study {source}") | {"study": study}


def front_of_study(name: str, storage: str | None = None) -> dict[str, Any]:
    """The job file and the front of a stored study; of one of real runs the fastest run of each plan, by time."""
    from jointopt.search.studies.measured import KIND
    from jointopt.search.studies.study_plans import read_study, study_kind

    if study_kind(storage or STORAGE, name) != KIND:
        return stored_proposal(name, storage)
    rows, attributes = read_study(storage or STORAGE, name)
    return {"job_file": parse_yaml(str(attributes["job"])), "front": rows}


def _parse_proposal(text: str, source: str) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except (JobError, ValueError) as error:
        raise UsageError(f"{source} cannot be read as JSON: {str(error).rstrip('.')}; {_DOCUMENT}.") from error
    missing = (
        [key for key in _DOCUMENT_KEYS if not document.get(key)] if isinstance(document, dict) else list(_DOCUMENT_KEYS)
    )
    if missing:
        raise UsageError(f"{source} holds no proposal, for it has no {' and no '.join(missing)}; {_DOCUMENT}.")
    return dict(document)
