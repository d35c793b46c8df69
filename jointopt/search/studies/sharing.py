"""One worker of a search that many processes share: claim plans, evaluate them, write results, until all are done.

Where no plans wait, new ones are bred as in the search in one process, with parents from everything that is finished by
then. A lone worker that is killed and started again once its lease is over goes on as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.trial import TrialState

from jointopt.core.errors import JointOptError, LauncherError, OutOfMemoryError, RunFailedError
from jointopt.core.schema import Columns, Ints
from jointopt.runs.outages import patience
from jointopt.search.breeding import POPULATION, Seen, breed, elite, first, half_local, unseen
from jointopt.search.genome import Genome
from jointopt.search.pareto import first_impossible, front_of, take
from jointopt.search.problem import Problem, Progress
from jointopt.search.studies.queue import ERROR, UNFINISHED, Queue
from jointopt.search.studies.storage import study_errors
from jointopt.search.studies.trials import CONSTRAINTS, GENES, is_evaluated, searched, trials_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

PAUSE_S = 0.2  # between looks at a study where others still work
FAILURES_IN_A_ROW = 5  # plans; after so many it is not they that are to blame


@dataclass(frozen=True)
class Worked:
    """The work of one worker, and the finished plans (described) that the study had when it left."""

    evaluated: int
    failed: int
    plans: Columns


def share(
    problem: Problem, url: str, *, name: str, identity: Mapping[str, Any], trials: int, seed: int = 0, batch: int = 1,
    start: Columns | None = None, lease_s: float = 60.0, note: str = "", progress: Progress | None = None,
    at_once: int = 1, ahead: int = 0, out_with: Callable[[Ints], Ints] = np.asarray,
) -> Worked:  # fmt: skip
    """Works on the shared study ``name`` until it has ``trials`` finished plans, by all goals of the problem.

    ``identity`` (JSON values) must be equal for all workers; ``start``: plans to begin with; ``note``: text above the
    front; ``at_once``: batches that are evaluated at a time, by threads; ``ahead``: batches that are held besides, to
    go on with while the database is away; ``out_with``: layouts that surely run out of
    memory, since these did. A worker that is silent for ``lease_s`` loses
    its plans to others. Raises UsageError for a storage that cannot be shared or a study of another search,
    LauncherError where one plan after the other cannot be evaluated.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with study_errors(url):
        queue = Queue(url, name, identity, lease_s=lease_s, goals=problem.goals)
        worker = _Worker(problem, queue, trials, seed, batch, start, progress, at_once, ahead, out_with)
        with patience(math.inf):  # others may wait for what it holds
            worker.run()
        finished = [trial for trial in worker.queue.trials() if is_evaluated(trial)]
        plans = problem.describe(worker.plans(finished))
        if finished:
            worker.queue.show(plans, note, [trial.number for trial in finished])
    return Worked(worker.evaluated, worker.failed, plans)


@dataclass
class _Batches:
    """Claimed batches: ``running`` in the ``pool``, and ``held``, which are to begin after these."""

    pool: ThreadPoolExecutor
    evaluated: Callable[[list[FrozenTrial]], Columns]
    running: dict[Future[Columns], list[FrozenTrial]] = field(default_factory=dict)
    held: list[list[FrozenTrial]] = field(default_factory=list)

    def begin_held(self) -> None:
        """Begin the oldest batch that is held, if any is."""
        if self.held:
            claimed = self.held.pop(0)
            self.running[self.pool.submit(self.evaluated, claimed)] = claimed

    def numbers(self) -> set[int]:
        """Numbers of all their trials."""
        return {trial.number for trials in (*self.running.values(), *self.held) for trial in trials}


@dataclass
class _Worker:
    """A problem, a queue, and the plans that the study has seen."""

    problem: Problem
    queue: Queue
    trials: int
    seed: int = 0
    batch: int = 1
    start: Columns | None = None
    progress: Progress | None = None
    at_once: int = 1
    ahead: int = 0
    out_with: Callable[[Ints], Ints] = np.asarray
    evaluated: int = 0
    failed: int = 0
    _failed_in_a_row: int = 0
    _seen: Seen = field(default_factory=Seen)
    _marked: int = 0  # trials whose plans are in _seen

    def __post_init__(self) -> None:
        self._genome = Genome.of(self.problem)
        self._distributions: dict[str, BaseDistribution] = searched(
            self.problem.layouts | {"clock_mhz": self.problem.clocks_mhz, "slack": np.array([0.0, 1.0])}
        )

    def run(self) -> None:
        """Works until the study has its trials and all of them are finished, whoever finished them."""
        batches = _Batches(ThreadPoolExecutor(self.at_once), self._evaluated)
        try:
            with self.queue.held():
                while self._begin(batches) or self._unfinished():
                    if not batches.running:
                        time.sleep(PAUSE_S)
                    for future in wait(batches.running, return_when=FIRST_COMPLETED).done if batches.running else ():
                        claimed = batches.running.pop(future)
                        if isinstance(future.exception(), RunFailedError | OutOfMemoryError | None):
                            batches.begin_held()  # before the database is told, which may be away
                        self._end(claimed, future.result)
        finally:
            batches.pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, batches: _Batches) -> bool:
        """Claim batches as long as there is room, and begin those that may run; whether any is on its way."""
        while len(batches.running) + len(batches.held) < self.at_once + self.ahead:
            if not (claimed := self.queue.claim(self.batch, self._breed, batches.numbers())):
                break
            batches.held.append(claimed)
            if len(batches.running) < self.at_once:
                batches.begin_held()
        if batches.held and not batches.running:
            batches.begin_held()
        return bool(batches.running)

    def _unfinished(self) -> bool:
        return any(trial.state in UNFINISHED for trial in self.queue.trials())

    def _work(self, claimed: list[FrozenTrial]) -> None:
        self._end(claimed, lambda: self._evaluated(claimed))

    def _end(self, claimed: list[FrozenTrial], evaluated: Callable[[], Columns]) -> None:
        """Keep what the evaluation of claimed plans has come to."""
        try:
            plans = evaluated()
        except JointOptError:
            raise
        except Exception as error:
            self._fail(claimed, error)
            return
        self.evaluated += self.queue.finish([trial.number for trial in claimed], plans)
        self._failed_in_a_row = 0
        if self.progress is not None:
            self.progress(self.evaluated, self.trials, 0)

    def _evaluated(self, claimed: list[FrozenTrial]) -> Columns:
        bare = self._bare(claimed)
        if np.isin(bare["layout_index"], list(self._seen.closed)).any():
            raise OutOfMemoryError("not evaluated, since its layout, or one that needs no more memory, ran out of it")
        plans = self.problem.plans(bare["layout_index"], bare["clock_index"], bare["slack"])
        for name in self.problem.goals:
            if (found := first_impossible(name, plans[name])) is not None:
                row, expected = found
                raise ValueError(f"{name} must be {expected}; got {plans[name][row]:g}")
        return plans

    def _fail(self, claimed: list[FrozenTrial], error: Exception) -> None:
        """One plan that cannot be evaluated must not take the others of its batch along."""
        if len(claimed) > 1:
            for trial in claimed:
                self._work([trial])
            return
        if isinstance(error, OutOfMemoryError):
            self._seen.closed |= set(self.out_with(self._bare(claimed)["layout_index"]).tolist())
        self.failed += self.queue.fail(claimed[0].number, f"{type(error).__name__}: {error}")
        self._failed_in_a_row += not isinstance(error, RunFailedError)
        if self._failed_in_a_row >= FAILURES_IN_A_ROW:
            raise LauncherError(
                f"{FAILURES_IN_A_ROW} plans in a row could not be evaluated, the last one because of "
                f"{type(error).__name__}: {error}; fix what evaluates them, and start the worker again."
            ) from error

    def _breed(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """The next running trials; none where the study has its trials, or nothing unseen is within reach."""
        count = len(trials)
        size = min(self.batch, self.trials - count)
        if size <= 0:
            return []
        new = self._bare(trials[self._marked :])
        self._seen.add(new["layout_index"], new["stage_clock_mhz"])
        self._marked = count
        self._seen.closed |= self._out_of_memory(trials)
        rng = np.random.default_rng((self.seed, count))
        genes = self._genes(trials, size, rng)
        layout, clock, slack, _ = unseen(self._genome, genes, Seen(set(self._seen.keys), self._seen.closed), rng)
        chosen = rng.permutation(len(layout))[:size]
        bred = {"layout_index": layout[chosen], "clock_index": clock[chosen], "slack": slack[chosen]}
        return self._running(bred) if len(chosen) else []

    def _out_of_memory(self, trials: list[FrozenTrial]) -> set[int]:
        """Layouts that any worker ran out of memory, and those that hold as much: at every clock."""
        out = [trial for trial in trials if str(trial.user_attrs.get(ERROR)).startswith(OutOfMemoryError.__name__)]
        found = np.unique(self._bare(out)["layout_index"]) if out else np.empty(0, np.int64)
        return set(self.out_with(found).tolist()) if len(found) else set()

    def _genes(self, trials: list[FrozenTrial], size: int, rng: np.random.Generator) -> Ints:
        """Genes to choose the next ``size`` plans from: at first those that all workers begin with, then children."""
        count = len(trials)
        if count < POPULATION:
            start = first(self._genome, POPULATION, self.start, np.random.default_rng(self.seed))
            return start[count : count + size]
        plans = self.plans([trial for trial in trials if is_evaluated(trial)])
        if not len(plans["slack"]):
            return self._genome.random(POPULATION, rng)
        goals = self.problem.goals
        children = breed(self._genome, take(plans, elite(plans, POPULATION, goals)), POPULATION, rng)
        done, front = count / self.trials, front_of(plans, goals)
        return half_local(self._genome, plans, front, self._seen, children, done, rng)

    def _running(self, genes: Columns) -> list[FrozenTrial]:
        stages = self.problem.decode_clocks(genes["layout_index"], genes["clock_index"], genes["slack"])
        plans = self.problem.describe(genes | {"stage_clock_mhz": stages})
        trials = trials_of(plans, self._distributions, TrialState.RUNNING)
        rows = zip(*(values.tolist() for values in genes.values()), strict=True)
        for trial, row in zip(trials, rows, strict=True):
            trial.system_attrs[GENES] = list(row)
        return trials

    def _bare(self, trials: list[FrozenTrial]) -> Columns:
        """The plans of these trials without their results."""
        genes = np.array([trial.system_attrs[GENES] for trial in trials], dtype=float).reshape(-1, 3)
        layout, clock, slack = genes[:, 0].astype(np.int64), genes[:, 1].astype(np.int64), genes[:, 2]
        stages = self.problem.decode_clocks(layout, clock, slack)
        return {"layout_index": layout, "clock_index": clock, "slack": slack, "stage_clock_mhz": stages}

    def plans(self, finished: list[FrozenTrial]) -> Columns:
        """The plans of these trials with goals and violation."""
        plans = self._bare(finished)
        for number, name in enumerate(self.problem.goals):
            plans[name] = np.array([trial.values[number] for trial in finished], dtype=float)
        violation = [trial.system_attrs[CONSTRAINTS][0] for trial in finished]
        return plans | {"violation": np.array(violation, dtype=float)}


def space_hash(problem: Problem) -> str:
    """A hash of the layouts and clocks, in their order, that the genes of a shared study number."""
    columns = b"".join(name.encode() + values.tobytes() for name, values in sorted(problem.layouts.items()))
    return hashlib.sha256(columns + problem.clocks_mhz.tobytes()).hexdigest()[:16]
