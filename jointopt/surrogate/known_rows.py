"""Rows of tables recognised by what they state, whatever file they stand in: the work, the plan, the measured time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.schema import Floats

if TYPE_CHECKING:
    from jointopt.runs.workloads import Workload  # imports pandas

# What tables state and no default stands in for but that of a plain run; the time distinguishes what these leave alike.
_PLAN = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size")
_DIGITS = 8  # of a time: less than tables write, and rounding of any computation stays far below

Fingerprints = np.ndarray[Any, np.dtype[np.uint64]]


def fingerprints(works: Iterable[Workload], time_s: Floats) -> Fingerprints:
    """A number for the content of each row of a table, (n,); 0 for those of no work or without a time.

    ``works`` hold positions in the table, ``time_s`` (n,) are the measured iteration times of its rows in s. Rows of
    one work, plan and clock whose times agree to eight digits are the same run.
    """
    out = np.zeros(len(time_s), np.uint64)
    for work in works:
        timed = time_s[work.rows] > 0.0
        texts = (text for text, known in zip(_texts(work, time_s), timed.tolist(), strict=True) if known)
        out[work.rows[timed]] = [_number(text) for text in texts]
    return out


def _texts(work: Workload, time_s: Floats) -> Iterator[str]:
    job = work.job
    alike = (
        job.model.num_layers, job.model.hidden_size, job.training.seq_length, job.training.global_batch_size,
        job.cluster.gpu.id, job.cluster.num_gpus,
    )  # fmt: skip
    plans = np.stack([work.plans[name] for name in _PLAN], axis=1).tolist()
    clocks = np.nanmean(work.stage_clock_mhz, axis=1).tolist()
    for plan, clock_mhz, seconds in zip(plans, clocks, time_s[work.rows].tolist(), strict=True):
        yield "|".join(map(str, (*alike, *plan, round(clock_mhz), f"{seconds:.{_DIGITS}g}")))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
