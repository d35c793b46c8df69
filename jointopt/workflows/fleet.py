"""``fleet``: which of several jobs gets how much of a site's power, at which layouts, clocks and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError, JobError, UsageError
from jointopt.core.progress import steps
from jointopt.core.schema import Columns, Floats, Ints
from jointopt.jobs.fleet_file import FleetFile, JobTerms, PowerLimit, read_fleet_file
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job, job_mapping, load_job, sized_jobs
from jointopt.jobs.plans.text import plan_records
from jointopt.physics.site import HOUR_S
from jointopt.report.allocation import Allocation, JobShare, Shares
from jointopt.report.tables import figure
from jointopt.search.pareto import front_order
from jointopt.search.power_budget import PowerBudget
from jointopt.workflows.answers import accepts_paths, model_of
from jointopt.workflows.feasible_layouts import need_power
from jointopt.workflows.ladder import idle_power_kw, power_options

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, MachineLike, TableLike

_MOST_OPTIONS, _LEAST_OPTIONS = 60_000, 60  # of all jobs, for which the solver takes a second or two; of each of them
_MISSED = 2.0  # value of a deadline beside that of all tokens, which is 1


@dataclass(frozen=True)
class _Options:
    """What a job may do: its pause, then plans of its sizes (a sized job, its plans, a row), none beaten by another."""

    terms: JobTerms
    plans: tuple[tuple[Job, Columns, int] | None, ...]
    tokens_per_s: Floats
    power_kw: Floats
    power_kw_high: Floats
    needed_per_s: float  # tokens/s that keep the deadline; 0 without one

    @property
    def relative(self) -> Floats:
        """Tokens/s against those without a limit."""
        return np.asarray(self.tokens_per_s / self.tokens_per_s.max())


@accepts_paths
def fleet(
    jobs: Sequence[Job | str | Path], *, site_kw: float, fleet_file: str | Path | Mapping[str, Any] | None = None,
    allow_tight: bool = False, surrogate: str = "default", measured: TableLike | None = None,
    calibration: CalibrationLike | None = None, storage: str | None = None, machine: MachineLike | None = None,
) -> Allocation:  # fmt: skip
    """One plan, or a pause, for each job, so that the sum of the high ends of their power stays below ``site_kw``.

    It keeps as many deadlines as can be, then maximises the mean over jobs, weighted by priority, of tokens/s against
    those without a limit.

    Parameters
    ----------
    jobs : sequence of Job or path
        The jobs of the site, each on its own GPUs.
    site_kw : float
        Power of the site at its meter, kW.
    fleet_file : mapping or path, optional
        Priorities, deadlines and sizes of the jobs, and limits of rows, racks and nodes.
    allow_tight : bool, optional
        Take plans that are likelier not to fit in memory than to fit.
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
    Allocation
        Plan, power (kW) and tokens/s of each job, beside equal shares and greedy steps.

    Raises
    ------
    InfeasibleError
        Where even pauses draw more than a limit.
    """
    if not 0.0 < site_kw < np.inf:
        raise UsageError(f"site_kw must be a number above 0; got {site_kw:g}.")
    named = _named(jobs)
    source = Path(fleet_file) if isinstance(fleet_file, str) else fleet_file
    asked = FleetFile() if source is None else read_fleet_file(source, named)
    most = max(_MOST_OPTIONS // len(named), _LEAST_OPTIONS)
    priced: dict[str, Columns] = {}  # plans by the job's text, as many jobs may be alike

    def plans_of(job: Job) -> Columns:
        key = dump_job(replace(job, name="job"))
        if key not in priced:
            need_power(job)
            model = model_of(job, surrogate, measured, calibration, storage, machine)
            priced[key] = power_options(model, most, allow_tight=allow_tight)
        return priced[key]

    every = [
        _options(name, job, asked.jobs.get(name, JobTerms()), plans_of)
        for name, job in steps(list(named.items()), "jobs")
    ]
    limits = (PowerLimit("site", site_kw, {name: job.cluster.nodes for name, job in named.items()}), *asked.limits)
    budget = _budget(named, every, limits)
    idle_kw = budget.power_kw[budget.first].sum(axis=0)
    over = np.flatnonzero(idle_kw > budget.limit_kw)
    if len(over):
        limit = limits[over[0]]
        raise InfeasibleError(
            f"Limit {limit.name} cannot keep {figure(limit.kw)} kW: {figure(float(idle_kw[over[0]]) - limit.kw)} kW "
            f"are missing, since its jobs draw up to {figure(float(idle_kw[over[0]]))} kW while all of them pause; "
            "take jobs away, or raise the limit."
        )
    rows, gap = budget.best()
    fastest = budget.first + np.array([one.tokens_per_s.argmax() for one in every], np.int64)
    found, equal, greedy, free = (
        _shares(list(named), every, budget, one)
        for one in (rows, budget.equal_share(), budget.greedy(budget.first), fastest)
    )
    used_kw = budget.power_kw[rows].sum(axis=0)
    return Allocation(
        site_kw=site_kw, found=found, equal_share=equal, greedy=greedy, gap=gap,
        unlimited_kw=free.power_kw_high, unlimited_gpus=free.gpus,
        limit_use=tuple((one.name, one.kw, float(kw)) for one, kw in zip(limits, used_kw, strict=True)),
    )  # fmt: skip


def _named(jobs: Sequence[Job | str | Path]) -> dict[str, Job]:
    """The jobs by their names, of which equal ones are numbered; UsageError for none."""
    if not isinstance(jobs, Sequence) or isinstance(jobs, str) or not jobs:
        raise UsageError("jobs must be a list of jobs, or of paths of their files, at least one.")
    found: dict[str, Job] = {}
    for one in jobs:
        job = load_job(one) if isinstance(one, str | Path) else one
        if not isinstance(job, Job):
            raise UsageError(f"jobs must be jobs, or paths of their files; got {type(job).__name__}.")
        names = (job.name if not count else f"{job.name}-{count + 1}" for count in range(len(jobs)))
        found[next(name for name in names if name not in found)] = job
    return found


def _options(name: str, job: Job, terms: JobTerms, plans_of: Callable[[Job], Columns]) -> _Options:
    """The options of a job at its own size, or at those that its terms list."""
    if terms.deadline_days is not None and job.training.run_tokens is None:
        raise JobError(f"{name} has a deadline and no training.run_tokens; expected the tokens of its whole run.")
    sizes = sized_jobs(job_mapping(job), job.name, Path(), terms.gpus) if terms.gpus else [job]
    parts: list[tuple[Job, Columns]] = []
    for sized in sizes:
        try:
            parts.append((sized, plans_of(sized)))
        except InfeasibleError as error:
            if sized is sizes[-1] and not parts:
                raise InfeasibleError(f"{name}: {error}") from error
    idle = min((idle_power_kw(sized, plans) for sized, plans in parts), key=lambda pair: pair[1])
    names = ("tokens_per_s", "cluster_power_kw", "cluster_power_kw_high")
    rate, mean_kw, high_kw = (np.concatenate([np.asarray(plans[one]) for _, plans in parts]) for one in names)
    of = [(sized, plans, row) for sized, plans in parts for row in range(len(plans["pp"]))]
    rows = front_order(-rate, high_kw)[::-1]
    rows = rows[high_kw[rows] > idle[1]]
    needed = 0.0
    if terms.deadline_days is not None:
        needed = (job.training.run_tokens or 0.0) / (terms.deadline_days * 24.0 * HOUR_S)
    return _Options(
        terms, (None, *(of[row] for row in rows)), np.append(0.0, rate[rows]), np.append(idle[0], mean_kw[rows]),
        np.append(idle[1], high_kw[rows]), needed,
    )  # fmt: skip


def _budget(named: Mapping[str, Job], every: Sequence[_Options], limits: Sequence[PowerLimit]) -> PowerBudget:
    """The options of all jobs as one problem: of a job that lies partly in a limit, its power by its share of nodes."""
    weights = np.array([one.terms.priority for one in every])
    of = np.repeat(np.arange(len(every)), [len(one.plans) for one in every])
    gain = [weight / weights.sum() * one.relative for weight, one in zip(weights, every, strict=True)]
    met = [_MISSED * (one.tokens_per_s >= one.needed_per_s) * (one.needed_per_s > 0.0) for one in every]
    inside = [[limit.nodes.get(name, 0) / job.cluster.nodes for limit in limits] for name, job in named.items()]
    high_kw = np.concatenate([one.power_kw_high for one in every])
    value = np.concatenate(gain) + np.concatenate(met)
    return PowerBudget(of, value, high_kw[:, None] * np.array(inside)[of], np.array([limit.kw for limit in limits]))


def _shares(names: Sequence[str], every: Sequence[_Options], budget: PowerBudget, rows: Ints) -> Shares:
    """What each job gets by the options ``rows`` (J,)."""
    jobs = []
    for name, one, option in zip(names, every, (rows - budget.first).tolist(), strict=True):
        found = one.plans[option]
        plan, gpus = None, 0
        if found is not None:
            sized, plans, row = found
            plan, gpus = plan_records(plans, plans["stage_clock_mhz"], [row])[0], sized.cluster.num_gpus
        rate = float(one.tokens_per_s[option])
        jobs.append(
            JobShare(
                name=name, plan=plan, gpus=gpus, priority=one.terms.priority, tokens_per_s=rate,
                power_kw=float(one.power_kw[option]), power_kw_high=float(one.power_kw_high[option]),
                relative=float(one.relative[option]),
                deadline_met=None if one.needed_per_s == 0.0 else rate >= one.needed_per_s,
            )
        )  # fmt: skip
    return Shares(tuple(jobs))
