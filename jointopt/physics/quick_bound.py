"""Time and energy that layouts do not go below, from the sums over their stages: a tenth of the work of pricing them.

No array has a column per stage, so that layouts of all depths are bounded at once.
"""

from __future__ import annotations

import functools
import operator

import numpy as np

from jointopt.core.schema import SCHEDULE, Columns, Floats
from jointopt.core.units import PICO
from jointopt.physics.compute import Pass
from jointopt.physics.cooling import Cooler
from jointopt.physics.costs import LayerCosts, layer_costs, layer_traffic, with_recompute
from jointopt.physics.layout_arrays import LayoutArrays, split_of
from jointopt.physics.slack import pipeline_floor_j
from jointopt.physics.traffic import Hardware, Traffic
from jointopt.spec.cluster import PowerConstants
from jointopt.spec.framework import CHUNKS_OF_SCHEDULE
from jointopt.spec.job import Job
from jointopt.spec.plans.placement import even_domain, placement


def quick_bound(
    job: Job, hw: Hardware, layouts: Columns, power: PowerConstants, cooler: Cooler
) -> tuple[Floats, Floats]:
    """(seconds, joules of all GPUs), (L,) each, that the physics of layouts of any depths goes below at no clocks.

    Derived here. A pipeline takes at least the work of its slowest rank, and that is at least the mean over ranks: the
    kernels and exposed collectives of all layers, embedding and head over pp. Bubble, sends, gradients, ZeRO-3's
    gathers, optimizer step, host, and clocks below the top one only add to it. The energy is that of the same work at
    the lowest voltage, and of GPUs that idle for that time: `slack.energy_floor_j` with fewer parts.
    """
    lay, profile = LayoutArrays(job, layouts), job.training.framework
    layer = layer_costs(job, hw, lay)
    groups = placement(layouts, even_domain(job.cluster), profile.experts_span_tp)
    moved = _all_traffic(job, layer_traffic(job, hw, lay, groups, layer))
    work = _all_work(job, hw, lay, layer)
    forward, backward, batches = work.forward, work.backward, lay.micro_batches
    rank_s = (forward.time_s + backward.time_s + moved.forward_s + moved.backward_s) / layouts["pp"]
    time_s = batches * (rank_s + profile.micro_batch_overhead_s) + profile.iteration_overhead_s
    time_s += _bubble_s(job, lay, layer)
    flops = (forward.flops + backward.flops) * hw.kernels.flop_energy
    clocked_j = power.pj_per_flop * PICO * flops + power.active_w * (forward.sm_s + backward.sm_s)
    fixed_j = power.pj_per_hbm_byte * PICO * (forward.hbm_bytes + backward.hbm_bytes) + moved.joules
    floor_j = pipeline_floor_j(batches * clocked_j, batches * fixed_j, time_s * layouts["pp"], power, cooler)
    return time_s, floor_j * (layouts["dp"] * layouts["tp"] * layouts["cp"])


def _bubble_s(job: Job, lay: LayoutArrays, layer: LayerCosts) -> Floats:
    """Seconds (L,) before and after a rank's work, the mean over ranks, in which the first chunks of others run.

    The path of `chunks.path_bound_s` through rank j takes the first chunks of the ranks before it, (pp - 1) / 2 of them
    in the mean over j. A chunk takes at least the kernels of as few layers as any has, of the faster kind; schedules
    with passes of their own at least those forward. None is counted where a last group of micro-batches is not full.
    """
    pp, vpp = lay.layouts["pp"], lay.layouts["vpp"]
    kinds = [layer.dense] * (not job.model.is_moe or job.model.num_dense_layers > 0) + [layer.moe] * job.model.is_moe
    forward_s = np.minimum.reduce([one.forward.time_s for one in kinds])
    backward_s = np.minimum.reduce([one.backward.time_s for one in kinds])
    own = np.isin(lay.layouts["schedule"], [SCHEDULE.code(name) for name in CHUNKS_OF_SCHEDULE])
    chunk_s = _fewest_layers(job, lay) * (forward_s + np.where(own, 0.0, backward_s))
    return np.where((vpp == 1) | (lay.micro_batches % pp == 0), (pp - 1) / 2.0 * chunk_s, 0.0)


def _fewest_layers(job: Job, lay: LayoutArrays) -> Floats:
    """Layers of the smallest chunk of each layout, (L,)."""
    pp, vpp, stated = (lay.layouts[name].astype(np.int64) for name in ("pp", "vpp", "stage_layers"))
    keys, which = np.unique(pp << 48 | vpp << 32 | stated, return_inverse=True)
    shapes = [(key >> 48, key >> 32 & 0xFFFF, key & 0xFFFFFFFF) for key in keys.tolist()]
    return np.array([min(split_of(job, *shape)) for shape in shapes])[which]


def _layers(job: Job) -> tuple[int, int]:
    """Dense and MoE layers of the model, those that predict further tokens among them."""
    whole = job.model.num_layers + job.model.mtp_num_layers
    dense = job.model.num_dense_layers if job.model.is_moe else whole
    return dense, whole - dense


def _all_work(job: Job, hw: Hardware, lay: LayoutArrays, layer: LayerCosts) -> Pass:
    """Kernels of one micro-batch on all stages together, (L,): the sum of `costs.work_per_stage`."""
    kinds = ((layer.dense, "dense"), (layer.moe, "moe"))
    parts = [layer.embedding, layer.head]
    for count, (one, kind) in zip(_layers(job), kinds, strict=True):
        if count:
            again = with_recompute(job, hw, one, layer.core, lay, kind)
            parts.append(Pass(again.forward.times(count), again.backward.times(count)))
    return functools.reduce(operator.add, parts)


def _all_traffic(job: Job, per_layer: dict[str, tuple[Traffic | None, Traffic | None]]) -> Traffic:
    """Collectives of one micro-batch on all stages together, (L,), exposed seconds and joules."""
    parts = [
        Traffic(*(count * np.asarray(x) for x in (one.forward_s, one.backward_s, one.joules)))
        for of_kinds in per_layer.values()
        for count, one in zip(_layers(job), of_kinds, strict=True)
        if one is not None
    ]
    return functools.reduce(operator.add, parts)
