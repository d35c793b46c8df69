"""Plans in files: in JSON (of ``propose``, ``select``, ``explain``, or bare), or of a run that goes on today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.errors import UsageError
from jointopt.core.input_files import regular_bytes
from jointopt.core.schema import DEGREES, POWER_PROFILE
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import PLAN_KEYS

_MOST_BYTES = 64 * 2**20  # a proposal of thousands of plans has a few


def read_plan_file(path: Path, row: int | None = None) -> dict[str, Any]:
    """The plan in a JSON file: of `explain --json` or `select --json`, of a proposal (``row`` counts from 1), or bare.

    Raises UsageError for another file, or a proposal of several plans without ``row``.
    """
    try:
        document = json.loads(regular_bytes(path, _MOST_BYTES, "a JSON file with a plan"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error
    return plan_in(document, str(path), path.name, row)


def plan_in(document: Any, source: str, name: str, row: int | None) -> dict[str, Any]:
    """The plan of a document, or of a row (from 1) of its front; ``name`` stands before the numbers of rows."""
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


def baseline_plan(job: Job, given: str) -> str | Mapping[str, Any]:
    """The plan of ``given`` for ``job``: words, JSON, a JSON file of a plan, or a launch script, a config or a log.

    A file of a run is read as `jointopt import` reads it, with the job's GPUs and vocabulary; UsageError where it is of
    another number of GPUs.
    """
    path = Path(given)
    if "=" in given or given.lstrip().startswith("{") or not path.is_file():
        return given
    if path.suffix.lower() == ".json":
        try:
            return read_plan_file(path)
        except UsageError:
            pass  # a config of a framework may be JSON too
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
