"""Clocks and meters of the nodes of a run: `jointopt exec` around its program, and what it read there added up."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.errors import LauncherError, TableError
from jointopt.core.schema import COLUMNS
from jointopt.measure.devices.clocks import plan_settings
from jointopt.measure.devices.conditions import Conditions
from jointopt.measure.devices.reading import Reading, Series, not_measured, together
from jointopt.spec.job import Job

_PLAN = "plan.json"
_KEYS = tuple(column.name for column in COLUMNS.values() if column.role == "plan")
_REFUSED = re.compile(r"^Error: (.+)$", re.MULTILINE)
_CANNOT_SET = 1  # exit code of `jointopt exec` where GPUs cannot be set
_SIGNALLED = 128  # exit codes above it name a signal


def metered_words(words: Sequence[str], job: Job, folder: Path, default_clocks: bool) -> list[str]:
    """``words`` with the GPUs of each node at the plan's clocks, or at their own, and with a meter."""
    python = job.slurm.python or sys.executable
    return [
        python, "-m", "jointopt", "exec", "--plan", str(folder / _PLAN), f"--gpus-per-node={job.cluster.gpus_per_node}",
        "--node=${NODE_RANK}", f"--reading={_reading(folder, '${NODE_RANK}')}",
        *(["--default-clocks"] if default_clocks else []), "--", *words,
    ]  # fmt: skip


def write_plan(plan: Mapping[str, Any], folder: Path) -> None:
    """The plan columns for `jointopt exec`; Raises OSError."""
    told = {name: _plain(plan[name]) for name in _KEYS if name in plan}
    text = json.dumps({name: value for name, value in told.items() if value is not None})
    (folder / _PLAN).write_text(text, encoding="utf-8")


def _plain(value: Any) -> Any:
    """A cell of a table as JSON has it; clocks as a list, blank as None."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and math.isnan(value):
        return None
    return (
        [float(clock) for clock in value.split(";")]
        if isinstance(value, str) and value[:1].isdigit()
        else value
    )


def refused(folder: Path, code: int, log: str) -> str:
    """Why `jointopt exec` started nothing, or an empty text: clocks that nobody may set are no fault of a plan.

    Slurm ends the other nodes of a step when one has failed, and then tells the signal that ended them.
    """
    found, cannot = _REFUSED.search(log), code == _CANNOT_SET or code > _SIGNALLED
    return found[1] if found and cannot and not list(folder.glob("reading-*.json")) else ""


def check_settable(folder: Path, code: int, log: str) -> None:
    """LauncherError where the nodes' GPUs cannot be set, with what the node said."""
    reason = refused(folder, code, log)
    choice = (
        "" if "--default-clocks" in reason else " With --default-clocks runs go on at those of the driver."
    )
    if reason:
        raise LauncherError(f"On a node: {reason}{choice}")


def with_readings(
    row: Mapping[str, Any], plan: Mapping[str, Any], nodes: int, folder: Path, default_clocks: bool
) -> dict[str, Any]:
    """``row`` with what the nodes' meters saw of its window, which it tells as ``measured_s`` and ``iterations``."""
    told = dict(row)
    window, iterations = told.pop("measured_s", None), told.pop("iterations", 1)
    reading = together([_of_node(folder, node, window or (None, None)) for node in range(nodes)])
    settings = [] if default_clocks else plan_settings(plan)
    return Conditions(plan, None, None, settings, default_clocks).with_reading(
        told, reading, window, iterations
    )


def _of_node(folder: Path, node: int, window: Sequence[float | None]) -> Reading:
    try:
        return Series.read(_reading(folder, node)).between(*window)
    except (OSError, TableError):
        return not_measured("its meter wrote nothing")


def _reading(folder: Path, node: int | str) -> Path:
    return folder / f"reading-{node}.json"
