"""Columns by the names that other programs and people give them, and the units that such names state."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

TIME = "iteration_time_s"
# Names in configs of Megatron-LM, Hugging Face, DeepSpeed and torchtitan, and what tables often call these.
_ELSEWHERE = {
    name: column for column, names in {
        "dp": "data_parallel data_parallel_size dp_size", "cp": "context_parallel context_parallel_size cp_size",
        "tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size tp_size",
        "pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size pp_size",
        "ep": "expert_parallel expert_parallel_size expert_model_parallel_size ep_size",
        "etp": "expert_tensor_parallel_size",
        "vpp": "virtual_pipeline virtual_pipeline_model_parallel_size virtual_pipeline_parallel_size vp_size",
        "micro_batch_size": "mbs micro_batch microbatch_size per_device_train_batch_size",
        "global_batch_size": "gbs global_batch batch_size train_batch_size",
        "zero_stage": "zero zero_level", "recompute": "recompute_granularity activation_checkpointing rc",
        "sequence_parallel": "sp", "num_gpus": "gpus n_gpus world_size", "gpus_per_node": "ngpus_per_node",
        "num_layers": "layers n_layers n_layer num_hidden_layers", "hidden_size": "hidden d_model n_embd",
        "num_attention_heads": "heads n_heads n_head num_heads",
        "num_query_groups": "kv_heads num_kv_heads num_key_value_heads n_kv_heads",
        "ffn_hidden_size": "ffn intermediate_size ffn_size", "vocab_size": "vocab vocabulary",
        "seq_length": "seq_len sequence_length max_seq_length max_position_embeddings",
        "moe_router_topk": "experts_per_token num_experts_per_tok top_k topk",
        "num_experts": "experts n_experts num_local_experts n_routed_experts",
        "moe_ffn_hidden_size": "moe_intermediate_size",
        "iteration_time_s": "step_time step_time_s iteration_time iter_time time_s elapsed_time_per_iteration "
        "time_per_iteration time_per_step time_per_iter seconds_per_iteration seconds_per_step sec_per_iter "
        "sec_per_step s_per_it s_per_step s_per_iter iteration_latency step_latency",
        "avg_power_w": "power power_w average_power_w", "peak_memory_gib": "memory_gib max_memory_gib",
        "energy_j": "energy",
        "lora_dim": "lora_rank lora_r peft_dim",
        "lora_target_modules": "lora_targets lora_target target_modules lora_modules",
        "attention": "attn attention_kernel attention_backend attn_implementation attention_impl",
        "dtype": "mixed_precision compute_dtype data_type", "framework": "software library",
        "token_dispatcher": "moe_token_dispatcher_type moe_token_dispatcher",
        "cuda_graph": "cuda_graph_impl cuda_graphs", "gpu": "gpu_type gpu_name gpu_model accelerator",
    }.items() for name in names.split()
}  # fmt: skip
ALIKE = 0.8  # of two names of a column: step_time_s is no iteration_time_s, iteration_time_ms is
# What to do to a column in the unit that ends its name, by that of the column meant.
_UNITS = {
    "s": {"ms": "divide it by 1,000", "us": "divide it by 1,000,000", "min": "multiply it by 60",
          "h": "multiply it by 3,600"},
    "j": {"kj": "multiply it by 1,000", "mj": "multiply it by 1,000,000", "wh": "multiply it by 3,600",
          "kwh": "multiply it by 3,600,000"},
    "w": {"kw": "multiply it by 1,000", "mw": "divide it by 1,000"},
    "gib": {"gb": "multiply it by 0.9313", "mib": "divide it by 1,024", "mb": "divide it by 1,074",
            "bytes": "divide it by 1,073,741,824"},
    "mhz": {"ghz": "multiply it by 1,000"},
}  # fmt: skip
_SPELLED = {"msec": "ms", "millis": "ms", "milliseconds": "ms", "usec": "us", "microseconds": "us", "minutes": "min",
            "hours": "h", "sec": "s", "secs": "s", "seconds": "s"}  # fmt: skip


def meant(name: str, lacking: Iterable[str]) -> str:
    """The column of those ``lacking`` that a name nearly is, or that other programs call so; empty for none."""
    words, lacking = _words(name), set(lacking)
    bare = "_".join(words[:-1]) if _unit(words) else ""
    for spelled in ("_".join(words), bare):
        if spelled in _ELSEWHERE:
            return _ELSEWHERE[spelled] if _ELSEWHERE[spelled] in lacking else ""
    if within_node(name):
        return ""
    close = difflib.get_close_matches("_".join(words), sorted(lacking), n=1, cutoff=ALIKE)
    return close[0] if close else ""


def within_node(name: str) -> bool:
    """Whether a name is one of the links within a node, of which tables have no column."""
    words = _words(name)
    return bool({"intra", "intranode", "nvlink", "nvswitch"} & {*words})


def converted(name: str, column: str) -> str:
    """The change that makes cells of a column called ``name`` those of ``column``; blank where no other unit shows."""
    unit, wanted = _unit(_words(name)), column.rsplit("_", 1)[-1]
    return _UNITS.get(wanted, {}).get(unit, "")


def _words(name: str) -> list[str]:
    """The words of a name in lower case, its unit spelled shortly: ``Step Time (msec)`` is step, time, ms."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    return [*words[:-1], _SPELLED.get(words[-1], words[-1])] if words else []


def _unit(words: list[str]) -> str:
    """The unit that ends a name, empty for none."""
    known = {*_UNITS, *(unit for units in _UNITS.values() for unit in units)}
    return words[-1] if len(words) > 1 and words[-1] in known else ""
