"""A plan taken apart: the parts add up to the totals of the same plan, over random plans of shipped jobs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import Columns
from jointopt.core.units import GIB
from jointopt.physics.breakdown import Breakdown, breakdown
from jointopt.physics.cost_model import CostModel
from jointopt.spec.job import Job

Physics = Callable[[int], CostModel]


@st.composite
def taken_apart(draw: st.DrawFn) -> tuple[int, int, int]:
    """(job, layout, seed of the clocks)."""
    return draw(st.integers(0, 6)), draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6))


def apart(physics: CostModel, layout: int, seed: int) -> tuple[Breakdown, Columns]:
    layout %= len(physics.layouts["pp"])
    grid = np.asarray(physics.job.search.clock_mhz)
    clocks = np.random.default_rng(seed).choice(grid, int(physics.layouts["pp"][layout]))
    return breakdown(physics, layout, clocks), physics.evaluate(np.array([layout]), clocks[None, :])


@settings(max_examples=150, deadline=None)
@given(drawn=taken_apart())
def test_the_parts_add_up_to_the_totals(drawn: tuple[int, int, int], shipped_physics: Physics) -> None:
    job, layout, seed = drawn
    parts, total = apart(shipped_physics(job), layout, seed)
    assert sum(parts.time_s.values()) == pytest.approx(float(total["iteration_time_s"][0]), rel=1e-9)
    assert sum(parts.energy_j.values()) == pytest.approx(float(total["energy_j"][0]), rel=1e-9)
    assert sum(parts.memory_bytes.values()) / GIB == pytest.approx(
        float(total["peak_memory_gib"][0]), rel=1e-9
    )
    assert parts.stage_energy_j.sum() == pytest.approx(float(total["energy_j"][0]), rel=1e-9)
    assert parts.stage_memory_bytes.max() / GIB == pytest.approx(float(total["peak_memory_gib"][0]), rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(drawn=taken_apart())
def test_no_part_is_negative_but_the_leakage_of_a_cool_gpu(
    drawn: tuple[int, int, int], shipped_physics: Physics
) -> None:
    job, layout, seed = drawn
    parts, _ = apart(shipped_physics(job), layout, seed)
    whole = sum(parts.time_s.values())
    assert all(seconds >= -1e-9 * whole for seconds in parts.time_s.values()), parts.time_s
    assert all(joules >= 0 for name, joules in parts.energy_j.items() if name != "leakage")
    assert all(size >= 0 for size in parts.memory_bytes.values())
    assert (parts.idle_s >= -1e-9 * whole).all()


@settings(max_examples=60, deadline=None)
@given(drawn=taken_apart())
def test_stages_have_their_own_clock_power_and_layers(
    drawn: tuple[int, int, int], shipped_physics: Physics
) -> None:
    job, layout, seed = drawn
    physics = shipped_physics(job)
    parts, total = apart(physics, layout, seed)
    pp = int(physics.layouts["pp"][layout % len(physics.layouts["pp"])])
    assert len(parts.clock_mhz) == len(parts.stage_power_w) == len(parts.stage_temperature_c) == pp
    assert parts.layers.sum() == physics.job.model.num_layers
    assert parts.stage_power_w.mean() == pytest.approx(float(total["avg_power_w"][0]))
    np.testing.assert_allclose(parts.busy_s + parts.idle_s, float(total["iteration_time_s"][0]))


@pytest.mark.parametrize(
    ("plan", "gone"),
    [
        ({"dp": 8}, {"tp_comm", "cp_comm", "pp_comm", "zero_comm", "bubble"}),
        ({"tp": 8}, {"cp_comm", "pp_comm", "zero_comm", "bubble", "dp_comm"}),
        ({"cp": 8}, {"tp_comm", "pp_comm", "zero_comm", "bubble"}),
        ({"pp": 4, "dp": 2}, {"tp_comm", "cp_comm", "zero_comm"}),
    ],
)
def test_what_a_plan_does_not_do_takes_no_time(
    plan: dict[str, int], gone: set[str], make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    physics = price(make_job(), **plan)
    parts = breakdown(physics, 0, np.full(plan.get("pp", 1), physics.top_mhz)).time_s
    assert {name: parts[name] for name in gone} == pytest.approx(dict.fromkeys(gone, 0.0), abs=1e-12)
    assert parts["compute"] > 0


def test_per_gpu_memory_of_the_heaviest_stage_is_what_is_shown(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    physics = price(make_job(), pp=4, dp=2)
    parts = breakdown(physics, 0, np.full(4, physics.top_mhz))
    assert parts.stage_memory_bytes.argmax() in (0, 3)  # the embedding and most micro-batches, or the head
    assert sum(parts.memory_bytes.values()) == pytest.approx(parts.stage_memory_bytes.max())
