"""The constraints of a job on what is predicted of its plans."""

from __future__ import annotations

from collections.abc import Callable

from jointopt.core.schema import Columns, Floats
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job
from jointopt.physics import facility


def _as_it_is(_: Cluster, values: Floats) -> Floats:
    return values


# constraint: the results that its value is worked out from, and how
_VALUES: dict[str, tuple[tuple[str, ...], Callable[..., Floats]]] = {
    **{name: ((name,), _as_it_is) for name in ("iteration_time_s", "energy_j", "avg_power_w")},
    "facility_energy_j": (("iteration_time_s", "energy_j"), facility.facility_energy_j),
    "cluster_power_kw": (("avg_power_w",), facility.cluster_power_kw),
}
UNITS = {
    "iteration_time_s": "s",
    "energy_j": "J",
    "avg_power_w": "W",
    "facility_energy_j": "J",
    "cluster_power_kw": "kW",
}


def with_unit(name: str, figure: str) -> str:
    """A figure of the constraint of that name with its unit."""
    return f"{figure} {UNITS[name]}" if name in UNITS else figure


def memory_limit_gib(job: Job) -> float:
    """Memory in GiB that a run may use per GPU: the job's fraction, else the framework's."""
    fraction = job.constraints.memory_fraction or job.training.framework.memory_fraction
    return fraction * job.cluster.gpu.memory_gib


def stated(job: Job, out: Columns) -> dict[str, tuple[Floats, float]]:
    """Values of ``out`` (n,) and the bound of every constraint that the job states, by name; memory is not here.

    ``out`` has the results `judged_by`, in which each value grows.
    """
    found = {}
    for name, (columns, formula) in _VALUES.items():
        bound = getattr(job.constraints, name)
        if bound is not None:
            found[name] = formula(job.cluster, *(out[column] for column in columns)), bound
    return found


def judged_by(job: Job) -> tuple[str, ...]:
    """The results that the job's constraints, but for memory's, are worked out from."""
    named = (columns for name, (columns, _) in _VALUES.items() if getattr(job.constraints, name) is not None)
    return tuple(dict.fromkeys(column for columns in named for column in columns))


def bounded(job: Job, out: Columns, memory_reach: float = 1.0) -> dict[str, tuple[Floats, float]]:
    """Bounded predictions: values of ``out`` (n,) and the bound, by the constraint's name.

    Memory may exceed its limit by the factor ``memory_reach``.
    """
    return {"memory (GiB)": (out["peak_memory_gib"], memory_reach * memory_limit_gib(job)), **stated(job, out)}


def broken_bounds(job: Job, out: Columns) -> tuple[str, ...]:
    """One sentence for each constraint that the job states and the first plan of ``out`` breaks; memory is not here."""
    broken = ((name, values[0], bound) for name, (values, bound) in stated(job, out).items() if values[0] > bound)
    figures = ((name, *(with_unit(name, f"{figure:.4g}") for figure in both)) for name, *both in broken)
    return tuple(f"{name} is {value}, over the limit of {most}." for name, value, most in figures)
