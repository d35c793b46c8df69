"""``validate``: run the best proposed plans for real, and hold what was predicted against what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import DeviceError, InfeasibleError, LauncherError
from jointopt.core.schema import LAYOUT_COLUMNS, RECOMPUTE_CODES, Columns, Ints
from jointopt.measure.launchers.base import Launcher, load_launcher
from jointopt.report.results import Validated, ValidatedRun
from jointopt.report.runs_text import TERMINATED, differing, plan_words
from jointopt.search.pareto import front_order, take
from jointopt.spec.job import Job
from jointopt.spec.plans.parse import plan_records
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.campaign.candidates import Candidates, listed, measurement_columns, peeled, searched
from jointopt.workflows.campaign.earlier import UNREAD, Earlier, earlier_runs
from jointopt.workflows.campaign.outlook import broken_bounds
from jointopt.workflows.campaign.record import Asked, Record
from jointopt.workflows.campaign.verdict import GoingOn, why_none
from jointopt.workflows.predict import predict
from jointopt.workflows.propose import propose

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Chosen:
    """Plans to run, the best first: as a launcher is asked, as columns with predictions, and how many were proposed."""

    asked: pd.DataFrame
    columns: Columns
    reference: int | None  # row of the plan at default clocks
    proposed: int


def validate(
    job: Job, launcher: Launcher | str, top: int = 5, *, seed: int = 0, surrogate: str = "default",
    storage: str | None = None, again: bool = False, progress: Say | None = None, **options: Any,
) -> Validated:  # fmt: skip
    """Run the ``top`` best plans that `propose` finds for ``job``, spread along its front, and the default reference.

    Where one objective or no power is known, or the launcher lists its plans, these are the plans that are predicted
    best of the job's space at uniform clocks, or of the list. ``launcher`` is one, or the name of one made with
    ``options``. Every run is stored in ``storage`` (a database URL), and a trial of a study there, as soon as it ends;
    plans that it has measured are not run again, unless ``again``. An interrupt (SIGINT) keeps what was measured.
    Raises LauncherError where nothing could be run, InfeasibleError where nothing is proposed.
    """
    job = replace(job, objectives=job.measured_objectives)
    chosen = load_launcher(launcher, **options) if isinstance(launcher, str) else launcher
    say = progress or (lambda text: None)
    plans = _choose(job, chosen.candidates(job), top, seed, surrogate, storage, say)
    bench = _Bench(job, chosen, plans, storage, say)
    stopped = bench.work(again)
    return Validated(
        job=job, launcher=chosen.name, surrogate=surrogate, proposed=plans.proposed, runs=bench.runs,
        stopped=stopped, storage=storage, study_name=bench.record.study_name, notes=tuple(bench.notes),
        fault="" if stopped == "interrupted" or bench.succeeded else why_none(job, bench.runs),
        reason=bench.going_on.reason, unstored=bench.going_on.unstored,
    )  # fmt: skip


class _Bench:
    """Runs chosen plans, several at once where the launcher can."""

    def __init__(self, job: Job, launcher: Launcher, plans: _Chosen, storage: str | None, say: Say) -> None:
        self.job, self.launcher, self.plans, self._say = job, launcher, plans, say
        self.notes: list[str] = []
        self.going_on = GoingOn(launcher, "--again", self._note)
        self._runs: dict[int, ValidatedRun] = {}
        self.record = Record(job, storage, f"validate {launcher.name} {job.name}", self._note)

    @property
    def runs(self) -> tuple[ValidatedRun, ...]:
        """Those that have ended, in the order of the plans."""
        return tuple(self._runs[index] for index in sorted(self._runs))

    @property
    def succeeded(self) -> bool:
        return any(run.status == "ok" for run in self.runs)

    def work(self, again: bool) -> str:
        """Run what is to be run; why it ended."""
        self.record.open_study(self.plans.columns, self._objectives())
        self._go_on()
        store = self.record.store
        earlier = Earlier() if store is None or again else earlier_runs(self.plans.asked, store.read())
        if earlier.unread:
            self._note(f"{UNREAD} {earlier.unread}")
        known = dict(zip(earlier.index, earlier.rows, strict=True))
        for index, row in sorted(known.items()):
            self._earlier(index, row)
        try:
            return self._run([index for index in range(len(self.plans.asked)) if index not in known])
        except KeyboardInterrupt:
            return "interrupted"
        except SystemExit:
            self._say(TERMINATED)
            raise
        except (LauncherError, DeviceError) as error:
            if not self._runs:
                raise
            self.going_on.give_up(f"No further run could be started: {error}")
            return "failed"

    def _objectives(self) -> tuple[str, ...]:
        known = [name for name in self.job.objectives if np.isfinite(self.plans.columns[name]).any()]
        return tuple(known or self.job.objectives[:1])

    def _go_on(self) -> None:
        """Plans whose runs a killed validate had begun join those chosen: on a cluster they may go on."""
        mine = [self._plan(index) for index in range(len(self.plans.asked))]
        others = [(plan, told) for plan, told in self.record.left(self.launcher) if plan not in mine]
        if others:
            self.plans = _joined(self.plans, others, self.job)
            self.record.open_study(self.plans.columns, self._objectives())  # with room for them
            self._note(
                f"A validate that was killed had begun {len(others)} more, which are asked for again: what has been "
                "measured since moved the choice."
            )

    def _run(self, indices: list[int]) -> str:
        apart = differing(self._plan(index) for index in range(len(self.plans.asked)))

        def asked() -> Iterator[Asked]:
            for index in indices:
                if self.going_on.reason:
                    return
                plan = self._plan(index)
                self._say(f"run {index + 1} of {len(self.plans.asked)}: {plan_words(plan, apart)} ...")
                question = {str(name): value for name, value in self.plans.asked.iloc[index].items()}
                told = {"in_domain": bool(self.plans.columns["in_domain"][index])}
                yield Asked(question, plan, self._predicted(index), 1, told)

        def tell(place: int, text: str) -> None:
            self._say(f"run {indices[place] + 1}: {text}")

        with closing(self.record.run_all(self.launcher, asked(), self._broken_by, tell)) as runs:
            for place, done in runs:
                self._add(indices[place], done.row, earlier=False)
                tell(place, _outcome(self._runs[indices[place]]))
                self.going_on.after(done.row, done.trouble, "The run")
        return "failed" if self.going_on.reason else "done"

    def _broken_by(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return broken_bounds(self.job, row)

    def _earlier(self, index: int, row: dict[str, Any]) -> None:
        self._say(f"run {index + 1} of {len(self.plans.asked)}: measured before, not run again")
        self._add(index, row, earlier=True)

    def _add(self, index: int, row: dict[str, Any], earlier: bool) -> None:
        self._runs[index] = ValidatedRun(
            plan=self._plan(index), row=row, predicted=self._predicted(index), broken=self._broken_by(row),
            in_domain=bool(self.plans.columns["in_domain"][index]), reference=index == self.plans.reference,
            earlier=earlier,
        )  # fmt: skip

    def _plan(self, index: int) -> dict[str, Any]:
        columns = self.plans.columns
        return plan_records(columns, columns["stage_clock_mhz"], [index])[0]

    def _predicted(self, index: int) -> dict[str, float]:
        names = [f"{name}{end}" for name in RESULTS for end in ("", "_low", "_high")]
        return {name: float(self.plans.columns[name][index]) for name in names}

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._say(text)


def _outcome(run: ValidatedRun) -> str:
    if run.status != "ok":
        return f"{run.status}: {run.row.get('notes') or 'no reason known'}"
    name = "iteration_time_s"
    return f"{run.result(name):.4g} s, {run.predicted[name]:.4g} s predicted"


def _joined(
    chosen: _Chosen, others: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], job: Job
) -> _Chosen:
    """With other plans after them; each is a record, and attributes of a trial with what was predicted of it."""
    plans = [plan for plan, _ in others]
    columns: Columns = {name: np.array([plan[name] for plan in plans]) for name in LAYOUT_COLUMNS}
    columns["recompute"] = np.array([RECOMPUTE_CODES[plan["recompute"]] for plan in plans], np.int8)
    width = max(len(plan["stage_clock_mhz"]) for plan in plans)
    columns["stage_clock_mhz"] = np.full((len(plans), width), np.nan)
    for row, plan in enumerate(plans):
        columns["stage_clock_mhz"][row, : len(plan["stage_clock_mhz"])] = plan["stage_clock_mhz"]
    for name in (f"{name}{end}" for name in RESULTS for end in ("", "_low", "_high")):
        columns[name] = np.array([told.get(f"predicted_{name}", np.nan) for _, told in others], float)
    columns["in_domain"] = np.array([bool(told.get("in_domain")) for _, told in others])
    asked = pd.concat([chosen.asked, measurement_columns(job, columns)], ignore_index=True)
    return replace(chosen, asked=asked, columns=_stacked(chosen.columns, columns))


def _choose(
    job: Job, asked: Columns | None, top: int, seed: int, surrogate: str, storage: str | None, say: Say
) -> _Chosen:
    if asked is not None:
        return _of_list(listed(asked, job), job, top, surrogate)
    if len(job.objectives) > 1 and job.cluster.gpu.power is not None:
        return _of_front(job, top, seed, surrogate, storage, say)
    say("predicting the job's plans ...")
    return _of_space(job, top, surrogate, storage)


def _of_front(job: Job, top: int, seed: int, surrogate: str, storage: str | None, say: Say) -> _Chosen:
    """Plans spread along the front of `propose`, both ends among them, then the default reference."""
    proposal = propose(job, seed=seed, surrogate=surrogate, storage=storage)
    front = proposal.front
    some = take(front, spread(len(front["pp"]), top))
    records = list(_plans(some))
    reference = next(_plans(proposal.reference))
    if reference in records:
        columns, at = some, records.index(reference)
    else:
        columns, at = _stacked(some, proposal.reference), len(records)
    return _Chosen(measurement_columns(job, columns), columns, at, len(front["pp"]))


def _plans(columns: Columns) -> Iterator[dict[str, Any]]:
    count = len(columns["pp"])
    return iter(plan_records(columns, columns["stage_clock_mhz"], range(count)))


def _stacked(first: Columns, second: Columns) -> Columns:
    """Rows of both, in the columns of both; stages that only one of them has are blank in the other."""
    width = max(columns["stage_clock_mhz"].shape[1] for columns in (first, second))
    parts = []
    for columns in (first, second):
        clocks = columns["stage_clock_mhz"]
        gap = ((0, 0), (0, width - clocks.shape[1]))
        parts.append(columns | {"stage_clock_mhz": np.pad(clocks, gap, constant_values=np.nan)})
    return {name: np.concatenate([part[name] for part in parts]) for name in first if name in second}


def _of_space(job: Job, top: int, surrogate: str, storage: str | None) -> _Chosen:
    """The best of the job's plans at uniform clocks; the best of all is the default reference where clocks are."""
    candidates = searched(job)
    model = JobModel.of(job, surrogate, storage=storage)
    layouts = {name: candidates.plans[name] for name in LAYOUT_COLUMNS}
    physics = model.cost_model(layouts)
    clocks = candidates.plans["stage_clock_mhz"]
    values = physics.evaluate(np.arange(candidates.size), clocks)
    plain = layouts | {name: values[name] for name in RESULTS} | {"stage_clock_mhz": clocks}
    columns = model.intervals(plain)
    fits = np.flatnonzero(values["violation"] <= 0)
    return _best(candidates, columns, fits, job, top)


def _of_list(candidates: Candidates, job: Job, top: int, surrogate: str) -> _Chosen:
    """The best of the plans that a launcher lists."""
    answers = predict(candidates.asked, surrogate)
    names = [f"{name}{end}" for name in RESULTS for end in ("", "_low", "_high")]
    columns = candidates.plans | {name: answers[f"predicted_{name}"].to_numpy(float) for name in names}
    columns["in_domain"] = answers["in_domain"].to_numpy(bool)
    fits = np.flatnonzero(answers["predicted_fits"].to_numpy(bool))
    return _best(candidates, columns, fits, job, top)


def _best(candidates: Candidates, columns: Columns, fits: Ints, job: Job, top: int) -> _Chosen:
    """Of plans that fit the front, spread, or what comes next where it is smaller; the fastest is the reference."""
    goals = [columns[name][fits] for name in job.objectives]
    known = [values for values in goals if np.isfinite(values).any()]
    if not known:
        raise InfeasibleError(
            f"No plan of job {job.name!r} is predicted to fit in the GPU's memory; nothing is run."
        )
    front = front_order(known[0], known[-1])
    order = peeled(known[0], known[-1], max(top, 1))
    rows = fits[front[spread(len(front), top)] if len(front) > top else order[:top]]
    highest = np.nanmax(columns["stage_clock_mhz"][rows], axis=1)
    default = np.flatnonzero(highest >= np.nanmax(columns["stage_clock_mhz"]))
    reference = int(default[columns["iteration_time_s"][rows[default]].argmin()]) if len(default) else None
    asked = candidates.asked.iloc[rows].reset_index(drop=True)
    return _Chosen(asked, take(columns, rows), reference, len(front))


def spread(size: int, count: int) -> Ints:
    """At most ``count`` of ``size`` rows in order, evenly, both ends among them (the first alone for a count of 1)."""
    if size <= count:
        return np.arange(size, dtype=np.int64)
    return np.unique(np.linspace(0, size - 1, count).round().astype(np.int64))
