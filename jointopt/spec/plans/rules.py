"""The rules that a layout must keep, each once: a mask over arrays, a reason to count it by, a sentence for one plan.

`jointopt.spec.plans.space` sieves the product of all columns by them, `check_plan` judges one plan, and
`check_abilities` holds a job's search against what its framework can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import JobError
from jointopt.core.schema import (
    COLUMNS,
    DEGREES,
    LAYOUT_COLUMNS,
    MODULES,
    NEUTRAL,
    RECOMPUTE_CODES,
    Columns,
    inside,
    num_gpus,
)  # fmt: skip
from jointopt.spec.catalog.limits import most
from jointopt.spec.defaults import canonical
from jointopt.spec.job import Job, Search, Training
from jointopt.spec.plans.newer_rules import (
    adapter_rules,
    expert_rules,
    framework_only,
    graph_rules,
    recompute_rules,
    sharing_rules,
    stage_rules,
)
from jointopt.spec.plans.rule import DUPLICATE, SEARCH, SEARCHED, Rule, not_in, recompute_codes, searched
from jointopt.spec.power_limits import refused_limits

FEWEST_TOKENS, MOST_DOMAINS = 256, 4  # of a sequence on a cp rank; that tp reaches over


def layout_rules(job: Job) -> tuple[Rule, ...]:
    """Every rule of the job's space; the earlier one takes the blame for a combination that breaks several."""
    rules = (
        *(rule for name in (*DEGREES[1:], DEGREES[0]) for rule in searched(job, name)),
        *_degree_rules(job), *expert_rules(job), *_batch_rules(job), *_interleaving_rules(job),
        *_sequence_parallel_rules(job), *_recompute_rules(job), *_zero_rules(job), *stage_rules(job),
        *recompute_rules(job), *graph_rules(job), *adapter_rules(job), *sharing_rules(job), *framework_only(job),
    )  # fmt: skip
    named = {rule.name for rule in rules}
    others = [name for name in LAYOUT_COLUMNS if SEARCH + name not in named]
    return (*rules, *(rule for name in others for rule in searched(job, name)))


def check_plan(job: Job, plan: Mapping[str, Any]) -> list[str]:
    """Sentences that name the rules that ``plan`` breaks for ``job``; empty for a point of the job's space.

    ``plan`` has the layout columns as Python scalars, ``recompute`` by name; one that is not canonical (as
    `jointopt.spec.plans.parse.parse_plan` gives it) breaks a rule too. Memory and other constraints are not looked at.
    """
    usual = {name: COLUMNS[name].outside(value) for name, value in NEUTRAL.items()}
    columns = {name: inside(name, [(usual | dict(plan))[name]]) for name in LAYOUT_COLUMNS}
    if not job.model.is_moe:  # whose experts have no degree
        columns["etp"] = np.where(columns["etp"] > 1, columns["etp"], 0)
    broken = [rule for rule in layout_rules(job) if rule.sentence and rule.broken(columns).item()]
    broken.sort(key=lambda rule: rule.of_search)
    stated = {name: "blank" if value == "" else value for name, value in plan.items()}
    figures = {**stated, **_plan_figures(job, plan)}
    limits = {"power_limit_w": [plan.get("power_limit_w")], "stage_power_limit_w": plan.get("stage_power_limit_w", [])}
    given = {key: [watts for watts in listed if watts is not None] for key, listed in limits.items()}
    return [rule.sentence.format(**figures) for rule in broken] + [
        f"{key} states {refused}."
        for key, listed in given.items()
        if listed and (refused := refused_limits(job.cluster, listed))
    ]


def violations(job: Job, layouts: Columns) -> npt.NDArray[np.object_]:
    """Names of the rules that keep each of n measured layouts from being started, joined by semicolons; blank: none.

    A layout that is the same plan as another can be started, and the job's search and memory are not looked at. Rows
    leave out how many GPUs of a node they fill, and whether attention is multi-head latent.
    """
    layouts = canonical(job, layouts)
    if not job.model.kv_lora_rank:
        layouts |= {"recompute_modules": layouts["recompute_modules"] & ~MODULES.bit("mla_up_proj")}
    out = np.full(len(layouts["dp"]), "", dtype=object)
    for rule in layout_rules(job):
        if rule.of_starting and rule.name != "gpus":
            at = np.broadcast_to(rule.broken(layouts), out.shape)
            if at.any():
                out[at] = [f"{names};{rule.name}" if names else rule.name for names in out[at]]
    return out


def _plan_figures(job: Job, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Figures that the sentences of rules name beside the columns of ``plan``."""
    step, shards = plan["dp"] * plan["micro_batch_size"], plan["dp"] * plan["cp"]
    return {
        "product": num_gpus(plan), "step": step, "shards": shards, "twice_cp": 2 * plan["cp"],
        "micro_batches": job.training.global_batch_size // step, "chunks": plan["pp"] * plan["vpp"],
        "tokens": job.training.seq_length // plan["cp"], "stage_ranks": shards * plan["tp"],
        "expert_ranks": plan["ep"] * plan.get("etp", 1),
    }  # fmt: skip


def abilities(training: Training) -> dict[str, tuple[Any, ...]]:
    """The values that the framework can run, by the columns that it restricts; ``recompute`` by name.

    A value whose canonical form is offered counts as offered: selective recompute under flash attention is none.
    """
    framework, recomputes = training.framework, training.framework.recomputes
    if training.selective_is_none and {"none", "selective"} & set(recomputes):
        recomputes = tuple(dict.fromkeys(("none", "selective", *recomputes)))
    return {
        "zero_stage": framework.zero_stages,
        "recompute": recomputes,
        "sequence_parallel": framework.sequence_parallel,
        **({} if framework.interleaving else {"vpp": (1,)}),
        **({} if framework.context_parallel else {"cp": (1,)}),
    }


def check_abilities(search: Search, training: Training) -> None:
    """JobError for the first value of ``search`` that the framework of ``training`` can run in no plan."""
    for column, offered in abilities(training).items():
        listed: tuple[Any, ...] = getattr(search, column) or ()
        for value in listed:
            if value not in offered:
                expected, got, one = (", ".join(map(str, v)).lower() for v in (offered, listed, (value,)))
                raise JobError(
                    f"search.{column} {one}: {training.framework.name} has no such {column}; "
                    f"expected {expected}, got {got}."
                )


def _degree_rules(job: Job) -> list[Rule]:
    training, framework, layers = job.training, job.training.framework, job.model.num_layers
    batch, sequence, gpus = training.global_batch_size, training.seq_length, job.cluster.num_gpus
    uneven, deepest = "which does not divide", most("plan.pp")
    return [
        Rule("gpus", DEGREES, lambda c: num_gpus(c) != gpus, "",
             f"{'*'.join(DEGREES)} is {{product}}; it must be the cluster's {gpus} GPUs."),
        *_shard_rules(job),
        Rule("layers", ("pp",), lambda c: c["pp"] > layers, f"pp is larger than the {layers} layers",
             f"pp {{pp}} is larger than the {layers} layers."),
        Rule("deepest", ("pp",), lambda c: c["pp"] > deepest, f"pp is larger than {deepest}, deeper than any pipeline"),
        Rule("context_parallel", ("cp",), lambda c: (c["cp"] > 1) & (not framework.context_parallel),
             f"{framework.name} has no context parallelism",
             f"{framework.name} has no context parallelism: cp must be 1, not {{cp}}."),
        Rule("context_chunks", ("cp",), lambda c: (c["cp"] > 1) & (sequence % (2 * c["cp"]) != 0),
             f"2*cp does not divide the sequence length {sequence}",
             f"2*cp is {{twice_cp}}, {uneven} the sequence length {sequence}."),
        *_usual_degrees(job),
        Rule("batch", ("dp",), lambda c: batch % c["dp"] != 0,  # a plan breaks the rule of micro-batches as well
             f"dp does not divide the global batch of {batch} sequences"),
    ]  # fmt: skip


def _usual_degrees(job: Job) -> list[Rule]:
    """Of a search that lists no cp or tp: none that cut far finer than anything published."""
    search, sequence, most = job.search, job.training.seq_length, MOST_DOMAINS * job.cluster.scale_up_gpus
    found = []
    if search.cp is None:
        found.append(Rule("usual_cp", ("cp",), lambda c: (c["cp"] > 1) & (sequence < FEWEST_TOKENS * c["cp"]),
                          f"cp that leaves fewer than {FEWEST_TOKENS} tokens is {SEARCHED}"))  # fmt: skip
    if search.tp is None:
        found.append(Rule("usual_tp", ("tp",), lambda c: c["tp"] > most,
                          f"tp over more than {MOST_DOMAINS} scale-up domains is {SEARCHED}"))  # fmt: skip
    return found


def _shard_rules(job: Job) -> list[Rule]:
    """Tensor parallelism cuts evenly, but for KV groups of which each rank can hold one of its own."""
    model = job.model

    def rule(name: str, parts: str, count: int) -> Rule:
        return Rule(name, ("tp",), lambda c: count % c["tp"] != 0, f"tp does not divide the {count} {parts}",
                    f"tp {{tp}} does not divide the {count} {parts}.")  # fmt: skip

    found, groups = [], model.num_query_groups
    if model.has_attention:
        found.append(rule("heads", "attention heads", model.num_attention_heads))
    if model.has_attention and "whole_kv_groups" in job.training.framework.rules:
        found.append(rule("whole_kv_groups", "KV groups", groups))
    elif model.has_attention:
        found.append(
            Rule("kv_groups", ("tp",), lambda c: (groups % c["tp"] != 0) & (c["tp"] % groups != 0),
                 f"tp and the {groups} KV groups do not divide each other",
                 f"tp {{tp}} neither divides the {groups} KV groups nor is a multiple of them.")
        )  # fmt: skip
    if model.num_plain_layers and model.has_mlp:
        found.append(rule("ffn", "FFN columns", model.ffn_hidden_size))
    if model.num_shared_experts:
        width = model.num_shared_experts * model.moe_ffn_hidden_size
        found.append(rule("shared_ffn", "FFN columns of the shared experts", width))
    return found


def _batch_rules(job: Job) -> list[Rule]:
    batch = job.training.global_batch_size
    return [
        *searched(job, "micro_batch_size"),
        Rule("micro_batches", ("dp", "micro_batch_size"), lambda c: batch % (c["dp"] * c["micro_batch_size"]) != 0,
             f"dp*micro_batch_size does not divide the global batch of {batch} sequences",
             f"dp*micro_batch_size is {{step}}, which does not divide the global batch of {batch} sequences."),
    ]  # fmt: skip


def _interleaving_rules(job: Job) -> list[Rule]:
    framework, layers, batch = job.training.framework, job.model.num_layers, job.training.global_batch_size
    stated = " without stage_layers" if framework.stage_splits else ""

    def uneven_batches(c: Columns) -> Any:
        of_1f1b = (c["vpp"] > 1) & (c["schedule"] == 0)  # others take micro-batches one by one
        return of_1f1b & (batch // (c["dp"] * c["micro_batch_size"]) % c["pp"] != 0)

    return [
        *searched(job, "vpp"),
        Rule("interleaving", ("vpp",), lambda c: (c["vpp"] > 1) & (not framework.interleaving),
             f"{framework.name} does not interleave stages (vpp > 1)",
             f"{framework.name} does not interleave pipeline stages: vpp must be 1, not {{vpp}}."),
        Rule("interleaved_pipeline", ("pp", "vpp"), lambda c: (c["vpp"] > 1) & (c["pp"] == 1),
             "vpp > 1 needs pp > 1", "vpp {vpp} needs pp > 1."),
        Rule("interleaved_layers", ("pp", "vpp", "stage_layers"),
             lambda c: (c["vpp"] > 1) & (c["stage_layers"] == 0) & (layers % (c["pp"] * c["vpp"]) != 0),
             f"vpp > 1 and pp*vpp does not divide the {layers} layers",
             f"pp*vpp is {{chunks}}, which does not divide the {layers} layers as interleaving needs{stated}."),
        Rule("interleaved_batches", ("dp", "pp", "micro_batch_size", "vpp", "schedule"), uneven_batches,
             "vpp > 1 and pp does not divide the number of micro-batches",
             "pp {pp} does not divide the {micro_batches} micro-batches as interleaving needs."),
    ]  # fmt: skip


def _sequence_parallel_rules(job: Job) -> list[Rule]:
    training, name = job.training, job.training.framework.name
    offered = [int(value) for value in abilities(training)["sequence_parallel"]]

    def uneven(c: Columns) -> Any:
        return (c["sequence_parallel"] == 1) & ((training.seq_length // c["cp"]) % c["tp"] != 0)

    def cut(c: Columns) -> Any:
        return c["tp"] > 1

    return [
        Rule("sequence_parallel", ("tp", "sequence_parallel"), lambda c: (c["sequence_parallel"] == 1) & (c["tp"] == 1),
             f"sequence_parallel without tp > 1 {DUPLICATE}", "sequence_parallel needs tp > 1."),
        *searched(job, "sequence_parallel", cut),
        Rule("sequence_parallel_offered", ("tp", "sequence_parallel"), not_in("sequence_parallel", offered, cut),
             f"{name} leaves no such choice of sequence_parallel",
             f"{name} does not train with sequence_parallel {{sequence_parallel}} where tp > 1."),
        Rule("sequence_parallel_tokens", ("tp", "cp", "sequence_parallel"), uneven,
             "sequence_parallel and tp does not divide the sequence length per cp rank",
             "sequence_parallel: tp {tp} does not divide the {tokens} tokens of a cp rank."),
    ]  # fmt: skip


def _recompute_rules(job: Job) -> list[Rule]:
    training, selective = job.training, RECOMPUTE_CODES["selective"]
    attention = training.attention if job.model.has_attention else "no attention"
    offered = recompute_codes(training, training.framework.recomputes)
    columns = ("recompute", "recompute_modules")

    def single(c: Columns) -> Any:  # a duplicate of another plan breaks no further rule
        return (c["recompute"] != selective) | (c["recompute_modules"] > 0) | (not job.selective_is_none)

    return [
        Rule("recompute", columns, lambda c: ~single(c),
             f"selective recompute with {attention} {DUPLICATE} as none",
             f"selective recompute with {attention} is the same plan as none."),
        *searched(job, "recompute", single),
        Rule("recompute_offered", columns, not_in("recompute", offered, single),
             f"{training.framework.name} has no such recompute",
             f"{training.framework.name} has no recompute {{recompute}}."),
    ]  # fmt: skip


def _usual_zero_stages(job: Job) -> list[Rule]:
    """Of a search that lists no zero_stage: those that the framework is usually started with."""
    usual = job.training.framework.usual_zero_stages
    if job.search.zero_stage is not None or not usual:
        return []
    words = ", ".join(str(stage) for stage in job.training.framework.zero_stages if stage not in usual)
    return [Rule("usual_zero", ("zero_stage",), not_in("zero_stage", list(usual)),
                 f"zero_stage {words} (list them in search.zero_stage) is {SEARCHED}")]  # fmt: skip


def _zero_rules(job: Job) -> list[Rule]:
    framework, columns = job.training.framework, ("dp", "cp", "zero_stage")
    offered = list(framework.zero_stages)

    def sharded(c: Columns) -> Any:
        return c["dp"] * c["cp"] > 1

    def piped(c: Columns) -> Any:
        return sharded(c) & (c["pp"] > 1) & np.isin(c["zero_stage"], offered)

    return [
        Rule("zero_stage", columns, lambda c: (c["zero_stage"] > 0) & ~sharded(c),
             f"zero_stage > 0 without dp*cp > 1 {DUPLICATE}", "zero_stage {zero_stage} needs dp*cp > 1."),
        *searched(job, "zero_stage", sharded),
        *_usual_zero_stages(job),
        Rule("zero_stage_offered", columns, not_in("zero_stage", offered, sharded),
             f"{framework.name} has no such zero_stage", f"{framework.name} has no zero_stage {{zero_stage}}."),
        Rule("zero_stage_piped", (*columns, "pp"),
             not_in("zero_stage", list(framework.zero_stages_with_pipeline), piped),
             f"{framework.name} has no such zero_stage with pp > 1",
             f"{framework.name} has no zero_stage {{zero_stage}} with pp > 1."),
    ]  # fmt: skip
