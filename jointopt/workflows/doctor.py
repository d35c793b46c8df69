"""``doctor``: the machine, the features of jointopt that work on it, and what to install for the rest."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jointopt.core.errors import CatalogError, LauncherError, OutageError, UsageError
from jointopt.core.secrets import masked
from jointopt.core.units import GIB
from jointopt.jobs.catalog.clusters import link_defaults
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.cluster import Machine as MeasuredMachine
from jointopt.jobs.cluster import save_machine
from jointopt.measure.hardware import host as devices
from jointopt.measure.hardware.gpu_clocks import restore_offer
from jointopt.measure.hardware.host import SLURM_COMMANDS, Machine, found_machine
from jointopt.measure.hardware.meter import PERMISSION
from jointopt.physics.calibrate.machine_fit import fit
from jointopt.report.diagnosis import MachineComparison
from jointopt.report.results import Diagnosis, Feature
from jointopt.runs.database import STORAGE, database_errors, has_table, patience

_log = logging.getLogger(__name__)
CPU_CORE = "cpu-core"
_ENOUGH_DISK_GIB = 1.0
_MOST_CPU_PROCESSES = 4  # of the probe: more than that show nothing new and take long to start


def diagnose(storage: str = STORAGE, *, speeds: bool = True) -> Diagnosis:
    """The diagnosis of this machine; nothing is changed, no database made.

    ``speeds``: also measure products, memory and links, which takes seconds and needs PyTorch.
    """
    machine = found_machine()
    notes = [offer] if (offer := restore_offer()) else []
    measured: dict[str, Any] = {}
    if speeds and _has("torch"):
        _log.info("measuring products, memory and links ...")
        try:
            measured = devices.speeds(devices.probe_readings(_processes(machine)))
        except LauncherError as error:
            notes.append(str(error))
    gpu = None
    try:
        gpu = load_gpu(machine.gpus[0].name if machine.gpus else CPU_CORE)
    except CatalogError as error:
        notes.append(f"{error} `jointopt calibrate` fits a GPU that the catalogue does not know.")
    nominal: dict[str, float] = {} if gpu is None else dict(gpu.peak_tflops)
    for name, value in () if gpu is None else (
        ("memory_gbytes_per_s", gpu.memory_gbytes_per_s), ("link_gbytes_per_s", gpu.intra_node_gbytes_per_s),
    ):  # fmt: skip
        nominal |= {name: value} if value else {}
    # the cluster section of a job file for this one machine; cores share its memory evenly
    if machine.gpus:
        name = machine.gpus[0].name if gpu is None else gpu.id
        cluster: dict[str, Any] = {"gpu": name, "nodes": 1, "gpus_per_node": len(machine.gpus)}
        limit_w = machine.gpus[0].power_limit_w
        if limit_w and gpu is not None and gpu.tdp_w and limit_w < gpu.tdp_w:
            cluster["power_limit_w"] = limit_w
    else:
        each_gib = math.floor(10 * machine.memory_gib / machine.cores) / 10
        cluster = {"gpu": CPU_CORE, "nodes": 1, "gpus_per_node": machine.cores, "memory_gib": each_gib}
    return Diagnosis(
        machine=asdict(machine), features=tuple(_features(machine, measured, storage)), speeds=measured,
        nominal=nominal, cluster=cluster, notes=tuple(notes),
    )  # fmt: skip


def _processes(machine: Machine) -> int:
    return len(machine.gpus) or min(machine.cores, _MOST_CPU_PROCESSES)


def probe(out: Path) -> MachineComparison | None:
    """Measure this machine, or the nodes that torchrun or srun has started this on, and write the machine file ``out``.

    None on ranks but the first. Raises LauncherError where PyTorch is missing or fails, CatalogError for an unknown
    GPU, UsageError where the file cannot be written.
    """
    if not _has("torch"):
        raise LauncherError("The probe needs PyTorch; install it with: pip install 'jointopt[torch]'.")
    rank, here = devices.rank_variables(os.environ), found_machine()
    readings = devices.probe_readings(_processes(here), rank)
    if not readings:
        return None
    if here.gpus and readings["device"] == "cpu":
        raise LauncherError(f"PyTorch {readings['torch']} does not see the GPUs; install a build of it with CUDA.")
    gpu = load_gpu(CPU_CORE if readings["device"] == "cpu" else readings["device"])
    found, per_node = fit(readings, gpu), readings["gpus_per_node"]
    # memory of the smallest GPU, as driver and catalogue count it; cores share their machine's evenly
    if readings["device"] == "cpu":
        memory_gib = math.floor(10.0 * here.memory_gib / per_node) / 10.0
    else:
        driver_gib = [one.memory_gib for one in here.gpus if one.memory_gib]
        memory_gib = round(min(driver_gib) if driver_gib else float(readings["memory_bytes"]) / GIB, 2)
    measured = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "nodes": readings["processes"] // per_node}
    measured |= {name: readings[name] for name in _VERSIONS if name in readings} | {"jointopt": version("jointopt")}
    machine = MeasuredMachine(
        gpu=gpu.id, gpus_per_node=per_node, product_time_factor=found.product_time_factor,
        figures={"memory_gib": memory_gib, **found.figures}, measured=measured,
        fit_error_percent=found.error_percent,
        readings={name: readings[name] for name in ("products", "copy", "collectives")},
    )  # fmt: skip
    save_machine(machine, out)
    # the figures that stand in where nothing is stated or measured
    return MachineComparison(
        machine,
        {
            "intra_node_gbytes_per_s": gpu.intra_node_gbytes_per_s,
            "inter_node_gbytes_per_s": gpu.usual_inter_node_gbytes_per_s,
            "inter_node_latency_us": link_defaults(gpu, per_node)["inter_node_latency_us"].value,
            "memory_gib": gpu.memory_gib,
            "memory_gbytes_per_s": gpu.memory_gbytes_per_s,
        },
        str(out),
    )


_VERSIONS = ("device", "backend", "torch", "cuda", "nccl", "seconds")


_PACKAGES = (
    ("polish with lowtime", "lowtime", "pip install 'jointopt[polish]' (--solver linear works without)"),
    ("dashboard", "optuna-dashboard", "pip install 'jointopt[dashboard]'"),
    ("--log mlflow", "mlflow-skinny", "pip install 'jointopt[mlflow]'"),
    ("--log wandb", "wandb", "pip install 'jointopt[wandb]'"),
    ("work on PostgreSQL", "psycopg", "pip install 'psycopg[binary]' (SQLite works without)"),
)


def _features(machine: Machine, speeds: dict[str, Any], storage: str) -> Iterator[Feature]:
    yield Feature("propose, explain, predict, select", True, f"jointopt {version('jointopt')}, no GPU needed")
    name, backends = "launcher torchrun", speeds.get("backends")
    if not _has("torch"):
        yield Feature(name, False, "PyTorch is not installed", "pip install 'jointopt[torch]'")
    else:
        what = f"PyTorch {version('torch')}" + (f" with {', '.join(backends)}" if backends else "")
        if machine.gpus and backends and (speeds.get("device") == "cpu" or "nccl" not in backends):
            fix = "install a build of PyTorch with CUDA"
            yield Feature(name, False, f"{what}, which does not see the GPUs", fix)
        else:
            yield Feature(name, True, what)
    if machine.gpus:
        fix = "git clone https://github.com/NVIDIA/Megatron-LM, then --checkout Megatron-LM"
        yield Feature("launcher megatron", True, "GPUs are here; it also takes a checkout of Megatron-LM", fix)
    else:
        yield Feature("launcher megatron", False, "Megatron-LM trains on GPUs, and here is none")
    if missing := [command for command in SLURM_COMMANDS if command not in machine.slurm]:
        fix = "run jointopt where jobs are submitted, or: sudo apt-get install slurm-client"
        yield Feature("launcher slurm", False, f"no {', '.join(missing)}", fix)
    elif machine.partitions:
        yield Feature("launcher slurm", True, f"{len(machine.partitions)} partitions")
    else:
        what = "Slurm's commands are here, and sinfo shows no partition"
        yield Feature("launcher slurm", False, what, "is slurmctld running?")
    if machine.no_meter:
        what, _, fix = machine.no_meter.rstrip(".").partition(": pip install")
        fix = f"pip install{fix}" if fix else ""
        yield Feature("energy, power, temperature", False, f"runs count for time alone: {what}", fix)
        yield Feature("GPU clocks", False, "GPUs cannot be set, as they cannot be read")
    else:
        yield Feature("energy, power, temperature", True, "Zeus reads the GPUs")
        may_set = machine.may_set_clocks
        what = f"set {may_set}, and put back after every run (not tried now)" if may_set else PERMISSION
        yield Feature("GPU clocks", bool(may_set), what)
    for feature, package, fix in _PACKAGES:
        try:
            yield Feature(feature, True, f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Feature(feature, False, f"{package} is not installed", fix)
    yield _database(storage)
    free_gib = shutil.disk_usage(".").free / GIB
    enough = free_gib >= _ENOUGH_DISK_GIB
    fix = "" if enough else "free some, or work in another folder"
    yield Feature("disk space for logs and database", enough, f"{free_gib:.1f} GiB free here", fix)


def _database(url: str) -> Feature:
    """Whether the database can be used; a file that is missing stays missing."""
    name, place = "database", masked(url)
    if url == "none":
        return Feature(name, True, "none, as --storage or JOINTOPT_STORAGE states: nothing is kept")
    try:
        with database_errors(url, "database"), patience(0.0):
            known = has_table(url, "studies") or has_table(url, "jointopt_measurements")
            from jointopt.runs.store import Store

            count = Store(url).count() if known else 0
    except (OutageError, UsageError) as error:
        return Feature(name, False, str(error).rstrip("."))
    path = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
    if path is not None and not known:
        if not os.access(path.absolute().parent, os.W_OK):
            return Feature(name, False, f"{place} cannot be made: {path.absolute().parent} is not writable")
        return Feature(name, True, f"{place} will be made")
    return Feature(name, True, f"{place}, {count} measurements")


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
