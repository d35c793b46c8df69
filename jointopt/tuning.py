"""``tune``: choose the most promising plan, run it, learn from it, repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.candidates import Candidates, listed, searched
from jointopt.earlier import Earlier, earlier_runs
from jointopt.measure.launcher import Launcher, load_launcher
from jointopt.outlook import ENOUGH_TO_JUDGE, Belief, Outlook, broken_bounds
from jointopt.report.results import Tuned, TunedRun
from jointopt.schema import STATUSES, Bools, Columns, Floats, Ints
from jointopt.search.acquire import acquire
from jointopt.search.pareto import front_order, hypervolume
from jointopt.spec.job import Job
from jointopt.surrogate.local import Spread

if TYPE_CHECKING:
    from jointopt.store import Store

Say = Callable[[str], None]
LEAST_CHANCE = 0.002  # a plan that betters the best by 1 % with a smaller probability is not worth a run
_ITERATIONS = 20  # of one run, and what starting it takes: what a plan costs to measure
_START_S = 120.0


def tune(
    job: Job, launcher: Launcher | str, budget: int, *, seed: int = 0, storage: str | None = None, batch: int = 1,
    progress: Say | None = None, spread: Spread | None = None, **options: Any,
) -> Tuned:  # fmt: skip
    """Run at most ``budget`` plans of ``job``, each chosen by all runs before it, and return what was measured.

    ``launcher`` is one, or the name of one made with ``options``; ``spread`` is how far predictions are trusted;
    ``batch`` plans are chosen at a time. Every run is stored in ``storage`` (a database URL) before the next begins;
    an interrupt (SIGINT) loses the run in flight and returns the others. A plan is run at most once, failed or not,
    and what ``storage`` holds of the job's plans, or of other jobs on the same cluster, is known from the start.
    Raises LauncherError where nothing can be run, InfeasibleError where no plan is left.
    """
    job = replace(job, objectives=job.measured_objectives)
    chosen = load_launcher(launcher, **options) if isinstance(launcher, str) else launcher
    asked = chosen.candidates(job)
    candidates = searched(job) if asked is None else listed(asked, job)
    loop = _Loop(job, chosen, candidates, seed, storage, progress, spread or Spread())
    stopped = loop.spend(budget, batch)
    objectives = loop.objectives()
    values = loop.values(objectives)
    return Tuned(
        job=job, launcher=chosen.name, seed=seed, candidates=candidates.size, runs=tuple(loop.runs),
        front=tuple(front(values).tolist()), hypervolume=tuple(volumes(values)), stopped=stopped,
        objectives=objectives, storage=storage, notes=tuple(loop.notes),
    )  # fmt: skip


class _Loop:
    """The runs so far, and what they say of the plans that are left."""

    def __init__(
        self, job: Job, launcher: Launcher, candidates: Candidates, seed: int, storage: str | None, say: Say | None,
        spread: Spread,
    ) -> None:  # fmt: skip
        self.job, self.launcher, self.candidates = job, launcher, candidates
        self.runs: list[TunedRun] = []
        self.notes: list[str] = []
        self._index: list[int] = []  # of each run among the candidates
        self._rng = np.random.default_rng(seed)
        self._store = _open(storage)
        self._say = say or (lambda text: None)
        earlier = Earlier() if self._store is None else earlier_runs(candidates.asked, self._store.read())
        self._remember(earlier)
        self._outlook = Outlook(job, candidates, earlier, spread, self._rng)
        self._basis = ""

    def spend(self, budget: int, batch: int = 1) -> str:
        """Run plans until a reason to stop, which is returned."""
        before = len(self.runs)
        try:
            while (spare := budget - len(self.runs) + before) > 0:
                left = self._left()
                if not left.any():
                    return "exhausted"
                belief = self.belief()
                best = self._next(belief, left, min(batch, spare))
                if not len(best):
                    return "converged"
                number = self._round + 1
                for index in best.tolist():
                    self._run(index, belief.columns, number)
        except KeyboardInterrupt:
            return "interrupted"
        return "budget"

    def objectives(self) -> tuple[str, ...]:
        """Of the job's objectives those that are predicted, and measured wherever a run has succeeded."""
        known = [name for name in self.job.objectives if np.isfinite(self.candidates.predicted[name]).any()]
        good = [run for run in self.runs if run.status == "ok"]
        measured = [name for name in known if any(np.isfinite(run.result(name)) for run in good)]
        return tuple(measured if good and measured else known or self.job.objectives[:1])

    def values(self, objectives: tuple[str, ...]) -> Floats:
        """Measured objectives (runs, objectives); NaN where a run failed or broke a constraint of the job."""
        blank = [np.nan] * len(objectives)
        rows = [blank if run.broken else [run.result(name) for name in objectives] for run in self.runs]
        return np.array(rows, float).reshape(-1, len(objectives))

    def belief(self) -> Belief:
        """What is expected of every candidate after all runs so far; says so where a prediction lost its trust."""
        rows = [run.row for run in self.runs]
        belief = self._outlook.after(self.objectives(), np.array(self._index, np.int64), rows)
        if self._basis and belief.basis != self._basis:
            self._note(
                f"After {len(self.runs)} runs, each predicted from the others, {belief.basis} did better than "
                f"{self._basis}; plans are chosen by that."
            )
        self._basis = belief.basis
        return belief

    def _next(self, belief: Belief, left: Bools, count: int) -> Ints:
        objectives = self.objectives()
        values = self.values(objectives)
        values = values[np.isfinite(values).all(axis=1)]
        measured = {name: values[:, i] for i, name in enumerate(objectives)}
        least = LEAST_CHANCE if len(values) else 0.0  # nothing has run yet: any run says something
        return acquire(
            belief.columns, measured, self._costs(belief.columns), count, self._rng,
            objectives=objectives, allowed=left, least_chance=least, draws=belief.draws,
        )  # fmt: skip

    def _costs(self, columns: Columns) -> Floats:
        """GPU-seconds of a run of each plan."""
        time = columns.get("iteration_time_s", self.candidates.predicted["iteration_time_s"])
        costs: Floats = self.job.cluster.num_gpus * (_START_S + _ITERATIONS * time)
        return costs

    def _run(self, index: int, columns: Columns, number: int) -> None:
        plan = self.candidates.record(index)
        self._say(f"run {self._count + 1}: {_words(plan)}")
        question = self.candidates.question(index)
        row = question | dict(self.launcher.run(self.job, question))
        row["status"] = row["status"] if row.get("status") in STATUSES else "failed"
        predicted = {name: float(v[index]) for name, v in columns.items() if name != "probability_fits"}
        fits = float(columns["probability_fits"][index])
        self._add(index, TunedRun(plan, row, number, predicted, fits, broken_bounds(self.job, row)))
        _keep(self._store, row, f"tune {self.launcher.name} {self.job.name}")
        self._say(f"run {self._count}: {_outcome(self.runs[-1])}")

    def _add(self, index: int, run: TunedRun) -> None:
        self.runs.append(run)
        self._index.append(index)

    def _remember(self, earlier: Earlier) -> None:
        """Plans of this job that the store has measured count as run, in round 0."""
        for index, row in zip(earlier.index, earlier.rows, strict=True):
            plan, broken = self.candidates.record(index), broken_bounds(self.job, row)
            self._add(index, TunedRun(plan, row, 0, {}, float("nan"), broken))
        if earlier.rows:
            self._note(
                f"{len(earlier.rows)} plans of this job were measured before (run 0) and are not run again."
            )
        if earlier.others:
            self._note(
                f"{earlier.others} runs of other jobs on this kind of cluster are known; predictions rest on them as "
                f"soon as {ENOUGH_TO_JUDGE} runs of this job are predicted better that way."
            )

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._say(text)

    @property
    def _count(self) -> int:
        return sum(run.round > 0 for run in self.runs)

    @property
    def _round(self) -> int:
        return max((run.round for run in self.runs), default=0)

    def _left(self) -> Bools:
        """Candidates that have not run and that physics can price."""
        left = np.ones(self.candidates.size, bool)
        left[self._index] = False
        for name in self.objectives():
            left &= np.isfinite(self.candidates.predicted[name])
        return left


def front(values: Floats) -> Ints:
    """Rows of (n, 1 or 2) that no other beats, by the first column; those with a NaN are never among them."""
    return front_order(values[:, 0], values[:, -1])


def volumes(values: Floats) -> list[float]:
    """Hypervolume after each run, as a share of the box between zero and the reference: 0 to 1, never falling.

    ``values`` (n, 1 or 2) are measured objectives, NaN where a run failed. The reference lies 10 % beyond the worst
    value measured in the whole tune; with one objective the volume is the length from the best run to it.
    """
    if not np.isfinite(values).all(axis=1).any():
        return [0.0] * len(values)
    reference = 1.1 * np.nanmax(values, axis=0)
    scaled = values / reference
    # one objective: the second one is zero everywhere, so that areas are lengths
    second = scaled[:, 1] if values.shape[1] > 1 else np.where(np.isfinite(scaled[:, 0]), 0.0, np.nan)
    return [hypervolume(scaled[:n, 0], second[:n], (1.0, 1.0)) for n in range(1, len(values) + 1)]


def _open(storage: str | None) -> Store | None:
    if storage is None:
        return None
    from jointopt.store import Store

    return Store(storage)


def _keep(store: Store | None, row: Mapping[str, Any], origin: str) -> None:
    """Stores a measurement; an interrupt meanwhile waits until the row is safe (adding it twice is adding it once)."""
    if store is None:
        return
    import pandas as pd

    frame = pd.DataFrame([dict(row)])
    try:
        store.add(frame, origin)
    except KeyboardInterrupt:
        store.add(frame, origin)
        raise


def _words(plan: Mapping[str, Any]) -> str:
    degrees = " ".join(f"{name}={plan[name]}" for name in ("dp", "tp", "pp", "micro_batch_size"))
    return f"{degrees} recompute={plan['recompute']} zero_stage={plan['zero_stage']}"


def _outcome(run: TunedRun) -> str:
    if run.status != "ok":
        return run.status
    if run.broken:
        return f"breaks {', '.join(run.broken)}"
    energy = run.result("energy_j")
    return f"{run.result('iteration_time_s'):.4g} s" + (f", {energy:.4g} J" if np.isfinite(energy) else "")
