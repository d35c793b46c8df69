"""DeepSpeed: its JSON, and the words of its launcher around a training script of one's own.

Sources: deepspeed/runtime/config.py, runtime/zero/config.py and docs/_pages/config-json.md of 0.19.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from jointopt.frameworks import megatron
from jointopt.frameworks.configs.config_programs import config_settings as config_taken_by
from jointopt.frameworks.configs.config_programs import programs
from jointopt.frameworks.intent import PROGRAM, Export, Gaps, Intent, model_files, script_words
from jointopt.frameworks.logs import lines_of
from jointopt.frameworks.options import FileSettings, Options, stated, version_key, whole_number
from jointopt.jobs.model_facts import facts_in, with_facts

NAME, FILE = "deepspeed", "ds_config.json"


def export(intent: Intent, version: str) -> Export:
    """``ds_config.json`` and the launcher's words; what DeepSpeed leaves to the script's code is in the notes."""
    gaps = Gaps(f"DeepSpeed {version}", intent)
    _check(gaps, intent, version)
    cluster = intent.job.cluster
    launcher = ("deepspeed", "--num_nodes", str(cluster.nodes), "--num_gpus", str(cluster.gpus_per_node))
    notes = [f"{PROGRAM} is your script: DeepSpeed's file holds the plan, not the model."]
    if intent["pp"] > 1:
        notes.append(f"The script builds PipelineModule(layers, num_stages={intent['pp']}, "
                     "partition_method='uniform').")  # fmt: skip
    if intent["recompute"] == "selective" or (intent["recompute"] == "full" and intent["pp"] == 1):
        notes.append(f"The script recomputes activations ({intent['recompute']}), such as by "
                     "model.gradient_checkpointing_enable().")  # fmt: skip
    if intent["sequence_parallel"]:
        notes.append("The script's layers cut the sequence (--sequence-parallel): AutoTP's own do not.")
    gaps.notes += notes
    words = ("--deepspeed", "--deepspeed_config", FILE, *script_words(intent), *_words(intent))
    files = {FILE: json.dumps(_config(intent), indent=2) + "\n"} | model_files(intent)
    return Export(
        NAME, version, words, {}, int(cluster.num_gpus), PROGRAM, launcher, files, tuple(gaps.notes),
    )  # fmt: skip


def _check(gaps: Gaps, intent: Intent, version: str) -> None:
    stage, pp, replicas = intent["zero_stage"], intent["pp"], intent["dp_replicate"]
    dtype = intent.job.training.dtype
    gaps.choices_of_megatron()
    gaps.settings("compile", "dp_overlap")
    gaps.no_choice_of_overlap(("tp",))
    gaps.left_to_the_script()
    gaps.never(dtype in ("fp8", "fp4"), f"training in {dtype}")
    gaps.never(pp > 1 and stage > 1, f"zero_stage {stage} with pp > 1")
    gaps.never(intent["vpp"] > 1, "interleaved pipelines (vpp > 1)")
    gaps.never(intent["schedule"] != "1f1b", f"the pipeline schedule {intent['schedule']}")
    gaps.never(intent["cp"] > 1, "ring attention (cp > 1)")
    gaps.never(intent["tp"] > 1 and stage == 3, "zero_stage 3 with tp > 1")
    new = version_key(version) >= version_key("0.19")
    gaps.never(replicas > 1 and (new or stage != 3), f"dp_replicate {replicas} with zero_stage {stage}")  # MiCS is gone
    gaps.never(intent["ep"] > 1 and not new, "experts over ranks (ep > 1)")  # but by a script's own MoE layers
    gaps.never(intent["ep"] > 1 and intent["tp"] > 1 and pp > 1, "ep > 1 with tp > 1 and pp > 1")
    gaps.never(intent["recompute_num_layers"], "full recompute of some layers")
    gaps.never(not intent.even and pp > 1, f"the stage_layers {';'.join(map(str, intent.chunk_layers))}")
    gaps.never(intent["offload"] == "optimizer" and stage == 0, "offload of an optimizer that is not sharded")
    gaps.never(intent["offload"] == "activations" and intent["recompute"] != "full",
               "offload of activations without full recompute")  # fmt: skip
    gaps.never(intent.model.is_moe and intent["etp"] > 1 and intent["tp"] > 1, f"etp {intent['etp']}")


def _config(intent: Intent) -> dict[str, Any]:
    """The JSON; ``train_batch_size`` is the micro-batch times its accumulation times dp."""
    training = intent.job.training
    found: dict[str, Any] = {
        "train_batch_size": training.global_batch_size,
        "train_micro_batch_size_per_gpu": intent["micro_batch_size"],
        "gradient_accumulation_steps": intent.micro_batches,
        "steps_per_print": 10 if intent.is_training else 1,
        # pipelines print their time anyway, and 0.19's timers fail in their backward pass
        "wall_clock_breakdown": not intent.is_training and intent["pp"] == 1,
        "gradient_clipping": 1.0,
        "zero_optimization": _zero(intent),
    }
    if training.grad_reduce_dtype is not None:
        found["communication_data_type"] = training.grad_reduce_dtype
    if training.dtype == "bf16":
        found["bf16"] = {"enabled": True}
    elif training.dtype == "fp16":  # from 2^12 on, few iterations are skipped
        found["fp16"] = {"enabled": True, "initial_scale_power": 12}
    if intent["recompute"] == "full":
        found["activation_checkpointing"] = {"cpu_checkpointing": intent["offload"] == "activations"}
    if intent["pp"] > 1:
        every = {"activation_checkpoint_interval": 1} if intent["recompute"] == "full" else {}
        found["pipeline"] = {"stages": intent["pp"], "partition": "uniform", **every}
    if intent["tp"] > 1:
        found["tensor_parallel"] = {"autotp_size": intent["tp"]}
    if intent["ep"] > 1:
        found["expert_parallel"] = {"enabled": True, "autoep_size": intent["ep"]}
    return found


def _zero(intent: Intent) -> dict[str, Any]:
    stage = intent["zero_stage"]
    found: dict[str, Any] = {"stage": stage}
    if stage:
        found |= {"overlap_comm": intent.hides("dp"), "contiguous_gradients": True}
    if intent["dp_replicate"] > 1:
        found["mics_shard_size"] = intent.shards
    if intent["offload"] == "optimizer":
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return found


def _words(intent: Intent) -> tuple[str, ...]:
    """Words of Megatron-DeepSpeed for the columns that the JSON has no key for."""
    selective = ("--recompute-granularity", "selective") if intent["recompute"] == "selective" else ()
    return (*selective, *(("--sequence-parallel",) if intent["sequence_parallel"] else ()))


# DeepSpeed's JSON and the config that its log lists, Accelerate's YAML, and the words of Hugging Face trainers.


_OF_PLUGIN = {
    "tp_degree": "tensor_model_parallel_size", "pp_degree": "pipeline_model_parallel_size",
    "sequence_parallelism": "sequence_parallel",
}  # fmt: skip
_LISTED = re.compile(r"\s*(\w+) \.{2,} ?(.*)")


def is_deepspeed(config: Mapping[str, Any]) -> bool:
    """Whether a parsed JSON is a config of DeepSpeed."""
    return bool({"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"} & config.keys())


def config_settings(config: Mapping[str, Any]) -> FileSettings:
    """The statements of a DeepSpeed JSON; values of "auto" are not stated."""
    return config_taken_by(programs()["deepspeed"], config, {})


def log_settings(text: str) -> FileSettings:
    """The statements of the config that DeepSpeed prints at its start, and the log itself."""
    raw = "\n".join(line.text for line in lines_of(text))
    settings = FileSettings("DeepSpeed log", "deepspeed")
    if found := re.search(r"\bjson = (?=\{)", raw):
        with contextlib.suppress(ValueError):  # cut off, or with other lines in it
            settings = config_settings(json.JSONDecoder().raw_decode(raw, found.end())[0])
    settings.format, settings.log = "DeepSpeed log", text
    listed = (re.search(r"config\.py:\d+:print\] +(.*)", line) for line in raw.splitlines())
    values = {pair[1]: pair[2] for line in listed if line and (pair := _LISTED.match(line[1]))}
    settings.cluster |= stated(num_gpus=whole_number(values.get("world_size")))
    settings.training.setdefault("global_batch_size", whole_number(values.get("train_batch_size")))
    return settings


def plugin_settings(values: Mapping[str, Any]) -> FileSettings:
    """The plan of Accelerate's plugin for Megatron-LM, by Megatron's own names, which differ in three."""
    names = {name: name.removeprefix("megatron_lm_") for name in values}
    options = Options({_OF_PLUGIN.get(name, name): values[key] for key, name in names.items()})
    plan = {key: value for key, value in megatron.plan_of(options).items() if key != "micro_batch_size"}
    return FileSettings("", plan=plan, rest=megatron.chunks_of(options))


def trainer_settings(pairs: Mapping[str, Any], form: str, table: str = "words") -> FileSettings:
    """The statements of the words of a trainer by its table: model, batch of a device, length, precision."""
    settings = config_taken_by(programs()[table], pairs, {"deepspeed": config_settings})
    settings.format, settings.model = form, with_facts(settings.model, facts_in(pairs, "words"))
    settings.program = "" if table == "words" else settings.program
    return settings
