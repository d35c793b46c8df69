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
from jointopt.frameworks.intent import PROGRAM, Export, Gaps, Intent, model_files, script_words
from jointopt.frameworks.logs import lines_of
from jointopt.frameworks.model_names import catalogue_name
from jointopt.frameworks.options import (
    Options,
    Taken,
    flags_of,
    flattened,
    precision_remarks,
    stated,
    version_key,
    whole_of,
)
from jointopt.jobs.framework import overlap_is_on
from jointopt.jobs.model_facts import facts_in, with_facts

NAME, FILE = "deepspeed", "ds_config.json"


def export(intent: Intent, version: str) -> Export:
    """``ds_config.json`` and the launcher's words; what DeepSpeed leaves to the script's code is in the notes."""
    gaps = Gaps(f"DeepSpeed {version}", intent)
    _check(gaps, intent, version)
    cluster = intent.job.cluster
    launcher = ("deepspeed", "--num_nodes", str(cluster.nodes), "--num_gpus", str(cluster.gpus_per_node))
    gaps.notes += _left_to_the_script(intent)
    words = ("--deepspeed", "--deepspeed_config", FILE, *script_words(intent), *_words(intent))
    files = {FILE: json.dumps(_config(intent), indent=2) + "\n"} | model_files(intent)
    return Export(
        NAME, version, words, {}, int(cluster.num_gpus), PROGRAM, launcher, files, tuple(gaps.notes),
    )  # fmt: skip


def _check(gaps: Gaps, intent: Intent, version: str) -> None:
    stage, pp, replicas = intent["zero_stage"], intent["pp"], intent["dp_replicate"]
    dtype = intent.job.training.dtype
    gaps.choices_of_megatron()
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
        hidden = overlap_is_on(intent.job.training.framework, "dp", intent["overlap"])
        found |= {"overlap_comm": hidden, "contiguous_gradients": True}
    if intent["dp_replicate"] > 1:
        found["mics_shard_size"] = intent.shards
    if intent["offload"] == "optimizer":
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return found


def _words(intent: Intent) -> tuple[str, ...]:
    """Words of Megatron-DeepSpeed for the columns that the JSON has no key for."""
    selective = ("--recompute-granularity", "selective") if intent["recompute"] == "selective" else ()
    return (*selective, *(("--sequence-parallel",) if intent["sequence_parallel"] else ()))


def _left_to_the_script(intent: Intent) -> list[str]:
    notes = [f"{PROGRAM} is your script: DeepSpeed's file holds the plan, not the model."]
    if intent["pp"] > 1:
        notes.append(f"The script builds PipelineModule(layers, num_stages={intent['pp']}, "
                     "partition_method='uniform').")  # fmt: skip
    if intent["recompute"] == "selective" or (intent["recompute"] == "full" and intent["pp"] == 1):
        notes.append(f"The script recomputes activations ({intent['recompute']}), such as by "
                     "model.gradient_checkpointing_enable().")  # fmt: skip
    if intent["sequence_parallel"]:
        notes.append("The script's layers cut the sequence (--sequence-parallel): AutoTP's own do not.")
    return notes


# DeepSpeed's JSON and the config that its log lists, Accelerate's YAML, and the words of Hugging Face trainers.


_HARMLESS = re.compile(
    r"(?:optimizer|scheduler|steps_per_print|wall_clock|gradient_clipping|prescale|gradient_predivide|tensorboard|wandb"
    r"|csv_monitor|flops_profiler|comms_logger|dump_state|zero_allow|zero_force|data_types|communication_data|checkpoint"
    r"|amp|monitor|data_efficiency|curriculum|autotuning|memory_breakdown|torch_adam|seed|timers)"
    r"|(?:bf16|fp16)\.|zero_optimization\.(?:allgather|reduce|overlap|contiguous|sub_group|stage3_|round_robin|load"
    r"|elastic|ignore|offload_optimizer\.(?:pin|buffer|fast|ratio|nvme)|legacy|memory_eff|use_multi_rank|zero_quant)"
    r"|activation_checkpointing|pipeline\.(?!stages)"
)
_ACCELERATE_HARMLESS = re.compile(
    r"(?:compute_environment|debug|downcast_bf16|machine_rank|main_|rdzv|same_network|tpu|use_cpu|enable_cpu|dynamo|mpirun"
    r"|gpu_ids|deepspeed_config\.(?:deepspeed_(?:multinode|hostfile|config)|gradient_clipping|zero3)|fsdp_config\.fsdp_"
    r"(?:auto|back|cpu|forward|state|sync|use_orig|transformer|min_num)|megatron_lm_config\.megatron_lm_gradient)"
)
_WORDS_HARMLESS = re.compile(
    r"(?:output|learning|lr_|weight_decay|warmup|num_train|max_steps|logging|save|eval|report|seed|dataset|data_|train_file"
    r"|validation|tokenizer|use_fast|overwrite|do_|num_workers|preprocessing|dataloader|ddp_|push|run_name|deepspeed"
    r"|local_rank|gradient_clip|adam|optim|torch_dtype|tf32|project|checkpoint|trust|lora|packing|use_auth|config_name)"
)
# options that change an iteration's time and have no column
_MATTER = (
    "zero_optimization.overlap_comm",
    "zero_optimization.contiguous_gradients",
    "wall_clock_breakdown",
    "communication_data_type",
    "compile.deepcompile",
    "zero_optimization.round_robin_gradients",
)
_SHARDING = {
    "full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0, "hybrid_shard": 3, "4": 3,
    "hybrid_shard_zero2": 2, "5": 2,
}  # fmt: skip
_OF_PLUGIN = {
    "tp_degree": "tensor_model_parallel_size", "pp_degree": "pipeline_model_parallel_size",
    "sequence_parallelism": "sequence_parallel",
}  # fmt: skip
_LISTED = re.compile(r"\s*(\w+) \.{2,} ?(.*)")


def is_deepspeed(config: Mapping[str, Any]) -> bool:
    """Whether a parsed JSON is a config of DeepSpeed."""
    return bool({"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"} & config.keys())


def is_accelerate(config: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping is a config of Accelerate."""
    return "distributed_type" in config or "compute_environment" in config


def config_taken(config: Mapping[str, Any]) -> Taken:
    """The statements of a DeepSpeed JSON; values of "auto" are not stated."""
    options = Options({name: value for name, value in flattened(config).items() if value != "auto"})
    flags = flags_of({name: options.take(name) for name in _MATTER})
    steps = options.whole("gradient_accumulation_steps")
    tp = options.whole("tensor_parallel.autotp_size", "tensor_parallel.tp_size", "autotp_size")
    taken = Taken(
        "DeepSpeed config", "deepspeed", accumulation=steps, flags=flags,
        training=stated(global_batch_size=options.whole("train_batch_size"), dtype=_dtype(options)),
        plan=stated(
            micro_batch_size=options.whole("train_micro_batch_size_per_gpu"), tp=tp,
            zero_stage=options.whole("zero_optimization.stage") or 0, pp=options.whole("pipeline.stages"),
            offload=_offload(options.word("zero_optimization.offload_optimizer.device")), **_experts(options),
            overlap="none" if options.flag("zero_optimization.overlap_comm") is False else None,
        ),
    )  # fmt: skip
    if options.whole("pipeline.activation_checkpoint_interval") or config.get("activation_checkpointing"):
        taken.plan["recompute"] = "full"
        taken.plan |= {"offload": "activations"} if options.flag("activation_checkpointing.cpu_checkpointing") else {}
        taken.remarks = ("activation_checkpointing is configured, and recompute=full taken for it",)
    shards = options.whole("zero_optimization.mics_shard_size")
    taken.rest = lambda plan, _: {
        "sequence_parallel": False, "etp": 1, **({"dp_replicate": max(plan["dp"] // shards, 1)} if shards else {})
    }  # fmt: skip
    taken.unread, taken.without_effect = options.left(_HARMLESS)
    return taken


def _experts(options: Options) -> dict[str, int]:
    """Degrees of AutoEP, which cuts no expert."""
    size = options.whole("expert_parallel.autoep_size") if options.flag("expert_parallel.enabled") else None
    return {"ep": size, "etp": options.whole("expert_parallel.expert_tensor_parallel_size") or 1} if size else {}


def _dtype(options: Options) -> str | None:
    if options.flag("bf16.enabled", "bfloat16.enabled"):
        return "bf16"
    if options.flag("fp16.enabled"):
        return "fp16"
    return "fp32" if options.flag("bf16.enabled", "fp16.enabled") is False else None


def _offload(device: str) -> str | None:
    return "optimizer" if device in ("cpu", "nvme") else None


def log_taken(text: str) -> Taken:
    """The statements of the config that DeepSpeed prints at its start, and the log itself."""
    raw = "\n".join(line.text for line in lines_of(text))
    taken = Taken("DeepSpeed log", "deepspeed")
    if found := re.search(r"\bjson = (?=\{)", raw):
        with contextlib.suppress(ValueError):  # cut off, or with other lines in it
            taken = config_taken(json.JSONDecoder().raw_decode(raw, found.end())[0])
    taken.format, taken.log = "DeepSpeed log", text
    listed = (re.search(r"config\.py:\d+:print\] +(.*)", line) for line in raw.splitlines())
    values = {pair[1]: pair[2] for line in listed if line and (pair := _LISTED.match(line[1]))}
    taken.cluster |= stated(num_gpus=whole_of(values.get("world_size")))
    taken.training.setdefault("global_batch_size", whole_of(values.get("train_batch_size")))
    return taken


def accelerate_taken(config: Mapping[str, Any]) -> Taken:
    """The statements of a config of Accelerate: FSDP, DeepSpeed or Megatron-LM, and the machines."""
    options = Options(flattened(config))
    kind = options.word("distributed_type")
    machines = options.whole("num_machines") or 1
    processes = options.whole("num_processes")
    by_kind = {"fsdp": _fsdp, "deepspeed": _by_deepspeed, "megatron_lm": _by_megatron}
    plan = by_kind.get(kind, _nothing)(options, machines)
    plan |= stated(
        tp=_degree(options, "tp"), cp=_degree(options, "cp"), dp_replicate=_degree(options, "dp_replicate"),
    )  # fmt: skip
    frameworks = {"fsdp": "fsdp", "deepspeed": "deepspeed", "megatron_lm": "megatron-lm"}
    stated_precision = options.word("mixed_precision")
    wrong = precision_remarks("mixed_precision", stated_precision)
    precision = "" if wrong else {"no": "fp32"}.get(stated_precision, stated_precision)
    shards = _degree(options, "dp_shard")
    taken = Taken(
        "Accelerate config", frameworks.get(kind, "generic"), plan=plan, training=stated(dtype=precision or None),
        cluster=stated(
            num_gpus=processes, nodes=machines, gpus_per_node=processes // machines if processes else None
        ),
        accumulation=options.whole("deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps",
                                    "megatron_lm_config.megatron_lm_num_micro_batches"),
        remarks=wrong,
    )  # fmt: skip
    if kind == "megatron_lm":
        taken.rest = megatron.chunks_of(_of_plugin(options))
    if shards and shards > 0:
        taken.plan["dp"] = shards * (taken.plan.get("dp_replicate") or 1)
    weights = options.word("deepspeed_config.offload_param_device")
    if options.flag("fsdp_config.fsdp_offload_params") or weights in ("cpu", "nvme"):
        taken.remarks = ("weights lie in host memory too, which no plan says; that is left out",)
    taken.unread, taken.without_effect = options.left(_ACCELERATE_HARMLESS)
    return taken


def _degree(options: Options, name: str) -> int | None:
    return options.whole(f"parallelism_config.parallelism_config_{name}_size", f"parallelism_config.{name}_size")


def _nothing(options: Options, machines: int) -> dict[str, Any]:
    return {"zero_stage": 0}


def _fsdp(options: Options, machines: int) -> dict[str, Any]:
    options.whole("fsdp_config.fsdp_version")
    sharding = options.word("fsdp_config.fsdp_sharding_strategy")
    reshard = options.word("fsdp_config.fsdp_reshard_after_forward")
    stage = _SHARDING.get(sharding) if sharding else _SHARDING.get(reshard, 2 if reshard == "false" else 3)
    hybrid = sharding.startswith("hybrid") or sharding in ("4", "5")
    plan = stated(zero_stage=stage, dp_replicate=machines if hybrid and machines > 1 else None, sequence_parallel=False)
    plan |= {"offload": "activations"} if options.flag("fsdp_config.fsdp_activation_checkpointing_offload") else {}
    return plan | {"recompute": "full" if options.flag("fsdp_config.fsdp_activation_checkpointing") else "none"}


def _by_deepspeed(options: Options, machines: int) -> dict[str, Any]:
    stage = options.whole("deepspeed_config.zero_stage")
    device = options.word("deepspeed_config.offload_optimizer_device")
    return stated(zero_stage=stage, offload=_offload(device))


def _by_megatron(options: Options, machines: int) -> dict[str, Any]:
    plan = megatron.plan_of(_of_plugin(options))
    return {key: value for key, value in plan.items() if key != "micro_batch_size"}


def _of_plugin(options: Options) -> Options:
    """The options of Accelerate's plugin under Megatron's own names, which differ in three."""
    place = "megatron_lm_config.megatron_lm_"
    named = {name: name.removeprefix(place) for name in options.names(place)}
    return Options({_OF_PLUGIN.get(inner, inner): options.take(name) for name, inner in named.items()})


def trainer_taken(pairs: Mapping[str, Any], form: str) -> Taken:
    """The statements of the words of a Hugging Face trainer: model, batch of a device, length, precision."""
    options = Options(pairs)
    name = catalogue_name(str(options.take("model_name_or_path", "model_name", "model") or ""))
    recomputes, granularity = options.take("gradient_checkpointing"), options.word("recompute_granularity") or None
    recompute = "full" if options.flag("gradient_checkpointing") else "none"
    taken = Taken(
        form, model={"catalogue": name} if name else {},
        accumulation=options.whole("gradient_accumulation_steps"),
        training=stated(
            seq_length=options.whole("max_seq_length", "max_seq_len", "model_max_length", "block_size", "cutoff_len",
                                     "seq_length", "max_length"),
            dtype="bf16" if options.flag("bf16") else "fp16" if options.flag("fp16") else None,
            attention={"flash_attention_2": "flash2", "eager": "unfused"}.get(options.word("attn_implementation")),
        ),
        plan=stated(
            micro_batch_size=options.whole("per_device_train_batch_size", "train_batch_size_per_gpu"),
            recompute=granularity if recomputes is None else recompute,
            sequence_parallel=options.flag("sequence_parallel"),
        ),
    )  # fmt: skip
    taken.model = with_facts(taken.model, facts_in(pairs, "words"))
    options.flag("flash_attn", "use_flash_attention")
    taken.unread, taken.without_effect = options.left(_WORDS_HARMLESS)
    return taken
