"""Bounds beyond which a run adds nothing to what was measured: its launcher may end it after a few iterations."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns
from jointopt.jobs.job import OBJECTIVES, Job
from jointopt.measure.base import EndsDominated, EndsEarly
from jointopt.search.pareto import front_order

CLEARLY = 1.5  # times a measured value: first iterations may be slower than later ones, by less than that
_TIME, _ENERGY = OBJECTIVES


def set_bounds(launcher: EndsEarly, job: Job, measured: Columns) -> None:
    """Have ``launcher`` end runs that are clearly behind one of the ``measured`` (m,) in every objective, or none.

    A slow plan may need little energy. So where energy counts, a run is behind where one that was measured is faster
    and needs less, both by `CLEARLY`: then it neither enters the front nor adds to the volume under it. By the power
    that the launcher meters while it runs; a launcher that does not is given the time at which GPUs that draw no
    more than when they idle would be as far behind. Nothing is ended by other objectives.
    """
    values = list(measured.values())
    known = bool(values) and set(measured) <= set(OBJECTIVES) and len(values[0]) > 0
    only_time = known and set(measured) == {_TIME}
    launcher.behind_s = CLEARLY * float(measured[_TIME].min()) if only_time else 0.0
    both = _bounds(measured) if known and not only_time else ()
    if isinstance(launcher, EndsDominated):
        launcher.behind_both = both
    elif both and job.cluster.gpu.power is not None:
        idle_w = job.cluster.num_gpus * job.cluster.gpu.power.static_w
        launcher.behind_s = min(max(time_s, energy_j / idle_w) for time_s, energy_j in both)


def _bounds(measured: Columns) -> tuple[tuple[float, float], ...]:
    """Time in s and energy in J of the measured front, `CLEARLY` times each; any time where it does not count."""
    energy = measured[_ENERGY]
    time = measured.get(_TIME, np.zeros(len(energy)))
    front = front_order(time, energy)
    return tuple(zip((CLEARLY * time[front]).tolist(), (CLEARLY * energy[front]).tolist(), strict=True))
