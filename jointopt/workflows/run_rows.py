"""Rows of what a run measures between two changes of its clocks, from which predictions learn (``exec --storage``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import JointOptError
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan
from jointopt.measure.hardware.meter import Meter
from jointopt.measure.power_control import SETTLE_S
from jointopt.runs.readings import LEAST_WINDOW_S
from jointopt.runs.rows import result_row
from jointopt.runs.store import Store
from jointopt.workflows.campaign.candidates import measurement_columns
from jointopt.workflows.live_watch import LiveWatch

if TYPE_CHECKING:
    import pandas as pd

_LEAST = 3  # iterations of a row
_log = logging.getLogger(__name__)


class RunRows:
    """Stores a row for each time that a run kept its clocks: iterations by its log, energy by the meter.

    ``plan_of``: the plan of now. Energy is that of the GPUs here, ``gpus`` of them, and blank where the run has more.
    """

    def __init__(self, job: Job, storage: str, plan_of: Callable[[], Mapping[str, Any]], live: LiveWatch, gpus: int):
        self._job, self._store, self._plan_of, self._live = job, Store(storage), plan_of, live
        self._writer = ThreadPoolExecutor(1)  # a database may take its time, and limits of power may not
        self._gpus, self._plan, self._since_s = gpus, plan_of(), time.time()

    def step(self, meter: Meter) -> None:
        """A row of the clocks that were, where they have changed."""
        if (now := self._plan_of()) is not self._plan:
            self._add_row(meter)
            self._plan, self._since_s = now, time.time()

    def finish(self, meter: Meter) -> None:
        """A row of the clocks of now, and wait for the database."""
        self._add_row(meter)
        self._writer.shutdown()

    def _add_row(self, meter: Meter) -> None:
        start_s, end_s = self._since_s + SETTLE_S, meter.now()
        seconds = [one for at_s, one in self._live.iterations if start_s <= at_s <= end_s and np.isfinite(one)]
        if len(seconds) < _LEAST or end_s - start_s < LEAST_WINDOW_S or self._live.is_rebalanced:
            return
        time_s, reading = float(np.median(seconds)), meter.reading(start_s, end_s)
        known = {"iteration_time_s": time_s}
        if self._gpus == self._job.cluster.num_gpus:
            known |= reading.results(1) | {"energy_j": reading.total_energy_j / reading.seconds * time_s}
        parsed = parse_plan(self._plan, self._job)
        rows = measurement_columns(self._job, parsed.layouts | {"stage_clock_mhz": parsed.stage_clock_mhz})
        notes = f"{len(seconds)} iterations under exec{'' if not reading.reason else ', ' + reading.reason}"
        self._writer.submit(self._store_rows, rows.assign(**result_row(notes, **known)))

    def _store_rows(self, rows: pd.DataFrame) -> None:
        """Store rows; what the store does not take is told, and ends no program."""
        try:
            self._store.add(rows, "exec")
        except JointOptError as error:
            _log.warning("A measured row is not stored: %s", error)
