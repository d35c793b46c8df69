"""The parameters that a sampler chooses: whatever their values, they are a plan of the space."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import PlanError
from jointopt.core.schema import POWER_LIMIT
from jointopt.jobs.clocks import under_limits
from jointopt.search.parameters import Parameters
from jointopt.search.problem import Problem
from tests.fake_problem import fake_problem

PROBLEM = fake_problem(1, 32, 24)
SPACE = Parameters(PROBLEM)
LIMITED = Problem(
    under_limits(PROBLEM.layouts, (700.0, 500.0)), PROBLEM.clocks_mhz,
    lambda layout, clocks: PROBLEM.evaluate(layout % PROBLEM.num_layouts, clocks),
)  # fmt: skip


def genes(space: Parameters, **changes):
    params = {"layout": space.splits[0], "variant": 1, "clock_mhz": 1980.0, "slack": 0.0, POWER_LIMIT: 500.0}
    return [values[0] for values in space.decode(params | changes)]


def test_a_plan_is_what_its_parameters_stand_for():
    layout, clock = np.arange(PROBLEM.num_layouts), np.arange(PROBLEM.num_layouts) % PROBLEM.num_clocks
    slack = np.where(PROBLEM.layouts["pp"] > 1, 0.3, 0.0)
    params = SPACE.encode({"layout_index": layout, "clock_index": clock, "slack": slack, "stage_clock_mhz": layout})
    found = [np.concatenate(values) for values in zip(*map(SPACE.decode, params), strict=True)]
    np.testing.assert_allclose(np.array(found), np.array([layout, clock, slack]))


@given(st.sampled_from(SPACE.splits), st.integers(1, SPACE.most_variants), st.floats(600.0, 1980.0), st.floats(0, 1))
def test_any_values_are_a_plan_of_that_split(split, variant, clock_mhz, slack):
    layout, clock, share = genes(SPACE, layout=split, variant=variant, clock_mhz=clock_mhz, slack=slack)
    degrees = dict(word.split("=") for word in split.split())
    assert all(PROBLEM.layouts[name][layout] == int(value) for name, value in degrees.items())
    assert abs(PROBLEM.clocks_mhz[clock] - clock_mhz) <= 30.0
    assert share == (slack if PROBLEM.layouts["pp"][layout] > 1 else 0.0)


@pytest.mark.parametrize("split", SPACE.splits[:5])
def test_variants_of_a_split_come_in_the_order_of_their_least_time(split):
    layouts = [genes(SPACE, layout=split, variant=variant)[0] for variant in range(1, SPACE.most_variants + 1)]
    assert (np.diff(PROBLEM.lower_bound(np.array(layouts))[0]) >= -1e-9).all()
    same = (PROBLEM.layouts["dp"] == PROBLEM.layouts["dp"][layouts[0]]) & np.logical_and.reduce(
        [PROBLEM.layouts[name] == PROBLEM.layouts[name][layouts[0]] for name in ("tp", "pp", "cp")]
    )
    assert set(layouts) == set(np.flatnonzero(same).tolist())


@pytest.mark.parametrize("limit", [700.0, 500.0])
def test_a_power_limit_is_a_parameter_of_its_own(limit):
    space = Parameters(LIMITED)
    assert space.names == ("layout", "variant", "clock_mhz", POWER_LIMIT)
    layout, _, _ = genes(space, power_limit_w=limit)
    assert LIMITED.layouts[POWER_LIMIT][layout] == limit
    plan = {"layout_index": np.array([layout]), "clock_index": np.array([3]), "slack": np.zeros(1)}
    assert space.encode(plan | {"stage_clock_mhz": np.full((1, 1), 900.0)})[0][POWER_LIMIT] == limit


def test_a_plan_with_clocks_of_its_own_has_the_slack_that_comes_nearest():
    layout = np.flatnonzero(PROBLEM.layouts["pp"] == 4)[:1]
    clocks = PROBLEM.decode_clocks(layout, np.array([20]), np.array([0.6]))
    moved = np.where(np.arange(clocks.shape[1]) == 3, clocks - 1.0, clocks)
    plan = {name: values[layout] for name, values in PROBLEM.layouts.items()} | {"stage_clock_mhz": moved}
    [params] = SPACE.encode(SPACE.located(plan))
    assert genes(SPACE, **params)[0] == layout[0]
    again = PROBLEM.decode_clocks(*SPACE.decode(params))
    np.testing.assert_array_equal(again, clocks)


@pytest.mark.parametrize("changes", [{"layout": "dp=3"}, {"layout": None}])
def test_parameters_of_another_space_are_refused(changes):
    with pytest.raises(PlanError, match=r"must be layout, variant, clock_mhz, slack, .* no such layout as"):
        genes(SPACE, **changes)
