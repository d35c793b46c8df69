"""The GPU, or the cores, of one process of torchrun: chosen, timed, and left."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

import torch
import torch.distributed as dist


def own_device(cores: bool = False) -> torch.device:
    """The GPU of this local rank, made the current one; the processor where there is none, or ``cores`` are wanted.

    GPUs are numbered by PCI bus, as NVML numbers those that are metered and clocked; CUDA's own order is by speed.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # read when CUDA starts, which is below
    if cores or not torch.cuda.is_available():
        return torch.device("cpu")
    # srun may show each rank its own GPU alone
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def now_s(device: torch.device) -> float:
    """Seconds of a clock that only rises, once the GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def largest_of_ranks(values: list[float], device: torch.device) -> list[float]:
    """The largest of each value over all ranks, the same on every rank."""
    out = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(out, op=dist.ReduceOp.MAX)
    return out.tolist()


def exit_at_once() -> NoReturn:
    """Ends this process here, without what Python does at its end.

    Threads of gloo still hold Python objects. One that frees them while the interpreter ends is unwound by Python, and
    C++ calls that abort: "terminate called without an active exception", in 3 of 13 runs on busy cores.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
