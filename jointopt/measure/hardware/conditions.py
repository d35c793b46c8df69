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
from jointopt.measure.hardware.gpu_clocks import Setting, SettingsSession, plan_settings, settings_session
from jointopt.measure.hardware.host import occupants
from jointopt.measure.hardware.meter import CLOCK, Gpus, Meter, running_meter
from jointopt.measure.hardware.rank_check import UNSET
from jointopt.runs.readings import LEAST_WINDOW_S, Reading, Series, join_readings, not_measured
from jointopt.runs.rows import failed_row, is_blank, plan_cells

_log = logging.getLogger(__name__)
MEASURE_S = 1.5 * LEAST_WINDOW_S
_THROTTLED = 0.97  # of the clock that was set: a GPU below was throttled, or lowered its clock while it waited
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


@dataclass
class Conditions:
    """How the GPUs of this machine are set, metered and occupied during one run of a plan.

    Without a ``meter`` nothing is set here and nothing read.
    """

    plan: Mapping[str, Any]
    meter: Meter | None = None
    session: SettingsSession | None = None  # that has set the GPUs of this machine
    settings: Sequence[Setting] = ()  # of each GPU of the plan
    default_clocks: bool = False
    started_s: float = 0.0  # s since 1970, as is the end
    ended_s: float = 0.0
    occupied_before: Sequence[str] = ()  # sentences on others that held memory of these GPUs before the run
    occupied_after: Sequence[str] = ()  # and after it, when no process of the run was there any more

    def with_meter(
        self, row: Mapping[str, Any], window_s: Sequence[float] | None = None, iterations: int = 1
    ) -> dict[str, Any]:
        """``row`` with the meter's results in a window (start and end, s since 1970) of so many ``iterations``.

        By default the window is the whole run, in which only peak power and temperature count. A run out of memory on
        GPUs that others used becomes one from which nothing is learned.
        """
        if self.meter is None:
            return dict(row)
        if row["status"] == FailureKind.OOM and (taken := [*self.occupied_before, *self.occupied_after]):
            words = f"out of memory, with {'; '.join(dict.fromkeys(taken))}"
            failed = failed_row(Failure(FailureKind.OCCUPIED, words))
            row = dict(row) | failed | {"notes": joined_notes(words, row.get("notes"))}
        reading = self.meter.reading(*(window_s or (self.started_s, self.ended_s)))
        return self.with_reading(row, reading, window_s, iterations)

    def with_reading(
        self, row: Mapping[str, Any], reading: Reading, window_s: Sequence[float] | None, iterations: int
    ) -> dict[str, Any]:
        """``row`` with results of a ``reading`` of all GPUs of the plan, by rank, where the row has none of its own.

        Without a window it gains peak power and temperature alone. Where clocks are left to the driver, those measured
        (MHz, mean of each stage) stand for the plan's.
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
            if window_s and setting.clock_mhz and seen < _THROTTLED * setting.clock_mhz:
                remarks.append(f"GPU {setting.index} ran at {seen:.0f} MHz of {setting.clock_mhz:.0f}")
        if self.occupied_before:
            remarks.append(f"not alone: {'; '.join(self.occupied_before)}")
        if self.session:
            remarks += [self.session.trouble, *self.session.changed.values()]
        return out | {"notes": joined_notes(row.get("notes"), *remarks)}


@contextmanager
def under_plan(plan: Mapping[str, Any], default_clocks: bool = False, clock: Any = CLOCK) -> Iterator[Conditions]:
    """Set and meter the GPUs of this machine as ``plan`` (plan columns) has them, while the body trains on all of them.

    On a machine without a GPU nothing is set and nothing measured. Raises DeviceError where GPUs cannot be set at all,
    PlanError where they have no such clock or power limit.
    """
    driver = True
    try:
        Gpus()
    except DeviceError as error:
        driver = any(driver.exists() for driver in _DRIVER_FILES)
        if driver and not default_clocks:
            raise DeviceError(f"{error} Or go on at default clocks: --default-clocks.") from error
    if not driver:
        yield Conditions(plan)
        return
    settings, ranks = plan_settings(plan, default_clocks=default_clocks), range(int(num_gpus(plan)))
    with running_meter(ranks, clock) as meter, settings_session(settings) as session:
        meter.on_sample = session.check
        conditions = Conditions(plan, meter, session, settings, default_clocks, occupied_before=occupants(ranks))
        for one in conditions.occupied_before:
            _log.warning("%s.", one)
        conditions.started_s = clock.time()
        try:
            yield conditions
        finally:
            conditions.ended_s = clock.time()
            conditions.occupied_after = occupants(ranks, patience_s=0.0)


# Clocks and meters of the nodes of a run: `jointopt exec` around its program, and its readings added up.


_PLAN, _READING = "plan.json", "reading-{}.json"
_REFUSED = re.compile(r"^Error: (.+)$", re.MULTILINE)


def exec_words(
    words: Sequence[str], job: Job, folder: Path, default_clocks: bool, shows_ranks: bool = True
) -> list[str]:
    """``words`` behind those of `jointopt exec`, which sets the plan's clocks on each node and meters its GPUs.

    ``default_clocks``: the driver chooses clocks. Not ``shows_ranks``: clocks are set at once, since nothing will show
    which stages the program's ranks run.
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
    """``row`` with the results of the meters of all ``nodes``, whose readings `jointopt exec` has left in ``folder``.

    The window is the row's ``measured_s``, in which its ``iterations`` ran. The notes say so where the ``log`` says
    that clocks of a node were never set.
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
