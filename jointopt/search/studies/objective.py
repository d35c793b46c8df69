"""The objective that Optuna's studies optimise: whatever a sampler suggests is decoded to a plan and evaluated."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial, TrialState

from jointopt.core.errors import EndedEarlyError, UsageError
from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats, Ints
from jointopt.core.short_repr import ShortRepr
from jointopt.jobs.objectives import objective_words
from jointopt.jobs.plans.text import TRIAL_LAYOUT, record_text, widened
from jointopt.search.parameters import Parameters
from jointopt.search.problem import Problem
from jointopt.search.studies.trials import CONSTRAINTS, PLAN, RESULTS, distributions_of_space, is_ours

_log = logging.getLogger(__name__)
Study = optuna.Study
CHECKED = 20  # trials of a study that are read back before its first plan is evaluated


@dataclass(frozen=True, repr=False)
class OptunaObjective(ShortRepr):
    """The values of a trial's plan by the job's objectives, time and energy first.

    ``distributions``: the parameters of `jointopt.search.parameters`, for `optuna.Study.ask`. A trial gets its plan,
    mean power and memory as attributes, and the excess over each limit as constraints where the job states any.
    """

    space: Parameters
    problem: Problem  # of the same layouts, whoever answers for plans
    job: str
    objectives: tuple[str, ...]
    with_objectives: Callable[[Columns], Columns]  # adds those that follow from time and energy
    excess: Callable[[Columns], Columns] | None = None  # over each limit; None: there is none
    before_run: Callable[[Columns], None] | None = None  # takes what the study's trials measured; None: nothing is run
    _known: set[tuple[str, int]] = field(default_factory=set)  # studies whose trials were checked

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of each parameter, over the whole space."""
        return distributions_of_space(self.space)

    def __call__(self, trial: optuna.Trial) -> float | tuple[float, ...]:
        """The values of the plan that the trial's sampler suggests, or of the one that `enqueue` gave it.

        One value where study and job have one objective. TrialPruned for a run that was ended early, since it was
        clearly behind; RunFailedError for one that failed.
        """
        goals = self._goals_of(trial.study)
        for name, kind in self.distributions.items():
            _suggest(trial, name, kind)
        layout, clock, slack, clocks = self._genes(trial)
        trial.set_user_attr(PLAN, record_text(self.plan(trial)))
        if self.before_run is not None:
            self.before_run(_finished_values(trial.study, goals))
        try:
            plans = self.with_objectives(self.problem.evaluate_clocks(layout, clock, slack, clocks))
        except EndedEarlyError as error:
            raise optuna.TrialPruned(str(error)) from error
        for name in RESULTS:
            if np.isfinite(plans[name][0]):
                trial.set_user_attr(name, float(plans[name][0]))
        if self.excess is not None:
            for name, excess in self.excess(plans).items():
                trial.set_constraint(name, float(excess[0]))
            # for optuna-dashboard, which reads no other
            trial.storage.set_trial_system_attr(trial._trial_id, CONSTRAINTS, [float(plans["violation"][0])])
        values = tuple(float(plans[name][0]) for name in goals)
        return values if len(values) > 1 else values[0]

    def plan(self, trial: BaseTrial | Mapping[str, Any]) -> dict[str, Any]:
        """The plan of a trial (as of `optuna.Study.ask` with ``distributions``) or of its parameters.

        It is as `explain` takes it. PlanError where they are of another space.
        """
        layout, _, _, clocks = self._genes(trial)
        return self.space.record(layout, clocks)

    def _genes(self, trial: BaseTrial | Mapping[str, Any]) -> tuple[Ints, Ints, Floats, Floats]:
        """Layout, clock index, slack and stage clocks, (1, ...) each, of a trial or its parameters."""
        params, attributes = (trial, {}) if isinstance(trial, Mapping) else (trial.params, trial.user_attrs)
        layout, clock, slack = self.space.decode(params)
        clocks = self.problem.decode_clocks(layout, clock, slack)
        if PLAN in attributes:  # the clock of each stage, as `enqueue` has it, which parameters may not say
            own = np.asarray(json.loads(attributes[PLAN])["stage_clock_mhz"], np.float64)
            clocks = widened(own[np.newaxis], clocks.shape[1])
        return layout, clock, slack, clocks

    def _goals_of(self, study: optuna.Study) -> tuple[str, ...]:
        """The columns of the study's values; UsageError where it is of other objectives or another space."""
        goals = self.problem.goals if len(study.directions) > 1 else self.objectives
        if [way.name for way in study.directions] != ["MINIMIZE"] * len(goals):
            raise UsageError(
                f"The study {study.study_name!r} has the directions {', '.join(way.name for way in study.directions)}, "
                f"and job {self.job!r} is to minimise {objective_words(goals)}; make it with "
                f"directions={['minimize'] * len(goals)}."
            )
        if (key := (study.study_name, study._study_id)) not in self._known:
            self._check_trials(study)
            beats = getattr(study._storage, "get_heartbeat_interval", lambda: 1)()
            if self.before_run is not None and beats is None:
                _log.warning(
                    "A process that is killed leaves its trial running for ever; open the study by "
                    "optuna.storages.RDBStorage(url, heartbeat_interval=60), so that others end it."
                )
            self._known.add(key)
        return goals

    def _check_trials(self, study: optuna.Study) -> None:
        """UsageError where trials of the study were chosen from other layouts, or number them in another way."""
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        for trial in [one for one in trials if is_ours(one) and TRIAL_LAYOUT in one.params][-CHECKED:]:
            plan = json.loads(trial.user_attrs[PLAN])
            same = trial.distributions[TRIAL_LAYOUT] == self.distributions[TRIAL_LAYOUT]
            found = self.plan(trial.params) if same else {}
            if not same or any(plan.get(name) != found[name] for name in LAYOUT_COLUMNS):
                raise UsageError(
                    f"The study {study.study_name!r} is of other layouts than job {self.job!r} has now (of another "
                    f"job, version of jointopt, or measured memory); begin a new study, and enqueue what is known by "
                    f"jointopt.enqueue(study, proposal)."
                )


def _suggest(trial: optuna.Trial, name: str, kind: BaseDistribution) -> None:
    """Have the trial's sampler choose a parameter."""
    if isinstance(kind, CategoricalDistribution):
        trial.suggest_categorical(name, kind.choices)
    elif isinstance(kind, IntDistribution):
        trial.suggest_int(name, kind.low, kind.high, log=kind.log)
    elif isinstance(kind, FloatDistribution):
        trial.suggest_float(name, kind.low, kind.high, step=kind.step)


def _finished_values(study: optuna.Study, goals: tuple[str, ...]) -> Columns:
    """The values (n,) of the study's complete trials by goal."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    values = np.array([trial.values for trial in trials], np.float64).reshape(-1, len(goals))
    return dict(zip(goals, values.T, strict=True))


def enqueue_plans(study: optuna.Study, plans: Iterable[Mapping[str, Any]], params: Iterable[dict[str, Any]]) -> int:
    """Enqueue the plans (records) by their parameters, those that the study has not; return their number."""
    known = {trial.user_attrs.get(PLAN) for trial in study.get_trials(deepcopy=False)}
    new = [(text, own) for plan, own in zip(plans, params, strict=True) if (text := record_text(plan)) not in known]
    for text, own in new:
        study.enqueue_trial(own, user_attrs={PLAN: text})
    return len(new)
