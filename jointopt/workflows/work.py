"""Many workers on one search: each takes plans from a study that all of them share, and reports their results."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jointopt.core.errors import InfeasibleError, RunFailedError, UsageError
from jointopt.core.schema import STATUSES, Columns, Floats, Ints
from jointopt.measure.launchers.base import Launcher, load_launcher, narrowed, run_all
from jointopt.physics.cost_model import CostModel
from jointopt.report.results import Shared
from jointopt.search.exact_stages import exact_front_of_profiles
from jointopt.search.pareto import OBJECTIVES, front_of
from jointopt.search.problem import Problem
from jointopt.spec.calibration import Calibration
from jointopt.spec.job import Job
from jointopt.spec.jobfile import dump_job
from jointopt.spec.machine import Machine
from jointopt.spec.plans.parse import plan_records
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.functions import Answer, load_function
from jointopt.workflows.problem import priced_problem
from jointopt.workflows.propose import CONSTRAINED
from jointopt.workflows.search_steps import Stopwatch

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

_log = logging.getLogger(__name__)
T = TypeVar("T")
PHYSICS = "physics"


def work(
    job: Job | JobModel, storage: str, *, trials: int = 1000, batch: int = 8, seed: int = 0,
    evaluate: str | None = None, lease_s: float = 60.0, study: str | None = None, surrogate: str = "default",
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    launcher: Launcher | str | None = None, machine: Machine | None = None, dask: str | None = None, workers: int = 0,
    **options: Any,
) -> Shared:  # fmt: skip
    """Evaluate plans of ``job`` together with all other workers of the same job until there are ``trials`` of them.

    ``evaluate`` names a function, ``module:function``: called with the job and at most ``batch`` plans (columns), it
    returns their iteration_time_s and energy_j; None is the job's model, options as in `JobModel.of`, or real runs by
    the ``launcher``, one or the name of one made with ``options``. ``dask``, ``workers``: as for `by_dask`, whose
    workers then call the function while this process keeps the study. A worker that is silent for ``lease_s`` seconds
    loses its plans to others. UsageError for a storage that cannot be shared, a function that is none, or both ways to
    evaluate; InfeasibleError as `propose` does.
    """
    from jointopt.search.studies.sharing import share, space_hash

    if launcher is None and options:
        raise UsageError(f"{', '.join(options)} belong to a launcher, and none is given; name one with --launcher.")
    runner = None if launcher is None else load_launcher(launcher, **options)
    if runner is not None:
        job, evaluate = _to_run(job, runner, evaluate), f"launcher:{runner.name}"
    model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    job, predicted = model.job, priced_problem(model, once=True)
    if job.goals != OBJECTIVES:
        _log.warning("Workers search only by time and energy; `propose` searches by %s too.", ", ".join(job.goals[2:]))
    start = exact_front_of_profiles(predicted).front
    if evaluate is None and not len(start["slack"]):
        raise InfeasibleError(f"Job {job.name!r} cannot be done: every layout {CONSTRAINED}.")
    text = dump_job(job)
    version = hashlib.sha256((text + (evaluate or "") + model.fingerprint).encode()).hexdigest()[:8]
    name = study or f"{job.name}-{version}-shared"
    evidence = {"evidence": model.fingerprint} if model.fingerprint else {}
    escaped = name.replace("{", "{{").replace("}", "}}")
    watch = Stopwatch(escaped + ": {:,} plans evaluated here, {:,} wanted by all workers ...")
    with _answering(job, runner, evaluate, dask, workers) as (answer, at_once):
        problem = predicted if answer is None else _answered(job, predicted, answer)
        worked = share(
            problem, storage, name=name, trials=trials, seed=seed, batch=batch, start=start, lease_s=lease_s,
            identity={"job": text, "space": space_hash(predicted), "evaluate": evaluate or PHYSICS} | evidence,
            note=f"# {job.name}\n\n```yaml\n{text}```\n", progress=watch.tick, at_once=at_once,
        )  # fmt: skip
    finished = len(worked.plans["slack"])
    return Shared(name, worked.evaluated, worked.failed, finished, front_of(worked.plans))


@contextmanager
def _answering(
    job: Job, runner: Launcher | None, evaluate: str | None, dask: str | None, workers: int
) -> Iterator[tuple[Answer | None, int]]:
    """The function that answers for plans (None: the physics does), and for how many batches at a time."""
    if dask is None and not workers:
        yield None if evaluate is None else _Runs(runner) if runner else load_function(evaluate), 1
        return
    if evaluate is None or runner is not None:
        raise UsageError("--dask and --workers share out what --evaluate MODULE:FUNCTION answers; name one.")
    from jointopt.workflows.by_dask import by_dask

    with by_dask(evaluate, dask, workers, job) as answering:
        yield answering


def _to_run(job: Job | JobModel, launcher: Launcher, evaluate: str | None) -> Job:
    """The part of the job that a launcher runs; UsageError where it lists its plans, or a function evaluates them."""
    if evaluate is not None:
        raise UsageError(f"--launcher {launcher.name} and --evaluate {evaluate} both evaluate plans; give one.")
    wanted = narrowed(launcher, job.job if isinstance(job, JobModel) else job)
    if launcher.candidates(wanted) is not None:
        raise UsageError(f"The launcher {launcher.name} runs listed plans alone; workers search all of the job's.")
    return wanted


class _Runs:
    """Evaluates plans by running them; each is run once, though a failed neighbour has it requested again."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._rows: dict[str, Mapping[str, Any]] = {}

    def __call__(self, job: Job, plans: Columns) -> Mapping[str, Any]:
        """Times and energies of plans; RunFailedError for one that has none."""
        records = plan_records(plans, plans["stage_clock_mhz"], range(len(plans["pp"])))
        keys = [json.dumps(record, sort_keys=True, default=str) for record in records]
        new = [place for place, key in enumerate(keys) if key not in self._rows]
        runs = run_all(
            self._launcher, job, [records[place] for place in new], lambda place, text: _log.info("%s", text)
        )
        for run in runs:
            self._rows[keys[new[run.place]]] = run.row
        rows = [self._rows[key] for key in keys]
        for row in rows:
            if row["status"] != STATUSES[0]:
                raise RunFailedError(f"{row['status']}: {row['notes']}")
        return {name: [row[name] for row in rows] for name in OBJECTIVES}


def _answered(job: Job, predicted: Problem, answer: Answer) -> Problem:
    """The same problem with time and energy from ``answer``, and the constraints judged by these."""
    physics = CostModel(job, {name: values[:1] for name, values in predicted.layouts.items()})
    lock = threading.Lock()  # answers may be waited for by several threads
    priced = _one_by_one(lock, predicted.evaluate)

    def evaluate(layout_index: Ints, stage_clock_mhz: Floats) -> Columns:
        layouts = {name: values[layout_index] for name, values in predicted.layouts.items()}
        results = answer(job, layouts | {"stage_clock_mhz": stage_clock_mhz})
        plans = priced(layout_index, stage_clock_mhz)
        plans |= {name: _column(results, name, len(layout_index)) for name in OBJECTIVES}
        gpu_s = plans["iteration_time_s"] * job.cluster.num_gpus
        plans["avg_power_w"] = plans["energy_j"] / gpu_s
        excess = [values / bound - 1.0 for values, bound in physics.limits(plans).values()]
        return plans | {"violation": np.maximum.reduce(excess)}

    decode = None if predicted.stage_clocks is None else _one_by_one(lock, predicted.stage_clocks)
    return Problem(predicted.layouts, predicted.clocks_mhz, evaluate, stage_clocks=decode)


def _one_by_one(lock: threading.Lock, function: Callable[..., T]) -> Callable[..., T]:
    """The function, called by one thread at a time."""

    def locked(*given: Any) -> T:
        with lock:
            return function(*given)

    return locked


def _column(results: Mapping[str, Any], name: str, count: int) -> Floats:
    if name not in results:
        raise ValueError(f"what evaluates the plans returns no {name}")
    values = np.asarray(results[name], dtype=np.float64)
    if values.shape != (count,):
        raise ValueError(f"what evaluates the plans returns {values.size} values of {name} for {count} plans")
    return values
