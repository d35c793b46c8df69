"""A training that runs on this machine, by one of its processes: its words, its environment, the configs it names.

Nothing is signalled, attached to or waited for. Of the environment the variables that state sizes, and those of
libraries that flags of a row name, go on; the rest is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from jointopt.core.errors import JobError
from jointopt.core.input_files import regular_bytes
from jointopt.frameworks.commands.programs import CONFIG_PATH
from jointopt.frameworks.import_files import read_text, read_words
from jointopt.frameworks.options import FileSettings, Question, whole_number
from jointopt.frameworks.shell import MOST_CHARACTERS
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.measure.hardware.host import found_machine

_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # that launchers number ranks by
# ranks in all, those of a node, and nodes; the launcher nearest to the rank first
_SIZES = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE", ""), ("WORLD_SIZE", "LOCAL_SIZE", ""), ("WORLD_SIZE", "", "NNODES"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", ""), ("PMI_SIZE", "MPI_LOCALNRANKS", ""),
    ("SLURM_STEP_NUM_TASKS", "", "SLURM_STEP_NUM_NODES"), ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", ""),
    ("SLURM_NTASKS", "", "SLURM_NNODES"), ("WORLD_SIZE", "", "SLURM_NNODES"),
)  # fmt: skip
_MOST_RANKS = 64  # that are looked at
# by which the time of a process may be off: it is that of the machine's start, in whole seconds, and ticks
_CLOCK_S = 2.0


def read_process(pid: int, run: int | None = None) -> list[FileSettings]:
    """The statements of a rank, or of the ranks that a launcher has started, then those of the configs it names.

    JobError, in one sentence, where there is no such process, it may not be read, or it trains nothing.
    """
    try:
        first = psutil.Process(pid)
        own = first.environ()
        for process in (*_ranks(first, own), first):
            if found := _statements(process, first, run):
                return found
        words = " ".join(first.cmdline()) or first.name()
    except psutil.ZombieProcess as error:
        raise JobError(f"Process {pid} has exited; give the --pid of one that runs.") from error
    except psutil.AccessDenied as error:
        user = psutil.Process(pid).username()
        raise JobError(f"Process {pid} may not be read: run this as {user}, whose it is, or as root.") from error
    except (psutil.NoSuchProcess, ProcessLookupError) as error:
        message = f"There is no process {pid} on this machine; give the --pid of one that `ps -ef` lists."
        raise JobError(message) from error
    raise JobError(
        f"Process {pid} ({words:.60}) and what it started run no training that is known; expected a rank of "
        "Megatron-LM, NeMo, torchtitan, DeepSpeed, nanotron or Accelerate, or the launcher of its ranks."
    )


def gpu_of_machine() -> str:
    """The catalogue id of this machine's GPUs; blank where it has none, or several kinds, or an unknown one."""
    found = {getattr(known_gpu(gpu.name), "id", "") for gpu in found_machine().gpus}
    return found.pop() if len(found) == 1 else ""


def _ranks(process: psutil.Process, own: Mapping[str, str]) -> Iterator[psutil.Process]:
    """The ranks that a launcher has started, by their numbers; workers of a rank have its number, and are none."""
    numbered = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error, OSError):
            environment = child.environ()
            numbers = [whole_number(environment.get(name)) for name in _RANKS if environment.get(name) != own.get(name)]
            numbered += [(numbers[0], child.pid, child)] if numbers and numbers[0] is not None else []
    yield from (child for *_, child in sorted(numbered)[:_MOST_RANKS])


def _statements(process: psutil.Process, launcher: psutil.Process, run: int | None) -> list[FileSettings]:
    """What the words, the environment and the configs of one process state; none where it trains nothing."""
    name, environment, words = f"process {process.pid}", process.environ(), process.cmdline()
    named = [place for one in (launcher, process) for place in _configs(one.cmdline(), one)]
    places = {place.name: place for place in reversed(named)}
    texts = {name: text for name, place in places.items() if (text := _text(place))}
    found = read_words(words, name, texts, environment, run)
    if not found and process != launcher:  # a script of one's own
        found = read_words(launcher.cmdline(), name, texts, environment, run)
    configs = []
    for config, text in texts.items():
        with suppress(JobError):
            configs += [(config, one) for one in read_text(text, config, texts) if not one.log]
    if not found and not configs:
        return []
    base = found[0] if found else FileSettings("arguments")
    form = base.format.replace("launch script", "arguments")
    base.format, base.process, base.source = f"{form} of a process", process.pid, name
    base.origins = {field: re.sub(rf"({name}):\d+", r"\1", place) for field, place in base.origins.items()}
    _state_sizes(base, environment)
    for config, one in configs:
        one.source, one.process = config, process.pid
        later = ", though it has changed since the start" if _has_changed(places[config], process) else ""
        base.remarks += (f"{config} is read in {process.cwd()}, where it runs{later}",)
    return [base, *(one for _, one in configs)]


def _configs(words: Sequence[str], process: psutil.Process) -> Iterator[Path]:
    """The files of settings that words name, where the process sees them."""
    here, root = Path(f"/proc/{process.pid}/cwd"), Path(f"/proc/{process.pid}/root")
    for word in words:
        found = CONFIG_PATH.search(word)
        named = found[0] if found else "" if word.startswith("-") else f"{word}/config.json"
        place = root / named.lstrip("/") if named.startswith("/") else here / named
        with suppress(OSError, ValueError):
            if named and len(named) < 4_000 and place.is_file() and place.stat().st_size <= MOST_CHARACTERS:
                yield place


def _has_changed(place: Path, process: psutil.Process) -> bool:
    with suppress(OSError):
        return place.stat().st_mtime > process.create_time() + _CLOCK_S
    return True


def _text(place: Path) -> str:
    with suppress(OSError, JobError):
        return regular_bytes(place, MOST_CHARACTERS, "a config", JobError).decode("utf-8", errors="replace")
    return ""


def _state_sizes(settings: FileSettings, environment: Mapping[str, str]) -> None:
    """Puts the ranks and nodes of the environment in the place of what words state; others than these are asked."""
    for row in _SIZES:
        every, each, nodes = (whole_number(environment.get(name)) if name else None for name in row)
        if every and (each or nodes):
            break
    else:
        return
    if every % (each or nodes or 1):
        settings.questions["cluster.nodes"] = Question(f"{every} ranks are on nodes of different sizes, by {row[0]}")
        return
    per_node = each or every // (nodes or 1)
    for field in ("nodes", "gpus_per_node", "num_gpus"):
        settings.questions.pop(f"cluster.{field}", None)
        settings.cluster.pop(field, None)
    settings.cluster |= {"nodes": every // per_node, "gpus_per_node": per_node}
    place = f"{row[0]} of {settings.source}"
    settings.origins |= dict.fromkeys(("cluster.nodes", "cluster.gpus_per_node"), place)
