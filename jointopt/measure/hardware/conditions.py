"""Conditions of a run on this machine: the clocks of its plan, and a meter."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.errors import DeviceError, LauncherError, TableError
from jointopt.core.facts import Failure, FailureKind, joined_notes
from jointopt.core.schema import num_gpus
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import stage_of_rank
from jointopt.measure.hardware.gpu_clocks import Held, Setting, locked, plan_settings
from jointopt.measure.hardware.host import occupants
from jointopt.measure.hardware.meter import CLOCK, Gpus, Meter, metered
from jointopt.measure.hardware.rank_check import UNSET
from jointopt.runs.readings import LEAST_WINDOW_S, Reading, Series, join_readings, not_measured
from jointopt.runs.rows import failed_row, is_blank, plan_cells

_log = logging.getLogger(__name__)
MEASURE_S = 1.5 * LEAST_WINDOW_S
_HELD = 0.97  # of the clock that was set; below it the GPU was throttled, or lowered its clock while waiting
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


@dataclass
class Conditions:
    """The conditions of one run of a plan; without a meter clocks are left alone, and GPUs, if any, are not read."""

    plan: Mapping[str, Any]
    meter: Meter | None = None
    held: Held | None = None  # settings of GPUs here
    settings: Sequence[Setting] = ()  # of each GPU of the plan
    default_clocks: bool = False
    started_s: float = 0.0
    ended_s: float = 0.0
    shared: Sequence[str] = ()  # others that held memory of these GPUs before the run
    left: Sequence[str] = ()  # or after it, when no process of the run was there any more

    def with_meter(
        self, row: Mapping[str, Any], window_s: Sequence[float] | None = None, iterations: int = 1
    ) -> dict[str, Any]:
        """``row`` with the meter's results between two times (s since 1970), in which so many iterations ran."""
        if self.meter is None:
            return dict(row)
        if row["status"] == FailureKind.OOM and (taken := [*self.shared, *self.left]):
            # others held memory: a failure from which nothing is learned
            words = f"out of memory, with {'; '.join(dict.fromkeys(taken))}"
            failed = failed_row(Failure(FailureKind.OCCUPIED, words))
            row = dict(row) | failed | {"notes": joined_notes(words, row.get("notes"))}
        reading = self.meter.reading(*(window_s or (self.started_s, self.ended_s)))
        return self.with_reading(row, reading, window_s, iterations)

    def with_reading(
        self, row: Mapping[str, Any], reading: Reading, window_s: Sequence[float] | None, iterations: int
    ) -> dict[str, Any]:
        """``row`` with a ``reading`` of all GPUs of the plan, by rank; results that the row has already stay.

        Without a window it gains peak power and temperature alone. Clocks left to the driver are those measured (MHz).
        """
        results = reading.results(iterations)
        if not window_s:
            results = {name: results[name] for name in ("peak_power_w", "temperature_c")}
        out = dict(row) | {name: value for name, value in results.items() if is_blank(row.get(name))}
        profiles = next(("+".join(setting.profiles) for setting in self.settings if setting.profiles), "")
        remarks = [f"energy not measured: {reading.reason}"] if window_s and reading.reason else []
        if self.default_clocks or profiles:
            remarks.append(f"at clocks of the power profile {profiles}" if profiles else "at default clocks")
            out["stage_clock_mhz"] = None
            if reading.gpus and np.isfinite(reading.clock_mhz).all():
                stages = stage_of_rank(self.plan, np.arange(reading.gpus))
                means = [reading.clock_mhz[stages == stage].mean() for stage in range(int(self.plan["pp"]))]
                out["stage_clock_mhz"] = [round(float(mean_mhz), 1) for mean_mhz in means]
        for setting in self.settings:
            seen = reading.clock_mhz[setting.index] if setting.index < reading.gpus else np.nan
            if window_s and setting.clock_mhz and seen < _HELD * setting.clock_mhz:
                remarks.append(f"GPU {setting.index} ran at {seen:.0f} MHz of {setting.clock_mhz:.0f}")
        if self.shared:
            remarks.append(f"not alone: {'; '.join(self.shared)}")
        if self.held:
            remarks += [self.held.trouble, *self.held.changed.values()]
        return out | {"notes": joined_notes(row.get("notes"), *remarks)}


@contextmanager
def under_plan(plan: Mapping[str, Any], default_clocks: bool = False, clock: Any = CLOCK) -> Iterator[Conditions]:
    """The GPUs of this machine as ``plan`` (plan columns) has them while the body runs a training on all its ranks.

    On a machine without a GPU nothing is set and nothing measured. Raises DeviceError where GPUs cannot be set at all,
    PlanError where they have no such clock or power limit.
    """
    driver = True
    try:
        Gpus()
    except DeviceError as error:
        driver = any(driver.exists() for driver in _DRIVERS)
        if driver and not default_clocks:
            raise DeviceError(f"{error} Or go on at default clocks: --default-clocks.") from error
    if not driver:
        yield Conditions(plan)
        return
    settings, ranks = plan_settings(plan, default_clocks=default_clocks), range(int(num_gpus(plan)))
    with metered(ranks, clock) as meter, locked(settings) as held:
        meter.also = held.look
        conditions = Conditions(plan, meter, held, settings, default_clocks, shared=occupants(ranks))
        for one in conditions.shared:
            _log.warning("%s.", one)
        conditions.started_s = clock.time()
        try:
            yield conditions
        finally:
            conditions.ended_s = clock.time()
            conditions.left = occupants(ranks, patience_s=0.0)


# Clocks and meters of the nodes of a run: `jointopt exec` around its program, and its readings added up.


_PLAN, _READING = "plan.json", "reading-{}.json"
_REFUSED = re.compile(r"^Error: (.+)$", re.MULTILINE)


def metered_words(
    words: Sequence[str], job: Job, folder: Path, default_clocks: bool, shows_ranks: bool = True
) -> list[str]:
    """``words`` with the GPUs of each node at the plan's clocks, or at their own, and with a meter.

    Not ``shows_ranks``: clocks are set at once, since nothing will show which stages the program's ranks run.
    """
    python = job.slurm.python or sys.executable
    return [
        python, "-m", "jointopt", "exec", "--plan", str(folder / _PLAN), f"--gpus-per-node={job.cluster.gpus_per_node}",
        "--node=${NODE_RANK}", f"--reading={folder / _READING.format('${NODE_RANK}')}",
        *(["--default-clocks"] if default_clocks else []), *([] if shows_ranks else ["--check-s=0"]), "--", *words,
    ]  # fmt: skip


def write_plan(plan: Mapping[str, Any], folder: Path) -> None:
    """Writes the plan columns for `jointopt exec`. Raises OSError."""
    (folder / _PLAN).write_text(json.dumps(plan_cells(plan)), encoding="utf-8")


def check_settable(folder: Path, code: int, log: str) -> None:
    """LauncherError, with the node's own message, where `jointopt exec` could not set GPUs and started nothing.

    Its exit code is 1 then, which is no fault of a plan. Slurm ends the other nodes of a step when one has failed, and
    states the signal that ended them as exit ``code``.
    """
    found = _REFUSED.search(log)
    if found and (code == 1 or code > 128) and not list(folder.glob(_READING.format("*"))):
        choice = "" if "--default-clocks" in found[1] else " With --default-clocks runs go on at those of the driver."
        raise LauncherError(f"On a node: {found[1]}{choice}")


def with_readings(
    row: Mapping[str, Any], plan: Mapping[str, Any], nodes: int, folder: Path, default_clocks: bool, log: str = ""
) -> dict[str, Any]:
    """``row`` with the results of the nodes' meters in its window, its ``measured_s`` and ``iterations``.

    Where the ``log`` has it that the clocks of a node were never set, so do the notes.
    """
    rest = {name: value for name, value in row.items() if name not in ("measured_s", "iterations")}
    window = row.get("measured_s")
    readings = []
    for node in range(nodes):
        try:
            readings.append(Series.read(folder / _READING.format(node)).between(*(window or (None, None))))
        except (OSError, TableError):
            readings.append(not_measured("its meter wrote nothing"))
    settings = plan_settings(plan, default_clocks=default_clocks)
    conditions = Conditions(plan, settings=settings, default_clocks=default_clocks)
    found = conditions.with_reading(rest, join_readings(readings), window, row.get("iterations", 1))
    return found | {"notes": joined_notes(found["notes"], UNSET if UNSET in log else "")}
