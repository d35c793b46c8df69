"""The short part of the campaign of random jobs; the long one is run by hand."""

from __future__ import annotations

import pytest

from tests.campaign.answers import faults, is_feasible, random_job

pytestmark = pytest.mark.long  # the short part of a campaign

SHORT = (0, 3, 5, 8, 13, 21, 34, 55)
HARDLY = 23  # some of its layouts come near to fitting, and none is likely to


@pytest.mark.parametrize("seed", SHORT)
def test_no_answer_to_a_random_job_says_more_than_the_tool_knows(seed: int) -> None:
    assert list(faults(random_job(seed))) == []


def test_the_random_jobs_are_some_that_fit_and_some_that_do_not() -> None:
    assert {is_feasible(random_job(seed)) for seed in SHORT} == {True, False}


def test_a_gate_that_lets_unlikely_plans_pass_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = random_job(HARDLY)
    assert not is_feasible(job)
    assert list(faults(job)) == []
    monkeypatch.setattr("jointopt.report.tables.FEASIBLE", 0.0)
    assert "plans that are not expected to fit are called feasible" in set(faults(job))
