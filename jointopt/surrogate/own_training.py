"""Training on the many runs of single sources, beside what sources share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.progress import steps
from jointopt.core.schema import Floats, Ints
from jointopt.jobs.job import Job
from jointopt.surrogate.clock_response import CLOCK, learn_response
from jointopt.surrogate.evidence import as_it_is
from jointopt.surrogate.measured_clocks import BELOW
from jointopt.surrogate.measured_limits import MeasuredPower
from jointopt.surrogate.model import Surrogate
from jointopt.surrogate.own_folds import LEAST_LEFT_OUT, count_distinct, folds_by_model
from jointopt.surrogate.own_runs import LEAST_RUNS, Measured, OwnRuns, judge_shared, learn_own, supporting
from jointopt.surrogate.posterior import LARGEST_RESIDUAL
from jointopt.surrogate.power_scale import scale_at_limit
from jointopt.surrogate.residual_gp import Kernel, Runs, together

if TYPE_CHECKING:
    from jointopt.surrogate.dataset import Priced
    from jointopt.surrogate.training import TrainingSet


@dataclass(frozen=True)
class LearnedOwn:
    """An `OwnRuns` of the runs ``rows`` of a training set, and its answers (n,) for each without that run's fold.

    ``runs``, ``residual`` (n,): as the physics prices them with the clock response that was learned; ``mean`` is of
    log(measured / physics) before it.
    """

    own: OwnRuns
    rows: Ints
    mean: Floats
    half_width: Floats
    runs: Runs
    residual: Floats


def learn_every_own(data: TrainingSet, shared: Kernel, seed: int = 0) -> list[LearnedOwn]:
    """An `OwnRuns` of each cluster and software stack with at least `LEAST_RUNS` runs that differ."""
    runs, many = data.known.runs, {}
    for key in np.unique(runs.source).tolist():
        rows = np.flatnonzero(runs.source == key).astype(np.int64)
        if count_distinct(runs.take(rows)) >= LEAST_RUNS:
            many[str(key)] = rows
    of_sources = steps(list(many.items()), "learning the own of sources")
    return [learn_source(key, data, rows, shared, seed) for key, rows in of_sources]


def learn_source(key: str, data: TrainingSet, rows: Ints, shared: Kernel, seed: int = 0) -> LearnedOwn:
    """All that the runs ``rows`` of a training set teach of their source, ``key``: its clock response first."""
    some, priced = measured(data, rows), data.known.take(rows)
    sweep = learn_response(priced, some.residual, shared, *folds_by_model(some.runs, seed), seed)
    kept = np.flatnonzero(some.runs.features[CLOCK] >= BELOW).astype(np.int64)
    if sweep.off_below and count_distinct(some.runs.take(kept)) >= LEAST_LEFT_OUT:
        rows, some, priced = rows[kept], some.take(kept), priced.take(kept)
    response, again, moved = sweep.response, priced, 0.0 * some.residual
    if response is not None:
        some, again, moved = _priced_again(some, priced, response.response.on)
    if (power := _power_at_limit(some, again)) is not None:
        some, again, by_limits = _priced_again(some, again, as_it_is, power)
        moved = moved + by_limits
    learned = learn_own if count_distinct(some.runs) >= LEAST_RUNS else judge_shared
    own, mean, half_width = learned(key, some, shared, seed)
    own = replace(own, response=response, off_below=sweep.off_below, clock_remark=sweep.remark)
    own = replace(own, power_limit_w=priced.limit_w)
    own = own if sweep.holds else replace(own, clocks=(1.0, 1.0))
    return LearnedOwn(own, rows, mean - moved, half_width, some.runs, some.residual)


def _priced_again(
    some: Measured, priced: Priced, change: Callable[[Job], Job], power: MeasuredPower | None = None
) -> tuple[Measured, Priced, Floats]:
    """Runs and their pricing on the jobs that ``change`` makes of theirs, and log(time before / time after) (n,).

    ``power``: by which limits hold.
    """
    again = priced.under(change, power)
    moved, of_power = (np.log(priced.physics[n] / again.physics[n]) for n in ("iteration_time_s", "avg_power_w"))
    found = replace(
        some, runs=again.runs, residual=some.residual + moved, log_power=some.log_power + of_power,
        static_share=some.static_share * np.exp(of_power),
        heat={
            name: (ratio + np.log(values / again.physics[name]), again.physics[name])
            for name, (ratio, values) in some.heat.items()
        },
    )  # fmt: skip
    return found, again, moved


def _power_at_limit(some: Measured, priced: Priced) -> MeasuredPower | None:
    """Power of runs under the source's highest limit, by which those under others are priced; None without such."""
    limits_w = priced.limits_w
    if (limits_w == priced.limit_w).all():
        return None
    scale = scale_at_limit(some.log_power, some.static_share, some.static_w, limits_w)
    return None if scale.log_sd is None else MeasuredPower(scale, priced.limit_w)


def measured(data: TrainingSet, rows: Ints) -> Measured:
    """The runs ``rows`` of a training set, all of one source."""
    known = data.known
    gpu = known.works[int(known.work[rows[0]])].job.cluster.gpu
    static_w = gpu.power.static_w if gpu.power else np.nan
    share = static_w / known.physics["avg_power_w"][rows]
    heat = {name: (ratio[rows], known.physics[name][rows]) for name, ratio in data.heat.items()}
    of_power = data.log_power[rows], share, static_w
    return Measured(known.runs.take(rows), data.known_residual[rows], *of_power, heat, known.limits_w[rows])


def with_own(surrogate: Surrogate, found: Sequence[LearnedOwn]) -> Surrogate:
    """The surrogate and all that was learned of single sources, of which more runs are remembered."""
    if not found:
        return surrogate
    of_own = np.isin(surrogate.support.source, [f.own.source for f in found])
    rest = np.flatnonzero(~of_own).astype(np.int64)
    kept = [supporting(np.arange(len(f.rows), dtype=np.int64)) for f in found]
    support = together([*(f.runs.take(at) for f, at in zip(found, kept, strict=True)), surrogate.support.take(rest)])
    residual = np.concatenate([
        *(np.clip(f.residual[at], -LARGEST_RESIDUAL, LARGEST_RESIDUAL) for f, at in zip(found, kept, strict=True)),
        surrogate.residual[rest],
    ])  # fmt: skip
    return replace(surrogate, own=tuple(f.own for f in found), support=support, residual=residual)
