"""The two-step answer of a job, and what its joint front saves against it."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import POWER_LIMIT, Columns
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel
from jointopt.report.joint_saving import JointSavings, SavingShare
from jointopt.search.pareto import concat, front_of, take
from jointopt.search.problem import Problem
from jointopt.search.two_step import Saving, energy_saving, time_saving, two_step_front
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import predicted_plans
from jointopt.workflows.search_steps import LOCAL_EVALUATIONS


def two_steps(job: Job, problem: Problem, layout: int) -> Columns | None:
    """The plans of two steps, the fastest ``layout`` and then its clocks; None without known energies, or clocks."""
    # whether plans of one layout differ in clocks or power limits at all
    known = job.cluster.gpu.power is not None and (problem.num_clocks > 1 or POWER_LIMIT in problem.layouts)
    return two_step_front(problem, layout, LOCAL_EVALUATIONS) if known else None


def joint_saving(
    model: JobModel, physics: CostModel, problem: Problem, front: Columns, two_step: Columns | None
) -> JointSavings | None:
    """The savings of the front over `two_steps`; None without their plans."""
    if two_step is None:
        return None
    front = front_of(front)
    energy, time_s = energy_saving(front, two_step), time_saving(front, two_step)
    if energy is None or time_s is None:
        return None
    columns = {name: values[two_step["layout_index"]] for name, values in problem.layouts.items()}
    columns |= {name: two_step[name] for name in ("stage_clock_mhz", "iteration_time_s", "energy_j")}
    pairs = [(front, energy, "energy", "leaner"), (front, time_s, "time", "faster")]
    return JointSavings(
        columns, *(_share(model, physics, of, two_step, saving, *names) for of, saving, *names in pairs)
    )


def _share(
    model: JobModel, physics: CostModel, front: Columns, two_step: Columns, saving: Saving, name: str, better: str
) -> SavingShare:
    """The saving of the objective ``name`` with the interval of the difference of the two plans."""
    if saving.share <= 0.0:
        return SavingShare(0.0, saving.at, 0.0, 0.0, 0.0)
    names = [key for key in ("layout_index", "stage_clock_mhz", *RESULTS) if key in front]
    both = [take({key: of[key] for key in names}, np.array([row])) for of, row in
            ((front, saving.plan), (two_step, saving.other))]  # fmt: skip
    found = model.differences(predicted_plans(model, physics, concat(both)), 1)
    low, high = (float(found[f"{name}_vs_first_percent_{end}"][0]) / 100.0 for end in ("low", "high"))
    return SavingShare(saving.share, saving.at, -high, -low, float(found[f"{better}_probability"][0]))
