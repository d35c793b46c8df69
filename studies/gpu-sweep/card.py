"""The card of a measured table: on what it was made, with which software, when, how, and its licence."""

from __future__ import annotations

import datetime
import functools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from jointopt.jobs.cluster import Gpu
from jointopt.measure.hardware.host import FoundGpu

LICENCE = "Apache-2.0"
_ASK_TORCH = """
import json, torch, torch.cuda.nccl
gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpu and torch.version.cuda else ""
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl, "gpu": gpu}))
"""
_COLUMNS = {
    "iteration_time_s": "median of the measured iterations, all micro-batches and the optimizer's step in it",
    "energy_j": "of the GPU over one iteration: its own energy counter over at least two seconds of iterations",
    "avg_power_w": "energy over time of the same window",
    "peak_memory_gib": "most that PyTorch's allocator reserved; CUDA's own context is not in it",
    "stage_clock_mhz": "mean SM clock while it was measured, chosen by the driver",
    "power_limit_w": "the board's limit as it was found, not set",
    "run_s": "the whole run, start included",
}


@dataclass(frozen=True)
class Software:
    """Versions; ``gpu`` is what PyTorch calls the first GPU, blank where it sees none."""

    torch: str
    cuda: str
    nccl: str
    gpu: str


@functools.cache
def software_here() -> Software:
    """Versions found by another process, so that this one takes no memory of the GPU."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, check=True, timeout=300,
        env=os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},  # as the trainer has it
    )  # fmt: skip
    return Software(**json.loads(done.stdout.splitlines()[-1]))


def write_card(
    file: Path, rows: pd.DataFrame, found: FoundGpu, gpu: Gpu, software: Software, space: Mapping[str, Any],
    idle: Mapping[str, float],
) -> None:  # fmt: skip
    """Writes the card of the table beside it; what an earlier card states of the first runs stays."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    earlier = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
    trained_on = software.gpu or "the processor: a trial of the command, worth nothing as a measurement"
    card = {
        "title": f"Trainings of dense models on one {found.name}, measured by jointopt",
        "licence": LICENCE,
        "made_by": "the jointopt project: its own runs, random tokens, no data of others",
        "first_run": earlier.get("first_run", today),
        "last_run": today,
        "command": " ".join(["python", "studies/gpu-sweep/sweep.py", *sys.argv[1:]]),
        "how": (
            "jointopt.measure.trainer under torchrun, one process, PyTorch's FSDP2, AdamW in fp32, plans chosen by "
            "jointopt.workflows.campaign.candidates.searched and spread evenly over model, sequence, micro-batch and "
            "recomputation; "
            f"{space['warmup_iterations']} iterations to warm up, then at least {space['iterations']}, as long as the "
            "energy counter needs; clocks and power limits as the driver has them, never set"
        ),
        "gpu": {
            "catalogue_id": gpu.id, "name": found.name, "trained_on": trained_on, "memory_gib": found.memory_gib,
            "power_limit_w": found.power_limit_w, "driver": _smi("driver_version"),
            "persistence_mode": _smi("persistence_mode"), "ecc": _smi("ecc.mode.current"),
            "before_the_first_run": earlier.get("gpu", {}).get("before_the_first_run", dict(idle)),
        },
        "software": {
            "jointopt": version("jointopt"), "commit": _commit(), "torch": software.torch, "cuda": software.cuda,
            "nccl": software.nccl, "python": platform.python_version(), "system": platform.platform(),
        },
        "rows": {str(status): int(count) for status, count in rows["status"].value_counts().items()},
        "rows_with_energy": int(rows["energy_j"].notna().sum()),
        "models": dict(space["models"]),
        "columns": _COLUMNS,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(card, sort_keys=False, width=118, allow_unicode=True), encoding="utf-8")


def _smi(field: str) -> str:
    """A field of the first GPU by nvidia-smi."""
    return _in_words(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"])


def _commit() -> str:
    """The version that ran, with a mark where it was changed."""
    return _in_words(["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"])


def _in_words(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines and not done.returncode else "unknown"
