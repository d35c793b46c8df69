"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

_MEMORY, _GROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
# the most and what is taken, of control groups of version 2 and 1
_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def free_bytes(groups: Path = _GROUPS) -> int | None:
    """Bytes of memory that are free here: of the machine, and within the control group; None where neither says."""
    found = [_of_machine(), *(_of_group(groups / most, groups / taken) for most, taken in _LIMITS)]
    return min((one for one in found if one is not None), default=None)


def _of_machine() -> int | None:
    """Bytes that Linux calls available; psutil, which takes every proposal 20 ms to import, says no more."""
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):  # no /proc
        return None


def _of_group(most: Path, taken: Path) -> int | None:
    """Bytes that a container may still take; its files may state ``max``, which is no limit."""
    try:
        return max(int(most.read_text(encoding="ascii")) - int(taken.read_text(encoding="ascii")), 0)
    except (OSError, ValueError):
        return None
