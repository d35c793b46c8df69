"""Plans that surely run out of memory, since a run did: memory belongs to the layout, whatever clocks and power limits.

So does a layout that differs in a larger micro-batch, or in recomputing less, alone. Of 236 layouts of two published
sources that ran out of memory none ran in another row, and of 239 pairs of one with a layout that so needs more the
latter never ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import LAYOUT_COLUMNS, RECOMPUTE_CODES, Bools, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.physics.memory import peak_memory_bytes

if TYPE_CHECKING:
    from jointopt.runs.workloads import Workload
    from jointopt.surrogate.dataset import Priced

OUT = "oom"  # the status of such runs
_RECOMPUTE = ("recompute", "recompute_modules", "recompute_num_layers")
_OTHERS = tuple(name for name in LAYOUT_COLUMNS if name not in (*_RECOMPUTE, "micro_batch_size"))
_NONE, _FULL = RECOMPUTE_CODES["none"], RECOMPUTE_CODES["full"]
_ALIKE = 1e-6  # share by which the physics may differ on the memory of two runs that need the same


def holding_as_much(layouts: Columns, peak: Floats, of: Columns, of_peak: Floats) -> Bools:
    """Which of ``layouts`` (n,) surely need the memory of one of the layouts ``of`` (m,), of the same training.

    ``peak`` (n,) and ``of_peak`` (m,): memory by the physics, in one unit, or as a share of the same limit.
    """
    found = np.zeros(len(peak), bool)
    for one, least in enumerate(of_peak.tolist()):
        rows = np.flatnonzero(~found & (peak >= least * (1.0 - _ALIKE)))
        for name in _OTHERS:
            rows = rows[layouts[name][rows] == of[name][one]]
        rows = rows[layouts["micro_batch_size"][rows] >= of["micro_batch_size"][one]]
        if of["recompute"][one] != _FULL or of["recompute_num_layers"][one] != 0:
            same = np.all([layouts[name][rows] == of[name][one] for name in _RECOMPUTE], axis=0)
            rows = rows[same | (layouts["recompute"][rows] == _NONE)]
        found[rows] = True
    return found


def ran_out(works: Sequence[Workload], status: npt.NDArray[np.str_], job: Job) -> Columns:
    """The layouts of rows with that ``status`` (of the table) which ran the job's very training out of memory."""
    out = status == OUT
    found: list[Columns] = []
    for work in works:
        layouts = work.take(np.flatnonzero(out[work.rows]).astype(np.int64)).plans
        if len(layouts["pp"]) and _training(work.job) == _training(job):
            same = np.isclose(peak_memory_bytes(work.job, layouts), peak_memory_bytes(job, layouts), rtol=_ALIKE)
            found.append({name: values[same] for name, values in layouts.items()})
    return {name: np.concatenate([one[name] for one in found]) for name in LAYOUT_COLUMNS} if found else {}


def surely_out(job: Job, layouts: Columns, ran: Sequence[Columns]) -> Bools:
    """Which ``layouts`` (n,) of a job surely run out of memory, by parts of those that `ran_out`."""
    found = np.zeros(len(layouts["pp"]), bool)
    for out in filter(None, ran):
        rows = np.flatnonzero(np.isin(layouts["tp"], out["tp"]) & np.isin(layouts["pp"], out["pp"]))
        some = {name: layouts[name][rows] for name in LAYOUT_COLUMNS}
        if len(rows) and len(out["pp"]):
            found[rows] |= holding_as_much(some, peak_memory_bytes(job, some), out, peak_memory_bytes(job, out))
    return found


def surely_out_of(priced: Priced, plans: Ints, runs: Ints) -> Bools:
    """Which of the rows ``plans`` (n,) surely run out of memory where the rows ``runs`` did, each of its own job."""
    found = np.zeros(len(plans), bool)
    trainings = [_training(work.job) for work in priced.works]
    peak = priced.physics["peak_memory_gib"]
    for work in np.unique(priced.work[runs]).tolist():
        like = [other for other, training in enumerate(trainings) if training == trainings[work]]
        here = np.flatnonzero(np.isin(priced.work[plans], like))
        there = runs[priced.work[runs] == work]
        of, layouts = _layouts(priced, there), _layouts(priced, plans[here])
        found[here] |= holding_as_much(layouts, peak[plans[here]], of, peak[there])
    return found


def _layouts(priced: Priced, at: Ints) -> Columns:
    """The layouts of priced rows, (n,)."""
    out = {name: np.empty(len(at)) for name in LAYOUT_COLUMNS}
    for work in np.unique(priced.work[at]).tolist():
        mine = priced.work[at] == work
        plans = priced.works[work].take(priced.place[at][mine]).plans
        for name in LAYOUT_COLUMNS:
            out[name][mine] = plans[name]
    return out


def _training(job: Job) -> tuple[Any, ...]:
    """Sizes in which jobs of one training agree, and without which a layout of one may be none of the other."""
    model, training = job.model, job.training
    return model.parameters, model.num_layers, training.seq_length, training.global_batch_size, job.cluster.num_gpus
