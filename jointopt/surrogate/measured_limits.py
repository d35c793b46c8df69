"""Power limits of GPUs whose power was measured: the physics' `Drawn` of what was learned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import POWER_LIMIT, Columns, Floats
from jointopt.jobs.job import Job
from jointopt.physics.cooling import power_limit_w
from jointopt.physics.cost_model import CostModel, Drawn, layout_burst_w
from jointopt.surrogate.features import watts_at
from jointopt.surrogate.power_scale import PowerScale

CLOCKS = (0.2, 0.4, 0.6, 0.8, 1.0)  # shares of the top clock, between which power is a line: it bends at the knee


@dataclass(frozen=True)
class MeasuredPower:
    """A scale, and the highest power limit in W that it was measured under."""

    scale: PowerScale
    limit_w: float

    def drawn(self, job: Job, layouts: Columns) -> Drawn | None:
        """Power of GPUs that run ``layouts`` on ``job``; None where the limit of all is the measured one."""
        if not other_limits(job, layouts, self.limit_w):
            return None
        bare = {name: values for name, values in layouts.items() if name != POWER_LIMIT}
        return drawn_by(CostModel(at_limit(job, self.limit_w), bare), self.scale, self.limit_w)


def drawn_by(physics: CostModel, power: PowerScale, limit_w: float) -> Drawn:
    """Power that layouts of ``physics`` draw by ``power``, one of all or of each (L,); both are under ``limit_w``.

    Kernels that the limit holds in the physics and on the board draw as much in both, however far off the mean is.
    """
    every = np.arange(len(physics.layouts["pp"]))
    watts = watts_at(physics, every, CLOCKS)
    bursts = np.stack([layout_burst_w(physics, share) for share in CLOCKS])
    mean, kernels = power.within(limit_w, watts[-1]), power.within(limit_w, bursts[-1])
    line = np.stack([np.broadcast_to(value, len(every)) for value in (kernels.factor, kernels.offset_w)])
    return Drawn(limit_w, line, mean.over(watts) * watts, bursts)


def at_limit(job: Job, limit_w: float | None) -> Job:
    """The job with that power limit of its GPUs, None: its own."""
    if limit_w is None or job.cluster.power_limit_w == limit_w:
        return job
    return replace(job, cluster=replace(job.cluster, power_limit_w=limit_w))


def other_limits(job: Job, layouts: Columns, limit_w: float) -> bool:
    """Whether plans of the job may have another power limit than that."""
    return POWER_LIMIT in layouts or job.cluster.power_limit_w != limit_w


def within_limits(power: PowerScale, physics: CostModel) -> PowerScale:
    """Mean power (L,) with none above the limit of its layout: what a line between clocks and stages is off by."""
    every = np.arange(len(physics.layouts["pp"]))
    limit_w: Floats = power_limit_w(physics.job.cluster, physics.layouts, every, 1)[:, 0]
    return power.within(limit_w, watts_at(physics, every, (1.0,))[0])
