"""Costs of layouts before any clock is chosen, the SM-bound share kept apart.

Arrays are (layouts, pp) unless stated, or (layouts, K) of the ranks that differ; times are of one micro-batch at the
maximum clock.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.jobs.framework import V_SHAPED
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import Group, even_domain, placement
from jointopt.physics import offload, traffic
from jointopt.physics.layer_costs import (
    LayerCosts,
    PerLayer,
    ShapeCosts,
    layer_costs,
    layer_traffic,
    over_stages,
    waiting_sm_s,
)
from jointopt.physics.layers import QUANTIZED, STREAMED, Pass, Work
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.memory import Parameters, stage_parameters, trained_parameters
from jointopt.physics.recompute_work import module_work
from jointopt.physics.stage_costs import StageCosts, summed

# Of the host's time for a layer, what it takes to launch its forward pass again: PyTorch's checkpoints on an H100 whose
# host is slow, three models of 16 to 32 layers (0.79 to 0.88; launches alone would be a third).
RELAUNCHED = 0.83


@dataclass(frozen=True)
class Laid:
    """Layouts as the formulas read them: all that no speed and no overhead of the job changes.

    Of their ranks only those that differ; ``kind`` (L, pp): which of them each rank is as.
    """

    lay: LayoutArrays
    kind: Ints
    groups: dict[str, Group]
    parameters: Parameters
    trained: Parameters  # of them, those that get gradients
    gradients: list[tuple[object, tuple[Floats, ...]]] = field(default_factory=list, init=False)
    worked: list[tuple[object, Pass, list[Pass]]] = field(default_factory=list, init=False)

    @classmethod
    def of(cls, job: Job, layouts: Columns) -> Laid:
        """The layouts of a job."""
        lay, kind = LayoutArrays(job, layouts).of_differing_ranks()
        groups = placement(layouts, even_domain(job.cluster), job.training.framework.experts_span_tp)
        held = stage_parameters(job, lay, lay.layers)
        return cls(lay, kind, groups, held, trained_parameters(job, lay, held))

    def work(self, job: Job, hw: traffic.Hardware, layer: LayerCosts) -> tuple[Pass, list[Pass]]:
        """`work_per_stage` and `with_recompute`, worked out once for all jobs whose kernels are those of the first."""
        if self.worked and self.worked[0][0] == hw.kernels:
            return self.worked[0][1:]
        kinds = with_recompute(job, hw, self.lay, layer)
        found = work_per_stage(job, self.lay, layer, kinds), kinds
        if not self.worked:
            self.worked.append((hw.kernels, *found))
        return found

    def gradient_traffic(self, job: Job, hw: traffic.Hardware) -> tuple[Floats, ...]:
        """`traffic.gradient_traffic`, worked out once for all jobs whose links are those of the first."""
        rates = hw.links, hw.intra_j_per_byte, hw.inter_j_per_byte
        if self.gradients and self.gradients[0][0] == rates:
            return self.gradients[0][1]
        found = traffic.gradient_traffic(job, hw, self.lay, self.groups, self.parameters, self.trained)
        if not self.gradients:
            self.gradients.append((rates, found))
        return found


def stage_costs(job: Job, hw: traffic.Hardware, layouts: Columns) -> StageCosts:
    """Costs of every rank, (L, pp), of layouts that share one pipeline depth."""
    return differing_costs(job, hw, layouts).of_all_ranks()


def differing_costs(
    job: Job, hw: traffic.Hardware, layouts: Columns, layer: LayerCosts | None = None, laid: Laid | None = None
) -> StageCosts:
    """Costs of layouts, in the order of their pipeline depth, by the formulas of `compute`, `traffic` and `memory`.

    Of ranks that differ alone (`StageCosts.of_all_ranks`). ``layer``, ``laid``: their kernels, how they lie, if known.

    A micro-batch takes a third of the host's time forward and two thirds backward, as kernels do (backward is two
    products per product forward): derived here, as is what follows from the profile's host floors.
    """
    laid, profile = laid or Laid.of(job, layouts), job.training.framework
    lay, groups, trained, layers = laid.lay, laid.groups, laid.trained, laid.lay.layers
    layer = layer or layer_costs(job, hw, lay)
    work, kinds = laid.work(job, hw, layer)
    per_layer = layer_traffic(job, hw, lay, groups, layer)
    exposed = {name: over_stages(lay, one) for name, one in per_layer.items()}
    if lay.offloads_activations.any():
        exposed["offload"] = offload.activation_traffic(job, hw, lay, work)
    p2p_s, p2p_j = traffic.pipeline_traffic(job, hw, lay, groups)
    overlap = np.maximum(profile.pp_overlap, np.where(lay.vpp > 1, profile.interleaved_pp_overlap, 0.0))
    reduce_s, reduce_j, gather_s, gather_j = laid.gradient_traffic(job, hw)
    step_s, step_bytes = _optimizer_step(job, hw, lay, layers, trained)
    if lay.offloads_optimizer.any():
        on_host = lay.offloads_optimizer[:, None]
        step_s = np.where(on_host, offload.optimizer_step_s(job, lay, trained), step_s)
        step_bytes = np.where(on_host, 0.0, step_bytes)
    host = _exposed_host_s(job, lay, layers)
    backward = work.backward + _gradient_sum(job, hw, lay, trained)
    link_parts_j = {name: t.joules for name, t in exposed.items()}
    # a stage sends two per chunk and micro-batch, the two ends of the pipeline have one neighbour less
    turns = np.array([1.0 + (s in V_SHAPED) for s in lay.split.schedule])[lay.split.which, None]  # of a V
    sends = 2.0 * lay.vpp[:, None] - turns * lay.borders
    link_parts_j |= {"pp_comm": p2p_j[:, None] * sends, "zero_comm": gather_j}
    return StageCosts(
        layouts=layouts | {"zero_stage": lay.zero}, layers=layers, split=lay.split,
        units_s=_units_s(job, layer, kinds, per_layer), num_micro_batches=lay.micro_batches,
        replicas=(layouts["dp"] * layouts["tp"] * layouts["cp"]).astype(np.int64),
        forward_sm_s=work.forward.sm_s, forward_memory_s=work.forward.memory_s,
        forward_comm_s=summed(t.forward_s for t in exposed.values()) + host / 3.0,
        backward_sm_s=backward.sm_s, backward_memory_s=backward.memory_s,
        backward_comm_s=summed(t.backward_s for t in exposed.values()) + host * 2.0 / 3.0,
        host_s=_host_s(job, lay, layers), p2p_s=p2p_s * lay.vpp * (1.0 - overlap), gather_s=gather_s,
        reduce_s=reduce_s, optimizer_s=step_s, slowest_step_s=step_s.max(axis=1),
        flops=(work.forward.flops + work.backward.flops) * hw.kernels.flop_energy,
        forward_flops=work.forward.flops * hw.kernels.flop_energy, collective_sm_s=traffic.sm_s(exposed),
        hbm_bytes=work.forward.hbm_bytes + backward.hbm_bytes, link_j=summed(link_parts_j.values()),
        iteration_link_j=reduce_j, iteration_hbm_bytes=step_bytes, link_parts_j=link_parts_j, kind=laid.kind,
        comm_parts_s={name: t.forward_s + t.backward_s for name, t in exposed.items()}, ranks=lay.ranks,
        waiting_sm_s=waiting_sm_s(lay, layer)[:, None] * (layers - lay.dense_layers),
    )  # fmt: skip


def _units_s(job: Job, layer: LayerCosts, repeated: Sequence[Pass], per_layer: dict[str, PerLayer]) -> Floats:
    """The measure by which chunks share the time of their rank, (L, 3, kinds + 2), as in `StageCosts`.

    Gradients of weights are a product for each product forward; the attention core has none.
    """
    kinds = layer.of_kinds
    units = np.zeros((len(layer.head.forward.sm_s), 3, len(kinds) + 2))
    for column, part in enumerate((*repeated, layer.embedding, layer.head)):
        units[:, 0, column], units[:, 1, column] = part.forward.time_s, part.backward.time_s
    if job.training.frozen:  # adapters' gradients are small, and wait for nothing
        return _with_traffic(units, per_layer)
    for column, (_, one, core) in enumerate(kinds):
        units[:, 2, column] = np.maximum(one.forward.sm_s - core.forward.sm_s, 0.0)
    units[:, 2, -1] = layer.head.forward.sm_s
    return _with_traffic(units, per_layer)


def _with_traffic(units: Floats, per_layer: dict[str, PerLayer]) -> Floats:
    """The same with the collectives of layers, added in place."""
    for of_kinds in per_layer.values():
        for column, moved in enumerate(of_kinds):
            if moved is not None:
                units[:, 0, column] += moved.forward_s
                units[:, 1, column] += moved.backward_s
    return units


def with_host_of(job: Job, costs: StageCosts, before: Job) -> StageCosts:
    """Costs of the job ``before`` as they are for ``job``, which differs in what its host takes per micro-batch."""
    more_s = job.training.framework.micro_batch_overhead_s - before.training.framework.micro_batch_overhead_s
    found = replace(
        costs,
        forward_comm_s=costs.forward_comm_s + more_s / 3.0,
        backward_comm_s=costs.backward_comm_s + more_s * 2.0 / 3.0,
        host_s=_host_s(job, LayoutArrays(job, costs.layouts).of_ranks(costs.ranks), costs.layers),
    )
    found.__dict__["pipelines"] = costs.pipelines  # the host changes no share of a chunk, which takes long to work out
    return found


def _host_s(job: Job, lay: LayoutArrays, layers: Floats) -> Floats:
    """Least time of one micro-batch on each stage, (L, pp): what the host needs to launch its layers and experts.

    Attention or an MLP alone is half a layer: profiles state what a whole one needs. A pipeline inside one node needs
    what one stage does (nanotron's runs on eight GPUs). Recomputed layers are launched again (`RELAUNCHED`).
    """
    profile, per_node = job.training.framework, job.cluster.gpus_per_node
    parts = job.model.parts_per_layer / 2.0
    per_rank_s = profile.host_floor_pp_tp_s + profile.host_floor_network_tp_s * (lay.tp > per_node)
    across = (lay.pp > 1) & (lay.dp * lay.cp * lay.tp * lay.pp > per_node)
    layer = np.where(across, profile.host_floor_pp_s + per_rank_s * lay.tp, profile.host_floor_s)
    experts = profile.expert_host_s * job.model.num_experts / lay.ep
    moe_layers = layers - lay.dense_layers
    total = parts * layer[:, None] * layers + experts[:, None] * moe_layers
    total = total * (1.0 + RELAUNCHED * lay.again.full_layers(layers) / np.maximum(layers, 1.0))
    return np.asarray(total * (job.cluster.gpu.host_time_factor or 1.0))


def _exposed_host_s(job: Job, lay: LayoutArrays, layers: Floats) -> Floats:
    """Time that the host adds to each micro-batch on each stage, (L, pp): the framework's own, and per local expert.

    A dispatcher waits for the number of tokens of each expert, so the launches that follow do not hide behind kernels.
    """
    profile = job.training.framework
    each_s = profile.expert_launch_s + profile.expert_quantize_s * (job.training.dtype in QUANTIZED)
    experts = each_s * job.model.num_experts / lay.ep
    return np.asarray(profile.micro_batch_overhead_s + experts[:, None] * (layers - lay.dense_layers))


def _optimizer_step(
    job: Job, hw: traffic.Hardware, lay: LayoutArrays, layers: Floats, params: Parameters
) -> tuple[Floats, Floats]:
    """(seconds, bytes of device memory) of the step, (L, pp): memory-bound, of whose bandwidth streaming reaches 0.8.

    Adam reads and writes master and moments (24 B), reads the gradient (4 B), writes the weight (2 B).
    """
    shard, expert_shard = (np.where(lay.zero >= 1, n, 1.0)[:, None] for n in (lay.shards, lay.expert_shards))
    step_bytes = 30.0 * (params.dense / shard + params.expert / expert_shard)
    # ZeRO-1 and 2 put gathered weights together where each rank's slice is a copy of its own
    copies = np.where((lay.zero == 1) | (lay.zero == 2), lay.shards - 1.0, 0.0)
    slices_s = job.training.framework.zero_slice_s * copies[:, None] * layers
    return step_bytes / (0.8 * hw.kernels.gemm.hbm_bytes_per_s) + slices_s, step_bytes


def _gradient_sum(job: Job, hw: traffic.Hardware, lay: LayoutArrays, params: Parameters) -> Work:
    """Kernels that add the gradients of a micro-batch to those before, (L, pp): memory-bound.

    Of trained ``params``, the profile's ``accumulated_bytes`` each; ZeRO-2 and 3 add what a rank keeps of them. The
    first micro-batch, which has nothing before it, counts as the others.
    """
    shard, expert_shard = (np.where(lay.zero >= 2, n, 1.0)[:, None] for n in (lay.shards, lay.expert_shards))
    added = job.training.framework.accumulated_bytes * (params.dense / shard + params.expert / expert_shard)
    none, seconds = np.zeros_like(added), added / (STREAMED * hw.kernels.gemm.hbm_bytes_per_s)
    return Work(sm_s=none, memory_s=seconds, flops=none, hbm_bytes=added).clocked(job.training.framework)


@dataclass(frozen=True)
class Common:
    """Parts that the costs of layouts have in common for jobs that differ from one in speeds and overheads alone."""

    hardware: traffic.Hardware  # of that one, whose shapes they are
    shapes: ShapeCosts
    laid: dict[bytes, Laid] = field(default_factory=dict)  # by the rows of a lot of layouts
    collectives: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    def of_lot(self, rows: Ints, job: Job, layouts: Columns) -> Laid:
        """The `Laid` of the layouts of a lot, which are these ``rows`` of all, worked out for the first job."""
        if (key := rows.tobytes()) not in self.laid:
            self.laid[key] = Laid.of(job, layouts)
        return self.laid[key]


def work_per_stage(job: Job, lay: LayoutArrays, costs: LayerCosts, repeated: Sequence[Pass]) -> Pass:
    """Kernels of one micro-batch, (L, pp): layers of each kind, embedding on the first stage, head on the last.

    ``repeated``: the layers as of `with_recompute`.
    """
    parts = [*zip(repeated, lay.layers_of_kinds, strict=True), (costs.embedding, lay.starts), (costs.head, lay.ends)]

    def outer(part: Pass, per_stage: Floats) -> Pass:
        return part.map(lambda x: x[:, None] * per_stage)

    return functools.reduce(operator.add, (outer(*part) for part in parts)).clocked(job.training.framework)


def with_recompute(job: Job, hw: traffic.Hardware, lay: LayoutArrays, costs: LayerCosts) -> list[Pass]:
    """Layers of each kind with forward work repeated before the backward pass: all (full), core or share (selective).

    Korthikanti et al. 2022 (arXiv:2205.05198) section 5; with a profile's ``selective_share`` some layers, whole. Named
    modules repeat their own kernels; ``recompute_num_layers`` a share of the layers.
    """
    share = job.training.framework.selective_share
    found = []
    for kind, layer, core in costs.of_kinds:
        selected = layer.forward.times(share) if share else core.forward
        again = layer.forward.times(lay.again.full_share) + selected.times(lay.again.usual.astype(float))
        if lay.again.modules.any():
            beside = costs.mlp if kind == "dense" else costs.experts
            again = again + module_work(job, hw.kernels, lay, (core, beside), kind)
        found.append(Pass(layer.forward, layer.backward + again))
    return found
