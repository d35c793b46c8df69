"""This machine: cores, memory, GPUs and their clocks, Slurm, and how fast it is."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from jointopt.core.errors import CatalogError, DeviceError, LauncherError
from jointopt.core.secrets import masked_words
from jointopt.core.units import GIB
from jointopt.frameworks.failures import failure_of
from jointopt.jobs.catalog.gpus import fitting_gpus, load_gpu
from jointopt.jobs.job import Job
from jointopt.measure.hardware.guard.guarded import scratch_folder
from jointopt.measure.hardware.meter import Gpus
from jointopt.measure.process import local_torchrun, run_program

SLURM_COMMANDS = ("sbatch", "squeue", "scontrol", "scancel")
_PROBE_LIMIT_S = 300.0
_QUERY_S = 15.0
_QUERY = "index,uuid,name,memory.total,clocks.max.sm,power.limit"


@dataclass(frozen=True)
class FoundGpu:
    """One GPU; None where unknown."""

    name: str
    memory_gib: float | None = None
    clock_min_mhz: float | None = None
    clock_max_mhz: float | None = None
    power_limit_w: float | None = None
    power_profiles: str = ""  # names of workload power profiles, a comma between


@dataclass(frozen=True)
class Machine:
    """A machine; ``no_meter`` says why GPUs cannot be measured (blank: they can)."""

    cores: int  # that this process may use
    memory_gib: float
    gpus: tuple[FoundGpu, ...]
    no_meter: str
    may_set_clocks: str  # as whom; blank: this user may not
    slurm: tuple[str, ...]  # of SLURM_COMMANDS, those on the PATH
    partitions: tuple[str, ...]  # lines of sinfo: partition, nodes, cores and GPUs of a node


def found_machine() -> Machine:
    """The machine that this process runs on; nothing is changed."""
    gpus, no_meter = _metered_gpus()
    slurm = tuple(name for name in SLURM_COMMANDS if shutil.which(name))
    socket = os.environ.get("ZEUSD_SOCK_PATH", "")
    through_zeusd = bool(socket) and Path(socket).is_socket()
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        gpus=gpus or _named_gpus(), no_meter=no_meter, slurm=slurm,
        may_set_clocks=f"through zeusd at {socket}" if through_zeusd else "as root" if os.geteuid() == 0 else "",
        partitions=_lines(["sinfo", "--noheader", "--format=%P %D %c %G"]) if slurm else (),
    )  # fmt: skip


def _metered_gpus() -> tuple[tuple[FoundGpu, ...], str]:
    """GPUs as the meter sees them, and why it sees none."""
    found = []
    try:
        gpus = Gpus()
        names = [re.sub(r"^GPU \d+ \((.*)\)$", r"\1", gpus.name(i)) for i in range(len(gpus))]
        listed = _driver_gpus()
        for i, name in enumerate(names):
            same, clocks = listed.get(str(gpus.number(i)), FoundGpu(name)), gpus.clocks_mhz(i)
            limit_w = None
            with suppress(DeviceError):
                limit_w = gpus.power_limit_w(i)
            low, high = (float(clocks[-1]), float(clocks[0])) if clocks else (None, None)
            found.append(FoundGpu(name, same.memory_gib, low, high, limit_w, ", ".join(gpus.offered_profiles(i))))
    except DeviceError as error:
        return (), str(error)
    return tuple(found), ""


def _named_gpus() -> tuple[FoundGpu, ...]:
    """GPUs that programs started here would see, as NVIDIA's own program lists them; it needs no Python package."""
    listed = _driver_gpus()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return tuple(gpu for key, gpu in listed.items() if key.isdigit())
    # CUDA stops at the first one that it does not know
    return tuple(listed[key] for key in itertools.takewhile(listed.__contains__, map(str.strip, shown.split(","))))


def _driver_gpus() -> dict[str, FoundGpu]:
    """All GPUs of NVIDIA's driver, each by number and by UUID."""
    found: dict[str, FoundGpu] = {}
    for line in _lines(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]):
        number, uuid, name, *cells = (cell.strip() for cell in line.split(","))
        known = [float(cell) if re.fullmatch(r"\d+(\.\d*)?", cell) else None for cell in cells]  # else [N/A]
        memory_mib, clock, limit = (known + [None] * 3)[:3]
        gpu = FoundGpu(name, None if memory_mib is None else memory_mib / 1024, None, clock, limit)
        found |= {number: gpu, uuid: gpu}
    return found


def _lines(command: list[str]) -> tuple[str, ...]:
    """The lines that a program prints; none where it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def rank_variables(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The variables that torchrun gives a rank, worked out where srun started this process; None where it is alone.

    Of a rank of torchrun RANK alone is returned. Ranks of srun are numbered node by node, however it has spread them.
    LauncherError where its nodes have different numbers of tasks.
    """
    if environ.keys() >= {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}:
        return {"RANK": environ["RANK"]}
    tasks = int(environ.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks < 2:
        return None
    spread = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    each = re.fullmatch(r"(\d+)(\(x\d+\))?", spread)
    if each is None:
        raise LauncherError(f"srun has {spread} tasks on its nodes; start as many on each, with --ntasks-per-node.")
    local, place, node = int(each[1]), int(environ["SLURM_LOCALID"]), int(environ["SLURM_NODEID"])
    step = int(environ["SLURM_JOB_ID"]) + int(environ["SLURM_STEP_ID"])
    # the address of the first node of Slurm's list
    nodes = environ["SLURM_STEP_NODELIST"]
    name = next(iter(_lines(["scontrol", "show", "hostnames", nodes])), nodes)
    found = re.search(r"NodeAddr=(\S+)", " ".join(_lines(["scontrol", "--oneliner", "show", "node", name])))
    return {
        "RANK": str(node * local + place), "WORLD_SIZE": str(tasks), "LOCAL_RANK": str(place),
        "LOCAL_WORLD_SIZE": str(local), "MASTER_ADDR": (found[1] if found else name),
        "MASTER_PORT": str(20_000 + step % 12_000),
    }  # fmt: skip


def probe_readings(processes: int, rank: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """The readings of `jointopt.measure.trainer.probe`, empty on all ranks but the first; LauncherError if it fails.

    It runs as so many ``processes`` of this machine, or as the one ``rank`` that this process is (`rank_variables`).
    """
    with scratch_folder() as folder:
        result, log = folder / "result.json", folder / "log"
        start = local_torchrun(processes, folder) if rank is None else [sys.executable]
        command = [*start, "-m", "jointopt.measure.trainer.probe", str(result)]
        ended = run_program(command, log, limit_s=_PROBE_LIMIT_S, env={"OMP_NUM_THREADS": "1", **(rank or {})})
        if ended.code == 0 and rank is not None and rank["RANK"] != "0":
            return {}
        if ended.code == 0 and result.is_file():
            found: Mapping[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return found
        why = failure_of(ended.tail, ended.code, ended.timed_out, _PROBE_LIMIT_S).detail
        raise LauncherError(f"The speeds could not be measured: {why.rstrip('.')}.")


def speeds(readings: Mapping[str, Any]) -> dict[str, Any]:
    """The best rates in readings of a probe: TFLOP/s of products by dtype, GB/s of a copy and of a ring all-reduce.

    A copy reads every byte and writes it; a ring moves 2 (n - 1) / n of the buffer over every link and direction.
    """
    best: dict[str, float] = {}
    for one in readings["products"]:
        rate = 2e-12 * one["m"] * one["n"] * one["k"] / one["time_s"]
        best[one["dtype"]] = max(rate, best.get(one["dtype"], 0.0))
    rates = {"memory_gbytes_per_s": readings["copy"]["bytes"] / readings["copy"]["time_s"] / 1e9}
    rings = [one for one in readings["collectives"] if one["kind"] == "all_reduce" and one["nodes"] == 1]
    if rings:
        sent = [2 * (one["size"] - 1) / one["size"] * one["bytes"] / one["time_s"] for one in rings]
        rates["link_gbytes_per_s"] = max(sent) / 1e9
    best, rates = ({name: float(f"{rate:.4g}") for name, rate in some.items()} for some in (best, rates))
    known = {name: readings[name] for name in ("processes", "device", "torch", "backends")}
    return {"matrix_tflops": best, **rates, **known}


# Whether a training runs on the GPU that the job names: on another one it is no measurement of the job.


# variable of this project's tests, whose GPUs are a stand-in: what trains on cores counts as trained on those
FOR_TESTS = "JOINTOPT_TESTS_TRAIN_ON_CORES"
_LIST_GPUS_S = 120.0  # that importing PyTorch may take from a slow disk
_LIST_GPUS = """
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
    found = _pytorch_gpus()
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


def device_remarks(gpu_id: str, dtype: str, name: str) -> list[str]:
    """Remarks for the notes of a run that trained in ``dtype`` on the GPU called ``name`` (blank: on cores)."""
    if not name:
        return [] if dtype == "fp32" else [f"cores train in fp32, not {dtype}"]
    return [] if fitting_gpus(name) else [f"on {name}, which the catalogue does not know, taken for {gpu_id}"]


def _on_cores(gpu_id: str) -> bool:
    try:
        return load_gpu(gpu_id).architecture == "CPU"
    except CatalogError:  # a GPU of the job file
        return False


@functools.cache
def _pytorch_gpus() -> tuple[str, ...] | None:
    """Names of the GPUs that PyTorch sees; None where it fails, as the training will, whose log says why."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIST_GPUS], capture_output=True, text=True, timeout=_LIST_GPUS_S, check=True
        )
        return tuple(map(str, json.loads(done.stdout.splitlines()[-1])))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


# Who holds memory of the GPUs that a run is to have: a run that finds it taken is no evidence about its plan.


_LEAST_BYTES = 256 * 2**20  # a process with less, such as a monitor or a display, takes no plan's memory
_IDLE_BYTES = 2 * 2**30  # that a driver may keep for itself on a GPU without processes
_IDLE_SHARE = 0.03
_PATIENCE_S = 10.0  # for a driver to free the memory of processes that have just ended


def occupants(indices: Iterable[int], patience_s: float = _PATIENCE_S) -> list[str]:
    """A phrase for each process that holds memory of these GPUs (local ranks); none where the driver does not say.

    Memory without a process, because that has just ended or is in another container, has ``patience_s`` to be freed.
    """
    until = time.monotonic() + patience_s
    while True:
        found: list[tuple[int, int, int]] = []  # GPU, pid (0: not shown here) and bytes
        try:
            gpus = Gpus()
            for index in (index for index in indices if index < len(gpus)):
                used, total, by_pid = gpus.memory(index)
                shown = [(index, pid, size) for pid, size in by_pid.items() if not 0 < size < _LEAST_BYTES]
                unseen = used - sum(by_pid.values())
                if not shown and unseen > max(_IDLE_BYTES, _IDLE_SHARE * total):
                    shown = [(index, 0, unseen)]
                found += shown
        except DeviceError:
            return []
        if all(pid for _, pid, _ in found) or time.monotonic() > until:
            return [_occupant(*one) for one in found]
        time.sleep(0.1)


def _occupant(gpu: int, pid: int, size: int) -> str:
    """A process (0: unseen) that holds ``size`` bytes of a GPU, in words: its user and command where they are known."""
    known, who = "", f"process {pid}" if pid else "a process that cannot be seen from here"
    with suppress(psutil.Error, OSError):
        if pid:
            process = psutil.Process(pid)
            known = process.username()
            with suppress(psutil.Error, OSError):
                known += ": " + " ".join(masked_words(process.cmdline()) or [process.name()])[:80]
    much = f"{size / GIB:.1f} GiB of " if size else ""
    return f"{much}GPU {gpu} taken by {who}" + (f" ({known})" if known else "")
