"""The constraints of a job on what is predicted of its plans."""

from __future__ import annotations

from jointopt.core.schema import Columns, Floats
from jointopt.physics import facility
from jointopt.spec.job import Job


def memory_limit_gib(job: Job) -> float:
    """Memory in GiB that a run may use per GPU: the job's fraction, else the framework's."""
    fraction = job.constraints.memory_fraction or job.training.framework.memory_fraction
    return fraction * job.cluster.gpu.memory_gib


def bounded(job: Job, out: Columns, memory_reach: float = 1.0) -> dict[str, tuple[Floats, float]]:
    """Bounded predictions: values of ``out`` (n,) and the bound, by the constraint's name.

    Memory may exceed its limit by the factor ``memory_reach``. Each value grows with what it is worked out from.
    """
    limits, cluster = job.constraints, job.cluster
    found = {"memory (GiB)": (out["peak_memory_gib"], memory_reach * memory_limit_gib(job))}
    for name in ("iteration_time_s", "energy_j", "avg_power_w"):
        bound = getattr(limits, name)
        if bound is not None:
            found[name] = (out[name], bound)
    if limits.facility_energy_j is not None:
        site = facility.facility_energy_j(cluster, out["iteration_time_s"], out["energy_j"])
        found["facility_energy_j"] = (site, limits.facility_energy_j)
    if limits.cluster_power_kw is not None:
        site = facility.cluster_power_kw(cluster, out["avg_power_w"])
        found["cluster_power_kw"] = (site, limits.cluster_power_kw)
    return found


def broken_bounds(job: Job, out: Columns, memory_reach: float = 1.0) -> tuple[str, ...]:
    """One sentence for each bound that the first plan of ``out`` exceeds; memory's limit is that of the GPU."""
    stated, sentences = bounded(job, out), []
    for name, (values, bound) in bounded(job, out, memory_reach).items():
        limit = min(bound, stated[name][1])
        surely = f" by more than predictions err (a factor of {bound / limit:.2f})" if bound > limit else ""
        if values[0] > bound:
            sentences.append(f"{name} is {values[0]:.4g}, over the limit of {limit:.4g}{surely}.")
    return tuple(sentences)
