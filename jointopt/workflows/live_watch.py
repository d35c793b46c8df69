"""A run's log beside NVML while the run goes on: slow ranks are told, and others slowed down (``exec --watch``)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.errors import DeviceError, JointOptError, UsageError
from jointopt.core.schema import Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import stage_of_rank
from jointopt.measure.hardware.gpu_clocks import Setting, SettingsSession
from jointopt.measure.hardware.meter import Gpus, Meter
from jointopt.measure.metrics import Sample
from jointopt.physics.stragglers import FIRST
from jointopt.report.slow_ranks import Rebalanced, SlowRank
from jointopt.runs.rank_times import RankTimes
from jointopt.workflows.watch import SlowRanks, rank_times, run_times

_LOOK_S = 1.0
_MOST_BYTES = 8 * 2**20  # of the log, from its end
_RECENT = 10  # iterations by which a slow rank is known to have recovered
_log = logging.getLogger(__name__)


class LiveWatch:
    """Watches the ``ranks`` of this machine in a ``log`` of all, which may not be there yet; each finding is told once.

    ``job`` gives the times of a log that states a throughput; ``rebalance``, which needs it: clocks of ranks that wait
    for a slow one are lowered meanwhile. A log without times of ranks tells the time of iterations alone.
    """

    def __init__(
        self, log: Path, plan: Mapping[str, Any], order: str, ranks: Ints, per_node: int, job: Job | None = None,
        rebalance: bool = False,
    ) -> None:  # fmt: skip
        self._log, self._plan, self._ranks, self._per_node, self._job = log, plan, ranks, per_node, job
        count = math.prod(int(plan[name]) for name in ("dp", "tp", "cp", "pp"))
        self._stage = stage_of_rank(plan, np.arange(count), order)
        self._together = int(plan["tp"]) * int(plan["cp"])
        self._next_s, self._size = -math.inf, -1
        self._seen: dict[int, dict[str, Floats]] = {}  # NVML's figures of this machine, by iteration
        self._rebalances = rebalance
        self._told: set[tuple[int | None, str]] = set()
        self._doubts: set[str] = set()
        self._gpus: Gpus | None = None
        with suppress(DeviceError):
            self._gpus = Gpus()
        self._before: Sequence[Setting] = ()  # settings before ranks that wait were slowed down
        self._level = -1, math.inf  # the slow rank, and its seconds below which it has recovered
        self.iterations: list[tuple[float, float]] = []  # when each was first in the log (s since 1970), its seconds
        self.slow: list[SlowRank] = []
        self.iteration_time_s = math.nan

    @property
    def is_rebalanced(self) -> bool:
        """Whether clocks of ranks that wait are lower than the plan's."""
        return bool(self._before)

    def step(self, session: SettingsSession, meter: Meter) -> None:
        """Look at the log, at most every second and where it has grown."""
        if (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        try:
            self._look(session, meter)
        except (JointOptError, ValueError) as error:  # which must not end the program
            if str(error) not in self._doubts:
                _log.warning("%s", error)
            self._doubts.add(str(error))

    def _look(self, session: SettingsSession, meter: Meter) -> None:
        times = self._times(meter)
        if times is None:
            return
        self.iteration_time_s = float(np.median([seconds for _, seconds in self.iterations[-FIRST:]]))
        if len(times.rank) != len(self._stage):
            return
        if self._before:
            self._end_rebalance(session, times)
            return
        found = SlowRanks(times, self._stage, times.rank // self._per_node, self._together)
        self.slow = [one for one in found.slow() if one.until_iteration is None]
        for one in self.slow:
            if (one.rank, one.kind) not in self._told:
                _log.warning("%s", one.sentence())
            self._told.add((one.rank, one.kind))
        if (
            self.slow
            and self._rebalances
            and self._job is not None
            and (new := found.rebalanced(self.slow, self._job, self._plan))
        ):
            self._rebalance(session, times, new)

    def _times(self, meter: Meter) -> RankTimes | None:
        """The times in the log, with what NVML said when each iteration first stood there; None for nothing new."""
        try:
            size = self._log.stat().st_size
            text = "" if size == self._size else _end_of(self._log, size)
        except OSError:  # the program has not written it yet
            return None
        self._size = size
        times = rank_times({self._log: text}, 1) if text else None
        if times is None and text:
            with suppress(UsageError):  # no iteration yet
                times = run_times({self._log: text}, self._job, 1)
        if times is None:
            return None
        columns, at = dict(times.columns), dict(zip(times.rank.tolist(), range(len(times.rank)), strict=True))
        now = self._nvml(meter)
        seconds = columns.get("iteration_time_s", np.full(columns["time_s"].shape, np.nan))[:, 0]
        for iteration, one in zip(times.iteration.tolist(), seconds.tolist(), strict=True):
            if self._seen.setdefault(iteration, now) is now:
                self.iterations.append((time.time(), one))
        here = [(gpu, at[rank]) for gpu, rank in enumerate(self._ranks.tolist()) if rank in at]
        for name in now:
            values = columns.setdefault(name, np.full(columns["time_s"].shape, np.nan))
            for row, iteration in enumerate(times.iteration.tolist()):
                for gpu, column in here:
                    values[row, column] = self._seen[iteration].get(name, now[name])[gpu]
        return replace(times, columns=columns)

    def _nvml(self, meter: Meter) -> dict[str, Floats]:
        """Clock, temperature and reasons of a lower clock of each GPU here, (gpus,); empty where they are not known."""
        found = {
            name: values for name, values in meter.latest(_LOOK_S).items() if name in ("clock_mhz", "temperature_c")
        }
        with suppress(DeviceError):
            reasons = [self._gpus.throttled_by(gpu) for gpu in range(len(self._ranks))] if self._gpus else []
            found |= {name: np.array([float(name in one) for one in reasons]) for name in ("heat", "power") if reasons}
        return found

    def _rebalance(self, session: SettingsSession, times: RankTimes, new: Rebalanced) -> None:
        """Lower the clocks of the ranks here that wait."""
        self._before = session.settings
        replica = np.zeros(len(self._stage), np.int64)
        for stage in np.unique(self._stage):
            members = np.flatnonzero(self._stage == stage)
            replica[members] = np.arange(len(members)) // self._together
        after = []
        for one in self._before:
            rank = int(self._ranks[one.index])
            mhz = new.slow_replica_mhz if replica[rank] == new.replica else new.others_mhz
            after.append(replace(one, clock_mhz=mhz[self._stage[rank]]))
        worst = max(self.slow, key=lambda one: one.cost_s)
        column = times.rank.tolist().index(worst.rank)
        recent_s = float(np.nanmedian(times.columns["time_s"][-_RECENT:, column]))
        self._level = column, recent_s / math.sqrt(1.0 + worst.slower)
        session.change_clocks(after)
        _log.info("%s", new.sentence())

    def _end_rebalance(self, session: SettingsSession, times: RankTimes) -> None:
        """Put the plan's clocks back once the slow rank has recovered."""
        column, least_s = self._level
        if float(np.nanmedian(times.columns["time_s"][-_RECENT:, column])) < least_s:
            session.change_clocks(self._before)
            _log.info("Rank %d has recovered: the plan's clocks are set again.", times.rank[column])
            self._before, self.slow = (), []

    def samples(self) -> Iterator[Sample]:
        """The figures for Prometheus."""
        yield Sample("jointopt_slow_ranks", float(len(self.slow)))
        yield Sample("jointopt_iteration_time_seconds", self.iteration_time_s, {"kind": "measured"})


def _end_of(log: Path, size: int) -> str:
    """The end of a log; of a longer one with the header of its columns."""
    with log.open("rb") as file:
        if size <= _MOST_BYTES:
            return file.read().decode("utf-8", errors="replace")
        header = file.readline()
        file.seek(size - _MOST_BYTES)
        rest = file.read().partition(b"\n")[2]
    return (header + rest).decode("utf-8", errors="replace")
