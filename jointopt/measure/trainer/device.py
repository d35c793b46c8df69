"""The GPU, or the cores, of one process of torchrun."""

from __future__ import annotations

import os

import torch


def own_device(cores: bool = False) -> torch.device:
    """The GPU of this local rank, made the current one; the processor where there is none, or ``cores`` are wanted.

    GPUs are numbered by PCI bus, as NVML numbers those that are metered and clocked; CUDA's own order is by speed.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # read when CUDA starts, which is below
    if cores or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def device_name(device: torch.device) -> str:
    """As the driver calls it; ``cpu`` for the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
