"""A machine with round constants, so that a test can work out in plain arithmetic what a plan takes on it.

Three kinds of GPU: on one only flops take time, on one only bytes, on one only launches of kernels. Its collectives
have one protocol per kind, each kind with its own latency and bandwidth, so that no kind passes for another.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from jointopt.core.schema import Columns
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.frameworks import with_settings
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import attention_constants, training_factor
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import SETTINGS, Job, Search, Training
from jointopt.jobs.kernels import (
    CollectiveConstants,
    GemmConstants,
    KernelConstants,
    NetworkProtocol,
    Protocol,
    TileKind,
)
from jointopt.jobs.model import Model
from jointopt.physics.cost_model import CostModel
from jointopt.physics.makespan import time_parts
from jointopt.physics.stage_costs import StageCosts

SEQ, BATCHES = 2048, 8  # tokens of a sequence; micro-batches of an iteration unless a test states others
FLOPS_PER_S, HBM_BYTES_PER_S, LAUNCH_S = 1e15, 1e12, 1e-6
FASTER = 1e40  # a rate at which nothing takes time
TOP_MHZ = 1000.0
_TRAINING = (
    "dtype", "attention", "fused_norm", "seq_length", "token_dispatcher", "ep_overlap", "fp8_param_gather",
    "moe_load_imbalance", "moe_routing", "lora_dim", "lora_target_modules",
)  # fmt: skip
LATENCY_S = {"all_reduce": 10e-6, "all_gather": 20e-6, "reduce_scatter": 30e-6, "all_to_all": 40e-6}
BUS = {"all_reduce": 200e9, "all_gather": 100e9, "reduce_scatter": 125e9, "all_to_all": 80e9}
MEMBER_S = 1e-6
START_S, LOCAL_HOP_S, FAR_HOP_S, WIRE_S = 50e-6, 2e-6, 5e-6, 7e-6
PEER_S, NIC, ACHIEVED = 3e-6, 10e9, 0.5

_A100 = load_gpu("a100-sxm4-80gb")
IN_TRAINING = training_factor(_A100)  # time of products in a training step over that of the same ones alone
FLASH = attention_constants(_A100, "flash2")

# 4 layers; a layer has 1024·64·(16 + 2·4) + 1024·1024 weights in attention, 3·1024·4096 in its MLP, two norms
DENSE = Model("dense", 4, 1024, 4096, 16, 4, 32000, 64)
MOE = replace(DENSE, num_experts=16, moe_router_topk=2, moe_ffn_hidden_size=512)
LATENT = replace(DENSE, q_lora_rank=384, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=48)
ATTENTION_WEIGHTS = 1024 * 64 * (16 + 2 * 4) + 1024 * 1024
LAYER_WEIGHTS = ATTENTION_WEIGHTS + 3 * 1024 * 4096 + 2 * 1024
# outputs and inputs of its matrices
LAYER_SHAPES = ((64 * (16 + 2 * 4), 1024), (1024, 1024), (2 * 4096, 1024), (1024, 4096))
STREAM = 2 * SEQ * 1024  # bytes of one sequence's 16-bit activations
TABLE_WEIGHTS = 32000 * 1024


def gpu_constants(
    flops_per_s: float = FASTER, hbm_bytes_per_s: float = FASTER, launch_s: float = 0.0
) -> KernelConstants:
    """A GPU on which only what is named takes time; products reach 0.8 of the memory's rate."""
    factors = {"bf16": 1.0, "fp16": 1.0, "fp8": 0.5, "fp4": 0.25, "fp32": 8.0}
    sizes = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5, "fp32": 4.0}
    gemm = GemmConstants(
        flops_per_s, hbm_bytes_per_s, 1, launch_s, 0.0, (TileKind(1, 1, 1.0),), 0.0, 1.0, 0.8, None, 1.0, 0.0,
        factors, sizes,
    )  # fmt: skip
    return KernelConstants(gemm, collective_constants())


def collective_constants() -> CollectiveConstants:
    """One protocol per kind; trees start so late that rings are taken."""
    inside = {kind: (Protocol(LATENCY_S[kind], MEMBER_S, (BUS[kind],) * 3),) for kind in BUS}
    ring = (NetworkProtocol(START_S, LOCAL_HOP_S, FAR_HOP_S, 1.0),)
    return CollectiveConstants(inside, 300e9, ring, (NetworkProtocol(1e3, 0.0, 0.0, 1.0),), PEER_S, ACHIEVED)


COMPUTING = gpu_constants(flops_per_s=FLOPS_PER_S)
MOVING = gpu_constants(hbm_bytes_per_s=HBM_BYTES_PER_S)
LAUNCHING = gpu_constants(launch_s=LAUNCH_S)
NOTHING_COMPUTES = gpu_constants()


def inside_s(kind: str, size_bytes: float, members: int) -> float:
    """One collective inside a node: a latency and a ring's bytes over the bus bandwidth."""
    sent = (2 if kind == "all_reduce" else 1) * (members - 1) / members * size_bytes
    return LATENCY_S[kind] + (members - 2) * MEMBER_S + sent / BUS[kind]


def products_s(weights: float, tokens: float = SEQ) -> float:
    """Forward pass of matrices: two flops per weight and token."""
    return 2 * tokens * weights / FLOPS_PER_S * IN_TRAINING


def streamed_s(size_bytes: float) -> float:
    """Kernels that only move bytes reach 0.85 of the memory's rate."""
    return size_bytes / (0.85 * HBM_BYTES_PER_S)


def operands_s(*shapes: tuple[float, float], tokens: float = SEQ, count: float = 1) -> float:
    """Products forward, bound by memory at 0.8 of its rate: 16-bit inputs, weights and outputs."""
    moved = sum(2 * (tokens * n + tokens * k + n * k) for n, k in shapes)
    return count * moved / (0.8 * HBM_BYTES_PER_S) * IN_TRAINING


def flash_s(flops: float, seq_length: float = SEQ, widths: float = 128) -> tuple[float, float]:
    """Causal attention core forward and backward, from the flops of its whole square of scores."""
    ramp = seq_length / (seq_length + FLASH.half_length) * min(1.0, widths / 256) ** 0.3
    half_s = flops / 2 / (FLOPS_PER_S * ramp) * IN_TRAINING
    return half_s / FLASH.forward, 2.5 * half_s / FLASH.backward


def across_s(kind: str, size_bytes: float, members: int, local: int, nic: float = NIC * ACHIEVED) -> float:
    """One ring through ``local`` NICs of each node: every hop in turn, then a ring's bytes over the NICs."""
    rounds, nodes = 2 if kind == "all_reduce" else 1, members // local
    hops_s = (members - nodes) * LOCAL_HOP_S + (nodes - 1) * (FAR_HOP_S + WIRE_S)
    return START_S + rounds * hops_s + rounds * (members - 1) / members * size_bytes / (local * nic)


def physics(
    model: Model = DENSE, machine: KernelConstants = COMPUTING, framework: dict[str, Any] | None = None,
    gpu: dict[str, Any] | None = None, batches: int = BATCHES, **cells: Any,
) -> CostModel:  # fmt: skip
    """One plan on nodes of 8 GPUs; cells of `Training` go to the training, all others to the plan."""
    training = {k: cells.pop(k) for k in _TRAINING if k in cells}
    plan = dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size"), 1)
    plan |= {"sequence_parallel": False, "recompute": 0, "zero_stage": 0} | cells
    gpus = math.prod(int(plan[name]) for name in ("dp", "tp", "pp", "cp"))
    cluster = build_cluster({"gpu": "a100-sxm4-80gb", "nodes": -(-gpus // 8), "gpus_per_node": 8})
    cool = PowerConstants(50.0, 50.0, 0.0, 0.0, 0.0, knee_fraction=0.5, voltage_ratio=1.2)
    made = replace(cluster.gpu, power=cool, clock_min_mhz=100.0, clock_max_mhz=TOP_MHZ, **(gpu or {}))
    cluster = replace(
        cluster, gpu=made, intra_node_gbytes_per_s=300.0, inter_node_gbytes_per_s=NIC / 1e9,
        inter_node_latency_us=WIRE_S * 1e6,
    )  # fmt: skip
    profile = Framework(**({"dp_overlap": 0.0, "cp_overlap": 0.0} | (framework or {})))
    profile = with_settings(profile, {k: v for k, v in training.items() if k in SETTINGS})
    settings: dict[str, Any] = {"seq_length": SEQ, "global_batch_size": batches * plan["dp"] * plan["micro_batch_size"]}
    job = Job(
        "hand", model, Training(**(settings | training), framework=profile), cluster, Search(clock_mhz=(TOP_MHZ,))
    )
    return CostModel(job, _columns(plan), machine)


def _columns(plan: dict[str, Any]) -> Columns:
    kinds: dict[str, Any] = {"sequence_parallel": bool, "recompute": np.int8}
    return {name: np.array([value]).astype(kinds.get(name, np.int64)) for name, value in plan.items()}


def seconds(clock_mhz: float = TOP_MHZ, **given: Any) -> dict[str, float]:
    """Time of the one plan by part, as `breakdown` shows it; arguments as of `physics`."""
    estimator, row = physics(**given), np.array([0])
    times = estimator.times(0, row, np.full((1, int(given.get("pp", 1))), clock_mhz))
    return {name: float(part[0]) for name, part in time_parts(estimator.groups[0], row, times).items()}


def stages(**given: Any) -> StageCosts:
    """Costs of the one plan's stages at the top clock, (1, pp) each; arguments as of `physics`."""
    return physics(**given).groups[0]


def passes_s(**given: Any) -> tuple[float, float]:
    """Exposed collectives of one micro-batch, forward and backward."""
    costs = stages(**given)
    return float(costs.forward_comm_s[0, 0]), float(costs.backward_comm_s[0, 0])


def layer_comm_s(**given: Any) -> tuple[float, float]:
    """Collectives of one of four layers, forward and backward, where nothing else takes time."""
    forward_s, backward_s = passes_s(machine=NOTHING_COMPUTES, **given)
    return forward_s / 4, backward_s / 4


def middle(**given: Any) -> dict[str, float]:
    """Costs of one layer alone: the middle stage of three has neither an embedding nor a head."""
    costs = stages(pp=3, **given | {"model": replace(given.get("model", DENSE), num_layers=3)})
    names = ("forward_sm_s", "forward_memory_s", "backward_sm_s", "backward_memory_s", "hbm_bytes", "flops")
    return {name: float(getattr(costs, name)[0, 1]) for name in names}
