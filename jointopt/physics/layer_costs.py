"""Kernels of one layer of each kind, of the embedding and of the head, priced once per distinct shape."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.placement import Group
from jointopt.physics import traffic
from jointopt.physics.adapters import Through, adapted_layer, adapter_kernels, adapters
from jointopt.physics.layers import Pass, Work, attention_core, attention_layer, embedding, head, mlp_layer, moe_layer
from jointopt.physics.layouts import LayoutArrays, Span, skipping_window, windowed_span
from jointopt.physics.recompute_work import routing
from jointopt.physics.traffic import Hardware, ep_traffic


@dataclass(frozen=True)
class LayerCosts:
    """Kernels of one layer of each kind, its attention core, and embedding and head, (L,).

    ``mlp`` and ``experts``: what a layer of each kind has beside its attention. ``waiting``: of an MoE layer's seconds
    those in which a mean rank waits for the one with the most tokens.
    """

    dense: Pass
    moe: Pass
    core: Pass
    mlp: Pass
    experts: Pass
    embedding: Pass
    head: Pass
    waiting: Pass
    windowed: LayerCosts | None = None  # the same of layers that look back a window, where their kernels take less

    @property
    def of_kinds(self) -> list[tuple[str, Pass, Pass]]:
        """A layer and its attention core by kind, as `layouts.Split.kinds`; each ``dense`` or ``moe``."""
        own = [("dense", self.dense, self.core), ("moe", self.moe, self.core)]
        return own + self.windowed.of_kinds if self.windowed else own

    def map(self, of: Callable[[Floats], Floats]) -> LayerCosts:
        """All of them after ``of``."""
        return LayerCosts(
            self.dense.map(of), self.moe.map(of), self.core.map(of), self.mlp.map(of), self.experts.map(of),
            self.embedding.map(of), self.head.map(of), self.waiting.map(of),
            self.windowed.map(of) if self.windowed else None,
        )  # fmt: skip


@dataclass(frozen=True)
class ShapeCosts:
    """Kernels of the distinct shapes that layouts of any depths have, and which of them each layout has, (L,)."""

    distinct: LayerCosts
    which: Ints

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
    """Kernels of one micro-batch of those layouts."""
    model, k, tokens, tp = job.model, hw.kernels, lay.tokens[rows], lay.tp[rows]
    ends = nothing(rows.shape), nothing(rows.shape)
    if not model.block:
        ends = embedding(k, model, tokens, tp), _heads(head(k, model, tokens, tp), model)
    mlp, experts, waiting = _behind_attention(job, hw, lay, rows)

    def of_kinds(span: Span | None = None) -> LayerCosts:
        dense, moe, core = _whole_layers(job, hw, lay, rows, (mlp, experts), span)
        return LayerCosts(dense, moe, core, mlp, experts, *ends, waiting)

    costs = of_kinds()
    if window := skipping_window(job):
        span = windowed_span(job.training.seq_length, window, lay.cp[rows])
        costs = replace(costs, windowed=of_kinds(span))
    return costs.map(lambda x: x if np.shape(x) == rows.shape else np.broadcast_to(x, rows.shape))


def _behind_attention(job: Job, hw: Hardware, lay: LayoutArrays, rows: Ints) -> tuple[Pass, Pass, Pass]:
    """Kernels of a dense layer's MLP and of an MoE layer's experts, and how long a mean rank waits for these."""
    model, k = job.model, hw.kernels
    tokens, tp, sharded = (x[rows] for x in (lay.tokens, lay.tp, lay.sharded_tokens))
    mlp = experts = waiting = nothing(rows.shape)
    if model.has_mlp:
        mlp = mlp_layer(k, model, tokens, model.ffn_hidden_size / tp, sharded)
    if model.is_moe:
        experts, waiting = moe_layer(k, model, tokens, routing(lay, rows), tp, sharded)
    return mlp, experts, waiting


def _whole_layers(
    job: Job, hw: Hardware, lay: LayoutArrays, rows: Ints, parts: tuple[Pass, Pass], span: Span | None
) -> tuple[Pass, Pass, Pass]:
    """Kernels of a dense layer, of one with experts, and of their core, whose queries meet a span of keys.

    ``parts``: their MLP and experts.
    """
    model, k, (mlp, experts) = job.model, hw.kernels, parts
    tokens, tp, sharded = (x[rows] for x in (lay.tokens, lay.tp, lay.sharded_tokens))
    # context parallelism: a rank's queries meet the keys of the whole sequence
    core = attention = nothing(rows.shape)
    if model.has_attention:
        core = attention_core(k, model, tokens, job.training.seq_length, tp, span)
        attention = attention_layer(k, model, tokens, core, tp, sharded)
    dense = attention + mlp if model.has_mlp else attention
    moe = attention + experts if model.is_moe else dense
    if job.training.frozen:
        through = Through(tokens, tp, lay.token_share[rows], lay.expert_tp[rows])
        dense, moe = (
            adapted_layer(layer, adapter_kernels(k, found, job.training, lay.sp[rows]))
            for layer, found in (
                (one, adapters(model, job.training, through, kind)) for one, kind in ((dense, "dense"), (moe, "moe"))
            )
        )
    return dense, moe, core


def waiting_sm_s(lay: LayoutArrays, layer: LayerCosts) -> Floats:
    """Seconds (L,) of one MoE layer in which a mean rank waits for the one with the most tokens, with recompute.

    Those that follow the clock alone: others, by a profile's ``compute_clock_share``, are counted as work.
    """
    forward, backward = layer.waiting.forward.sm_s, layer.waiting.backward.sm_s
    followed = lay.job.training.framework.compute_clock_share
    return np.asarray(followed * ((1.0 + lay.again.dispatches_again()) * forward + backward))


def nothing(shape: tuple[int, ...]) -> Pass:
    """No kernels."""
    zero = np.zeros(shape)
    none = Work(zero, zero, zero, zero)
    return Pass(none, none)


def _heads(one: Pass, model: Model) -> Pass:
    """Head and loss, again for each further token predicted, after a projection of two hidden states to one.

    DeepSeek-V3 (arXiv:2412.19437), section 2.2; the projection takes the head's time per multiplication.
    """
    passes = 1.0 + model.mtp_num_layers * (1.0 + 2.0 * model.hidden_size / model.vocab_size)
    return Pass(one.forward.times(passes), one.backward.times(passes))


# Collectives inside layers of each kind, and their sums over the layers of a stage.


PerLayer = tuple[traffic.Traffic | None, ...]  # by kind of layer, as `Split.kinds`


def layer_traffic(
    job: Job, hw: traffic.Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: LayerCosts
) -> dict[str, PerLayer]:
    """Collectives of one micro-batch inside one layer, by kind of parallelism; None where a layer has none.

    Of each kind those of a dense and of an MoE layer, and of either that looks back a window: keys and values of the
    whole sequence go to all context-parallel ranks all the same, as Transformer Engine's all-gather form has it.
    """
    found = _layer_traffic(job, hw, lay, groups, layer)
    if layer.windowed is None:
        return found
    windowed = _layer_traffic(job, hw, lay, groups, layer.windowed)
    return {name: of_kinds + windowed[name] for name, of_kinds in found.items()}


def _layer_traffic(
    job: Job, hw: traffic.Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: LayerCosts
) -> dict[str, PerLayer]:
    """Collectives of a dense and of an MoE layer whose queries meet the same keys."""
    core = traffic.cp_traffic(job, hw, lay, groups, layer.core)
    dense = traffic.tp_traffic(job, hw, lay, groups, layer.dense)
    if job.training.frozen:
        dense = dense + traffic.adapter_traffic(job, hw, lay, groups, "dense")
    found: dict[str, PerLayer] = {"tp_comm": (dense, None), "cp_comm": (core, None)}
    if job.model.is_moe:
        routed = traffic.tp_traffic(job, hw, lay, groups, layer.moe, routed=True)
        if job.training.frozen:
            routed = routed + traffic.adapter_traffic(job, hw, lay, groups, "moe")
        found["tp_comm"], found["cp_comm"] = (dense, routed), (core, core)
        found["ep_comm"] = (None, ep_traffic(job, hw, lay, groups, layer.moe))
    return found


def over_stages(lay: LayoutArrays, one: PerLayer) -> traffic.Traffic:
    """The collectives of all layers of each stage, (L, pp)."""
    parts = [part.over(count) for part, count in zip(one, lay.layers_of_kinds, strict=True) if part is not None]
    return functools.reduce(operator.add, parts)
