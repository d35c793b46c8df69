"""The SM clocks and the power limits of GPUs that a job lets a search choose from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jointopt.core.errors import CatalogError, JobError
from jointopt.core.facts import Assumption
from jointopt.core.schema import POWER_LIMIT, Columns, Floats, Ints
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.cluster import CLOCK_RANGE, Cluster, Gpu
from jointopt.jobs.reading import Section, is_number, quoted_value


def _span(
    search: Section,
    key: str,
    most: float,
    usual: tuple[float | None, float | None, float | None],
    most_step: float = 1e15,
) -> tuple[float, float, float]:
    """(min, max, step) of the mapping under ``key``, each at most ``most``; ``usual`` are those that it leaves out."""
    section = search.section(key, ("min", "max", "step"))
    low, high = (section.number(end, most, default=given) for end, given in zip(("min", "max"), usual[:2], strict=True))
    step = section.number("step", most_step, default=usual[2])
    if low > high:
        raise JobError(f"{section.where}: min ({low:g}) must not be above max ({high:g}).")
    return low, high, step


# The SM clocks of a GPU, and which of them a job searches.


_TOLERANCE_MHZ = 1.0  # V100 clocks alternate between steps of 7 and 8 MHz, and tools round them differently
_ROUNDED_MHZ = 0.5  # of clocks in whole steps, which tools round alike
_MOST_CLOCKS = 10_000


def clock_grid_mhz(gpu: Gpu) -> tuple[float, ...]:
    """Every SM clock of the GPU, ascending, in MHz; empty where no source states its range or step."""
    low, high, step = gpu.clock_min_mhz, gpu.clock_max_mhz, gpu.clock_step_mhz
    return () if low is None or high is None or step is None else _range(low, high, step)


def _range(low: float, high: float, step: float) -> tuple[float, ...]:
    """``low``, ``low + step``, ... and ``high``; half steps are rounded down, as the driver lists them."""
    count = math.floor((high - low) / step + 1e-9) + 1
    clocks = {float(math.floor(low + i * step + 1e-9)) for i in range(count)}
    return tuple(sorted(clocks | {float(high)}))


def read_clocks(search: Section, gpu: Gpu) -> tuple[tuple[float, ...], tuple[Assumption, ...]]:
    """The clocks that the job searches, ascending, in MHz, and what was assumed.

    ``clock_mhz`` is a number, a list, or ``{min, max, step}``; what is omitted is the GPU's own. Raises JobError for a
    clock that the GPU does not have, CatalogError where its clocks are unknown and the job gives none.
    """
    grid, given = clock_grid_mhz(gpu), search.values.get("clock_mhz")
    if given is None:
        return (grid, ()) if grid else _assumed_range(gpu)
    if isinstance(given, Mapping):
        usual = (gpu.clock_min_mhz, gpu.clock_max_mhz, gpu.clock_step_mhz)
        low, high, step = _span(search, "clock_mhz", 1e5, usual, 1e5)
        if (high - low) / step > _MOST_CLOCKS:
            raise search.section("clock_mhz").refuse("step", f"large enough for at most {_MOST_CLOCKS:,} clocks")
        clocks = _range(low, high, step)
    else:
        values: Sequence[Any] = given if isinstance(given, list) else [given]
        if not 0 < len(values) <= _MOST_CLOCKS or not all(is_number(v) and 0 < v < 1e5 for v in values):
            raise search.refuse("clock_mhz", "a clock in MHz, a list of them, or {min, max, step}")
        clocks = tuple(sorted({float(value) for value in values}))
    for clock in clocks:
        _check_clock(search.at("clock_mhz"), clock, gpu, grid)
    reason = f"clock_mhz: no source states the clock steps of {gpu.id}; the job's own clocks are taken as they are"
    return clocks, () if grid else (Assumption("clock_mhz", clocks, reason),)


def _assumed_range(gpu: Gpu) -> tuple[tuple[float, ...], tuple[Assumption, ...]]:
    """The clocks in MHz, ascending, of a GPU whose range no source states whole, and the assumption.

    They begin at the share of its highest clock at which a relative's begin; without known power, by which a lower one
    would be chosen, they are the highest alone.
    """
    if gpu.clock_max_mhz is None:
        raise CatalogError(
            f"No source states the clocks of GPU {gpu.id!r}, so there is nothing to search; "
            f"give search.clock_mhz as a list of its clocks in MHz."
        )
    high, unstated = float(gpu.clock_max_mhz), f"no source states the lower clocks of {gpu.id}"
    if gpu.power is None:
        reason = f"clock range: {unstated}, nor its power; only its maximum of {high:g} MHz is searched"
        return (high,), (Assumption(CLOCK_RANGE, (high,), reason),)
    like = read_yaml("gpus.yaml")["clock_range_like"]
    relative = load_gpu(str(like.get(gpu.architecture, like["other"])))
    step = gpu.clock_step_mhz or relative.need("clock_step_mhz", "assume those of others")
    lowest, highest = (relative.need(f"clock_{end}_mhz", "assume those of others") for end in ("min", "max"))
    low = gpu.clock_min_mhz or high * lowest / highest
    clocks = _range(high - math.floor((high - low) / step) * step, high, step)
    text = f"{clocks[0]:g} to {high:g} MHz in steps of {step:g} are assumed, as the {relative.id} has them"
    reason = f"clock range: {unstated}; {text} (search.clock_mhz or cluster.gpu states them)"
    return clocks, (Assumption(CLOCK_RANGE, clocks, reason),)


def _check_clock(where: str, clock: float, gpu: Gpu, grid: tuple[float, ...]) -> None:
    """JobError for a clock in MHz that is not in the GPU's grid, or without a grid beyond its lowest or highest."""
    if not grid:
        low, high = gpu.clock_span_mhz
        if low - _TOLERANCE_MHZ <= clock <= high + _TOLERANCE_MHZ:
            return
        raise JobError(f"{where}: GPU {gpu.id!r} has clocks of {low:g} to {high:g} MHz; got {clock:g}.")
    by_distance = sorted(grid, key=lambda known: abs(known - clock))
    whole = float(gpu.clock_step_mhz or 0.0).is_integer()
    if abs(by_distance[0] - clock) > (_ROUNDED_MHZ if whole else _TOLERANCE_MHZ):
        between = grid[0] < clock < grid[-1]
        nearest = (
            f"are {' and '.join(f'{c:g}' for c in sorted(by_distance[:2]))}" if between else f"is {by_distance[0]:g}"
        )
        raise JobError(
            f"{where}: {quoted_value(round(clock, 3))} MHz is not a clock of GPU {gpu.id!r}, which has {grid[0]:g} to "
            f"{grid[-1]:g} MHz in steps of {gpu.clock_step_mhz:g}; the nearest {nearest}."
        )


# Power limits of GPUs that a job lets a search choose from.


_MOST_LIMITS = 100  # each is priced with every layout
_STEP_W = 25.0


def read_power_limits(search: Section, cluster: Cluster) -> tuple[float, ...] | None:
    """The limits in W that the job searches, descending; None where it lists none, and the cluster's alone holds.

    ``power_limit_w`` is a number, a list, or ``{min, max, step}``, up to the cluster's own limit. JobError for others.
    """
    if not search.has(POWER_LIMIT):
        return None
    given: Any = search.values[POWER_LIMIT]
    limits = given if isinstance(given, list) else [given]
    if isinstance(given, Mapping):
        low, high, step = _span(search, POWER_LIMIT, cluster.power_limit_w, (None, cluster.power_limit_w, _STEP_W))
        if (high - low) / step >= _MOST_LIMITS:
            raise search.section(POWER_LIMIT).refuse("step", f"large enough for at most {_MOST_LIMITS} limits")
        limits = np.arange(high, low - 1e-9 * high, -step).tolist()  # from the highest, so that it is among them
    if not 0 < len(limits) <= _MOST_LIMITS or not all(is_number(watts) for watts in limits):
        raise search.refuse(POWER_LIMIT, f"a limit in W, up to {_MOST_LIMITS} of them, or {{min, max, step}}")
    if refused := refused_limits(cluster, limits):
        raise JobError(f"{search.at(POWER_LIMIT)} lists {refused}; leave it out.")
    return tuple(sorted({float(watts) for watts in limits}, reverse=True))


def refused_limits(cluster: Cluster, limits_w: Iterable[float]) -> str:
    """Words on the limits in W that GPUs of the cluster do not take, and on those they take; blank if all are taken."""
    gpu, most = cluster.gpu, cluster.power_limit_w
    if gpu.power is None:
        return f"a limit, and nothing is known of the power of GPU {gpu.id!r}, so that what it does cannot be predicted"
    least = gpu.power_limit_span_w[0]
    refused = [f"{watts:g}" for watts in limits_w if watts <= 0 or not least <= watts <= most]
    within = f"at least {least:g}" if least else "more than 0"
    return f"{', '.join(refused)} W, and a GPU of the cluster takes {within} and at most {most:g} W" if refused else ""


def under_limits(layouts: Columns, limits_w: tuple[float, ...] | None) -> Columns:
    """The n layouts once per limit in W: all under the first limit, then all under the second; as they are for none."""
    if not limits_w:
        return layouts
    count, each = len(layouts["pp"]), len(limits_w)
    repeated = {name: np.tile(values, (each, *[1] * (values.ndim - 1))) for name, values in layouts.items()}
    return repeated | {POWER_LIMIT: np.repeat(np.asarray(limits_w, np.float64), count)}


def without_limits(layouts: Columns) -> tuple[Columns, Ints]:
    """(layouts without their limits, each once; per row of the argument its position among them, (n,)).

    Layouts that are not as `under_limits` repeats them come back as they are, without limits.
    """
    count = each = len(layouts["pp"])
    bare = {name: values for name, values in layouts.items() if name != POWER_LIMIT}
    if POWER_LIMIT in layouts and count:
        each = int((layouts[POWER_LIMIT] == layouts[POWER_LIMIT][0]).sum())
    of = np.arange(count) % max(each, 1)
    if not all(np.array_equal(values, values[of]) for values in bare.values()):
        return bare, np.arange(count)
    return {name: values[:each] for name, values in bare.items()}, of


def repeat_per_limit(values: Floats, count: int) -> Floats:
    """``values`` (n,) of n layouts for the ``count`` rows that `under_limits` makes of them, (count,)."""
    return np.tile(values, count // len(values))
