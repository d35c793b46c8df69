"""The failure of a training program, read from the end of its log and its exit code."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

from jointopt.core.facts import Failure, FailureKind

# lines of PyTorch, CUDA, Megatron-LM and the kernel when memory is short
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|torch\.OutOfMemoryError|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|HIP out of memory|can't allocate memory|Cannot allocate memory|std::bad_alloc|Out Of Memory"
    r"|CUDNN_STATUS_ALLOC_FAILED|(?:NCCL|Cuda failure).*out of memory|\bMemoryError\b"
    r"|Failed to CUDA (?:host )?(?:calloc|malloc|alloc)",  # NCCL's alloc.h
    re.IGNORECASE,
)
# lines of the kernel and Slurm about a process that they killed for its memory
_KILLED = re.compile(r"^.*(?:oom[-_ ]kill event|OOM Killed|Out of memory: Kill).*$", re.MULTILINE | re.IGNORECASE)
_REMARK = re.compile(r"\b(?:INFO|DEBUG|WARNING)\b|Warning:")  # of a program that goes on
_FULL = "No space left on device"
_Cause = tuple[str, FailureKind, str]  # a pattern of the log, what it means, and that in words
# errors of ranks that have lost another one: where another error stands in the log, that one came first
_LOST = r"Connection (?:refused|reset|closed)|RendezvousTimeout|gloo.*(?:timed out|Connection|Read error)|Broken pipe"
_FOLLOWING: tuple[_Cause, ...] = (
    (r"NCCL|ncclInternalError|ncclSystemError", FailureKind.NCCL, "communication failed (NCCL)"),
    (_LOST, FailureKind.CONNECTION, "processes lost touch"),
    (r"CalledProcessError", FailureKind.EXIT_CODE, "a program that it started failed"),
)
_CAUSES: tuple[_Cause, ...] = (
    (r"No module named ['\"]?([\w.]+)", FailureKind.MISSING_MODULE, "a Python module is missing"),
    (r"CUDA error|device-side assert", FailureKind.CUDA, "a CUDA error"),
)
_SIGNALS: tuple[_Cause, ...] = (
    (r"SIGKILL|exitcode\s*:\s*-9|exit code (?:-9|137)\b", FailureKind.KILLED, "a process was killed (SIGKILL)"),
    (
        r"SIGSEGV|Segmentation fault|exitcode\s*:\s*-11|exit code (?:-11|139)\b",
        FailureKind.CRASHED,
        "a process crashed (SIGSEGV)",
    ),
)
_BEFORE = re.compile(r"((?:\[[^\]\s]*\]:\s?|\d+: ?)*)(.*)")  # [rank3]:, [default0]:, and the labels of srun
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*[a-z]\w*(?::.*)?$")
_ERROR_LINE = re.compile(r"^.*?(\b[A-Z]\w*(?:Error|Exception|Interrupt)\b: .*)$", re.MULTILINE)
_TORCHRUNS_OWN = re.compile(r"(?:[\w.]*\.)?(?:ChildFailedError|SignalException)\b")
_TERMINATED = re.compile(
    r"^(?:terminate called after throwing .*\n\s*what\(\):\s*(?P<what>.*)"
    r"|(?P<bare>terminate called .*|Fatal Python.*)|(?:\S+: ?)*(?P<unopened>can't open file .*)"
    r"|(?:\S+: ?)*(?P<flag>(?:unrecognized arguments: |argument -|the following arguments are required: ).*))$",
    re.MULTILINE,
)
_FLAG = re.compile(r"unrecognized arguments|unexpected keyword argument|No such option")
_ROOT = re.compile(
    r"^Root Cause \(first observed failure\):.*?^\s*rank\s*: (?P<rank>\d+).*?^\s*exitcode\s*: (?P<code>-?\d+)",
    re.MULTILINE | re.DOTALL,
)
_LONGEST = 300
_BLOCK_BYTES = 4096  # less than that holds no file


def failure_of(log: str, code: int, timed_out: bool, limit_s: float) -> Failure:
    """The failure of a program that did not succeed, from the end of its log and its exit code."""
    if error := _short_of_memory(log):
        return Failure(FailureKind.OOM, "out of memory" + _quoted(error))
    if timed_out:
        return Failure(FailureKind.TIMEOUT, f"did not end within {limit_s:.0f} s")
    return _cause(log, code)


def is_full(folder: Path) -> bool:
    """Whether nothing more can be written to the file system of a folder; of one that is gone nothing is known."""
    try:
        return shutil.disk_usage(folder).free < _BLOCK_BYTES
    except OSError:
        return False


def why_unreadable(folder: Path) -> str:
    """Why the files of a run cannot be read, which are its program's to leave alone; blank where they can."""
    if not folder.is_dir():
        return "the folder of the run is gone: the program has removed or moved it"
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return "the folder of the run cannot be read: the program has changed its permissions"
    return ""


def _short_of_memory(log: str) -> str:
    """The line by which memory ran out, of the kernel or of the error that ended the run; blank without one.

    Without an error any line counts, but for remarks of a program that goes on.
    """
    if killed := _KILLED.search(log):
        return killed[0]
    errors = [(rank, text) for rank, text in _errors(log) if not _named(_FOLLOWING, text)]
    of_first = [text for rank, text in errors if rank == _first_rank(log)]
    if texts := of_first or [text for _, text in errors]:
        return next(filter(_OUT_OF_MEMORY.search, texts), "")
    lines = (line for line in log.splitlines() if not _REMARK.search(line))
    return next(filter(_OUT_OF_MEMORY.search, lines), "")


def _cause(log: str, code: int) -> Failure:
    """The error that came first, else how the first process ended, else what the log contains."""
    errors = _errors(log)
    if _FULL in log:
        _, error = next((one for one in errors if _FULL in one[1]), errors[0] if errors else ("", ""))
        return Failure(FailureKind.DISK_FULL, "the disk is full" + _quoted(error))
    error = next((text for _, text in errors), "")
    if error and not _named(_FOLLOWING, error):
        return _in_words(_named(_CAUSES, error), code, error)
    if ended := _first_process(log):
        return _in_words(ended, code, _terminated(log))
    text = error or log
    known = _named(_FOLLOWING, text) or _named(_CAUSES, text) or _named(_SIGNALS, log)
    return _in_words(known, code, error or _terminated(log))


def _in_words(known: Failure | None, code: int, error: str) -> Failure:
    """A known cause, the flag that the program does not know, else the exit code, with the error behind it."""
    found = known or _named(_SIGNALS, f"exit code {code}") or Failure(FailureKind.EXIT_CODE, f"exit code {code}")
    if found.kind is FailureKind.EXIT_CODE and _FLAG.search(error):
        flags = " ".join(re.findall(r"(?<!\S)--?[A-Za-z](?:[\w.-]*\w)?|(?<=')\w+(?=')", error))
        return Failure(FailureKind.UNKNOWN_FLAG, f"unknown flag {flags}".strip() + _quoted(error))
    return Failure(found.kind, found.detail + _quoted(error))


def _errors(log: str) -> list[tuple[str, str]]:
    """(rank, last line) of each error of the program, the ones that the others follow from first.

    Ranks that lose touch with one that failed end with errors of their own, and may write them first.
    """
    found = [(rank, text) for rank, text in _python_errors(log) if not _TORCHRUNS_OWN.match(text)]
    if not found:
        lines = [line for line in _ERROR_LINE.finditer(log) if not _REMARK.search(line[0])]
        found = [("", line[1]) for line in lines if not _TORCHRUNS_OWN.match(line[1])]
    first = _first_rank(log)
    return sorted(found, key=lambda one: (bool(_named(_FOLLOWING, one[1])), one[0] != first))


def _first_rank(log: str) -> str:
    """The rank whose end torchrun saw first; blank where it does not state it."""
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


def _first_process(log: str) -> Failure | None:
    """The end of the process that torchrun saw end first; None where the log does not state it."""
    root = _ROOT.search(log)
    if root is None:
        return None
    code, rank = int(root["code"]), root["rank"]
    if code >= 0:
        return Failure(FailureKind.EXIT_CODE, f"rank {rank} ended with exit code {code}")
    if code == -signal.SIGKILL:
        return Failure(FailureKind.KILLED, f"rank {rank} was killed (SIGKILL)")
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    return Failure(FailureKind.CRASHED, f"rank {rank} crashed ({name})")


def _terminated(log: str) -> str:
    """The last line of C++, the interpreter or argparse when it gave up; blank where there is none."""
    found = _TERMINATED.search(log)
    return (found["what"] or found["bare"] or found["unopened"] or found["flag"]).strip() if found else ""


def _named(causes: tuple[_Cause, ...], text: str) -> Failure | None:
    """The first of ``causes`` whose pattern is in ``text``."""
    return next((Failure(kind, words) for pattern, kind, words in causes if re.search(pattern, text)), None)


def _quoted(text: str) -> str:
    return f": {text.strip()[:_LONGEST]}" if text else ""
