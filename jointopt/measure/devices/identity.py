"""Whether a training runs on the GPU that the job names: on another one it is no measurement of the job."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from jointopt.core.errors import CatalogError, LauncherError
from jointopt.jobs.catalog.gpus import fitting_gpus, gpu_sheet
from jointopt.jobs.job import Job

# Of this project's tests, whose GPUs are stand-ins of a driver: what they train on cores counts as trained on those.
FOR_TESTS = "JOINTOPT_TESTS_TRAIN_ON_CORES"
_QUERY_S = 120.0  # that importing PyTorch may take from a slow disk
_QUERY = """
import json, os
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
import torch
found = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
print(json.dumps([torch.cuda.get_device_name(i) for i in found]))
"""


def check_devices(job: Job) -> None:
    """LauncherError where PyTorch would train on something else here than the GPU that ``job`` names."""
    if _on_cores(job.cluster.gpu.id) or os.environ.get(FOR_TESTS):
        return
    found = _seen()
    if found is not None and (wrong := wrong_device(job.cluster.gpu.id, found)):
        raise LauncherError(wrong)


def wrong_device(gpu_id: str, found: Sequence[str]) -> str:
    """Why a training on GPUs of these names (none: on cores) does not count for ``gpu_id``; blank where it does."""
    if _on_cores(gpu_id) or (not found and os.environ.get(FOR_TESTS)):
        return ""
    if not found:
        return (
            f"The job runs on {gpu_id}, and PyTorch finds no GPU here, so that it would train on cores; run it where "
            f"such GPUs are (with a build of PyTorch for them: see `jointopt doctor`), or give the job gpu: cpu-core."
        )
    for name in found:
        known = fitting_gpus(name)
        if known and gpu_id not in known:  # a name that the catalogue does not know contradicts nothing
            return (
                f"The job runs on {gpu_id}, and this machine has {name}; run it where such GPUs are, or give the job "
                f"gpu: {' or '.join(known)}."
            )
    return ""


def remarks(gpu_id: str, dtype: str, name: str) -> list[str]:
    """Remarks for a run's notes on the GPU of that name (blank: cores) on which it trained in ``dtype``."""
    if not name:
        return [] if dtype == "fp32" else [f"cores train in fp32, not {dtype}"]
    return [] if fitting_gpus(name) else [f"on {name}, which the catalogue does not know, taken for {gpu_id}"]


def _on_cores(gpu_id: str) -> bool:
    try:
        return gpu_sheet(gpu_id).architecture == "CPU"
    except CatalogError:  # a GPU of the job file
        return False


@functools.cache
def _seen() -> tuple[str, ...] | None:
    """Names of the GPUs that PyTorch sees; None where it fails, as the training will, whose log says why."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUERY], capture_output=True, text=True, timeout=_QUERY_S, check=True
        )
        return tuple(map(str, json.loads(done.stdout.splitlines()[-1])))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
