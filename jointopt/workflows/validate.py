"""``validate``: run the best proposed plans for real, and hold what was predicted against what was measured."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from jointopt.core import progress
from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import LAYOUT_COLUMNS, SPLIT_COLUMNS, Columns, Floats, Ints, encode_cells
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import FURTHER_OBJECTIVES
from jointopt.jobs.plans.text import PLAN_KEYS, parse_plan, plan_records, widened
from jointopt.measure.base import Launcher, load_launcher, narrow_search
from jointopt.report.plans import differing_columns, plan_words
from jointopt.report.proposal import Proposal
from jointopt.report.results import Validated, ValidatedRun
from jointopt.search.pareto import concat_plans, front_order, take
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.measurements import Measurements
from jointopt.surrogate.memory import FEASIBLE, OOM_STATUS, cost_of_failing, needs_as_much
from jointopt.workflows.answers import accepts_paths
from jointopt.workflows.campaign.campaign import (
    APART,
    OUT_ALREADY,
    Campaign,
    command_of_run,
    unlikely_note,
    why_no_usable_plan,
)
from jointopt.workflows.campaign.candidates import (
    Candidates,
    at_highest_clock,
    layout_families,
    leading_fronts,
    listed_candidates,
    measurement_columns,
    searched_candidates,
)
from jointopt.workflows.campaign.expectation import EarlierRuns
from jointopt.workflows.campaign.record import QueuedRun
from jointopt.workflows.predict import predict
from jointopt.workflows.propose import propose
from jointopt.workflows.trackers import Tracker

if TYPE_CHECKING:
    from jointopt.jobs.calibration import Calibration
    from jointopt.jobs.cluster import Machine
    from jointopt.workflows.answers import CalibrationLike, MachineLike, TableLike

_log = logging.getLogger(__name__)
_PREDICTED = tuple(f"{name}{end}" for name in RESULTS for end in ("", "_low", "_high"))


@dataclass(frozen=True)
class _ChosenPlans:
    """Plans to run, the best first: as rows for the launcher, and as columns with predictions."""

    rows: pd.DataFrame
    columns: Columns
    reference: int | None  # row of the plan at default clocks
    proposed: int  # plans that none other is predicted to beat
    unlikely: int = 0  # plans that are likelier not to fit in memory than to fit: they come last, and a run decides


@accepts_paths
def validate(
    job: Job | str | Path, launcher: Launcher | str, top: int = 5, *, seed: int = 0, surrogate: str = "default",
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, machine: MachineLike | None = None, again: bool = False, alike: bool = False,
    log: str = "", source: str = "", **options: Any,
) -> Validated:  # fmt: skip
    """Run the best plans that `propose` finds for ``job``, spread along its front, and the default reference.

    Where one objective or no power is known, or the launcher lists its plans, these are the best of the job's space at
    uniform clocks, or of the list. Plans that are not likely to fit in memory come after those that are: a run decides.

    Parameters
    ----------
    job : Job or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    launcher : Launcher or str
        One, or the name of one (torchrun, megatron, slurm, command, replay, ...) made with ``options``.
    top : int, optional
        Plans to run.
    seed : int, optional
        Of the random numbers.
    surrogate : str, optional
        Name of a shipped surrogate, folder that `retrain` wrote, or "none" for physics alone.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database that keeps every run as soon as it ends, and whose measured runs correct the predictions.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.
    again : bool, optional
        Run plans that ``storage`` has measured too.
    alike : bool, optional
        Plans may split the GPUs alike; else each in another way, as far as there are such.
    log : str, optional
        An experiment tracker, mlflow or wandb, to which every run is logged once it is stored.
    source : str, optional
        How a shell names the job, for the next command.
    **options
        Of the launcher.

    Returns
    -------
    Validated
        ``runs``, predicted beside measured (s, J).

    Raises
    ------
    LauncherError
        Where nothing could be run.
    InfeasibleError
        Where every plan is certain not to fit.
    """
    calibration, machine = cast("Calibration | None", calibration), cast("Machine | None", machine)
    tracker = Tracker(log) if log else None
    chosen, job = load_launcher(launcher, **options), cast("Job", job)
    runs = None if measured is None else Measurements.given(cast("Measurements", measured))
    # of the objectives that runs are chosen by, time and energy: the front of both is spread over the runs
    wanted = replace(
        narrow_search(chosen, job),
        objectives=tuple(name for name in job.measured_objectives if name not in FURTHER_OBJECTIVES),
    )
    model = JobModel.of(wanted, surrogate, runs, calibration, storage, machine)
    job, listing = model.job, chosen.candidates(model.job)
    if listing is not None:
        found = listed_candidates(listing, job, calibration, machine)
        answers = predict(found.rows, surrogate, runs, calibration, storage, machine)
        columns = found.plans | {name: answers[f"predicted_{name}"].to_numpy(float) for name in _PREDICTED}
        columns["in_domain"] = answers["in_domain"].to_numpy(bool)
        columns["doubts"] = answers["doubts"].to_numpy(object)
        fitting = np.where(model.certain_oom(found.plans), 0.0, answers["fit_probability"].to_numpy(float))
        plans = _choose_best(found, columns, fitting, job, top, alike)
    elif len(job.objectives) > 1 and job.cluster.gpu.power is not None:
        plans = _choose_of_front(model, top, seed, storage, alike) or _choose_of_space(model, top, alike)
    else:
        plans = _choose_of_space(model, top, alike)
    bench = _ValidateRuns(model, chosen, plans, storage, runs)
    bench.tracker = tracker
    if top > 1 and not alike and _are_apart(plans):
        bench.note(APART)
    stopped = bench.work(again)
    succeeded = any(run.status == "ok" for run in bench.runs)
    validated = Validated(
        job=job, launcher=chosen.name, surrogate=surrogate, proposed=plans.proposed, runs=bench.runs,
        stopped=stopped, storage=storage, study_name=bench.record.study_name, notes=tuple(bench.notes),
        fault="" if stopped == "interrupted" or succeeded else why_no_usable_plan(job, bench.runs),
        reason=bench.reason, unstored=bench.unstored,
    )  # fmt: skip
    return replace(validated, next_command=command_of_run(validated, source))


class _ValidateRuns(Campaign):
    """Runs of chosen plans, several at once where the launcher can."""

    def __init__(
        self,
        model: JobModel,
        launcher: Launcher,
        plans: _ChosenPlans,
        storage: str | None,
        measured: Measurements | None,
    ) -> None:
        super().__init__(model, launcher, storage, measured, "validate", "--again")
        self.plans = plans
        self._runs: dict[int, ValidatedRun] = {}
        self._surely_out = np.zeros(len(plans.rows), bool)  # that run out of memory, as a run did

    @property
    def runs(self) -> tuple[ValidatedRun, ...]:
        """The runs that have ended, in the order of the plans."""
        return tuple(self._runs[index] for index in sorted(self._runs))

    def work(self, again: bool) -> str:
        """Run the plans that are not stored (``again``: all); why it ended."""
        if self.plans.unlikely:
            self.note(unlikely_note(self.plans.unlikely, len(self.plans.rows)))
        self.record.open_study(self.plans.columns, self._objectives())
        # plans whose runs a killed validate had begun join those chosen: on a cluster they may go on
        mine = [self._plan(index) for index in range(len(self.plans.rows))]
        if others := [(plan, trial) for plan, trial in self.record.left(self.launcher) if plan not in mine]:
            self.plans = _with_resumed_plans(self.plans, others, self.job)
            self.record.open_study(self.plans.columns, self._objectives())  # with room for them
            self.note(
                f"A validate that was killed had begun {len(others)} more, which are resumed: what has been "
                "measured since moved the choice."
            )
        earlier = EarlierRuns() if again else self.earlier(self.plans.rows)
        self._surely_out = np.zeros(len(self.plans.rows), bool) if earlier.out is None else earlier.out
        known = dict(zip(earlier.index, earlier.rows, strict=True))
        for index, row in sorted(known.items()):
            _log.info("run %d of %d: measured before, not run again", index + 1, len(self.plans.rows))
            self._add(index, row, earlier=True)
        left = [index for index in range(len(self.plans.rows)) if index not in known]
        return self.until_the_end(lambda: self._run(left, again), lambda: bool(self._runs))

    def _objectives(self) -> tuple[str, ...]:
        known = [name for name in self.job.objectives if np.isfinite(self.plans.columns[name]).any()]
        return tuple(known or self.job.objectives[:1])

    def _run(self, indices: list[int], again: bool) -> str:
        order: list[int] = []  # of those that have begun
        apart = differing_columns(self._plan(index) for index in range(len(self.plans.rows)))

        def queue() -> Iterator[QueuedRun]:
            for index in indices:
                plan = self._plan(index)
                if self._surely_out[index]:
                    self.note(f"run {index + 1} is left out: {OUT_ALREADY}.")
                    continue
                if not self.record.reserve(plan, again):
                    self.note(f"run {index + 1} is left out: another process runs this plan, or has just run it.")
                    continue
                order.append(index)
                total, words = len(self.plans.rows), plan_words(plan, apart)
                _log.info("run %d of %d: %s ...", index + 1, total, words)
                question = {str(name): value for name, value in self.plans.rows.iloc[index].items()}
                attributes = self._supported(index)
                yield QueuedRun(question, plan, self._predicted(index), 1, attributes)

        def name(place: int) -> str:
            return f"run {order[place] + 1}"

        progress.report("runs", len(self._runs), len(self.plans.rows))
        with closing(self.run_all(queue(), name)) as runs:
            for place, done in runs:
                self._add(order[place], done.row, earlier=False)
                progress.report("runs", len(self._runs), len(self.plans.rows))
                self.tell(self._runs[order[place]], name(place))
                self.judge(done, "The run")
        progress.report("runs", 1, 1)
        return "failed" if self.reason else "done"

    def _add(self, index: int, row: dict[str, Any], earlier: bool) -> None:
        self._runs[index] = ValidatedRun(
            plan=self._plan(index), row=row, predicted=self._predicted(index), broken=self.broken_by(row),
            reference=index == self.plans.reference, earlier=earlier, **self._supported(index),
        )  # fmt: skip

        if row["status"] == OOM_STATUS:
            columns, one = self.plans.columns, slice(index, index + 1)
            peak, of = columns["peak_memory_gib"], {name: columns[name][one] for name in LAYOUT_COLUMNS}
            self._surely_out |= needs_as_much(columns, peak, of, peak[one])

    def _plan(self, index: int) -> dict[str, Any]:
        columns = self.plans.columns
        return plan_records(columns, columns["stage_clock_mhz"], [index])[0]

    def _supported(self, index: int) -> dict[str, Any]:
        """Whether recorded runs support a plan, and why not."""
        columns = self.plans.columns
        return {"in_domain": bool(columns["in_domain"][index]), "doubts": str(columns["doubts"][index])}

    def _predicted(self, index: int) -> dict[str, float]:
        return {name: float(self.plans.columns[name][index]) for name in _PREDICTED}


def _with_resumed_plans(
    chosen: _ChosenPlans, others: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], job: Job
) -> _ChosenPlans:
    """``chosen`` with other plans after them; each is a record, and attributes of its trial with its predictions."""
    plans = [plan for plan, _ in others]
    columns: Columns = {name: encode_cells(name, [plan[name] for plan in plans]) for name in LAYOUT_COLUMNS}
    width = max(len(plan["stage_clock_mhz"]) for plan in plans)
    clocks = [widened(np.array([plan["stage_clock_mhz"]], float), width) for plan in plans]
    columns["stage_clock_mhz"] = np.concatenate(clocks)
    for name in _PREDICTED:
        columns[name] = np.array([trial.get(f"predicted_{name}", np.nan) for _, trial in others], float)
    columns["in_domain"] = np.array([bool(trial.get("in_domain")) for _, trial in others])
    columns["doubts"] = np.array([str(trial.get("doubts") or "") for _, trial in others], object)
    rows = pd.concat([chosen.rows, measurement_columns(job, columns)], ignore_index=True)
    return replace(chosen, rows=rows, columns=concat_plans([chosen.columns, columns]))


def _are_apart(plans: _ChosenPlans) -> bool:
    """Whether the plans are several, each of another split of the GPUs, the reference aside."""
    chosen = np.arange(len(plans.rows)) != plans.reference
    families = layout_families(plans.columns)[chosen]
    return 1 < len(families) == len(np.unique(families))


def _choose_of_front(model: JobModel, top: int, seed: int, storage: str | None, alike: bool) -> _ChosenPlans | None:
    """Plans spread along the front of `propose`, then the default reference; None without any.

    Where they may be ``alike`` both ends are among them; else the first plan is, and what the front has too few splits
    of the GPUs for are the fastest plans of others behind it, as `propose` shows them.
    """
    try:
        proposal = propose(model, seed=seed, storage=storage)
    except InfeasibleError:
        return None
    front = proposal.front
    rows = evenly_spaced(len(front["pp"]), top)
    if not alike:
        rows = nearest_apart(layout_families(front), rows)
    some = take(front, rows)
    if len(rows) < top and not alike and (more := _of_other_families(model, proposal, some, top - len(rows))):
        some = concat_plans([some, more])
    records, (reference,) = (
        plan_records(plans, plans["stage_clock_mhz"], range(len(plans["pp"]))) for plans in (some, proposal.reference)
    )
    if reference in records:
        columns, at = some, records.index(reference)
    else:
        columns, at = concat_plans([some, proposal.reference]), len(records)
    return _ChosenPlans(measurement_columns(model.job, columns), columns, at, len(front["pp"]))


def _of_other_families(model: JobModel, proposal: Proposal, chosen: Columns, count: int) -> Columns | None:
    """The fastest plans of at most ``count`` splits of the GPUs that a proposal shows and that no chosen plan has."""
    taken = set(zip(*(chosen[name].tolist() for name in SPLIT_COLUMNS), strict=True))
    shown = [
        parse_plan(
            {name: layout.plans[0][name] for name in PLAN_KEYS if layout.plans[0].get(name) is not None}, model.job
        )
        for layout in proposal.best_layouts
    ]
    others = [one for one in shown if tuple(one.layouts[name][0].item() for name in SPLIT_COLUMNS) not in taken]
    if not others:
        return None
    plans = concat_plans([one.layouts | {"stage_clock_mhz": one.stage_clock_mhz} for one in others[:count]])
    clocks = plans.pop("stage_clock_mhz")
    physics = model.cost_model(plans)
    values = physics.evaluate(np.arange(len(clocks)), clocks)
    return model.bounded(plans | {name: values[name] for name in RESULTS} | {"stage_clock_mhz": clocks})


def _choose_of_space(model: JobModel, top: int, alike: bool) -> _ChosenPlans:
    """The best of the job's plans at uniform clocks; the best of all is the default reference where clocks are."""
    _log.info("predicting the job's plans ...")
    candidates = searched_candidates(model)
    layouts = {name: candidates.plans[name] for name in LAYOUT_COLUMNS}
    physics = model.cost_model(layouts)
    clocks = candidates.plans["stage_clock_mhz"]
    values = physics.evaluate(np.arange(candidates.size), clocks)
    plain = layouts | {name: values[name] for name in RESULTS} | {"stage_clock_mhz": clocks}
    columns = model.bounded(plain)
    fitting = np.where(values["violation"] <= 0, model.fit_probability(physics), 0.0)
    return _choose_best(candidates, columns, fitting, model.job, top, alike)


def _choose_best(
    candidates: Candidates, columns: Columns, fitting: Floats, job: Job, top: int, alike: bool
) -> _ChosenPlans:
    """The ``top`` plans to run: of those likely to fit in memory, then of the others, each time the best by its front.

    ``fitting`` (n,): the probability that a plan fits, 0 where it must not run. Of the others one plan of each layout
    counts, its goals times `cost_of_failing`. Unless they may be ``alike``, each that is likely to fit splits the GPUs
    in another way as long as there are such. The fastest plan at the highest clock is the reference.
    """
    names, families = job.objectives, None if alike else layout_families(columns)
    goals, costly = [columns[name] for name in names], [columns[name] * cost_of_failing(fitting) for name in names]
    likely = _front_first(goals, np.flatnonzero(fitting >= FEASIBLE), top, families)
    unlikely = np.flatnonzero((fitting > 0.0) & (fitting < FEASIBLE)).tolist()
    others = _front_first(costly, np.array(at_highest_clock(candidates, unlikely), np.int64), top, None)
    rows = np.concatenate([likely[0], others[0][: max(top - len(likely[0]), 0)]])
    if not len(rows):
        raise InfeasibleError(f"No plan of job {job.name!r} can be run: none keeps its constraints by any prediction.")
    highest = np.nanmax(columns["stage_clock_mhz"][rows], axis=1)
    default = np.flatnonzero(highest >= np.nanmax(columns["stage_clock_mhz"]))
    reference = int(default[columns["iteration_time_s"][rows[default]].argmin()]) if len(default) else None
    chosen, front = candidates.rows.iloc[rows].reset_index(drop=True), likely[1] or others[1]
    return _ChosenPlans(chosen, take(columns, rows), reference, front, len(rows) - len(likely[0]))


def _front_first(goals: Sequence[Floats], rows: Ints, top: int, families: Ints | None) -> tuple[Ints, int]:
    """(at most ``top`` of ``rows``, spread along their front or else front after front; how many are on the front).

    ``goals``: values (n,) of all plans, to be minimised. ``families`` (n,): each once, as long as there are others.
    """
    known = [values[rows] for values in goals if np.isfinite(values[rows]).any()]
    if not known:
        return rows[:0], 0
    front = front_order(known[0], known[-1])
    order = leading_fronts(np.stack([known[0], known[-1]], axis=1), max(top, 1) if families is None else len(rows))
    if len(front) > top:
        spread = evenly_spaced(len(front), top)
        order = np.concatenate([front[spread], np.setdiff1d(front, front[spread], assume_unique=True), order])
    if families is not None:
        of = families[rows[order]]
        order = np.concatenate([order[np.sort(np.unique(of, return_index=True)[1])], order])
    return rows[order[np.sort(np.unique(order, return_index=True)[1])][:top]], len(front)


def nearest_apart(families: Ints, rows: Ints) -> Ints:
    """Of each of ``rows`` in turn the nearest row of a family that none before it has, in order and as far as any is.

    ``families``: the number (n,) of each row's.
    """
    found: list[int] = []
    for row in rows.tolist():
        free = np.flatnonzero(~np.isin(families, families[found]))
        if len(free):
            found.append(int(free[np.abs(free - row).argmin()]))
    return np.sort(np.array(found, np.int64))


def evenly_spaced(size: int, count: int) -> Ints:
    """At most ``count`` of ``size`` rows in order, evenly, both ends among them (the first alone for a count of 1)."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).round().astype(np.int64))
