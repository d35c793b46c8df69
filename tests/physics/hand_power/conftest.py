"""A GPU with round figures, its board at 1,000 MHz, and the physics of one plan of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel

# V falls from 1 at 1,000 MHz to 0.8 at 600 MHz and stays there, so that V(800 MHz) is 0.9.
ROUND = PowerConstants(
    static_w=50.0, wait_w=80.0, active_w=100.0, pj_per_flop=1.0, pj_per_hbm_byte=50.0,
    knee_fraction=0.6, voltage_ratio=1.25,
)  # fmt: skip


@pytest.fixture(scope="session")
def constants() -> PowerConstants:
    return ROUND


@pytest.fixture(scope="session")
def round_job(make_job: Callable[..., Job]) -> Callable[..., Job]:
    """A job on eight such GPUs, TDP 400 W, throttling at 85 °C, in air of 25 °C; keyword arguments replace fields."""

    def job(gpus: int = 8, **cluster: Any) -> Job:
        known = make_job(gpus)
        gpu = replace(
            known.cluster.gpu, power=ROUND, clock_max_mhz=1000.0, clock_min_mhz=200.0, tdp_w=400.0,
            throttle_temperature_c=85.0,
        )  # fmt: skip
        fields = {"gpu": gpu, "inlet_temperature_c": 25.0, "power_limit_w": 2000.0, "exhaust_rise_k": 0.0}
        return replace(known, cluster=replace(known.cluster, **(fields | cluster)))

    return job


@pytest.fixture(scope="session")
def plan_of(round_job: Callable[..., Job], price: Callable[..., CostModel]) -> Callable[..., CostModel]:
    """The physics of one layout, given as ``cells``, on a cluster with other fields."""

    def plan(cells: dict[str, Any], gpus: int = 8, **cluster: Any) -> CostModel:
        return price(round_job(gpus, **cluster), **cells)

    return plan
