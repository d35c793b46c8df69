"""Plans as Optuna's trials: parameters, what is known of a plan, and its constraint."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from jointopt.core.codes import Names
from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, POWER_LIMIT, Columns, outside
from jointopt.jobs.plans.text import plan_records, record_text
from jointopt.search.pareto import OBJECTIVES

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

LARGE = 1e9  # stands for an infinite violation, which JSON does not know
# The attribute in which optuna-dashboard looks for constraints: a list, at most 0 where feasible. Optuna 5 reads it
# too, but optuna-dashboard 0.21 does not read what `create_trial(constraints=)` writes.
CONSTRAINTS = "constraints"
PLAN = "plan"  # attribute: the plan as JSON text, as `jointopt explain --plan` takes it
WORKER = "worker"  # attribute of a trial in a shared study: who evaluates it
GENES = "jointopt:genes"  # and, of the system's: layout index, clock index, share of slack
RESULTS = ("avg_power_w", "peak_memory_gib")  # attributes beside the objectives


# Columns whose values no list could hold: Optuna's parameters are of lists that never change. `PLAN` has them.
OPEN = tuple(c.name for c in COLUMNS.values() if c.codes is not None and not isinstance(c.codes, Names))


def is_ours(trial: FrozenTrial) -> bool:
    """True of a trial that jointopt made; anyone may add others to a study with Optuna, and these are left alone."""
    return PLAN in trial.user_attrs


def is_shared(trial: FrozenTrial) -> bool:
    """True of a trial that a worker made, which says what is evaluated and by whom."""
    return is_ours(trial) and WORKER in trial.user_attrs and GENES in trial.system_attrs


def is_evaluated(trial: FrozenTrial) -> bool:
    """True of a worker's trial with its goals and constraint; without the latter another program ended it."""
    return trial.state == TrialState.COMPLETE and is_shared(trial) and CONSTRAINTS in trial.system_attrs


def distributions_of(plans: Columns) -> dict[str, BaseDistribution]:
    """One parameter per plan column: degrees on a log scale, clock_mhz in MHz, and slack as a share if there is one."""
    named = [name for name in LAYOUT_COLUMNS if name in plans and name not in OPEN]
    made: dict[str, BaseDistribution] = {name: _distribution(name, plans[name]) for name in named}
    made["clock_mhz"] = FloatDistribution(float(plans["clock_mhz"].min()), float(plans["clock_mhz"].max()))
    if POWER_LIMIT in plans and np.isfinite(plans[POWER_LIMIT]).any():
        limits = plans[POWER_LIMIT][np.isfinite(plans[POWER_LIMIT])]
        made[POWER_LIMIT] = FloatDistribution(float(limits.min()), float(limits.max()))
    if "slack" in plans:
        made["slack"] = FloatDistribution(0.0, 1.0)
    return made


def searched(plans: Columns) -> dict[str, BaseDistribution]:
    """The distributions of those columns that have more than one value: every parameter costs when it is written."""
    known = distributions_of(plans)
    return {name: kind for name, kind in known.items() if np.ptp(np.nan_to_num(plans[name]).astype(float)) > 0.0}


def _distribution(name: str, values: Any) -> BaseDistribution:
    column = COLUMNS[name]
    if isinstance(column.codes, Names):
        return CategoricalDistribution(column.codes.names)
    if column.dtype == "bool":
        return CategoricalDistribution((False, True))
    low, high = outside(name, (values.min(), values.max()))
    return IntDistribution(low, high, log=column.log)


def trials_of(
    plans: Columns,
    distributions: Mapping[str, BaseDistribution],
    state: TrialState = TrialState.COMPLETE,
    goals: tuple[str, ...] = OBJECTIVES,
) -> list[FrozenTrial]:
    """A trial per described plan (`jointopt.search.problem.Problem.describe`); of finished ones also what came out."""
    count = len(plans["clock_mhz"])
    keys = [record_text(plan) for plan in plan_records(plans, plans["stage_clock_mhz"], range(count))]
    columns = {name: _external(name, plans[name]) for name in distributions}
    finished = state == TrialState.COMPLETE
    return [
        create_trial(
            state=state,
            params={name: values[row] for name, values in columns.items()},
            distributions=dict(distributions),
            values=objective_values(plans, row, goals) if finished else None,
            user_attrs={PLAN: keys[row]} | (results(plans, row) if finished else {}),
            system_attrs={CONSTRAINTS: constraint(plans, row)} if finished else {},
        )
        for row in range(count)
    ]


def _external(name: str, values: Any) -> list[Any]:
    if name in LAYOUT_COLUMNS:
        return outside(name, values)
    listed: list[Any] = (np.nan_to_num(values) if name == "slack" else values).tolist()
    return listed


def objective_values(plans: Columns, row: int, goals: tuple[str, ...] = OBJECTIVES) -> list[float]:
    """The goals of a plan."""
    return [float(plans[name][row]) for name in goals]


def results(plans: Columns, row: int) -> dict[str, float]:
    """The `RESULTS` that are known of a plan."""
    known = {name: float(plans[name][row]) for name in RESULTS if name in plans}
    return {name: value for name, value in known.items() if math.isfinite(value)}


def constraint(plans: Columns, row: int) -> list[float]:
    """The violation of a plan in the form of `CONSTRAINTS`."""
    return [float(np.clip(plans["violation"][row], -LARGE, LARGE))]


def spread_in_time(trials: list[FrozenTrial]) -> None:
    """Let the trials start a second after one another, up to now: the timeline shows nothing of shorter ones."""
    end, second = datetime.datetime.now().replace(microsecond=0), datetime.timedelta(seconds=1)
    for before, trial in enumerate(reversed(trials)):
        trial.datetime_complete = end - before * second
        trial.datetime_start = trial.datetime_complete - second
