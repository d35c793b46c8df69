"""The rules that a layout must keep, each once: a mask over arrays, a reason to count it by, a sentence for one plan.

`jointopt.spec.plans.space` sieves the product of all columns by them, `check_plan` judges one plan, and
`check_abilities` holds a job's search against what its framework can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jointopt.core.errors import JobError
from jointopt.core.schema import (
    COLUMNS,
    DEGREES,
    LAYOUT_COLUMNS,
    NEUTRAL,
    RECOMPUTE_CODES,
    SCHEDULE,
    STAGE_LAYERS,
    Bools,
    Columns,
    inside,
    num_gpus,
)
from jointopt.spec.job import Job, Search, Training
from jointopt.spec.plans.placement import even_domain
from jointopt.spec.plans.stages import buildable

SEARCHED, DUPLICATE = "outside the job's search.", "is the same plan"  # in reasons that call for no change
_SEARCH = "search."  # begins the names of the rules that the job itself sets


@dataclass(frozen=True)
class Rule:
    """One rule of the joint space.

    ``counted`` or ``sentence`` is empty where another rule covers that use.
    """

    name: str
    columns: tuple[str, ...]
    broken: Callable[[Columns], Any]  # takes the columns as arrays that broadcast; true where they break the rule
    counted: str = ""  # reason by which dropped combinations are counted
    sentence: str = ""  # what one plan is refused with: a format of its columns and of `_plan_figures`

    @property
    def of_search(self) -> bool:
        """Whether it is the job's own search that the rule holds plans to."""
        return self.name.startswith(_SEARCH)


def layout_rules(job: Job) -> tuple[Rule, ...]:
    """Every rule of the job's space; the earlier one takes the blame for a combination that breaks several."""
    rules = (
        *(rule for name in (*DEGREES[1:], DEGREES[0]) for rule in _searched(job, name)),
        *_degree_rules(job), *_expert_rules(job), *_batch_rules(job), *_interleaving_rules(job),
        *_sequence_parallel_rules(job), *_recompute_rules(job), *_zero_rules(job), *_replica_rules(job),
        *_stage_rules(job),
    )  # fmt: skip
    named = {rule.name for rule in rules}
    others = [name for name in LAYOUT_COLUMNS if _SEARCH + name not in named]
    return (*rules, *(rule for name in others for rule in _searched(job, name)))


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
    figures, most = {**plan, **_plan_figures(job, plan)}, job.cluster.power_limit_w
    limits = {"power_limit_w": [plan.get("power_limit_w")], "stage_power_limit_w": plan.get("stage_power_limit_w", [])}
    return [rule.sentence.format(**figures) for rule in broken] + [
        f"{key} is above the {most:g} W that a GPU of the cluster may draw (cluster.power_limit_w)."
        for key, stated in limits.items()
        if any(watts is not None and watts > most for watts in stated)
    ]


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


def _searched(job: Job, column: str, where: Callable[[Columns], Any] | None = None) -> tuple[Rule, ...]:
    """The rule of a column whose values the job lists, ``where`` it has an effect; none where it lists none."""
    listed: tuple[Any, ...] | None = getattr(job.search, column)
    if listed is None:
        return ()
    values = [int(inside(column, [value])[0]) for value in listed]
    if column == "recompute":
        values = _codes(job.training, listed)
    outside = _not_in(column, values, where)
    columns = _EFFECT.get(column, ())
    names = ", ".join(map(str, listed))
    sentence = f"{column} {{{column}}} is outside the job's search.{column} ({names})."
    return (Rule(_SEARCH + column, (*columns, column), outside, SEARCHED + column, sentence),)


# where a choice has an effect depends on these columns
_EFFECT = {
    "sequence_parallel": ("tp",), "zero_stage": ("dp", "cp"), "dp_replicate": ("zero_stage",), "schedule": ("pp",),
    "stage_layers": ("pp", "vpp"), "recompute_modules": ("recompute",), "recompute_num_layers": ("recompute",),
}  # fmt: skip


def _not_in(column: str, values: list[int], where: Callable[[Columns], Any] | None = None) -> Callable[[Columns], Any]:
    def broken(c: Columns) -> Bools:
        outside = ~np.isin(c[column], values)
        return outside if where is None else np.asarray(outside & where(c))

    return broken


def _degree_rules(job: Job) -> list[Rule]:
    training, framework, layers = job.training, job.training.framework, job.model.num_layers
    batch, sequence, gpus = training.global_batch_size, training.seq_length, job.cluster.num_gpus
    uneven = "which does not divide"
    return [
        Rule("gpus", DEGREES, lambda c: num_gpus(c) != gpus, "",
             f"{'*'.join(DEGREES)} is {{product}}; it must be the cluster's {gpus} GPUs."),
        *(_shard_rule(count, parts) for parts, count in _tp_shards(job)),
        Rule("layers", ("pp",), lambda c: c["pp"] > layers, f"pp is larger than the {layers} layers",
             f"pp {{pp}} is larger than the {layers} layers."),
        Rule("context_parallel", ("cp",), lambda c: (c["cp"] > 1) & (not framework.context_parallel),
             f"{framework.name} has no context parallelism",
             f"{framework.name} has no context parallelism: cp must be 1, not {{cp}}."),
        Rule("context_chunks", ("cp",), lambda c: (c["cp"] > 1) & (sequence % (2 * c["cp"]) != 0),
             f"2*cp does not divide the sequence length {sequence}",
             f"2*cp is {{twice_cp}}, {uneven} the sequence length {sequence}."),
        Rule("batch", ("dp",), lambda c: batch % c["dp"] != 0,  # a plan breaks the rule of micro-batches as well
             f"dp does not divide the global batch of {batch} sequences"),
    ]  # fmt: skip


def _shard_rule(count: int, parts: str) -> Rule:
    return Rule(
        f"tp {parts}", ("tp",), lambda c: count % c["tp"] != 0, f"tp does not divide the {count} {parts}",
        f"tp {{tp}} does not divide the {count} {parts}.",
    )  # fmt: skip


def _tp_shards(job: Job) -> list[tuple[str, int]]:
    """(parts, count) of all that tensor parallelism cuts evenly; routed experts only where the framework does."""
    model = job.model
    shards = [("attention heads", model.num_attention_heads), ("KV groups", model.num_query_groups)]
    if model.num_moe_layers < model.num_layers:
        shards.append(("FFN columns", model.ffn_hidden_size))
    if model.is_moe and job.training.framework.expert_tensor_parallel:
        shards.append(("FFN columns of an expert", model.moe_ffn_hidden_size))
    elif model.num_shared_experts:
        width = model.num_shared_experts * model.moe_ffn_hidden_size
        shards.append(("FFN columns of the shared experts", width))
    return shards


def _expert_rules(job: Job) -> list[Rule]:
    model, experts, framework = job.model, job.model.num_experts, job.training.framework

    def other(c: Columns) -> Any:
        return c["etp"] != (c["tp"] if framework.expert_tensor_parallel else 1)

    def uneven(c: Columns) -> Any:
        if framework.experts_span_tp:
            return (c["dp"] * c["cp"] * c["tp"]) % (c["ep"] * np.maximum(c["etp"], 1)) != 0
        return (c["dp"] * c["cp"]) % c["ep"] != 0

    return [
        *_searched(job, "ep"),
        Rule("experts", ("ep",), lambda c: (c["ep"] > 1) & (not model.is_moe),
             f"ep > 1 needs experts and {model.name} is a dense model",
             f"ep {{ep}} needs experts, and {_literal(model.name)} is a dense model."),
        Rule("expert_split", ("ep",), lambda c: model.is_moe & (experts % c["ep"] != 0),
             f"ep does not divide the {experts} experts", f"ep {{ep}} does not divide the {experts} experts."),
        *_searched(job, "etp", lambda c: c["etp"] > 0),
        Rule("expert_tp", ("etp",), lambda c: (c["etp"] > 0) & (not model.is_moe),
             f"etp without experts {DUPLICATE}",
             f"etp {{etp}} needs experts, and {_literal(model.name)} is a dense model."),
        Rule("expert_tp_offered", ("tp", "etp"), lambda c: model.is_moe & other(c),
             f"{framework.name} does not cut experts so (etp)",
             f"{framework.name} does not cut experts by etp {{etp}} where tp is {{tp}}."),
        Rule("expert_ranks", ("dp", "tp", "cp", "ep", "etp"), uneven,
             "ep*etp does not divide dp*cp*tp", "ep*etp is {expert_ranks}, which does not divide the {stage_ranks} "
             "ranks of a stage (dp*cp*tp)."),
    ]  # fmt: skip


def _batch_rules(job: Job) -> list[Rule]:
    batch = job.training.global_batch_size
    return [
        *_searched(job, "micro_batch_size"),
        Rule("micro_batches", ("dp", "micro_batch_size"), lambda c: batch % (c["dp"] * c["micro_batch_size"]) != 0,
             f"dp*micro_batch_size does not divide the global batch of {batch} sequences",
             f"dp*micro_batch_size is {{step}}, which does not divide the global batch of {batch} sequences."),
    ]  # fmt: skip


def _interleaving_rules(job: Job) -> list[Rule]:
    framework, layers, batch = job.training.framework, job.model.num_layers, job.training.global_batch_size
    stated = " without stage_layers" if framework.stage_splits else ""

    def uneven_batches(c: Columns) -> Any:
        return (c["vpp"] > 1) & (batch // (c["dp"] * c["micro_batch_size"]) % c["pp"] != 0)

    return [
        *_searched(job, "vpp"),
        Rule("interleaving", ("vpp",), lambda c: (c["vpp"] > 1) & (not framework.interleaving),
             f"{framework.name} does not interleave stages (vpp > 1)",
             f"{framework.name} does not interleave pipeline stages: vpp must be 1, not {{vpp}}."),
        Rule("interleaved_pipeline", ("pp", "vpp"), lambda c: (c["vpp"] > 1) & (c["pp"] == 1),
             "vpp > 1 needs pp > 1", "vpp {vpp} needs pp > 1."),
        Rule("interleaved_layers", ("pp", "vpp", "stage_layers"),
             lambda c: (c["vpp"] > 1) & (c["stage_layers"] == 0) & (layers % (c["pp"] * c["vpp"]) != 0),
             f"vpp > 1 and pp*vpp does not divide the {layers} layers",
             f"pp*vpp is {{chunks}}, which does not divide the {layers} layers as interleaving needs{stated}."),
        Rule("interleaved_batches", ("dp", "pp", "micro_batch_size", "vpp"), uneven_batches,
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
        *_searched(job, "sequence_parallel", cut),
        Rule("sequence_parallel_offered", ("tp", "sequence_parallel"), _not_in("sequence_parallel", offered, cut),
             f"{name} leaves no such choice of sequence_parallel",
             f"{name} does not train with sequence_parallel {{sequence_parallel}} where tp > 1."),
        Rule("sequence_parallel_tokens", ("tp", "cp", "sequence_parallel"), uneven,
             "sequence_parallel and tp does not divide the sequence length per cp rank",
             "sequence_parallel: tp {tp} does not divide the {tokens} tokens of a cp rank."),
    ]  # fmt: skip


def _recompute_rules(job: Job) -> list[Rule]:
    training, attention = job.training, job.training.attention
    selective = RECOMPUTE_CODES["selective"]
    offered = _codes(training, abilities(training)["recompute"])

    def single(c: Columns) -> Any:  # a duplicate of another plan breaks no further rule
        return (c["recompute"] != selective) | (not training.selective_is_none)

    return [
        Rule("recompute", ("recompute",), lambda c: ~single(c),
             f"selective recompute with {attention} {DUPLICATE} as none",
             f"selective recompute with {attention} is the same plan as none."),
        *_searched(job, "recompute", single),
        Rule("recompute_offered", ("recompute",), _not_in("recompute", offered, single),
             f"{training.framework.name} has no such recompute",
             f"{training.framework.name} has no recompute {{recompute}}."),
    ]  # fmt: skip


def _codes(training: Training, names: tuple[str, ...]) -> list[int]:
    """Codes of recompute modes in canonical form."""
    codes = RECOMPUTE_CODES | ({"selective": 0} if training.selective_is_none else {})
    return [codes[name] for name in names]


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
        *_searched(job, "zero_stage", sharded),
        Rule("zero_stage_offered", columns, _not_in("zero_stage", offered, sharded),
             f"{framework.name} has no such zero_stage", f"{framework.name} has no zero_stage {{zero_stage}}."),
        Rule("zero_stage_piped", (*columns, "pp"),
             _not_in("zero_stage", list(framework.zero_stages_with_pipeline), piped),
             f"{framework.name} has no such zero_stage with pp > 1",
             f"{framework.name} has no zero_stage {{zero_stage}} with pp > 1."),
    ]  # fmt: skip


def _replica_rules(job: Job) -> list[Rule]:
    """Rules of HSDP: replicas divide dp*cp, leave something to shard, and hold whole groups of experts."""
    framework, domain = job.training.framework, even_domain(job.cluster)
    columns = ("dp", "tp", "cp", "zero_stage", "dp_replicate")

    def cut(c: Columns) -> Any:
        return c["dp_replicate"] > 1

    def unusual(c: Columns) -> Any:
        return cut(c) & (c["dp"] * c["cp"] * c["tp"] != c["dp_replicate"] * domain)

    def uneven(c: Columns) -> Any:
        ranks = c["ep"] * np.maximum(c["etp"], 1) * c["dp_replicate"]
        return cut(c) & ((c["dp"] * c["cp"] * c["tp"]) % ranks != 0)

    return [
        Rule("replicas_offered", ("dp_replicate",), lambda c: cut(c) & (not framework.replicates),
             f"{framework.name} has no dp_replicate",
             f"{framework.name} shards over dp*cp: dp_replicate must be 1, not {{dp_replicate}}."),
        Rule("replicas_sharded", ("zero_stage", "dp_replicate"), lambda c: cut(c) & (c["zero_stage"] == 0),
             f"dp_replicate > 1 without ZeRO {DUPLICATE}", "dp_replicate {dp_replicate} needs zero_stage > 0."),
        *_searched(job, "dp_replicate", lambda c: c["zero_stage"] > 0),
        Rule("replicas", ("dp", "cp", "dp_replicate"), lambda c: cut(c) & ((c["dp"] * c["cp"] % c["dp_replicate"] != 0)
             | (c["dp"] * c["cp"] == c["dp_replicate"])), "dp_replicate is no proper divisor of dp*cp",
             "dp_replicate {dp_replicate} must divide dp*cp = {shards} and be less."),
        *([Rule("replicas_of_experts", (*columns, "ep", "etp"), uneven, "ep*etp*dp_replicate does not divide dp*cp*tp",
                "ep*etp is {expert_ranks}, which does not divide the ranks of one of {dp_replicate} replicas of a "
                "stage (dp*cp*tp = {stage_ranks}).")] if job.model.is_moe else []),
        *([] if job.search.dp_replicate else [Rule("replicas_usual", columns, unusual,  # the only ones worth a search
             f"replicas that are not one scale-up domain of {domain} GPUs")]),
    ]  # fmt: skip


def _stage_rules(job: Job) -> list[Rule]:
    layers, framework = job.model.num_layers, job.training.framework
    whole = (layers, layers + job.model.mtp_num_layers)  # recipes list multi-token-prediction layers or leave them out

    def wrong(c: Columns) -> Any:
        return _by_split(c, lambda numbers, chunks: (chunks != len(numbers)) | (sum(numbers) not in whole))

    def blank_listed(c: Columns) -> Any:  # a blank is the even split
        even = [len(n) for n in map(STAGE_LAYERS.numbers, inside("stage_layers", job.search.stage_layers or ()))
                if len(set(n)) == 1 and sum(n) == layers]  # fmt: skip
        return (c["stage_layers"] == 0) & np.isin(c["pp"] * c["vpp"], even)

    def not_built(c: Columns) -> Any:
        return _by_split(c, lambda numbers, chunks: not buildable(framework, numbers))

    def uneven(c: Columns) -> Any:
        return (c["stage_layers"] == 0) & (c["vpp"] == 1) & (layers % c["pp"] != 0) & (not framework.uneven_blank)

    return [
        Rule("further_split", ("stage_layers",), lambda c: c["stage_layers"] < 0, f"a further split {DUPLICATE}"),
        *_searched(job, "stage_layers", lambda c: (c["pp"] > 1) & ~blank_listed(c)),
        Rule("even_stages", ("pp", "vpp", "stage_layers"), uneven,
             f"{framework.name} asks that pp divides the {layers} layers",
             f"pp {{pp}} does not divide the {layers} layers, as {framework.name} asks without stage_layers."),
        Rule("stage_layers_offered", ("stage_layers",), not_built, f"{framework.name} cannot build such stage_layers",
             f"{framework.name} cannot build stage_layers {{stage_layers}}."),
        Rule("stage_layers", ("pp", "vpp", "stage_layers"), wrong,
             f"stage_layers are not pp*vpp numbers that add up to {layers} layers",
             f"stage_layers {{stage_layers}} must be pp*vpp = {{chunks}} numbers that add up to the {layers} layers."),
        *_searched(job, "schedule", lambda c: c["pp"] > 1),
        Rule("schedule", ("schedule",), _not_in("schedule", [SCHEDULE.code(name) for name in framework.schedules]),
             f"{framework.name} has no such schedule", f"{framework.name} has no pipeline schedule {{schedule}}."),
        *_searched(job, "recompute_modules", lambda c: c["recompute"] == RECOMPUTE_CODES["selective"]),
        *_searched(job, "recompute_num_layers", lambda c: c["recompute"] == RECOMPUTE_CODES["full"]),
        *_searched(job, "offload"),
    ]  # fmt: skip


def _by_split(c: Columns, broken: Callable[[tuple[int, ...], Any], Any]) -> Bools:
    """Where ``broken`` holds of the numbers of stated ``stage_layers`` and pp*vpp; never of blank ones."""
    codes, chunks = np.broadcast_arrays(c["stage_layers"], c["pp"] * c["vpp"])
    out = np.zeros(codes.shape, np.bool_)
    for code in np.unique(codes[codes > 0]).tolist():
        at = codes == code
        out[at] = broken(STAGE_LAYERS.numbers(code), chunks[at])
    return out


def _literal(text: str) -> str:
    """Text within a format that stands for itself."""
    return text.replace("{", "{{").replace("}", "}}")
