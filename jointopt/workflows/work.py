"""Many workers on one search: each takes plans from a study that all of them share, and reports their results."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jointopt.core.errors import InfeasibleError, LauncherError, OutOfMemoryError, RunFailedError, UsageError
from jointopt.core.schema import STATUSES, Columns, Floats, Ints
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job
from jointopt.jobs.objectives import RATE_OF_OBJECTIVE
from jointopt.jobs.plans.text import plan_records
from jointopt.measure.base import Launcher, load_launcher, narrow_search, run_all
from jointopt.physics.cost_model import CostModel
from jointopt.physics.site import bill
from jointopt.physics.training_runs import TrainingRuns
from jointopt.report.results import WorkerSummary
from jointopt.runs.rows import is_blank
from jointopt.search.breeding import POPULATION
from jointopt.search.exact import exact_front_of_levels, exact_front_of_profiles
from jointopt.search.pareto import (
    OBJECTIVES,
    farthest_rows,
    first_impossible,
    front_of,
    merge,
    objectives,
    stacked,
    take,
)
from jointopt.search.problem import Problem
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import OOM_STATUS, certain_oom
from jointopt.workflows.by_dask import Evaluator, by_dask, load_function
from jointopt.workflows.campaign.campaign import OUT_ALREADY
from jointopt.workflows.feasible_layouts import problem_of_one_run
from jointopt.workflows.propose import CONSTRAINED
from jointopt.workflows.search_steps import Stopwatch

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

_log = logging.getLogger(__name__)
T = TypeVar("T")
PHYSICS, MEAN_POWER = "physics", "avg_power_w"


def work(
    job: Job | JobModel, storage: str, *, trials: int = 1000, batch: int = 8, seed: int = 0,
    evaluate: str | None = None, lease_s: float = 60.0, study: str | None = None, surrogate: str = "default",
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    launcher: Launcher | str | None = None, machine: Machine | None = None, dask: str | None = None, workers: int = 0,
    **options: Any,
) -> WorkerSummary:  # fmt: skip
    """Evaluate plans of ``job``, by all its objectives, together with all other workers until there are ``trials``.

    ``evaluate`` names a function, ``module:function``: called with the job and at most ``batch`` plans (columns), it
    returns their iteration_time_s, energy_j and further objectives of the job, of which mean power, carbon and costs
    follow from these where it does not return them. None is the job's model, options as in `JobModel.of`, or real runs
    by the ``launcher``, one or the name of one made with ``options``. ``dask``, ``workers``: as for `by_dask`, whose
    workers then call the function while this process keeps the study. A worker that is silent for ``lease_s`` seconds
    loses its plans to others. UsageError for a storage that cannot be shared, a function that is none, or both ways to
    evaluate; LauncherError for an objective that is not returned; InfeasibleError as `propose` does.
    """
    from jointopt.search.studies.workers import space_hash, work_on_study

    if launcher is None and options:
        raise UsageError(f"{', '.join(options)} belong to a launcher, and none is given; name one with --launcher.")
    runner = None if launcher is None else load_launcher(launcher, **options)
    if runner is not None:
        if evaluate is not None:
            raise UsageError(f"--launcher {runner.name} and --evaluate {evaluate} both evaluate plans; give one.")
        job, evaluate = narrow_search(runner, job.job if isinstance(job, JobModel) else job), f"launcher:{runner.name}"
        if runner.candidates(job) is not None:
            raise UsageError(f"The launcher {runner.name} runs listed plans alone; workers search all of the job's.")
    model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    job, (narrow, all_goals) = model.job, problem_of_one_run(model)
    start = exact_front_of_profiles(narrow).front  # plans to begin with, by all goals as far as these can be counted
    if all_goals.goals != OBJECTIVES:
        start = all_goals.evaluate_again(start)
        start = merge(exact_front_of_levels(all_goals)[0], start, all_goals.goals) if all_goals.has_levels else start
    if all_goals.goals != OBJECTIVES and len(start["slack"]):
        start = take(start, farthest_rows(stacked(start, all_goals.goals), POPULATION // 3))
    if evaluate is None and not len(start["slack"]):
        raise InfeasibleError(f"Job {job.name!r} cannot be done: every layout {CONSTRAINED}.")
    text = dump_job(job)
    version = hashlib.sha256((text + (evaluate or "") + model.fingerprint).encode()).hexdigest()[:8]
    name = study or f"{job.name}-{version}-shared"
    identity = {"job": text, "space": space_hash(narrow), "evaluate": evaluate or PHYSICS}
    identity |= {"evidence": model.fingerprint} if model.fingerprint else {}
    escaped = name.replace("{", "{{").replace("}", "}}")
    watch = Stopwatch(escaped + ": {:,} plans evaluated here, {:,} wanted by all workers ...")
    with _evaluator(job, runner, evaluate, dask, workers, storage, name) as (answer, at_once):
        # carbon and costs, which in the model rise with time and energy, may be a function's own; runs measure none
        paid = () if runner is not None else tuple(name for name in RATE_OF_OBJECTIVE if name in job.objectives)
        goals = (*job.goals, *paid)
        problem = all_goals if answer is None else function_problem(job, narrow, answer, goals, evaluate or "")
        worked = work_on_study(
            problem, storage, name=name, trials=trials, seed=seed, batch=batch, start=start, lease_s=lease_s,
            identity=identity, note=f"# {job.name}\n\n```yaml\n{text}```\n", progress=watch.tick, at_once=at_once,
            ahead=int(runner is not None),
            also_out_of_memory=lambda ran: np.flatnonzero(
                certain_oom(job, problem.layouts, [take(problem.layouts, ran)])
            ),
        )  # fmt: skip
    front, finished = front_of(worked.plans, problem.goals), len(worked.plans["slack"])
    return WorkerSummary(name, worked.evaluated, worked.failed, finished, front, problem.goals)


@contextmanager
def _evaluator(
    job: Job, runner: Launcher | None, evaluate: str | None, dask: str | None, workers: int, storage: str, study: str
) -> Iterator[tuple[Evaluator | None, int]]:  # fmt: skip
    """The function that answers for plans (None: the physics does), and for how many batches at a time."""
    if runner is not None and dask is None and not workers:
        from jointopt.runs.spill import Spill, waiting_spills

        # results of runs are in a file until the study has all of them; those that a killed worker left are known
        kind = f"work-{hashlib.sha256(study.encode()).hexdigest()[:8]}"
        with closing(Spill(storage, study, kind)) as kept:
            runs = _RunEvaluator(runner, job.goals, kept.keep)
            for _, rows in waiting_spills(storage, kind):
                for _, row in rows:
                    runs.add_result(str(row.pop("plan", "")), row)
            yield runs, 1
            kept.clear()
        return
    if dask is None and not workers:
        yield None if evaluate is None else load_function(evaluate), 1
        return
    if evaluate is None or runner is not None:
        raise UsageError("--dask and --workers share out what --evaluate MODULE:FUNCTION answers; name one.")
    with by_dask(evaluate, dask, workers, job) as answering:
        yield answering


class _RunEvaluator:
    """Evaluates plans by running them; each is run once, though a failed neighbour has it requested again.

    No layout is run at another clock once it has run out of memory. ``keep`` is called with each result first.
    """

    def __init__(self, launcher: Launcher, goals: tuple[str, ...], keep: Callable[[Mapping[str, Any]], object]) -> None:
        self._launcher, self._goals, self._keep = launcher, goals, keep
        self._rows: dict[str, Mapping[str, Any]] = {}
        self._out: list[Columns] = []  # layouts that ran out of memory

    def add_result(self, key: str, row: Mapping[str, Any]) -> None:
        """Take the result of a plan as known."""
        cells = {name: row[name] for name in ("status", "notes", *self._goals) if not is_blank(row.get(name))}
        plain = {name: value if isinstance(value, str) else float(value) for name, value in cells.items()}
        self._keep({"plan": key} | plain)
        self._rows[key] = {"status": "failed", "notes": ""} | plain

    def __call__(self, job: Job, plans: Columns) -> Mapping[str, Any]:
        """The goals of plans; RunFailedError for a run that failed, ValueError for one without a figure of a goal.

        Mean power may be missing, as it follows from time and energy.
        """
        records = plan_records(plans, plans["stage_clock_mhz"], range(len(plans["pp"])))
        keys = [json.dumps(record, sort_keys=True, default=str) for record in records]
        begun: list[int] = []

        def new() -> Iterator[Mapping[str, Any]]:
            for place, key in enumerate(keys):
                if key not in self._rows and not certain_oom(job, take(plans, np.array([place])), self._out)[0]:
                    begun.append(place)
                    yield records[place]

        for run in run_all(self._launcher, job, new(), lambda place, text: _log.info("%s", text)):
            self.add_result(keys[begun[run.place]], run.row)
            if run.row["status"] == OOM_STATUS:
                self._out.append(take(plans, np.array([begun[run.place]])))
        rows = [self._rows.get(key, {"status": OOM_STATUS, "notes": f"not run, since {OUT_ALREADY}"}) for key in keys]
        for row in rows:
            if row["status"] != STATUSES[0]:
                failure = OutOfMemoryError if row["status"] == OOM_STATUS else RunFailedError
                raise failure(f"{row['status']}: {row['notes']}")
        blank = {name for name in self._goals for row in rows if is_blank(row.get(name))}
        if lacking := sorted(blank - {MEAN_POWER}):
            raise ValueError(f"the run measured no {lacking[0]}, an objective of the job: leave it out, or measure it")
        return {name: [row[name] for row in rows] for name in self._goals if name not in blank}


def function_problem(job: Job, predicted: Problem, answer: Evaluator, goals: tuple[str, ...], called: str) -> Problem:
    """The same problem with its ``goals`` from ``answer``, which is ``called`` so, and the constraints judged by these.

    A figure that no plan can have is a ValueError.
    """
    from jointopt.search.studies.display import plan_text

    physics = CostModel(job, {name: values[:1] for name, values in predicted.layouts.items()})
    runs = TrainingRuns.of(job, predicted.layouts) if job.is_of_run else None
    lock = threading.Lock()  # answers may be waited for by several threads
    priced = _one_by_one(lock, predicted.evaluate)

    def evaluate(layout_index: Ints, stage_clock_mhz: Floats) -> Columns:
        layouts = {name: values[layout_index] for name, values in predicted.layouts.items()}
        queried = layouts | {"stage_clock_mhz": stage_clock_mhz}
        results = answer(job, queried)
        plans = priced(layout_index, stage_clock_mhz)
        known = (name for name in (*OBJECTIVES, *goals) if name in results)
        returned = {name: _column(results, name, len(layout_index)) for name in known}
        for name, values in returned.items():
            if (found := first_impossible(name, values)) is not None:
                row, expected = found
                text = plan_text(queried, row)
                raise ValueError(f"{called} returned {name} {values[row]:g} for {text}, not {expected}")
        # mean power, carbon, costs and figures of whole runs follow from time and energy where they are not returned
        count = len(layout_index)
        time_s, energy_j = objectives({name: _column(returned, name, count) for name in OBJECTIVES})
        follows = bill(job, time_s, energy_j) | {MEAN_POWER: energy_j / (time_s * job.cluster.num_gpus)}
        follows |= runs.evaluate(layout_index, time_s, energy_j, any_spares=True) if runs else {}
        plans |= {MEAN_POWER: follows[MEAN_POWER], **dict(zip(OBJECTIVES, (time_s, energy_j), strict=True))}
        plans |= {
            name: follows[name] if name in follows and name not in returned else _column(returned, name, count)
            for name in goals
        }
        return plans | {"violation": physics.violation(plans)}

    decode = None if predicted.stage_clocks is None else _one_by_one(lock, predicted.stage_clocks)
    return Problem(predicted.layouts, predicted.clocks_mhz, evaluate, stage_clocks=decode, goals=goals)


def _one_by_one(lock: threading.Lock, function: Callable[..., T]) -> Callable[..., T]:
    """The function, called by one thread at a time."""

    def locked(*given: Any) -> T:
        with lock:
            return function(*given)

    return locked


def _column(results: Mapping[str, Any], name: str, count: int) -> Floats:
    if name not in results:
        raise LauncherError(
            f"What evaluates the plans returns no {name}, an objective of the search; return a value for each plan"
            f"{', or leave it out of the job' if name not in OBJECTIVES else ''}."
        )
    values = np.asarray(results[name], dtype=np.float64)
    if values.shape != (count,):
        raise ValueError(f"what evaluates the plans returns {values.size} values of {name} for {count} plans")
    return values
