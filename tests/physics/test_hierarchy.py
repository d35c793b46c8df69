"""Energy by level: it adds up to the model's own, and traffic is what products of one layer have by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job, shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import LEVELS, _operand_bytes, breakdown, energy_by_level
from jointopt.studies.evidence import STUDIES

BLOCK = load_job(STUDIES / "rack-scale-jobs" / "feed-forward.yaml")
TOKENS, HIDDEN, INNER = 2048.0, 4096.0, 14336.0


def priced(job: Job, plan: str) -> tuple[CostModel, dict[str, np.ndarray], dict[str, np.ndarray]]:
    parsed = parse_plan(plan, job)
    physics = CostModel(job, parsed.layouts)
    parts = breakdown(physics, 0, parsed.stage_clock_mhz[0])
    return physics, energy_by_level(physics, 0, parts), parts.stage_energy_parts_j


@pytest.mark.parametrize("plan", ["tp=4 pp=4 dp=2", "tp=8 dp=4 zero_stage=3", "tp=2 pp=8 dp=2 clock=1200"])
def test_levels_add_up_to_the_parts_compute_and_memory(plan: str) -> None:
    _, levels, parts = priced(shipped_job("llama-3-70b-4x8-h200"), plan)
    assert tuple(levels) == LEVELS
    assert all((joules > 0.0).all() for joules in levels.values())
    np.testing.assert_allclose(sum(levels.values()), parts["compute"] + parts["memory"])


def test_operands_and_results_of_a_block_s_products_by_hand() -> None:
    """Two products forward and two for each backward: every matrix is read twice and written once, in 16 bit."""
    physics, *_ = priced(BLOCK, "dp=4 zero_stage=0 overlap=none recompute=none")
    operands, results, streams = _operand_bytes(physics, 0)
    matrices = 2 * (TOKENS * HIDDEN + TOKENS * INNER + HIDDEN * INNER)
    assert operands[0] == pytest.approx(2 * 2 * matrices)
    assert results[0] == pytest.approx(2 * matrices)
    assert operands[0] + results[0] + streams[0] == pytest.approx(physics.groups[0].hbm_bytes[0, 0])


def test_tiles_of_128_by_256_read_operands_from_l2_by_hand() -> None:
    physics, levels, parts = priced(BLOCK, "dp=4 zero_stage=0 overlap=none recompute=none")
    flops = 6 * 2 * TOKENS * HIDDEN * INNER
    operands, *_ = _operand_bytes(physics, 0)
    from_l2 = flops * (1 / 128 + 1 / 256) - operands[0]  # two bytes for two operations
    l2_share = 15.48 / (15.48 + 30.55)
    share = from_l2 * physics.power.pj_per_hbm_byte * l2_share / (physics.power.pj_per_flop * flops)
    assert levels["l2"].sum() == pytest.approx((share * parts["compute"] + l2_share * parts["memory"]).sum())
    assert levels["registers"].sum() == pytest.approx(0.22 / 1.22 * (1 - share) * parts["compute"].sum())


def test_reads_and_writes_of_the_optimizer_are_half_each_and_results_are_written() -> None:
    physics, levels, _ = priced(BLOCK, "dp=4 zero_stage=0 overlap=none recompute=none")
    _, results, streams = _operand_bytes(physics, 0)
    costs = physics.groups[0]
    batches, step = float(costs.num_micro_batches[0]), costs.iteration_hbm_bytes[0, 0]
    written = batches * (results[0] + 0.4 * streams[0]) + 0.5 * step
    whole = batches * costs.hbm_bytes[0, 0] + step
    shares = levels["memory_written"] / (levels["memory_written"] + levels["memory_read"])
    assert shares[0] == pytest.approx(written / whole)


def test_operands_of_eight_bits_are_half_as_many_bytes_and_results_as_many() -> None:
    wide = shipped_job("llama-3-8b-1x8-h100")
    narrow = replace(wide, training=replace(wide.training, dtype="fp8"))
    (operands, results, _), (less, as_many, _) = (_operand_bytes(priced(job, "dp=8")[0], 0) for job in (wide, narrow))
    assert less[0] == pytest.approx(0.5 * operands[0])
    assert as_many[0] == pytest.approx(results[0])
