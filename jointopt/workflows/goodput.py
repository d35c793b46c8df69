"""``goodput``: how long a whole run takes with its failures, checkpoints and repairs, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError, JobError, UsageError
from jointopt.core.schema import Floats
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics import renewal
from jointopt.physics.event_simulation import simulated_times_s
from jointopt.physics.repair import RepairShop
from jointopt.physics.training_runs import MOST_TRIES, TrainingRuns, best_policy
from jointopt.report.effective_time import Goodput, Outcome, Simulated, days
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import accepts_paths
from jointopt.workflows.explain import explain
from jointopt.workflows.propose import propose

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

MOST_RUNS, MOST_EVENTS = 1_000_000, 2e9
_MINUTE_S = 60.0
_ENDS = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


@accepts_paths
def goodput(
    job: Job | JobModel, plan: str | Mapping[str, Any] | None = None, *, simulate: int = 0, seed: int = 0,
    surrogate: str = "default", measured: pd.DataFrame | Measurements | None = None,
    calibration: Calibration | None = None, storage: str | None = None, machine: Machine | None = None,
) -> Goodput:  # fmt: skip
    """Time, energy and money of a whole run of ``run_tokens`` with its failures, under each policy of the job.

    ``plan``: as `parse_plan` reads it; by default the plan that `propose` recommends. ``simulate``: that many runs are
    played event by event too, and give the spread. ``surrogate`` and what follows as in `JobModel.of`.
    JobError where ``run_tokens`` is missing or the interval is longer than the run, InfeasibleError where failures come
    too often for the run to end.
    """
    model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    job = model.job
    if job.training.run_iterations is None:
        raise JobError("training.run_tokens is missing; expected the tokens of the whole run (--run-tokens 15.6e12).")
    if simulate and not 2 <= simulate <= MOST_RUNS:
        raise UsageError(f"simulate must be a number of runs from 2 to {MOST_RUNS:,}; got {simulate}.")
    explained = explain(model, propose(model).recommended.plan if plan is None else plan)
    layouts, times = parse_plan(explained.plan, job).layouts, (explained.iteration_time_s, explained.energy_j)
    costs = TrainingRuns.of(job, layouts)
    cases = [(name, at) for at in range(len(costs.spares)) for name in costs.stated.policy]
    runs = [_checked(job, costs.run(name, at, *times)) for name, at in cases]
    found = [_outcome(costs, name, run, times[1]) for (name, _), run in zip(cases, runs, strict=True)]
    objective = "money" if not job.is_of_run and job.cluster.has_price and len(costs.spares) > 1 else job.run_objective
    place = int(best_policy(np.array([[getattr(one, objective)] for one in found]))[0])
    best, run = found[place], runs[place]
    outcomes = [one for one in found if one.spares == best.spares]
    simulated = None
    if simulate:
        times_s = _simulated(run, best, simulate, seed)
        simulated = Simulated.of(times_s, float(run.work_s))
        ends: dict[str, Any] = {end: float(np.quantile(times_s, share)) for end, share in _ENDS.items()}
        best = replace(best, **ends)
        outcomes = [best if one.policy == best.policy else one for one in outcomes]
    worth = {
        f"{name}_{unit}": value
        for name, other in _improved(run).items()
        for unit, value in _saving(best, _outcome(costs, best.policy, other, times[1])).items()
    }
    stated = replace(costs.stated, checkpoint_s=float(run.checkpoint_s), spares=best.spares)
    return Goodput(
        job=job, explained=explained, reliability=stated, outcomes=tuple(outcomes), chosen=best,
        failure_s=costs.failure_s, interval_s=float(run.interval_s),
        young_s=float(renewal.young_s(run.checkpoint_s, run.failure_s)),
        daly_s=float(renewal.daly_s(run.checkpoint_s, run.failure_s)), copies=float(costs.copies[0]), worth=worth,
        simulated=simulated, assumed=(*costs.assumed, *explained.assumed),
        by_spares=tuple(one for one in found if one.policy == best.policy),
    )  # fmt: skip


def _checked(job: Job, run: renewal.Run) -> renewal.Run:
    """The run; JobError where its stated interval is longer than it or shorter than an iteration, or it never ends."""
    stated_s, work_s, iteration_s = job.reliability.checkpoint_interval_s, float(run.work_s), float(run.iteration_s)
    if stated_s is not None and stated_s > work_s:
        raise JobError(
            f"reliability.checkpoint_interval_s is {stated_s:,.0f} s and the run trains for {work_s:,.0f} s in all; "
            "choose a shorter interval, or leave it out for the best one."
        )
    if stated_s is not None and stated_s < iteration_s:
        raise JobError(
            f"reliability.checkpoint_interval_s is {stated_s:g} s and an iteration takes {iteration_s:.4g} s; "
            "choose one iteration or more, or leave it out for the best one."
        )
    pieces_s = float(run.interval_s + run.checkpoint_s), float(run.restart_s)
    if max(pieces_s) > MOST_TRIES * float(run.failure_s):
        raise InfeasibleError(
            f"The run does not end: it fails every {days(float(run.failure_s))}, and takes {days(pieces_s[0])} from "
            f"one checkpoint to the next and {days(pieces_s[1])} to restart; make checkpoints and restarts faster."
        )
    return run


def _outcome(costs: TrainingRuns, policy: str, run: renewal.Run, energy_j: float) -> Outcome:
    """What a run comes to under a policy; its spread by a normal distribution."""
    found, spares = renewal.expected(run), run.shop.spares if isinstance(run.shop, RepairShop) else None
    figures = {name: float(value) for name, value in costs.figures(run, spares or 0, energy_j).items()}
    shares = {name: float(found.lost_s[name] / found.time_s) for name in renewal.LOSSES}
    return Outcome(
        policy=policy, spares=spares, time_to_train_s=figures["time_to_train_s"],
        useful_energy_j=figures["useful_energy_j"], money=figures["money"] if costs.job.cluster.has_price else None,
        effective_time_ratio=1.0 - sum(shares.values()), lost=shares, failures=float(found.failures),
        rolls_back=bool(run.rolls_back),
        **{end: found.quantile_s(share, float(run.work_s)) for end, share in _ENDS.items()},
    )  # fmt: skip


def _simulated(run: renewal.Run, outcome: Outcome, runs: int, seed: int) -> Floats:
    events = outcome.failures * runs
    if events > MOST_EVENTS:
        raise UsageError(
            f"{runs:,} runs with {outcome.failures:,.0f} failures each take too long to simulate; "
            f"expected at most {MOST_EVENTS / outcome.failures:,.0f} runs."
        )
    return simulated_times_s(run, runs, seed)


def _improved(run: renewal.Run) -> dict[str, renewal.Run]:
    """The run with restarts of a minute less (none where they take less), and with one more spare."""
    shop = replace(run.shop, spares=run.shop.spares + 1) if isinstance(run.shop, RepairShop) else None
    faster = replace(run, restart_s=max(float(run.restart_s) - _MINUTE_S, 0.0))
    return {"restart_minute": faster, "spare": replace(run, shop=shop)}


def _saving(before: Outcome, after: Outcome) -> dict[str, float | None]:
    """Seconds and money that one outcome takes less than another."""
    money = None if before.money is None or after.money is None else before.money - after.money
    return {"s": before.time_to_train_s - after.time_to_train_s, "money": money}
