"""torchtitan: a TOML file for 0.2, a command line for 0.3, whose Python file states only a split of its own.

A model is one of torchtitan's own, by its name there: a shape cannot be given. Sources: torchtitan/config/job_config.py
of 0.2.2, torchtitan/config/configs.py and models/*/config_registry.py of 0.3.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import ExportError
from jointopt.core.quote import python_text, toml_text
from jointopt.jobs.catalog.models import load_model
from jointopt.measure.exports.intent import Export, Gaps, Intent
from jointopt.measure.exports.options import version_key

NAME = "torchtitan"
Settings = dict[str, dict[str, Any]]
# catalogue name: torchtitan's model, its flavor in 0.2, the function that configures it in 0.3; blank: not there
_MODELS = {
    "llama-3-8b": ("llama3", "8B", "llama3_8b"), "llama-3-70b": ("llama3", "70B", "llama3_70b"),
    "llama-3-405b": ("llama3", "405B", "llama3_405b"), "qwen3-8b": ("qwen3", "8B", ""),
    "qwen3-32b": ("qwen3", "32B", "qwen3_32b"), "qwen3-30b-a3b": ("qwen3", "30B-A3B", "qwen3_30b_a3b"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B", ""), "deepseek-v2-lite": ("deepseek_v3", "16B", "deepseek_v3_16b"),
    "deepseek-v2": ("deepseek_v3", "236B", ""), "deepseek-v3": ("deepseek_v3", "671B", "deepseek_v3_671b"),
}  # fmt: skip
_FP8 = {"llama3_405b": "llama3_405b", "deepseek_v3_671b": "deepseek_v3_671b_float8"}  # those of 0.3 that train in fp8
SCHEDULES = {"1f1b": "1F1B", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV"}
INTERLEAVED = "Interleaved1F1B"  # 1f1b of several stages per rank
_FILE = """\
{about}

from torchtitan.models.{module}.config_registry import {function}


def plan():
    config = {function}()
    config.parallelism.module_fqns_per_model_part = {parts}
    return config
"""


def export(intent: Intent, version: str) -> Export:
    """A TOML file for versions below 0.3, else the words after ``torchtitan.train``."""
    old = version_key(version) < version_key("0.3")
    gaps = Gaps(f"{NAME} {version}", intent)
    _check(gaps, intent, old)
    settings = _settings(intent, old)
    module, flavor, function = _model(intent, old, version)
    if not old:
        in_fp8 = intent.job.training.dtype == "fp8"
        gaps.never(in_fp8 != (function in _FP8) and (in_fp8 or function in _FP8.values()),
                   f"training {intent.model.name} in {intent.job.training.dtype}")  # fmt: skip
        function = _FP8[function] if in_fp8 else function
    common: dict[str, Any] = {
        "environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "program": "-m torchtitan.train",
        "world_size": int(intent.job.cluster.num_gpus),
    }  # fmt: skip
    if intent.is_training:
        gaps.notes.append("Yours to set: the dataset, the tokenizer's folder (hf_assets_path), the learning rate.")
    if old:
        settings["model"] = {"name": module, "flavor": flavor, **settings.get("model", {})}
        words, files = ("--job.config_file", "torchtitan.toml"), {"torchtitan.toml": toml_text(settings)}
        return Export(NAME, version, words, files=files, notes=tuple(gaps.notes), **common)
    parts = settings["parallelism"].pop("module_fqns_per_model_part", None)
    files, start = {}, ("--module", module, "--config", function)
    if parts is not None:
        about = python_text(
            f"{intent.model.name} with a pipeline split of its own: put this file where Python finds it."
        )
        named = {"about": about, "module": module, "function": function, "parts": parts}
        files, start = {"plan_config.py": _FILE.format(**named)}, ("--module", "plan_config", "--config", "plan")
    return Export(NAME, version, (*start, *_words(settings)), files=files, notes=tuple(gaps.notes), **common)


def _model(intent: Intent, old: bool, version: str) -> tuple[str, str, str]:
    """The names of the model there, whatever the job calls that shape."""
    shape = dataclasses.replace(intent.model, name="")
    for name, names in _MODELS.items():
        if dataclasses.replace(load_model(name), name="") == shape and names[1 if old else 2]:
            return names
    raise ExportError(
        f"{NAME} {version} has no model of the shape of {intent.model.name}; it has "
        f"{', '.join(name for name, names in _MODELS.items() if names[1 if old else 2])}."
    )


def _check(gaps: Gaps, intent: Intent, old: bool) -> None:
    dtype, tp, ep = intent.job.training.dtype, intent["tp"], intent["ep"]
    gaps.never(dtype not in ("bf16", "fp32", "fp8"), f"training in {dtype}")
    gaps.no_recipe_but(("tensorwise", "mxfp8") if old else ("tensorwise",))  # in 0.3 those of its own configurations
    gaps.never(_is_mxfp8(intent) and tp > 1, "tensor parallelism with fp8_recipe mxfp8")  # not yet with compile
    gaps.choices_of_megatron()
    gaps.uneven_experts()
    gaps.no_adapters()
    gaps.no_choice_of_overlap()
    gaps.never(intent["zero_stage"] == 1, "zero_stage 1")
    gaps.never(intent["zero_stage"] == 0 and intent["cp"] > 1, "zero_stage 0 with cp > 1")  # it shards over cp too
    gaps.never(
        intent["dp"] % intent["dp_replicate"] != 0, f"dp_replicate {intent['dp_replicate']} of dp {intent['dp']}"
    )
    gaps.never(intent["offload"] != "none", f"offload of the {intent['offload']} alone")
    gaps.never(intent["schedule"] not in SCHEDULES, f"the pipeline schedule {intent['schedule']}")
    gaps.never(intent["recompute_modules"], f"recompute of {intent['recompute_modules']}")
    gaps.never(intent["recompute_num_layers"], "full recompute of some layers")
    gaps.never(old and tp > 1 and not intent["sequence_parallel"], "tensor parallelism without sequence_parallel")
    if intent.model.is_moe and tp > 1:
        cut = (1, tp) if old and ep > 1 else (1,) if ep > 1 else (tp,)
        gaps.never(intent["etp"] not in cut, f"etp {intent['etp']} where tp is {tp} and ep is {ep}")


def _settings(intent: Intent, old: bool) -> Settings:
    """Sections of settings that both versions have, under the names of each."""
    training, steps = intent.job.training, intent.iterations
    precision = "float32" if training.dtype == "fp32" else "bfloat16"
    piped = intent["pp"] > 1
    found: Settings = {
        "training": {
            # with pipelines, a local batch is all micro-batches of an iteration
            "local_batch_size": training.global_batch_size // intent["dp"] if piped else intent["micro_batch_size"],
            "global_batch_size": training.global_batch_size, "seq_len": training.seq_length, "steps": steps,
            "mixed_precision_param": precision,
        },
        "parallelism": _parallelism(intent, old),
        "metrics": {"log_freq": 10 if intent.is_training else 1},
        "checkpoint": {"enable": intent.is_training},
        "compile": {"enable": True},
    }  # fmt: skip
    if not old and (piped or intent.model.is_moe):  # which its CUDA graphs do not capture
        found["training"]["disable_cuda_graphs"] = True
    if intent.model.is_moe and not intent.is_training:
        found["debug"] = {"moe_force_load_balance": True}
    if training.dtype == "fp8" and old:
        found |= _converters(intent)
    found["validation" if old else "validator"] = {"enable": False}
    found["activation_checkpoint"] = {"mode": intent["recompute"]}
    if old and intent["recompute"] == "selective":
        share = training.framework.selective_share
        found["activation_checkpoint"]["selective_ac_option"] = str(round(1 / share)) if share else "op"
    return found


def _is_mxfp8(intent: Intent) -> bool:
    recipe = intent.job.training.fp8_recipe
    return recipe is not None and recipe.name == "mxfp8"


def _converters(intent: Intent) -> Settings:
    """The converters of 0.2 to fp8: scaled per tensor, or MXFP8's, whose experts have one of their own."""
    if not _is_mxfp8(intent):
        return {
            "model": {"converters": ["quantize.linear.float8"]},
            "quantize.linear.float8": {"enable_fsdp_float8_all_gather": True},
        }
    found: Settings = {
        "model": {"converters": ["quantize.linear.mx"]}, "quantize.linear.mx": {"recipe_name": "mxfp8_cublas"},
    }  # fmt: skip
    if intent.model.is_moe:
        found["model"]["converters"] += ["quantize.grouped_mm.mx"]
        found["quantize.grouped_mm.mx"] = {"fqns": ["experts"], "recipe_name": "mxfp8"}
    return found


def _parallelism(intent: Intent, old: bool) -> dict[str, Any]:
    """The mesh: replicas outside, shards of ZeRO-2 (kept gathered between passes) and ZeRO-3 inside."""
    stage, dp = intent["zero_stage"], intent["dp"]
    replicas = dp if stage == 0 and intent["cp"] == 1 else intent["dp_replicate"]
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": dp // replicas,
        "fsdp_reshard_after_forward": "always" if stage == 3 else "never",
        "tensor_parallel_degree": intent["tp"], "pipeline_parallel_degree": intent["pp"],
        "context_parallel_degree": intent["cp"], "expert_parallel_degree": intent["ep"],
    }  # fmt: skip
    if not old and intent["tp"] > 1:
        found["enable_sequence_parallel"] = bool(intent["sequence_parallel"])
    if old and intent.model.is_moe and intent["ep"] > 1:
        found["expert_tensor_parallel_degree"] = intent["etp"]
    return found | (_pipeline(intent, old) if intent["pp"] > 1 else {})


def _pipeline(intent: Intent, old: bool) -> dict[str, Any]:
    schedule = SCHEDULES[intent["schedule"]]
    if schedule == "1F1B" and intent["vpp"] > 1:
        schedule = INTERLEAVED
    found: dict[str, Any] = {
        "pipeline_parallel_schedule": schedule, "pipeline_parallel_microbatch_size": intent["micro_batch_size"],
    }  # fmt: skip
    split = intent.chunk_layers
    if intent.even:  # as many layers in the first and the last chunk as in the others
        weights = dict.fromkeys(("first", "last"), 0)
        less = {f"pipeline_parallel_{end}_stage_less_layers": layers for end, layers in weights.items()}
        return found | less | {"pipeline_parallel_layers_per_stage": split[0]}
    return found | {"module_fqns_per_model_part": _parts(split, "output" if old else "lm_head")}


def _parts(split: tuple[int, ...], head: str) -> list[list[str]]:
    """Names of the modules of each chunk, in the order of the pipeline."""
    starts = [sum(split[:i]) for i in range(len(split))]
    parts = [[f"layers.{start + i}" for i in range(layers)] for start, layers in zip(starts, split, strict=True)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def _words(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """``--section.name value``; the recompute policy is a word of its own, after all options."""
    words, policy = [], str(settings["activation_checkpoint"]["mode"])
    for section, values in settings.items():
        for name, value in values.items() if section != "activation_checkpoint" else ():
            flag = isinstance(value, bool)
            words += [f"--{section}.{'no-' if flag and not value else ''}{name}", *([] if flag else [str(value)])]
    return [*words, f"activation-checkpoint:{policy}"]
