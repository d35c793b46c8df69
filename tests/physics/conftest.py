"""Jobs and plans for tests of the physics; every test states only what it is about."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GIB
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job, Search, Training
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel, memory_limit_gib
from jointopt.physics.memory import peak_memory_bytes

# Jobs of published experiments, and others under frameworks with other profiles (ZeRO-3, host floors, gradient syncs).
SHIPPED = (
    ("opt-350m-2x4-a100", ""), ("opt-350m-8x4-gh200", "torchtitan"), ("olmoe-1b-7b-8x4-gh200", ""),
    ("llama-3-8b-1x8-h100", "fsdp"), ("llama-3-70b-4x8-h200", "nanotron"), ("mixtral-8x22b-8x8-h100", "nemo"),
    ("gpt3-175b-128x8-a100", "megatron-lm"),
)  # fmt: skip
_SAMPLE = 150


def gpt(layers: int = 4, hidden: int = 1024, heads: int = 16, vocab: int = 51200, **fields: Any) -> Model:
    """A GPT as in Megatron-LM's papers: plain MLP, LayerNorm, dropout."""
    shape = {"gated_mlp": False, "rmsnorm": False, "norm_bias": True, "dropout": True} | fields
    return Model("gpt", layers, hidden, 4 * hidden, heads, heads, vocab, hidden // heads, **shape)


def columns(**cells: Any) -> Columns:
    """Layouts from scalars or lists; a degree that is not named is 1, ZeRO stage and recompute are 0."""
    plain = dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size"), 1)
    rows = plain | {"sequence_parallel": False, "recompute": 0, "zero_stage": 0} | cells
    arrays = np.broadcast_arrays(*rows.values())
    kinds: dict[str, Any] = {"sequence_parallel": bool, "recompute": np.int8}
    return {name: a.astype(kinds.get(name, np.int64)) for name, a in zip(rows, np.atleast_1d(*arrays), strict=True)}


def job_on(
    gpus: int = 8, model: Model | None = None, gpu: str = "a100-sxm4-80gb", framework: str = "megatron-lm",
    **training: Any,
) -> Job:  # fmt: skip
    """A job on nodes of 8 GPUs."""
    cluster = build_cluster({"gpu": gpu, "nodes": -(-gpus // 8), "gpus_per_node": min(gpus, 8)})
    settings = {"seq_length": 2048, "global_batch_size": 64, "framework": load_framework(framework)} | training
    return Job("job", model or gpt(), Training(**settings), cluster, search=_clocks(cluster.gpu.clock_max_mhz))


def _clocks(top: float | None) -> Search:
    return Search(clock_mhz=tuple(np.linspace(0.5, 1.0, 6) * (top or 1.0)))


def priced(job: Job, **cells: Any) -> CostModel:
    return CostModel(job, columns(**cells))


@functools.cache
def shipped(index: int) -> CostModel:
    """The physics of a shipped job over a fixed sample of its layouts that fit in memory."""
    name, framework = SHIPPED[index]
    job = load_job(name)
    if framework:
        job = replace(job, training=replace(job.training, framework=load_framework(framework)))
    layouts = enumerate_layouts(job).layouts
    fits = np.flatnonzero(peak_memory_bytes(job, layouts) <= memory_limit_gib(job) * GIB)
    some = np.random.default_rng(7).choice(fits, min(_SAMPLE, len(fits)), replace=False)
    return CostModel(job, {k: v[some] for k, v in layouts.items()})


def uniform(physics: CostModel, clock_mhz: float | Floats) -> Floats:
    """One clock on all stages of every layout, (n, max pp), NaN beyond a layout's pp."""
    return uniform_stage_clocks(physics.layouts["pp"], clock_mhz)


@pytest.fixture(scope="session")
def gpt_model() -> Callable[..., Model]:
    return gpt


@pytest.fixture(scope="session")
def layouts_of() -> Callable[..., Columns]:
    return columns


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Job]:
    return job_on


@pytest.fixture(scope="session")
def price() -> Callable[..., CostModel]:
    return priced


@pytest.fixture(scope="session")
def shipped_physics() -> Callable[[int], CostModel]:
    return shipped


@pytest.fixture(scope="session")
def one_clock() -> Callable[..., Floats]:
    return uniform


@pytest.fixture(scope="session")
def catalogue_model() -> Callable[[str], Model]:
    return load_model
