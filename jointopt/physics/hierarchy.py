"""Dynamic energy of a plan's kernels by level of the memory hierarchy: an attribution, which nothing reads.

The model has one price for an operation and one for a byte of device memory, each with all that moves with it. Here
they are shared out by published ratios between levels and by counted traffic; no total changes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats
from jointopt.physics.breakdown import Breakdown
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import stage_costs

LEVELS = ("arithmetic", "registers", "l2", "memory_read", "memory_written")
# pJ/bit of a K40, measured (GPUJoule: Arunkumar et al., HPCA'19): device memory to L2, and L2 to L1. With the
# catalogue's 60 pJ/byte for both, memory itself takes 5.0 pJ/bit; HBM2 has 3.9 (O'Connor et al., MICRO'17)
_TO_L2, _FROM_L2 = 30.55, 15.48
_L2_SHARE = _FROM_L2 / (_TO_L2 + _FROM_L2)
# Instruction fetch, decode and operand reads add 22 % to a tensor-core instruction (HMMA; Dally, Hot Chips 2023)
_REGISTER_SHARE = 0.22 / 1.22
_TILE = (128.0, 256.0)  # of results at a time, whose operands come from L2: NVIDIA's guide to matrix products
# Of bytes that are no operand and no result of a product: a norm reads one stream for each written, a residual two
_STREAMS_WRITTEN = 0.4
_STEP_WRITTEN = 0.5  # Adam reads gradients, master weights, moments, and writes weights, master weights, moments


def energy_by_level(physics: CostModel, index: int, parts: Breakdown) -> dict[str, Floats]:
    """Joules (pp,) of all GPUs of each stage by level; they add up to the parts compute and memory of ``parts``.

    ``registers`` has instructions too; ``l2`` what caches pass on, be it from memory or again to the next tile.
    """
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    costs, k, kernels = physics.groups[g], physics.power, physics.hardware.kernels
    compute_j, memory_j = (parts.stage_energy_parts_j[name] for name in ("compute", "memory"))
    batches, step = float(costs.num_micro_batches[row]), costs.iteration_hbm_bytes[row]
    operands, results, streams = _traffic(physics, index)
    written = batches * (results + _STREAMS_WRITTEN * streams) + _STEP_WRITTEN * step
    whole = batches * costs.hbm_bytes[row] + step
    # every operation's operands, two of them for two operations, from tiles; what comes from memory passes L2 anyway
    per_flop = kernels.gemm.dtype_bytes[kernels.dtype] * sum(1.0 / side for side in _TILE) / 2.0
    flops = costs.flops[row] / kernels.flop_energy
    again = np.maximum(per_flop * flops - operands, 0.0) * k.pj_per_hbm_byte * _L2_SHARE
    tiles_j = compute_j * np.minimum(_share(again, k.pj_per_flop * costs.flops[row]), 1.0)
    device_j, stored = (1.0 - _L2_SHARE) * memory_j, _share(written, whole)
    out = {
        "arithmetic": (1.0 - _REGISTER_SHARE) * (compute_j - tiles_j),
        "registers": _REGISTER_SHARE * (compute_j - tiles_j),
        "l2": tiles_j + _L2_SHARE * memory_j, "memory_read": device_j * (1.0 - stored),
        "memory_written": device_j * stored,
    }  # fmt: skip
    return {name: np.asarray(out[name]) for name in LEVELS}


def product_share(physics: CostModel, index: int) -> Floats:
    """Share (pp,) of the bytes of device memory of an iteration that are operands or results of products."""
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    costs = physics.groups[g]
    operands, results, _ = _traffic(physics, index)
    batches = float(costs.num_micro_batches[row])
    return _share(batches * (operands + results), batches * costs.hbm_bytes[row] + costs.iteration_hbm_bytes[row])


def _share(part: Floats, whole: Floats) -> Floats:
    """Part over whole, and 0 of nothing: a stage may have no layers."""
    return np.asarray(part / np.where(whole == 0.0, 1.0, whole))


def _traffic(physics: CostModel, index: int) -> tuple[Floats, Floats, Floats]:
    """Bytes (pp,) of one micro-batch: operands of products, their results, and everything else.

    Derived here: the same stages priced with operands of 0, 2 and 4 bytes, results being as wide but never below 2.
    """
    layout = {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS}
    none, two, four = (_bytes(physics, layout, width) for width in (0.0, 2.0, 4.0))
    rest = two - (four - two)
    kernels = physics.hardware.kernels
    width = kernels.gemm.dtype_bytes[kernels.dtype]
    results, operands = (none - rest) * max(width, 2.0) / 2.0, (two - none) * width / 2.0
    whole = physics.groups[int(physics.group_of[index])].hbm_bytes[int(physics.row_of[index])]
    return operands, results, np.maximum(whole - operands - results, 0.0)


def _bytes(physics: CostModel, layout: Columns, width: float) -> Floats:
    """Bytes (pp,) of one micro-batch were elements of operands so wide, and none cast to fewer bits."""
    kernels = physics.hardware.kernels
    gemm = replace(kernels.gemm, dtype_bytes=dict.fromkeys(kernels.gemm.dtype_bytes, width))
    hardware = replace(physics.hardware, kernels=replace(kernels, gemm=gemm, dtype=kernels.wide_dtype))
    return np.asarray(stage_costs(physics.job, hardware, layout).hbm_bytes[0])
