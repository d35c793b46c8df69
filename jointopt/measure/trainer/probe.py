"""How fast this machine computes, moves memory and talks: a program for torchrun, one process per GPU or core.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m jointopt.measure.trainer.probe result.json
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jointopt.measure.trainer.device import device_name, leave, now_s, own_device

_SECONDS = 0.5  # that each measurement lasts at least, after one call to warm up


def probe() -> dict[str, Any]:
    """Speeds of one device: TFLOP/s of matrix products, GB/s of memory, GB/s of a ring all-reduce per direction.

    All processes measure at once, as a training does; the slowest counts. A ring moves 2 (n - 1) / n of the buffer
    over every link and direction (NCCL's tests call that bus bandwidth). What was not measured is left out.
    """
    device = own_device()
    cuda = device.type == "cuda"
    if cuda:
        torch.set_float32_matmul_precision("high")  # TF32, as the catalogue's fp32 is where a GPU has it
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    found: dict[str, Any] = {"matrix_tflops": {}}
    for name in ("fp32", "bf16") if cuda else ("fp32",):
        found["matrix_tflops"][name] = _slowest(_matrix_tflops(name, device, 8192 if cuda else 512), device)
    found["memory_gbytes_per_s"] = _slowest(_memory_gbytes_per_s(device, 2**30 if cuda else 2**26), device)
    if dist.get_world_size() > 1:
        found["link_gbytes_per_s"] = _slowest(_link_gbytes_per_s(device, 2**28 if cuda else 2**22), device)
    found["processes"] = dist.get_world_size()
    found["device"] = device_name(device)
    found["torch"] = torch.__version__
    found["backends"] = [name for name in ("gloo", "nccl") if dist.is_backend_available(name)]
    dist.destroy_process_group()
    return found


def _matrix_tflops(dtype: str, device: torch.device, size: int) -> float:
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    return 2 * size**3 / _each(lambda: torch.mm(a, b), device) / 1e12


def _memory_gbytes_per_s(device: torch.device, size: int) -> float:
    """Of a copy: every byte is read once and written once."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _each(lambda: target.copy_(source), device) / 1e9


def _link_gbytes_per_s(device: torch.device, size: int) -> float:
    buffer, count = torch.ones(size // 4, device=device), dist.get_world_size()
    seconds = _each(lambda: dist.all_reduce(buffer), device, together=True)
    return 2 * (count - 1) / count * size / seconds / 1e9


def _each(act: Callable[[], Any], device: torch.device, together: bool = False) -> float:
    """Seconds of one call; the number of calls is the same on every process where they act together."""
    act()
    seconds = _lasting(act, 3, device)
    calls = max(3, int(_SECONDS / seconds))
    if together:
        wanted = torch.tensor([calls], device=device)
        dist.all_reduce(wanted, dist.ReduceOp.MIN)
        calls = int(wanted)
    return min(_lasting(act, -(-calls // 3), device) for _ in range(3))


def _lasting(act: Callable[[], Any], calls: int, device: torch.device) -> float:
    started_s = now_s(device)
    for _ in range(calls):
        act()
    return (now_s(device) - started_s) / calls


def _slowest(value: float, device: torch.device) -> float:
    slowest = torch.tensor([value], device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MIN)
    return float(f"{float(slowest):.4g}")


if __name__ == "__main__":
    found = probe()
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    leave()
