"""``goodput``: how long a whole run takes with its failures, checkpoints and repairs, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError, JobError, UsageError
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan
from jointopt.measure.run_history import History
from jointopt.physics import renewal
from jointopt.physics.event_simulation import Failures, SimulatedRuns, simulated, typical_run
from jointopt.physics.repair import RepairShop
from jointopt.physics.site import HOUR_S
from jointopt.physics.training_runs import MOST_TRIES, TrainingRuns, best_policy
from jointopt.report.effective_time import Comparison, Goodput, Outcome, Simulated, days
from jointopt.report.explanation import Explanation
from jointopt.workflows.answers import accepts_paths, as_paths, model_of
from jointopt.workflows.explain import explain
from jointopt.workflows.propose import propose
from jointopt.workflows.run_reliability import failures_of, history_of, rate_of, with_measured

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, JobLike, MachineLike, TableLike

MOST_RUNS, MOST_EVENTS = 1_000_000, 2e9
_RUNS = 2_000  # that are played where no formula holds
_MINUTE_S = 60.0
_NONE = 1e-6  # failures, where none happened
_ENDS = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


@accepts_paths
def goodput(
    job: JobLike, plan: str | Mapping[str, Any] | None = None, *, logs: Sequence[str | Path] | str | Path = (),
    simulate: int = 0, seed: int = 0, surrogate: str = "default",
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, machine: MachineLike | None = None,
) -> Goodput:  # fmt: skip
    """Time, energy and money of a whole run of ``run_tokens`` with its failures, under each policy of the job.

    Parameters
    ----------
    job : Job, JobModel or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    plan : str or mapping, optional
        Words such as ``"dp=4 tp=2 clock_mhz=1410"``, or the fields of a plan; by default the plan that
        `propose` recommends.
    logs : path or sequence of path, optional
        Those of one run of the job, and tables of sacct, which give what its section ``reliability`` leaves open.
    simulate : int, optional
        Runs that are played event by event too, and give the spread; 2,000 where no formula holds.
    seed : int, optional
        Of their random numbers.
    surrogate : str, optional
        Name of a shipped surrogate, folder that `retrain` wrote, or "none" for physics alone.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database whose measured runs correct the predictions too; none by default.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.

    Returns
    -------
    Goodput
        ``time_to_train_s`` (s) and ``useful_energy_j`` (J), and which shares of the time are lost to what.

    Raises
    ------
    JobError
        Where ``run_tokens`` is missing or the interval of checkpoints is longer than the run.
    InfeasibleError
        Where failures come too often for the run to end.
    """
    model = model_of(job, surrogate, measured, calibration, storage, machine)
    job = model.job
    if job.training.run_iterations is None:
        raise JobError("training.run_tokens is missing; expected the tokens of the whole run (--run-tokens 15.6e12).")
    if simulate and not 2 <= simulate <= MOST_RUNS:
        raise UsageError(f"simulate must be a number of runs from 2 to {MOST_RUNS:,}; got {simulate}.")
    files = as_paths("logs", logs)
    history = history_of(job, files) if files else None
    explained = explain(model, propose(model).recommended.plan if plan is None else plan)
    layouts, times = parse_plan(explained.plan, job).layouts, (explained.iteration_time_s, explained.energy_j)
    own, origins = with_measured(job, history) if history else (job.reliability, ())
    costs = TrainingRuns.of(job, layouts, reliability=own)
    cases = [(name, at) for at in range(len(costs.spares)) for name in costs.stated.policy]
    runs = [_checked(job, costs.run(name, at, *times)) for name, at in cases]
    failures = failures_of(job, costs.stated, int(explained.plan["pp"]))
    reason = next(filter(None, map(failures.simulation_reason, runs)), "")
    simulate = simulate or (_RUNS if reason else 0)
    played = [_played(one, simulate, seed, failures) if reason else None for one in runs]
    found = [
        _outcome(costs, name, run, times[1], of) for (name, _), run, of in zip(cases, runs, played, strict=True)
    ]  # fmt: skip
    objective = "money" if not job.is_of_run and job.cluster.has_price and len(costs.spares) > 1 else job.run_objective
    place = int(best_policy(np.array([[getattr(one, objective)] for one in found]))[0])
    best, run, spread = found[place], runs[place], None
    if simulate:
        of = played[place] or _played(run, simulate, seed, failures)
        times_s = of.times_s / (1.0 - costs.stated.planned_share)
        spread = Simulated.of(times_s, float(run.work_s), reason)
        ends: dict[str, Any] = {end: float(np.quantile(times_s, part)) for end, part in _ENDS.items()}
        best = found[place] = replace(best, **ends)
    worth: dict[str, float | None] = {}
    for name, other in _improved(costs, run, *cases[place], times).items():
        again = _played(other, simulate, seed, failures) if reason else None
        saved = _saving(best, _outcome(costs, best.policy, other, times[1], again))
        worth |= {f"{name}_{unit}": value for unit, value in saved.items()}
    taken = replace(
        costs.stated, checkpoint_s=float(run.checkpoint_s), checkpoint_write_s=float(run.write_s), spares=best.spares
    )
    return Goodput(
        job=job, explained=explained, reliability=taken,
        outcomes=tuple(one for one in found if one.spares == best.spares), chosen=best,
        failure_s=costs.failure_s, interval_s=float(run.interval_s),
        young_s=float(renewal.young_s(run.checkpoint_s, run.failure_s)),
        daly_s=float(renewal.daly_s(run.checkpoint_s, run.failure_s)), copies=float(costs.copies[0]), worth=worth,
        simulated=spread, assumed=(*origins, *costs.assumed, *explained.assumed),
        course=partial(typical_run, run, seed, failures),
        measured=_measured(costs, explained, run, history) if history else None,
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
    write_s = float(run.write_s)
    if stated_s is not None and stated_s + float(run.checkpoint_s) < write_s:
        raise JobError(
            f"reliability.checkpoint_interval_s is {stated_s:,.0f} s, and a checkpoint takes {write_s:,.0f} s to be "
            "written after it; choose a longer interval, or leave it out for the best one."
        )
    pieces_s = float(run.interval_s + run.checkpoint_s), float(run.restart_s)
    if max(pieces_s) > MOST_TRIES * float(run.failure_s):
        raise InfeasibleError(
            f"The run does not end: it fails every {days(float(run.failure_s))}, and takes {days(pieces_s[0])} from "
            f"one checkpoint to the next and {days(pieces_s[1])} to restart; make checkpoints and restarts faster."
        )
    return run


def _outcome(
    costs: TrainingRuns, policy: str, run: renewal.Run, energy_j: float, played: SimulatedRuns | None
) -> Outcome:
    """What a run comes to under a policy, by the formula or the runs that were played; its spread by a normal one."""
    found, spares = costs.expected(run, played), run.shop.spares if isinstance(run.shop, RepairShop) else None
    of = {name: float(value) for name, value in costs.figures(run, spares or 0, energy_j, played).items()}
    shares = {name: float(found.lost_s[name] / found.time_s) for name in renewal.LOSSES}
    return Outcome(
        policy=policy, spares=spares, time_to_train_s=of["time_to_train_s"],
        useful_energy_j=of["useful_energy_j"], money=of["money"] if costs.job.cluster.has_price else None,
        effective_time_ratio=1.0 - sum(shares.values()), lost=shares, failures=float(found.failures),
        rolls_back=bool(run.rolls_back),
        **{end: found.quantile_s(share, float(run.work_s)) for end, share in _ENDS.items()},
    )  # fmt: skip


def _played(run: renewal.Run, runs: int, seed: int, failures: Failures) -> SimulatedRuns:
    events = float(renewal.expected(run).failures)
    if events * runs > MOST_EVENTS:
        raise UsageError(
            f"{runs:,} runs with {events:,.0f} failures each take too long to simulate; "
            f"expected at most {MOST_EVENTS / events:,.0f} runs."
        )
    return simulated(run, runs, seed, failures)


def _improved(
    costs: TrainingRuns, run: renewal.Run, policy: str, at: int, times: tuple[float, float]
) -> dict[str, renewal.Run]:
    """The run with a minute less per restart or detection (or none of it), faster checkpoints, fewer failures, a spare.

    With the interval that is then the best, where none is stated.
    """
    stated = costs.stated

    def under(**changed: float | None) -> TrainingRuns:
        return replace(costs, stated=replace(stated, **changed))  # type: ignore[arg-type]

    minutes = {name: getattr(stated, f"{name}_s") or 0.0 for name in ("restart", "detection")}
    found = {f"{name}_minute": under(**{f"{name}_s": max(each - _MINUTE_S, 0.0)}) for name, each in minutes.items()}
    rates = ("failures_per_gpu_hour", "failures_per_node_hour")
    found["checkpoint_half"] = replace(costs, checkpoint_s=0.5 * costs.checkpoint_s)
    found["failures_half"] = under(**{name: 0.5 * rate for name in rates if (rate := getattr(stated, name))})
    shop = replace(run.shop, spares=run.shop.spares + 1) if isinstance(run.shop, RepairShop) else None
    return {name: one.run(policy, at, *times) for name, one in found.items()} | {"spare": replace(run, shop=shop)}


def _measured(costs: TrainingRuns, explained: Explanation, run: renewal.Run, history: History) -> Comparison:
    """What happened, what the model expected without the logs, and what it gives with the figures of them."""
    job, layouts = costs.job, parse_plan(explained.plan, costs.job).layouts
    before, ran_s = TrainingRuns.of(job, layouts), history.node_hours / job.cluster.nodes * HOUR_S
    planned = before.run(before.stated.policy[0], 0, explained.iteration_time_s, explained.energy_j)
    planned = replace(planned, rolls_back=True, shop=None)
    expected: dict[str, float | None] = {
        "failures": ran_s / float(planned.failure_s), "detection_s": before.stated.detection_s,
        "restart_s": before.stated.restart_s, "checkpoint_s": float(planned.checkpoint_s),
        "checkpoint_interval_s": float(planned.interval_s), "iteration_time_s": explained.iteration_time_s,
        "effective_time_ratio": float(planned.work_s / before.expected(planned).time_s),
    }  # fmt: skip
    rate, known = rate_of(history, job), {"work_s": history.iterations * history.iteration_time_s}
    known |= {"iteration_s": history.iteration_time_s, "interval_s": history.checkpoint_interval_s}
    known |= {"checkpoint_s": history.checkpoint_s, "restart_s": history.detection_s + history.restart_s}
    known = {name: value for name, value in known.items() if np.isfinite(value)}
    again = replace(run, **known, failure_s=history.ran_s / max(history.failures, _NONE))  # type: ignore[arg-type]
    ratio = float(again.work_s / renewal.expected(again).time_s) if history.trained else np.nan
    return Comparison(history, rate, expected, ratio)


def _saving(before: Outcome, after: Outcome) -> dict[str, float | None]:
    """Seconds and money that one outcome takes less than another."""
    money = None if before.money is None or after.money is None else before.money - after.money
    return {"s": before.time_to_train_s - after.time_to_train_s, "money": money}
