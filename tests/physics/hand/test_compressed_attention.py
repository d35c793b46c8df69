"""DeepSeek-V4's attention by hand: what its indexer scores, and what residual streams read and write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job
from jointopt.jobs.model import Layer
from jointopt.physics.layers import kernels, mixer_core, stream_mixing

FLASH = load_model("deepseek-v4-flash")  # 64 heads of 512; an indexer of 64 heads of 128 leaves 512 entries
TOKENS, ONE = np.array(8192.0), np.array(1.0)


def test_an_indexer_scores_an_entry_for_every_four_tokens_and_attention_those_that_it_leaves(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(model=FLASH)
    k = kernels(job, kernel_constants(job.cluster.gpu))
    found = mixer_core(k, FLASH, Layer("compressed_sparse", "experts"), TOKENS, 8192, ONE, ONE).forward.flops
    scored = 8192 / 4 / 2 * 2 * 64 * 128  # entries before a token, in the mean
    seen = 640 - 640 * 640 / 2 / 8192  # 512 entries and a window of 128, fewer at the start
    assert float(found) == pytest.approx(8192 * (scored + seen * 4 * 64 * 512), rel=0.01)


def test_four_residual_streams_are_read_twice_and_written_once(make_job: Callable[..., Job]) -> None:
    job = make_job(model=FLASH)
    k = kernels(job, kernel_constants(job.cluster.gpu))
    wide = TOKENS * 4096 * k.element_bytes
    moved = stream_mixing(k, FLASH, wide).forward.hbm_bytes
    # 4 read, 1 written; 4 and the output read, 4 written: 14, of which a layer with one stream has 3
    assert float(moved) == pytest.approx(float(11 * wide * k.elementwise_factor))
    assert float(stream_mixing(k, replace(FLASH, num_residual_streams=0), wide).forward.hbm_bytes) == 0.0
