"""How runs are submitted to Slurm: the section ``slurm`` of a job file. Nodes and GPUs are those of the cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from jointopt.core.errors import JobError, nearest_hint
from jointopt.jobs.reading import Section, quoted_value

NO_GPU_REQUEST = "none"
CONTAINER_RUNTIMES = ("pyxis", "apptainer")
_DAYS_30 = 43_200  # minutes
_DIRECTIVE = re.compile(r"--[a-z][a-z-]*(=[^\s'\"\\]+)?")  # one option of sbatch, as one word
_MOUNT = re.compile(r"[^,:$`]+(:[^,:$`]+){0,2}")  # place, place in the container, flags


@dataclass(frozen=True)
class Slurm:
    """The options of a submission; ``None`` = Slurm's own default."""

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    time_limit_min: int | None = None  # of the whole Slurm job; None = the limit of the run and two minutes
    gpu_request: str = "--gpus-per-node={gpus}"  # or --gres=gpu:h100:{gpus}; none = nodes without GPUs
    exclusive: bool = True  # what others compute on the same node would be measured too
    requeue: bool = True  # after a node has failed
    python: str | None = None  # the interpreter on the nodes; None = the one that submits
    setup: tuple[str, ...] = ()  # lines of shell before the run: module load, activate
    sbatch: tuple[str, ...] = ()  # further options of sbatch
    container: str | None = None  # image that exported scripts train in
    container_runtime: str = CONTAINER_RUNTIMES[0]
    mounts: tuple[str, ...] = ()  # into the container: /data or /data:/in-it


SLURM_KEYS = tuple(field.name for field in fields(Slurm))
_OURS = (
    "--job-name", "--nodes", "--ntasks", "--ntasks-per-node", "--output", "--error", "--open-mode", "--array",
)  # fmt: skip
# Options of sbatch that a job file may add: none that runs something else, writes elsewhere or sets clocks.
_ALLOWED = (
    "--account", "--acctg-freq", "--batch", "--begin", "--cluster-constraint", "--clusters", "--comment",
    "--constraint", "--contiguous", "--core-spec", "--cores-per-socket", "--cpu-freq", "--cpus-per-gpu",
    "--cpus-per-task", "--deadline", "--delay-boot", "--dependency", "--distribution", "--exclude", "--exclusive",
    "--extra-node-info", "--gpu-bind", "--gpus", "--gpus-per-node", "--gpus-per-socket",
    "--gpus-per-task", "--gres", "--gres-flags", "--hint", "--kill-on-invalid-dep", "--licenses",
    "--mail-type", "--mail-user", "--mcs-label", "--mem", "--mem-bind", "--mem-per-cpu", "--mem-per-gpu", "--mincpus",
    "--network", "--nice", "--no-kill", "--no-requeue", "--nodelist", "--overcommit", "--oversubscribe",
    "--partition", "--power", "--prefer", "--priority", "--profile", "--propagate", "--qos", "--requeue",
    "--reservation", "--signal", "--sockets-per-node", "--spread-job", "--switches", "--thread-spec",
    "--threads-per-core", "--time", "--time-min", "--tmp", "--tres-per-task", "--use-min-nodes", "--wckey",
)  # fmt: skip
NAMED = ("account", "partition", "qos", "constraint", "reservation")


def read_slurm(job: Section) -> Slurm:
    """The section ``slurm`` of a job file, with defaults where it is silent. Raises JobError."""
    section = job.section("slurm", SLURM_KEYS)
    found: dict[str, Any] = {}
    for key in (key for key in SLURM_KEYS if section.has(key)):
        if key in ("exclusive", "requeue"):
            found[key] = section.flag(key)
        elif key == "time_limit_min":
            found[key] = section.whole(key, 1, _DAYS_30)
        elif key == "container_runtime":
            found[key] = section.choice(key, CONTAINER_RUNTIMES)
        elif key in ("setup", "sbatch", "mounts"):  # one line of text or a list of them
            lines = section.values[key] if isinstance(section.values[key], list) else [section.values[key]]
            if len(lines) > 100:
                raise section.refuse(key, "a line of text, or a list of up to 100 of them")
            found[key] = tuple(Section({key: line}, section.where).text(key, most=2000) for line in lines)
        else:
            found[key] = section.text(key)
        if key in (*NAMED, "container") and not re.fullmatch(r"[^\s'\"\\#]+", found[key]):
            raise section.refuse(key, "one word, as sbatch takes it")
    if (request := found.get("gpu_request", NO_GPU_REQUEST)) != NO_GPU_REQUEST:
        _check_directive(section, "gpu_request", request.replace("{gpus}", "1"))
    for line in found.get("sbatch", ()):
        _check_directive(section, "sbatch", line)
    for place in found.get("mounts", ()):
        if not _MOUNT.fullmatch(place):
            raise JobError(
                f"{section.at('mounts')} must be paths such as /data or /data:/in-it, one in each line and without "
                f"commas and variables, which nothing replaces there; got {quoted_value(place)}."
            )
    return Slurm(**found)


def _check_directive(section: Section, key: str, line: str) -> None:
    """JobError for a line that is no option of sbatch in one word, or one that is not for a job file to set."""
    option = line.partition("=")[0]
    if option in _OURS:
        raise JobError(f"{section.at(key)}: {option} is set by jointopt itself; leave it out.")
    if not _DIRECTIVE.fullmatch(line):
        raise JobError(
            f"{section.at(key)} must be an option of sbatch as one word without quotes, such as --mail-type=END; "
            f"got {quoted_value(line)}."
        )
    if key == "sbatch" and option not in _ALLOWED:
        raise JobError(
            f"{section.at(key)}: {option} is not an option that job files add{nearest_hint(option, _ALLOWED)}; "
            "expected one in full that places or limits a job, such as --mail-type=END, --mem=0 or --nodelist=gpu[1-4]."
        )
