"""The database side of a study that several workers share: every plan is a trial of one worker at a time.

A worker holds trials for as long as its lease runs, which it renews while it lives; then others take them over. Trials
are taken in turns (`Storage.exclusive_turn`), so that each worker sees what others have taken; the rest is Optuna's.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from jointopt.core.errors import JointOptError, LauncherError, OutageError, OutOfMemoryError, RunFailedError, UsageError
from jointopt.core.schema import Columns, Ints
from jointopt.core.secrets import masked
from jointopt.runs.database import patience
from jointopt.search.breeding import (
    POPULATION,
    Genome,
    Seen,
    breed,
    decode_unseen,
    elite,
    mix_in_local_moves,
    starting_genes,
)
from jointopt.search.pareto import OBJECTIVES, first_impossible, front_of, take
from jointopt.search.problem import Problem, Progress
from jointopt.search.studies.display import show
from jointopt.search.studies.storage import Storage, made_study, on_studies, study_errors
from jointopt.search.studies.trials import (
    CONSTRAINTS,
    GENES,
    WORKER,
    is_evaluated,
    is_shared,
    outcome_of,
    running_trials,
    varying_distributions,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


LEASE = "jointopt:lease:"  # attributes of the study, by worker: until when its trials are its own, see `Storage.now`
ERROR = "error"  # attribute of a trial that ended without a result: type and message of what was raised
_LEAVE_S = 5.0  # that a worker waits for the database when it leaves
_LONGEST_S = 3600.0  # no worker's lease is longer
UNFINISHED = (TrialState.WAITING, TrialState.RUNNING)


class Queue:
    """One worker's view of a shared study that minimises ``goals``.

    ``lease_s``: how long a worker that does not renew its lease keeps its trials.
    """

    def __init__(
        self, url: str, name: str, identity: Mapping[str, Any], *, lease_s: float = 60.0,
        goals: tuple[str, ...] = OBJECTIVES,
    ) -> None:  # fmt: skip
        self.name, self.lease_s, self.goals, self.url = name, lease_s, goals, url
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        # when the lease was renewed, and when it last was after it had run out
        self._renewed_s, self._back_s = time.monotonic(), -math.inf
        self._open(identity)

    @on_studies
    def _open(self, identity: Mapping[str, Any]) -> None:
        """Join the study of this name, made where it is missing; UsageError where it is of another search."""
        self._storage = Storage(self.url)
        if self._storage.dialect not in ("sqlite", "postgresql"):
            raise UsageError(
                f"Workers cannot share a study in {masked(self.url)!r}; expected a PostgreSQL URL such as "
                f"postgresql+psycopg://user@host/name, or sqlite:///FILE for workers on one machine."
            )
        with self._storage.exclusive_turn(self.name):
            try:
                self.study = optuna.load_study(study_name=self.name, storage=self._storage.rdb)
            except KeyError:
                self.study = made_study(self._storage.rdb, self.name, self.goals)
                for key, value in identity.items():
                    self.study.set_user_attr(key, value)
            same = dict(identity).items() <= self.study.user_attrs.items()
            if not same or len(self.study.directions) != len(self.goals):
                raise UsageError(
                    f"The study {self.name!r} is of another search (another version of jointopt, or another way "
                    f"to evaluate); give the workers a name of their own with --study."
                )
            self._study_id = self._storage.rdb.get_study_id_from_name(self.name)
            self._renew(self._storage)

    @on_studies
    def trials(self) -> list[FrozenTrial]:
        """The workers' trials by number, and none that others added with Optuna.

        Of the finished ones only new ones are read from the database.
        """
        return [trial for trial in self.study.get_trials(deepcopy=False) if is_shared(trial)]

    @on_studies
    def claim(
        self, count: int, breed: Callable[[list[FrozenTrial]], list[FrozenTrial]], begun: Collection[int] = ()
    ) -> list[FrozenTrial]:
        """Take at most ``count`` trials to evaluate: those of lost workers, else new ones by ``breed(trials)``.

        ``begun``: numbers of trials that this worker evaluates already.
        """
        with self._storage.exclusive_turn(self.name):
            trials = self.trials()
            if free := [trial for trial in self._free(trials) if trial.number not in begun][:count]:
                for trial in free:
                    trial_id = self._trial_id(trial.number)
                    self._storage.rdb.set_trial_state_values(trial_id, TrialState.RUNNING)
                    self._storage.rdb.set_trial_user_attr(trial_id, WORKER, self.worker)
                return free
            bred = breed(trials)[:count]
            for trial in bred:
                trial.user_attrs[WORKER] = self.worker
            self.study.add_trials(bred)
            return self.trials()[len(trials) :]

    def _free(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Unfinished trials that this worker may evaluate: its own, those that wait, and those whose lease is over."""
        unfinished = [trial for trial in trials if trial.state in UNFINISHED]
        if all(trial.user_attrs[WORKER] == self.worker for trial in unfinished):
            return unfinished
        if time.monotonic() - self._renewed_s > self.lease_s:
            self._renew(self._storage)
        # a database that was away has heard of no worker: those that live have a lease's time to be heard of
        judges = time.monotonic() - self._back_s > self.lease_s
        known, now = self._storage.rdb.get_study_system_attrs(self._study_id), self._storage.now()
        latest = now + max(self.lease_s, _LONGEST_S)  # what ends later is of a clock before the machine began anew
        return [
            trial
            for trial in unfinished
            if trial.state == TrialState.WAITING
            or trial.user_attrs[WORKER] == self.worker  # claimed as a connection was cut
            or (judges and not now <= known.get(LEASE + trial.user_attrs[WORKER], 0.0) <= latest)
        ]

    @on_studies
    def finish(self, numbers: Sequence[int], plans: Columns | None, error: str = "") -> int:
        """Finish claimed trials with a row of ``plans`` each, or with an ``error``; how many were still its own."""
        done, storage = 0, self._storage.rdb
        with self._storage.one_transaction():
            for row, number in enumerate(numbers):
                trial_id = self._trial_id(number)
                if storage.get_trial_user_attrs(trial_id)[WORKER] != self.worker:
                    continue
                came: dict[str, Any] = {"user_attrs": {ERROR: error}, "system_attrs": {}, "values": None}
                if plans is not None:
                    came = outcome_of(plans, row, self.goals)
                state = TrialState.FAIL if plans is None else TrialState.COMPLETE
                with suppress(UpdateFinishedTrialError):  # taken over and finished between looking and writing
                    for key, value in came["user_attrs"].items():
                        storage.set_trial_user_attr(trial_id, key, value)
                    for key, value in came["system_attrs"].items():
                        storage.set_trial_system_attr(trial_id, key, value)
                    done += storage.set_trial_state_values(trial_id, state, came["values"])
        return done

    def _trial_id(self, number: int) -> int:
        return self._storage.rdb.get_trial_id_from_study_id_trial_number(self._study_id, number)

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Renew this worker's lease in the background, and give its unfinished trials back at the end."""
        stop = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            with patience(_LEAVE_S), suppress(OutageError):  # its lease ends by itself
                self._give_back()

    @on_studies
    def _give_back(self) -> None:
        with self._storage.exclusive_turn(self.name):
            for trial in self.trials():
                if trial.state == TrialState.RUNNING and trial.user_attrs[WORKER] == self.worker:
                    self._storage.rdb.set_trial_state_values(self._trial_id(trial.number), TrialState.WAITING)

    def _renew_until(self, stop: threading.Event) -> None:
        storage = None
        while not stop.wait(self.lease_s / 4.0):
            try:
                storage = storage or Storage(self.url)
                with storage.one_transaction():
                    self._renew(storage)
            except (SQLAlchemyError, sqlite3.Error, OSError, optuna.exceptions.OptunaError):
                continue  # it may be back before the lease ends; if not, others take over

    def _renew(self, storage: Storage) -> None:
        storage.rdb.set_study_system_attr(self._study_id, LEASE + self.worker, storage.now() + self.lease_s)
        now_s = time.monotonic()
        if now_s - self._renewed_s > self.lease_s:
            self._back_s = now_s
        self._renewed_s = now_s

    @on_studies
    def show(self, plans: Columns, note: str, numbers: Sequence[int]) -> None:
        """Sets what the dashboard shows of the study: its note, and these finished plans."""
        with self._storage.exclusive_turn(self.name):
            show(self._storage.rdb, self.name, plans, note, numbers, goals=self.goals)


# One worker of a search that many processes share: claim plans, evaluate them, write results, until all are done.


PAUSE_S = 0.2  # between looks at a study where others still work
FAILURES_IN_A_ROW = 5  # plans; after so many it is not they that are to blame


@dataclass(frozen=True)
class WorkDone:
    """The work of one worker, and all finished plans of the study."""

    evaluated: int  # plans of this worker
    failed: int  # plans of this worker
    plans: Columns  # as of `Problem.describe`


def work_on_study(
    problem: Problem, url: str, *, name: str, identity: Mapping[str, Any], trials: int, seed: int = 0, batch: int = 1,
    start: Columns | None = None, lease_s: float = 60.0, note: str = "", progress: Progress | None = None,
    at_once: int = 1, ahead: int = 0, also_out_of_memory: Callable[[Ints], Ints] = np.asarray,
) -> WorkDone:  # fmt: skip
    """Works on the shared study ``name`` until it has ``trials`` finished plans, by all goals of the problem.

    ``identity`` (JSON values) must be equal for all workers; ``start``: plans to begin with; ``note``: text above the
    front; ``batch``: plans evaluated in one call; ``at_once``: batches that are evaluated at a time, by threads;
    ``ahead``: batches that are claimed besides, to go on with while the database is away;
    ``also_out_of_memory(layout_index)``: layouts that need as much memory as these, which ran out of it. A worker that
    does not renew its lease for ``lease_s`` loses its plans to others. Raises UsageError for a storage that cannot be
    shared or a study of another search, LauncherError where one plan after the other cannot be evaluated.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with study_errors(url):
        queue = Queue(url, name, identity, lease_s=lease_s, goals=problem.goals)
        worker = _Worker(problem, queue, trials, seed, batch, start, progress, at_once, ahead, also_out_of_memory)
        with patience(math.inf):  # others may wait for what it holds
            worker.run()
        finished = [trial for trial in worker.queue.trials() if is_evaluated(trial)]
        plans = problem.describe(worker.plans(finished))
        if finished:
            worker.queue.show(plans, note, [trial.number for trial in finished])
    return WorkDone(worker.evaluated, worker.failed, plans)


@dataclass
class _Worker:
    """One worker's loop: the batches that its pool evaluates, those that wait for it, and the plans seen so far."""

    problem: Problem
    queue: Queue
    trials: int
    seed: int = 0
    batch: int = 1
    start: Columns | None = None
    progress: Progress | None = None
    at_once: int = 1
    ahead: int = 0
    also_out_of_memory: Callable[[Ints], Ints] = np.asarray
    evaluated: int = 0
    failed: int = 0
    _failed_in_a_row: int = 0
    _seen: Seen = field(default_factory=Seen)
    _marked: int = 0  # trials whose plans are in _seen
    _running: dict[Future[Columns], list[FrozenTrial]] = field(default_factory=dict)
    _waiting: list[list[FrozenTrial]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._genome = Genome.of(self.problem)
        self._distributions: dict[str, BaseDistribution] = varying_distributions(
            self.problem.layouts | {"clock_mhz": self.problem.clocks_mhz, "slack": np.array([0.0, 1.0])}
        )
        self._pool = ThreadPoolExecutor(self.at_once)

    def run(self) -> None:
        """Works until the study has its trials and all of them are finished, whoever finished them."""
        try:
            with self.queue.lease():
                while self._claim() or any(trial.state in UNFINISHED for trial in self.queue.trials()):
                    if not self._running:
                        time.sleep(PAUSE_S)
                    for future in wait(self._running, return_when=FIRST_COMPLETED).done if self._running else ():
                        claimed = self._running.pop(future)
                        if isinstance(future.exception(), RunFailedError | OutOfMemoryError | None):
                            self._begin_waiting()  # before the database is told, which may be away
                        self._work(claimed, future.result)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _claim(self) -> bool:
        """Claim batches while there is room, and begin those that the pool has room for; whether any is evaluated."""
        while len(self._running) + len(self._waiting) < self.at_once + self.ahead:
            begun = {trial.number for trials in (*self._running.values(), *self._waiting) for trial in trials}
            if not (claimed := self.queue.claim(self.batch, self._breed, begun)):
                break
            self._waiting.append(claimed)
        while self._waiting and len(self._running) < self.at_once:  # once the next ones are in hand
            self._begin_waiting()
        return bool(self._running)

    def _begin_waiting(self) -> None:
        """Begin the oldest batch that waits, if any does."""
        if self._waiting:
            claimed = self._waiting.pop(0)
            self._running[self._pool.submit(self._evaluated, claimed)] = claimed

    def _work(self, claimed: list[FrozenTrial], evaluated: Callable[[], Columns] | None = None) -> None:
        """Finish claimed trials with the plans that ``evaluated()`` returns, by default evaluated here and now."""
        try:
            plans = self._evaluated(claimed) if evaluated is None else evaluated()
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
        """The plans of claimed trials, evaluated; ValueError for a goal that no plan can have."""
        bare = self._without_results(claimed)
        if np.isin(bare["layout_index"], list(self._seen.closed)).any():
            raise OutOfMemoryError("not evaluated, since its layout, or one that needs no more memory, ran out of it")
        plans = self.problem.evaluate_genes(bare["layout_index"], bare["clock_index"], bare["slack"])
        for name in self.problem.goals:
            if (found := first_impossible(name, plans[name])) is not None:
                row, expected = found
                raise ValueError(f"{name} must be {expected}; got {plans[name][row]:g}")
        return plans

    def _fail(self, claimed: list[FrozenTrial], error: Exception) -> None:
        """Finish trials whose evaluation failed: of a batch each alone, so that only plans at fault fail."""
        if len(claimed) > 1:
            for trial in claimed:
                self._work([trial])
            return
        if isinstance(error, OutOfMemoryError):
            self._seen.closed |= set(self.also_out_of_memory(self._without_results(claimed)["layout_index"]).tolist())
        self.failed += self.queue.finish([claimed[0].number], None, f"{type(error).__name__}: {error}")
        self._failed_in_a_row += not isinstance(error, RunFailedError)
        if self._failed_in_a_row >= FAILURES_IN_A_ROW:
            raise LauncherError(
                f"{FAILURES_IN_A_ROW} plans in a row could not be evaluated, the last one because of "
                f"{type(error).__name__}: {error}; fix what evaluates them, and start the worker again."
            ) from error

    def _breed(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """New trials to evaluate; none where the study has its trials, or nothing unseen is within reach."""
        count, problem = len(trials), self.problem
        size = min(self.batch, self.trials - count)
        if size <= 0:
            return []
        new = self._without_results(trials[self._marked :])
        self._seen.add(new["layout_index"], new["stage_clock_mhz"])
        self._marked = count
        # layouts that any worker ran out of memory, and those that hold as much: at every clock
        out = [trial for trial in trials if str(trial.user_attrs.get(ERROR)).startswith(OutOfMemoryError.__name__)]
        if out:
            ran_out = np.unique(self._without_results(out)["layout_index"])
            self._seen.closed |= set(self.also_out_of_memory(ran_out).tolist())
        rng = np.random.default_rng((self.seed, count))
        genes = self._genes(trials, size, rng)
        bred = decode_unseen(self._genome, genes, Seen(set(self._seen.keys), self._seen.closed), rng)
        chosen = rng.permutation(len(bred[0]))[:size]
        layout, clock, slack, stages = (values[chosen] for values in bred)
        plans = problem.describe({
            "layout_index": layout, "clock_index": clock, "slack": slack, "stage_clock_mhz": stages
        })  # fmt: skip
        running = running_trials(plans, self._distributions)
        for trial, *row in zip(running, layout.tolist(), clock.tolist(), slack.tolist(), strict=True):
            trial.system_attrs[GENES] = row
        return running

    def _genes(self, trials: list[FrozenTrial], size: int, rng: np.random.Generator) -> Ints:
        """Genes to take the next ``size`` plans from: the first `POPULATION`, which the seed decides, then children."""
        count = len(trials)
        if count < POPULATION:
            start = starting_genes(self._genome, POPULATION, self.start, np.random.default_rng(self.seed))
            return start[count : count + size]
        plans = self.plans([trial for trial in trials if is_evaluated(trial)])
        if not len(plans["slack"]):
            return self._genome.random(POPULATION, rng)
        goals = self.problem.goals
        children = breed(self._genome, take(plans, elite(plans, POPULATION, goals)), POPULATION, rng)
        done, front = count / self.trials, front_of(plans, goals)
        return mix_in_local_moves(self._genome, plans, front, self._seen, children, done, rng)

    def _without_results(self, trials: list[FrozenTrial]) -> Columns:
        """The plans of these trials without their results."""
        genes = np.array([trial.system_attrs[GENES] for trial in trials], dtype=float).reshape(-1, 3)
        layout, clock, slack = genes[:, 0].astype(np.int64), genes[:, 1].astype(np.int64), genes[:, 2]
        stages = self.problem.decode_clocks(layout, clock, slack)
        return {"layout_index": layout, "clock_index": clock, "slack": slack, "stage_clock_mhz": stages}

    def plans(self, finished: list[FrozenTrial]) -> Columns:
        """The plans of these trials with goals and violation."""
        plans = self._without_results(finished)
        for number, name in enumerate(self.problem.goals):
            plans[name] = np.array([trial.values[number] for trial in finished], dtype=float)
        violation = [trial.system_attrs[CONSTRAINTS][0] for trial in finished]
        return plans | {"violation": np.array(violation, dtype=float)}


def space_hash(problem: Problem) -> str:
    """A hash of the layouts and clocks, in their order, that the genes of a shared study number."""
    columns = b"".join(name.encode() + values.tobytes() for name, values in sorted(problem.layouts.items()))
    return hashlib.sha256(columns + problem.clocks_mhz.tobytes()).hexdigest()[:16]
