"""Kernels of every stage: layers of each kind, embedding and head, recomputation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.physics import compute as c
from jointopt.physics.layout_arrays import LayoutArrays, dense_layers_of
from jointopt.physics.stage_traffic import Hardware
from jointopt.spec.job import Job


def _unique(lay: LayoutArrays, *columns: Floats) -> tuple[Ints, Ints]:
    """First occurrence and inverse of distinct rows, so that kernels are priced once per shape."""
    stacked = np.stack([np.asarray(x, dtype=float) for x in columns], axis=1)
    _, first, inverse = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class LayerCosts:
    dense: c.Pass
    moe: c.Pass
    core: c.Pass
    embedding: c.Pass
    head: c.Pass


def layer_costs(job: Job, hw: Hardware, lay: LayoutArrays) -> LayerCosts:
    model, k = job.model, hw.kernels
    first, inverse = _unique(lay, lay.tokens, lay.tp, lay.ep, lay.sp, lay.cp)
    tokens, tp, ep, sharded = (x[first] for x in (lay.tokens, lay.tp, lay.ep, lay.sharded_tokens))
    # context parallelism: a rank's queries meet the keys of the whole sequence
    core = c.attention_core(k, model, tokens, job.training.seq_length, tp)
    attention = c.attention_layer(k, model, tokens, job.training.seq_length, tp, sharded)
    dense = attention + c.mlp_layer(k, model, tokens, model.ffn_hidden_size / tp, sharded)
    moe = dense
    if model.is_moe:
        moe = attention + c.moe_layer(
            k, model, tokens, ep, lay.expert_tp[first], lay.token_share[first], tp, sharded
        )
    parts = (dense, moe, core, c.embedding(k, model, tokens, tp), c.head(k, model, tokens, tp))
    return LayerCosts(*(_take(p, inverse) for p in parts))


def _take(p: c.Pass, index: Ints) -> c.Pass:
    def one(w: c.Work) -> c.Work:
        return c.Work(
            *(
                np.broadcast_to(x, (index.max() + 1,))[index]
                for x in (w.sm_s, w.memory_s, w.flops, w.hbm_bytes)
            )
        )

    return c.Pass(one(p.forward), one(p.backward))


def _where(mask: Floats, a: c.Work) -> c.Work:
    return a.times(mask.astype(float))


def _with_recompute(job: Job, p: c.Pass, core: c.Pass, lay: LayoutArrays) -> c.Pass:
    """Forward work repeated before the backward pass: a layer (full), the attention core or some layers (selective)."""
    again = _where(lay.full, p.forward)
    share = job.training.framework.selective_share
    again = again + _where(lay.selective, p.forward.times(share) if share else core.forward)
    return c.Pass(p.forward, p.backward + again)


def work_per_stage(job: Job, layers: Floats, lay: LayoutArrays, costs: LayerCosts) -> c.Pass:
    """(L, pp) work: layers of each kind, embedding on the first stage, head on the last."""
    dense_layers = dense_layers_of(job, layers)
    dense = _with_recompute(job, costs.dense, costs.core, lay)
    moe = _with_recompute(job, costs.moe, costs.core, lay)

    def outer(w: c.Work, per_stage: Floats) -> c.Work:
        return c.Work(*(x[:, None] * per_stage for x in (w.sm_s, w.memory_s, w.flops, w.hbm_bytes)))

    first, last = np.zeros(len(layers)), np.zeros(len(layers))
    first[0], last[-1] = 1.0, 1.0

    def total(side: str) -> c.Work:
        work = outer(getattr(dense, side), dense_layers) + outer(getattr(moe, side), layers - dense_layers)
        work = work + outer(getattr(costs.embedding, side), first)
        return work + outer(getattr(costs.head, side), last)

    return c.Pass(total("forward"), total("backward"))
