"""Several jobs that price the same layouts as one model, as formulas on few layouts cost as much as on many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import Common
from jointopt.physics.stage_costs import StageCosts

_CELLS = 32_768  # plans x stages of all jobs in one model: each array then takes 256 KiB of the cache


def least_times_s(
    jobs: Sequence[Job], physics: CostModel, index: Ints, stage_clock_mhz: Floats, common: Common
) -> Iterator[Floats]:
    """`CostModel.least_time_s` (n,) of the layouts of ``physics`` for each of ``jobs``.

    Jobs differ from that of ``common`` in the speeds of kernels and links, and what of these hides: nothing that is
    read once the layouts are priced.
    """
    count, cells = len(physics.layouts["pp"]), int(physics.layouts["pp"][index].sum())
    most = max(_CELLS // max(cells, 1), 1)
    for start in range(0, len(jobs), most):
        some = jobs[start : start + most]
        at = (index + count * np.arange(len(some))[:, None]).reshape(-1)
        times = side_by_side(some, physics, common).least_time_s(at, np.tile(stage_clock_mhz, (len(some), 1)))
        yield from times.reshape(len(some), len(index))


def side_by_side(jobs: Sequence[Job], physics: CostModel, common: Common) -> CostModel:
    """A model of the layouts of ``physics`` for each of such ``jobs`` in turn: row l + j L is layout l of job j."""
    constants = physics.hardware.constants
    if len(jobs) == 1:
        return CostModel(jobs[0], physics.layouts, constants, common=common)
    each = [CostModel(job, physics.layouts, constants, lazily=True, common=common) for job in jobs]
    repeated = {name: np.concatenate([values] * len(jobs)) for name, values in physics.layouts.items()}
    model, every = CostModel(jobs[0], repeated, constants, lazily=True), np.arange(len(physics.layouts["pp"]))
    for lot in zip(*(one.lots(every) for one in each), strict=True):
        rows = np.stack([at for at, _ in lot]) + len(every) * np.arange(len(jobs))[:, None]
        costs, order = StageCosts.stacked([costs for _, costs in lot])
        model.add(rows.reshape(-1)[order], costs)
    return model
