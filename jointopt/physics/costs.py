"""Costs of layouts before any clock is chosen, split into SM-bound and other time: of a layer, then of stages.

Arrays are (layouts, pp) unless stated, or (layouts, K) of the ranks that differ; times are of one micro-batch at the
maximum clock. Kernels of a layer are priced once per distinct shape, (L,).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.core.units import GB
from jointopt.jobs.catalog.kernels import host_bytes_per_s
from jointopt.jobs.framework import V_SHAPED
from jointopt.jobs.job import Job
from jointopt.jobs.model import Layer
from jointopt.jobs.plans.placement import Group, even_domain, placement
from jointopt.physics import layers, traffic
from jointopt.physics.layers import (
    QUANTIZED,
    STREAMED,
    Pass,
    Work,
    adapter_kernels,
    adapters,
    elementwise,
    linear,
    mlp_layer,
    no_kernels,
)
from jointopt.physics.layouts import LayoutArrays, has_latents, has_scores
from jointopt.physics.memory import (
    Parameters,
    adapter_parameters,
    batch_bytes,
    layer_parameters,
    stage_parameters,
    table_parameters,
)
from jointopt.physics.stage_costs import StageCosts, summed
from jointopt.physics.traffic import Hardware, Traffic

# Of the host's time for a layer, what it takes to launch its forward pass again: PyTorch's checkpoints on an H100 whose
# host is slow, three models of 16 to 32 layers (0.79 to 0.88; launches alone would be a third).
RELAUNCHED = 0.83
_HOST_MEMORY_GBYTES_PER_S = 50.0  # a GPU's share: eight to twelve DDR channels of 25 to 40 GB/s for four GPUs
PerLayer = tuple[Traffic | None, ...]  # by kind of layer, as `Split.kinds`


@dataclass(frozen=True)
class LayerCosts:
    """Kernels of one layer of each kind, its parts, embedding and head, of one micro-batch, (L,)."""

    kinds: tuple[Layer, ...]  # as `layouts.job_kinds`
    whole: tuple[Pass, ...]  # a layer of each
    core: tuple[Pass, ...]  # of its attention what is no product with weights: scores, mixing
    mlp: Pass  # of a layer with a dense MLP
    experts: Pass  # of a layer with experts
    embedding: Pass
    head: Pass
    waiting: Pass  # of an MoE layer, in which a mean rank waits for the one with the most tokens

    @property
    def of_kinds(self) -> list[tuple[Layer, Pass, Pass]]:
        """Each kind, a layer of it, and its attention core."""
        return list(zip(self.kinds, self.whole, self.core, strict=True))

    def map(self, of: Callable[[Floats], Floats]) -> LayerCosts:
        """All of them after ``of``."""
        ends = {name: getattr(self, name).map(of) for name in ("mlp", "experts", "embedding", "head", "waiting")}
        whole, core = (tuple(part.map(of) for part in parts) for parts in (self.whole, self.core))
        return LayerCosts(self.kinds, whole, core, **ends)


@dataclass(frozen=True)
class ShapeCosts:
    """`LayerCosts` of L layouts, each distinct kernel shape priced once."""

    distinct: LayerCosts  # (shapes,)
    which: Ints  # (L,), the shape of each layout

    @classmethod
    def of(cls, job: Job, hw: Hardware, lay: LayoutArrays) -> ShapeCosts:
        """Price each shape once."""
        shape = np.zeros(len(lay.tp), np.int64)
        for column in ("micro_batch_size", "tp", "ep", "sequence_parallel", "cp", "etp"):
            values = lay.layouts[column].astype(np.int64)
            shape = shape * (values.max(initial=0) + 1) + values
        _, first, which = np.unique(shape, return_index=True, return_inverse=True)
        return cls(_layer_costs(job, hw, lay, first), which)

    def of_layouts(self, rows: Ints) -> LayerCosts:
        """The kernels of some of the layouts."""
        which = self.which[rows]
        return self.distinct.map(lambda x: x[which])


def layer_costs(job: Job, hw: Hardware, lay: LayoutArrays) -> LayerCosts:
    """Kernels of one micro-batch, (L,), priced once per distinct shape."""
    return ShapeCosts.of(job, hw, lay).of_layouts(np.arange(len(lay.tp)))


def _layer_costs(job: Job, hw: Hardware, lay: LayoutArrays, rows: Ints) -> LayerCosts:
    """Kernels of one micro-batch of those layouts; the head and its loss again for each further token predicted.

    DeepSeek-V3 (arXiv:2412.19437), section 2.2: after a projection of two hidden states to one, which takes the head's
    time per multiplication.
    """
    model, training, k = job.model, job.training, hw.kernels
    tokens, tp, sharded, sp = (x[rows] for x in (lay.tokens, lay.tp, lay.sharded_tokens, lay.sp))
    first = last = mlp = experts = waiting = no_kernels(rows.shape)
    if not model.block:
        first = layers.embedding(k, model, tokens, tp)
        heads = 1.0 + model.mtp_num_layers * (1.0 + 2.0 * model.hidden_size / model.vocab_size)
        last = layers.head(k, model, tokens, tp).times(heads)
    if any(kind.ffn == "dense" for kind in lay.kinds):
        mlp = mlp_layer(k, model, tokens, model.ffn_hidden_size / tp, sharded)
    if model.is_moe:
        ways = lay.ep, lay.expert_tp, lay.token_share, lay.expert_load, lay.expert_spread
        experts, waiting = layers.moe_layer(k, model, tokens, tp, sharded, *(x[rows] for x in ways))

    kinds, ffns = lay.kinds, {"dense": mlp, "experts": experts}
    cores = [
        layers.mixer_core(k, model, kind, tokens, training.seq_length, tp, lay.cp[rows]) for kind in kinds
    ]  # fmt: skip
    whole = []
    for kind, core in zip(kinds, cores, strict=True):
        layer = no_kernels(rows.shape)
        if kind.mixers:
            layer = layers.attention_layer(k, model, tokens, core, tp, sharded, kind.mixers)
        layer = layer + ffns[kind.ffn] if kind.ffn in ffns else layer
        if training.frozen:
            found = adapters(model, training, kind, *(x[rows] for x in lay.adapter_cuts))
            layer = functools.reduce(operator.add, adapter_kernels(k, found, training, sp), layer)
        whole.append(layer)
    costs = LayerCosts(kinds, tuple(whole), tuple(cores), mlp, experts, first, last, waiting)
    return costs.map(lambda x: x if np.shape(x) == rows.shape else np.broadcast_to(x, rows.shape))


def waiting_sm_s(lay: LayoutArrays, layer: LayerCosts) -> Floats:
    """Seconds (L,) of one MoE layer in which a mean rank waits for the one with the most tokens, with recompute.

    Those that follow the clock alone: others, by a profile's ``compute_clock_share``, are counted as work.
    """
    forward, backward = layer.waiting.forward.sm_s, layer.waiting.backward.sm_s
    followed = lay.job.training.framework.compute_clock_share
    return np.asarray(followed * ((1.0 + lay.recompute.dispatches_again()) * forward + backward))


def with_recompute(job: Job, hw: Hardware, lay: LayoutArrays, costs: LayerCosts) -> list[Pass]:
    """Layers of each kind with forward work repeated before the backward pass: all (full), core or share (selective).

    Korthikanti et al. 2022 (arXiv:2205.05198) section 5; with a profile's ``selective_share`` some layers, whole. Named
    modules repeat their own kernels; ``recompute_num_layers`` a share of the layers.
    """
    share = job.training.framework.selective_share
    found = []
    for kind, layer, core in costs.of_kinds:
        scores = core.forward if has_scores(kind) else core.forward.times(0.0)
        selected = layer.forward.times(share) if share else scores
        again = layer.forward.times(lay.recompute.full_share) + selected.times(lay.recompute.usual.astype(float))
        if lay.recompute.modules.any():
            for name, work in _module_work(job, hw, lay, costs, kind, core).items():
                again = again + work.times(lay.recompute.has(name).astype(float))
        found.append(Pass(layer.forward, layer.backward + again))
    return found


def _module_work(
    job: Job, hw: Hardware, lay: LayoutArrays, costs: LayerCosts, kind: Layer, core: Pass
) -> dict[str, Work]:
    """Forward kernels of the modules that a layer of one kind may recompute, (L,) each.

    A module inside a recomputed one counts once: an expert's activation and shared experts under ``moe``.
    """
    k, model, tokens, tp = hw.kernels, job.model, lay.tokens, lay.tp
    norms = elementwise(k, 4.0 * lay.sharded_tokens * model.hidden_size * k.element_bytes, 2)
    parts = {"core_attn": core.forward if has_scores(kind) else core.forward.times(0.0), "layernorm": norms}
    if has_latents(kind):
        # MLA's products from the latents to queries, keys and values (DeepSeek-V2, arXiv:2405.04434, section 2.1)
        heads = model.num_attention_heads / tp
        qk, values = model.qk_nope_head_dim + model.qk_rope_head_dim, model.qk_nope_head_dim + model.v_head_dim
        up = linear(k, tokens, heads * values, float(model.kv_lora_rank))
        up += linear(k, tokens, heads * qk, float(model.q_lora_rank or model.hidden_size))
        parts["mla_up_proj"] = up.forward
    apart = (~lay.recompute.has("moe")).astype(float)
    if kind.ffn == "dense":
        parts["mlp"] = costs.mlp.forward
    elif kind.ffn == "experts":
        parts["moe"] = costs.experts.forward
        # the activation of the routed experts: up (and gate) read, the product written
        copies: Floats = tokens * lay.token_share * model.moe_router_topk / lay.expert_tp * lay.expert_load
        width = (3 if model.gated_mlp else 2) * model.moe_ffn_hidden_size
        parts["moe_act"] = elementwise(k, copies * width * k.element_bytes, 1).times(apart)
        if model.num_shared_experts:
            shared = model.num_shared_experts * model.moe_ffn_hidden_size / tp
            parts["shared_experts"] = mlp_layer(k, model, tokens, shared, lay.sharded_tokens).forward.times(apart)
    own = [one for one in adapters(model, job.training, kind, *lay.adapter_cuts) if one.mlp]
    whole = "moe" if kind.ffn == "experts" else "mlp"
    for one in adapter_kernels(k, own, job.training, lay.sp):
        parts[whole] = parts[whole] + one.forward
    return parts


def layer_traffic(
    job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: LayerCosts
) -> dict[str, PerLayer]:
    """Collectives of one micro-batch inside a layer of each kind, by kind of parallelism; None where it has none.

    Of layers with a window keys and values of the whole sequence go to all context-parallel ranks all the same, as
    Transformer Engine's all-gather form has it.
    """
    of = job, hw, lay, groups
    found: dict[str, list[Traffic | None]] = {"tp_comm": [], "cp_comm": []}
    if job.model.is_moe:
        found["ep_comm"] = []
    for kind, whole, core in layer.of_kinds:
        summed_parts = traffic.tp_traffic(*of, whole, kind)
        if job.training.frozen:
            summed_parts = summed_parts + traffic.adapter_traffic(*of, kind)
        found["tp_comm"].append(summed_parts)
        found["cp_comm"].append(traffic.cp_traffic(*of, core, kind))
        if job.model.is_moe:
            found["ep_comm"].append(traffic.ep_traffic(*of, whole) if kind.ffn == "experts" else None)
    if lay.gathers:
        held, again = layer_parameters(job.model, lay), 1.0 + lay.recompute.full_share
        found["gtp_comm"] = [
            traffic.weight_traffic(*of, own, again, whole)
            for own, (_, whole, _) in zip(held, layer.of_kinds, strict=True)
        ]
    return {name: tuple(parts) for name, parts in found.items()}


# Costs of every stage.


@dataclass(frozen=True)
class LayoutParts:
    """What formulas read of layouts and no speed or overhead of the job changes, of the ranks that differ alone."""

    lay: LayoutArrays
    kind: Ints  # (L, pp), which of the ranks that differ each rank is
    groups: dict[str, Group]
    parameters: Parameters
    trained: Parameters  # of them, those that get gradients
    cache: dict[str, tuple[object, Any]] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, job: Job, layouts: Columns) -> LayoutParts:
        """The layouts of a job."""
        # of layouts of several depths up to the deepest pp, behind a layout's own ranks the first again
        lay = LayoutArrays(job, layouts)
        ranks, kind = lay.split.differing_ranks
        lay, kind = lay.of_ranks(np.asfortranarray(ranks[lay.split.which])), kind[lay.split.which]
        groups = placement(layouts, even_domain(job.cluster), job.training.framework.experts_span_tp)
        held = stage_parameters(job, lay)
        return cls(lay, kind, groups, held, adapter_parameters(job, lay) if job.training.frozen else held)

    def computed_once(self, name: str, rates: object, price: Callable[[], Any]) -> Any:
        """What ``price`` returns; kept under ``name`` for all calls with the ``rates`` of the first."""
        if name not in self.cache:
            self.cache[name] = rates, price()
        known, found = self.cache[name]
        return found if known == rates else price()


@dataclass(frozen=True)
class SharedCosts:
    """Parts of the costs that jobs share if they differ in speeds and overheads alone, as those of `sensitivities`."""

    hardware: Hardware  # of the first of these jobs, as ``shapes``
    shapes: ShapeCosts
    laid: dict[bytes, LayoutParts] = field(default_factory=dict)  # by the bytes of a piece's row numbers
    collectives: dict[tuple[object, ...], Floats] = field(default_factory=dict)


def stage_costs(job: Job, hw: Hardware, layouts: Columns) -> StageCosts:
    """Costs of every rank, (L, pp), of layouts that share one pipeline depth."""
    return differing_costs(job, hw, layouts).of_all_ranks()


def differing_costs(
    job: Job, hw: Hardware, layouts: Columns, layer: LayerCosts | None = None, laid: LayoutParts | None = None
) -> StageCosts:
    """Costs of layouts, sorted by pipeline depth, by the formulas of `layers`, `traffic` and `memory`.

    Of the ranks that differ alone (`StageCosts.of_all_ranks`). ``layer``, ``laid``: where known already.

    A micro-batch takes a third of the host's time forward and two thirds backward, as kernels do (backward is two
    products per product forward): derived here, as is what follows from the profile's host floors.
    """
    laid, profile = laid or LayoutParts.of(job, layouts), job.training.framework
    lay, groups, trained, layers_of = laid.lay, laid.groups, laid.trained, laid.lay.layers
    layer = layer or layer_costs(job, hw, lay)
    kinds = laid.computed_once("kernels", hw.kernels, lambda: with_recompute(job, hw, lay, layer))
    work = laid.computed_once("work", hw.kernels, lambda: work_per_stage(job, lay, layer, kinds))
    per_layer = layer_traffic(job, hw, lay, groups, layer)
    # collectives of all layers of each stage
    exposed = {
        name: functools.reduce(operator.add, (t.over(n) for t, n in zip(of, lay.layers_of_kinds, strict=True) if t))
        for name, of in per_layer.items()
    }
    if lay.gathers:  # of the embedding, whose backward pass needs no weights, and of the head
        table, of = table_parameters(job.model, lay), (job, hw, lay, groups)
        for part, at, again in ((layer.embedding, lay.starts, 0.0), (layer.head, lay.ends, 1.0)):
            ends = traffic.weight_traffic(*of, table, np.full_like(lay.tp, again), part).over(at)
            exposed["gtp_comm"] = exposed["gtp_comm"] + ends
    if lay.offloads_activations.any():
        exposed["offload"] = _activation_traffic(job, hw, lay, work)
    p2p_s, p2p_j = traffic.pipeline_traffic(job, hw, lay, groups)
    overlap = np.maximum(profile.pp_overlap, np.where(lay.vpp > 1, profile.interleaved_pp_overlap, 0.0))
    of_gradients = job, hw, lay, groups, laid.parameters, trained
    rates = hw.links, hw.intra_j_per_byte, hw.inter_j_per_byte
    reduce_s, reduce_j, gather_s, gather_j = laid.computed_once(
        "gradients", rates, lambda: traffic.gradient_traffic(*of_gradients)
    )
    step_s, step_bytes = _optimizer_step(job, hw, lay, trained)
    floor, host = _host_s(job, lay)
    backward = work.backward + _gradient_sum(job, hw, lay, trained)
    link_parts_j = {name: t.joules for name, t in exposed.items()}
    # a stage sends two per chunk and micro-batch, the two ends of the pipeline have one neighbour less
    turns = np.array([1.0 + (s in V_SHAPED) for s in lay.split.schedule])[lay.split.which, None]  # of a V
    sends = 2.0 * lay.vpp[:, None] - turns * lay.borders
    link_parts_j |= {"pp_comm": p2p_j[:, None] * sends, "zero_comm": gather_j}
    return StageCosts(
        layouts=layouts | {"zero_stage": lay.zero}, layers=layers_of, split=lay.split,
        units_s=_units_s(job, layer, kinds, per_layer), num_micro_batches=lay.micro_batches,
        replicas=(layouts["dp"] * layouts["tp"] * layouts["cp"]).astype(np.int64),
        forward_sm_s=work.forward.sm_s, forward_memory_s=work.forward.memory_s,
        forward_comm_s=summed(t.forward_s for t in exposed.values()) + host / 3.0,
        backward_sm_s=backward.sm_s, backward_memory_s=backward.memory_s,
        backward_comm_s=summed(t.backward_s for t in exposed.values()) + host * 2.0 / 3.0,
        host_s=floor, p2p_s=p2p_s * lay.vpp * (1.0 - overlap), gather_s=gather_s,
        reduce_s=reduce_s, optimizer_s=step_s, slowest_step_s=step_s.max(axis=1),
        flops=(work.forward.flops + work.backward.flops) * hw.kernels.flop_energy,
        forward_flops=work.forward.flops * hw.kernels.flop_energy, collective_sm_s=traffic.collective_sm_s(exposed),
        hbm_bytes=work.forward.hbm_bytes + backward.hbm_bytes, link_j=summed(link_parts_j.values()),
        iteration_link_j=reduce_j, iteration_hbm_bytes=step_bytes, link_parts_j=link_parts_j, kind=laid.kind,
        comm_parts_s={name: t.forward_s + t.backward_s for name, t in exposed.items()}, ranks=lay.ranks,
        waiting_sm_s=waiting_sm_s(lay, layer)[:, None] * lay.moe_layers,
    )  # fmt: skip


def work_per_stage(job: Job, lay: LayoutArrays, costs: LayerCosts, repeated: Sequence[Pass]) -> Pass:
    """Kernels of one micro-batch, (L, pp): layers of each kind, embedding on the first stage, head on the last.

    ``repeated``: the layers as of `with_recompute`.
    """
    parts = [*zip(repeated, lay.layers_of_kinds, strict=True), (costs.embedding, lay.starts), (costs.head, lay.ends)]

    def over(part: Pass, count: Floats) -> Pass:
        return part.map(lambda x: x[:, None] * count)

    return functools.reduce(operator.add, (over(*part) for part in parts)).clocked(job.training.framework)


def _units_s(job: Job, layer: LayerCosts, repeated: Sequence[Pass], per_layer: dict[str, PerLayer]) -> Floats:
    """`StageCosts.units_s`, (L, 3, kinds + 2): seconds of a layer of each kind with its collectives, embedding, head.

    Chunks share the time of their rank in proportion to these. Gradients of weights are a product for each product
    forward; the attention core has none, and adapters' gradients are small, and wait for nothing.
    """
    kinds = layer.of_kinds
    units = np.zeros((len(layer.head.forward.sm_s), 3, len(kinds) + 2))
    for column, part in enumerate((*repeated, layer.embedding, layer.head)):
        units[:, 0, column], units[:, 1, column] = part.forward.time_s, part.backward.time_s
    if not job.training.frozen:
        for column, (_, one, core) in enumerate(kinds):
            units[:, 2, column] = np.maximum(one.forward.sm_s - core.forward.sm_s, 0.0)
        units[:, 2, -1] = layer.head.forward.sm_s
    for of_kinds in per_layer.values():
        for column, moved in enumerate(of_kinds):
            if moved is not None:
                units[:, 0, column] += moved.forward_s
                units[:, 1, column] += moved.backward_s
    return units


def _activation_traffic(job: Job, hw: Hardware, lay: LayoutArrays, work: Pass) -> Traffic:
    """Copies of a micro-batch's kept activations out (forward) and in (backward), less what kernels hide, (L, pp).

    As Megatron Core's offloading and PyTorch's save_on_cpu: one copy each way at the host link's rate, hidden under the
    kernels of the same pass; energy as over the scale-up link.
    """
    moved = np.where(lay.offloads_activations[:, None], batch_bytes(job, lay), 0.0)
    seconds = moved / host_bytes_per_s(job.cluster.gpu)
    forward, backward = (np.maximum(seconds - side.time_s, 0.0) for side in (work.forward, work.backward))
    return Traffic(forward, backward, 2.0 * hw.intra_j_per_byte * moved)


def with_host_of(job: Job, costs: StageCosts, before: Job) -> StageCosts:
    """Costs ``costs`` of the job ``before``, changed to those of ``job``, which differs in host time alone."""
    more_s = job.training.framework.micro_batch_overhead_s - before.training.framework.micro_batch_overhead_s
    found = replace(
        costs,
        forward_comm_s=costs.forward_comm_s + more_s / 3.0,
        backward_comm_s=costs.backward_comm_s + more_s * 2.0 / 3.0,
        host_s=_host_s(job, LayoutArrays(job, costs.layouts).of_ranks(costs.ranks))[0],
    )
    found.__dict__["pipelines"] = costs.pipelines  # the host changes no share of a chunk, which takes long to work out
    return found


def _host_s(job: Job, lay: LayoutArrays) -> tuple[Floats, Floats]:
    """(least time of one micro-batch on each stage, what the host adds to its kernels and collectives), (L, pp) each.

    The least is what the host needs to launch its layers and experts. Attention or an MLP alone is half a layer:
    profiles state what a whole one needs. A pipeline inside one node needs what one stage does (nanotron's runs on
    eight GPUs). Recomputed layers are launched again (`RELAUNCHED`). What it adds is the framework's own, and per local
    expert: a dispatcher waits for the number of tokens of each, so the launches that follow do not hide behind kernels.
    """
    profile, per_node, layers_of = job.training.framework, job.cluster.gpus_per_node, lay.layers
    halves, moe_layers = lay.weighed([kind.parts / 2.0 for kind in lay.kinds]), lay.moe_layers
    per_rank_s = profile.host_floor_pp_tp_s + profile.host_floor_network_tp_s * (lay.tp > per_node)
    across = (lay.pp > 1) & (lay.dp * lay.cp * lay.tp * lay.pp > per_node)
    layer = np.where(across, profile.host_floor_pp_s + per_rank_s * lay.tp, profile.host_floor_s)
    launched_s = profile.expert_host_s * job.model.num_experts / lay.ep
    total = layer[:, None] * halves + launched_s[:, None] * moe_layers
    total = total * (1.0 + RELAUNCHED * lay.recompute.full_layers(layers_of) / np.maximum(layers_of, 1.0))
    each_s = profile.expert_launch_s + profile.expert_quantize_s * (job.training.dtype in QUANTIZED)
    experts = each_s * job.model.num_experts / lay.ep
    exposed = np.asarray(profile.micro_batch_overhead_s + experts[:, None] * moe_layers)
    return np.asarray(total * (job.cluster.gpu.host_time_factor or 1.0)), exposed


def _optimizer_step(job: Job, hw: Hardware, lay: LayoutArrays, params: Parameters) -> tuple[Floats, Floats]:
    """(seconds, bytes of device memory) of the step, (L, pp): memory-bound, of whose bandwidth streaming reaches 0.8.

    Adam reads and writes master and moments (24 B), reads the gradient (4 B), writes the weight (2 B). An offloaded one
    sends gradients down, steps in host memory, and sends weights up, nothing hidden (ZeRO-Offload: Ren et al. 2021,
    arXiv:2101.06840, section 4).
    """
    training, own = job.training, params.sharded(1, *lay.zero_shards)
    step_bytes = 30.0 * own
    # ZeRO-1 and 2 put gathered weights together where each rank's slice is a copy of its own
    copies = np.where((lay.zero == 1) | (lay.zero == 2), lay.shards - 1.0, 0.0)
    slices_s = training.framework.zero_slice_s * copies[:, None] * lay.layers
    step_s = step_bytes / (0.8 * hw.kernels.gemm.hbm_bytes_per_s) + slices_s
    on_host = lay.offloads_optimizer[:, None]
    if not on_host.any():
        return step_s, step_bytes
    link = (training.gradient_bytes + training.weight_gather_bytes) / host_bytes_per_s(job.cluster.gpu)
    memory = (2.0 * training.optimizer_bytes + training.gradient_bytes) / (_HOST_MEMORY_GBYTES_PER_S * GB)
    return np.where(on_host, own * (link + memory), step_s), np.where(on_host, 0.0, step_bytes)


def _gradient_sum(job: Job, hw: Hardware, lay: LayoutArrays, params: Parameters) -> Work:
    """Kernels that add the gradients of a micro-batch to those before, (L, pp): memory-bound.

    Of trained ``params``, the profile's ``accumulated_bytes`` each; ZeRO-2 and 3 add what a rank keeps of them. The
    first micro-batch, which has nothing before it, counts as the others.
    """
    added = job.training.framework.accumulated_bytes * params.sharded(2, *lay.zero_shards)
    none, seconds = np.zeros_like(added), added / (STREAMED * hw.kernels.gemm.hbm_bytes_per_s)
    return Work(sm_s=none, memory_s=seconds, flops=none, hbm_bytes=added).clocked(job.training.framework)
