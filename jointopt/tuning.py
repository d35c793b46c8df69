"""``tune``: choose the most promising plan, run it, learn from it, repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.candidates import Candidates, listed, searched
from jointopt.measure.launcher import Launcher, load_launcher
from jointopt.report.results import Tuned, TunedRun
from jointopt.schema import STATUSES, Bools, Columns, Floats, Ints
from jointopt.search.acquire import acquire
from jointopt.search.pareto import front_order, hypervolume
from jointopt.spec.job import Job
from jointopt.surrogate.local import Spread, adapted, fit_probability, plan_features

if TYPE_CHECKING:
    from jointopt.store import Store

Say = Callable[[str], None]
LEAST_CHANCE = 0.002  # a plan that betters the best by 1 % with a smaller probability is not worth a run
_ITERATIONS = 20  # of one run, and what starting it takes: what a plan costs to measure
_START_S = 120.0
_HALF_INTERVAL = 1.6448536269514722  # standard deviations of a 90 % interval


def tune(
    job: Job, launcher: Launcher | str, budget: int, *, seed: int = 0, storage: str | None = None,
    progress: Say | None = None, spread: Spread | None = None, **options: Any,
) -> Tuned:  # fmt: skip
    """Run at most ``budget`` plans of ``job``, each chosen by all runs before it, and return what was measured.

    ``launcher`` is one, or the name of one made with ``options``; ``spread`` is how far predictions are trusted. Every
    run is stored in ``storage`` (a database URL) before the next begins; an interrupt (SIGINT) loses the run in flight
    and returns the others. A plan is run at most once, failed or not. Raises LauncherError where nothing can be run,
    InfeasibleError where no plan is left.
    """
    job = replace(job, objectives=job.measured_objectives)
    chosen = load_launcher(launcher, **options) if isinstance(launcher, str) else launcher
    asked = chosen.candidates(job)
    candidates = searched(job) if asked is None else listed(asked)
    loop = _Loop(job, chosen, candidates, seed, storage, progress, spread or Spread())
    stopped = loop.spend(budget)
    objectives = loop.objectives()
    values = np.array([[run.result(name) for name in objectives] for run in loop.runs])
    values = values.reshape(-1, len(objectives))
    return Tuned(
        job=job, launcher=chosen.name, seed=seed, candidates=candidates.size, runs=tuple(loop.runs),
        front=tuple(front(values).tolist()), hypervolume=tuple(volumes(values)), stopped=stopped,
        objectives=objectives, storage=storage,
    )  # fmt: skip


class _Loop:
    """The runs so far, and what they say of the plans that are left."""

    def __init__(
        self, job: Job, launcher: Launcher, candidates: Candidates, seed: int, storage: str | None, say: Say | None,
        spread: Spread,
    ) -> None:  # fmt: skip
        self.job, self.launcher, self.candidates = job, launcher, candidates
        self.runs: list[TunedRun] = []
        self._index: list[int] = []  # of each run among the candidates
        self._spread = spread
        self._features = plan_features(candidates.plans)
        self._rng = np.random.default_rng(seed)
        self._store = _open(storage)
        self._say = say or (lambda text: None)

    def spend(self, budget: int) -> str:
        """Run plans until a reason to stop, which is returned."""
        try:
            while len(self.runs) < budget:
                left = self._left()
                if not left.any():
                    return "exhausted"
                outlook = self.outlook()
                best = self._next(outlook, left)
                if not len(best):
                    return "converged"
                self._run(int(best[0]), outlook)
        except KeyboardInterrupt:
            return "interrupted"
        return "budget"

    def objectives(self) -> tuple[str, ...]:
        """Of the job's objectives those that are predicted, and measured wherever a run has succeeded."""
        known = [name for name in self.job.objectives if np.isfinite(self.candidates.predicted[name]).any()]
        good = [run for run in self.runs if run.status == "ok"]
        measured = [name for name in known if any(np.isfinite(run.result(name)) for run in good)]
        return tuple(measured if good and measured else known or self.job.objectives[:1])

    def outlook(self) -> Columns:
        """Objectives of every candidate with 90 % intervals, and how probably it fits, after all runs so far."""
        out: Columns = {}
        for name in self.objectives():
            index, measured = self._measured(name)
            mean, deviation = adapted(
                self._features, np.log(self.candidates.predicted[name]), index, np.log(measured), self._spread
            )
            out[name] = np.exp(mean)
            out[f"{name}_low"] = np.exp(mean - _HALF_INTERVAL * deviation)
            out[f"{name}_high"] = np.exp(mean + _HALF_INTERVAL * deviation)
        out["probability_fits"] = self._fits()
        return out

    def _next(self, outlook: Columns, left: Bools) -> Ints:
        objectives = self.objectives()
        good = [run for run in self.runs if all(np.isfinite(run.result(name)) for name in objectives)]
        measured = {name: np.array([run.result(name) for run in good], float) for name in objectives}
        least = LEAST_CHANCE if good else 0.0  # nothing has run yet: any run says something
        return acquire(
            outlook, measured, self._costs(outlook), 1, self._rng,
            objectives=objectives, allowed=left, least_chance=least,
        )  # fmt: skip

    def _costs(self, outlook: Columns) -> Floats:
        """GPU-seconds of a run of each plan."""
        time = outlook.get("iteration_time_s", self.candidates.predicted["iteration_time_s"])
        costs: Floats = self.job.cluster.num_gpus * (_START_S + _ITERATIONS * time)
        return costs

    def _run(self, index: int, outlook: Columns) -> None:
        plan = self.candidates.record(index)
        self._say(f"run {len(self.runs) + 1}: {_words(plan)}")
        question = self.candidates.question(index)
        row = question | dict(self.launcher.run(self.job, question))
        row["status"] = row["status"] if row.get("status") in STATUSES else "failed"
        predicted = {name: float(v[index]) for name, v in outlook.items() if name != "probability_fits"}
        fits = float(outlook["probability_fits"][index])
        self.runs.append(TunedRun(plan, row, len(self.runs) + 1, predicted, fits))
        self._index.append(index)
        _keep(self._store, row, f"tune {self.launcher.name} {self.job.name}")
        self._say(f"run {len(self.runs)}: {_outcome(self.runs[-1])}")

    def _left(self) -> Bools:
        """Candidates that have not run and that physics can price."""
        left = np.ones(self.candidates.size, bool)
        left[self._index] = False
        for name in self.objectives():
            left &= np.isfinite(self.candidates.predicted[name])
        return left

    def _measured(self, name: str) -> tuple[Ints, Floats]:
        values = np.array([run.result(name) for run in self.runs], float)
        good = np.flatnonzero(np.isfinite(values))
        return np.array(self._index, np.int64)[good], values[good]

    def _fits(self) -> Floats:
        """What ran and what ran out of memory decide; other failures say nothing about memory."""
        told = [i for i, run in enumerate(self.runs) if run.status in ("ok", "oom")]
        fitted = np.array([self.runs[i].status == "ok" for i in told], float)
        return fit_probability(self.candidates.log_load, np.array(self._index, np.int64)[told], fitted)


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
    energy = run.result("energy_j")
    return f"{run.result('iteration_time_s'):.4g} s" + (f", {energy:.4g} J" if np.isfinite(energy) else "")
