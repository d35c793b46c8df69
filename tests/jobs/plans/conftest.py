"""A small job to bend: every test states only what it is about."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.cluster import Cluster, Gpu
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job, Search, Training
from jointopt.jobs.model import Model

DENSE = Model("dense", 8, 64, 96, 8, 4, 1000, 8)
MOE = replace(DENSE, name="moe", num_experts=12, moe_router_topk=2, moe_ffn_hidden_size=48)
GPU = Gpu(
    id="gpu-x",
    name="GPU X",
    vendor="nobody",
    architecture="none",
    peak_tflops={"bf16": 100.0},
    memory_gib=40.0,
    memory_gbytes_per_s=1000.0,
    sm_count=None,
    intra_node_gbytes_per_s=100.0,
    scale_up_gpus=None,
    usual_gpus_per_node=4,
    usual_inter_node_gbytes_per_s=10.0,
    clock_min_mhz=210.0,
    clock_max_mhz=1410.0,
    clock_step_mhz=15.0,
    tdp_w=400.0,
    idle_w=None,
    wait_w=None,
    throttle_temperature_c=None,
)


def build_job(
    nodes: int = 2,
    gpus_per_node: int = 4,
    model: Model = DENSE,
    search: dict[str, Any] | None = None,
    framework: Framework | None = None,
    gpu: Gpu = GPU,
    **training: Any,
) -> Job:
    cluster = Cluster(gpu, nodes, gpus_per_node, 100.0, 10.0, 5.0, 1.3, 20.0, 25.0, 500.0, 1.2, 400.0)
    settings = {"seq_length": 128, "global_batch_size": 24, "framework": framework or Framework(), **training}
    clocks = {"clock_mhz": (600.0, 1005.0, 1410.0), **(search or {})}
    return Job("job", model, Training(**settings), cluster, Search(**clocks))


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Job]:
    return build_job


@pytest.fixture(scope="session")
def moe() -> Model:
    return MOE


@pytest.fixture(scope="session")
def dense() -> Model:
    return DENSE
