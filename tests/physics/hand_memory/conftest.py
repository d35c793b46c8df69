"""Models small enough for arithmetic on paper, and the bytes that a layout of them holds per stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jointopt.core.schema import Columns
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Model
from jointopt.physics.memory import memory_parts

# Of one layer: attention 64·8·(2·8 + 2·2) = 10,240, gated MLP 3·64·192 = 36,864, two RMS norms 2·64 = 128.
# Vocabulary 1,000·64 = 64,000.
LLAMA = Model("llama", 4, 64, 192, 8, 2, 1000, 8)
# Of an MoE layer: router 4·64 = 256, an expert 3·64·32 = 6,144.
MOE = replace(LLAMA, name="moe", num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=32)


@pytest.fixture(scope="session")
def llama() -> Callable[..., Model]:
    """The dense model with other fields."""
    return lambda **fields: replace(LLAMA, **fields)


@pytest.fixture(scope="session")
def moe() -> Callable[..., Model]:
    """The model with four experts, two routed to, with other fields."""
    return lambda **fields: replace(MOE, **fields)


@pytest.fixture(scope="session")
def hand_job() -> Callable[..., Job]:
    """A job of 16 sequences of 128 tokens, flash attention; ``framework`` replaces a profile that adds nothing."""

    def job(model: Model = LLAMA, framework: dict[str, Any] | None = None, **training: Any) -> Job:
        cluster = build_cluster({"gpu": "a100-sxm4-80gb", "nodes": 1, "gpus_per_node": 8})
        cluster = replace(cluster, gpu=replace(cluster.gpu, process_memory_gib=None))
        profile = Framework(**({"memory_overhead_gib": 0.0, "gradient_bytes": 4} | (framework or {})))
        return Job(
            "hand",
            model,
            Training(**({"seq_length": 128, "global_batch_size": 16, "framework": profile} | training)),
            cluster,
        )

    return job


@pytest.fixture(scope="session")
def held(hand_job: Callable[..., Job], layouts_of: Callable[..., Columns]) -> Callable[..., list[float]]:
    """Bytes of one part of the memory on every stage, for one layout given as ``cells``."""

    def of(part: str, cells: dict[str, Any], *model: Model, **job: Any) -> list[float]:
        return memory_parts(hand_job(*model, **job), layouts_of(**cells))[part][0].tolist()

    return of
