"""The energy of the site as an objective and as a bound: the best in it is on the front of time and GPU energy."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import InfeasibleError
from jointopt.physics.facility import with_site
from jointopt.report.results import Proposal
from jointopt.search.pareto import front_order, take
from jointopt.spec.files import parse_yaml
from jointopt.spec.job import Job
from jointopt.spec.jobfile import dump_job, parse_job, shipped_job
from jointopt.workflows.propose import propose
from jointopt.workflows.tune import tune

JOB = replace(shipped_job("opt-350m-2x4-a100"), objectives=("iteration_time_s", "energy_j"))


def proposed(**changes: Any) -> Proposal:
    return propose(replace(JOB, **changes), trials=100, surrogate="none")


@pytest.fixture(scope="module")
def front() -> dict[str, Any]:
    return with_site(JOB, proposed().front)


@given(st.lists(st.tuples(st.floats(1, 10), st.floats(1, 10)), min_size=1, max_size=20), st.floats(0, 10))
def test_what_is_best_with_hosts_is_on_the_front_without_them(points: list[Any], host_w: float) -> None:
    time, energy = np.array(points).T
    both = front_order(time, energy)
    least = (energy + host_w * time).min()
    assert (energy + host_w * time)[both].min() == pytest.approx(least)


def test_with_hosts_as_objective_the_slow_end_of_the_front_falls_away(front: dict[str, Any]) -> None:
    found = with_site(JOB, proposed(objectives=("iteration_time_s", "facility_energy_j")).front)
    kept = np.sort(front_order(front["iteration_time_s"], front["facility_energy_j"]))
    assert 0 < len(kept) < len(front["dp"])
    for name, values in take(front, kept).items():
        np.testing.assert_array_equal(found[name], values)


def test_the_energy_of_the_site_alone_leaves_the_plan_that_takes_least(front: dict[str, Any]) -> None:
    found = with_site(JOB, proposed(objectives=("facility_energy_j",)).front)
    assert found["facility_energy_j"].tolist() == [front["facility_energy_j"].min()]


def test_all_three_objectives_leave_the_whole_front(front: dict[str, Any]) -> None:
    three = proposed(objectives=("facility_energy_j", "iteration_time_s", "energy_j")).front
    np.testing.assert_array_equal(three["energy_j"], front["energy_j"])


def test_a_bound_on_the_energy_of_the_site_is_kept_and_costs_nothing_else(front: dict[str, Any]) -> None:
    bound = float(np.median(front["facility_energy_j"]))
    limited = replace(JOB.constraints, facility_energy_j=bound)
    found = with_site(JOB, proposed(constraints=limited).front)
    assert (found["facility_energy_j"] <= bound).all()
    assert found["iteration_time_s"].min() <= front["iteration_time_s"][front["facility_energy_j"] <= bound].min()


def test_a_bound_that_no_plan_keeps_is_refused_with_what_would_do() -> None:
    with pytest.raises(InfeasibleError, match=r"constraints\.facility_energy_j is 1 and no plan needs less than"):
        proposed(constraints=replace(JOB.constraints, facility_energy_j=1.0))


def test_objective_and_bound_survive_being_saved() -> None:
    limited = replace(JOB.constraints, facility_energy_j=20_000.0)
    job: Job = replace(JOB, objectives=("iteration_time_s", "facility_energy_j"), constraints=limited)
    assert parse_job(dict(parse_yaml(dump_job(job))), "job", Path()) == job
    assert job.measured_objectives == ("iteration_time_s", "energy_j")


def test_runs_are_judged_by_what_they_measure(job: Job, make_runs: Callable[..., pd.DataFrame]) -> None:
    of_site = replace(job, objectives=("iteration_time_s", "facility_energy_j"))
    both = make_runs(energy_j=lambda runs: 3000.0 * runs["iteration_time_s"])
    assert tune(of_site, "replay", 2, table=both).objectives == ("iteration_time_s", "energy_j")
