"""Every column of a plan, a measurement and a prediction, once: dtype, unit, role, meaning.

Many plans are a ``Columns``: a dict of numpy arrays of equal length. Inside, ``recompute`` is an index into
`RECOMPUTE_NAMES` (int8) and ``stage_clock_mhz`` a float array of shape (n, max pp), NaN beyond pp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[Any]]

RECOMPUTE_CODES = {"none": 0, "selective": 1, "full": 2}
RECOMPUTE_NAMES = tuple(RECOMPUTE_CODES)
DTYPES = ("fp32", "fp16", "bf16", "fp8", "fp4")
ATTENTIONS = ("unfused", "fused", "flash1", "flash2", "flash3")
STATUSES = ("ok", "oom", "failed", "timeout")  # all but the first: the run did not finish


@dataclass(frozen=True)
class Column:
    name: str
    dtype: str  # int | float | bool | str | clocks
    unit: str
    role: str  # plan | workload | result
    meaning: str


LAYOUT_COLUMNS = (
    "dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "sequence_parallel", "recompute", "zero_stage",
)  # fmt: skip

COLUMNS = {
    c.name: c
    for c in (
        Column("dp", "int", "", "plan", "data-parallel degree"),
        Column("tp", "int", "", "plan", "tensor-parallel degree"),
        Column("pp", "int", "", "plan", "pipeline-parallel degree"),
        Column("cp", "int", "", "plan", "context-parallel degree"),
        Column("ep", "int", "", "plan", "expert-parallel degree, inside dp*cp; 1 for dense models"),
        Column("vpp", "int", "", "plan", "virtual pipeline stages per rank; 1 = plain 1F1B"),
        Column("micro_batch_size", "int", "sequences", "plan", "sequences per micro-batch"),
        Column("sequence_parallel", "bool", "", "plan", "Megatron sequence parallelism"),
        Column("recompute", "str", "", "plan", "none, selective or full"),
        Column("zero_stage", "int", "", "plan", "0..3; 1 = distributed optimizer, 3 = FSDP"),
        Column("stage_clock_mhz", "clocks", "MHz", "plan", "SM clock per pipeline stage"),
        Column("power_limit_w", "float", "W", "plan", "power limit per GPU"),
        Column("source", "str", "", "workload", "where the row came from"),
        Column("group", "str", "", "workload", "rows of one group are comparable"),
        Column("model", "str", "", "workload", "name of the model"),
        Column("num_layers", "int", "", "workload", "transformer layers"),
        Column("hidden_size", "int", "", "workload", "model width"),
        Column("ffn_hidden_size", "int", "", "workload", "MLP width"),
        Column("num_attention_heads", "int", "", "workload", "query heads"),
        Column("num_query_groups", "int", "", "workload", "KV heads"),
        Column("gated_mlp", "bool", "", "workload", "three MLP matrices instead of two"),
        Column("vocab_size", "int", "", "workload", "vocabulary"),
        Column("num_experts", "int", "", "workload", "routed experts per MoE layer; 0 = dense"),
        Column("moe_router_topk", "int", "", "workload", "experts per token"),
        Column("seq_length", "int", "tokens", "workload", "sequence length"),
        Column("global_batch_size", "int", "sequences", "workload", "sequences per iteration"),
        Column("dtype", "str", "", "workload", "fp32, fp16, bf16, fp8 or fp4"),
        Column("attention", "str", "", "workload", "attention kernel"),
        Column("fused_norm", "bool", "", "workload", "fused normalisation kernels"),
        Column("framework", "str", "", "workload", "training framework"),
        Column("gpu", "str", "", "workload", "catalogue id of the GPU"),
        Column("gpus_per_node", "int", "", "workload", "GPUs per node"),
        Column("num_gpus", "int", "", "workload", "GPUs of the job"),
        Column("status", "str", "", "result", "ok, oom, failed or timeout"),
        Column("iteration_time_s", "float", "s", "result", "wall time of one iteration"),
        Column("energy_j", "float", "J", "result", "energy of all GPUs for one iteration"),
        Column("avg_power_w", "float", "W", "result", "mean power per GPU"),
        Column("peak_power_w", "float", "W", "result", "highest power of any GPU"),
        Column("peak_memory_gib", "float", "GiB", "result", "memory of the worst GPU"),
        Column("temperature_c", "float", "°C", "result", "temperature of the hottest GPU"),
        Column("notes", "str", "", "result", "free text"),
    )
}
