"""Functions of the user's that evaluate plans, by name: called here, or by Dask's workers.

These are on this machine, at a scheduler's address, or in jobs of Slurm. Dask hands a plan to another worker when one
is lost, four times at most. It is this process that keeps the study.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from jointopt.core.errors import UsageError
from jointopt.core.schema import Columns
from jointopt.jobs.job import Job

Evaluator = Callable[[Job, Columns], Mapping[str, Any]]


def load_function(name: str) -> Evaluator:
    """The function that ``module:function`` names; UsageError for none.

    The working directory stays on the path: a simulator may import its neighbours when it is first called.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"--evaluate must be module:function; got {name!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise UsageError(f"--evaluate: the module {module!r} cannot be imported ({error}).") from error
    if not callable(found):
        raise UsageError(f"--evaluate: the module {module!r} has no function {attribute!r}.")
    return cast("Evaluator", found)


SLURM = "slurm"
_PATIENCE_S = 10.0  # for a scheduler to answer
_CHOSEN = ("qos", "constraint", "reservation")
_USUAL_MIN = 60  # of a job of Slurm


@contextmanager
def by_dask(evaluate: str, address: str | None, workers: int, job: Job) -> Iterator[tuple[Evaluator, int]]:
    """Have plans evaluated by the function of that name: who requests it, and for how many batches at a time.

    ``address``: of a scheduler, ``slurm``, or None for ``workers`` processes on this machine (0: with an address as
    many as the scheduler has). UsageError without Dask, without an answer from the address, or without a worker there.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise UsageError(
            "Workers need Dask, which is not installed; install it: pip install 'jointopt[dask]'."
        ) from error
    load_function(evaluate)  # a wrong name is an error at once
    with ExitStack() as stack:
        at: Any = address
        if address == SLURM:
            at = stack.enter_context(_slurm_workers(workers, job, stack))
        elif address is None:  # they end with this process
            cluster = LocalCluster(workers, threads_per_worker=1, dashboard_address=None, security=_security())
            at = stack.enter_context(cluster)
        try:
            client = stack.enter_context(Client(at, timeout=_PATIENCE_S, set_as_default=False))
        except (OSError, ValueError) as error:
            raise UsageError(f"--dask {address}: no scheduler answers; expected tcp://HOST:PORT of one.") from error
        known = sum(one["nthreads"] for one in client.scheduler_info(n_workers=-1)["workers"].values())
        if not (workers or known):
            raise UsageError(f"--dask {address}: that scheduler has no worker; start one: dask worker {address}")

        def answer(job: Job, plans: Columns) -> Mapping[str, Any]:
            found: Mapping[str, Any] = client.submit(_call_function, evaluate, job, plans, pure=False).result()
            return found

        yield answer, workers or known


def _call_function(evaluate: str, job: Job, plans: Columns) -> Mapping[str, Any]:
    """Run by a worker, which imports the function from its own folder or path."""
    return load_function(evaluate)(job, plans)


def _slurm_workers(workers: int, job: Job, stack: ExitStack) -> Any:
    """Workers of which each is a job of Slurm; they end with this process, or a minute after it was killed."""
    from dask_jobqueue import SLURMCluster

    if not workers:
        raise UsageError("--dask slurm: say how many jobs with --workers.")
    keys = stack.enter_context(tempfile.TemporaryDirectory(prefix=".jointopt-dask-", dir="."))  # seen by the nodes
    slurm, minutes = job.slurm, job.slurm.time_limit_min or _USUAL_MIN
    chosen = [f"--{name}={value}" for name in _CHOSEN if (value := getattr(slurm, name))]
    cluster = SLURMCluster(
        queue=slurm.partition, account=slurm.account, cores=1, processes=1, memory="4GB", python=slurm.python,
        walltime=f"{minutes // 60:02}:{minutes % 60:02}:00", job_script_prologue=list(slurm.setup),
        job_directives_skip=["--mem"], job_extra_directives=[*chosen, *slurm.sbatch], security=_security(),
        shared_temp_directory=os.path.abspath(keys), scheduler_options={"dashboard_address": None},
    )  # fmt: skip
    cluster.scale(jobs=workers)
    return cluster


def _security() -> Any:
    """Certificates of this search alone, which let no other client in: whoever speaks to a worker runs code there."""
    import dask
    from distributed import Security

    dask.config.set({"distributed.scheduler.allowed-failures": 3})
    return Security.temporary()
