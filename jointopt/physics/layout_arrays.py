"""Layouts of one pipeline depth as float arrays, and how their layers lie on the stages."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import RECOMPUTE_CODES, Columns, Floats
from jointopt.spec.defaults import completed
from jointopt.spec.job import Job
from jointopt.spec.model import Model
from jointopt.spec.plans.stages import layers_by_cost, layers_per_stage


class LayoutArrays:
    """Layout columns as floats, and what every formula needs of them."""

    def __init__(self, job: Job, layouts: Columns) -> None:
        layouts = completed(job, layouts)
        f = {k: v.astype(float) for k, v in layouts.items()}
        self.tp, self.cp, self.ep, self.dp, self.vpp = f["tp"], f["cp"], f["ep"], f["dp"], f["vpp"]
        self.sp = layouts["sequence_parallel"].astype(bool)
        self.recompute = layouts["recompute"]
        self.full = self.recompute == RECOMPUTE_CODES["full"]
        self.selective = self.recompute == RECOMPUTE_CODES["selective"]
        self.zero = layouts["zero_stage"]
        self.pp = int(layouts["pp"][0])
        self.tokens = f["micro_batch_size"] * job.training.seq_length / self.cp
        self.micro_batches = (job.training.global_batch_size // (layouts["dp"] * layouts["micro_batch_size"])).astype(
            np.int64
        )
        # experts see the tokens of as many tensor ranks as cut them
        self.expert_tp = np.maximum(f["etp"], 1.0)
        spanned = self.dp * self.cp * (self.tp / self.expert_tp if job.training.framework.experts_span_tp else 1.0)
        self.expert_dp = np.maximum(spanned / self.ep, 1.0)  # ranks that hold the same experts
        self.token_share = self.expert_tp / self.tp
        self.sharded_tokens = np.where(self.sp, self.tokens / self.tp, self.tokens)


def kv_heads_of_rank(model: Model, tp: Floats) -> Floats:
    """KV heads that a rank attends to: its share, or one of its own where tp exceeds them (Megatron Core 0.16)."""
    return np.asarray(np.maximum(model.num_query_groups, tp) / tp)


def stage_layers(job: Job, layouts: Columns) -> Floats:
    """Layers per stage (pp,); the head counts, by its flops, where layers do not divide or ``layers_by_cost``.

    Layers that divide are split evenly, as Megatron does; ``layers_by_cost`` is a framework profile's.
    """
    model = job.model
    experts = (model.moe_router_topk + model.num_shared_experts) * model.expert_parameters
    per_layer = model.attention_parameters + (experts if model.is_moe else model.dense_mlp_parameters)
    head = model.vocab_size * model.hidden_size
    if job.training.framework.layers_by_cost:
        return np.array(layers_by_cost(model.num_layers, int(layouts["pp"][0]), per_layer, head), dtype=float)
    return np.asarray(
        layers_per_stage(model.num_layers, layouts["pp"][:1], layouts["vpp"][:1], head_layers=head / per_layer)[0],
        dtype=float,
    )


def dense_layers_of(job: Job, layers: Floats) -> Floats:
    """Of each stage's layers, how many are dense: all, or the leading ones of an MoE model."""
    if not job.model.is_moe:
        return layers
    before = np.concatenate(([0.0], np.cumsum(layers)[:-1]))
    return np.asarray(np.clip(job.model.num_dense_layers - before, 0.0, layers))
