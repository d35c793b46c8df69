"""DeepSpeed's JSON and the config that its log lists, Accelerate's YAML, and the words of Hugging Face trainers."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from jointopt.measure.imports import megatron
from jointopt.measure.imports.catalogue import catalogue_name
from jointopt.measure.imports.taken import Options, Taken, flags_of, flattened, precision_remarks, stated, whole_of
from jointopt.measure.logs.lines import lines_of

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
    options.flag("flash_attn", "use_flash_attention")
    taken.unread, taken.without_effect = options.left(_WORDS_HARMLESS)
    return taken
