"""The rules of the joint space, written apart from `jointopt.jobs.plans.rules`, so that each is the other's test."""

import itertools
import math

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.plans.placement import even_domain
from jointopt.jobs.plans.rules import FEWEST_TOKENS
from jointopt.jobs.plans.stages import offered_splits

# the value that a column takes where the job lists none, and where it has no effect
USUAL = {
    "dp_replicate": 1, "gtp": 1, "egtp": 1, "stage_layers": "", "schedule": "1f1b", "recompute_modules": "",
    "recompute_num_layers": 0, "offload": "none", "overlap": "",
}  # fmt: skip


def allowed_plans(job):
    """Every plan that the job allows, as tuples, by loops over all values that any column could have."""
    gpus, experts = job.cluster.num_gpus, max(job.model.num_experts, 1)
    degrees = [d for d in itertools.product(range(1, gpus + 1), repeat=4) if math.prod(d) == gpus]
    counts = [range(1, n + 1) for n in (experts, job.model.num_layers, job.training.global_batch_size)]
    choices = [(False, True), ("none", "selective", "full"), range(4)]
    widths = range(1, job.model.num_attention_heads + 1) if job.model.is_moe else (1,)
    newer = {"etp": widths}
    newer |= {name: dict.fromkeys((usual, *(getattr(job.search, name) or ()))) for name, usual in USUAL.items()}
    if job.search.schedule is None:
        newer["schedule"] = dict.fromkeys(job.training.framework.schedules)
    if job.search.dp_replicate is None:
        newer["dp_replicate"] = dict.fromkeys(range(1, gpus + 1))
    if job.search.stage_layers is None:
        every = [(pp, vpp) for pp in range(1, gpus + 1) for vpp in counts[1]]
        newer["stage_layers"] = dict.fromkeys(_text(split) for pair in every for split in offered_splits(job, *pair))
    found = set()
    for first in itertools.product(*counts, *choices):
        for degree in degrees:
            begun = dict(zip(LAYOUT_COLUMNS, degree + first, strict=False))
            # most fall here, whatever the newer columns are
            if _tensor(job, begun) and _data(job, begun) and _state(job, begun):
                found |= {tuple(plan.values()) for plan in _plans(job, begun, newer) if is_allowed(job, plan)}
    return found


def _plans(job, begun, newer):
    """Plans that begin so, but for values that a rule refuses whatever the other newer columns are."""
    alone = {"etp": _experts, "schedule": _pipeline}
    values = [
        [one for one in values if name not in alone or alone[name](job, begun | {name: one})]
        for name, values in newer.items()
    ]
    return (begun | dict(zip(newer, rest, strict=True)) for rest in itertools.product(*values))


def _text(numbers):
    return ";".join(map(str, numbers))


def is_allowed(job, plan):
    checks = (_tensor, _pipeline, _split, _data, _experts, _state, _recompute, _sharing, _gathering, _overlap, _a2a)
    return all(check(job, plan) for check in (*checks, _searched))


def _has(job, *rules):
    return set(rules) & set(job.training.framework.rules)


def _tensor(job, plan):
    tp, model, framework = plan["tp"], job.model, job.training.framework
    parts = [model.num_attention_heads]
    if not model.is_moe or model.num_dense_layers:
        parts.append(model.ffn_hidden_size)
    if model.num_shared_experts:
        parts.append(model.num_shared_experts * model.moe_ffn_hidden_size)
    groups = model.num_query_groups
    if any(part % tp for part in parts) or (groups % tp and (tp % groups or _has(job, "whole_kv_groups"))):
        return False
    on = plan["sequence_parallel"]
    if tp == 1:
        return not on
    if model.is_moe and not on and _has(job, "experts_sequence_parallel"):
        return False
    return on in framework.sequence_parallel and not (on and job.training.seq_length // plan["cp"] % tp)


def _pipeline(job, plan):
    pp, vpp, framework = plan["pp"], plan["vpp"], job.training.framework
    micro_batches = job.training.global_batch_size // (plan["dp"] * plan["micro_batch_size"])
    if pp > job.model.num_layers or plan["schedule"] not in framework.schedules:
        return False
    if pp == 1:
        return vpp == 1 and plan["schedule"] == "1f1b"
    if _has(job, "no_pipelines") or (vpp > 1 and not framework.interleaving):
        return False
    if vpp > 1 and plan["schedule"] == "1f1b" and micro_batches % pp:
        return False
    wanted = {"1f1b": vpp, "zb-h1": 1, "zbv": 2, "dualpipev": 2}[plan["schedule"]]
    stages = 2 * pp if plan["schedule"] == "dualpipev" else pp
    starved = micro_batches < stages and (vpp == 1 or plan["schedule"] == "dualpipev")
    return vpp == wanted and not (starved and _has(job, "filled_pipeline"))


def _split(job, plan):
    layers, chunks, stated = job.model.num_layers, plan["pp"] * plan["vpp"], job.training.framework.stage_splits
    if not plan["stage_layers"]:
        return layers % chunks == 0 or (plan["vpp"] == 1 and not _has(job, "even_stages"))
    numbers = list(map(int, plan["stage_layers"].split(";")))
    if plan["pp"] == 1 or len(numbers) != chunks or sum(numbers) != layers or len(set(numbers)) == 1:
        return False
    ends = [{numbers[0] + one, numbers[-1] + 1, *numbers[1:-1]} for one in (0, 1)]
    return ("any" in stated and 0 not in numbers[1:-1]) or ("ends" in stated and 1 in map(len, ends))


def _data(job, plan):
    cp = plan["cp"]
    if cp > 1 and job.search.cp is None and job.training.seq_length / cp < FEWEST_TOKENS:
        return False
    if cp > 1 and (job.training.seq_length % (2 * cp) or not job.training.framework.context_parallel):
        return False
    if job.search.tp is None and plan["tp"] > 4 * job.cluster.scale_up_gpus:
        return False
    return job.training.global_batch_size % (plan["dp"] * plan["micro_batch_size"]) == 0


def _experts(job, plan):
    ep, etp, tp, framework, shards = (
        plan["ep"],
        plan["etp"],
        plan["tp"],
        job.training.framework,
        plan["dp"] * plan["cp"],
    )
    if not job.model.is_moe:
        return ep == etp == 1
    if job.model.num_experts % ep or job.model.moe_ffn_hidden_size % etp:
        return False
    if etp > 1 and not framework.expert_tensor_parallel:
        return False
    if etp not in (1, tp) and (_has(job, "experts_by_tp") or job.search.etp is None):
        return False
    return (shards * tp % (ep * etp) if framework.experts_span_tp else shards % ep) == 0


def _state(job, plan):
    stage, framework = plan["zero_stage"], job.training.framework
    if plan["dp"] * plan["cp"] == 1:
        return stage == 0
    usual = framework.usual_zero_stages
    if usual and job.search.zero_stage is None and stage not in usual:
        return False
    piped = plan["pp"] == 1 or stage in framework.zero_stages_with_pipeline
    return stage in framework.zero_stages and piped


def _recompute(job, plan):
    mode, flash, offered = plan["recompute"], job.training.selective_is_none, job.training.framework.recomputes
    modules, layers = set(filter(None, plan["recompute_modules"].split(";"))), plan["recompute_num_layers"]
    if mode not in offered and not (mode == "none" and flash and "selective" in offered):
        return False
    if layers:
        numbers = list(map(int, filter(None, plan["stage_layers"].split(";"))))
        largest = max(numbers or [math.ceil(job.model.num_layers / (plan["pp"] * plan["vpp"]))])
        if mode != "full" or layers >= largest or _has(job, "no_recompute_layers"):
            return False
    if not modules:
        return mode != "selective" or not flash
    known = {"core_attn", "layernorm"} - ({"core_attn"} if flash else set())
    known |= {"moe", "moe_act"} if job.model.is_moe else set()
    known |= {"mlp"} if not job.model.is_moe or job.model.num_dense_layers else set()
    known |= {"mla_up_proj"} if job.model.kv_lora_rank else set()
    known |= {"shared_experts"} if job.model.num_shared_experts else set()
    good = modules <= known and modules != {"core_attn"} and not _has(job, "no_recompute_modules")
    return mode == "selective" and good


def _sharing(job, plan):
    replicas, ranks, offload = plan["dp_replicate"], plan["dp"] * plan["cp"], plan["offload"]
    if offload != "none" and _has(job, "no_offload"):
        return False
    if offload == "optimizer":
        alone = plan["zero_stage"] == 0 and ranks > 1 and _has(job, "offload_sharded")
        if alone or _has(job, "no_offload_optimizer"):
            return False
    if plan["cp"] > 1 and plan["zero_stage"] == 0 and _has(job, "cp_shards"):
        return False
    if replicas == 1:
        return True
    if not job.training.framework.replicates:
        return False
    if job.search.dp_replicate is None and ranks * plan["tp"] != replicas * even_domain(job.cluster):
        return False
    inner = plan["etp"] if job.training.framework.experts_span_tp else plan["tp"]
    if job.model.is_moe and max(ranks * plan["tp"] // (plan["ep"] * inner), 1) % replicas:
        return False
    narrow = plan["dp"] % replicas and _has(job, "replicas_of_dp")
    return plan["zero_stage"] > 0 and ranks % replicas == 0 and replicas < ranks and not narrow


def _gathering(job, plan):
    if plan["gtp"] == plan["egtp"] == 1:
        return True
    if "gtp" not in job.training.framework.dimensions or plan["zero_stage"] > 1 or job.training.frozen:
        return False
    ranks, replicas = plan["dp"] * plan["cp"], plan["dp_replicate"]
    alike = max(ranks * plan["tp"] // (plan["ep"] * plan["etp"]), 1) if job.model.is_moe else 1
    if plan["dp"] % plan["gtp"] or alike % plan["egtp"]:
        return False
    return replicas == 1 or (ranks % (plan["gtp"] * replicas) == 0 and alike % (plan["egtp"] * replicas) == 0)


def _overlap(job, plan):
    stated, framework = set(filter(None, plan["overlap"].split(";"))), job.training.framework
    groups = {"dp": plan["dp"] * plan["cp"] > 1, "tp": plan["tp"] > 1}
    if not stated:
        return True
    if not any(groups.values()) or ("none" in stated and len(stated) > 1):
        return False
    usual = {"dp": framework.dp_overlap > 0, "tp": framework.tp_overlap > 0}
    free = {"dp": framework.chosen_dp_overlap > 0, "tp": framework.chosen_tp_overlap > 0}
    bare = _has(job, "overlap_of_tp") and plan["tp"] > 1 and "tp" in stated and not plan["sequence_parallel"]
    return not bare and all(free[k] or not groups[k] or (k in stated) == usual[k] for k in groups)


def _a2a(job, plan):
    if not job.training.overlap_moe_a2a or not _has(job, "a2a_overlap_ranks"):
        return True
    recomputed = plan["recompute"] == "full" or "moe" in plan["recompute_modules"].split(";")
    return plan["ep"] > 1 and not (plan["pp"] > 1 and plan["vpp"] == 1) and not recomputed


def _searched(job, plan):
    active = set(LAYOUT_COLUMNS)
    active -= {"overlap"} if plan["tp"] == plan["dp"] * plan["cp"] == 1 else set()
    active -= {"sequence_parallel"} if plan["tp"] == 1 else set()
    active -= {"zero_stage"} if plan["dp"] * plan["cp"] == 1 else set()
    active -= {"stage_layers", "schedule"} if plan["pp"] == 1 else set()
    active -= {"dp_replicate"} if plan["zero_stage"] == 0 else set()
    active -= {"recompute_modules"} if plan["recompute"] != "selective" else set()
    active -= {"recompute_num_layers"} if plan["recompute"] != "full" else set()
    active -= set() if job.model.is_moe else {"etp"}
    even = ";".join([str(job.model.num_layers // (plan["pp"] * plan["vpp"]))] * plan["pp"] * plan["vpp"])
    if not plan["stage_layers"] and even in (job.search.stage_layers or ()):
        active -= {"stage_layers"}
    offered = map(_text, offered_splits(job, plan["pp"], plan["vpp"])) if job.search.stage_layers is None else ()
    if job.search.stage_layers is None and plan["pp"] > 1 and plan["stage_layers"] not in offered:
        return False
    for column in active:
        listed = getattr(job.search, column)
        also = {"none"} if job.training.selective_is_none and "selective" in (job.search.recompute or ()) else set()
        if listed is not None and plan[column] not in {*listed, *(also if column == "recompute" else ())}:
            return False
    return True
