"""How many keys a query meets in attention: all before it, or those of a sliding window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.jobs.job import Job

_SKIPPING = ("flash2", "flash3")  # FlashAttention has windows since 2.3; other kernels work all scores out and mask
# queries that a block of flash kernels works on at once, for heads up to 128 wide (flash_fwd_launch_template.h)
BLOCK_QUERIES = 128


@dataclass(frozen=True)
class Span:
    """Keys that a query meets in the mean over a rank's, and the share of the queries whose window starts late, (L,).

    Queries whose window starts after the first token cost a second, partly masked block of keys beside the diagonal's.
    """

    keys: Floats | float
    cut: Floats | float = 0.0


def windowed_span(seq_length: int, window: int, cp: Floats) -> Span:
    """The span, (L,), of a window of fewer tokens than the sequence on the slowest of ``cp`` context-parallel ranks.

    Query t meets min(t, window) keys, s·w - w²/2 pairs of the whole sequence. Of its 2·cp slices a rank has the r-th
    from both ends, as Megatron Core and Transformer Engine share causal work out; with windows those in the middle have
    most, which this is. Derived here; the token itself is left out as in s²/2.
    """
    half = seq_length / (2.0 * cp)
    ends = seq_length / 2.0 - half, seq_length / 2.0 + half
    first, last = (np.minimum(end, window) * (end - np.minimum(end, window) / 2.0) for end in ends)
    late = [np.maximum(end - window, 0.0) for end in ends]
    return Span(keys=(last - first) / (2.0 * half), cut=(late[1] - late[0]) / (2.0 * half))


def seen_share(window: int, seq_length: int) -> float:
    """Share of a causal mask's pairs that a window leaves, 1 where it holds the sequence: (s·w - w²/2) over s²/2."""
    share = min(window / seq_length, 1.0)
    return share * (2.0 - share)


def skipping_window(job: Job) -> int:
    """Tokens that the job's windowed layers look back where that spares their kernel work, else 0."""
    model, training = job.model, job.training
    spares = 0 < model.window_size < training.seq_length and training.attention in _SKIPPING
    return model.window_size if spares and any(model.windowed_layers) else 0
