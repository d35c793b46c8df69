"""What a proposal shows beside its front."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.jobs.jobfile import job_from_options, shipped_job
from jointopt.report.alternatives import AlternativePlan, published_plan_lines
from jointopt.workflows.explain import explain
from jointopt.workflows.propose import propose, unusual_layouts


@pytest.fixture(scope="module")
def found() -> tuple[AlternativePlan, ...]:
    return propose(shipped_job("llama-3-405b-2048x8-h100")).beside


def test_the_published_plan_of_llama_405b_has_its_rank_and_its_distance_from_the_first_row(
    found: tuple[AlternativePlan, ...],
) -> None:
    published = next(plan for plan in found if plan.source)
    assert published.plan["tp"] == 8
    assert published.plan["pp"] == 16
    assert published.plan["stage_layers"].startswith("0;1;1")
    assert abs(published.behind) < 0.1


def test_plans_beside_the_front_have_the_ranks_that_explain_has(found: tuple[AlternativePlan, ...]) -> None:
    job = shipped_job("llama-3-405b-2048x8-h100")
    for plan in found:
        rank = explain(job, plan.text, ranked=True).rank
        assert rank is not None
        assert rank.rank == plan.rank
    assert any(plan.rank for plan in found)


def test_a_layout_is_outside_by_what_no_published_run_has() -> None:
    job = shipped_job("llama-3-405b-2048x8-h100")
    columns = {"dp": [4, 1, 128], "tp": [4, 8, 8], "pp": [64, 128, 16], "cp": [16, 16, 1], "vpp": [1, 1, 8]}
    found = unusual_layouts(job, {name: np.array(values) for name, values in columns.items()})
    assert [where.tolist() for where in found.values()] == [
        [True, True, False], [True, True, False], [False, True, False], [False, False, False],
    ]  # fmt: skip


def test_a_plan_beside_the_front_is_compared_with_its_fastest_whatever_the_baseline_is(
    found: tuple[AlternativePlan, ...],
) -> None:
    job = shipped_job("llama-3-405b-2048x8-h100")
    against = propose(job, baseline="dp=64 tp=8 pp=16 cp=2 vpp=1 mbs=1 ZeRO=1").beside
    assert [plan.behind for plan in against] == [plan.behind for plan in found]
    slower, faster = (AlternativePlan("a paper", {}, "tp=8", 6.5, 1.0, 60.0, 1.0, 9, share) for share in (0.02, -0.02))
    assert "2.0 % slower than the fastest plan of the front" in slower.sentence(100)
    assert "2.0 % faster than the fastest plan of the front" in faster.sentence(100)


def test_the_least_that_a_conventional_plan_is_behind_is_less_than_expected(found: tuple[AlternativePlan, ...]) -> None:
    inside = [plan for plan in found if plan.behind_low is not None]
    assert inside
    assert all(plan.behind - 0.3 < plan.behind_low < plan.behind for plan in inside)


def test_a_gain_that_may_be_none_puts_the_conventional_plan_first() -> None:
    plan = AlternativePlan("", {}, "tp=8", 6.5, 1.0, 60.0, 1.0, 9, 0.02, behind_low=-0.1, reasons=("cp 16",))
    assert "take it first" in plan.sentence(100)
    sure = AlternativePlan("", {}, "tp=8", 6.5, 1.0, 60.0, 1.0, 9, 0.20, behind_low=0.1, reasons=("cp 16",))
    assert "take it first" not in sure.sentence(100)


def test_all_that_keeps_a_published_plan_out_of_the_space_is_one_list() -> None:
    plan = AlternativePlan("a paper", {}, "tp=8", 6.5, 1.0, 60.0, 1.0, 9, 0.02, violations=("No tp 8.", "No cp."))
    assert " ".join(" ".join(published_plan_lines([plan], 100)).split()).endswith("not in the space: No tp 8, No cp.")


def test_a_published_plan_far_behind_is_shown_with_where_it_differs() -> None:
    job = job_from_options("bloom-176b", "a100-sxm4-80gb", 384, 2048, 2048, framework="megatron-deepspeed")
    published = next(plan for plan in propose(job).beside if plan.source)
    assert published.behind > 0.2
    assert published.reasons[0] == "recompute full, not none"
    assert "it differs in recompute full, not none" in published.sentence(100)


def test_a_conventional_plan_that_breaks_a_constraint_is_not_put_first() -> None:
    broken = ("avg_power_w is 378, over the limit of 250.",)
    plan = AlternativePlan("", {}, "tp=8", 6.5, 1.0, 60.0, 1.0, 9, 0.02, broken, behind_low=-0.1, reasons=("cp 16",))
    assert "take it first" not in plan.sentence(100)
    assert plan.sentence(100).endswith("; avg_power_w is 378, over the limit of 250")
