"""How fast this machine computes, moves memory and talks: a program for torchrun, one process per GPU or core.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m jointopt.measure.trainer.probe result.json

All processes measure at once, as a training does, and the slowest counts. The result holds readings alone; the figures
of a cluster that they show are the physics' affair (`jointopt.physics.calibrate.machine_fit`).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jointopt.measure.trainer.device import exit_at_once, largest_of_ranks, now_s, own_device

_SECONDS = 0.1  # that each measurement lasts at least, after one call to warm up
_REPEATS = 3
_MOST_CALLS = 300
# tokens x outputs x inputs: projections and MLPs of 8B and 70B models, whole and cut by tp 8; small ones for a core
_SHAPES = ((4096, 6144, 4096), (8192, 14336, 4096), (8192, 4096, 14336), (4096, 3584, 8192), (8192, 8192, 1024))
_SHAPES_OF_A_CORE = ((256, 512, 512), (512, 1024, 256), (512, 512, 512))
_COPIED, _COPIED_BY_A_CORE = 2**30, 2**26  # bytes
_MESSAGES, _MESSAGES_OF_A_CORE = (2**16, 2**20, 2**24, 2**27), (2**12, 2**16, 2**20, 2**22)  # bytes
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
_FIRST_WITH = {"fp16": (7, 0), "bf16": (8, 0), "fp8": (8, 9)}  # CUDA's compute capability


def probe() -> dict[str, Any]:
    """Readings of one device and of the links: products, a copy, collectives within a node and across nodes."""
    started, device = time.monotonic(), own_device()
    cuda = device.type == "cuda"
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    if _slowest(local, device) != -_slowest(-local, device):
        sys.exit("The nodes have different numbers of processes; start as many on each.")
    copied = _COPIED if cuda else _COPIED_BY_A_CORE  # each byte read once and written once
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu", "backend": dist.get_backend(),
        "torch": torch.__version__,
        "backends": [name for name in ("gloo", "nccl") if dist.is_backend_available(name)],
        "processes": dist.get_world_size(), "gpus_per_node": local,
        "products": list(_products(device)),
        "copy": {"bytes": 2 * copied, "time_s": _slowest(_seconds(lambda: target.copy_(source), device), device)},
        "collectives": list(_collectives(device, local)),
    }  # fmt: skip
    if cuda:
        found |= {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "cuda": torch.version.cuda}
        found["memory_bytes"] = -_slowest(-float(torch.cuda.get_device_properties(device).total_memory), device)
    found["seconds"] = round(time.monotonic() - started, 1)
    dist.destroy_process_group()
    return found


def _products(device: torch.device) -> Iterator[dict[str, Any]]:
    """One reading per dtype that the device computes in, and shape; none of a dtype that PyTorch has no kernel for.

    On a GPU these are the dtypes of trainings that it has tensor cores for; fp8 has another form on AMD's.
    """
    dtypes = ["fp32"]
    if cuda := device.type == "cuda":
        able = torch.cuda.get_device_capability(device)
        dtypes = [dtype for dtype, least in _FIRST_WITH.items() if able >= least]
        dtypes = [dtype for dtype in dtypes if dtype != "fp8" or torch.version.hip is None]
    for dtype in dtypes:
        for m, n, k in _SHAPES if cuda else _SHAPES_OF_A_CORE:
            try:
                seconds = _seconds(_product(dtype, m, n, k, device), device)
            except RuntimeError:  # of a kernel that is missing too
                seconds = 0.0
            seconds = _slowest(seconds, device)
            if seconds > 0:
                yield {"dtype": dtype, "m": m, "n": n, "k": k, "time_s": seconds}


def _product(dtype: str, m: int, n: int, k: int, device: torch.device) -> Callable[[], Any]:
    """One product m x k by k x n of random numbers, which draw the power that a training's do."""
    a, b = (torch.randn(size, k, device=device).to(_DTYPES[dtype]) for size in (m, n))
    if dtype != "fp8":
        return lambda: torch.mm(a, b.t())
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _collectives(device: torch.device, local: int) -> Iterator[dict[str, Any]]:
    """Readings within every node at once, and across all nodes; none of links that there are not.

    Messages are of 16-bit numbers, or of fp32 on cores, as they train in.
    """
    rank, world, cuda = dist.get_rank(), dist.get_world_size(), device.type == "cuda"
    nodes = world // local
    own = [dist.new_group(list(range(node * local, (node + 1) * local))) for node in range(nodes)][rank // local]
    scopes = [(own, local, 1, 1)] * (local > 1) + [(dist.group.WORLD, world, nodes, local)] * (nodes > 1)
    zeros = functools.partial(torch.zeros, dtype=torch.float16 if cuda else torch.float32, device=device)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before PyTorch 2.14
    for group, size, spanned, stride in scopes:
        for bytes_ in _MESSAGES if cuda else _MESSAGES_OF_A_CORE:
            buffer, shard = (zeros(part // (2 if cuda else 4)) for part in (bytes_, bytes_ // size))
            whole = torch.cat([shard] * size)
            acts: list[tuple[str, int, int, int, Callable[[], Any]]] = [
                ("all_reduce", size, spanned, 1, functools.partial(dist.all_reduce, buffer, group=group)),
                ("all_gather", size, spanned, 1, functools.partial(gather, whole, shard, group=group)),
                ("p2p", 2, min(spanned, 2), 2, functools.partial(_there_and_back, buffer, stride)),
            ]
            for kind, ranks, across, ways, act in acts:
                seconds = _slowest(_seconds(act, device, together=True), device) / ways
                yield {"kind": kind, "bytes": bytes_, "size": ranks, "nodes": across, "time_s": seconds}


def _there_and_back(buffer: torch.Tensor, stride: int) -> None:
    """A message to the partner rank and back: neighbours, or ranks of the same place on neighbouring nodes."""
    rank = dist.get_rank()
    first = rank // stride % 2 == 0
    partner = rank + stride if first else rank - stride
    if partner < dist.get_world_size():  # the last of an odd number has none
        for sends in (first, not first):
            (dist.send if sends else dist.recv)(buffer, partner)


def _seconds(act: Callable[[], Any], device: torch.device, together: bool = False) -> float:
    """Seconds of one call here, the best of `_REPEATS` averages; ``together``: all processes make as many calls."""
    act()
    timer = timeit.Timer(act, timer=functools.partial(now_s, device))
    calls = max(1, min(_MOST_CALLS, int(_SECONDS / _REPEATS / max(timer.timeit(1), 1e-7))))
    if together:
        wanted = torch.tensor([calls], device=device)
        dist.all_reduce(wanted, dist.ReduceOp.MIN)
        calls = int(wanted)
    return min(timer.repeat(_REPEATS, calls)) / calls


def _slowest(seconds: float, device: torch.device) -> float:
    """The largest value of all ranks, to four digits."""
    return float(f"{largest_of_ranks([seconds], device)[0]:.4g}")


if __name__ == "__main__":
    readings = probe()
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[1]).write_text(json.dumps(readings), encoding="utf-8")
    exit_at_once()
