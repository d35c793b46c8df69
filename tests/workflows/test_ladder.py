"""The ladder of a plan's stage clocks: exact, never beaten, and with the power that the proposal prints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.errors import CatalogError, InfeasibleError
from jointopt.jobs.jobfile import load_job
from jointopt.physics.site import cluster_power_kw
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.ladder import Ladder, ladder_of
from jointopt.workflows.propose import propose

PLAN = "dp=4 tp=4 pp=2 vpp=2 mbs=1"


@pytest.fixture(scope="module")
def model() -> JobModel:
    return JobModel(load_job("llama-3-70b-4x8-h200"))


@pytest.fixture(scope="module")
def ladder(model: JobModel) -> Ladder:
    return ladder_of(model, propose(model).recommended.plan)


def test_no_rung_is_beaten_and_a_slower_one_takes_less_power(ladder: Ladder) -> None:
    assert len(ladder.power_kw) > 50
    assert (np.diff(ladder.tokens_per_s) < 0.0).all()
    cells = np.stack([ladder.power_kw, ladder.power_kw_high])
    for rung in range(1, len(ladder.power_kw)):
        assert (cells[:, rung, None] < cells[:, :rung]).any(axis=0).all()
    assert (ladder.power_kw < ladder.power_kw_high).all()


def test_every_plan_of_the_proposal_of_that_layout_is_on_the_ladder_or_beaten_by_it(model: JobModel) -> None:
    proposal = propose(model)
    ladder, front = ladder_of(model, proposal.recommended.plan), proposal.front
    same = [all(front[n][i] == ladder.own[n][0] for n in ("dp", "tp", "pp", "vpp", "stage_layers", "micro_batch_size"))
            for i in range(len(front["pp"]))]  # fmt: skip
    assert sum(same) > 5
    for row in np.flatnonzero(same):
        power_kw = float(cluster_power_kw(model.job.cluster, front["avg_power_w"][row]))
        faster = ladder.plans["iteration_time_s"] <= front["iteration_time_s"][row] * (1 + 1e-9)
        assert ladder.power_kw[faster].min() <= power_kw * (1 + 1e-9)


def test_the_plans_own_power_is_the_one_that_the_proposal_prints(model: JobModel) -> None:
    proposal = propose(model)
    chosen, own = proposal.decision.plan, ladder_of(model, proposal.recommended.plan).own
    power_kw = float(cluster_power_kw(model.job.cluster, chosen["avg_power_w"]))
    assert own["cluster_power_kw"][0] == pytest.approx(power_kw)
    assert own["tokens_per_s"][0] == pytest.approx(chosen["tokens_per_s_per_gpu"] * model.job.cluster.num_gpus)


def test_the_fastest_rung_under_a_limit_stays_below_it_at_the_high_end(ladder: Ladder) -> None:
    middle = float(np.median(ladder.power_kw_high))
    rung = ladder.rung_under(middle)
    assert rung is not None
    assert ladder.power_kw_high[rung] <= middle
    assert (ladder.power_kw_high[:rung] > middle).all()
    assert ladder.rung_under(0.99 * ladder.power_kw_high.min()) is None
    assert ladder.idle_kw < ladder.idle_kw_high < ladder.power_kw_high.min()


def test_power_limits_of_the_job_are_rungs_too_and_a_stated_one_holds_on_all() -> None:
    job = load_job("llama-3-70b-4x8-h200", {"search.power_limit_w": [700, 400]})
    both = ladder_of(JobModel(job), PLAN).plans["power_limit_w"]
    assert set(both) == {400.0, 700.0}
    assert set(ladder_of(JobModel(job), f"{PLAN} power_limit_w=500").plans["power_limit_w"]) == {500.0}


def test_a_plan_that_does_not_fit_or_a_gpu_of_unknown_power_has_no_ladder(model: JobModel) -> None:
    with pytest.raises(InfeasibleError, match="not feasible"):
        ladder_of(model, "dp=32 tp=1 pp=1 mbs=4 zero_stage=0")
    job = model.job
    nameless = replace(job, cluster=replace(job.cluster, gpu=replace(job.cluster.gpu, power=None, tdp_w=None)))
    with pytest.raises(CatalogError, match="power"):
        ladder_of(JobModel(nameless), PLAN)
