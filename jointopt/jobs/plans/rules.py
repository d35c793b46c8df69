"""The rules that a layout must keep, each once: a mask over arrays, a reason to count it by, a sentence for one plan.

`jointopt.jobs.plans.space` sieves the product of all columns by them, `check_plan` judges one plan, and
`check_abilities` holds a job's search against what its framework can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    OFFLOAD,
    OVERLAP,
    RECOMPUTE_CODES,
    SCHEDULE,
    STAGE_LAYERS,
    Bools,
    Columns,
    inside,
    num_gpus,
)  # fmt: skip
from jointopt.jobs.catalog.limits import most
from jointopt.jobs.clocks import refused_limits
from jointopt.jobs.defaults import canonical, idle_modules
from jointopt.jobs.framework import KINDS, V_SHAPED, Framework, chosen_share, has_effect, not_offered, usual_share
from jointopt.jobs.job import Job, Search, Training
from jointopt.jobs.model import Model
from jointopt.jobs.plans.placement import even_domain
from jointopt.jobs.plans.stages import all_equal, buildable, by_split, largest_chunk, states_even

# One rule that layouts keep, and the parts that rules are made of.


SEARCHED, DUPLICATE = "outside the job's search", "is the same plan"  # in reasons that call for no change
SEARCH = "search."  # begins the names of the rules that the job itself sets


@dataclass(frozen=True)
class Rule:
    """One rule of the joint space.

    ``counted`` or ``sentence`` is empty where another rule covers that use.
    """

    name: str
    columns: tuple[str, ...]
    broken: Callable[[Columns], Any]  # takes the columns as arrays that broadcast; true where they break the rule
    counted: str = ""  # reason by which dropped combinations are counted
    sentence: str = ""  # what one plan is refused with: a format of its columns and of `rules._plan_figures`

    @property
    def of_search(self) -> bool:
        """Whether it is the job's own search that the rule holds plans to."""
        return self.name.startswith(SEARCH)

    @property
    def of_starting(self) -> bool:
        """Whether a plan that breaks the rule cannot be started; else the rule keeps it out of the space alone."""
        return not self.of_search and bool(self.sentence) and DUPLICATE not in self.counted


# where a choice has an effect depends on these columns
_EFFECT = {
    "sequence_parallel": ("tp",), "zero_stage": ("dp", "cp"), "dp_replicate": ("zero_stage",), "schedule": ("pp",),
    "stage_layers": ("pp", "vpp"), "recompute_modules": ("recompute",), "recompute_num_layers": ("recompute",),
    "recompute": ("recompute_modules",),
}  # fmt: skip


def searched(job: Job, column: str, where: Callable[[Columns], Any] | None = None) -> tuple[Rule, ...]:
    """The rule of a column whose values the job lists, ``where`` it has an effect; none where it lists none."""
    listed: tuple[Any, ...] | None = getattr(job.search, column)
    if listed is None:
        return ()
    values = [int(inside(column, [value])[0]) for value in listed]
    if column == "recompute":
        values = recompute_codes(job.training, listed)
    if column == "recompute_modules" and MODULES.bit("core_attn") in values:
        values.append(0)  # what a blank means
    outside = not_in(column, values, where)
    columns = _EFFECT.get(column, ())
    names = ", ".join(map(str, listed))
    sentence = f"{column} {{{column}}} is outside the job's search.{column} ({names})."
    return (Rule(SEARCH + column, (*columns, column), outside, f"{SEARCHED}.{column}", sentence),)


def not_in(column: str, values: list[int], where: Callable[[Columns], Any] | None = None) -> Callable[[Columns], Any]:
    """A test of whether the column's value is none of ``values``, ``where`` that matters."""

    def broken(c: Columns) -> Bools:
        outside = ~np.isin(c[column], values)
        return outside if where is None else np.asarray(outside & where(c))

    return broken


def recompute_codes(training: Training, names: tuple[str, ...]) -> list[int]:
    """Codes of recompute modes; selective that drops nothing but scores, of which there are none, is none."""
    codes = {RECOMPUTE_CODES[name] for name in names}
    if training.selective_is_none and "selective" in names:
        codes.add(RECOMPUTE_CODES["none"])
    return sorted(codes)


def literal(text: str) -> str:
    """Text within a format that stands for itself."""
    return text.replace("{", "{{").replace("}", "}}")


# Rules of experts, splits and schedules, recompute modules, offload and replicas, and those of one framework.


def expert_rules(job: Job) -> list[Rule]:
    """Degrees of experts: what divides what, and what the framework offers."""
    model, experts, framework = job.model, job.model.num_experts, job.training.framework

    def uneven(c: Columns) -> Any:
        if framework.experts_span_tp:
            return (c["dp"] * c["cp"] * c["tp"]) % (c["ep"] * np.maximum(c["etp"], 1)) != 0
        return (c["dp"] * c["cp"]) % c["ep"] != 0

    def cut(c: Columns) -> Any:
        return model.is_moe & (c["etp"] != 1) & (not framework.expert_tensor_parallel)

    return [
        *searched(job, "ep"),
        Rule("experts", ("ep",), lambda c: (c["ep"] > 1) & (not model.is_moe),
             f"ep > 1 needs experts and {model.name} is a dense model",
             f"ep {{ep}} needs experts, and {literal(model.name)} is a dense model."),
        Rule("expert_split", ("ep",), lambda c: model.is_moe & (experts % c["ep"] != 0),
             f"ep does not divide the {experts} experts", f"ep {{ep}} does not divide the {experts} experts."),
        *searched(job, "etp", lambda c: c["etp"] > 0),
        *_usual_expert_tp(job),
        Rule("expert_tp", ("etp",), lambda c: (c["etp"] > 0) & (not model.is_moe), "etp without experts",
             f"etp {{etp}} needs experts, and {literal(model.name)} is a dense model."),
        Rule("expert_tp_offered", ("etp",), cut, f"{framework.name} does not cut experts (etp)",
             f"{framework.name} does not cut experts: etp must be 1, not {{etp}}."),
        Rule("expert_ffn", ("etp",), lambda c: model.moe_ffn_hidden_size % np.maximum(c["etp"], 1) != 0,
             f"etp does not divide the {model.moe_ffn_hidden_size} FFN columns of an expert",
             f"etp {{etp}} does not divide the {model.moe_ffn_hidden_size} FFN columns of an expert."),
        Rule("expert_ranks", ("dp", "tp", "cp", "ep", "etp"), uneven,
             "ep*etp does not divide dp*cp*tp", "ep*etp is {expert_ranks}, which does not divide the {stage_ranks} "
             "ranks of a stage (dp*cp*tp)." if framework.experts_span_tp else
             "ep {ep} does not divide dp*cp, which is {shards}."),
    ]  # fmt: skip


def _usual_expert_tp(job: Job) -> list[Rule]:
    """Of a search that lists no etp: experts are cut as the other layers are, or not at all."""
    if job.search.etp is not None or not job.model.is_moe:
        return []
    return [Rule("usual_etp", ("tp", "etp"), lambda c: (c["etp"] != 1) & (c["etp"] != c["tp"]),
                 f"etp other than 1 and tp is {SEARCHED}")]  # fmt: skip


def check_splits(search: Search, model: Model) -> None:
    """JobError for the first of the listed ``stage_layers`` that does not add up to the model's layers."""
    for cell in search.stage_layers or ():
        if (total := sum(STAGE_LAYERS.numbers(STAGE_LAYERS.code(cell)))) not in _whole(model):
            raise JobError(
                f"search.stage_layers lists {cell}, which adds up to {total:,} layers; the model has "
                f"{model.num_layers:,}."
            )


def _whole(model: Model) -> tuple[int, int]:
    """The sums that a split may have: recipes count multi-token-prediction layers or leave them out."""
    return model.num_layers, model.num_layers + model.mtp_num_layers


def is_split(model: Model, stage_layers: str, chunks: int) -> bool:
    """Whether a cell of stage_layers splits the model's layers into so many chunks; a blank one does, evenly."""
    numbers = STAGE_LAYERS.numbers(STAGE_LAYERS.code(stage_layers))
    return not numbers or (len(numbers) == chunks and sum(numbers) in _whole(model))


def stage_rules(job: Job) -> list[Rule]:
    """Splits of layers, schedules: the numbers fit the plan, and the framework has them."""
    layers, framework, whole = job.model.num_layers, job.training.framework, _whole(job.model)

    def wrong(c: Columns) -> Any:
        return by_split(c, lambda numbers, chunks: (chunks != len(numbers)) | (sum(numbers) not in whole))

    def even(c: Columns) -> Any:
        return states_even(job.model, c)

    def piped(c: Columns) -> Any:
        return c["pp"] > 1

    def blank_listed(c: Columns) -> Any:  # a blank is the even split
        listed = [STAGE_LAYERS.numbers(STAGE_LAYERS.code(cell)) for cell in job.search.stage_layers or ()]
        chunks = [len(numbers) for numbers in listed if all_equal(numbers, layers)]
        return (c["stage_layers"] == 0) & np.isin(c["pp"] * c["vpp"], chunks)

    def not_built(c: Columns) -> Any:
        return ~wrong(c) & ~even(c) & by_split(c, lambda numbers, _: not buildable(framework, numbers))

    codes = [SCHEDULE.code(name) for name in framework.schedules]
    v_shaped = [SCHEDULE.code(name) for name in V_SHAPED]
    return [
        Rule("further_split", ("stage_layers",), lambda c: c["stage_layers"] < 0, f"a further split {DUPLICATE}"),
        *searched(job, "stage_layers", lambda c: piped(c) & ~blank_listed(c)),
        Rule("stage_layers_offered", ("pp", "vpp", "stage_layers"), not_built,
             f"{framework.name} cannot build such stage_layers",
             f"{framework.name} cannot build stage_layers {{stage_layers}}."),
        *_without_effect("stage_layers", ("pp",), piped, "pp > 1"),
        Rule("stage_layers", ("pp", "vpp", "stage_layers"), wrong,
             f"stage_layers are not pp*vpp numbers that add up to {layers} layers",
             f"stage_layers {{stage_layers}} must be pp*vpp = {{chunks}} numbers that add up to the {layers} layers."),
        Rule("stage_layers_equal", ("pp", "vpp", "stage_layers"), even, f"equal stage_layers {DUPLICATE} as none",
             "stage_layers {stage_layers} is the same plan as none."),
        *searched(job, "schedule", piped),
        *_without_effect("schedule", ("pp",), piped, "pp > 1"),
        Rule("schedule", ("schedule",), not_in("schedule", codes), f"{framework.name} has no such schedule",
             f"{framework.name} has no pipeline schedule {{schedule}}; it runs {_offered(framework.schedules)}."),
        Rule("two_chunks", ("schedule", "vpp"), lambda c: np.isin(c["schedule"], v_shaped) & (c["vpp"] != 2),
             "V-shaped schedules need vpp 2", "schedule {schedule} has two chunks per rank: vpp must be 2, not {vpp}."),
        Rule("one_chunk", ("schedule", "vpp"), lambda c: (c["schedule"] == SCHEDULE.code("zb-h1")) & (c["vpp"] != 1),
             "zb-h1 needs vpp 1", "schedule {schedule} does not interleave: vpp must be 1, not {vpp}."),
    ]  # fmt: skip


def _offered(schedules: Sequence[str]) -> str:
    return f"{', '.join(schedules)}: choose one of these" if len(schedules) > 1 else f"{schedules[0]} alone"


def _without_effect(column: str, needs: tuple[str, ...], effect: Any, words: str) -> list[Rule]:
    """The rule that a column stays at its neutral value where it has no ``effect``."""
    return [
        Rule(f"{column}_without", (*needs, column), lambda c: (c[column] != NEUTRAL[column]) & ~effect(c),
             f"{column} without {words} {DUPLICATE}", f"{column} {{{column}}} needs {words}.")
    ]  # fmt: skip


def recompute_rules(job: Job) -> list[Rule]:
    """Modules of selective recompute and layers of full recompute: in plans and models that have them."""
    model = job.model

    def selective(c: Columns) -> Any:
        return c["recompute"] == RECOMPUTE_CODES["selective"]

    def full(c: Columns) -> Any:
        return c["recompute"] == RECOMPUTE_CODES["full"]

    core, modules = MODULES.bit("core_attn"), ("recompute_modules",)
    idle = idle_modules(model) | (core if job.selective_is_none else 0)
    return [
        *searched(job, "recompute_modules", selective),
        *_without_effect("recompute_modules", ("recompute",), selective, "selective recompute"),
        Rule("recompute_modules", modules, lambda c: (c["recompute_modules"] & _refused_modules(model)) != 0,
             f"{model.name} has no such module to recompute",
             f"recompute_modules {{recompute_modules}}: {literal(model.name)} has not all of these."),
        Rule("recompute_modules_same", modules,
             lambda c: (c["recompute_modules"] == core) | ((c["recompute_modules"] & idle) != 0),
             f"recompute_modules with one without effect {DUPLICATE}",
             "recompute_modules {recompute_modules} is the same plan as without core_attn or modules of other models."),
        *searched(job, "recompute_num_layers", full),
        *_without_effect("recompute_num_layers", ("recompute",), full, "full recompute"),
        Rule("recompute_num_layers", ("pp", "vpp", "stage_layers", "recompute_num_layers"),
             lambda c: (c["recompute_num_layers"] > 0) & (c["recompute_num_layers"] >= largest_chunk(model, c)),
             f"recompute_num_layers of a whole chunk {DUPLICATE} as all",
             "recompute_num_layers {recompute_num_layers} is the same plan as 0: no chunk has more layers."),
    ]  # fmt: skip


def _refused_modules(model: Model) -> int:
    """The modules that Megatron Core refuses for this model: it has no place where they could be."""
    lacking = [] if model.kv_lora_rank else ["mla_up_proj"]
    return sum(map(MODULES.bit, lacking if model.is_moe else [*lacking, "moe_act"]))


def graph_rules(job: Job) -> list[Rule]:
    """Choices that Megatron Core's TransformerConfig refuses under CUDA graphs of layers."""
    if job.training.cuda_graph != "transformer_engine":
        return []
    full, moe, activations = RECOMPUTE_CODES["full"], MODULES.bit("moe"), OFFLOAD.code("activations")
    graphs = "CUDA graphs of layers"
    return [
        Rule("graphs_recompute", ("recompute",), lambda c: c["recompute"] == full, f"full recompute under {graphs}",
             f"recompute full does not run under {graphs} (training.cuda_graph)."),
        Rule("graphs_moe", ("recompute_modules",), lambda c: (c["recompute_modules"] & moe) != 0,
             f"recompute of moe under {graphs}",
             f"recompute_modules {{recompute_modules}}: moe does not run under {graphs} (training.cuda_graph)."),
        Rule("graphs_offload", ("offload",), lambda c: c["offload"] == activations,
             f"offload of activations under {graphs}",
             f"offload activations does not run under {graphs} (training.cuda_graph)."),
    ]  # fmt: skip


def adapter_rules(job: Job) -> list[Rule]:
    """Megatron cuts an adapter's rank by the ranks that cut its layer."""
    dim = job.training.lora_dim
    if dim is None or job.training.framework.family != "megatron-core":
        return []
    return [
        Rule("adapter_rank", ("tp",), lambda c: dim % c["tp"] != 0, f"tp does not divide lora_dim {dim}",
             f"tp {{tp}} does not divide training.lora_dim {dim}, which {job.training.framework.name} cuts by tp."),
    ]  # fmt: skip


def sharing_rules(job: Job) -> list[Rule]:
    """Groups of ranks that shard by themselves, and what lies in host memory."""
    model, framework = job.model, job.training.framework
    spans = framework.experts_span_tp

    def sharded(c: Columns) -> Any:
        return c["zero_stage"] > 0

    def uneven(c: Columns) -> Any:
        return (c["dp"] * c["cp"]) % c["dp_replicate"] != 0

    def uneven_experts(c: Columns) -> Any:
        inner = np.maximum(c["etp"], 1) if spans else c["tp"]
        ranks = c["dp"] * c["cp"] * c["tp"] // (c["ep"] * inner)
        return model.is_moe & (np.maximum(ranks, 1) % c["dp_replicate"] != 0)

    columns = ("dp", "cp", "dp_replicate")
    return [
        *searched(job, "dp_replicate", sharded),
        *_without_effect("dp_replicate", ("zero_stage",), sharded, "zero_stage > 0"),
        Rule("replicas_offered", ("dp_replicate",), lambda c: (c["dp_replicate"] > 1) & (not framework.replicates),
             f"{framework.name} has no dp_replicate",
             f"{framework.name} shards over dp*cp: dp_replicate must be 1, not {{dp_replicate}}."),
        *_usual_replicas(job),
        Rule("replicas", columns, uneven, "dp_replicate does not divide dp*cp",
             "dp_replicate {dp_replicate} does not divide dp*cp, which is {shards}."),
        Rule("replicas", (*columns, "tp", "ep", "etp"), lambda c: uneven_experts(c) & ~uneven(c),
             "dp_replicate does not divide the ranks that share an expert",
             "dp_replicate {dp_replicate} does not divide the ranks that share an expert, "
             f"{'dp*cp*tp/(ep*etp)' if spans else 'dp*cp/ep'}."),
        Rule("replicas_all", columns, lambda c: (c["dp_replicate"] > 1) & (c["dp_replicate"] == c["dp"] * c["cp"]),
             f"dp_replicate of all ranks {DUPLICATE} as zero_stage 0",
             "dp_replicate {dp_replicate} leaves nothing to shard and is the same plan as zero_stage 0."),
        *searched(job, "offload"), *searched(job, "overlap", has_effect),
        *_without_effect("overlap", ("dp", "cp", "tp"), has_effect, "dp*cp > 1 or tp > 1"),
        Rule("overlap_offered", ("dp", "cp", "tp", "overlap"), lambda c: not_offered(framework, c),
             f"{framework.name} has no such choice of overlap",
             f"overlap {{overlap}}: {framework.name} {_overlaps(framework)}."),
    ]  # fmt: skip


def _overlaps(framework: Framework) -> str:
    """The kinds of overlap that a framework leaves to choose, in words."""
    free = [kind for kind in KINDS if chosen_share(framework, kind)]
    if not free:
        return "leaves no choice of what overlaps"
    fixed = [f"{kind} {'on' if usual_share(framework, kind) else 'off'}" for kind in KINDS if kind not in free]
    return f"leaves the choice of {' and '.join(free)}" + (f", with {' and '.join(fixed)}" if fixed else "")


def _usual_replicas(job: Job) -> list[Rule]:
    """Of a search that lists no dp_replicate: replicas of one scale-up domain, the only ones worth it."""
    domain = even_domain(job.cluster)
    if job.search.dp_replicate is not None:
        return []
    return [Rule("replicas_usual", ("dp", "tp", "cp", "dp_replicate"),
                 lambda c: (c["dp_replicate"] > 1) & (c["dp"] * c["cp"] * c["tp"] != c["dp_replicate"] * domain),
                 f"replicas that are not one scale-up domain of {domain} GPUs: {SEARCHED}")]  # fmt: skip


def framework_only(job: Job) -> list[Rule]:
    """The rules of the job's framework and its like alone, by the catalogue's table."""
    named = job.training.framework.rules
    return [rule for rule in (*_own_pipeline_rules(job), *_own_rules(job), *_a2a_rules(job)) if rule.name in named]


def _a2a_rules(job: Job) -> list[Rule]:
    """Choices that Megatron Core's TransformerConfig refuses where all-to-alls hide under another micro-batch."""
    on, moe, full = job.training.overlap_moe_a2a, MODULES.bit("moe"), RECOMPUTE_CODES["full"]
    hidden = "where all-to-alls of experts overlap (training.overlap_moe_a2a)"
    return [
        Rule("a2a_overlap_ranks", ("ep",), lambda c: on & (c["ep"] <= 1), f"ep of 1 {hidden}",
             f"ep must be above 1 {hidden}, not {{ep}}."),
        Rule("a2a_overlap_chunks", ("pp", "vpp"), lambda c: on & (c["pp"] > 1) & (c["vpp"] <= 1),
             f"pp > 1 without interleaving {hidden}", f"pp {{pp}} needs vpp above 1 {hidden}."),
        Rule("a2a_overlap_recompute", ("recompute",), lambda c: on & (c["recompute"] == full),
             f"full recompute {hidden}", f"recompute full does not run {hidden}."),
        Rule("a2a_overlap_modules", ("recompute_modules",), lambda c: on & ((c["recompute_modules"] & moe) != 0),
             f"recompute of moe {hidden}", f"recompute_modules {{recompute_modules}}: moe does not run {hidden}."),
    ]  # fmt: skip


def _own_pipeline_rules(job: Job) -> list[Rule]:
    layers, batch, name = job.model.num_layers, job.training.global_batch_size, job.training.framework.name

    def uneven(c: Columns) -> Any:
        return (c["stage_layers"] == 0) & (c["vpp"] == 1) & (layers % c["pp"] != 0)

    def starved(c: Columns) -> Any:
        stages = c["pp"] * np.where(c["schedule"] == SCHEDULE.code("dualpipev"), 2, 1)
        tight = (c["vpp"] == 1) | (stages > c["pp"])
        return tight & (c["pp"] > 1) & (batch // (c["dp"] * c["micro_batch_size"]) < stages)

    return [
        Rule("no_pipelines", ("pp",), lambda c: c["pp"] > 1, f"{name} has no pipelines",
             f"{name} has no pipelines: pp must be 1, not {{pp}}."),
        Rule("even_stages", ("pp", "vpp", "stage_layers"), uneven,
             f"pp does not divide the {layers} layers, and no split of them is stated",
             f"pp {{pp}} does not divide the {layers} layers, as {name} needs where no stage_layers are stated."),
        Rule("filled_pipeline", ("dp", "pp", "vpp", "micro_batch_size", "schedule"), starved,
             "fewer micro-batches than stages", "{micro_batches} micro-batches are fewer than the pipeline's stages, "
             f"which {name} does not start."),
    ]  # fmt: skip


def _own_rules(job: Job) -> list[Rule]:
    model, name = job.model, job.training.framework.name
    optimizer = OFFLOAD.code("optimizer")

    def unsharded(c: Columns) -> Any:
        return (c["offload"] == optimizer) & (c["zero_stage"] == 0) & (c["dp"] * c["cp"] > 1)

    def bare(c: Columns) -> Bools:
        on = (c["overlap"] & OVERLAP.bit("tp")) > 0
        return np.asarray(on & (c["tp"] > 1) & (c["sequence_parallel"] == 0))

    def whole(c: Columns) -> Bools:
        return np.asarray(model.is_moe & (c["etp"] != 1) & (c["etp"] != c["tp"]))

    return [
        Rule("experts_sequence_parallel", ("tp", "sequence_parallel"),
             lambda c: model.is_moe & (c["tp"] > 1) & (c["sequence_parallel"] == 0),
             "experts with tp > 1 need sequence_parallel",
             f"{name} trains experts with tp {{tp}} only under sequence_parallel."),
        Rule("experts_by_tp", ("tp", "etp"), whole, f"{name} cuts experts by tp or not at all",
             f"{name} cuts experts by tp or not at all: etp must be 1 or {{tp}}, not {{etp}}."),
        Rule("experts_tp_piped", ("tp", "pp", "ep"), lambda c: (c["ep"] > 1) & (c["tp"] > 1) & (c["pp"] > 1),
             f"{name} has no ep > 1 with tp > 1 and pp > 1",
             f"{name} has no ep {{ep}} with tp {{tp}} in a pipeline of pp {{pp}}."),
        Rule("no_recompute_modules", ("recompute_modules",), lambda c: c["recompute_modules"] > 0,
             f"{name} has no recompute_modules", f"{name} cannot choose recompute_modules."),
        Rule("no_recompute_layers", ("recompute_num_layers",), lambda c: c["recompute_num_layers"] > 0,
             f"{name} has no recompute_num_layers", f"{name} recomputes all layers or none: no recompute_num_layers."),
        Rule("cp_shards", ("cp", "zero_stage"), lambda c: (c["cp"] > 1) & (c["zero_stage"] == 0),
             f"{name} shards over cp", f"{name} shards over cp {{cp}}: zero_stage must not be 0."),
        Rule("replicas_of_dp", ("dp", "dp_replicate"), lambda c: c["dp"] % c["dp_replicate"] != 0,
             "dp_replicate does not divide dp", "dp_replicate {dp_replicate} does not divide dp {dp}."),
        Rule("no_offload", ("offload",), lambda c: c["offload"] > 0, f"{name} keeps nothing in host memory",
             f"{name} keeps nothing in host memory: offload must be none, not {{offload}}."),
        Rule("no_offload_optimizer", ("offload",), lambda c: c["offload"] == optimizer,
             f"{name} does not offload the optimizer alone", f"{name} does not offload the optimizer alone."),
        Rule("overlap_of_tp", ("tp", "sequence_parallel", "overlap"), bare, "overlap of tp without sequence_parallel",
             f"{name} overlaps tp only under sequence_parallel."),
        Rule("offload_sharded", ("dp", "cp", "zero_stage", "offload"), unsharded,
             "offload of the optimizer needs zero_stage > 0", f"{name} offloads the optimizer only under ZeRO."),
    ]  # fmt: skip


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
    `jointopt.jobs.plans.text.parse_plan` gives it) breaks a rule too. Memory and other constraints are not looked at.
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
