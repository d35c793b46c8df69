"""A model of the cluster that grows with the runs of a tune."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import Floats
from jointopt.jobs.job import Job
from jointopt.measure.replay import ReplayLauncher
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.plan_process import USUAL
from jointopt.workflows.campaign import expectation
from jointopt.workflows.campaign.candidates import listed_candidates
from jointopt.workflows.campaign.expectation import EarlierRuns, GrowingModel, Outlook
from tests.surrogate.test_own_cluster import KERNEL, runs

UNUSED: Any = None


def beside(others: int) -> EarlierRuns:
    """So many runs of other jobs, and forty plans of this one."""
    return EarlierRuns(plans=runs(40, seed=7), cluster_runs=(runs(others), np.zeros(others)))


@pytest.fixture
def learned_from(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of runs of the tune that are learned from, in turn."""
    counts: list[int] = []

    def learn(_plans: object, index: Floats, *_: object) -> Floats:
        counts.append(len(index))
        return np.full(40, float(len(index)))

    monkeypatch.setattr(expectation, "residual_by_own_runs", learn)
    return counts


def test_the_cluster_is_learned_anew_with_each_quarter_more_runs(learned_from: list[int]) -> None:
    growing = GrowingModel(UNUSED, beside(20), KERNEL)
    found = [growing.log_factor(np.arange(count), np.zeros(count)) for count in range(14)]
    assert learned_from == [6, 8, 10, 13]
    assert [None if one is None else one[0] for one in found[5:]] == [None, 6, 6, 8, 8, 10, 10, 10, 13]


def test_fewer_than_twenty_runs_in_all_or_six_of_the_tune_teach_nothing(learned_from: list[int]) -> None:
    zeros = np.zeros(20)
    for others, own, known in ((13, 6, False), (14, 6, True), (40, 5, False), (1, 19, True), (1, 18, False)):
        found = GrowingModel(UNUSED, beside(others), KERNEL).log_factor(np.arange(own), zeros[:own])
        assert (found is not None) == known
    assert GrowingModel(UNUSED, beside(40), None).log_factor(np.arange(9), zeros[:9]) is None
    assert learned_from == [6, 19]


class Knows(GrowingModel):
    """Has learned the factor that it is made with."""

    def __init__(self, log_factor: Floats) -> None:
        self.known = log_factor

    def log_factor(self, index: Floats, residual: Floats) -> Floats | None:
        return self.known


def test_the_growing_model_predicts_where_it_is_likelier_on_runs_left_out_and_not_where_it_is_not(
    make_runs, job: Job
) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(job), job)
    off = np.linspace(-0.9, 0.9, candidates.size) ** 3
    time_s = candidates.predicted["iteration_time_s"] * np.exp(off)
    rows, index = [{"status": "ok", "iteration_time_s": value} for value in time_s[:7]], np.arange(7)
    for known in (off, -off):
        outlook = Outlook(job, candidates, EarlierRuns(), USUAL, np.random.default_rng(0), Knows(known))
        found = outlook.after(("iteration_time_s",), index, rows)
        assert found.basis.startswith("a model of the cluster's runs") == (known is off)
        close = np.abs(np.log(found.columns["iteration_time_s"] / time_s)[7:]) < 0.05
        assert close.all() == (known is off)


@pytest.mark.parametrize(
    ("more", "narrow", "basis"),
    [
        (0.04, 0.7, "earlier runs"), (0.06, 0.7, "a model of the cluster's runs"),
        (0.06, 0.48, "earlier runs"),  # the physics, when it is trusted as closely, is ahead as well
    ],
)  # fmt: skip
def test_the_growing_model_must_be_ahead_by_a_twentieth_of_a_log_likelihood_and_of_the_physics_on_equal_terms(
    make_runs, job: Job, monkeypatch: pytest.MonkeyPatch, more: float, narrow: float, basis: str
) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(job), job)
    time_s = candidates.predicted["iteration_time_s"]
    rows, known = [{"status": "ok", "iteration_time_s": value} for value in time_s[:7]], np.full(candidates.size, 0.1)
    # of the runs of this job, earlier ones, the physics alone, the growing model, and of the first as sure as that is
    losses = iter([1.0, 0.5, 9.0, 0.5 - more, narrow])
    monkeypatch.setattr(expectation, "mean_loss", lambda *_: next(losses))
    earlier = EarlierRuns(log_factors={"iteration_time_s": known})
    outlook = Outlook(job, candidates, earlier, USUAL, np.random.default_rng(0), Knows(known))
    assert outlook.after(("iteration_time_s",), np.arange(7), rows).basis.startswith(basis)


def test_without_stored_runs_the_plans_of_a_list_are_priced_as_runs_of_the_cluster(make_runs, job: Job) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(job), job)
    surrogate = load_surrogate("default")
    assert surrogate is not None
    index = np.tile(np.arange(5), 4)
    found = GrowingModel(candidates, EarlierRuns(), surrogate.kernel).log_factor(index, np.full(20, 0.4))
    assert found is not None
    assert found == pytest.approx(np.full(candidates.size, 0.4), abs=0.1)
