"""Nodes and GPUs that launchers start on: torchrun, srun, mpirun, DeepSpeed's and Accelerate's, a batch header."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.measure.imports.shell import Script
from jointopt.measure.imports.taken import stated, whole_of

_NODES = ("nnodes", "nodes", "N", "num_nodes", "num_machines")
_PER_NODE = ("nproc_per_node", "gpus_per_node", "ntasks_per_node", "num_gpus", "gpus_per_task")
_ALL = ("num_processes", "np", "ntasks", "n")
_VARIABLES = {
    "nodes": ("NNODES", "NUM_NODES", "SLURM_NNODES"),
    "gpus_per_node": ("GPUS_PER_NODE", "NGPU", "NPROC_PER_NODE", "NUM_GPUS", "NUM_GPUS_PER_NODE"),
}
# options of launchers, which stand before those of the program
OPTIONS = frozenset((
    *_NODES, *_PER_NODE, *_ALL, "node_rank", "master_addr", "master_port", "rdzv_id", "rdzv_backend", "rdzv_endpoint",
    "rdzv_conf", "max_restarts", "tee", "log_dir", "local_ranks_filter", "redirects", "standalone", "hostfile",
    "include", "exclude", "gres", "mpi", "cpu_bind", "container_image", "container_mounts", "container_name", "output",
    "error", "machine_rank", "main_process_ip", "main_process_port", "config_file", "multi_gpu", "no_python", "label",
    "local_rank", "cpus_per_task", "plan", "kill_on_bad_exit", "no_container_mount_home", "role", "launcher", "use_env",
    "export", "mem", "time", "partition", "job_name", "constraint", "account", "exclusive", "nodelist", "bind_to",
))  # fmt: skip


def cluster_of(script: Script) -> dict[str, Any]:
    """The nodes, GPUs per node, GPUs in all and the GPU that a script states; only what it does."""
    found: dict[str, str] = {}
    for words in (script.header, *script.commands):  # what a launcher is given counts more than the header
        found |= _launcher_options(words)
    nodes, per_node, every = (_first(found, names) for names in (_NODES, _PER_NODE, _ALL))
    gpu, of_gres = _gres(found.get("gres", "") or found.get("gpus_per_node", ""))
    known = stated(
        nodes=nodes or _variable(script, "nodes"),
        gpus_per_node=per_node or of_gres or _variable(script, "gpus_per_node"),
        num_gpus=every if every and not per_node and "num_processes" in found else None,
        gpu=gpu or _constraint(found.get("constraint", "")),
    )  # fmt: skip
    return known


def _launcher_options(words: Iterable[str]) -> dict[str, str]:
    """Values of the options of launchers among the words of a command."""
    listed = list(words)
    found: dict[str, str] = {}
    for at, word in enumerate(listed):
        name, equals, value = word.lstrip("-").partition("=")
        key = name.replace("-", "_")
        if word.startswith("-") and key in OPTIONS:
            after = listed[at + 1] if at + 1 < len(listed) else ""
            found.setdefault(key, value if equals else after)
    return found


def _first(found: dict[str, str], names: Iterable[str]) -> int | None:
    numbers = (whole_of(found.get(name, "").rpartition(":")[2]) for name in names)
    return next((number for number in numbers if number), None)


def _variable(script: Script, kind: str) -> int | None:
    numbers = (whole_of(script.variables.get(name)) for name in _VARIABLES[kind])
    return next((number for number in numbers if number), None)


def _gres(text: str) -> tuple[str | None, int | None]:
    """The GPU and their number in ``gpu:h100:8``."""
    found = re.match(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d+)", text)
    return (_constraint(found[1] or ""), whole_of(found[2])) if found else (None, None)


def _constraint(text: str) -> str | None:
    gpu = known_gpu(text) if text else None
    return gpu.id if gpu else None
