"""A plan taken apart: the parts add up to the totals of the same plan, over random plans of shipped jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GIB
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import SharedCosts
from jointopt.physics.explain.parts import Breakdown, breakdown, communication_j, memory_traffic_j

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


@settings(max_examples=40, deadline=None)
@given(drawn=taken_apart())
def test_the_parts_add_up_to_the_totals_and_none_is_negative_but_the_leakage_of_a_cool_gpu(
    drawn: tuple[int, int, int], shipped_physics: Physics
) -> None:
    job, layout, seed = drawn
    parts, total = apart(shipped_physics(job), layout, seed)
    whole = float(total["iteration_time_s"][0])
    assert sum(parts.time_s.values()) == pytest.approx(whole, rel=1e-9)
    assert sum(parts.energy_j.values()) == pytest.approx(float(total["energy_j"][0]), rel=1e-9)
    assert sum(parts.memory_bytes.values()) / GIB == pytest.approx(float(total["peak_memory_gib"][0]), rel=1e-9)
    assert parts.stage_energy_j.sum() == pytest.approx(float(total["energy_j"][0]), rel=1e-9)
    assert parts.stage_memory_bytes.max() / GIB == pytest.approx(float(total["peak_memory_gib"][0]), rel=1e-9)
    assert all(seconds >= -1e-9 * whole for seconds in parts.time_s.values()), parts.time_s
    assert all(joules >= 0 for name, joules in parts.energy_j.items() if name != "leakage")
    assert all(size >= 0 for size in parts.memory_bytes.values())
    assert (parts.idle_s >= -1e-9 * whole).all()


@settings(max_examples=15, deadline=None)
@given(drawn=taken_apart())
def test_what_corrects_the_totals_corrects_the_parts(drawn: tuple[int, int, int], shipped_physics: Physics) -> None:
    job, layout, seed = drawn
    physics = shipped_physics(job)
    factor = np.full(len(physics.layouts["pp"]), 1.2)
    parts, total = apart(physics.corrected(factor, 1.1, 0.9, 35.0), layout, seed)
    plain, _ = apart(physics, layout, seed)
    assert sum(parts.energy_j.values()) == pytest.approx(float(total["energy_j"][0]), rel=1e-9)
    assert sum(parts.time_s.values()) == pytest.approx(1.2 * sum(plain.time_s.values()), rel=1e-9)
    assert parts.stage_power_w == pytest.approx(0.9 * plain.stage_power_w + 35.0, rel=1e-9)
    np.testing.assert_allclose(parts.stage_memory_bytes, 1.1 * plain.stage_memory_bytes)


@settings(max_examples=25, deadline=None)
@given(drawn=taken_apart())
def test_stages_have_their_own_clock_power_and_layers_and_every_level_of_the_energy_adds_up_to_the_one_above(
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
    links = {kind: sum(by_link.values()) for kind, by_link in parts.communication_energy_j.items()}
    assert sum(links.values()) == pytest.approx(parts.energy_j["communication"], rel=1e-9)
    assert sum(parts.memory_energy_j.values()) == pytest.approx(parts.energy_j["memory"], rel=1e-9)
    assert min(*parts.memory_energy_j.values(), *links.values()) >= 0.0
    by_stage = np.sum(list(parts.stage_energy_parts_j.values()), axis=0)
    np.testing.assert_allclose(by_stage, parts.stage_energy_j, rtol=1e-9)


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


Price = Callable[..., CostModel]
Jobs = Callable[..., Job]


def total(parts: dict[str, Floats]) -> float:
    return float(sum(values.sum() for values in parts.values()))


def test_weights_are_read_as_often_whoever_holds_them(make_job: Jobs, price: Price) -> None:
    plans = price(make_job(), dp=[8, 1], tp=[1, 8])
    apart = [float(memory_traffic_j(plans, i)["weights"].sum()) for i in range(2)]
    assert apart[0] == pytest.approx(apart[1], rel=0.01)


def test_without_tensor_parallelism_nothing_is_read_again(make_job: Jobs, price: Price) -> None:
    plans = price(make_job(), dp=[8, 2], pp=[1, 4])
    assert [float(memory_traffic_j(plans, i)["tensor_parallel_rereads"].sum()) for i in range(2)] == [0.0, 0.0]


def test_more_tensor_parallelism_reads_more_activations_again_for_the_same_tokens(make_job: Jobs, price: Price) -> None:
    plans = price(make_job(), dp=[8, 4, 2, 1], tp=[1, 2, 4, 8])
    again = [float(memory_traffic_j(plans, i)["tensor_parallel_rereads"].sum()) for i in range(4)]
    assert again == sorted(again)
    assert again[1] > 0


@pytest.mark.parametrize(
    ("plan", "kind"),
    [({"dp": 8}, "dp_comm"), ({"tp": 8}, "tp_comm"), ({"pp": 4, "tp": 1}, "pp_comm"), ({"cp": 8}, "cp_comm")],
)
def test_a_layout_pays_for_its_own_links_alone(plan: dict[str, int], kind: str, make_job: Jobs, price: Price) -> None:
    spent = {
        name: total(links)
        for name, links in communication_j(price(make_job(int(np.prod(list(plan.values())))), **plan), 0).items()
    }
    others = {"dp_comm"} if kind == "cp_comm" else set()  # ranks of a context group share their gradients
    assert {name for name, joules in spent.items() if joules > 0} == {kind} | others


@pytest.mark.parametrize(("gpus", "link"), [(8, "intra_node"), (16, "inter_node")])
def test_a_pair_of_stages_on_two_nodes_talks_between_nodes(gpus: int, link: str, make_job: Jobs, price: Price) -> None:
    sent = communication_j(price(make_job(gpus), dp=gpus // 2, pp=2), 0)["pp_comm"]
    assert {name for name, joules in sent.items() if joules.sum() > 0} == {link}


def test_links_between_nodes_are_distinguished_where_prices_are_shared_too(make_job: Jobs, price: Price) -> None:
    job = make_job(16)
    alone = price(job, dp=8, pp=2)
    shared = CostModel(job, alone.layouts, common=SharedCosts(alone.hardware, alone.shapes))
    for kind, links in communication_j(shared, 0).items():
        for link, joules in links.items():
            np.testing.assert_allclose(joules, communication_j(alone, 0)[kind][link])


def test_a_pipeline_sends_each_boundary_forward_and_back_once(make_job: Jobs, price: Price) -> None:
    # 4 stages, 3 boundaries; 2 bytes x tokens x hidden each way, 8 micro-batches of 2 sequences, 1.3 pJ/bit
    job = make_job(4, global_batch_size=16)
    job = replace(job, cluster=replace(job.cluster, intra_node_pj_per_bit=1.3))
    sent = communication_j(price(job, pp=4, micro_batch_size=2), 0)["pp_comm"]["intra_node"].sum()
    moved = 2 * 3 * 8 * 2.0 * (2 * job.training.seq_length) * job.model.hidden_size
    assert float(sent) == pytest.approx(moved * 8 * 1.3e-12)


@pytest.mark.parametrize("cells", [{"dp": 2, "tp": 8, "ep": 16}, {"dp": 4, "tp": 4, "ep": 8}, {"dp": 16, "ep": 8}])
def test_the_energy_of_whole_experts_over_tensor_ranks_adds_up(
    cells: dict[str, int], make_job: Jobs, price: Price, catalogue_model: Callable[[str], Any]
) -> None:
    job = make_job(16, catalogue_model("olmoe-1b-7b"))
    physics = price(job, etp=1, zero_stage=1, sequence_parallel=cells.get("tp", 1) > 1, **cells)
    parts = breakdown(physics, 0, np.array([physics.top_mhz]))
    assert min(parts.memory_energy_j.values()) >= 0.0
    assert sum(parts.memory_energy_j.values()) == pytest.approx(parts.energy_j["memory"], rel=1e-9)
    links = sum(sum(by_link.values()) for by_link in parts.communication_energy_j.values())
    assert links == pytest.approx(parts.energy_j["communication"], rel=1e-9)
