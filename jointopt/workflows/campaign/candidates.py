"""The plans that a launcher may run, each with its physics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import (
    LAYOUT_COLUMNS,
    POWER_LIMIT,
    POWER_PROFILE,
    SPLIT_COLUMNS,
    Bools,
    Columns,
    Floats,
    Ints,
    decode_cells,
)
from jointopt.jobs.calibration import Calibration, calibrated_if_same_gpu
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import FURTHER_OBJECTIVES, OBJECTIVES
from jointopt.jobs.plans.text import parse_stage_clocks, plan_records, stage_clocks_to_text, widened
from jointopt.physics.cost_model import HEAT, CostModel
from jointopt.runs.workloads import workloads
from jointopt.search.pareto import concat_plans, farthest_rows, front_order, non_dominated, take
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import needs_as_much
from jointopt.workflows.feasible_layouts import priced_problem
from jointopt.workflows.predict import predict

MOST = 500  # plans of a job that are kept as candidates, the best by its model
_PREDICTED = (*OBJECTIVES, *FURTHER_OBJECTIVES)
_OF_MODEL = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp",
    "vocab_size", "num_experts", "moe_router_topk",
)  # fmt: skip
_OF_EXPERTS = ("moe_ffn_hidden_size", "num_shared_experts", "num_dense_layers")
_OF_TRAINING = ("seq_length", "global_batch_size", "attention", "fused_norm")
_CLOCKS = 8  # uniform clocks of the grid among them: neighbours on a fine grid look the same in a run


@dataclass(frozen=True)
class Candidates:
    """Plans that may be run; all columns have one entry per plan."""

    rows: pd.DataFrame  # rows of a measurement table without results, for the launcher and for predict
    plans: Columns  # layout columns and stage_clock_mhz, nothing blank
    predicted: Columns  # objectives and avg_power_w, SI
    log_load: Floats  # log of predicted memory over what a GPU has for a run
    log_room: Floats  # log of what the job allows a run over what a GPU has for it: 0, or below
    power_profile: str = ""  # under which they run, in place of their clocks
    jobs: tuple[tuple[Job, int], ...] = ()  # of a list: those of its rows in turn, and how many are of each
    led: bool = False  # whether the first of them is what `propose` puts first

    def record(self, index: int) -> dict[str, Any]:
        """The plan columns of one candidate, as JSON has them."""
        return plan_records(self.plans, self.plans["stage_clock_mhz"], [index])[0] | self._profile

    def question(self, index: int) -> dict[str, Any]:
        """The row for the launcher."""
        return {str(name): value for name, value in self.rows.iloc[index].items()} | self._profile

    def under(self, power_profile: str) -> Candidates:
        """The same plans under a power profile, whose effect no prediction knows."""
        return replace(self, power_profile=power_profile)

    @property
    def _profile(self) -> dict[str, str]:
        return {POWER_PROFILE: self.power_profile} if self.power_profile else {}

    def holding_as_much(self, index: int) -> Bools:
        """Candidates (n,) that surely need the memory of one, whatever their clocks and power limits."""
        counts = [count for _, count in self.jobs] or [self.size]
        of = np.repeat(np.arange(len(counts)), counts)
        peak, one = np.where(of == of[index], np.exp(self.log_load), 0.0), slice(index, index + 1)
        return needs_as_much(self.plans, peak, {name: values[one] for name, values in self.plans.items()}, peak[one])

    @property
    def size(self) -> int:
        """Number of plans."""
        return len(self.rows)


def listed_candidates(
    listing: Mapping[str, Any], job: Job, calibration: Calibration | None = None, machine: Machine | None = None
) -> Candidates:
    """The plans that a launcher lists; rows that no physics can price are left out.

    The software is that of the table, the memory that they may take that of ``job``. Raises TableError where none
    can be predicted.
    """
    table = pd.DataFrame(listing)
    found = [work.on_machine(machine) for work in workloads(table)[0]]
    table = table.iloc[np.concatenate([work.rows for work in found])].reset_index(drop=True)
    width = max(work.stage_clock_mhz.shape[1] for work in found)
    plans = {name: np.concatenate([work.plans[name] for work in found]) for name in LAYOUT_COLUMNS}
    if POWER_LIMIT in table:
        plans[POWER_LIMIT] = table[POWER_LIMIT].to_numpy(float)
    plans["stage_clock_mhz"] = np.concatenate([widened(work.stage_clock_mhz, width) for work in found])
    limits = [np.full((len(work.rows), 2), _limits_gib(work.job, job)) for work in found]
    has, allowed = np.concatenate(limits).T
    answers = predict(table, calibration=calibration, machine=machine)
    predicted = {name: answers[f"predicted_{name}"].to_numpy(float) for name in _PREDICTED if name not in HEAT}
    if heat := [name for name in HEAT if name in job.objectives]:
        of_works = ((CostModel(w.job, w.plans), np.arange(len(w.rows)), w.stage_clock_mhz) for w in found)
        parts = [physics.heat(every, clocks) for physics, every, clocks in of_works]
        predicted |= {name: np.concatenate([part[name] for part in parts]) for name in heat}
    load = np.log(answers["predicted_peak_memory_gib"].to_numpy(float) / has)
    jobs = tuple((calibrated_if_same_gpu(work.job, calibration), len(work.rows)) for work in found)
    return Candidates(table, plans, predicted, load, np.log(allowed / has), jobs=jobs)


def _limits_gib(runs: Job, job: Job) -> tuple[float, float]:
    """(memory that a GPU has for a run, memory that ``job`` allows it), for runs of the job ``runs``, in GiB."""
    memory_gib = runs.cluster.gpu.memory_gib
    usual = runs.training.framework.memory_fraction * memory_gib
    limit = job.constraints.memory_fraction
    allowed = usual if limit is None else limit * memory_gib
    return max(usual, allowed), allowed


def searched_candidates(job: Job | JobModel, proposed: Columns | None = None) -> Candidates:
    """The best plans of a job's own space: Pareto front after Pareto front of its model, at uniform clocks.

    The first of them is the plan ``proposed`` (columns of one row), if there is one; those of its layout that are not
    slower by the model (at the top clock) are left out, since a run would not tell them apart. What is predicted is
    that of the physics alone, which measured runs then correct. Raises InfeasibleError where no plan keeps the
    constraints.
    """
    model = job if isinstance(job, JobModel) else JobModel(job)
    job, problem = model.job, priced_problem(model)
    grid = np.unique(np.linspace(0, problem.num_clocks - 1, _CLOCKS).round().astype(np.int64))
    grid = grid if "energy_j" in job.objectives else grid[-1:]
    layout = np.repeat(np.arange(problem.num_layouts), len(grid))
    plans = problem.evaluate_genes(layout, np.tile(grid, problem.num_layouts), np.zeros(len(layout)))
    feasible = np.flatnonzero(plans["violation"] <= 0)
    if not len(feasible):
        raise InfeasibleError(f"No plan of job {job.name!r} keeps the constraints; `jointopt propose` says why.")
    if heat := [name for name in HEAT if name in job.objectives]:
        found = model.cost_model(problem.layouts).heat(layout[feasible], plans["stage_clock_mhz"][feasible])
        for name in heat:
            plans[name] = np.full(len(layout), np.nan)
            plans[name][feasible] = found[name]
    best = feasible[leading_fronts(np.stack([plans[name][feasible] for name in job.objectives], axis=1), MOST)]
    columns = {name: values[plans["layout_index"][best]] for name, values in problem.layouts.items()}
    columns["stage_clock_mhz"] = plans["stage_clock_mhz"][best]
    columns = columns if proposed is None else _led_by(proposed, columns)
    clocks, every = columns["stage_clock_mhz"], np.arange(len(columns["pp"]))
    model_of = model.physics(columns)
    physics = model_of.evaluate(every, clocks) | model_of.heat(every, clocks)
    predicted = {name: physics[name] for name in _PREDICTED}
    has, allowed = _limits_gib(job, job)
    load = np.log(physics["peak_memory_gib"] / has)
    room = np.full(len(load), np.log(allowed / has))
    return Candidates(measurement_columns(job, columns), columns, predicted, load, room, led=proposed is not None)


def _led_by(proposed: Columns, columns: Columns) -> Columns:
    """Plans (n,) behind one, without its own layout at clocks that are nowhere lower."""
    one = {name: proposed[name] for name in columns}
    same = np.logical_and.reduce([columns[name] == one[name] for name in columns if name != "stage_clock_mhz"])
    slowest = np.nanmin(columns["stage_clock_mhz"], axis=1)
    kept = ~(same & (slowest >= np.nanmax(one["stage_clock_mhz"])))
    return concat_plans([one, take(columns, np.flatnonzero(kept))])


def layout_families(columns: Columns) -> Ints:
    """A number (n,) for each plan, the same for plans that split the GPUs alike (dp, tp, pp, cp, ep and so on)."""
    cells = np.stack([columns[name] for name in SPLIT_COLUMNS], axis=1)
    return np.asarray(np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1))


def leading_fronts(values: Floats, count: int) -> Ints:
    """At most ``count`` of the points (n, k): the front, the front of the rest, and so on; the last thinned evenly."""
    left, chosen = np.arange(len(values)), np.empty(0, np.int64)
    while len(left) and len(chosen) < count:
        of_left = values[left]  # one objective is a front of one plan, and two are quicker
        flat = of_left.shape[1] <= 2
        front = left[front_order(of_left[:, 0], of_left[:, -1]) if flat else non_dominated(of_left)]
        if not len(front):
            break
        if len(front) > (room := count - len(chosen)):  # by the first column alone one end of it would be left out
            front = front[farthest_rows(np.log(values[front]), room)]
        chosen = np.concatenate([chosen, front])
        left = np.setdiff1d(left, front)
    return chosen


def measurement_columns(job: Job, columns: Columns) -> pd.DataFrame:
    """Plans of a job as rows of a measurement table without results, the job's own columns included."""
    table = pd.DataFrame({name: decode_cells(name, columns[name]) for name in LAYOUT_COLUMNS})
    own = job.model.size_cells((*_OF_MODEL, *(_OF_EXPERTS if job.model.is_moe else ())))
    own |= {name: getattr(job.training, name) for name in _OF_TRAINING} | job.training.adapter_and_recipe_cells
    own |= job.model.attention_cells | {"dtype": job.training.precision}
    if POWER_LIMIT in columns:
        table[POWER_LIMIT] = columns[POWER_LIMIT]
    return table.assign(
        stage_clock_mhz=stage_clocks_to_text(columns["stage_clock_mhz"]), group=job.name, model=job.model.name, **own,
        framework=job.training.framework.name, gpu=job.cluster.gpu.id, gpus_per_node=job.cluster.gpus_per_node,
        num_gpus=job.cluster.num_gpus, inter_node_gbytes_per_s=job.cluster.stated_gbytes_per_s,
    )  # fmt: skip


# Measured layouts under NVIDIA's workload power profiles, which choose clocks by themselves and no model predicts.


_PROFILE_CLOCKS = ("stage_clock_mhz", "clock_mhz")


def at_highest_clock(candidates: Candidates, indices: Iterable[int]) -> list[int]:
    """The candidate with the highest clocks of each layout, once and in the order of the candidates."""
    plans = candidates.plans
    names = [*LAYOUT_COLUMNS, *([POWER_LIMIT] if POWER_LIMIT in plans else [])]
    layouts = np.stack([np.nan_to_num(plans[name].astype(float)) for name in names], axis=1)
    clocks = np.nanmean(plans["stage_clock_mhz"], axis=1)
    found = []
    for index in indices:
        same = np.flatnonzero((layouts == layouts[index]).all(axis=1))
        found.append(int(same[clocks[same].argmax()]))
    return list(dict.fromkeys(found))


def runs_under_profile(runs: pd.DataFrame, candidates: pd.DataFrame, power_profile: str) -> pd.DataFrame:
    """The runs under a power profile (blank: under none), as runs at the highest clock of the candidates."""
    if POWER_PROFILE not in runs:
        return runs.iloc[:0] if power_profile else runs
    some = (
        runs[runs[POWER_PROFILE].astype(object).fillna("") == power_profile]
        .drop(columns=POWER_PROFILE)
        .reset_index(drop=True)
    )
    if not power_profile:
        return some
    highest = max(max(parse_stage_clocks(cell)) for cell in candidates["stage_clock_mhz"])
    return some.drop(columns=[name for name in _PROFILE_CLOCKS if name in some]).assign(clock_mhz=highest)
