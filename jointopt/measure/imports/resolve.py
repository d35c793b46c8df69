"""Several files of one run into one job and its plan; what none of them states is required by its option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.schema import DEGREES
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.models import model_names
from jointopt.jobs.job import STATE_FIELDS, Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.model import Model
from jointopt.measure.imports.catalogue import models_of_shape
from jointopt.measure.imports.taken import Taken

_NAMES = {
    "gpu": "the GPU (--gpu)", "model": "the model (--model)", "vocab_size": "the vocabulary (--vocab-size)",
    "seq_length": "the sequence length (--seq-length)", "global_batch_size": "the batch (--global-batch-size)",
    "nodes": "the number of nodes (--nodes)", "gpus_per_node": "GPUs per node (--gpus-per-node)",
}  # fmt: skip
_TRAINING = (
    "seq_length", "global_batch_size", "dtype", "fp8_recipe", "attention", "framework", "cuda_graph", *STATE_FIELDS,
    "lora_dim", "lora_alpha", "lora_target_modules", "token_dispatcher", "overlap_moe_a2a",
    "moe_router_force_load_balancing",
)  # fmt: skip
_CLUSTER = ("gpu", "nodes", "gpus_per_node", "inter_node_gbytes_per_s")


@dataclass(frozen=True)
class Resolved:
    """The job of a run, the plan that it runs (columns that its files state), and remarks on both."""

    job: Job
    plan: dict[str, Any]
    remarks: tuple[str, ...]


def resolved(files: Sequence[Taken], name: str, given: Mapping[str, Any]) -> Resolved:
    """The job and plan of one run; ``given`` are options, which count more than files, earlier files than later.

    Raises JobError: one sentence that names each value that is missing with its option, or what contradicts.
    """
    remarks: list[str] = []
    whole = _joined(files, remarks)
    options = {key: value for key, value in given.items() if value is not None}
    whole.training |= {key: options[key] for key in _TRAINING if key in options}
    whole.cluster |= {key: options[key] for key in _CLUSTER if key in options}
    if {"nodes", "gpus_per_node"} & options.keys():
        whole.cluster.pop("num_gpus", None)
        whole.plan.pop("dp", None)
    missing = [key for key in ("gpu",) if not whole.cluster.get(key)]
    cluster = _sizes(whole, missing)
    _fill_batch(whole, cluster, missing, remarks)
    model = _model(whole, options, remarks, missing)
    missing += [key for key in ("seq_length", "global_batch_size") if not whole.training.get(key)]
    if missing:
        alike = f", or --model {' or '.join(found)}" if (found := [r for r in remarks if r in model_names()]) else ""
        names = _NAMES | {"vocab_size": _NAMES["vocab_size"].replace(")", f"{alike})")}
        wanted = [names[key] for key in dict.fromkeys(missing)]
        sources = [*dict.fromkeys(one.source for one in files)]
        raise JobError(f"{_and(sources)} {'do' if len(sources) > 1 else 'does'} not state {_and(wanted)}; give them.")
    training = {key: whole.training[key] for key in _TRAINING if whole.training.get(key) is not None}
    training["framework"] = options.get("framework") or whole.framework or "generic"
    job = parse_job({"name": name, "model": model, "training": training, "cluster": cluster}, name, Path())
    rest = [one.rest(whole.plan, job.model.num_layers) for one in files if one.rest]
    return Resolved(job, {key: value for one in (*rest, whole.plan) for key, value in one.items()}, tuple(remarks))


def _and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _joined(files: Sequence[Taken], remarks: list[str]) -> Taken:
    """All files in one: the first that states a value counts, and a later one that differs is remarked on."""
    whole = Taken("")
    for one in files:
        for kind in ("model", "training", "cluster", "plan"):
            here = getattr(whole, kind)
            for key, value in getattr(one, kind).items():
                if key in here and here[key] != value and kind != "model":
                    remarks.append(f"{one.source} states {key} {value}, another file {here[key]}, which counts")
                here.setdefault(key, value)
        whole.framework = whole.framework or one.framework
        whole.accumulation = whole.accumulation or one.accumulation
        remarks += [f"{one.source}: {remark}" for remark in one.remarks]
        unseen = [name for name in one.names if name not in {other.source for other in files}]
        remarks += [f"{one.source} reads {', '.join(unseen)}, which may be given too"] if unseen else []
    return whole


def _sizes(whole: Taken, missing: list[str]) -> dict[str, Any]:
    """The cluster's mapping, with nodes and GPUs per node from what is stated of either, of all GPUs, or the plan."""
    stated = whole.cluster
    degrees = [whole.plan.get(name) or (1 if name != "dp" else None) for name in DEGREES]
    every = stated.get("num_gpus") or (prod(d for d in degrees if d) if None not in degrees else None)
    nodes, per_node = stated.get("nodes"), stated.get("gpus_per_node")
    usual = load_gpu(stated["gpu"]).usual_gpus_per_node if stated.get("gpu") else None
    if per_node is None and nodes and every:
        per_node = every // nodes
    if per_node is None and usual:
        per_node = min(usual, every or usual)
    if nodes is None and per_node:  # launchers start on one node where none are stated
        nodes = -(-every // per_node) if every else 1 if stated.get("gpus_per_node") else None
    missing += [key for key, value in (("gpus_per_node", per_node), ("nodes", nodes)) if not value and "gpu" in stated]
    if nodes is None and "gpu" not in stated and every is None:
        missing.append("nodes")
    sizes = {"gpu": stated.get("gpu"), "nodes": nodes, "gpus_per_node": per_node}
    return sizes | {key: stated[key] for key in _CLUSTER if key in stated and key not in sizes}


def _fill_batch(whole: Taken, cluster: Mapping[str, Any], missing: list[str], remarks: list[str]) -> None:
    """dp, the micro-batch and the batch, each from the others; a rank passes once where no file says how often."""
    plan, training = whole.plan, whole.training
    if cluster["nodes"] and cluster["gpus_per_node"]:
        every = cluster["nodes"] * cluster["gpus_per_node"]
        others = prod(plan.get(name) or 1 for name in DEGREES if name != "dp")
        if every % others:
            raise JobError(f"tp, pp and cp of the plan take {others} GPUs, which do not divide the {every} of the run.")
        if plan.get("dp") not in (None, every // others):
            raise JobError(f"The plan's degrees make {plan['dp'] * others} GPUs; the run has {every} (--nodes).")
        plan["dp"] = every // others
    elif plan.get("dp") is None:
        missing.append("nodes")
        return
    steps, micro_batch = whole.accumulation or 1, plan.get("micro_batch_size")
    if not training.get("global_batch_size") and micro_batch:
        training["global_batch_size"] = micro_batch * steps * plan["dp"]
    elif training.get("global_batch_size") and not micro_batch:
        plan["micro_batch_size"] = max(training["global_batch_size"] // (plan["dp"] * steps), 1)
        if not whole.accumulation:
            remarks.append("no file states the micro-batch; a rank is taken to pass its batch at once")


def _model(
    whole: Taken, options: Mapping[str, Any], remarks: list[str], missing: list[str]
) -> str | dict[str, Any] | None:
    """A catalogue name where the shape is one, else the shape written out."""
    named = options.get("model") or whole.model.get("catalogue")
    if named:
        return str(named)
    shape = {key: value for key, value in whole.model.items() if value is not None}
    if "vocab_size" in options:
        shape["vocab_size"] = options["vocab_size"]
    if not {"num_layers", "hidden_size", "num_attention_heads"} <= shape.keys():
        missing.append("model")
        return None
    found = models_of_shape(shape)
    if len(found) == 1 or (found and "vocab_size" in shape):
        if "vocab_size" not in shape:
            remarks.append(f"the vocabulary is not stated; that of {found[0].name}, whose shape it is, is taken")
        return _as_trained(found[0], shape)
    if "vocab_size" not in shape:
        missing.append("vocab_size")
        remarks += [model.name for model in found]
    if shape.get("position_embedding") == "learned":
        shape.setdefault("max_position_embeddings", whole.training.get("seq_length"))
    if not shape.get("num_experts"):
        shape = {key: value for key, value in shape.items() if "moe" not in key and "experts" not in key}
    return shape


def _as_trained(model: Model, shape: Mapping[str, Any]) -> str | dict[str, Any]:
    """The catalogue's name, or its shape where dropout differs."""
    if bool(shape.get("dropout")) == model.dropout:
        return model.name
    filled = {key: value for key, value in vars(model).items() if value or isinstance(value, bool)}
    return filled | {
        "name": f"{model.name}-{'dropout' if not model.dropout else 'no-dropout'}",
        "dropout": not model.dropout,
    }
