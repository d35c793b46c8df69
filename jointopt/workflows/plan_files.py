"""Plans in files: in JSON (of ``propose``, ``select``, ``explain``, or bare), or of a run that goes on today."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.errors import UsageError
from jointopt.core.input_files import regular_bytes
from jointopt.core.schema import DEGREES, POWER_PROFILE
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import PLAN_KEYS

_MOST_BYTES = 64 * 2**20  # a proposal of thousands of plans has a few
JSON_FILE = re.compile(r"(\S.*\.json)(?::(\d+))?")
_STUDY = re.compile(r"([^={}]+):(-?\d+)")


def read_json(path: Path) -> Any:
    """The document of a JSON file with a plan; UsageError for another file."""
    try:
        return json.loads(regular_bytes(path, _MOST_BYTES, "a JSON file with a plan"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error


def read_plan_file(path: Path, row: int | None = None) -> dict[str, Any]:
    """The plan in a JSON file, as `plan_in` finds it."""
    return plan_in(read_json(path), str(path), path.name, row)


def plan_in(document: Any, source: str, name: str, row: int | None = None) -> dict[str, Any]:
    """The plan of `explain --json` or `select --json`, a bare one, or that of a row (from 1) of a proposal's front.

    ``name`` stands before the numbers of rows. UsageError for another document, or several plans without ``row``.
    """
    rows = document.get("front") if isinstance(document, dict) else document
    found = document
    if isinstance(document, dict) and isinstance(document.get("plan"), dict):
        found = document["plan"]
    elif isinstance(rows, list):
        every = f"{name}:1 to {name}:{len(rows)}"
        if row is None and len(rows) != 1:
            raise UsageError(f"{source} holds {len(rows)} plans; say which, from {every}.")
        if not 1 <= (1 if row is None else row) <= len(rows):
            raise UsageError(f"{source} holds {len(rows)} plans, from {every}; got row {row}.")
        found = rows[(row or 1) - 1]
    found = found if isinstance(found, dict) else {}
    plan = {name: value for name, value in found.items() if name in (*PLAN_KEYS, POWER_PROFILE)}
    if not set(DEGREES) & plan.keys():
        raise UsageError(
            f"{source} holds no plan: expected what `explain --json`, `select --json` or `propose --json` prints, "
            "or an object with dp, tp, pp and stage_clock_mhz."
        )
    return dict.fromkeys(DEGREES, 1) | plan


def plan_of_study(text: str, storage: str | None) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The plan that ``NAME:2`` stands for, row 2 of a study's front, and the job as its file; None for other text."""
    if not (named := _STUDY.fullmatch(text.strip())):
        return None
    from jointopt.workflows.stored_plans import front_of_study

    document = front_of_study(named[1], storage)
    return plan_in(document, f"study {named[1]}", named[1], int(named[2])), document["job_file"]


def baseline_plan(job: Job, given: str, storage: str | None = None) -> str | Mapping[str, Any]:
    """The plan of ``given`` for ``job``: words, JSON, FILE.json:2, STUDY:2, or a launch script, a config or a log.

    A file of a run is read as `jointopt import` reads it, with the job's GPUs and vocabulary; UsageError where it is of
    another number of GPUs.
    """
    path = Path(given)
    if "=" in given or given.lstrip().startswith("{"):
        return given
    if not path.is_file():
        row = JSON_FILE.fullmatch(given)
        if row and row[2]:
            return read_plan_file(Path(row[1]), int(row[2]))
        stored = plan_of_study(given, storage)
        if stored is None and len(given.split()) == 1:
            raise UsageError(f"{given} is no file; expected words such as dp=4 tp=2, or the file of a run or a plan.")
        return given if stored is None else stored[0]
    if path.suffix.lower() == ".json":
        document = read_json(path)
        if not isinstance(document, dict) or {"front", "plan", *DEGREES} & document.keys():
            return plan_in(document, str(path), path.name)  # else the config of a framework
    from jointopt.workflows.import_ import import_  # readers of scripts, configs and logs

    cluster = job.cluster
    found = import_(
        [path], gpu=cluster.gpu.id, nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node,
        vocab_size=job.model.vocab_size,
    )  # fmt: skip
    if found.job.cluster.num_gpus != cluster.num_gpus:
        raise UsageError(
            f"{path} is of a run on {found.job.cluster.num_gpus:,} GPUs and job {job.name!r} has "
            f"{cluster.num_gpus:,}; give the run of this job, or the job of that run."
        )
    return found.plan
