"""The frontier by lowtime."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings

from jointopt.core.errors import UsageError
from jointopt.physics.instructions import Options, Problem, _spec, least_energy, lowtime_schedules, need_lowtime
from jointopt.physics.schedule import schedule_graph

from .conftest import problems

pytest.importorskip("lowtime")


def test_without_lowtime_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lowtime", None)
    with pytest.raises(UsageError, match=r"pip install 'jointopt\[polish\]'"):
        need_lowtime()


@settings(deadline=None, max_examples=5)
@given(problems())
def test_it_goes_from_the_slowest_schedule_to_about_the_fastest_and_saves_as_the_linear_programme(
    problem: Problem,
) -> None:
    schedules = [problem.within(seconds) for seconds in lowtime_schedules(problem, 0.1)]
    slow, fast = problem.makespan_s(problem.slowest()), problem.makespan_s(problem.fastest())
    assert problem.makespan_s(schedules[0]) == pytest.approx(slow, rel=0.1)
    assert problem.makespan_s(schedules[-1]) <= fast + 0.1 * len(problem.graph)
    middle = schedules[len(schedules) // 2]
    found = least_energy(problem, problem.makespan_s(middle))
    assert found is not None
    assert found[1] * (1 - 1e-6) <= problem.energy_j(middle) <= 1.1 * found[1]  # by the unit of time


def test_instructions_that_no_clock_changes_leave_nothing_to_shorten() -> None:
    fixed = Options(np.array([1000.0]), np.array([1.0]), np.array([1.0]))
    assert len(list(lowtime_schedules(Problem(schedule_graph(2, 1, 2), [fixed] * 6), 0.1))) == 1


def test_seconds_start_where_every_pass_is_at_its_slowest_and_fall_to_the_fastest() -> None:
    forward = Options(np.array([1000.0, 500.0]), np.array([1.0, 2.0]), np.array([10.0, 4.0]))
    last = Options(np.array([1000.0, 500.0]), np.array([2.0, 4.0]), np.array([20.0, 16.0]))
    alone = Problem(schedule_graph(1, 1, 1), [forward, last, last])
    seconds = np.array(list(lowtime_schedules(alone, 0.25)))
    assert seconds[0] == pytest.approx([2.0, 4.0])
    assert seconds[-1] == pytest.approx([1.0, 2.0])
    assert np.diff(seconds.sum(axis=1)) == pytest.approx(-0.25)


@pytest.mark.parametrize(("last_j", "units"), [(3.9942, [1, 2]), (3.9935, [1, 2, 3])])
def test_a_last_unit_that_saves_less_than_a_thousandth_of_the_dearest_is_left_out(last_j: float, units) -> None:
    # the dearest unit saves 6 J, which lowtime is given as 10, so that 6 mJ are 0.01
    spec = _spec(
        Options(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), np.array([10.0, 4.0, last_j])), 1.0, 10 / 6
    )
    assert sorted(option.quant_time for option in spec.options.options) == units
    assert spec.cost_model(2) == pytest.approx(40 / 6)


def test_beside_a_pass_that_no_clock_changes_the_others_are_shortened() -> None:
    fixed = Options(np.array([1000.0]), np.array([1.0]), np.array([10.0]))
    last = Options(np.array([1000.0, 500.0]), np.array([2.0, 4.0]), np.array([20.0, 16.0]))
    seconds = np.array(list(lowtime_schedules(Problem(schedule_graph(1, 1, 1), [fixed, last, last]), 1.0)))
    assert seconds.tolist() == [[1, 4], [1, 3], [1, 2]]


@pytest.mark.parametrize("times", [1e-6, 1.0, 1e6])
def test_schedules_do_not_depend_on_how_much_energy_a_pass_takes(times: float) -> None:
    # lowtime takes 1e4 of a unit's energy for infinite and 1e-6 for nothing
    forward = Options(np.array([1000.0, 500.0]), np.array([1.0, 2.0]), times * np.array([10.0, 4.0]))
    last = Options(np.array([1000.0, 500.0]), np.array([2.0, 4.0]), times * np.array([20.0, 16.0]))
    seconds = np.array(list(lowtime_schedules(Problem(schedule_graph(1, 1, 1), [forward, last, last]), 0.5)))
    # the pass that saves 2 W is shortened before the one that saves 6 W
    assert seconds.tolist() == [[2, 4], [2, 3.5], [2, 3], [2, 2.5], [2, 2], [1.5, 2], [1, 2]]
