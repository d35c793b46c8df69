"""The best stored plan under limits: which limit binds, and what relaxing it would buy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from jointopt.core.errors import InfeasibleError, JointOptError, UsageError
from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import SITE_ENERGY
from jointopt.jobs.plans.text import plan_records
from jointopt.jobs.reading import is_number, quoted_value
from jointopt.physics.cost_model import with_unit
from jointopt.physics.throughput import with_rates
from jointopt.report.plans import short_plan
from jointopt.report.results import AS_GIVEN, Limit, Relaxation, Selection
from jointopt.report.tables import figure
from jointopt.search.pareto import below_chord, take
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import FEASIBLE
from jointopt.workflows.answers import ReferencePlan, accepts_paths
from jointopt.workflows.stored_plans import StoredPlans, stored_plans, with_predictions_of

OBJECTIVES = ("time", "energy", "edp", "knee")
STEP = 0.05  # by how much a limit is relaxed to see what that buys
WORTH_HAVING = 1e-3  # relative gain below which a plan is no better in practice
_HIGHEST = 1e15  # as in a job file
_ROUNDING = 1e-9  # relative: a bound that was read off a printed plan is kept by that plan
_NAMES = {
    "iteration_time_s": "max_iteration_time_s",
    "energy_j": "max_energy_j",
    "avg_power_w": "max_power_w",
    "cluster_power_kw": "max_cluster_kw",
}


@accepts_paths
def select(
    source: str, *, max_iteration_time_s: float | None = None, max_energy_j: float | None = None,
    max_power_w: float | None = None, max_cluster_kw: float | None = None, objective: str | None = None,
    facility: bool = False, at_high_end: bool = False, storage: str | None = None, job: Job | str | Path | None = None,
    pue: float | None = None, surrogate: str | None = None, allow_tight: bool = False,
) -> Selection:  # fmt: skip
    """The best of the plans that `propose` stored under ``source``; limits are upper bounds.

    Plans that are likelier not to fit in memory are passed over unless ``allow_tight``.

    Parameters
    ----------
    source : str
        A file, a folder of ``propose --out``, or the name of a study.
    max_iteration_time_s : float, optional
        Iteration time, s.
    max_energy_j : float, optional
        Energy of one iteration, J.
    max_power_w : float, optional
        Mean power per GPU, W.
    max_cluster_kw : float, optional
        Mean power of the site, kW: GPUs and hosts, times PUE.
    objective : str, optional
        time, energy, edp (their product) or knee; by default energy where only the time is bounded or power besides,
        time under an energy or power limit, and the knee of the front without a limit.
    facility : bool, optional
        Count hosts and PUE as energy.
    at_high_end : bool, optional
        Hold the upper ends of the 90 % intervals to the limits.
    storage : str, optional
        URL of the Optuna storage that has the study.
    job : Job or path, optional
        In place of the one that was stored with the plans.
    pue : float, optional
        Power usage effectiveness of the site, energy at its meter over that of the nodes, in place of the job's.
    surrogate : str, optional
        Predicts the plans anew.
    allow_tight : bool, optional
        Choose also among plans that are likelier not to fit in memory than to fit.

    Returns
    -------
    Selection
        The plan chosen, which limits bind, and what relaxing each would buy.

    Raises
    ------
    InfeasibleError
        Where no plan keeps the limits; it names the closest one.
    UsageError
        For a source without plans, or limits that are no numbers above 0.
    """
    limits = _limits(max_iteration_time_s, max_energy_j, max_power_w, max_cluster_kw)
    _objective(objective, limits)  # before anything is read
    stored = stored_plans(source, storage, cast("Job | None", job), pue)
    stored = stored if surrogate is None else with_predictions_of(stored, surrogate)
    return _select(stored, limits, objective, facility=facility, at_high_end=at_high_end, allow_tight=allow_tight)


def select_from(
    plans: Columns, *, job: Job, source: str, surrogate: str, max_iteration_time_s: float | None = None,
    max_energy_j: float | None = None, max_power_w: float | None = None, max_cluster_kw: float | None = None,
    objective: str | None = None, facility: bool = False, at_high_end: bool = False, allow_tight: bool = False,
) -> Selection:  # fmt: skip
    """As `select`, of plans at hand: a front of ``job`` that ``surrogate`` predicted."""
    stored = StoredPlans(source, with_rates(job, plans), job.name, job, surrogate)
    limits = _limits(max_iteration_time_s, max_energy_j, max_power_w, max_cluster_kw)
    found = _select(stored, limits, objective, facility=facility, at_high_end=at_high_end, allow_tight=allow_tight)
    return replace(found, number=found.row + 1)


def _limits(*bounds: float | None) -> dict[str, float]:
    """The limits that are given, in the order of `_NAMES`; UsageError for one that is no bound."""
    given = dict(zip(_NAMES, bounds, strict=True))
    limits = {name: value for name, value in given.items() if value is not None}
    for name, value in limits.items():
        if not is_number(value) or not 0 < value <= _HIGHEST:
            got = f"{value:g}" if is_number(value) else quoted_value(value)
            raise UsageError(f"{_NAMES[name]} must be a number above 0, at most {_HIGHEST:g}; got {got}.")
    return {name: float(value) for name, value in limits.items()}


def _select(
    stored: StoredPlans, limits: Mapping[str, float], objective: str | None, *, facility: bool, at_high_end: bool,
    allow_tight: bool,
) -> Selection:  # fmt: skip
    objective, reason = _objective(objective, limits)
    if reason != AS_GIVEN and not stored.has_energy:
        objective = "time"
        reason = "no run measured energy" if stored.measured else "no plan's energy is known"
    found = choose(
        stored, limits, objective, reason, facility=facility, at_high_end=at_high_end, allow_tight=allow_tight
    )
    if stored.job is None or not stored.surrogate:
        return found
    try:
        model = JobModel.of(stored.job, stored.surrogate)
    except JointOptError:  # of a surrogate that is gone
        return found
    # differences of all plans from the one chosen, as what predicted them is at hand
    chosen = ReferencePlan(model, take(found.plans, slice(found.row, found.row + 1)))
    return replace(found, plans=found.plans | chosen.differences(found.plans)[0])


def choose(
    stored: StoredPlans, limits: Mapping[str, float], objective: str, reason: str = AS_GIVEN, *,
    facility: bool = False, at_high_end: bool = False, allow_tight: bool = False,
) -> Selection:  # fmt: skip
    """As `select`, of plans at hand; ``limits`` are upper bounds by the name of the job file's constraint."""
    energy = SITE_ENERGY if facility else "energy_j"
    if stored.measured and objective != "time":
        # the plans whose runs measured energy; where none did, all of them, and the objective is refused
        rows = np.flatnonzero(np.isfinite(stored.plans["energy_j"]))
        stored = replace(stored, plans=take(stored.plans, rows)) if len(rows) else stored
    bounds = {energy if name == "energy_j" else name: bound for name, bound in limits.items()}
    choice = _Choice.of(stored, bounds, objective, energy, "_high" if at_high_end else "")
    odds = stored.plans.get("fit_probability")
    if not (allow_tight or stored.measured or odds is None):
        choice = replace(choice, fits=~(odds < FEASIBLE))
        if not choice.fits.any():
            raise InfeasibleError(
                f"None of the {len(odds):,} plans of {stored.source} is expected to fit in memory (probability "
                f"{np.nanmax(odds):.2f} at most); take more or larger GPUs, or --allow-tight to choose all the same."
            )
    within = choice.within()
    row = choice.best(within)
    if row is None:
        raise InfeasibleError(_closest(stored, choice))
    limited = tuple(_limit(stored, choice, row, name) for name in choice.bounds)
    best_score = float(choice.score[choice.fits].min())
    rows = np.flatnonzero(within)
    axes = [stored.plans[name][rows] for name in ("iteration_time_s", energy)]
    fastest, least = (int(rows[np.lexsort(keys)[0]]) for keys in (axes[::-1], axes))  # by the last key first
    return Selection(
        source=stored.source, job_name=stored.job_name, job=stored.job, plans=stored.plans, row=row,
        objective=objective, energy=energy, reason=reason, satisfying=int(within.sum()), at_high_end=at_high_end,
        measured=stored.measured, surrogate=stored.surrogate, limits=limited, ends=(fastest, least),
        binds_together=best_score < choice.score[row] and not any(limit.binds for limit in limited),
        place=stored.place, number=_number(stored, row), storage=stored.storage,
    )  # fmt: skip


def _number(stored: StoredPlans, row: int) -> int:
    """The number of a plan in the front that ``--plan PLACE:2`` counts in, 0 where it is not of it."""
    (plan,) = plan_records(stored.plans, stored.plans["stage_clock_mhz"], [row])
    found = (n for n, entry in enumerate(stored.front, 1) if all(entry.get(name) == plan[name] for name in plan))
    return next(found, 0)


def _objective(given: str | None, limits: Mapping[str, float]) -> tuple[str, str]:
    """The objective, and why it is that one."""
    if given is not None:
        if given not in OBJECTIVES:
            raise UsageError(f"objective must be one of {', '.join(OBJECTIVES)}; got {given!r}.")
        if given == "knee" and limits:
            raise UsageError(
                "The knee is a point of the whole front and heeds no limit; with limits choose --objective time, "
                "energy or edp."
            )
        return given, AS_GIVEN
    if not limits:
        return "knee", "no limit is given"
    if "energy_j" in limits:
        return "time", "an energy budget is given"
    if "iteration_time_s" in limits:
        return "energy", "a deadline and no energy budget is given"
    return "time", "a power limit alone is given"


@dataclass(frozen=True)
class _Choice:
    """Plans in the order of preference, and which of them keep which limit."""

    bounds: Mapping[str, float]
    values: Mapping[str, Floats]  # what is bounded, (n,), by the name of the limit
    score: Floats  # (n,), less is better
    order: Ints  # rows from the best to the worst
    fits: Bools  # rows that may be chosen at all

    @classmethod
    def of(cls, stored: StoredPlans, bounds: Mapping[str, float], objective: str, energy: str, side: str) -> _Choice:
        """Plans scored by the objective; ``side``: the end of their intervals that limits are held against."""
        values = {name: _column(stored, f"{name}{side}") for name in bounds}
        time_s = _column(stored, "iteration_time_s")
        if objective == "time" and (stored.measured or not stored.has_energy):
            energy_j = stored.plans.get(energy, np.full(len(time_s), np.nan))
        else:
            energy_j = _column(stored, energy)
        scores = {"time": time_s, "energy": energy_j, "edp": time_s * energy_j}
        score = scores[objective] if objective in scores else -below_chord(time_s, energy_j)
        ties = (stored.plans["peak_memory_gib"], energy_j * time_s)
        return cls(bounds, values, score, np.lexsort((*ties, score)).astype(np.int64), np.ones(len(time_s), bool))

    def within(self, **other: float) -> Bools:
        """Rows that fit and keep every limit, with ``other`` bounds in place; inf is none, of the unknown too."""
        bounds = {name: bound for name, bound in {**self.bounds, **other}.items() if bound < np.inf}
        kept = [self.values[name] <= bound * (1.0 + _ROUNDING) for name, bound in bounds.items()]
        return np.asarray(np.all([self.fits, *kept], axis=0))

    def best(self, allowed: Bools) -> int | None:
        """The best of the rows allowed."""
        rows = self.order[allowed[self.order]]
        return int(rows[0]) if len(rows) else None

    def relaxed(self, row: int, name: str, bound: float) -> Relaxation:
        """What another bound of one limit gains over the row chosen; that row, without a gain, where none is better."""
        best = self.best(self.within(**{name: bound}))
        better = row if best is None or self.score[best] >= self.score[row] else best
        gain = float(self.score[row] - self.score[better])
        return Relaxation(better, bound, gain, 100.0 * gain / float(self.score[row]))


def _column(stored: StoredPlans, name: str) -> Floats:
    """A column, or UsageError that says why it is not there and what to do."""
    values = stored.plans.get(name)
    if values is not None and np.isfinite(values).any():
        return np.asarray(values)  # beyond its front, a study has no intervals: unknown keeps no limit
    source, bare = stored.source, name.removesuffix("_high")
    reasons = (
        (stored.measured and bare != name,
         f"The values of {source} are measured and have no 90 % interval; leave --at-high-end out."),
        (stored.measured and stored.has_energy,
         f"{source} does not say what {name} is, as it lacks the job; give the job that was run by --job."),
        (stored.measured,
         f"No run of {source} measured energy or power, which {name} needs; choose by time alone, or run where a meter "
         "is found (`jointopt doctor` says what is missing)."),
        (not stored.has_energy and name != "iteration_time_s_high",
         f"{source} holds plans of processors whose power is unknown, so that no plan says what {name} is; choose by "
         "time alone."),
        (bare != name and bare in stored.plans,
         f"{source} holds no 90 % interval of {bare}, which --at-high-end needs; choose from proposal.json of "
         "`jointopt propose --out` instead."),
        (True,
         f"{source} does not say what {name} is, as it lacks the job's nodes, host power and PUE; give the job that "
         "was proposed by --job."),
    )  # fmt: skip
    raise UsageError(next(sentence for holds, sentence in reasons if holds))


def _limit(stored: StoredPlans, choice: _Choice, row: int, name: str) -> Limit:
    """One limit: whether it binds the plan in ``row``, what a looser one buys, and the next that is worth having."""
    bound, values, high = choice.bounds[name], choice.values[name], stored.plans.get(f"{name}_high")
    free = choice.within(**{name: np.inf})
    unbound = choice.best(free)
    better = np.flatnonzero(free & (choice.score < (1.0 - WORTH_HAVING) * choice.score[row]))
    return Limit(
        name=name, bound=bound, value=float(stored.plans[name][row]), held=float(values[row]),
        high=None if high is None else float(high[row]),
        binds=unbound is not None and bool(choice.score[unbound] < choice.score[row]),
        relaxed=choice.relaxed(row, name, bound * (1.0 + STEP)),
        nearest=choice.relaxed(row, name, float(values[better].min())) if len(better) else None,
    )  # fmt: skip


def _closest(stored: StoredPlans, choice: _Choice) -> str:
    """One sentence: the plan whose worst excess is least, and every limit that it breaks by how much."""
    excess = np.array([choice.values[name] / bound - 1.0 for name, bound in choice.bounds.items()])
    excess[:, ~choice.fits] = np.nan
    row = int(np.nanargmin(excess.max(axis=0)))
    broken = [
        f"{name} by {figure(100.0 * over)} % ({with_unit(name, figure(choice.values[name][row]))} over a limit of "
        f"{with_unit(name, figure(bound))})"
        for (name, bound), over in zip(choice.bounds.items(), excess[:, row], strict=True)
        if over > _ROUNDING
    ]
    return (
        f"None of the {len(choice.score):,} plans of {stored.source} keeps every limit; the closest, "
        f"{short_plan(stored.plans, row)}, breaks {' and '.join(broken)}."
    )
