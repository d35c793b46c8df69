"""``tune``: choose the most promising plan, run it, learn from it, repeat."""

from __future__ import annotations

import logging
import time
from bisect import bisect, insort
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jointopt.core import progress
from jointopt.core.budget import Budget, Spent, read_spent
from jointopt.core.errors import InfeasibleError, UsageError
from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import FURTHER_OBJECTIVES, TIME_ALONE
from jointopt.jobs.plans.text import record_text
from jointopt.measure.base import EndsEarly, Launcher, load_launcher, narrow_search
from jointopt.report.plans import differing_columns, plan_words
from jointopt.report.real_runs import gain_words
from jointopt.report.results import Tuned, TunedRun
from jointopt.report.tables import result_text
from jointopt.search.acquire import acquire, expected_saving, gain_left
from jointopt.search.pareto import non_dominated, take
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import Kernel
from jointopt.surrogate.measurements import Measurements
from jointopt.surrogate.memory import OOM_STATUS
from jointopt.surrogate.plan_process import ROUGH, USUAL
from jointopt.workflows.answers import accepts_paths
from jointopt.workflows.campaign.campaign import (
    APART,
    UNLIKELY_LEFT,
    Campaign,
    command_of_run,
    count_words,
    earlier_run_notes,
    is_curable,
    unmeasured_notes,
    why_no_usable_plan,
)
from jointopt.workflows.campaign.candidates import (
    Candidates,
    at_highest_clock,
    layout_families,
    listed_candidates,
    searched_candidates,
)
from jointopt.workflows.campaign.expectation import Expectations, GrowingModel, Outlook, with_learned_factors
from jointopt.workflows.campaign.record import QueuedRun
from jointopt.workflows.campaign.stopping import Balance, hypervolumes, run_seconds, set_bounds, stakes
from jointopt.workflows.propose import propose
from jointopt.workflows.trackers import Tracker

if TYPE_CHECKING:
    from jointopt.jobs.calibration import Calibration
    from jointopt.jobs.cluster import Machine
    from jointopt.workflows.answers import CalibrationLike, MachineLike, TableLike

_log = logging.getLogger(__name__)
_BAR = "spent of the budget"


@accepts_paths
def tune(
    job: Job | str | Path, launcher: Launcher | str, budget: int | Budget, *, seed: int = 0, surrogate: str = "default",
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, machine: MachineLike | None = None, batch: int = 1, alike: bool = False,
    retry_failed: bool = False, spread: Kernel | None = None, power_profiles: Sequence[str] = (), log: str = "",
    source: str = "",
    **options: Any,
) -> Tuned:  # fmt: skip
    """Run plans of ``job`` within ``budget``, each chosen by all before it; return what was measured.

    The first run is the first plan that `propose` prints (of a list: the best that is predicted to fit), those that
    follow promise most gain per GPU-hour of a run. Every run is kept in ``storage`` as soon as it ends; what that holds
    of the job or its cluster is known from the start. After an interrupt, a kill or three failures for one cause the
    same call goes on with the rest of the budget; runs left to a cluster come first.

    Parameters
    ----------
    job : Job or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    launcher : Launcher or str
        One, or the name of one (torchrun, megatron, slurm, command, replay, ...) made with ``options``.
    budget : int or Budget
        A number of runs, or bounds of runs, GPU-hours and minutes.
    seed : int, optional
        Of the random numbers.
    surrogate : str, optional
        Name of a shipped surrogate, folder that `retrain` wrote, or "none" for physics alone.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database that keeps every run, whose measured runs correct the predictions; none by default.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.
    batch : int, optional
        Plans that are chosen at a time, each of another split of the GPUs.
    alike : bool, optional
        They may split the GPUs alike.
    retry_failed : bool, optional
        Run plans again that failed, but for want of memory; else a plan is run once.
    spread : Kernel, optional
        How far predictions are trusted; by default less on CPU cores.
    power_profiles : sequence of str, optional
        NVIDIA's (+ between those requested together), under which the layouts of the measured front run at last, each
        until it gains nothing; a run is left for each.
    log : str, optional
        An experiment tracker, mlflow or wandb, to which every run is logged once it is stored.
    source : str, optional
        How a shell names the job, for the next command.
    **options
        Of the launcher.

    Returns
    -------
    Tuned
        ``runs`` as they were measured (s, J), and the front of them.

    Raises
    ------
    LauncherError
        Where nothing can be run.
    InfeasibleError
        Where no plan is left.
    """
    calibration, machine = cast("Calibration | None", calibration), cast("Machine | None", machine)
    tracker = Tracker(log) if log else None
    chosen, job = load_launcher(launcher, **options), cast("Job", job)
    runs = None if measured is None else Measurements.given(cast("Measurements", measured))
    wanted = replace(narrow_search(chosen, job), objectives=job.measured_objectives)
    model = JobModel.of(wanted, surrogate, runs, calibration, storage, machine)
    listing = chosen.candidates(model.job)
    if power_profiles and listing is not None:
        raise UsageError("A power profile is measured by a launcher that runs programs; this one returns listed plans.")
    if power_profiles and model.job.cluster.gpu.vendor != "NVIDIA":
        raise UsageError(f"Power profiles are of NVIDIA's GPUs; the job has {model.job.cluster.gpu.id}.")
    if listing is None:
        candidates = searched_candidates(model, _first_proposed(model, seed))
    else:
        candidates = listed_candidates(listing, model.job, calibration, machine)
    usual = ROUGH if model.job.cluster.gpu.architecture == "CPU" else USUAL
    loop = _TuneLoop(model, chosen, candidates, seed, storage, runs, spread or usual, retry_failed, power_profiles)
    loop.tracker = tracker
    loop.families = None if alike or batch < 2 else layout_families(candidates.plans)
    stopped = loop.spend(Budget(runs=budget) if isinstance(budget, int) else budget, batch)
    values = loop.values(objectives := loop.objectives())
    found = Tuned(
        job=model.job, launcher=chosen.name, candidates=candidates.size, runs=tuple(loop.runs), stopped=stopped,
        front=tuple(non_dominated(values).tolist()), hypervolume=tuple(hypervolumes(values)), unstored=loop.unstored,
        storage=storage, objectives=objectives, notes=tuple(loop.notes), study_name=loop.record.study_name, seed=seed,
        gain_left=loop.gain_left, spent=loop.spent, next_run=None if loop.balance is None else asdict(loop.balance),
        fault="" if stopped == "interrupted" else why_no_usable_plan(model.job, loop.runs),
        reason=loop.reason or loop.converged,
        predicted_by=loop.predicted_by.rstrip(","),
    )  # fmt: skip
    return replace(found, next_command=command_of_run(found, source))


def _first_proposed(model: JobModel, seed: int) -> Columns | None:
    """The first plan that `propose` prints for the job, with one row; None where it has none."""
    goals = tuple(name for name in model.job.objectives if name not in FURTHER_OBJECTIVES)
    job = replace(model.job, objectives=goals or model.job.objectives)
    with suppress(InfeasibleError):
        return take(propose(replace(model, job=job), seed=seed).front, np.zeros(1, np.int64))
    return None


class _TuneLoop(Campaign):
    """The runs so far, and what follows from them for the candidates that are left."""

    def __init__(
        self, model: JobModel, launcher: Launcher, candidates: Candidates, seed: int, storage: str | None,
        measured: Measurements | None, spread: Kernel, retry_failed: bool, profiles: Sequence[str],
    ) -> None:  # fmt: skip
        super().__init__(model, launcher, storage, measured, "tune", "--retry-failed")
        self.candidates, self._profiles = candidates, profiles
        self.runs: list[TunedRun] = []
        self._differing = differing_columns(candidates.record(index) for index in range(candidates.size))
        self._index: list[int] = []  # of each run among the candidates
        self._lost_objectives: list[str] = []  # objectives that are left out
        self._unknown_before: list[str] = []  # notes of what is left out
        self._retry_failed = retry_failed
        self._keys = [record_text(candidates.record(index)) for index in range(candidates.size)]
        self._left_to_others: set[str] = set()  # keys of plans that are left to other processes
        self._seen_of_others: frozenset[str] = frozenset()  # keys of plans that others have run since this began
        self._retried = 0  # plans that failed before and may run again
        self._rng = np.random.default_rng(seed)
        self._surely_out = model.certain_oom(candidates.plans)  # candidates that run out of memory, as a run did
        earlier = with_learned_factors(self.earlier(candidates.rows), model, candidates)
        self._surely_out |= False if earlier.out is None else earlier.out
        for index, row in zip(earlier.index, earlier.rows, strict=True):  # as runs of round 0
            if retry_failed and is_curable(row):
                self._retried += 1
            else:
                self._add(index, row, len(self.runs), 0, {}, float("nan"))
        failed = sum(is_curable(run.row) for run in self.runs)
        out = int(self._surely_out.sum()) - sum(self._surely_out[index] for index in self._index)
        for sentence in earlier_run_notes(len(self.runs), failed, self._retried, earlier, out):
            self.note(sentence)
        kernel = None if model.surrogate is None else model.surrogate.kernel
        growing = GrowingModel(candidates, earlier, kernel, self.job.cluster.machine)
        self._outlook = Outlook(self.job, candidates, earlier, spread, self._rng, growing)
        self.predicted_by = ""
        self.families: Ints | None = None  # of the candidates, of which plans chosen together have one each
        known = ((run.plan, run.row, run.broken) for run in self.runs)
        self.record.open_study(candidates.plans, self.objectives(), known)
        self.gain_left = float("nan")
        self.balance: Balance | None = None  # of the run that is most worth its cost
        self.converged = ""  # why no other run is worth it, in a sentence
        self._timed: list[tuple[float, float]] = []  # seconds of each run of this tune, and of its iterations
        self.spent = Spent()
        self._minutes_before, self._started = 0.0, time.monotonic()

    def spend(self, budget: Budget, batch: int = 1) -> str:
        """Run plans until a reason to stop, which is returned."""
        before = self.record.unfinished()
        if before is not None and before.get("budget") == budget.document():  # of the same budget
            # one may have been stored and not counted when the tool was killed
            ended = self._measured_plans - int(before.get("measured", self._measured_plans))
            self.spent = read_spent(before["spent"]).with_more(ended)
            self._minutes_before = self.spent.minutes
            if self.spent.runs:
                self.note(f"Going on where a tune was stopped: {budget.words(self.spent)} are spent.")
        progress.report(_BAR, *budget.first_bound(self.spent))
        self.record.progress(self._state(budget))
        stopped = self.until_the_end(lambda: self._with_profiles(budget, batch), lambda: self._count > 0)
        progress.report(_BAR, 1, 1)
        paused = stopped in ("interrupted", "failed")
        self.record.progress(self._state(budget) if paused else None, paused)
        return stopped

    def _with_profiles(self, budget: Budget, batch: int) -> str:
        """The rounds, then the layouts of the measured front under each power profile; why that ended."""
        stopped = self._rounds(budget, batch)
        of_front = [self._index[place] for place in non_dominated(self.values(self.objectives())).tolist()]
        indices = at_highest_clock(self.candidates, of_front)
        for profile in self._profiles if stopped != "failed" else ():
            under = self.candidates.under(profile)
            known = self.earlier(self.candidates.rows, profile)
            before = dict(zip(known.index, known.rows, strict=True))
            for index in indices:
                if index in before:
                    self._add(index, before[index], len(self.runs), 0, {}, float("nan"), under)
                elif not budget.runs_left(self.spent):
                    self._note_once(f"The budget ended before power profile {profile} had run on every layout.")
                    break
                elif not self._run(np.array([index]), {}, budget, begun=False, under=under):
                    return "failed"
                if len(self.runs) - 1 not in non_dominated(self.values(self.objectives())):
                    break
        return stopped

    def _rounds(self, budget: Budget, batch: int) -> str:
        first = True
        while True:
            self._meet_others()
            kept = len(self._profiles) if any(run.status == "ok" for run in self.runs) else 0
            spare = max(0, budget.runs_left(self.spent) - kept)
            left = self._left()
            self._note_unknown()
            posterior = self.posterior() if left.any() else None
            self._log_gain(posterior, left)
            if not spare:
                return "budget"
            if posterior is None:
                if self.record.wait_for_freed():
                    continue
                return "exhausted"
            going_on = self.left_over(self.candidates, left | self._surely_out) if first else np.empty(0, np.int64)
            first = False
            best = going_on if len(going_on) else self._next(posterior, left, min(batch, spare))
            if not len(best):
                self.converged = "" if self.balance is None else self.balance.to_text()
                self._note_once(self.converged)
                return "converged"
            if not self._run(best, posterior.columns, budget, begun=bool(len(going_on))):
                return "failed"

    def _meet_others(self) -> None:
        """Leave alone what other processes run or have just run, and learn from the latter."""
        others = self.record.others()
        fatal = frozenset() if self._retry_failed else others.fatal
        self._left_to_others = {*others.running, *others.ended, *fatal}
        if fatal:
            self._note_once(
                f"{count_words(len(fatal), 'plan')} of this job ended the process that ran it twice, and will not run "
                "without --retry-failed."
            )
        if others.ended != self._seen_of_others:
            self._seen_of_others = others.ended
            earlier = self.earlier(self.candidates.rows)
            self._surely_out |= False if earlier.out is None else earlier.out
            for index, row in zip(earlier.index, earlier.rows, strict=True):
                if index not in self._index and self._keys[index] in others.ended:
                    self._add(index, row, len(self.runs), 0, {}, float("nan"))

    def _state(self, budget: Budget) -> dict[str, Any]:
        return {"budget": budget.document(), "spent": asdict(self.spent), "measured": self._measured_plans}

    def _log_gain(self, posterior: Expectations | None, left: Bools) -> None:
        """Log the best plan so far, and the gain expected from the plans that are left."""
        objectives = self.objectives()
        measured = self._known(objectives)
        if not len(measured[objectives[0]]):
            return
        self.gain_left = 0.0 if posterior is None else gain_left(posterior.draws, measured, objectives, left)
        if self._count:
            best = float(measured[objectives[0]].min())
            plans = int(left.sum())
            gain = gain_words(self.gain_left, objectives, f"the {count_words(plans, 'plan')} left")
            gain = gain if plans else "no plan is left"
            _log.info("best so far %s; %s", result_text(objectives[0], best), gain)

    def objectives(self) -> tuple[str, ...]:
        """The job's objectives that are predicted, and measured where a run has succeeded; else the time."""
        known = [name for name in self.job.objectives if np.isfinite(self.candidates.predicted[name]).any()]
        good = [run for run in self.runs if run.status == "ok"]
        if good:
            known = [name for name in known if any(np.isfinite(run.result(name)) for run in good)]
        return tuple(known) or TIME_ALONE

    def _note_unknown(self) -> None:
        """Note which objectives are left out and which constraints cannot be checked, as long as that is so."""
        lost = [name for name in self.job.objectives if name not in self.objectives()]
        if lost != self._lost_objectives:
            self._lost_objectives, self.predicted_by = lost, ""  # the best prediction was judged for other objectives
        predicted = [name for name in lost if np.isfinite(self.candidates.predicted[name]).any()]
        good = [run.row for run in self.runs if run.status == "ok"]
        unknown = unmeasured_notes(self.job, lost, self.objectives(), predicted, good)
        self.notes = [note for note in self.notes if note in unknown or note not in self._unknown_before]
        for sentence in unknown:
            self._note_once(sentence)
        self._unknown_before = unknown

    def values(self, objectives: tuple[str, ...]) -> Floats:
        """Measured objectives (runs, objectives); NaN where a run failed or broke a constraint of the job."""
        blank = [np.nan] * len(objectives)
        rows = [blank if run.broken else [run.result(name) for name in objectives] for run in self.runs]
        return np.array(rows, float).reshape(-1, len(objectives))

    def posterior(self) -> Expectations:
        """The posterior of every candidate after all runs so far; notes where another prediction is trusted now."""
        rows = [run.row for run in self.runs]
        posterior = self._outlook.after(self.objectives(), np.array(self._index, np.int64), rows)
        if self.predicted_by and posterior.basis != self.predicted_by:
            self.note(
                f"After {len(self.runs)} runs, each predicted from the others, {posterior.basis} did better than "
                f"{self.predicted_by}; plans are chosen by that."
            )
        self.predicted_by = posterior.basis
        return posterior

    def _known(self, objectives: tuple[str, ...]) -> Columns:
        """Measured objectives of the runs that succeeded and kept the job's bounds."""
        values = self.values(objectives)
        return dict(zip(objectives, values[np.isfinite(values).all(axis=1)].T, strict=True))

    def _next(self, posterior: Expectations, left: Bools, count: int) -> Ints:
        """Candidates to run next, none where no run is expected to save what it costs; at first any run is evidence."""
        objectives = self.objectives()
        measured = self._known(objectives)
        time_s = posterior.columns.get("iteration_time_s", self.candidates.predicted["iteration_time_s"])
        seconds = run_seconds(time_s, self._timed)
        if len(measured[objectives[0]]):
            saved = expected_saving(posterior.columns, measured, objectives=objectives)
            best = np.nanargmin(self.values(objectives)[:, 0])
            found = stakes(self.job, seconds, saved, self.runs[best])
            self.balance, left = found.balance(left), left & found.pays
        likely, columns, first = left & posterior.likely, posterior.columns, None
        if likely.any():  # that they fit is no matter of degree: the fastest plans are close to the limit
            left, columns = likely, columns | {"probability_fits": posterior.kept}
        elif left.any():
            self._note_once(UNLIKELY_LEFT)
        if not self.runs and left.any():
            rows = np.flatnonzero(left)
            first = 0 if self.candidates.led and left[0] else int(rows[np.argmin(columns[objectives[0]][rows])])
        if count > 1 and self.families is not None:
            self._note_once(APART)
        return acquire(
            columns, measured, self.job.cluster.num_gpus * seconds, count, self._rng, objectives=objectives,
            allowed=left, draws=posterior.draws, spread=posterior.spread, first=first, families=self.families,
        )  # fmt: skip

    def _run(
        self, indices: Ints, columns: Columns, budget: Budget, begun: bool, under: Candidates | None = None
    ) -> bool:
        """Run candidates (``under``: of a profile), at once where the launcher can; whether others may follow.

        None begins once there is a reason to give up, nor beyond the budget, those on their way counted; unless an
        earlier process had ``begun`` them all.
        """
        under = under or self.candidates
        base, number = len(self.runs), max((run.round for run in self.runs), default=0) + 1
        before = self.spent.runs
        order: list[int] = []  # of those that have begun
        expected: list[dict[str, float]] = []  # of each
        ended: list[int] = []  # places in it, sorted: runs stand in the order in which they began

        def queue() -> Iterator[QueuedRun]:
            for index in indices.tolist():
                if not begun and budget.runs_left(self.spent) <= len(order) - len(ended):
                    return
                if self._surely_out[index] and not begun:
                    continue  # chosen together with one of its layout that has run out of memory since
                if not self.record.reserve(under.record(index), begun or self._retry_failed):
                    self._left_to_others.add(self._keys[index])
                    continue
                order.append(index)
                plan = under.record(index)
                words, spent = plan_words(plan, self._differing), budget.words(self.spent)
                _log.info("%s: %s (%s spent) ...", name(len(order) - 1), words, spent)
                if isinstance(self.launcher, EndsEarly):  # where it turns out clearly behind in all that counts
                    objectives = self.objectives()
                    judged = set(objectives) == set(self.job.objectives)
                    set_bounds(self.launcher, self.job, self._known(objectives) if judged else {})
                expected.append({name: float(of[index]) for name, of in columns.items() if name != "probability_fits"})
                yield QueuedRun(under.question(index), plan, expected[-1], number)

        def name(place: int) -> str:
            return f"run {before + place + 1}"

        with closing(self.run_all(queue(), name)) as runs:
            for place, done in runs:
                at = order[place]
                fits = float(columns["probability_fits"][at]) if columns else float("nan")
                run = self._add(at, done.row, base + bisect(ended, place), number, expected[place], fits, under)
                insort(ended, place)
                minutes = self._minutes_before + (time.monotonic() - self._started) / 60
                self.spent = self.spent.after_run(done.seconds, self.job.cluster.num_gpus, minutes)
                self._timed.append((done.seconds, run.result("iteration_time_s")))
                self.record.progress(self._state(budget))
                progress.report(_BAR, *budget.first_bound(self.spent))
                self.tell(run, name(place))
                self.judge(done, name(place).capitalize())
        return not self.reason

    def _add(
        self, index: int, row: Mapping[str, Any], place: int, number: int, predicted: Mapping[str, float], fits: float,
        under: Candidates | None = None,
    ) -> TunedRun:  # fmt: skip
        """Put the run of a candidate at its ``place`` among the runs."""
        plan = (under or self.candidates).record(index)
        run = TunedRun(
            plan=plan, row=row, predicted=predicted, round=number, broken=self.broken_by(row), probability_fits=fits
        )
        if run.status == OOM_STATUS:  # at whatever clocks, as memory belongs to the layout
            self._surely_out |= self.candidates.holding_as_much(index)
        self.runs.insert(place, run)
        self._index.insert(place, index)
        return run

    @property
    def _measured_plans(self) -> int:
        """Of this job, in this tune or before it."""
        return len(self.runs) + self._retried

    @property
    def _count(self) -> int:
        return sum(run.round > 0 for run in self.runs)

    def _left(self) -> Bools:
        """Candidates that have not run, are not ruled out, and that physics can price."""
        left = ~self._surely_out
        left[self._index] = False
        left &= [key not in self._left_to_others for key in self._keys]
        for name in self.objectives():
            left &= np.isfinite(self.candidates.predicted[name])
        return left
