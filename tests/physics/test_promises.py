"""What a search relies on: what gets faster makes no iteration longer, and what gets slower makes none shorter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import SCHEDULE, STAGE_LAYERS
from jointopt.physics.cost_model import CostModel
from tests.physics.hand.plain_machine import DENSE, FLOPS_PER_S, TOP_MHZ, gpu_constants, physics

PLANS, ROUNDING = 32, 1.0 + 1e-12


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """A plan whose chunks have any number of layers, and gradients that take from a fraction of a pass to many."""
    pp, schedule = draw(st.integers(2, 4)), draw(st.sampled_from(["1f1b", "1f1b", "zb-h1", "zbv", "dualpipev"]))
    vpp = {"zb-h1": 1, "zbv": 2, "dualpipev": 2}.get(schedule) or draw(st.integers(1, 3))
    layers = draw(st.lists(st.integers(0, 3), min_size=pp * vpp, max_size=pp * vpp).filter(any))
    profile = {"pp_overlap": draw(st.sampled_from([0.0, 1.0])), "dp_overlap": draw(st.sampled_from([0.0, 0.4, 1.0]))}
    model = replace(DENSE, num_layers=sum(layers), vocab_size=draw(st.sampled_from([64, 64_000])))
    return {
        "pp": pp, "vpp": vpp, "schedule": SCHEDULE.code(schedule), "stage_layers": STAGE_LAYERS.code_of(layers),
        "batches": draw(st.integers(1, 3 * pp)), "dp": 4, "zero_stage": draw(st.integers(0, 3)), "framework": profile,
        "model": model, "machine": gpu_constants(FLOPS_PER_S / draw(st.sampled_from([1.0, 10.0, 100.0]))),
    }  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(pipelines(), st.integers(0, 2**32 - 1))
def test_a_higher_clock_of_one_stage_takes_no_longer(plan: dict[str, Any], seed: int) -> None:
    model, draws = physics(**plan), np.random.default_rng(seed)
    clocks = draws.uniform(200.0, TOP_MHZ, (PLANS, plan["pp"]))
    higher, at = clocks.copy(), (np.arange(PLANS), draws.integers(0, plan["pp"], PLANS))
    higher[at] = draws.uniform(higher[at], TOP_MHZ)
    before, after = (model.iteration_time_s(np.zeros(PLANS, np.int64), mhz) for mhz in (clocks, higher))
    assert (after <= before * ROUNDING).all()


@settings(max_examples=40, deadline=None)
@given(pipelines(), st.sampled_from(["intra_node_gbytes_per_s", "inter_node_gbytes_per_s"]))
def test_a_slower_link_takes_no_less(plan: dict[str, Any], link: str) -> None:
    model = physics(**plan | {"tp": 2})
    clocks = np.linspace(200.0, TOP_MHZ, PLANS)[:, None] * np.ones(plan["pp"])
    slower = replace(model.job.cluster, **{link: 0.9 * getattr(model.job.cluster, link)})
    after = CostModel(replace(model.job, cluster=slower), model.layouts, plan["machine"])
    index = np.zeros(PLANS, np.int64)
    assert (after.iteration_time_s(index, clocks) * ROUNDING >= model.iteration_time_s(index, clocks)).all()


def limited(physics: CostModel, limit_w: float, latency: float = 1.0) -> CostModel:
    """The same layouts in air of 60 °C under a power limit, the network's latency so many times as long."""
    cluster = physics.job.cluster
    changed = replace(
        cluster,
        power_limit_w=limit_w,
        inlet_temperature_c=60.0,
        inter_node_latency_us=latency * cluster.inter_node_latency_us,
    )
    return CostModel(replace(physics.job, cluster=changed), physics.layouts)


@pytest.mark.parametrize("job", [0, 6])
@pytest.mark.parametrize("limit_w", [180.0, 240.0, 390.0])
def test_under_a_limit_neither_more_power_takes_longer_nor_a_slower_network_less(
    shipped_physics: Callable[[int], CostModel], one_clock: Callable[..., Any], job: int, limit_w: float
) -> None:
    base = shipped_physics(job)
    index, top = np.arange(len(base.layouts["pp"])), one_clock(base, base.top_mhz)
    found = [limited(base, limit_w), limited(base, 1.03 * limit_w), limited(base, limit_w, latency=3.0)]
    plain_s, faster_s, slower_s = (one.iteration_time_s(index, top) for one in found)
    assert (faster_s <= plain_s * ROUNDING).all()
    assert (slower_s * ROUNDING >= plain_s).all()
