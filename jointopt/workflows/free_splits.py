"""Free stage splits: layers per model chunk that are too many to list, searched for the pipelines that gain by them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import STAGE_LAYERS, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.plans.stages import (
    Split,
    buildable,
    heaviest_rank,
    offered_splits,
    own_split,
    shifted_splits,
    tail_layers,
)
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel
from jointopt.search.pareto import non_dominated, take
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import cost_of_failing

PIPELINES = 12  # (pp, vpp) whose splits are searched, first those that may be fastest
NEAR = 1.05  # and of those, none that by its loads may not come as near as this many times the fastest of all
PRICED = 8  # layouts of each, by their quick bounds, of which the fastest stands for all
GAIN = 0.01  # of time or energy; less is not worth plans whose differences from others are less sure than that


@dataclass(frozen=True)
class FreeSplit:
    """A split of the layers over the chunks of pipelines of one pp and vpp."""

    pp: int
    vpp: int
    split: Split

    def alone(self, job: Job) -> Job:
        """The job with this split and no other in its space."""
        text = ";".join(map(str, self.split))
        return replace(job, search=replace(job.search, pp=(self.pp,), vpp=(self.vpp,), stage_layers=(text,)))


def free_splits(model: JobModel, layouts: Columns, peak_bytes: Floats) -> list[FreeSplit]:
    """The splits beside the listed ones that no other, listed or not, beats in time and energy.

    ``layouts`` (L,), which may fit in memory with ``peak_bytes`` (L,), have the listed ones. Of each pipeline that may
    gain, its fastest layout is priced with every split of `shifted_splits` whose heaviest rank is no heavier than with
    the listed ones; these layouts alone are compared. Nothing where the job lists splits, or its framework takes no
    other.
    """
    job = model.job
    if job.search.stage_layers is not None or "any" not in job.training.framework.stage_splits:
        return []
    found: list[FreeSplit | None] = []
    values: list[Floats] = []
    for layout, splits in _contenders(model, layouts, peak_bytes):
        pp, vpp = int(layout["pp"][0]), int(layout["vpp"][0])
        scores = _scores(model, layout, splits)
        rows = [0, *sorted(set(scores.argmin(axis=0).tolist()) - {0})]
        found += [FreeSplit(pp, vpp, splits[row - 1]) if row else None for row in rows]
        values += list(scores[rows] * np.where(np.array(rows) > 0, 1.0 + GAIN, 1.0)[:, None])
    return [one for row in non_dominated(np.array(values)) if (one := found[row])] if values else []


def _contenders(model: JobModel, layouts: Columns, peak_bytes: Floats) -> Iterator[tuple[Columns, list[Split]]]:
    """The fastest layout (1,) of each pipeline that may gain, the fastest first, and the splits to try in it."""
    width = int(layouts["vpp"].max()) + 1
    pipeline = layouts["pp"].astype(np.int64) * width + layouts["vpp"]
    # the lightest of each alone: thousands of splits of hundreds of chunks take 400 MB for a job of 1,000 layers
    least = {
        one: min(_candidates(model.job, *divmod(one, width)).values(), default=math.inf)
        for one in np.unique(pipeline).tolist()
    }
    if math.isinf(min(least.values())):
        return
    some = take(layouts, _quickest(model, layouts, peak_bytes, pipeline))
    pipeline = some["pp"].astype(np.int64) * width + some["vpp"]
    physics, runs = _priced(model, some)
    time_s = runs * _times(physics)
    best = {one: int(np.where(pipeline == one, time_s, np.inf).argmin()) for one in least}
    hope_s = {
        one: time_s[row] * _lighter(model.job, take(some, np.array([row])), least[one]) for one, row in best.items()
    }
    for one in sorted(best, key=hope_s.__getitem__)[:PIPELINES]:
        if hope_s[one] <= NEAR * time_s.min():
            yield take(some, np.array([best[one]])), list(_candidates(model.job, *divmod(one, width)))


def _lighter(job: Job, layout: Columns, least: float) -> float:
    """The load of the heaviest rank with the best of the splits (``least``), as a share of that in a layout (1,)."""
    pp, vpp, code = (int(layout[name][0]) for name in ("pp", "vpp", "stage_layers"))
    own = STAGE_LAYERS.numbers(code) if code else own_split(job, pp, vpp)
    load = heaviest_rank(own, pp, tail_layers(job.model))
    return min(load, least) / load


def _candidates(job: Job, pp: int, vpp: int) -> dict[Split, float]:
    """The splits of one pipeline to try, with the load of their heaviest rank: no more than with the listed ones.

    Beside an even split alone only if some are lighter there: with equal loads nothing is as fast as equal chunks.
    """
    layers, tail = job.model.num_layers, tail_layers(job.model)
    offered = offered_splits(job, pp, vpp) if pp > 1 else []
    if not offered:
        return {}
    limit = min(heaviest_rank(split or own_split(job, pp, vpp), pp, tail) for split in offered)
    tried = {
        split: load
        for split in shifted_splits(layers, pp, vpp, math.ceil(tail) + 1)
        if (load := heaviest_rank(split, pp, tail)) <= limit + 1e-9 and split not in offered
    }
    if offered == [()] and layers % (pp * vpp) == 0 and min(tried.values(), default=limit) > limit - 1e-9:
        return {}
    return {split: load for split, load in tried.items() if buildable(job.training.framework, split)}


def _quickest(model: JobModel, layouts: Columns, peak_bytes: Floats, pipeline: Ints) -> Ints:
    """Rows of the `PRICED` layouts of each pipeline with the least quick bounds on time, by the physics alone."""
    physics = CostModel(model.job, layouts, peak_bytes=peak_bytes, lazily=True)
    bound_s = physics.quick_bound(np.arange(len(pipeline)))[0] * cost_of_failing(model.fit_probability(physics))
    order = np.lexsort([bound_s, pipeline])
    _, start = np.unique(pipeline[order], return_index=True)
    place = np.arange(len(order)) - np.repeat(start, np.diff(start, append=len(order)))
    return np.sort(order[place < PRICED])


def _scores(model: JobModel, layout: Columns, splits: list[Split]) -> Floats:
    """Time in s and energy in J, (1 + splits, 2), of a layout (1,) as it is and with each split; equal if unknown.

    Time at the top clock; energy at the clock of the layout's own least, with all slack used where stages may.
    """
    codes = np.array([int(layout["stage_layers"][0]), *map(STAGE_LAYERS.of, splits)])
    repeated = {name: np.repeat(values, len(codes)) for name, values in layout.items()}
    physics, runs = _priced(model, repeated | {"stage_layers": codes})
    time_s = _times(physics)
    energy_j = time_s if model.job.cluster.gpu.power is None else _energies(model.job, physics)
    return np.column_stack([runs * time_s, runs * energy_j])


def _priced(model: JobModel, layouts: Columns) -> tuple[CostModel, Floats]:
    """(Layouts by the physics alone, how many runs (L,) each counts, as tight ones do in the search).

    What was learned of layouts that differ in their split is nearly the same, and takes longer.
    """
    physics = CostModel(model.job, layouts)
    return physics, cost_of_failing(model.fit_probability(physics))


def _times(physics: CostModel) -> Floats:
    """Seconds (L,) of all layouts at the top clock."""
    clocks = uniform_stage_clocks(physics.layouts["pp"], physics.top_mhz)
    return physics.iteration_time_s(np.arange(len(clocks)), clocks)


def _energies(job: Job, physics: CostModel) -> Floats:
    """Joules (L,) of all layouts at the clock at which the first takes least."""
    slack, grid = float(job.search.per_stage_clocks), len(job.search.clock_mhz)

    def joules(rows: Ints, clock: Ints) -> Floats:
        return physics.evaluate(rows, physics.stage_clocks(rows, clock, np.full(len(rows), slack)))["energy_j"]

    best = int(joules(np.zeros(grid, np.int64), np.arange(grid)).argmin())
    rows = np.arange(len(physics.layouts["pp"]))
    return joules(rows, np.full_like(rows, best))
