"""Time and energy that layouts do not go below, from the sums over their stages: a tenth of the work of pricing them.

No array has a column per stage, so that layouts of all depths are bounded at once.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import SCHEDULE, Columns, Floats
from jointopt.core.units import PICO
from jointopt.jobs.clocks import without_limits
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import even_domain, placement
from jointopt.physics.attention_span import skipping_window
from jointopt.physics.compute import Pass
from jointopt.physics.cooling import Cooler
from jointopt.physics.costs import with_recompute
from jointopt.physics.layer_costs import LayerCosts, layer_costs, waiting_sm_s
from jointopt.physics.layer_traffic import layer_traffic
from jointopt.physics.layout_arrays import LayoutArrays, split_of
from jointopt.physics.slack import pipeline_floor_j
from jointopt.physics.traffic import Hardware, Traffic

_AT_ONCE = 16_384  # layouts: each array then takes 128 KiB of the cache


@dataclass(frozen=True)
class _Kind:
    """One kind of layer: how many the model has, and of one micro-batch in one of them kernels and collectives."""

    count: int
    work: Pass  # (L,), what is recomputed included
    moved: Traffic  # (L,)

    @property
    def forward_s(self) -> Floats:
        """Seconds forward, (L,)."""
        return self.work.forward.time_s + self.moved.forward_s

    @property
    def backward_s(self) -> Floats:
        """Seconds backward, (L,)."""
        return self.work.backward.time_s + self.moved.backward_s


def quick_bound(
    job: Job, hw: Hardware, layouts: Columns, power: PowerConstants, cooler: Cooler
) -> tuple[Floats, Floats]:
    """(seconds, joules of all GPUs), (L,) each, that the physics of layouts of any depths goes below at no clocks.

    Derived here. The time is that of `_pipeline_s` for kernels and exposed collectives alone: sends, gradients,
    ZeRO-3's gathers, optimizer step, host, and clocks below the top one only add to it. The energy is that of the same
    work at the lowest voltage, and of GPUs that idle for that time: `slack.energy_floor_j` with fewer parts.
    """
    layouts, of = without_limits(layouts)
    blocks = (slice(start, start + _AT_ONCE) for start in range(0, max(len(layouts["pp"]), 1), _AT_ONCE))
    found = [_of_block(job, hw, {n: values[b] for n, values in layouts.items()}, power, cooler) for b in blocks]
    time_s, energy_j = (np.concatenate(values)[of] for values in zip(*found, strict=True))
    return time_s, energy_j


def _of_block(job: Job, hw: Hardware, layouts: Columns, power: PowerConstants, cooler: Cooler) -> tuple[Floats, Floats]:
    lay = LayoutArrays(job, layouts)
    layer = layer_costs(job, hw, lay)
    kinds = _kinds(job, hw, lay, layer)
    time_s = _pipeline_s(job, lay, layer, kinds) + job.training.framework.iteration_overhead_s
    whole = [one.work.times(one.count) for one in kinds]
    work = functools.reduce(operator.add, [*whole, layer.embedding, layer.head]).clocked(job.training.framework)
    joules = sum((one.count * one.moved.joules for one in kinds), np.zeros(len(time_s)))
    flops = (work.forward.flops + work.backward.flops) * hw.kernels.flop_energy
    waiting_s = (job.model.num_moe_layers + job.model.mtp_num_layers) * waiting_sm_s(lay, layer)
    sm_s = work.forward.sm_s + work.backward.sm_s - waiting_s
    clocked_j = power.pj_per_flop * PICO * flops + power.active_w * sm_s
    fixed_j = power.pj_per_hbm_byte * PICO * (work.forward.hbm_bytes + work.backward.hbm_bytes) + joules
    clocked_j, fixed_j = lay.micro_batches * clocked_j, lay.micro_batches * fixed_j
    floor_j = pipeline_floor_j(clocked_j, fixed_j, time_s * layouts["pp"], power, cooler)
    return time_s, floor_j * (layouts["dp"] * layouts["tp"] * layouts["cp"])


def _kinds(job: Job, hw: Hardware, lay: LayoutArrays, layer: LayerCosts) -> list[_Kind]:
    """The kinds of layers that the model has."""
    groups = placement(lay.layouts, even_domain(job.cluster), job.training.framework.experts_span_tp)
    per_layer = layer_traffic(job, hw, lay, groups, layer).values()
    found = []
    for place, (work, count) in enumerate(zip(with_recompute(job, hw, lay, layer), _counts(job), strict=True)):
        if count:
            moved = [part for of_kinds in per_layer if (part := of_kinds[place]) is not None]
            found.append(_Kind(count, work, functools.reduce(operator.add, moved)))
    return found


def _counts(job: Job) -> tuple[int, ...]:
    """Layers of the model by what they cost, as `Split.kinds` has those of chunks."""
    model = job.model
    every = model.num_layers + model.mtp_num_layers
    dense = model.num_dense_layers if model.is_moe else every
    if not skipping_window(job):
        return dense, every - dense
    windowed = sum(model.windowed_layers[:dense]), sum(model.windowed_layers[dense:])
    return dense - windowed[0], every - dense - windowed[1], *windowed


def _pipeline_s(job: Job, lay: LayoutArrays, layer: LayerCosts, kinds: list[_Kind]) -> Floats:
    """Seconds (L,) that no pipeline goes below, by two paths of `chunks.path_bound_s`.

    The path through rank j takes the first chunks of the ranks before it and all work of its own. In the mean over j
    that is all work over pp and (pp - 1) / 2 chunks; through the last rank it is pp - 1 chunks, its layers and the
    head, which schedules with passes of their own may have elsewhere. A chunk has at least as many layers as the
    smallest, of the faster kind, and forward passes alone where a schedule has passes of its own. Where a last group
    of micro-batches is not full no chunk is counted: each rank's own work still is (`makespan.makespan_s`).
    """
    pp, vpp, batches = lay.layouts["pp"], lay.layouts["vpp"], lay.micro_batches
    ends = [layer.embedding.forward, layer.embedding.backward, layer.head.forward, layer.head.backward]
    work_s = sum((one.count * (one.forward_s + one.backward_s) for one in kinds), sum(part.time_s for part in ends))
    fewest = _fewest_layers(job, lay)
    own = np.isin(lay.layouts["schedule"], [SCHEDULE.code(name) for name in CHUNKS_OF_SCHEDULE])
    first_s = fewest * np.minimum.reduce([one.forward_s + np.where(own, 0.0, one.backward_s) for one in kinds])
    before_s = np.where((vpp == 1) | (batches % pp == 0), (pp - 1) * first_s, 0.0)
    last_s = vpp * first_s + np.where(own, 0.0, layer.head.forward.time_s + layer.head.backward.time_s)
    path_s = np.maximum(batches * work_s / pp + before_s / 2.0, batches * last_s + before_s)
    return np.asarray(path_s + batches * job.training.framework.micro_batch_overhead_s)


def _fewest_layers(job: Job, lay: LayoutArrays) -> Floats:
    """Layers of the smallest chunk of each layout, (L,)."""
    pp, vpp, stated = (lay.layouts[name].astype(np.int64) for name in ("pp", "vpp", "stage_layers"))
    keys, which = np.unique(pp << 48 | vpp << 32 | stated, return_inverse=True)
    shapes = [(key >> 48, key >> 32 & 0xFFFF, key & 0xFFFFFFFF) for key in keys.tolist()]
    return np.array([min(split_of(job, *shape)) for shape in shapes], float)[which]
