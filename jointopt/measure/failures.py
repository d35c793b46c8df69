"""What a training program's last words mean: out of memory, or another failure and its first cause."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

# what PyTorch, CUDA, Megatron-LM and the kernel say when memory is short
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|torch\.OutOfMemoryError|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|HIP out of memory|can't allocate memory|Cannot allocate memory|std::bad_alloc|oom[-_ ]kill|Out Of Memory"
    r"|CUDNN_STATUS_ALLOC_FAILED|NCCL.*out of memory",
    re.IGNORECASE,
)
_CAUSES: tuple[tuple[str, str], ...] = (
    (r"No space left on device", "the disk is full"),
    (r"NCCL|ncclInternalError|ncclSystemError|ProcessGroupNCCL.*timeout", "communication failed (NCCL)"),
    (
        r"Connection (?:refused|reset|closed)|RendezvousTimeout|gloo.*(?:timed out|Connection)",
        "processes lost touch",
    ),
    (r"No module named ['\"]?([\w.]+)", "a Python module is missing"),
    (r"CUDA error|device-side assert", "a CUDA error"),
    (r"SIGKILL|exitcode\s*:\s*-9|exit code -9", "a process was killed (SIGKILL)"),
    (r"SIGSEGV|Segmentation fault|exitcode\s*:\s*-11", "a process crashed (SIGSEGV)"),
)
_ERROR_LINE = re.compile(r"^.*?(\b[A-Z]\w*(?:Error|Exception|Interrupt)\b: .*)$", re.MULTILINE)
_LONGEST = 300
_BLOCK = 4096  # bytes: less than that holds no file


@dataclass(frozen=True)
class Failure:
    """``status`` as in a measurement table, and one sentence for its notes."""

    status: str
    reason: str


def failure_of(log: str, code: int, timed_out: bool, limit_s: float) -> Failure:
    """What ended a program that did not succeed, from the end of its log and its exit code."""
    if _OUT_OF_MEMORY.search(log):
        return Failure("oom", "out of memory" + _quoted(log))
    if timed_out:
        return Failure("timeout", f"did not end within {limit_s:.0f} s")
    for pattern, cause in _CAUSES:
        if re.search(pattern, log):
            return Failure("failed", cause + _quoted(log))
    return Failure("failed", f"exit code {code}" + _quoted(log))


def is_full(folder: Path) -> bool:
    """Whether nothing more can be written to the file system of a folder."""
    return shutil.disk_usage(folder).free < _BLOCK


def _quoted(log: str) -> str:
    """The first error that the log names, which the others follow from."""
    found = _ERROR_LINE.search(log)
    return f": {found[1].strip()[:_LONGEST]}" if found else ""
