"""Clusters side by side: what scaling leaves, and the size that a limit picks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.core.errors import InfeasibleError, UsageError
from jointopt.jobs.jobfile import load_jobs
from jointopt.jobs.plans.text import PLAN_KEYS
from jointopt.report.decision import run_costs_at
from jointopt.report.scaled import Scaled
from jointopt.workflows.explain import explain
from jointopt.workflows.scale import scale

JOB, SIZES = "opt-350m-2x4-a100", (4, 8, 16)
PRICED = {"training.run_tokens": 10**12, "cluster.price_per_gpu_hour": 2.0, "cluster.price_per_kwh": 0.1}


def found(changes: dict[str, Any] = PRICED, **limits: Any) -> Scaled:
    weak = limits.get("weak", False)
    return scale(load_jobs(JOB, SIZES, changes, weak=weak), surrogate="none", **limits)


@pytest.fixture(scope="module")
def scaled() -> Scaled:
    return found()


def days(size: Any, row: int) -> float:
    return size.plans[row]["run_time_s"] / 86400.0


def test_more_gpus_are_faster_and_each_does_less(scaled: Scaled) -> None:
    times = [days(size, 0) for size in scaled.sizes]
    assert times == sorted(times, reverse=True)
    assert scaled.sizes[0].efficiency == 1.0
    assert scaled.sizes[2].efficiency < 1.0


def test_figures_are_those_of_explain(scaled: Scaled) -> None:
    for size in scaled.sizes:
        plan = {name: size.plans[0][name] for name in PLAN_KEYS if name in size.plans[0]}
        alone = explain(size.job, plan, surrogate="none")
        assert size.plans[0]["iteration_time_s"] == pytest.approx(alone.iteration_time_s)
        assert sum(size.time_s.values()) == pytest.approx(alone.iteration_time_s)


def test_every_plan_has_the_interval_that_explain_gives_it(scaled: Scaled) -> None:
    for size in scaled.sizes[:2]:
        for entry in size.plans:
            plan = {name: entry[name] for name in PLAN_KEYS if name in entry}
            alone = explain(size.job, plan, surrogate="none").to_dict()
            for end in ("iteration_time_s_low", "iteration_time_s_high", "energy_j_low"):
                assert entry[end] == pytest.approx(alone[end]), end
    assert "±" in scaled.text()


def test_the_front_over_clusters_has_no_plan_that_another_beats(scaled: Scaled) -> None:
    values = [(entry["run_time_s"], entry["run_facility_energy_j"]) for _, entry in scaled.front]
    assert values == sorted(values)
    assert [energy for _, energy in values] == sorted((energy for _, energy in values), reverse=True)
    assert {size for size, _ in scaled.front} <= {0, 1, 2}


def test_a_deadline_picks_the_cheapest_plan_that_ends_in_time(scaled: Scaled) -> None:
    deadline = 0.9 * days(scaled.sizes[1], 0)  # 8 GPUs are too slow
    pick = found(deadline_days=deadline).pick
    assert (pick.size, pick.objective) == (2, "money")
    assert pick.plan["run_time_s"] <= 86400 * deadline
    assert pick.plan["run_cost"] + pick.plan["run_gpu_cost"] <= sum(
        scaled.sizes[2].plans[0][name] for name in ("run_cost", "run_gpu_cost")
    )


def test_a_budget_picks_the_fastest_plan_that_it_pays_for(scaled: Scaled) -> None:
    costs = [size.plans[0]["run_cost"] + size.plans[0]["run_gpu_cost"] for size in scaled.sizes]
    pick = found(budget=1.001 * costs[1]).pick
    assert pick.objective == "time"
    assert pick.plan["run_cost"] + pick.plan["run_gpu_cost"] <= 1.001 * costs[1]
    assert pick.plan["run_time_s"] <= scaled.sizes[1].plans[0]["run_time_s"]


def test_site_power_is_kept_by_lower_clocks_on_more_gpus(scaled: Scaled) -> None:
    power = 0.9 * scaled.sizes[2].plans[0]["cluster_power_kw"]
    pick = found(site_kw=power).pick
    assert pick.size == 2
    assert pick.plan["cluster_power_kw"] <= power * (1 + 1e-9)
    assert max(pick.plan["stage_clock_mhz"]) < max(scaled.sizes[2].plans[0]["stage_clock_mhz"])


def test_of_the_site_s_power_and_a_job_s_own_limit_the_tighter_one_holds(scaled: Scaled) -> None:
    own = 0.9 * scaled.sizes[2].plans[0]["cluster_power_kw"]
    limited = PRICED | {"constraints.cluster_power_kw": own}
    for site_kw, held in ((2.0 * own, own), (0.9 * own, 0.9 * own)):
        pick = found(limited, site_kw=site_kw).pick
        assert 0.95 * held < pick.plan["cluster_power_kw"] <= held * (1 + 1e-9)


def test_a_run_that_is_late_by_one_per_cent_keeps_no_deadline(scaled: Scaled) -> None:
    assert found(deadline_days=1.01 * days(scaled.sizes[1], 0)).pick.size == 1
    assert found(deadline_days=0.99 * days(scaled.sizes[1], 0)).pick.size == 2


def test_deadline_and_budget_must_both_be_kept(scaled: Scaled) -> None:
    cheapest = min(plan["run_cost"] + plan["run_gpu_cost"] for size in scaled.sizes for plan in size.plans)
    with pytest.raises(InfeasibleError, match="over the"):
        found(deadline_days=1.01 * days(scaled.sizes[2], 0), budget=1.01 * cheapest)


def test_at_the_high_end_the_slow_end_of_the_interval_keeps_the_deadline(scaled: Scaled) -> None:
    job, fastest = scaled.sizes[2].job, scaled.sizes[2].plans[0]
    deadline = 0.99 * run_costs_at(job, fastest, "_high")["days"]
    assert found(deadline_days=deadline).pick.size == 2
    with pytest.raises(InfeasibleError, match=r"at the high end of its interval.* 1\.01 % over the deadline"):
        found(deadline_days=deadline, at_high_end=True)


def test_the_knee_of_a_cluster_takes_less_energy_than_its_ends_would_at_that_time(scaled: Scaled) -> None:
    for size in scaled.sizes:
        (t0, e0), (t, e), (t1, e1) = ((plan["iteration_time_s"], plan["energy_j"]) for plan in size.plans)
        assert t0 < t < t1
        assert e < e0 + (e1 - e0) * (t - t0) / (t1 - t0)


def test_a_cluster_that_is_too_small_has_a_reason_and_others_stand() -> None:
    few = scale(load_jobs("llama-3-70b-4x8-h200", (4, 8)), surrogate="none")
    assert not few.sizes[0].feasible
    assert "memory" in few.sizes[0].reason
    assert few.sizes[1].feasible
    assert "4 x h200-sxm-141gb: " in few.text()


@pytest.mark.parametrize(
    ("changes", "limits", "error", "reason"),
    [
        (
            PRICED,
            {"deadline_days": 1e-6},
            InfeasibleError,
            r"No plan of 3 clusters keeps every limit; the closest, on 16 .* [\d,]+,000 times the deadline\.",
        ),
        (PRICED, {"budget": -1.0}, UsageError, "budget must be a number above 0"),
        ({}, {"deadline_days": 1.0}, UsageError, "give its tokens, --run-tokens"),
        ({"training.run_tokens": 10**9}, {"budget": 1.0}, UsageError, "A budget needs a price"),
    ],
)
def test_limits_that_nothing_keeps_are_one_sentence(changes: Any, limits: Any, error: Any, reason: str) -> None:
    with pytest.raises(error, match=reason):
        found(changes, **limits)


def test_where_no_cluster_keeps_the_power_of_the_site_all_are_shown_as_not_feasible() -> None:
    none = found(PRICED, site_kw=0.1)
    assert "No cluster of 3 is feasible" in none.refusal()
    assert [size["feasible"] for size in none.to_dict()["sizes"]] == [False] * 3
    assert none.pick is None


def test_the_command_prints_a_line_per_cluster_and_the_pick() -> None:
    words = ["scale", JOB, "--gpus", "4..16", "--surrogate", "none", "--quiet", "--run-tokens", "1e12"]
    text = CliRunner().invoke(jointopt, [*words, "--site-kw", "5", "-v"]).stdout
    assert text.count("a100-sxm4-40gb  ") >= 3
    assert "Under 5 kW of the site, least time: " in text
    document = json.loads(CliRunner().invoke(jointopt, [*words, "--json", "--gpu", "h200=3"]).stdout)
    assert [size["num_gpus"] for size in document["sizes"]] == [4, 8, 16]
    assert {size["gpu"] for size in document["sizes"]} == {"h200-sxm-141gb"}
