"""Facts that travel as data and become sentences only where a person reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_OF_ONE_RUN = re.compile(r"/\S+|\d+")  # paths and numbers: these differ between runs that failed alike
_SEPARATOR = "; "  # between a failure and the remarks after it in the notes of a row


class FailureKind(StrEnum):
    """Causes for which a run has no result."""

    OOM = "oom"
    TIMEOUT = "timeout"
    BEHIND = "behind"  # ended early, as its iterations took clearly longer than those of the best plan
    DISK_FULL = "disk full"
    MISSING_MODULE = "missing module"
    UNKNOWN_FLAG = "unknown flag"
    CUDA = "cuda"
    NCCL = "nccl"
    CONNECTION = "connection"  # between processes
    KILLED = "killed"
    CRASHED = "crashed"  # by a signal of its own
    CLOCKS = "clocks"  # the GPUs have no such clock or power limit
    EXPORT = "export"  # the training framework has no words for the plan
    RESULT = "result"  # the program ended well, and its result is missing or wrong
    OCCUPIED = "occupied"  # others held memory of the GPUs: nothing is known of the plan
    CLUSTER = "cluster"  # a node failed, or the job was cancelled or preempted
    EXIT_CODE = "exit code"  # with the program's own error, if it wrote one
    REPORTED = "reported"  # by a program, or by a stored row, in words alone


_NAMELESS = (
    FailureKind.CLOCKS, FailureKind.EXPORT, FailureKind.RESULT, FailureKind.EXIT_CODE, FailureKind.REPORTED,
)  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """Why a run has no result: the kind of its cause, and one sentence (blank where no cause is known)."""

    kind: FailureKind
    detail: str

    @property
    def status(self) -> str:
        """The status of its row of a measurement table: oom, timeout or failed."""
        known = {FailureKind.OOM: "oom", FailureKind.TIMEOUT: "timeout", FailureKind.BEHIND: "timeout"}
        return known.get(self.kind, "failed")

    @property
    def cause(self) -> tuple[FailureKind, str]:
        """A key equal for failures of one cause: the kind; where it names none, also the sentence without numbers."""
        return self.kind, _OF_ONE_RUN.sub("#", self.detail) if self.kind in _NAMELESS else ""


def failure_in(row: Mapping[str, Any]) -> Failure:
    """The failure of a row of a run that has not succeeded.

    Rows of this process hold it as ``failure``; of others (a store, a launcher of another package) status and notes
    are read, up to the first separator.
    """
    if isinstance(known := row.get("failure"), Failure):
        return known
    notes, status = row.get("notes"), str(row["status"])
    kind = FailureKind(status) if status in (FailureKind.OOM, FailureKind.TIMEOUT) else FailureKind.REPORTED
    return Failure(kind, notes.split(_SEPARATOR)[0] if isinstance(notes, str) else "")


def joined_notes(*parts: object) -> str:
    """The notes of a row from a failure's sentence and remarks; blank ones, NaN and None are left out."""
    return _SEPARATOR.join(part for part in parts if isinstance(part, str) and part)


@dataclass(frozen=True, order=True)
class Source:
    """One cluster and software stack: runs of one source share the constants of hardware and framework."""

    origin: str  # where a table has its rows from; blank: not stated
    framework: str  # the profile's name, or what the table calls the software where no profile was fitted to it
    gpu: str  # a catalogue id
    gpus_per_node: int

    def __str__(self) -> str:
        """The key under which arrays and stored surrogates name the source."""
        return f"{self.origin}|{self.framework}|{self.gpu}|{self.gpus_per_node}"

    @classmethod
    def parse(cls, key: str) -> Source:
        """The source of a key that ``str`` wrote; ValueError for other text."""
        if key.count("|") < 3:
            raise ValueError(f"source {key!r}, expected origin|framework|GPU|GPUs per node")
        origin, framework, gpu, gpus_per_node = key.rsplit("|", 3)
        return cls(origin, framework, gpu, int(gpus_per_node))

    def to_text(self) -> str:
        """The source as messages name it: "bigscience, megatron-lm, a100-sxm4-80gb, 8 GPUs a node"."""
        words = (self.origin, self.framework, self.gpu, f"{self.gpus_per_node} GPUs a node")
        return ", ".join(dict.fromkeys(word for word in words if word))


@dataclass(frozen=True)
class Assumption:
    """A value that stands in for one that no input states."""

    key: str  # the field that it fills (``zero_stage``), or the group of constants that it replaces (``gemm``)
    value: Any  # None where many figures stand in
    reason: str  # the sentence for people, with the source
    topic: str = ""  # heading under which a summary lists it, such as a GPU's id; blank: none
    brief: str | None = None  # its text in a summary, without the source; None: the reason; blank: left out

    @classmethod
    def not_given(cls, key: str, value: Any, text: str, sentence: str = "") -> Assumption:
        """One of a key that an input leaves open; ``text`` is the value with its unit."""
        reason = f"{key} is not given; {sentence or f'{text} is assumed'}"
        return cls(key, value, reason, "not given", f"{key} {text}")

    def __str__(self) -> str:
        return self.reason
