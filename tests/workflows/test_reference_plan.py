"""Differences from the plan that an answer compares with, in every plan that it shows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.report.results import Proposal
from jointopt.search.local_search import energy_saving, time_saving
from jointopt.search.pareto import take
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import ReferencePlan
from jointopt.workflows.compare import compare
from jointopt.workflows.propose import propose
from jointopt.workflows.scale import scale
from jointopt.workflows.select import select

JOB = shipped_job("opt-350m-2x4-a100")
MODEL = JobModel.of(JOB)
ENDS = [f"{name}_vs_first_percent{end}" for name in ("time", "energy") for end in ("_low", "_high")]


@pytest.fixture(scope="module")
def proposal() -> Proposal:
    return propose(MODEL)


def test_layouts_behind_the_front_are_compared_with_the_reference_too(proposal: Proposal) -> None:
    for layout in proposal.best_layouts:
        for plan in layout.plans:
            change = 100.0 * (plan["iteration_time_s"] / proposal.reference["iteration_time_s"][0] - 1.0)
            assert plan["time_vs_first_percent"] == pytest.approx(change, abs=1e-6)
            assert plan["time_vs_first_percent_low"] <= change + 1e-6
            assert plan["iteration_time_s_low"] < plan["iteration_time_s"] < plan["iteration_time_s_high"]
    assert any(not layout.on_front for layout in proposal.best_layouts)


def test_the_differences_of_a_layout_are_those_of_compare(proposal: Proposal) -> None:
    behind = next(layout for layout in proposal.best_layouts if not layout.on_front).plans[0]
    names = ("dp", "tp", "pp", "cp", "micro_batch_size", "zero_stage", "stage_clock_mhz", "sequence_parallel")
    plans = [{name: entry[name] for name in names} for entry in (proposal.to_dict()["reference"], behind)]
    (one,) = compare(MODEL, plans).to_dict()["differences"]
    assert [behind[end] for end in ENDS] == pytest.approx([one[end] for end in ENDS])


def test_a_baseline_is_what_plans_surely_differ_from_or_not() -> None:
    found = propose(MODEL, baseline="dp=4 tp=2")
    document = found.to_dict()
    assert [document["reference"][end] for end in ENDS] == [0.0] * 4
    first: dict[str, Any] = document["front"][0]
    assert first["time_vs_first_percent_low"] < first["time_vs_first_percent"] < first["time_vs_first_percent_high"]
    (row,) = [line for line in found.text().splitlines() if line.startswith("1 ")]
    assert "±" in row.split()[-2]


def test_plans_under_power_limits_are_compared_with_the_reference_too() -> None:
    found = propose(replace(JOB, search=replace(JOB.search, power_limit_w=(400.0, 200.0))), surrogate="none")
    assert [found.reference[end][0] for end in ENDS] == [0.0] * 4
    limited = found.front["power_limit_w"] == 200.0
    for name in ("time", "energy"):
        ends = (found.front[f"{name}_vs_first_percent_{end}"][limited] for end in ("low", "high"))
        low, high = (end / 100.0 for end in ends)
        assert (high - low > 0.01).all()
    by_layout = [plan for layout in found.best_layouts for plan in layout.plans]
    assert all("faster_probability" in plan for plan in by_layout)


def test_a_baseline_without_a_limit_is_under_the_cluster_s() -> None:
    limited = replace(JOB, search=replace(JOB.search, power_limit_w=(400.0, 200.0)))
    plan = "dp=4 tp=2 clock_mhz=1410"
    without, stated = (
        propose(limited, surrogate="none", baseline=f"{plan}{more}") for more in ("", " power_limit_w=400")
    )
    for end in ENDS:
        assert without.front[end] == pytest.approx(stated.front[end])
    of_stages = propose(limited, surrogate="none", baseline="dp=2 tp=2 pp=2 stage_power_limit_w=300;200")
    assert "time_vs_first_percent" not in of_stages.front


def test_a_selection_compares_with_the_plan_chosen(proposal: Proposal, tmp_path: Any) -> None:
    proposal.write(tmp_path)
    found = select(str(tmp_path), max_energy_j=4900.0)
    assert [found.plans[end][found.row] for end in ENDS] == [0.0] * 4
    assert found.plans["faster_probability"][0] > 0.9 > found.plans["faster_probability"][-1]
    assert "better: probability" in " ".join(found.text().split())
    assert not re.search(r"\d±\d", select(str(tmp_path / "front.csv"), max_energy_j=4900.0).text())


def test_the_leanest_plan_of_a_cluster_is_compared_with_its_fastest() -> None:
    (size,) = scale([JOB], surrogate="none").sizes
    assert [size.plans[0][end] for end in ENDS] == [0.0] * 4
    assert size.plans[-1]["energy_vs_first_percent_low"] < size.plans[-1]["energy_vs_first_percent_high"] < 0.0


def test_a_saving_lies_in_its_interval_and_is_as_likely_as_the_difference_of_its_two_plans() -> None:
    model = JobModel.of(shipped_job("llama-3-70b-4x8-h200"))
    found = propose(model, trials=0)
    joint, front = found.joint, found.front
    ways = ((joint.energy, energy_saving, "energy", "leaner"), (joint.time, time_saving, "time", "faster"))
    for share, saving, name, better in ways:
        pair = saving(front, joint.two_step)
        apart, _ = ReferencePlan(model, take(joint.two_step, np.array([pair.other]))).differences(
            take({name: front[name] for name in joint.two_step}, np.array([pair.plan]))
        )
        assert pair.share > 0.0
        assert share.low < share.share < share.high
        assert share.low == pytest.approx(-0.01 * float(apart[f"{name}_vs_first_percent_high"][0]), abs=1e-6)
        assert share.probability == pytest.approx(float(apart[f"{better}_probability"][0]), abs=1e-6)
