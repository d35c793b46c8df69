"""``exec``: any program under the clocks and power limits of a plan, with its energy where there is a meter."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointopt.core.errors import DeviceError, PlanError, UsageError
from jointopt.core.schema import DEGREES, num_gpus
from jointopt.measure.devices.clocks import Setting, locked, plan_settings
from jointopt.measure.devices.meter import Gpus, metered
from jointopt.measure.devices.reading import Reading
from jointopt.measure.launchers.process import run_in_foreground
from jointopt.spec.plans.parse import PLAN_KEYS

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Executed:
    """How the program ended, the reading of its GPUs, and what could not be put back or written (blank: nothing)."""

    code: int
    reading: Reading
    trouble: str


def execute(
    command: Sequence[str], plan: Mapping[str, Any], *, node: int | None = None, gpus_per_node: int | None = None,
    default_clocks: bool = False, grace_s: float = 20.0, series: Path | None = None,
) -> Executed:  # fmt: skip
    """Run ``command`` with the GPUs of this machine as ``plan`` (plan columns) has them, and put them back.

    ``node`` is this machine's place among those of the plan, by default SLURM_NODEID where Slurm started us, else 0.
    ``series`` is a file for the meter's samples, which add up over nodes. Raises DeviceError, with nothing started,
    where a GPU cannot be set.
    """
    count = _used_gpus(plan)
    settings, local = _settings(plan, count, node, gpus_per_node, default_clocks)
    _log.info(_setting_words(settings, local) if settings else "Clocks are left to the driver.")
    with metered(range(local)) as meter, locked(settings) as held:
        start = time.time()
        code = run_in_foreground(command, grace_s)
        end = time.time()
    troubles = [held.trouble]
    try:
        if series is not None:
            meter.series().write(series)
    except OSError as error:  # which must not hide how the program ended
        troubles.append(f"{series} with the meter's samples cannot be written: {error.strerror}")
    return Executed(code, meter.reading(start, end), "; ".join(filter(None, troubles)))


def plan_of(path: Path, row: int | None = None) -> dict[str, Any]:
    """The plan in a JSON file: of `explain --json` or `select --json`, of a proposal (``row`` counts from 1), or bare.

    Raises UsageError for another file, or a proposal of several plans without ``row``.
    """
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error
    found = _plan_in(document, path, row)
    plan = {name: value for name, value in found.items() if name in PLAN_KEYS}
    if not set(DEGREES) & plan.keys():
        raise UsageError(
            f"{path} holds no plan: expected what `explain --json`, `select --json` or `propose --json` prints, "
            "or an object with dp, tp, pp and stage_clock_mhz."
        )
    return dict.fromkeys(DEGREES, 1) | plan


def _plan_in(document: Any, path: Path, row: int | None) -> Mapping[str, Any]:
    rows = document.get("front") if isinstance(document, dict) else document
    if isinstance(document, dict) and isinstance(document.get("plan"), dict):
        return dict(document["plan"])
    if not isinstance(rows, list):
        return document if isinstance(document, dict) else {}
    if row is None and len(rows) != 1:
        raise UsageError(f"{path} holds {len(rows)} plans; say which with --row 1 to --row {len(rows)}.")
    if not 1 <= (row or 1) <= len(rows):
        raise UsageError(f"{path} holds {len(rows)} plans, and --row is {row}.")
    chosen = rows[(row or 1) - 1]
    return chosen if isinstance(chosen, dict) else {}


def _used_gpus(plan: Mapping[str, Any]) -> int:
    for name in DEGREES:
        value = plan[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PlanError(f"The {name} of a plan must be a whole number from 1; got {value!r}.")
    return int(num_gpus(plan))


def _settings(
    plan: Mapping[str, Any], used: int, node: int | None, gpus_per_node: int | None, default_clocks: bool
) -> tuple[list[Setting], int]:
    """The settings of this machine, and how many of its GPUs the plan uses."""
    try:
        here = len(Gpus())
    except DeviceError as error:
        if not default_clocks:
            raise DeviceError(f"{error} With --default-clocks the command runs all the same.") from error
        here = used
    per_node = gpus_per_node or min(here, used)
    place = _node(node, used > per_node)
    if place is None:
        raise UsageError(
            f"The plan uses {used} GPUs and this machine has {here}; say with --node which of its nodes this is (0, 1, "
            "...)."
        )
    settings = plan_settings(plan, place, per_node)
    local = min(per_node, used - place * per_node)
    return ([] if default_clocks else settings), local


def _node(given: int | None, several: bool) -> int | None:
    if given is not None or not several:
        return given or 0
    slurm = os.environ.get("SLURM_NODEID", "")
    return int(slurm) if slurm.isdigit() else None


def _setting_words(settings: Sequence[Setting], local: int) -> str:
    parts = []
    for name, unit, given in (
        ("clocks", "MHz", [s.clock_mhz for s in settings]), ("power limits", "W", [s.power_limit_w for s in settings])
    ):  # fmt: skip
        values = sorted({value for value in given if value is not None})
        if values:
            span = " to ".join(f"{value:g}" for value in dict.fromkeys((values[0], values[-1])))
            parts.append(f"{name} {span} {unit}")
    return f"{local} GPUs: {', '.join(parts)}."
