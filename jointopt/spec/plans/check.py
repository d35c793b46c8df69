"""One plan against every rule of the joint space, in plain sentences.

Written apart from the masks of `jointopt.spec.plans.space`, so that each is the other's test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jointopt.spec.job import Job


def check_plan(job: Job, plan: Mapping[str, Any]) -> list[str]:
    """Sentences that say which rules ``plan`` breaks for ``job``; empty for a point of the job's space.

    ``plan`` has the layout columns as Python scalars, ``recompute`` by name. Non-canonical plans are reported
    too; `jointopt.spec.plans.parse.parse_plan` gives canonical ones. Memory and other constraints are not looked
    at here.
    """
    checks = (_degrees, _tensor, _pipeline, _context, _batch, _expert, _state, _power, _searched)
    return [sentence for check in checks for sentence in check(job, plan)]


def _degrees(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    product = plan["dp"] * plan["tp"] * plan["pp"] * plan["cp"]
    if product != job.cluster.num_gpus:
        yield f"dp*tp*pp*cp is {product}; it must be the cluster's {job.cluster.num_gpus} GPUs."


def _tensor(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    tp, model, framework = plan["tp"], job.model, job.training.framework
    shards = {"attention heads": model.num_attention_heads, "KV groups": model.num_query_groups}
    if not model.is_moe or model.num_dense_layers:
        shards["FFN columns"] = model.ffn_hidden_size
    if model.is_moe and framework.expert_tensor_parallel:
        shards["FFN columns of an expert"] = model.moe_ffn_hidden_size
    elif model.num_shared_experts:
        shards["FFN columns of the shared experts"] = model.num_shared_experts * model.moe_ffn_hidden_size
    for what, count in shards.items():
        if count % tp:
            yield f"tp {tp} does not divide the {count} {what}."
    yield from _sequence(job, plan)


def _sequence(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    tp, on, framework = plan["tp"], bool(plan["sequence_parallel"]), job.training.framework
    if tp == 1:
        if on:
            yield "sequence_parallel needs tp > 1."
        return
    if on not in framework.sequence_parallel:
        yield f"{framework.name} does not train with sequence_parallel {on} where tp > 1."
    tokens = job.training.seq_length // plan["cp"]
    if on and tokens % tp:
        yield f"sequence_parallel: tp {tp} does not divide the {tokens} tokens of a cp rank."


def _pipeline(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    pp, vpp, layers = plan["pp"], plan["vpp"], job.model.num_layers
    if pp > layers:
        yield f"pp {pp} is larger than the {layers} layers."
    if vpp == 1:
        return
    if not job.training.framework.interleaving:
        yield f"{job.training.framework.name} does not interleave pipeline stages: vpp must be 1, not {vpp}."
    if pp == 1:
        yield f"vpp {vpp} needs pp > 1."
    if layers % (pp * vpp):
        yield f"pp*vpp is {pp * vpp}, which does not divide the {layers} layers as interleaving needs."
    micro_batches = job.training.global_batch_size // (plan["dp"] * plan["micro_batch_size"])
    if micro_batches % pp:
        yield f"pp {pp} does not divide the {micro_batches} micro-batches as interleaving needs."


def _context(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    cp, sequence = plan["cp"], job.training.seq_length
    if cp > 1 and not job.training.framework.context_parallel:
        yield f"{job.training.framework.name} has no context parallelism: cp must be 1, not {cp}."
    if cp > 1 and sequence % (2 * cp):
        yield f"2*cp is {2 * cp}, which does not divide the sequence length {sequence}."


def _batch(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    step, batch = plan["dp"] * plan["micro_batch_size"], job.training.global_batch_size
    if batch % step:
        yield f"dp*micro_batch_size is {step}, which does not divide the global batch of {batch} sequences."


def _expert(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    ep, experts, shards = plan["ep"], job.model.num_experts, plan["dp"] * plan["cp"]
    if ep == 1:
        return
    if not job.model.is_moe:
        yield f"ep {ep} needs experts, and {job.model.name} is a dense model."
    elif experts % ep:
        yield f"ep {ep} does not divide the {experts} experts."
    if shards % ep:
        yield f"ep {ep} does not divide dp*cp, which is {shards}."


def _state(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    stage, recompute, training = plan["zero_stage"], plan["recompute"], job.training
    framework, flash = training.framework, training.selective_is_none
    if recompute == "selective" and flash:
        yield f"selective recompute with {training.attention} is the same plan as none."
    elif recompute not in framework.recomputes and not (
        recompute == "none" and flash and "selective" in framework.recomputes
    ):
        yield f"{framework.name} has no recompute {recompute}."
    if plan["dp"] * plan["cp"] == 1:
        if stage:
            yield f"zero_stage {stage} needs dp*cp > 1."
    elif stage not in framework.zero_stages:
        yield f"{framework.name} has no zero_stage {stage}."
    elif plan["pp"] > 1 and stage not in framework.zero_stages_with_pipeline:
        yield f"{framework.name} has no zero_stage {stage} with pp > 1."


def _power(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    most, given = job.cluster.power_limit_w, {"power_limit_w": [plan.get("power_limit_w")]}
    for key, limits in (given | {"stage_power_limit_w": plan.get("stage_power_limit_w", [])}).items():
        if any(watts is not None and watts > most for watts in limits):
            yield f"{key} is above the {most:g} W that a GPU of the cluster may draw (cluster.power_limit_w)."


def _searched(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    active = ["dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "recompute"]
    active += ["sequence_parallel"] if plan["tp"] > 1 else []
    active += ["zero_stage"] if plan["dp"] * plan["cp"] > 1 else []
    for column in active:
        listed = getattr(job.search, column)
        value = plan[column]
        if listed is None or value in listed:
            continue
        flash = job.training.selective_is_none
        if column == "recompute" and value == "none" and flash and "selective" in listed:
            continue
        yield f"{column} {value} is outside the job's search.{column} ({', '.join(map(str, listed))})."
