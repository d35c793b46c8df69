"""The two-step answer, and what a front saves against it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.jobs.clocks import under_limits
from jointopt.jobs.jobfile import shipped_job
from jointopt.search.exact import exact_front_of_profiles, fastest_layout
from jointopt.search.local_search import energy_saving, time_saving, two_step_front
from jointopt.search.pareto import is_covered, objectives
from jointopt.workflows.propose import propose
from jointopt.workflows.search_steps import LOCAL_EVALUATIONS, Stopwatch, search_steps
from tests.fake_problem import fake_problem

SEEDS = st.integers(0, 10**6)


def columns(times, energies):
    return {"iteration_time_s": np.array(times, float), "energy_j": np.array(energies, float)}


def test_the_saving_is_the_largest_at_equal_time_and_at_equal_energy():
    front = columns([1.0, 2.0, 4.0], [90.0, 60.0, 50.0])
    other = columns([1.0, 2.5, 5.0], [100.0, 80.0, 50.0])
    energy, time_s = energy_saving(front, other), time_saving(front, other)
    assert (energy.share, energy.at) == (pytest.approx(0.25), 2.5)  # 60 J in place of 80 J
    assert (time_s.share, time_s.at) == (pytest.approx(0.2), 80.0)  # 2 s in place of 2.5 s, as 4 s in place of 5 s


def test_a_plan_of_just_the_same_time_is_one_in_no_more_time():
    saving = energy_saving(columns([1.0, 2.0], [90.0, 60.0]), columns([2.0], [80.0]))
    assert (saving.share, saving.plan, saving.other) == (pytest.approx(0.25), 1, 0)


def test_without_plans_nothing_can_be_compared():
    assert energy_saving(columns([], []), columns([1], [1])) is None
    assert time_saving(columns([1], [1]), columns([], [])) is None


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_two_steps_try_every_clock_of_the_fastest_layout_and_no_other_layout(seed):
    problem = fake_problem(seed, 8, 7)
    best = fastest_layout(problem, np.arange(problem.num_layouts))
    front = two_step_front(problem, best, 1000)
    assert set(front["layout_index"].tolist()) == {best}
    clocks = np.arange(problem.num_clocks)
    uniform = problem.evaluate_genes(np.full(len(clocks), best), clocks, np.zeros(len(clocks)))
    assert is_covered(*objectives(front), *(value * (1 + 1e-9) for value in objectives(uniform))).all()


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_no_plan_of_two_steps_or_of_the_exact_front_beats_the_joint_front(seed):
    problem = fake_problem(seed, 12, 7)
    exact = exact_front_of_profiles(problem)
    two_step = two_step_front(problem, fastest_layout(problem, np.arange(12)), LOCAL_EVALUATIONS)
    joint = search_steps(problem, exact, two_step, 0, 0, Stopwatch(quiet=True))[-1].front
    for other in (two_step, exact.front):
        assert is_covered(*objectives(joint), *(value * (1 + 1e-12) for value in objectives(other))).all()


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_plans_of_some_layouts_are_those_of_the_whole_problem(seed):
    problem, rng = fake_problem(seed, 16, 5), np.random.default_rng(seed)
    rows = rng.choice(problem.num_layouts, 6, replace=False)
    some, layout, clock = problem.of_layouts(rows), rng.integers(0, 6, 20), rng.integers(0, 5, 20)
    slack = rng.random(20).round(1)
    for one, other in zip(
        objectives(some.evaluate_genes(layout, clock, slack)),
        objectives(problem.evaluate_genes(rows[layout], clock, slack)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_joint_front_is_never_behind_two_steps_and_saves_nothing_against_itself(seed):
    problem = fake_problem(seed, 8, 7)
    front, two_step = exact_front_of_profiles(problem).front, two_step_front(problem, 0, 0)
    assert is_covered(*objectives(front), *(value * (1 + 1e-9) for value in objectives(two_step))).all()
    assert energy_saving(front, front).share == time_saving(front, front).share == 0.0


def test_two_steps_choose_among_all_power_limits_of_the_fastest_layout():
    problem = fake_problem(0, 8, 5, per_stage_clocks=False)
    count, layouts = problem.num_layouts, under_limits(problem.layouts, (600.0, 300.0))

    def evaluate(index, clocks):
        plans, limited = problem.evaluate(index % count, clocks), index >= count
        slower = {"iteration_time_s": plans["iteration_time_s"] * np.where(limited, 1.5, 1.0)}
        return plans | slower | {"energy_j": plans["energy_j"] * np.where(limited, 0.5, 1.0)}

    both = replace(problem, layouts=layouts, evaluate=evaluate, lower_bound=None, energy_slope_w=None)
    front = two_step_front(both, 3, 0)
    assert set(front["layout_index"].tolist()) == {3, 3 + count}


def test_a_proposal_states_what_joint_search_saves():
    proposal = propose(shipped_job("llama-3-70b-4x8-h200"))
    document = proposal.to_dict()["joint"]
    first = document["two_step_front"][0]
    ends = [document[f"largest_energy_saving{end}"] for end in ("_low", "", "_high")]
    assert ends == sorted(ends)
    assert first["iteration_time_s"] == pytest.approx(proposal.front["iteration_time_s"][0])
    assert f"at most {proposal.joint.energy.share:.1%} less" in " ".join(proposal.text().split())


def test_where_the_fastest_layout_keeps_no_constraint_there_is_no_second_step():
    problem = fake_problem(0, 8, 5)
    broken = replace(problem, evaluate=lambda *plans: problem.evaluate(*plans) | {"violation": np.ones(len(plans[0]))})
    assert len(two_step_front(broken, 0, 10)["layout_index"]) == 0
