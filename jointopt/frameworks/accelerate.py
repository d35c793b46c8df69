"""Accelerate: the YAML of ``accelerate launch``, with FSDP 2, the Megatron-LM plugin, or plain data parallelism.

Sources: accelerate/commands/config/config_args.py and commands/launch.py of 1.15.
"""

from __future__ import annotations

from typing import Any

from jointopt.core.quote import yaml_text
from jointopt.frameworks.intent import PROGRAM, Export, Gaps, Intent, model_files, script_words

NAME, FILE = "accelerate", "accelerate.yaml"


def export(intent: Intent, version: str) -> Export:
    """The YAML and the words after ``accelerate launch``; the script of the training is one's own."""
    gaps = Gaps(f"Accelerate {version}", intent)
    dtype, cluster = intent.job.training.dtype, intent.job.cluster
    gaps.choices_of_megatron()
    gaps.settings("compile")
    gaps.no_choice_of_overlap()
    gaps.never(dtype == "fp4", f"training in {dtype}")
    gaps.no_recipe_but(("delayed",))  # Transformer Engine's default there
    gaps.never(intent["schedule"] != "1f1b", f"the pipeline schedule {intent['schedule']}")
    gaps.never(intent["recompute_modules"], f"recompute of {intent['recompute_modules']}")
    if _by_megatron(intent):
        gaps.no_adapters()
        parallel = _megatron(gaps, intent)
    elif intent["zero_stage"] or intent["cp"] > 1:
        parallel = _fsdp(gaps, intent)
    else:
        gaps.never(intent["recompute"] != "none", "recompute without FSDP or Megatron-LM")
        gaps.never(intent["offload"] != "none", f"offload of the {intent['offload']}")
        parallel = {"distributed_type": "MULTI_GPU"}
    config = {
        "compute_environment": "LOCAL_MACHINE", **parallel,
        "mixed_precision": "no" if dtype == "fp32" else dtype, "num_machines": cluster.nodes,
        "num_processes": int(cluster.num_gpus), "main_training_function": "main", "rdzv_backend": "static",
        "same_network": True, "use_cpu": False,
    }  # fmt: skip
    gaps.left_to_the_script()
    size = intent["micro_batch_size"]
    gaps.notes.append(f"{PROGRAM} is your script, with {size} sequence{'s' * (size != 1)} in a batch of a rank.")
    several = ("--machine_rank", "$NODE_RANK", "--main_process_ip", "$MASTER_ADDR", "--main_process_port", "29500")
    launcher = ("accelerate", "launch", "--config_file", FILE, *(several if cluster.nodes > 1 else ()),
                "--gradient_accumulation_steps", str(intent.micro_batches))  # fmt: skip
    return Export(
        NAME, version, script_words(intent), {}, int(cluster.num_gpus), PROGRAM, launcher,
        {FILE: yaml_text(config)} | model_files(intent), tuple(gaps.notes),
    )  # fmt: skip


def _by_megatron(intent: Intent) -> bool:
    """Whether only the plugin has it: pipelines, experts over ranks, ZeRO-1, Megatron's tensor parallelism."""
    return bool(
        intent["pp"] > 1 or intent["ep"] > 1 or intent["zero_stage"] == 1 or intent["sequence_parallel"]
        or (intent["tp"] > 1 and intent["zero_stage"] == 0)
    )  # fmt: skip


def _fsdp(gaps: Gaps, intent: Intent) -> dict[str, Any]:
    """FSDP 2: ZeRO-3 reshards weights after the forward pass, ZeRO-2 keeps them."""
    recompute, offload = intent["recompute"], intent["offload"]
    gaps.never(intent["zero_stage"] == 0, "zero_stage 0 with cp > 1")
    gaps.never(recompute == "selective" or intent["recompute_num_layers"], f"recompute {recompute} of some layers")
    gaps.never(offload == "optimizer", "offload of the optimizer alone")
    gaps.never(offload == "activations" and recompute != "full", "offload of activations without full recompute")
    gaps.never(intent.model.is_moe and intent["tp"] > 1, "tensor parallelism of experts")
    degrees = {
        "dp_replicate_size": intent["dp_replicate"], "dp_shard_size": intent["dp"] // intent["dp_replicate"],
        "tp_size": intent["tp"], "cp_size": intent["cp"],
    }  # fmt: skip
    return {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2, "fsdp_reshard_after_forward": intent["zero_stage"] == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_activation_checkpointing": recompute == "full", "fsdp_offload_params": False,
            "fsdp_activation_checkpointing_offload": offload == "activations",
        },
        "parallelism_config": {f"parallelism_config_{name}": degree for name, degree in degrees.items()},
    }  # fmt: skip


def _megatron(gaps: Gaps, intent: Intent) -> dict[str, Any]:
    """The Megatron-LM plugin, which splits layers evenly but for the last stage."""
    recompute, split = intent["recompute"], intent.chunk_layers
    first, last = set(split[:-1]), split[-1]
    gaps.never(intent["vpp"] > 1, "interleaved pipelines (vpp > 1)")
    gaps.never(len(first) > 1, f"the stage_layers {';'.join(map(str, split))}")
    gaps.never(intent["zero_stage"] > 1, f"zero_stage {intent['zero_stage']} with Megatron-LM")
    gaps.never(intent["dp_replicate"] > 1, "dp_replicate with Megatron-LM")
    gaps.never(intent["offload"] == "activations", "offload of activations with Megatron-LM")
    offloaded, layers = intent["offload"] == "optimizer", intent["recompute_num_layers"]
    backend = intent.job.training.attention
    values: dict[str, Any] = {
        "tp_degree": intent["tp"], "pp_degree": intent["pp"], "num_micro_batches": intent.micro_batches,
        "context_parallel_size": intent["cp"], "expert_model_parallel_size": intent["ep"],
        "expert_tensor_parallel_size": intent["etp"] if intent.model.is_moe else None,
        "sequence_parallelism": bool(intent["sequence_parallel"]),
        "use_distributed_optimizer": intent["zero_stage"] == 1, "gradient_clipping": 1.0,
        "recompute_activations": recompute != "none",
        "recompute_granularity": None if recompute == "none" else recompute,
        "recompute_method": ("block" if layers else "uniform") if recompute == "full" else None,
        "recompute_num_layers": (layers or 1) if recompute == "full" else None,
        "attention_backend": backend if backend in ("unfused", "fused") else "flash",
        "decoder_last_pipeline_num_layers": last if {last} != first and intent["pp"] > 1 else None,
        "optimizer_cpu_offload": True if offloaded else None,
        "use_precision_aware_optimizer": True if offloaded else None,
    }  # fmt: skip
    config = {f"megatron_lm_{name}": value for name, value in values.items() if value is not None}
    return {"distributed_type": "MEGATRON_LM", "megatron_lm_config": config}
