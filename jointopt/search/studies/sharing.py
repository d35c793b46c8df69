"""One worker of a search that many processes share: claim plans, evaluate them, tell, and breed where none wait.

Breeding is that of the search in one process, with parents from everything that is finished by then. A lone worker
that is killed and started again once its lease is over goes on as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna

from jointopt.core.errors import JointOptError, LauncherError
from jointopt.core.schema import Columns, Floats, Ints
from jointopt.runs.database import database_errors
from jointopt.search.breeding import POPULATION, Seen, breed, elite, first, half_local, unseen
from jointopt.search.genome import Genome
from jointopt.search.pareto import OBJECTIVES, front_of, take
from jointopt.search.problem import Problem, Progress
from jointopt.search.studies.bulk import (
    TrialRows,
    constraint_attributes,
    distributions_of,
    parameters,
    result_attributes,
)
from jointopt.search.studies.display import shown
from jointopt.search.studies.queue import PLAN_KEY, Finished, Genes, Queue

if TYPE_CHECKING:
    import sqlalchemy as sa

PAUSE_S = 0.2  # between looks at a queue that is empty while others still work
FAILURES_IN_A_ROW = 5  # plans; after so many it is not they that are to blame


@dataclass(frozen=True)
class Worked:
    """What a worker did, and what the study knew when it left: its finished plans, described."""

    evaluated: int
    failed: int
    plans: Columns
    trial_ids: list[int]


def share(
    problem: Problem, url: str, *, name: str, identity: Mapping[str, Any], trials: int, seed: int = 0, batch: int = 1,
    start: Columns | None = None, lease_s: float = 60.0, note: str = "", progress: Progress | None = None,
) -> Worked:  # fmt: skip
    """Works on the shared study ``name`` until it has ``trials`` finished plans, whoever finished them.

    ``identity`` (JSON values) must be equal for all workers. ``start``: plans to begin the study with. What the
    dashboard shows of it is brought up to date at the end, below the ``note``. A worker that is silent for ``lease_s``
    loses its plans to others. Raises UsageError for a storage that cannot be shared or a study of another search,
    LauncherError where one plan after the other cannot be evaluated.
    """
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        queue = Queue(url, name, identity, lease_s=lease_s)
        worked = _Worker(problem, queue, trials, seed, batch, start, progress).run()
        if len(worked.trial_ids):
            queue.show(dict(shown(worked.plans, note, worked.trial_ids)))
    return worked


@dataclass
class _Worker:
    """A problem, a queue, and a mirror of all that the study holds."""

    problem: Problem
    queue: Queue
    trials: int
    seed: int = 0
    batch: int = 1
    start: Columns | None = None
    progress: Progress | None = None
    _genome: Genome = field(init=False)
    _seen: Seen = field(init=False, default_factory=Seen)
    _genes: dict[int, Genes] = field(init=False, default_factory=dict)
    _finished: dict[int, Finished] = field(init=False, default_factory=dict)
    _done: int = field(init=False, default=0)
    _failed: int = field(init=False, default=0)
    _failures: int = field(init=False, default=0)  # in a row

    def __post_init__(self) -> None:
        self._genome = Genome.of(self.problem)

    def run(self) -> Worked:
        """Works until the study has its trials and all of them are finished, whoever finished them."""
        with self.queue.held():
            while self._step():
                pass
        with self.queue.reading() as connection:
            self._look(connection)
        trials = sorted(self._finished)
        return Worked(self._done, self._failed, self.problem.describe(self._plans(trials)), trials)

    def _step(self) -> bool:
        """One batch, or one look for more to do; False where nothing is left to do for anybody."""
        claimed = self.queue.claim(self.batch)
        if claimed:
            self._work(claimed)
        elif not self.queue.extend(self._breed):
            if not self.queue.unfinished():
                return False
            time.sleep(PAUSE_S)
        return True

    def _work(self, claimed: dict[int, Genes]) -> None:
        try:
            plans = self._evaluated(list(claimed.values()))
        except JointOptError:
            raise
        except Exception as error:
            self._fail(claimed, error)
            return
        rows = TrialRows({}, {}, result_attributes(plans), constraint_attributes(plans["violation"]),
                         tuple(plans[name].tolist() for name in OBJECTIVES))  # fmt: skip
        self._done += self.queue.tell(list(claimed), rows)
        self._failures = 0
        if self.progress is not None:
            self.progress(self._done, self.trials, 0)

    def _evaluated(self, genes: list[Genes]) -> Columns:
        layout, clock, slack = (np.array(column) for column in zip(*genes, strict=True))
        plans = self.problem.describe(
            self.problem.plans(layout.astype(np.int64), clock.astype(np.int64), slack.astype(float))
        )
        for name in OBJECTIVES:
            if not np.isfinite(plans[name]).all():
                raise ValueError(f"{name} is not a finite number")
        return plans

    def _fail(self, claimed: dict[int, Genes], error: Exception) -> None:
        """One plan that cannot be evaluated must not take the others of its batch along."""
        if len(claimed) > 1:
            for trial, genes in claimed.items():
                self._work({trial: genes})
            return
        text: list[str | None] = [json.dumps(f"{type(error).__name__}: {error}")]
        self._failed += self.queue.tell(list(claimed), TrialRows({}, {}, {"error": text}, {}), failed=True)
        self._failures += 1
        if self._failures >= FAILURES_IN_A_ROW:
            raise LauncherError(
                f"{FAILURES_IN_A_ROW} plans in a row could not be evaluated, the last one because of "
                f"{type(error).__name__}: {error}; put right what evaluates them, and start the worker again."
            ) from error

    def _breed(self, connection: sa.Connection, count: int) -> TrialRows | None:
        """The next plans to queue; None where the study has its trials, or nothing unseen is within reach."""
        size = min(POPULATION, self.trials - count)
        if size <= 0:
            return None
        self._look(connection)
        rng = np.random.default_rng((self.seed, count))
        plans = self._plans(sorted(self._finished))
        if count and len(plans["slack"]):
            children = breed(self._genome, take(plans, elite(plans, POPULATION)), size, rng)
            share = count / self.trials
            genes = half_local(self._genome, plans, front_of(plans), self._seen, children, share, rng)
        else:
            genes = first(self._genome, size, None if count else self.start, rng)
        layout, clock, slack, _ = unseen(self._genome, genes, self._seen, rng)
        return self._rows(layout, clock, slack) if len(layout) else None

    def _rows(self, layout: Ints, clock: Ints, slack: Floats) -> TrialRows:
        described = self.problem.describe({"layout_index": layout, "clock_index": clock, "slack": slack})
        params, kinds = parameters(described, distributions_of(self.problem.layouts, self.problem.clocks_mhz))
        genes = zip(layout.tolist(), clock.tolist(), slack.tolist(), strict=True)
        return TrialRows(params, kinds, {}, {PLAN_KEY: [json.dumps(row) for row in genes]})

    def _look(self, connection: sa.Connection) -> None:
        """Brings the mirror up to what the database holds; reads only what is new."""
        new = self.queue.plans_from(connection, len(self._genes))
        self._genes |= new
        if new:
            plans = self._bare(list(new))
            self._seen.add(plans["layout_index"], plans["stage_clock_mhz"])
        unknown = [trial for trial in self._genes if trial not in self._finished]
        self._finished |= self.queue.finished(connection, unknown)

    def _bare(self, trials: list[int]) -> Columns:
        """The plans of these trials without what came out."""
        genes = [self._genes[trial] for trial in trials]
        layout = np.array([row[0] for row in genes], dtype=np.int64)
        clock = np.array([row[1] for row in genes], dtype=np.int64)
        slack = np.array([row[2] for row in genes], dtype=float)
        stages = self.problem.decode_clocks(layout, clock, slack)
        return {"layout_index": layout, "clock_index": clock, "slack": slack, "stage_clock_mhz": stages}

    def _plans(self, trials: list[int]) -> Columns:
        plans = self._bare(trials)
        told = [self._finished[trial] for trial in trials]
        for number, name in enumerate(OBJECTIVES):
            plans[name] = np.array([one.values[number] for one in told], dtype=float)
        return plans | {"violation": np.array([one.violation for one in told], dtype=float)}


def space_hash(problem: Problem) -> str:
    """What the numbers of layouts and clocks in a shared study mean: equal for equal spaces in equal order."""
    told = hashlib.sha256()
    for name in sorted(problem.layouts):
        told.update(name.encode())
        told.update(np.ascontiguousarray(problem.layouts[name]).tobytes())
    told.update(problem.clocks_mhz.tobytes())
    return told.hexdigest()[:16]
