"""The methods of a search, in turn, each with what it added, and what the joint search saves against two steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core import progress
from jointopt.core.schema import POWER_LIMIT, Columns
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel
from jointopt.physics.training_runs import RUN_COLUMNS
from jointopt.report.alternatives import JointSavings, SavingShare
from jointopt.search.exact import ExactFront, exact_front_of_levels, exact_front_of_profiles
from jointopt.search.local_search import Saving, energy_saving, move_stages, time_saving, two_step_front
from jointopt.search.pareto import concat, farthest_rows, front_of, is_beaten, merge, stacked, take, volume
from jointopt.search.problem import Problem
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import predicted_plans

_log = logging.getLogger(__name__)
SECONDS_BETWEEN_TICKS = 1.0
BAR = "plans"  # the name of the bar of ticks
MOST = 2_000  # plans of an exact front of three goals that are kept, with all those of the front of two
LOCAL_EVALUATIONS = 50_000  # of plans with single stages' clocks moved


class Stopwatch:
    """Wall seconds by phase, and a line of progress about each as it starts, unless it is ``quiet``."""

    def __init__(self, text: str = "{:,} of {:,} plans, {:,} on the front ...", *, quiet: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self._text, self._logged, self._level = text, -np.inf, logging.DEBUG if quiet else logging.INFO

    @contextmanager
    def phase(self, name: str, text: str) -> Iterator[None]:
        """Time a phase, whose ``text`` is logged."""
        _log.log(self._level, "%s ...", text)
        self._logged = start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)
        progress.report(BAR, 1, 1)  # what ticked has ended

    def tick(self, *counts: int) -> None:
        """Log how far a search has come, about once a second."""
        if time.perf_counter() - self._logged >= SECONDS_BETWEEN_TICKS:
            self._logged = time.perf_counter()
            counted = {"progress": (BAR, *counts[:2])} if len(counts) > 2 else None
            _log.log(self._level, self._text.format(*counts), extra=counted)


def exact_step(job: Job, problem: Problem, watch: Stopwatch) -> ExactFront:
    """The exact front of what can be counted; of time alone, the fastest plan, where energies are not known."""
    count = problem.num_layouts * problem.num_clocks
    if job.cluster.gpu.power is None:
        # a front of one: no lower clock is ever faster
        with watch.phase("exact", f"the fastest of {count:,} plans"):
            layouts = np.arange(problem.num_layouts)
            plans = problem.evaluate_genes(
                layouts, np.full_like(layouts, problem.num_clocks - 1), np.zeros(len(layouts))
            )
            feasible = np.flatnonzero(plans["violation"] <= 0.0)
            best = feasible[plans["iteration_time_s"][feasible].argsort(kind="stable")[:1]]
            return ExactFront(take(plans, best), count, len(layouts), take(plans, best[:0]))
    with watch.phase("exact", f"exact front of {count:,} plans with one clock, and with slack used"):
        return exact_front_of_profiles(problem)


@dataclass(frozen=True)
class Step:
    """One method of a search: the front after it, how many plans it evaluated, and those of them to show."""

    method: str  # exact, local or nsga2
    front: Columns
    evaluated: int
    plans: Columns


def search_steps(
    problem: Problem, exact: ExactFront, two_step: Columns | None, trials: int, seed: int, watch: Stopwatch,
    all_goals: Problem | None = None,
) -> list[Step]:  # fmt: skip
    """The methods that searched, in turn; each starts from the front of the one before and loses none of it.

    Nor is a plan of ``two_step`` lost: clocks of single stages go further around the few plans of one layout.
    ``all_goals``: the same problem by all objectives of the job; where it has more of them NSGA-II searches by all.
    """
    steps = [Step("exact", exact.front, exact.evaluated, exact.sample)]
    if problem.stage_clocks is not None and np.isfinite(exact.front["energy_j"]).all():
        with watch.phase("search", "clocks of single stages around the front"):
            front, evaluated = move_stages(problem, exact.front, LOCAL_EVALUATIONS)
            front = front if two_step is None else merge(front, two_step, problem.pair)
        steps.append(Step("local", front, evaluated, take(front, slice(0))))
    if all_goals is not None:  # which has each layout once, whatever its spares
        steps = [replace(step, front=once(all_goals, step.front), plans=once(all_goals, step.plans)) for step in steps]
    if all_goals is not None and all_goals.goals != problem.goals:
        return with_all_goals(all_goals, steps, trials, seed, watch)
    if trials:
        from jointopt.search.nsga2 import search

        with watch.phase("nsga2", f"NSGA-II over {trials:,} plans with a clock per stage"):
            found = search(problem, trials=trials, seed=seed, start=steps[-1].front, progress=watch.tick)
        front = front_of(concat([steps[-1].front, found.front]), problem.pair)
        steps.append(Step("nsga2", front, found.evaluated, found.plans))
    return steps


def once(problem: Problem, plans: Columns) -> Columns:
    """Plans of a problem that has the layouts of ``problem`` once per number of spares, as plans of that."""
    return plans | {"layout_index": plans["layout_index"] % max(problem.num_layouts, 1)}


def with_all_goals(all_goals: Problem, steps: list[Step], trials: int, seed: int, watch: Stopwatch) -> list[Step]:
    """The steps judged by ``all_goals`` of the job; NSGA-II comes last and starts from their front.

    Where the layout decides the third goal the first step counts them all; then trials are spent only if requested.
    """
    steps = [
        replace(step, front=all_goals.evaluate_again(step.front), plans=all_goals.evaluate_again(step.plans))
        for step in steps
    ]
    if all_goals.has_levels:  # the layout decides the third goal: the first step counts the exact front by all goals
        with watch.phase("levels", f"exact front of {len(all_goals.goals)} goals"):
            front, evaluated = exact_front_of_levels(all_goals, progress=watch.tick)
        front = take(front, farthest_rows(np.log(stacked(front, all_goals.goals)), MOST))
        steps = [replace(step, front=merge(front, step.front, all_goals.goals)) for step in steps]
        steps[0] = replace(steps[0], evaluated=steps[0].evaluated + evaluated)
    if not trials:
        return steps
    from jointopt.search.nsga2 import EVALUATIONS, search_goals

    with watch.phase("nsga2", f"NSGA-II over {trials:,} plans by {len(all_goals.goals)} goals"):
        start, moves = steps[-1].front, 0 if all_goals.has_levels else EVALUATIONS
        found = search_goals(all_goals, trials=trials, seed=seed, start=start, moves=moves, progress=watch.tick)
    return [*steps, Step("nsga2", merge(found.front, start, all_goals.goals), found.evaluated, found.plans)]


def contributions(steps: list[Step], goals: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """By method: plans ``evaluated``, plans ``added`` to the answer, the share of the front's ``hypervolume`` they add.

    Of all that was found until then: fronts of many goals are thinned, and a thinner one spans less.
    """
    final, seen = stacked(steps[-1].front, goals), np.empty((0, len(goals)))
    whole = volume(np.concatenate([stacked(step.front, goals) for step in steps]), final)
    found, share, by_method = 0, 0.0, dict[str, dict[str, float]]()
    for step in steps:
        seen = np.concatenate([seen, stacked(step.front, goals)])
        known = len(final) if step is steps[-1] else int(is_beaten(seen, final).sum())
        reached = volume(seen, final) / whole if whole else 1.0  # one plan spans no area
        by_method[step.method] = {
            "evaluated": step.evaluated, "added": known - found, "hypervolume": round(max(0.0, reached - share), 9),
        }  # fmt: skip
        found, share = known, reached
    return by_method


# What the joint front saves against two steps: the fastest layout, then its clocks.


def two_steps(job: Job, problem: Problem, layout: int) -> Columns | None:
    """The plans of two steps, the fastest ``layout`` and then its clocks; None without known energies, or clocks."""
    # whether plans of one layout differ in clocks or power limits at all; of a whole run the layout alone may differ
    several = problem.num_clocks > 1 or POWER_LIMIT in problem.layouts or job.is_of_run
    return two_step_front(problem, layout, LOCAL_EVALUATIONS) if several and job.cluster.gpu.power is not None else None


def joint_saving(
    model: JobModel, physics: CostModel, problem: Problem, front: Columns, two_step: Columns | None
) -> JointSavings | None:
    """The savings of the front over `two_steps`; None without their plans."""
    if two_step is None:
        return None
    pair = problem.pair
    front = front_of(front, pair)
    energy, time_s = energy_saving(front, two_step, pair), time_saving(front, two_step, pair)
    if energy is None or time_s is None:
        return None
    columns = {name: values[two_step["layout_index"]] for name, values in problem.layouts.items()}
    columns |= {name: two_step[name] for name in ("stage_clock_mhz", "iteration_time_s", "energy_j")}
    columns |= {name: two_step[name] for name in RUN_COLUMNS if name in two_step}
    fastest = two_step["iteration_time_s"] <= two_step["iteration_time_s"].min()
    behind = float(two_step[pair[0]][fastest].min() / front[pair[0]].min()) - 1.0
    pairs = [(front, energy, "energy" if pair[1] != "money" else "", "leaner"), (front, time_s, "time", "faster")]
    of_energy, of_time = (_share(model, physics, of, two_step, saving, *names) for of, saving, *names in pairs)
    return JointSavings(columns, of_energy, of_time, pair, behind)


def _share(
    model: JobModel, physics: CostModel, front: Columns, two_step: Columns, saving: Saving, name: str, better: str
) -> SavingShare:
    """The saving of the objective ``name`` with the interval of the difference of the two plans; blank: without one."""
    if saving.share <= 0.0 or not name:
        return SavingShare(saving.share, saving.at, *([np.nan] * 3 if saving.share > 0.0 else [0.0] * 3))
    names = [key for key in ("layout_index", "stage_clock_mhz", *RESULTS) if key in front]
    both = [take({key: of[key] for key in names}, np.array([row])) for of, row in
            ((front, saving.plan), (two_step, saving.other))]  # fmt: skip
    found = model.differences(predicted_plans(model, physics, concat(both)), 1)
    mean, low, high = (float(found[f"{name}_vs_first_percent{end}"][0]) / 100.0 for end in ("", "_low", "_high"))
    beyond = saving.share + mean if "time_to_train_s" in front else 0.0  # of a whole run more than of an iteration
    return SavingShare(saving.share, saving.at, beyond - high, beyond - low, float(found[f"{better}_probability"][0]))
