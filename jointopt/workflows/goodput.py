"""``goodput``: how long a whole run takes with its failures, checkpoints and repairs, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError, JobError, UsageError
from jointopt.core.units import KWH
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan
from jointopt.jobs.reliability import Reliability
from jointopt.measure.run_history import History
from jointopt.physics import renewal
from jointopt.physics.checkpoints import state_copies
from jointopt.physics.event_simulation import Failures, SimulatedRuns, simulated, typical_run
from jointopt.physics.repair import RepairShop
from jointopt.physics.site import HOUR_S, facility_energy_j
from jointopt.report.effective_time import Comparison, Goodput, Outcome, Simulated, days
from jointopt.report.explanation import Explanation
from jointopt.workflows.answers import accepts_paths, as_paths, model_of
from jointopt.workflows.explain import explain
from jointopt.workflows.propose import propose
from jointopt.workflows.run_reliability import failures_of, history_of, of_plan, rate_of, with_measured

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, JobLike, MachineLike, TableLike

MOST_RUNS, MOST_EVENTS = 1_000_000, 2e9
_RUNS = 2_000  # that are played where no formula holds
_MOST_TRIES = 20.0  # e-foldings: a piece that long against the time between failures never ends
_MINUTE_S = 60.0
_NONE = 1e-6  # failures, where none happened
_SAME = 1e-5  # of a time: policies that differ by less are alike, and the first of them is taken
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
    layouts = parse_plan(explained.plan, job).layouts
    own, origins = with_measured(job, history) if history else (job.reliability, ())
    stated, assumed = of_plan(job, layouts, own)
    run, copies = _run(job, explained, stated), float(state_copies(job, layouts)[0])
    runs = {name: _under(name, run, stated, explained, copies) for name in stated.policy}
    failures = failures_of(job, stated, int(explained.plan["pp"]))
    reason = next(filter(None, (failures.simulation_reason(one) for one in runs.values())), "")
    simulate = simulate or (_RUNS if reason else 0)
    played = {name: _played(one, simulate, seed, failures) for name, one in runs.items()} if reason else {}
    share = stated.planned_share
    outcomes = [_outcome(job, explained, name, one, share, played.get(name)) for name, one in runs.items()]
    least_s = min(one.time_to_train_s for one in outcomes)
    best = next(one for one in outcomes if one.time_to_train_s <= (1.0 + _SAME) * least_s)
    chosen, spread = runs[best.policy], None
    if simulate:
        times_s = (played.get(best.policy) or _played(chosen, simulate, seed, failures)).times_s / (1.0 - share)
        spread = Simulated.of(times_s, float(run.work_s), reason)
        ends: dict[str, Any] = {end: float(np.quantile(times_s, part)) for end, part in _ENDS.items()}
        best = replace(best, **ends)
        outcomes = [best if one.policy == best.policy else one for one in outcomes]
    worth: dict[str, float | None] = {}
    for name, other in _improved(chosen, stated).items():
        again = _played(other, simulate, seed, failures) if reason else None
        saved = _saving(best, _outcome(job, explained, best.policy, other, share, again))
        worth |= {f"{name}_{unit}": value for unit, value in saved.items()}
    return Goodput(
        job=job, explained=explained, reliability=stated, outcomes=tuple(outcomes), chosen=best,
        failure_s=float(run.failure_s), interval_s=float(run.interval_s),
        young_s=float(renewal.young_s(run.checkpoint_s, run.failure_s)),
        daly_s=float(renewal.daly_s(run.checkpoint_s, run.failure_s)), copies=copies, worth=worth, simulated=spread,
        assumed=(*origins, *assumed, *explained.assumed), course=partial(typical_run, chosen, seed, failures),
        measured=_measured(job, explained, run, history) if history else None,
    )  # fmt: skip


def _run(job: Job, explained: Explanation, stated: Reliability) -> renewal.Run:
    """The run as it goes where a replacement is at hand, with the stated interval or the best one."""
    iteration_s, failure_s = explained.iteration_time_s, stated.failure_s(job.cluster)
    work_s = iteration_s * (job.training.run_iterations or 0)
    stopped_s, restart_s = stated.checkpoint_s or 0.0, (stated.detection_s or 0.0) + (stated.restart_s or 0.0)
    interval_s = stated.checkpoint_interval_s
    if interval_s is not None and interval_s > work_s:
        raise JobError(
            f"reliability.checkpoint_interval_s is {interval_s:,.0f} s and the run trains for {work_s:,.0f} s in all; "
            "choose a shorter interval, or leave it out for the best one."
        )
    if interval_s is not None and interval_s < iteration_s:
        raise JobError(
            f"reliability.checkpoint_interval_s is {interval_s:g} s and an iteration takes {iteration_s:.4g} s; "
            "choose one iteration or more, or leave it out for the best one."
        )
    write_s = stated.checkpoint_write_s or 0.0
    if interval_s is not None and interval_s + stopped_s < write_s:
        raise JobError(
            f"reliability.checkpoint_interval_s is {interval_s:,.0f} s, and a checkpoint takes {write_s:,.0f} s to be "
            "written after it; choose a longer interval, or leave it out for the best one."
        )
    if interval_s is None:
        interval_s = min(max(float(renewal.best_interval_s(stopped_s, failure_s)), iteration_s, write_s), work_s)
    if max(interval_s + stopped_s, restart_s) > _MOST_TRIES * failure_s:
        raise InfeasibleError(
            f"The run does not end: it fails every {days(failure_s)}, and takes {days(interval_s + stopped_s)} from "
            f"one checkpoint to the next and {days(restart_s)} to restart; faster checkpoints and restarts would help."
        )
    return renewal.Run(work_s, iteration_s, interval_s, stopped_s, failure_s, restart_s, write_s=write_s)


def _under(policy: str, run: renewal.Run, stated: Reliability, explained: Explanation, copies: float) -> renewal.Run:
    """The run under a policy: whether it rolls back, and what it does without a spare."""
    dp, tp = int(explained.plan["dp"]), int(explained.plan["tp"])
    places, share = {
        "drop_replica": (dp, 1.0 / dp), "nonuniform_tp": (dp + 1, 1.0 / (dp * tp)) if tp > 1 else (dp, 1.0 / dp),
    }.get(policy, (1, 1.0))  # fmt: skip
    shop = None
    if stated.spares is not None:
        shop = RepairShop(stated.spares, float(stated.repair_s or np.nan), places, share)
    return replace(run, rolls_back=policy == "restart" or copies < 2.0, shop=shop)


def _outcome(
    job: Job, explained: Explanation, policy: str, run: renewal.Run, planned_share: float, played: SimulatedRuns | None
) -> Outcome:
    """What a run comes to under a policy, by the formula or the runs that were played; its spread by a normal one."""
    found = (played.expected() if played else renewal.expected(run)).with_planned_stops(planned_share)
    work_s = float(run.work_s)
    gpu, spares = job.cluster.gpu, run.shop.spares if run.shop else 0
    power = gpu.power
    idle_w = np.nan if power is None else gpu.idle_w if gpu.idle_w is not None else power.static_w
    training_w = explained.energy_j / explained.iteration_time_s
    of_spares_j = spares * job.cluster.gpus_per_node * idle_w * found.time_s
    energy_j = found.energy_j(work_s, training_w, idle_w * job.cluster.num_gpus) + of_spares_j
    shares = {name: found.lost_s[name] / found.time_s for name in renewal.LOSSES}
    return Outcome(
        policy=policy, time_to_train_s=found.time_s, useful_energy_j=energy_j,
        money=_money(job, spares, found.time_s, energy_j), effective_time_ratio=1.0 - sum(shares.values()), lost=shares,
        failures=found.failures, rolls_back=run.rolls_back,
        **{end: found.quantile_s(share, work_s) for end, share in _ENDS.items()},
    )  # fmt: skip


def _money(job: Job, spares: int, time_s: float, energy_j: float) -> float | None:
    """What GPUs and electricity cost, spares included; None without a price."""
    cluster = replace(job.cluster, nodes=job.cluster.nodes + spares)
    paid = []
    if cluster.price_per_gpu_hour is not None:
        paid.append(cluster.price_per_gpu_hour * cluster.num_gpus * time_s / HOUR_S)
    if cluster.price_per_kwh is not None:
        paid.append(cluster.price_per_kwh * float(facility_energy_j(cluster, time_s, energy_j)) / KWH)
    return sum(paid) if paid else None


def _played(run: renewal.Run, runs: int, seed: int, failures: Failures) -> SimulatedRuns:
    events = float(renewal.expected(run).failures)
    if events * runs > MOST_EVENTS:
        raise UsageError(
            f"{runs:,} runs with {events:,.0f} failures each take too long to simulate; "
            f"expected at most {MOST_EVENTS / events:,.0f} runs."
        )
    return simulated(run, runs, seed, failures)


def _improved(run: renewal.Run, stated: Reliability) -> dict[str, renewal.Run]:
    """The run with a minute less per restart or detection (or none of it), faster checkpoints, fewer failures, a spare.

    With the interval that is then the best, where none is stated.
    """
    minutes = {name: min(_MINUTE_S, getattr(stated, f"{name}_s") or 0.0) for name in ("restart", "detection")}
    found = {
        f"{name}_minute": replace(run, restart_s=float(run.restart_s) - less) for name, less in minutes.items()
    }  # fmt: skip
    half = replace(run, checkpoint_s=0.5 * float(run.checkpoint_s)), replace(run, failure_s=2.0 * float(run.failure_s))
    for name, one in zip(("checkpoint_half", "failures_half"), half, strict=True):
        best_s = float(renewal.best_interval_s(one.checkpoint_s, one.failure_s))
        least_s = max(float(one.iteration_s), float(one.write_s))
        if stated.checkpoint_interval_s is None:
            one = replace(one, interval_s=min(max(best_s, least_s), float(one.work_s)))
        found[name] = one
    shop = run.shop and replace(run.shop, spares=run.shop.spares + 1)
    return found | {"spare": replace(run, shop=shop)}


def _measured(job: Job, explained: Explanation, run: renewal.Run, history: History) -> Comparison:
    """What happened, what the model expected without the logs, and what it gives with the figures of them."""
    before, _ = of_plan(job, parse_plan(explained.plan, job).layouts, job.reliability)
    planned, ran_s = _run(job, explained, before), history.node_hours / job.cluster.nodes * HOUR_S
    foreseen = renewal.expected(planned).with_planned_stops(before.planned_share)
    expected: dict[str, float | None] = {
        "failures": ran_s / float(planned.failure_s), "detection_s": before.detection_s,
        "restart_s": before.restart_s, "checkpoint_s": before.checkpoint_s,
        "checkpoint_interval_s": float(planned.interval_s), "iteration_time_s": explained.iteration_time_s,
        "effective_time_ratio": float(planned.work_s) / foreseen.time_s,
    }  # fmt: skip
    rate, known = rate_of(history, job), {"work_s": history.iterations * history.iteration_time_s}
    known |= {"iteration_s": history.iteration_time_s, "interval_s": history.checkpoint_interval_s}
    known |= {"checkpoint_s": history.checkpoint_s, "restart_s": history.detection_s + history.restart_s}
    known = {name: value for name, value in known.items() if np.isfinite(value)}
    again = replace(run, **known, failure_s=history.ran_s / max(history.failures, _NONE))  # type: ignore[arg-type]
    ratio = float(again.work_s) / renewal.expected(again).time_s if history.trained else np.nan
    return Comparison(history, rate, expected, ratio)


def _saving(before: Outcome, after: Outcome) -> dict[str, float | None]:
    """Seconds and money that one outcome takes less than another."""
    money = None if before.money is None or after.money is None else before.money - after.money
    return {"s": before.time_to_train_s - after.time_to_train_s, "money": money}
