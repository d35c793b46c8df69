"""``scale``: a job on clusters of many sizes and kinds, and the one that a deadline, a budget or power picks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jointopt.core.errors import InfeasibleError, UsageError
from jointopt.core.progress import steps
from jointopt.core.quote import sh_command
from jointopt.core.schema import LAYOUT_COLUMNS, Columns
from jointopt.frameworks.exported import start_command
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_mapping, sized_jobs
from jointopt.jobs.plans.text import PLAN_KEYS, format_plan, parse_plan
from jointopt.jobs.reading import is_whole, quoted_value
from jointopt.physics.site import run_costs
from jointopt.physics.throughput import with_rates
from jointopt.physics.training_runs import RUN_COLUMNS
from jointopt.report.decision import run_costs_at
from jointopt.report.scaled import Pick, Scaled, Size
from jointopt.report.tables import figure, plan_entries
from jointopt.search.pareto import front_order, take
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import CERTAIN
from jointopt.workflows.answers import ReferencePlan, accepts_paths, model_of
from jointopt.workflows.feasible_layouts import need_power, prepare_search
from jointopt.workflows.open_settings import open_words, settings_of_plan
from jointopt.workflows.propose import ends_and_knee, time_parts_of
from jointopt.workflows.search_steps import Stopwatch, exact_step, once

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, MachineLike, TableLike


_Run = tuple[int, Mapping[str, Any], dict[str, Any]]  # size, entry, what its run takes
_LIMITED = (("days", "deadline_days", "the deadline"), ("money", "budget", "the budget"))


@dataclass(frozen=True)
class _ClusterFront:
    """All plans of one cluster's front as entries, and the size as it is shown."""

    size: Size
    entries: list[dict[str, Any]]
    model: JobModel


@accepts_paths
def scale(
    jobs: Sequence[Job] | Job | str | Path, gpus: Sequence[int] | int | None = None, *, weak: bool = False,
    deadline_days: float | None = None, budget: float | None = None, site_kw: float | None = None,
    at_high_end: bool = False, surrogate: str = "default", measured: TableLike | None = None,
    calibration: CalibrationLike | None = None, storage: str | None = None, machine: MachineLike | None = None,
    source: str = "",
) -> Scaled:  # fmt: skip
    """The fronts of jobs that differ in their clusters (see `jointopt.load_jobs`), side by side.

    A cluster on which nothing is likely to fit in memory is shown with what comes nearest, and never picked.

    Parameters
    ----------
    jobs : Job, or sequence of Job
        One job, or one for each cluster.
    gpus : int or sequence of int, optional
        Numbers of GPUs at which one job is looked at in place of its own, which is meant by default.
    weak : bool, optional
        The batch grows with the GPUs.
    deadline_days : float, optional
        Days that a run of ``run_tokens`` may take: the cheapest plan in time is picked.
    budget : float, optional
        Money for a run, electricity and GPUs, in the job's currency: the fastest plan within it is picked.
    site_kw : float, optional
        Power of the site, kW.
    at_high_end : bool, optional
        Hold the upper ends of 90 % intervals to these limits.
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
    source : str, optional
        How a shell names the job, for the next command.

    Returns
    -------
    Scaled
        ``sizes`` with the front of each cluster, and the pick.

    Raises
    ------
    InfeasibleError
        Where no cluster keeps the limits.
    UsageError
        For a limit without a price or ``run_tokens``.

    Examples
    --------
    >>> found = jointopt.scale(jointopt.load_job("opt-350m-2x4-a100"), gpus=[4, 8], surrogate="none")
    >>> [size["num_gpus"] for size in found.to_dict()["sizes"]]
    [4, 8]
    """
    jobs = cast("Sequence[Job] | Job", jobs)
    given = {"deadline_days": deadline_days, "budget": budget, "site_kw": site_kw}
    limits = {name: value for name, value in given.items() if value is not None}
    gpus = _gpu_counts(gpus)
    if isinstance(jobs, Job):
        jobs = sized_jobs(job_mapping(jobs), jobs.name, Path(), gpus, weak=weak) if gpus else [jobs]
    elif gpus:
        raise UsageError("gpus are the sizes of one job; got several jobs.")
    if other := next((one for one in jobs if not isinstance(one, Job)), None):
        raise UsageError(f"jobs must be Jobs (`jointopt.load_jobs`); got a list with {type(other).__name__}.")
    _check_limits(jobs, limits)
    watch = Stopwatch()
    found = []
    for job in steps(jobs, "clusters"):
        bounded = job
        if site_kw is not None:  # with the clocks that the power of the site needs
            power_kw = min(site_kw, job.constraints.cluster_power_kw or math.inf)
            bounded = replace(job, constraints=replace(job.constraints, cluster_power_kw=power_kw))
        with watch.phase(job.name, f"searching {job.cluster.num_gpus:,} x {job.cluster.gpu.id}"):
            model = model_of(bounded, surrogate, measured, calibration, storage, machine)
            found.append(_search_cluster(model))
    # each size with its throughput per GPU over that of the smallest of its kind
    rate, smallest = "tokens_per_s_per_gpu", dict[str, float]()
    for size in sorted((one.size for one in found if one.size.feasible), key=lambda size: size.job.cluster.num_gpus):
        smallest.setdefault(size.job.cluster.gpu.id, size.plans[0][rate])
    sizes = tuple(
        replace(size, efficiency=float(size.plans[0][rate] / smallest[size.job.cluster.gpu.id]))
        if size.feasible
        else size
        for size in (one.size for one in found)
    )
    left_open = tuple(open_words(jobs[0]))
    # (size, entry, what its run takes) of every plan of a feasible cluster
    plans = [(at, entry) for at, one in enumerate(found) if one.size.feasible for entry in one.entries]
    every = [(at, entry, run_costs(found[at].size.job, entry)) for at, entry in plans]
    if not every:
        return Scaled(sizes, (), None, weak, left_open, source)
    days, joules = (np.array([run[name] for *_, run in every], float) for name in ("days", "energy_j"))
    rows = front_order(days, joules) if np.isfinite(joules).any() else days.argsort(kind="stable")[:1]
    pick = _pick(found, every, limits, at_high_end) if limits else None
    scaled = Scaled(sizes, tuple(every[row][:2] for row in rows.tolist()), pick, weak, left_open, source)
    chosen = scaled.chosen
    job, record = sizes[chosen.size].job, {name: value for name, value in chosen.plan.items() if name in PLAN_KEYS}
    plan = parse_plan(record, job)
    words = sh_command(["--plan", format_plan(plan.layouts, plan.stage_clock_mhz)])
    words += " --allow-tight" * (not sizes[chosen.size].feasible)
    return replace(
        scaled, hangs_on=settings_of_plan(found[chosen.size].model, plan.layouts, plan.stage_clock_mhz),
        next_command=start_command(job, record, scaled.job_words, words) if source else None,
    )  # fmt: skip


def _gpu_counts(gpus: Any) -> list[int]:
    """The numbers of GPUs, none where they are left out; UsageError for what is no list of numbers above 0."""
    if gpus is None:
        return []
    counts = list(gpus) if isinstance(gpus, Iterable) and not isinstance(gpus, str) else [gpus]
    if not counts or not all(is_whole(count) and count > 0 for count in counts):
        raise UsageError(
            "gpus must be numbers of GPUs above 0, such as [8, 16], or be left out for the job's own; "
            f"got {quoted_value(gpus)}."
        )
    return list(dict.fromkeys(map(int, counts)))


def _search_cluster(model: JobModel) -> _ClusterFront:
    job, quiet, short = model.job, Stopwatch(quiet=True), ""
    need_power(job)
    try:
        ready = prepare_search(model, quiet)
    except InfeasibleError as error:
        short = str(error)
        try:
            ready = prepare_search(model, quiet, allow_tight=True)
        except InfeasibleError:
            return _ClusterFront(Size(job, reason=short), [], model)
        if ready.fitting.max() < CERTAIN:  # nothing comes near
            return _ClusterFront(Size(job, reason=short), [], model)
    found = once(ready.problem, exact_step(job, ready.searched, quiet).front)
    layout = found["layout_index"]
    front = found | {"fit_probability": ready.fitting[layout]}
    if not len(layout):
        return _ClusterFront(Size(job, reason=short or "no plan keeps the constraints at any clock."), [], model)
    columns: Columns = {n: v[layout] for n, v in ready.physics.layouts.items() if n in LAYOUT_COLUMNS}
    wanted = (*RESULTS, *RUN_COLUMNS, "fit_probability", "stage_clock_mhz")
    columns |= {name: front[name] for name in wanted if name in front}
    rows = ends_and_knee(front, job.goals[:2]).tolist()
    fastest = take(columns, np.array(rows[:1]))
    apart, _ = ReferencePlan(model, fastest).differences(columns)
    entries = plan_entries(with_rates(job, model.bounded(columns) | apart))
    parts = time_parts_of(ready.physics, int(layout[rows[0]]), entries[rows[0]])
    shown = tuple(entries[row] for row in rows)
    return _ClusterFront(Size(job, shown, parts, short, model.reasons(fastest)), entries, model)


def _pick(
    found: Sequence[_ClusterFront], every: Sequence[_Run], limits: Mapping[str, float], at_high_end: bool
) -> Pick:
    """The cheapest plan (or the one of least energy) within a deadline, else the fastest within budget and power."""

    def run_of(row: _Run) -> Mapping[str, Any]:
        return run_costs_at(found[row[0]].size.job, row[1], "_high") if at_high_end else row[2]

    def excess(row: _Run) -> tuple[float, str]:
        """By which share the worst limit is exceeded, and that limit; power is kept by the search."""
        run = run_of(row)
        over = [(run[key] / limits[limit] - 1.0, name) for key, limit, name in _LIMITED if limit in limits]
        return max(over, default=(-1.0, ""))

    kept = [row for row in every if excess(row)[0] <= 0.0]
    if not kept:
        best = min(every, key=lambda row: excess(row)[0])
        cluster, run, (over, name) = found[best[0]].size.job.cluster, run_of(best), excess(best)
        clusters = f"{len(found)} cluster{'s' * (len(found) != 1)}"
        by = f"{100 * over:.3g} % over {name}" if over <= 10 else f"{figure(float(f'{1 + over:.3g}'))} times {name}"
        raise InfeasibleError(
            f"No plan of {clusters} keeps every limit; the closest, on {cluster.num_gpus:,} x "
            f"{cluster.gpu.id}, takes {figure(run['days'])} days"
            + " at the high end of its interval" * at_high_end
            + (f" and costs {run['money']:,.0f} {cluster.currency}".rstrip() if run["money"] else "")
            + f", {by}."
        )  # fmt: skip
    priced = all(run["money"] is not None for *_, run in kept)
    objective = ("money" if priced else "energy_j") if "deadline_days" in limits else "days"
    size, entry, _ = min(kept, key=lambda row: (row[2][objective], row[2]["days"]))
    return Pick(size, entry, {"days": "time", "energy_j": "energy", "money": "money"}[objective], limits, at_high_end)


def _check_limits(jobs: Sequence[Job], limits: Mapping[str, float]) -> None:
    if not jobs:
        raise UsageError("There is no cluster to compare; give at least one.")
    for name, value in limits.items():
        if not 0 < value < math.inf:
            raise UsageError(f"{name} must be a number above 0; got {value:g}.")
    whole_run = {"deadline_days", "budget"} & limits.keys()
    if whole_run and any(job.training.run_tokens is None for job in jobs):
        raise UsageError("A deadline and a budget are of a whole run: give its tokens, --run-tokens 15e12.")
    cluster = jobs[0].cluster
    if "budget" in limits and cluster.price_per_gpu_hour is None and cluster.price_per_kwh is None:
        raise UsageError("A budget needs a price: give --price-per-gpu-hour, --price-per-kwh or both.")
