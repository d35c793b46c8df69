"""``optuna_objective`` and ``enqueue``: plans of a job as trials that any sampler of Optuna chooses."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from jointopt.core.errors import RunFailedError, UsageError
from jointopt.core.schema import LAYOUT_COLUMNS, STATUSES, Columns, Floats, Ints
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import objective_words
from jointopt.jobs.plans.text import TRIAL_LAYOUT, plan_records, record_text, widened
from jointopt.measure.base import EndsEarly, Launcher, load_launcher, narrow_search, run_all
from jointopt.physics.site import with_site
from jointopt.report.proposal import Proposal
from jointopt.runs.rows import is_blank
from jointopt.search.parameters import Parameters
from jointopt.search.studies.trials import CONSTRAINTS, PLAN, RESULTS, distributions_of_space, is_ours
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import accepts_paths
from jointopt.workflows.by_dask import Evaluator
from jointopt.workflows.campaign.stopping import set_bounds
from jointopt.workflows.feasible_layouts import PreparedSearch, need_power, prepare_search
from jointopt.workflows.search_steps import Stopwatch
from jointopt.workflows.work import MEAN_POWER, function_problem

if TYPE_CHECKING:
    import pandas as pd
    from optuna.trial import BaseTrial

    from jointopt.surrogate.measurements import Measurements

_log = logging.getLogger(__name__)
PHYSICS = "physics"
CHECKED = 20  # trials of a study that are read back before its first plan is evaluated


@accepts_paths
def optuna_objective(
    job: Job | JobModel, evaluator: str | Evaluator = "default", *, launcher: Launcher | str | None = None,
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    storage: str | None = None, machine: Machine | None = None, **options: Any,
) -> OptunaObjective:  # fmt: skip
    """The objective of ``job`` for `optuna.Study.optimize`: whatever a sampler suggests is a plan that keeps the rules.

    ``evaluator`` answers for plans: "physics", a surrogate's name or folder (by default that of `propose`), or a
    function as `jointopt work --evaluate` calls it: the job and columns of one plan in, columns of results out.
    ``launcher`` (or its name, made with ``options``) runs them instead. Others as in `JobModel.of`. InfeasibleError
    where nothing fits in memory, UsageError for a launcher that runs listed plans alone.
    """
    runner = None if launcher is None else load_launcher(launcher, **options)
    if runner is not None:
        job = narrow_search(runner, job.job if isinstance(job, JobModel) else job)
        if runner.candidates(job) is not None:
            raise UsageError(f"The launcher {runner.name} runs listed plans alone; a sampler chooses among all.")
    surrogate = ("none" if evaluator == PHYSICS else evaluator) if isinstance(evaluator, str) else "default"
    model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    need_power(model.job)
    objective = OptunaObjective(model, prepare_search(model, Stopwatch(quiet=True)))
    if runner is not None:
        objective.run_by(runner)
    elif not isinstance(evaluator, str):
        objective.evaluate_by(evaluator, getattr(evaluator, "__name__", type(evaluator).__name__))
    return objective


class OptunaObjective:
    """The values of a trial's plan by the job's objectives, time and energy first.

    ``distributions``: the parameters of `jointopt.search.parameters`, for `optuna.Study.ask`. A trial gets its plan,
    mean power and memory as attributes, and the excess over each limit as constraints where the job states any.
    """

    def __init__(self, model: JobModel, found: PreparedSearch) -> None:
        self.job, self._found, self._problem = model.job, found, found.all_goals
        self.space = Parameters(found.all_goals)
        self.distributions: dict[str, BaseDistribution] = distributions_of_space(self.space)
        self._launcher: Launcher | None = None
        self._known: set[tuple[str, int]] = set()  # studies whose trials were checked

    def evaluate_by(self, answer: Evaluator, called: str) -> None:
        """Have a function, which is ``called`` so, answer for plans."""
        self._problem = function_problem(self.job, self._found.problem, answer, self.job.goals, called)

    def run_by(self, launcher: Launcher) -> None:
        """Have a launcher run the plans, which ends those early that are clearly behind the study's, if it can."""

        def measured(job: Job, plans: Columns) -> Mapping[str, Any]:
            record = plan_records(plans, plans["stage_clock_mhz"], [0])
            row = next(run_all(launcher, job, record, lambda _, text: _log.info("%s", text))).row
            if row["status"] != STATUSES[0]:
                ended_early = isinstance(launcher, EndsEarly) and not is_blank(row.get("iteration_time_s"))
                failure = optuna.TrialPruned if ended_early else RunFailedError
                raise failure(f"{row['status']}: {row.get('notes', '')}")
            names = dict.fromkeys((*job.goals, MEAN_POWER))
            return {name: [float(row[name])] for name in names if not is_blank(row.get(name))}

        self._launcher = launcher
        self.evaluate_by(measured, launcher.name)

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
        if isinstance(self._launcher, EndsEarly):
            set_bounds(self._launcher, self.job, _finished_values(trial.study, goals))
        plans = with_site(self.job, self._problem.evaluate_clocks(layout, clock, slack, clocks))
        for name in RESULTS:
            if np.isfinite(plans[name][0]):
                trial.set_user_attr(name, float(plans[name][0]))
        if self._found.excess is not None:
            for name, excess in self._found.excess(plans).items():
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
        layouts = {name: values[layout] for name, values in self._problem.layouts.items()}
        return plan_records(layouts, clocks, [0])[0]

    def _genes(self, trial: BaseTrial | Mapping[str, Any]) -> tuple[Ints, Ints, Floats, Floats]:
        """Layout, clock index, slack and stage clocks, (1, ...) each, of a trial or its parameters."""
        params, attributes = (trial, {}) if isinstance(trial, Mapping) else (trial.params, trial.user_attrs)
        layout, clock, slack = self.space.decode(params)
        clocks = self._problem.decode_clocks(layout, clock, slack)
        if PLAN in attributes:  # the clock of each stage, as `enqueue` has it, which parameters may not say
            own = np.asarray(json.loads(attributes[PLAN])["stage_clock_mhz"], np.float64)
            clocks = widened(own[np.newaxis], clocks.shape[1])
        return layout, clock, slack, clocks

    def _goals_of(self, study: optuna.Study) -> tuple[str, ...]:
        """The columns of the study's values; UsageError where it is of other objectives or another space."""
        goals = self.job.goals if len(study.directions) > 1 else self.job.objectives
        if [way.name for way in study.directions] != ["MINIMIZE"] * len(goals):
            raise UsageError(
                f"The study {study.study_name!r} has the directions {', '.join(way.name for way in study.directions)}, "
                f"and job {self.job.name!r} is to minimise {objective_words(goals)}; make it with "
                f"directions={['minimize'] * len(goals)}."
            )
        if (key := (study.study_name, study._study_id)) not in self._known:
            self._check_trials(study)
            if self._launcher is not None and getattr(study._storage, "get_heartbeat_interval", lambda: 1)() is None:
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
            plan, same = (
                json.loads(trial.user_attrs[PLAN]),
                trial.distributions[TRIAL_LAYOUT] == self.distributions[TRIAL_LAYOUT],
            )
            found = self.plan(trial.params) if same else {}
            if not same or any(plan.get(name) != found[name] for name in LAYOUT_COLUMNS):
                raise UsageError(
                    f"The study {study.study_name!r} is of other layouts than job {self.job.name!r} has now (of "
                    f"another job, version of jointopt, or measured memory); begin a new study, and enqueue what is "
                    f"known by jointopt.enqueue(study, proposal)."
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


def enqueue(study: optuna.Study, proposal: Proposal) -> int:
    """Enqueue the plans of a proposal's front in a study of `optuna_objective`, those it has not; return their number.

    Each is evaluated with the very clocks of its stages; where parameters cannot say them, they are the nearest ones.
    UsageError for a proposal that was put together without the model that predicts its plans.
    """
    if proposal.model is None:
        raise UsageError("The plans of a proposal are enqueued by its model; take one that propose returned.")
    found = prepare_search(proposal.model, Stopwatch(quiet=True), allow_tight=not proposal.feasible)
    space, front = Parameters(found.all_goals), proposal.front
    known = {trial.user_attrs.get(PLAN) for trial in study.get_trials(deepcopy=False)}
    rows = range(len(front["pp"]))
    plans = zip(plan_records(front, front["stage_clock_mhz"], rows), space.encode(space.located(front)), strict=True)
    new = [(text, params) for plan, params in plans if (text := record_text(plan)) not in known]
    for text, params in new:
        study.enqueue_trial(params, user_attrs={PLAN: text})
    return len(new)
