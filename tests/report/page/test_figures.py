"""Figures of the page show the numbers of the plans, in the units that their axes name."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.physics.cooling import Cooler
from jointopt.report import tables
from jointopt.report.page import figures
from jointopt.report.page.choice import ChosenPlan, ProposalReport, _letter
from jointopt.report.results import Proposal
from jointopt.workflows.page import _drift
from jointopt.workflows.propose import propose

DIGITS = {"rel": 1e-4, "abs": 1e-12}


@pytest.fixture(scope="module")
def proposal() -> Proposal:
    job = shipped_job("opt-350m-2x4-a100")
    return propose(replace(job, search=replace(job.search, pp=(2, 4))), trials=0)


@pytest.fixture(scope="module")
def made(proposal: Proposal) -> ProposalReport:
    reported = proposal.report()
    assert len(reported.plans) > 2
    return reported


def test_axes_are_in_units_that_show_the_least_of_a_front() -> None:
    ends = [{"iteration_time_s": time_s, "energy_j": joules} for time_s, joules in ((0.02, 8e5), (50.0, 2e9))]
    axes = figures.Axes(ends)
    assert axes.time == tables.unit_of(0.02, tables.TIME_UNITS) != tables.unit_of(50.0, tables.TIME_UNITS)
    assert axes.energy == tables.unit_of(8e5, tables.ENERGY_UNITS) != tables.unit_of(2e9, tables.ENERGY_UNITS)
    x, y = axes.xy(ends)
    assert x == pytest.approx([0.02 / axes.time[0], 50.0 / axes.time[0]])
    assert y == pytest.approx([8e5 / axes.energy[0], 2e9 / axes.energy[0]])


def test_every_colour_of_the_page_is_used_in_turn() -> None:
    style = Path(figures.__file__).with_name("page.css").read_text(encoding="utf-8")
    named = sorted({f"var({name})" for name in re.findall(r"--c\d+", style)})
    assert [figures.colour(number) for number in range(len(named))] == named
    assert figures.colour(len(named)) == named[0]


def test_a_letter_of_each_kind_of_pass_is_its_own_and_stands_in_a_page_as_it_is() -> None:
    letters = [_letter(number) for number in range(80)]
    assert len(set(letters)) == 80
    assert all(len(letter) == 1 and letter.isprintable() and not letter.isspace() for letter in letters)
    text = "".join(letters)
    assert html.escape(json.dumps(text, ensure_ascii=False), quote=False) == f'"{text}"'


def test_clocks_and_powers_of_stages_are_those_of_the_plan(made: ProposalReport) -> None:
    for plan in made.plans:
        clock, *watts = figures.stage_figure(plan)["data"]
        assert clock["x"] == pytest.approx(plan.parts.clock_mhz.tolist(), **DIGITS)
        shown = np.array([trace["x"] for trace in watts])
        assert shown == pytest.approx(np.stack([plan.runs_w, plan.parts.stage_power_w, plan.waits_w]), **DIGITS)
        assert clock["y"] == [str(i + 1) for i in range(len(plan.runs_w))]


def test_the_line_of_power_goes_over_the_iteration_in_its_unit(made: ProposalReport) -> None:
    for plan in made.plans:
        found = figures.power_figure(plan)
        factor, unit = tables.unit_of(plan.timeline.iteration_s, tables.TIME_UNITS)
        assert found["layout"]["xaxis"]["title"]["text"] == f"time, {unit}"
        step = plan.timeline.iteration_s / factor / len(found["data"][0]["x"])
        assert np.diff(found["data"][0]["x"]) == pytest.approx(step, rel=0.05)
        assert found["layout"]["xaxis"]["range"] == pytest.approx([0.0, plan.timeline.iteration_s / factor])


@pytest.mark.parametrize("breakdown", ["time_s", "energy_by_part_j", "memory_gib"])
def test_bars_are_the_parts_of_all_plans_the_largest_first(made: ProposalReport, breakdown: str) -> None:
    found = figures.part_figure(made.plans, breakdown, ((0.5, "halves"),))["data"]
    for place, plan in enumerate(reversed(made.plans)):
        bars = {bar["name"].replace(" ", "_"): bar["x"][place] / 2 for bar in found}
        parts = {name: value for name, value in plan.totals[breakdown].items() if value > 0.0}
        assert {name: value for name, value in bars.items() if value} == pytest.approx(parts, **DIGITS)
    largest = [max(bar["x"]) for bar in found]
    assert largest == sorted(largest, reverse=True)


def test_the_front_is_drawn_in_units_with_intervals_around_the_chosen_plans(proposal: Proposal) -> None:
    entry = proposal.to_dict()["front"][0] | {
        "iteration_time_s": 0.2, "iteration_time_s_low": 0.15, "iteration_time_s_high": 0.3,
        "energy_j": 2000.0, "energy_j_low": 1800.0, "energy_j_high": 2500.0,
        "time_vs_first_percent": 0.0, "time_vs_first_percent_low": -25.0, "time_vs_first_percent_high": 50.0,
        "energy_vs_first_percent": 25.0, "energy_vs_first_percent_low": 12.5, "energy_vs_first_percent_high": 56.25,
    }  # fmt: skip
    far = entry | {"iteration_time_s": 0.4, "energy_j": 1000.0}
    found = figures.front_figure([entry, far], [("A", ChosenPlan("fastest", entry))], [])
    plans, marked, spans = found["data"]
    assert (plans["x"], plans["y"], marked["x"], marked["y"]) == ([200.0, 400.0], [2.0, 1.0], [200.0], [2.0])
    assert [spans[f"error_{axis}"][name] for axis in "xy" for name in ("array", "arrayminus")] == [
        [pytest.approx(100.0)], [pytest.approx(50.0)], [pytest.approx(0.5)], [pytest.approx(0.2)],
    ]  # fmt: skip
    low, high = found["layout"]["xaxis"]["range"]
    assert low < 200.0 < 400.0 < high
    assert high - 400.0 == pytest.approx(1.8 * (200.0 - low))  # room for a letter above the plan


def test_temperatures_of_stages_are_drawn_up_to_where_gpus_throttle(made: ProposalReport) -> None:
    plan = made.plans[0]
    cooler = Cooler(25.0, 0.05, 0.5, 700.0)
    found = figures.heat_figure(plan, cooler, 87.0)
    *positions, throttles = found["data"]
    for trace, values in zip(positions, plan.parts.stage_position_c.values(), strict=True):
        assert trace["y"] == pytest.approx(values.tolist(), **DIGITS)
    assert (throttles["y"], found["layout"]["yaxis"]["range"]) == ([87.0, 87.0], [25.0, 92.0])
    assert throttles["x"] == [0.5, len(plan.runs_w) + 0.5]


def test_a_time_priced_now_is_compared_with_the_proposal_s(made: ProposalReport) -> None:
    plan = made.plans[0]
    twice = plan.chosen.entry | {"iteration_time_s": 2.0 * plan.chosen.entry["iteration_time_s"]}
    assert _drift(plan) == pytest.approx(0.0, abs=1e-9)
    assert _drift(replace(plan, chosen=replace(plan.chosen, entry=twice))) == pytest.approx(0.5)
