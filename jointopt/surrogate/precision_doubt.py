"""Doubts about the precision that measured runs state: times that the next lower one would explain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jointopt.core.errors import JointOptError
from jointopt.core.facts import Source
from jointopt.jobs.job import TF32, Job
from jointopt.surrogate.evidence import Evidence
from jointopt.surrogate.intervals import physics_errors

FEWEST, MOST = 3, 40  # runs of a source
FAST = 0.67  # of the predicted time, below which most of a source's runs are before their precision is doubted
CLEARLY = 0.6  # of it, below which the next precision need not be nearer by far
NEARER = 1.0 / 3.0  # of a logarithm, which the next precision may leave of what the runs are off by
_LOWER = {"fp32": ("bf16", "fp16"), "bf16": ("fp8",), "fp16": ("fp8",), "fp8": ("fp4",)}


def next_lower(job: Job) -> str:
    """The next faster precision that the job's GPU has, as a job file states it; blank where there is none."""
    rates, precision = job.cluster.gpu.peak_tflops, job.training.precision
    if job.cluster.gpu.is_cpu:
        return ""
    if precision == "fp32" and job.cluster.gpu.has_tf32:
        return TF32
    wanted = _LOWER.get("fp32" if precision == TF32 else precision, ())
    return next((name for name in wanted if name in rates), "")


def in_precision(job: Job, precision: str) -> Job:
    """The job in another precision, scaled as its framework scales it."""
    training = job.training
    tf32 = replace(training.framework, tf32=precision == TF32)
    dtype = "fp32" if precision == TF32 else precision
    return replace(job, training=replace(training, dtype=dtype, framework=tf32, fp8_recipe=None))


def precision_words(evidence: Evidence) -> str:
    """A question where the timed runs of one source are too fast for their precision, and right in the next lower one.

    Blank for fewer than `FEWEST` runs, and for runs of several precisions or that cannot be priced anew.
    """
    some = evidence.some(MOST)
    if some.runs is None or len(some.runs) < FEWEST or np.mean(some.residual < np.log(FAST)) <= 0.5:
        return ""
    jobs = [part.works[i].job for part in some.priced for i in np.unique(part.work).tolist()]
    pairs = {(job.training.precision, next_lower(job)) for job in jobs}
    stated, lower = next(iter(pairs))
    if len(pairs) > 1 or not lower:
        return ""
    try:
        there = some.under(lambda job: in_precision(job, lower))
    except JointOptError:
        return ""
    if there is None:
        return ""
    now, then = (float(np.exp(np.median(one.residual))) for one in (some, there))
    known = all(job.training.framework.fitted for job in jobs)
    low, high = physics_errors()["iteration_time_s"]["near" if known else "unknown"]
    nearer = abs(np.log(then)) <= NEARER * abs(np.log(now))
    if not (low <= then <= high and (now < CLEARLY or nearer)):
        return ""
    return (
        f"take {now:.2f} times what the physics says in {stated}; in {lower} {then:.2f} times: is the precision right?"
    )


def precision_lines(evidence: Mapping[str, Evidence]) -> dict[str, str]:
    """`precision_words` behind the name of each source that they are of, by its key."""
    words = {key: precision_words(one) for key, one in evidence.items()}
    return {key: f"Measured runs ({Source.parse(key).to_text()}) {text}" for key, text in words.items() if text}
