"""Who holds memory of the GPUs that a run is to have: a run that finds it taken is no evidence about its plan."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from jointopt.core.errors import DeviceError
from jointopt.core.secrets import redacted
from jointopt.core.units import GIB
from jointopt.measure.devices.meter import Gpus

_LEAST_BYTES = 256 * 2**20  # less takes no plan's memory: a monitor, a display
_IDLE_BYTES = 2 * 2**30  # that a driver may keep for itself on a GPU without processes
_IDLE_SHARE = 0.03
_PATIENCE_S = 10.0  # for a driver to free the memory of processes that have just ended


@dataclass(frozen=True)
class Occupant:
    """Memory of one GPU that something holds: a process, or (pid 0) one that is not shown here, as in containers."""

    gpu: int
    pid: int
    held_gib: float

    def __str__(self) -> str:
        who = _name(self.pid) if self.pid else "a process that cannot be seen from here"
        much = f"{self.held_gib:.1f} GiB of " if self.held_gib else ""
        return f"{much}GPU {self.gpu} taken by {who}"


def occupants(indices: Iterable[int], patience_s: float = _PATIENCE_S) -> list[Occupant]:
    """Everything that holds memory of these GPUs (local ranks) now; nothing where the driver does not say.

    Memory that no process shown here holds is waited for: the driver frees that of a process after its end.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            gpus = Gpus()
            found = [one for index in indices if index < len(gpus) for one in _of_gpu(gpus, index)]
        except DeviceError:
            return []
        if all(one.pid for one in found) or time.monotonic() > until:
            return found
        time.sleep(0.1)


def _of_gpu(gpus: Gpus, index: int) -> list[Occupant]:
    held = gpus.processes(index)
    shown = [Occupant(index, pid, size / GIB) for pid, size in held.items() if not 0 < size < _LEAST_BYTES]
    used, total = gpus.memory_bytes(index)
    unseen = used - sum(held.values())
    if not shown and unseen > max(_IDLE_BYTES, _IDLE_SHARE * total):
        return [Occupant(index, 0, unseen / GIB)]
    return shown


def _name(pid: int) -> str:
    """A process in words: its number, whose it is and what it runs, as far as this user may know."""
    known = ""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        known = process.username()
        with suppress(psutil.Error, OSError):
            known += ": " + " ".join(redacted(process.cmdline()) or [process.name()])[:80]
    return f"process {pid}" + (f" ({known})" if known else "")
