from dataclasses import replace

import numpy as np

from tests.fake_problem import fake_problem


def some_plans(problem, count=200):
    rng = np.random.default_rng(0)
    return rng.integers(0, problem.num_layouts, count), rng.integers(0, problem.num_clocks, count)


def test_without_slack_all_stages_share_the_clock_whatever_the_decoder_returns():
    problem = replace(fake_problem(0, 16, 12), stage_clocks=lambda i, c, s: np.full((len(i), 16), 1.0))
    layout, clock = some_plans(problem)
    decoded = problem.decode_clocks(layout, clock, np.zeros(len(layout)))
    beyond = np.arange(problem.max_pp) >= problem.layouts["pp"][layout, None]
    np.testing.assert_array_equal(decoded, np.where(beyond, np.nan, problem.clocks_mhz[clock, None]))


def test_all_slack_never_speeds_a_stage_up_and_never_makes_a_new_bottleneck():
    problem = fake_problem(0, 64, 48)
    layout, clock = some_plans(problem)
    one, relaxed = (problem.evaluate_genes(layout, clock, np.full(len(layout), s)) for s in (0.0, 1.0))
    assert (np.nan_to_num(relaxed["stage_clock_mhz"]) <= np.nan_to_num(one["stage_clock_mhz"])).all()
    assert (relaxed["stage_clock_mhz"] < one["stage_clock_mhz"]).any()
    np.testing.assert_array_equal(
        np.nanmax(relaxed["stage_clock_mhz"], axis=1), np.nanmax(one["stage_clock_mhz"], axis=1)
    )


def test_the_fake_keeps_the_promises_that_a_problem_makes():
    problem = fake_problem(0, 32, 24)
    layout = np.arange(problem.num_layouts)
    sweep = [problem.evaluate_genes(layout, np.full(len(layout), k), np.zeros(len(layout))) for k in range(24)]
    time_s, energy_j = (np.stack([plans[name] for plans in sweep]) for name in ("iteration_time_s", "energy_j"))
    assert (np.diff(time_s, axis=0) <= 0).all()
    assert (np.diff(energy_j - problem.slope_w(layout) * time_s, axis=0) >= -1e-9 * energy_j[1:]).all()
    least_time_s, least_energy_j = problem.lower_bound(layout)
    assert (least_time_s <= time_s.min(axis=0)).all()
    assert (least_energy_j <= energy_j.min(axis=0)).all()


def test_a_description_names_the_layout_and_the_clock_of_every_plan():
    problem = fake_problem(0, 16, 12)
    layout, clock = some_plans(problem)
    table = problem.describe(problem.evaluate_genes(layout, clock, np.zeros(len(layout))))
    assert (table["dp"] * table["tp"] * table["pp"] * table["cp"] == 16).all()
    np.testing.assert_array_equal(table["clock_mhz"], np.nanmax(table["stage_clock_mhz"], axis=1))
