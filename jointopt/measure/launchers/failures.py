"""What a training program's last words mean: out of memory, or another failure and its first cause."""

from __future__ import annotations

import re
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# what PyTorch, CUDA, Megatron-LM and the kernel say when memory is short
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|torch\.OutOfMemoryError|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|HIP out of memory|can't allocate memory|Cannot allocate memory|std::bad_alloc|Out Of Memory"
    r"|CUDNN_STATUS_ALLOC_FAILED|(?:NCCL|Cuda failure).*out of memory|\bMemoryError\b",
    re.IGNORECASE,
)
# what the kernel and Slurm say of a process that they killed for its memory
_KILLED = re.compile(
    r"^.*(?:oom[-_ ]kill event|OOM Killed|Out of memory: Kill).*$", re.MULTILINE | re.IGNORECASE
)
_REMARK = re.compile(r"\b(?:INFO|DEBUG|WARNING)\b|Warning:")  # of a program that goes on
_FULL = "No space left on device"
# what ranks say of one that is gone: where another error stands in the log, that one came first
_FOLLOWING: tuple[tuple[str, str], ...] = (
    (r"NCCL|ncclInternalError|ncclSystemError", "communication failed (NCCL)"),
    (
        r"Connection (?:refused|reset|closed)|RendezvousTimeout|gloo.*(?:timed out|Connection|Read error)"
        r"|Broken pipe",
        "processes lost touch",
    ),
    (r"CalledProcessError", "a program that it started failed"),
)
_CAUSES: tuple[tuple[str, str], ...] = (
    (r"No module named ['\"]?([\w.]+)", "a Python module is missing"),
    (r"CUDA error|device-side assert", "a CUDA error"),
)
_SIGNALS: tuple[tuple[str, str], ...] = (
    (r"SIGKILL|exitcode\s*:\s*-9|exit code -9", "a process was killed (SIGKILL)"),
    (r"SIGSEGV|Segmentation fault|exitcode\s*:\s*-11", "a process crashed (SIGSEGV)"),
)
_BEFORE = re.compile(r"((?:\[[^\]\s]*\]:\s?|\d+: ?)*)(.*)")  # [rank3]:, [default0]:, and the labels of srun
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*[a-z]\w*(?::.*)?$")
_ERROR_LINE = re.compile(r"^.*?(\b[A-Z]\w*(?:Error|Exception|Interrupt)\b: .*)$", re.MULTILINE)
_TORCHRUNS_OWN = re.compile(r"(?:[\w.]*\.)?(?:ChildFailedError|SignalException)\b")
_TERMINATED = re.compile(
    r"^(?:terminate called after throwing .*\n\s*what\(\):\s*(?P<what>.*)"
    r"|(?P<bare>terminate called .*|Fatal Python.*)|(?:\S+: ?)*(?P<unopened>can't open file .*))$",
    re.MULTILINE,
)
_ROOT = re.compile(
    r"^Root Cause \(first observed failure\):.*?^\s*rank\s*: (?P<rank>\d+).*?^\s*exitcode\s*: (?P<code>-?\d+)",
    re.MULTILINE | re.DOTALL,
)
_LONGEST = 300
_BLOCK = 4096  # bytes: less than that holds no file


@dataclass(frozen=True)
class Failure:
    """``status`` as in a measurement table, and one sentence for its notes."""

    status: str
    reason: str


def failure_of(log: str, code: int, timed_out: bool, limit_s: float) -> Failure:
    """What ended a program that did not succeed, from the end of its log and its exit code."""
    if said := _short_of_memory(log):
        return Failure("oom", "out of memory" + _quoted(said))
    if timed_out:
        return Failure("timeout", f"did not end within {limit_s:.0f} s")
    return Failure("failed", _cause(log, code))


def is_full(folder: Path) -> bool:
    """Whether nothing more can be written to the file system of a folder."""
    return shutil.disk_usage(folder).free < _BLOCK


def _short_of_memory(log: str) -> str:
    """Who says that memory ran out: the kernel, or the error that ended the run; blank where neither does.

    A run without an error of its own ended by what its lines speak of, unless they are remarks of one that goes on.
    """
    if killed := _KILLED.search(log):
        return killed[0]
    errors = [(rank, text) for rank, text in _errors(log) if not _named(_FOLLOWING, text)]
    of_first = [text for rank, text in errors if rank == _first_rank(log)]
    if said := of_first or [text for _, text in errors]:
        return next(filter(_OUT_OF_MEMORY.search, said), "")
    lines = (line for line in log.splitlines() if not _REMARK.search(line))
    return next(filter(_OUT_OF_MEMORY.search, lines), "")


def _cause(log: str, code: int) -> str:
    """Why a run failed: the error that came first, else how its first process ended, else what the log speaks of."""
    if _FULL in log:
        return "the disk is full" + _quoted(_first(log, re.compile(_FULL)) or _first(log))
    error = _first(log)
    if error and not _named(_FOLLOWING, error):
        return (_named(_CAUSES, error) or f"exit code {code}") + _quoted(error)
    ended = _first_process(log)
    if ended:
        return ended + _quoted(_terminated(log))
    said = error or log
    named = _named(_FOLLOWING, said) or _named(_CAUSES, said) or _named(_SIGNALS, log)
    return (named or f"exit code {code}") + _quoted(error or _terminated(log))


def _first(log: str, of: re.Pattern[str] | None = None) -> str:
    """The error that the others follow from, or the first one that ``of`` matches; blank where there is none.

    Ranks that lose touch with one that failed end with errors of their own, and may write them first.
    """
    found = [text for _, text in _errors(log) if of is None or of.search(text)]
    return found[0] if found else ""


def _errors(log: str) -> list[tuple[str, str]]:
    """(rank, last line) of each error of the program, the ones that the others follow from first."""
    found = _python_errors(log)
    found = [(rank, text) for rank, text in found if not _TORCHRUNS_OWN.match(text)]
    if not found:
        lines = [line for line in _ERROR_LINE.finditer(log) if not _REMARK.search(line[0])]
        found = [("", line[1]) for line in lines if not _TORCHRUNS_OWN.match(line[1])]
    first = _first_rank(log)
    return sorted(found, key=lambda one: (bool(_named(_FOLLOWING, one[1])), one[0] != first))


def _first_rank(log: str) -> str:
    """The rank whose end torchrun saw first; blank where it does not tell."""
    root = _ROOT.search(log)
    return root["rank"] if root else ""


def _python_errors(log: str) -> list[tuple[str, str]]:
    """(rank, last line) of each traceback, in order; lines of ranks may lie between each other."""
    begun: Counter[str] = Counter()
    found = []
    for line in _unfolded(log).splitlines():
        matched = _BEFORE.match(line)
        before, text = (matched[1].strip(), matched[2]) if matched else ("", line)
        if text.startswith("Traceback (most recent call last)"):
            begun[before] += 1
        elif begun[before] and _EXCEPTION.match(text):
            begun[before] -= 1
            rank = re.search(r"rank(\d+)\]", before)
            found.append((rank[1] if rank else "", text))
    return found


def _unfolded(log: str) -> str:
    """A log in which tracebacks that torchrun read from error files stand at the left, as others do."""
    begin = log.find("\nFailures:\n") if "\nFailures:\n" in log else log.find("\nRoot Cause (first observed")
    if begin < 0:
        return log
    return log[:begin] + re.sub(r"^  (?:traceback : )?", "", log[begin:], flags=re.MULTILINE)


def _first_process(log: str) -> str:
    """How the process ended whose end torchrun saw first; blank where it does not tell."""
    root = _ROOT.search(log)
    if root is None:
        return ""
    code = int(root["code"])
    if code >= 0:
        return f"rank {root['rank']} ended with exit code {code}"
    if code == -signal.SIGKILL:
        return f"rank {root['rank']} was killed (SIGKILL)"
    known = [one.name for one in signal.Signals if one == -code]
    return f"rank {root['rank']} crashed ({known[0] if known else f'signal {-code}'})"


def _terminated(log: str) -> str:
    """What C++ or the interpreter said when it gave up, or that it found no script."""
    found = _TERMINATED.search(log)
    return (found["what"] or found["bare"] or found["unopened"]).strip() if found else ""


def _named(causes: tuple[tuple[str, str], ...], text: str) -> str:
    return next((cause for pattern, cause in causes if re.search(pattern, text)), "")


def _quoted(text: str) -> str:
    return f": {text.strip()[:_LONGEST]}" if text else ""
