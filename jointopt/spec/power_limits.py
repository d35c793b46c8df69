"""Power limits of GPUs that a job lets a search choose from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jointopt.core.errors import JobError
from jointopt.core.schema import POWER_LIMIT, Columns, Floats, Ints
from jointopt.spec.check import Section, is_number
from jointopt.spec.cluster import Cluster

_MOST = 100  # limits: each is priced with every layout
_STEP_W = 25.0


def read_power_limits(search: Section, cluster: Cluster) -> tuple[float, ...] | None:
    """The limits in W that the job searches, descending; None where it lists none, and the cluster's alone holds.

    ``power_limit_w`` is a number, a list, or ``{min, max, step}``, up to the cluster's own limit. JobError for others.
    """
    if not search.has(POWER_LIMIT):
        return None
    given: Any = search.values[POWER_LIMIT]
    listed = given if isinstance(given, list) else [given]
    limits = _from_range(search, cluster.power_limit_w) if isinstance(given, Mapping) else listed
    if not 0 < len(limits) <= _MOST or not all(is_number(watts) for watts in limits):
        raise search.refuse(POWER_LIMIT, f"a limit in W, up to {_MOST} of them, or {{min, max, step}}")
    if refused := refused_limits(cluster, limits):
        raise JobError(f"{search.at(POWER_LIMIT)} lists {refused}; leave it out.")
    return tuple(sorted({float(watts) for watts in limits}, reverse=True))


def refused_limits(cluster: Cluster, limits_w: Iterable[float]) -> str:
    """The limits that no GPU of the cluster takes, and which ones it does; blank where it takes them all."""
    gpu, most = cluster.gpu, cluster.power_limit_w
    if gpu.power is None:
        return f"a limit, and nothing is known of the power of GPU {gpu.id!r}, so that what it does cannot be predicted"
    least = gpu.power_limit_span_w[0]
    refused = [f"{watts:g}" for watts in limits_w if watts <= 0 or not least <= watts <= most]
    within = f"at least {least:g}" if least else "more than 0"
    return f"{', '.join(refused)} W, and a GPU of the cluster takes {within} and at most {most:g} W" if refused else ""


def _from_range(search: Section, highest: float) -> list[float]:
    """From max downwards, so that the highest limit is among them."""
    section = search.section(POWER_LIMIT, ("min", "max", "step"))
    low, high = section.number("min", highest), section.number("max", highest, default=highest)
    step = section.number("step", default=_STEP_W)
    if low > high:
        raise JobError(f"{section.where}: min ({low:g}) must not be above max ({high:g}).")
    if (high - low) / step >= _MOST:
        raise section.refuse("step", f"large enough for at most {_MOST} limits")
    return np.arange(high, low - 1e-9 * high, -step).tolist()


def under_limits(layouts: Columns, limits_w: tuple[float, ...] | None) -> Columns:
    """Every layout under every limit, all under the first of them first; the layouts where there are none."""
    if not limits_w:
        return layouts
    count, each = len(layouts["pp"]), len(limits_w)
    repeated = {name: np.tile(values, (each, *[1] * (values.ndim - 1))) for name, values in layouts.items()}
    return repeated | {POWER_LIMIT: np.repeat(np.asarray(limits_w, np.float64), count)}


def without_limits(layouts: Columns) -> tuple[Columns, Ints]:
    """(the layouts that `under_limits` repeats, each once; which of them each one is, (n,)), or all as they are."""
    count = each = len(layouts["pp"])
    bare = {name: values for name, values in layouts.items() if name != POWER_LIMIT}
    if POWER_LIMIT in layouts and count:
        each = int((layouts[POWER_LIMIT] == layouts[POWER_LIMIT][0]).sum())
    of = np.arange(count) % max(each, 1)
    if not all(np.array_equal(values, values[of]) for values in bare.values()):
        return bare, np.arange(count)
    return {name: values[:each] for name, values in bare.items()}, of


def repeated(values: Floats, count: int) -> Floats:
    """``values`` (n,) of layouts for ``count`` rows of `under_limits`."""
    return np.tile(values, count // len(values))
