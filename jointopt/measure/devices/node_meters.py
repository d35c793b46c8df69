"""Clocks and meters of the nodes of a run: `jointopt exec` around its program, and its readings added up."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError, TableError
from jointopt.core.facts import joined_notes
from jointopt.jobs.job import Job
from jointopt.measure.devices.clocks import plan_settings
from jointopt.measure.devices.conditions import Conditions
from jointopt.measure.devices.rank_check import UNSET
from jointopt.measure.devices.reading import Reading, Series, not_measured, together
from jointopt.measure.launchers.rows import plan_cells

_PLAN = "plan.json"
_REFUSED = re.compile(r"^Error: (.+)$", re.MULTILINE)
_CANNOT_SET = 1  # exit code of `jointopt exec` where GPUs cannot be set
_SIGNALLED = 128  # exit codes above it name a signal


def metered_words(
    words: Sequence[str], job: Job, folder: Path, default_clocks: bool, shows_ranks: bool = True
) -> list[str]:
    """``words`` with the GPUs of each node at the plan's clocks, or at their own, and with a meter.

    Not ``shows_ranks``: clocks are set at once, since nothing will show which stages the program's ranks run.
    """
    python = job.slurm.python or sys.executable
    return [
        python, "-m", "jointopt", "exec", "--plan", str(folder / _PLAN), f"--gpus-per-node={job.cluster.gpus_per_node}",
        "--node=${NODE_RANK}", f"--reading={_reading(folder, '${NODE_RANK}')}",
        *(["--default-clocks"] if default_clocks else []), *([] if shows_ranks else ["--check-s=0"]), "--", *words,
    ]  # fmt: skip


def write_plan(plan: Mapping[str, Any], folder: Path) -> None:
    """Writes the plan columns for `jointopt exec`. Raises OSError."""
    (folder / _PLAN).write_text(json.dumps(plan_cells(plan)), encoding="utf-8")


def check_settable(folder: Path, code: int, log: str) -> None:
    """LauncherError, with the node's own message, where `jointopt exec` could not set GPUs and started nothing.

    Clocks that may not be set are no fault of a plan. Slurm ends the other nodes of a step when one has failed, and
    then states the signal that ended them as exit ``code``.
    """
    found, cannot = _REFUSED.search(log), code == _CANNOT_SET or code > _SIGNALLED
    if found and cannot and not list(folder.glob("reading-*.json")):
        known = "--default-clocks" in found[1]
        choice = "" if known else " With --default-clocks runs go on at those of the driver."
        raise LauncherError(f"On a node: {found[1]}{choice}")


def with_readings(
    row: Mapping[str, Any], plan: Mapping[str, Any], nodes: int, folder: Path, default_clocks: bool, log: str = ""
) -> dict[str, Any]:
    """``row`` with the results of the nodes' meters in its window, its ``measured_s`` and ``iterations``.

    Where the ``log`` has it that the clocks of a node were never set, so do the notes.
    """
    rest = {name: value for name, value in row.items() if name not in ("measured_s", "iterations")}
    window = row.get("measured_s")
    reading = together([_of_node(folder, node, window or (None, None)) for node in range(nodes)])
    settings = plan_settings(plan, default_clocks=default_clocks)
    conditions = Conditions(plan, None, None, settings, default_clocks)
    found = conditions.with_reading(rest, reading, window, row.get("iterations", 1))
    return found | {"notes": joined_notes(found["notes"], UNSET if UNSET in log else "")}


def _of_node(folder: Path, node: int, window: Sequence[float | None]) -> Reading:
    try:
        return Series.read(_reading(folder, node)).between(*window)
    except (OSError, TableError):
        return not_measured("its meter wrote nothing")


def _reading(folder: Path, node: int | str) -> Path:
    return folder / f"reading-{node}.json"
