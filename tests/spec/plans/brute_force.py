"""The rules of the joint space, written apart from `jointopt.spec.plans.rules`, so that each is the other's test."""

import itertools
import math

from jointopt.core.schema import LAYOUT_COLUMNS


def allowed_plans(job):
    """Every plan that the job allows, as tuples, by loops over all values that any column could have."""
    gpus, experts = job.cluster.num_gpus, max(job.model.num_experts, 1)
    degrees = [d for d in itertools.product(range(1, gpus + 1), repeat=4) if math.prod(d) == gpus]
    counts = (range(1, n + 1) for n in (experts, job.model.num_layers, job.training.global_batch_size))
    rest = itertools.product(*counts, (False, True), ("none", "selective", "full"), range(4))
    plans = (dict(zip(LAYOUT_COLUMNS, d + r, strict=True)) for r in rest for d in degrees)
    return {tuple(plan.values()) for plan in plans if is_allowed(job, plan)}


def is_allowed(job, plan):
    checks = (_tensor, _pipeline, _data, _state, _searched)
    return all(check(job, plan) for check in checks)


def _tensor(job, plan):
    tp, model, framework = plan["tp"], job.model, job.training.framework
    parts = [model.num_attention_heads, model.num_query_groups]
    if not model.is_moe or model.num_dense_layers:
        parts.append(model.ffn_hidden_size)
    if model.is_moe and framework.expert_tensor_parallel:
        parts.append(model.moe_ffn_hidden_size)
    elif model.num_shared_experts:
        parts.append(model.num_shared_experts * model.moe_ffn_hidden_size)
    if any(part % tp for part in parts):
        return False
    on = plan["sequence_parallel"]
    if tp == 1:
        return not on
    return on in framework.sequence_parallel and not (on and job.training.seq_length // plan["cp"] % tp)


def _pipeline(job, plan):
    pp, vpp, layers = plan["pp"], plan["vpp"], job.model.num_layers
    if vpp == 1:
        return pp <= layers
    micro_batches = job.training.global_batch_size // (plan["dp"] * plan["micro_batch_size"])
    even = layers % (pp * vpp) == 0 and micro_batches % pp == 0
    return job.training.framework.interleaving and 1 < pp <= layers and even


def _data(job, plan):
    cp, ep, shards = plan["cp"], plan["ep"], plan["dp"] * plan["cp"]
    if cp > 1 and (job.training.seq_length % (2 * cp) or not job.training.framework.context_parallel):
        return False
    if ep > 1 and (not job.model.is_moe or job.model.num_experts % ep or shards % ep):
        return False
    return job.training.global_batch_size % (plan["dp"] * plan["micro_batch_size"]) == 0


def _state(job, plan):
    stage, mode, training = plan["zero_stage"], plan["recompute"], job.training
    framework, flash = training.framework, training.selective_is_none
    if mode == "selective" and flash:
        return False
    if mode not in framework.recomputes and not (mode == "none" and flash and "selective" in framework.recomputes):
        return False
    if plan["dp"] * plan["cp"] == 1:
        return stage == 0
    piped = plan["pp"] == 1 or stage in framework.zero_stages_with_pipeline
    return stage in framework.zero_stages and piped


def _searched(job, plan):
    active = set(LAYOUT_COLUMNS)
    active -= {"sequence_parallel"} if plan["tp"] == 1 else set()
    active -= {"zero_stage"} if plan["dp"] * plan["cp"] == 1 else set()
    for column in active:
        listed = getattr(job.search, column)
        also = {"none"} if job.training.selective_is_none and "selective" in (job.search.recompute or ()) else set()
        if listed is not None and plan[column] not in {*listed, *(also if column == "recompute" else ())}:
            return False
    return True
