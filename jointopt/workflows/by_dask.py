"""Plans evaluated by Dask's workers: on this machine, at a scheduler's address, or in jobs of Slurm.

Dask hands a plan to another worker when one is lost, four times at most. It is this process that keeps the study.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from jointopt.core.errors import UsageError
from jointopt.core.schema import Columns
from jointopt.spec.job import Job
from jointopt.workflows.functions import Answer, load_function

SLURM = "slurm"
_PATIENCE_S = 10.0  # for a scheduler to answer
_LOST = "distributed.scheduler.allowed-failures"  # workers that may be lost with one plan


@contextmanager
def by_dask(evaluate: str, address: str | None, workers: int, job: Job) -> Iterator[tuple[Answer, int]]:
    """Have plans evaluated by the function of that name: who asks for it, and for how many batches at a time.

    ``address``: of a scheduler, ``slurm``, or None for ``workers`` processes on this machine (0: with an address as
    many as the scheduler has). UsageError without Dask, without an answer from the address, or without a worker there.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "Workers need Dask, which is not installed; install it: pip install 'jointopt[dask]'."
        ) from error
    load_function(evaluate)  # a wrong name is told at once
    with ExitStack() as stack:
        at = stack.enter_context(_cluster(address, workers, job)) if address in (None, SLURM) else address
        try:
            client = stack.enter_context(Client(at, timeout=_PATIENCE_S, set_as_default=False))
        except (OSError, ValueError) as error:
            raise UsageError(f"--dask {address}: no scheduler answers; expected tcp://HOST:PORT of one.") from error
        known = sum(one["nthreads"] for one in client.scheduler_info(n_workers=-1)["workers"].values())
        if not (workers or known):
            raise UsageError(f"--dask {address}: that scheduler has no worker; start one: dask worker {address}")

        def answer(job: Job, plans: Columns) -> Mapping[str, Any]:
            found: Mapping[str, Any] = client.submit(_answered, evaluate, job, plans, pure=False).result()
            return found

        yield answer, workers or known


def _answered(evaluate: str, job: Job, plans: Columns) -> Mapping[str, Any]:
    """Run by a worker, which imports the function from its own folder or path."""
    return load_function(evaluate)(job, plans)


def _cluster(address: str | None, workers: int, job: Job) -> Any:
    """Workers of our own, which end with this process: here, or one per job of Slurm."""
    import dask

    dask.config.set({_LOST: 3, "distributed.worker.daemon": True})
    if address is None:
        from distributed import LocalCluster

        return LocalCluster(workers, threads_per_worker=1, dashboard_address=None)
    from dask_jobqueue import SLURMCluster

    if not workers:
        raise UsageError("--dask slurm: say how many jobs with --workers.")
    slurm = job.slurm
    minutes = slurm.time_limit_min or 60
    cluster = SLURMCluster(
        queue=slurm.partition, account=slurm.account, cores=1, processes=1, memory="4GB", python=slurm.python or None,
        walltime=f"{minutes // 60:02}:{minutes % 60:02}:00", job_script_prologue=list(slurm.setup),
        job_directives_skip=["--mem"], job_extra_directives=list(slurm.sbatch),
        scheduler_options={"dashboard_address": None},
    )  # fmt: skip
    cluster.scale(jobs=workers)
    return cluster
