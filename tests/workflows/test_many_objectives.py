"""Memory and power as objectives of `propose`: against every plan of a small space, and what follows from others."""

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from jointopt.core.errors import JobError
from jointopt.core.schema import Columns, Floats
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job, parse_job, shipped_job
from jointopt.jobs.objectives import objective_words
from jointopt.jobs.reading import parse_yaml
from jointopt.report.page.choice import chosen_plans
from jointopt.report.results import Proposal
from jointopt.search.exact import exact_front_of_levels
from jointopt.search.nsga2 import search_goals
from jointopt.search.pareto import concat, front_of, is_beaten, non_dominated, stacked
from jointopt.search.problem import Problem
from jointopt.search.studies.study_plans import read_study
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.feasible_layouts import prepare_search
from jointopt.workflows.propose import propose
from jointopt.workflows.search_steps import Step, Stopwatch, contributions

MEMORY = ("iteration_time_s", "energy_j", "peak_memory_gib")
POWER = ("iteration_time_s", "energy_j", "peak_power_w")
SHIPPED = shipped_job("opt-350m-2x4-a100")
JOB = replace(SHIPPED, search=replace(SHIPPED.search, clock_mhz=SHIPPED.search.clock_mhz[::6]))


@cache
def problem_of(goals: tuple[str, ...]) -> Problem:
    job = replace(JOB, objectives=goals)
    return prepare_search(JobModel.of(job), Stopwatch(quiet=True)).all_goals


@cache
def every_front(goals: tuple[str, ...]) -> Columns:
    return counted(problem_of(goals))


def counted(problem: Problem) -> Columns:
    """The front of every layout at every clock with every share of slack."""
    layouts, shares = np.arange(problem.num_layouts), np.linspace(0.0, 1.0, 11)
    parts = [
        front_of(
            problem.evaluate_genes(layouts, np.full_like(layouts, clock), np.full(len(layouts), share)), problem.goals
        )
        for clock, share in product(range(problem.num_clocks), shares)
    ]
    return front_of(concat(parts), problem.goals)


@pytest.mark.parametrize("goals", [MEMORY, POWER])
def test_no_plan_of_a_small_space_beats_one_of_the_front_that_nsga2_found(goals: tuple[str, ...]) -> None:
    found = stacked(search_goals(problem_of(goals), trials=600, seed=1).front, goals)
    least = stacked(every_front(goals), goals)
    beaten = ((least[None] <= found[:, None]).all(axis=2) & (least[None] < found[:, None]).any(axis=2)).any(axis=1)
    assert len(found) > 30
    assert not beaten.any()


@pytest.mark.parametrize("goals", [MEMORY, POWER])
def test_the_front_has_the_hypervolume_of_that_of_all_plans(goals: tuple[str, ...]) -> None:
    found = np.log(stacked(search_goals(problem_of(goals), trials=600, seed=2).front, goals))
    every = np.log(stacked(every_front(goals), goals))
    box = every.min(axis=0), every.max(axis=0) + 0.1 * np.ptp(every, axis=0)
    drawn = np.random.default_rng(3).uniform(*box, (20_000, 3))
    assert is_beaten(found, drawn).sum() >= 0.99 * is_beaten(every, drawn).sum()


def test_levels_of_memory_have_the_front_of_every_plan() -> None:
    found, _ = exact_front_of_levels(problem_of(MEMORY))
    np.testing.assert_allclose(stacked(found, MEMORY), stacked(every_front(MEMORY), MEMORY), rtol=1e-12)


@pytest.mark.parametrize("limit", ["avg_power_w: 150", "iteration_time_s: 4.0"])
def test_levels_of_memory_keep_constraints_as_every_plan_does(limit: str) -> None:
    document = parse_yaml(dump_job(replace(JOB, objectives=MEMORY))) | parse_yaml(f"constraints: {{{limit}}}")
    problem = prepare_search(JobModel.of(parse_job(document, "limited", ".")), Stopwatch(quiet=True)).all_goals
    found, every = exact_front_of_levels(problem)[0], counted(problem)
    assert 0 < len(every["slack"]) != len(every_front(MEMORY)["slack"])
    np.testing.assert_allclose(stacked(found, MEMORY), stacked(every, MEMORY), rtol=1e-12)


def pairwise(values: Floats) -> list[int]:
    """Rows that no other row beats, one by one."""
    kept = [
        i for i, one in enumerate(values)
        if not any((o <= one).all() and ((o < one).any() or j < i) for j, o in enumerate(values) if i != j)
    ]  # fmt: skip
    return sorted(kept, key=lambda row: tuple(values[row]))


@pytest.mark.parametrize("columns", [2, 3, 5])
def test_non_dominated_rows_are_those_of_a_comparison_of_all_pairs(columns: int) -> None:
    rng = np.random.default_rng(columns)
    values = rng.integers(0, 6, (700, columns)).astype(float)  # with ties
    values[5] = np.nan
    assert non_dominated(values).tolist() == [row for row in pairwise(values) if row != 5]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Proposal, str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('studies') / 'many.db'}"
    return propose(replace(JOB, objectives=MEMORY), trials=200, storage=url), url


def test_the_front_of_time_and_energy_is_part_of_that_with_memory(stored: tuple[Proposal, str]) -> None:
    wide, usual = stored[0].front, propose(JOB).front
    assert len(wide["dp"]) > 2 * len(usual["dp"])
    assert is_beaten(stacked(wide, MEMORY[:2]), stacked(usual, MEMORY[:2])).all()
    assert wide["peak_memory_gib"].min() < 0.7 * usual["peak_memory_gib"].min()
    assert len(non_dominated(stacked(wide, MEMORY))) == len(wide["dp"])


def test_layouts_shown_are_those_of_the_front_of_time_and_energy_and_the_fastest(stored: tuple[Proposal, str]) -> None:
    wide, usual = stored[0], propose(JOB)
    assert [layout.on_front for layout in wide.best_layouts].count(True) < len(wide.front["dp"]) / 2
    assert [layout.rank for layout in wide.best_layouts] == [layout.rank for layout in usual.best_layouts]


def test_a_front_with_memory_is_counted_without_trials_unless_they_are_requested(stored: tuple[Proposal, str]) -> None:
    usual = propose(replace(JOB, objectives=MEMORY))
    exact = stacked(every_front(MEMORY), MEMORY)
    assert list(usual.searched) == ["exact", "local"]
    assert list(stored[0].searched) == ["exact", "local", "nsga2"]
    assert stored[0].searched["nsga2"]["added"] == 0
    assert len(usual.front["dp"]) >= len(exact)


def test_the_methods_report_what_they_added_to_a_front_of_three() -> None:
    searched = propose(replace(JOB, objectives=POWER), trials=200).searched
    assert list(searched) == ["exact", "local", "nsga2"]
    assert sum(method["hypervolume"] for method in searched.values()) == pytest.approx(1.0)
    assert searched["nsga2"]["added"] > searched["exact"]["added"] > 0


def test_a_study_of_three_objectives_has_their_names_and_its_best_trials_are_of_the_front(
    stored: tuple[Proposal, str],
) -> None:
    proposal, url = stored
    study = optuna.load_study(study_name=proposal.study_name, storage=url)
    assert study.metric_names == list(MEMORY)
    assert len(study.directions) == 3
    values = np.array([trial.values for trial in study.best_trials])
    assert is_beaten(stacked(proposal.front, MEMORY) * (1 - 1e-12), values).all()
    plans, _ = read_study(url, str(proposal.study_name))
    assert len(plans) >= len(proposal.front["dp"])


def test_the_table_of_many_objectives_shows_the_best_in_each(stored: tuple[Proposal, str]) -> None:
    table = stored[0].text().partition("are between these")[0].splitlines()
    assert max(map(len, table)) <= 100
    assert len(table) <= 35
    cells = [cell for line in table for cell in line.split()]
    assert f"{stored[0].front['peak_memory_gib'].min():.1f}" in cells
    assert f"{stored[0].front['iteration_time_s'].min():.3f}" in cells


def test_a_report_of_many_objectives_names_them(stored: tuple[Proposal, str], tmp_path: Path) -> None:
    stored[0].report().write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "beats in time, energy and peak memory" in page


def test_the_plan_of_least_energy_in_a_report_of_many_objectives_has_the_least(stored: tuple[Proposal, str]) -> None:
    front, document = stored[0].front["energy_j"], stored[0].to_dict()
    chosen = {plan.name: plan.entry for plan in chosen_plans(document["front"], document["reference"])}
    assert chosen["least energy"]["energy_j"] == pytest.approx(front.min())
    assert front[-1] > 1.1 * front.min()  # the slowest is the best in memory


def priced(objectives: str, rates: str = "{price_per_kwh: 0.1, carbon_kg_per_kwh: 0.4}") -> Job:
    document = parse_yaml(dump_job(JOB)) | {"objectives": parse_yaml(f"o: {objectives}")["o"]}
    return parse_job({**document, "cluster": {**document["cluster"], **parse_yaml(f"o: {rates}")["o"]}}, "priced", ".")


def test_cost_and_carbon_beside_time_and_energy_leave_the_front_and_are_reported_to_follow() -> None:
    usual = propose(JOB)
    both = propose(priced("[iteration_time_s, energy_j, cost, carbon_kg]"))
    np.testing.assert_array_equal(both.front["energy_j"], usual.front["energy_j"])
    assert "nsga2" not in both.searched
    assert "cost and carbon rise with time and energy" in " ".join(both.text().split())


def test_an_objective_that_needs_a_price_is_refused_without_one() -> None:
    with pytest.raises(JobError, match="objectives: cost needs"):
        priced("[iteration_time_s, cost]", "{carbon_kg_per_kwh: 0.4}")


def test_least_memory_alone_is_one_plan_that_no_layout_is_below() -> None:
    alone = propose(replace(JOB, objectives=("peak_memory_gib",)), trials=200)
    least: Any = problem_of(MEMORY)
    memory = least.evaluate_genes(*(np.arange(least.num_layouts) * on for on in (1, 0)), np.zeros(least.num_layouts))
    kept = memory["peak_memory_gib"][memory["violation"] <= 0.0]
    assert alone.front["peak_memory_gib"].tolist() == [pytest.approx(kept.min())]


def test_runs_are_chosen_by_all_objectives_behind_time_or_energy() -> None:
    assert replace(JOB, objectives=MEMORY).measured_objectives == MEMORY
    assert replace(JOB, objectives=("peak_power_w",)).measured_objectives == ("iteration_time_s", "peak_power_w")
    assert priced("[gpu_cost, cost]", "{price_per_kwh: 1, price_per_gpu_hour: 1}").measured_objectives == (
        "iteration_time_s", "energy_j",
    )  # fmt: skip


@pytest.mark.parametrize("objective", ["avg_power_w", "carbon_kg"])
def test_the_best_plan_in_one_objective_is_named_as_such_among_methods_and_costs(objective: str) -> None:
    proposal = propose(priced(f"[{objective}]"))
    text = " ".join(proposal.text().split())
    assert len(proposal.front["pp"]) == 1
    assert (
        f"Plans of the front of {objective_words(proposal.job.goals)}, of which these are the best, by method: " in text
    )
    costs = text.split("At the site's meter")[1].split("Joint space")[0]
    assert " front " in costs
    assert "least energy" not in costs


def test_no_method_adds_less_than_nothing_to_a_front_that_a_later_one_thins() -> None:
    goals = ("iteration_time_s", "energy_j", "peak_memory_gib")
    rng = np.random.default_rng(0)
    points = rng.dirichlet(np.ones(3), 400) + 0.1  # none beats another
    fronts = [dict(zip(goals, some.T, strict=True)) for some in (points, points[::40])]
    steps = [Step(name, front, 10, front) for name, front in zip(("levels", "local"), fronts, strict=True)]
    found = contributions(steps, goals)
    assert [found[name]["hypervolume"] for name in ("levels", "local")] == [1.0, 0.0]
    assert [found[name]["added"] for name in ("levels", "local")] == [10, 0]
