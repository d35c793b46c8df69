"""Runs that `tune`, the physics' list, a plain loop, Optuna's TPE and chance need to come within 1 % of the best plan.

    OMP_NUM_THREADS=1 python tests/bench/bench_runs.py recorded    # the groups of bench_replay.py; needs ../shared/data
    OMP_NUM_THREADS=1 python tests/bench/bench_runs.py spaces [--only 3 7] [--seeds 1] [--without tpe]

``spaces``: 13 jobs, drawn, whose every plan has a time that the physics does not know: the physics with steps (T),
another simulator (S), the physics with factors per degree that are drawn (F), or with another framework's habits and a
slower network (N). Runs have 2 % noise, memory is off by 4 %; a run counts where its plan's time without noise is
within 1 %. The plain loop is what one would write in 25 lines: scikit-learn's Gaussian process on the logarithm of
measured over predicted time, and the lowest lower bound.
"""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from bench_replay import groups, job_document, random_order
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.text import PLAN_KEYS, parse_plan, uniform_stage_clocks
from jointopt.measure.replay import ReplayLauncher
from jointopt.physics.cost_model import CostModel, memory_limit_gib
from jointopt.studies.learning.truths import MODELS, Drawn, physics_with_steps, simulated
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.campaign.candidates import listed_candidates, searched_candidates
from jointopt.workflows.feasible_layouts import priced_problem
from jointopt.workflows.tune import tune

BUDGET, FEWEST, ASKS = 30, 1000, 300  # runs; plans of a space; of TPE
KINDS = "TSTFTNTSTFTNS"
NOISE, OF_MEMORY = 0.02, 0.04
SLOPE, OWN = 0.04, 0.02  # of F, in logarithms: deviations of slopes per doubling, and of what values have of their own
_OF_FACTORS = ("tp", "pp", "cp", "vpp", "micro_batch_size", "recompute", "sequence_parallel")


class Silent:
    """In place of random numbers: no noise."""

    standard_normal = staticmethod(np.zeros)


@dataclass
class Space:
    """The whole space of a job, and the time of its plans that no prediction knows."""

    kind: str
    job: Job
    document: dict[str, Any]
    seed: int

    @cached_property
    def layouts(self) -> Columns:
        return priced_problem(JobModel(self.job)).layouts

    def unknown(self, layouts: Columns) -> Floats:
        """Logarithm of a factor (n,): a slope per doubling of each degree, and what each value has of its own."""
        rng, found = np.random.default_rng(self.seed), np.zeros(len(layouts["pp"]))
        for name in _OF_FACTORS:
            doublings = np.log2(layouts[name] + 1.0)
            found += rng.normal(0.0, SLOPE) * doublings + rng.normal(0.0, OWN, 16)[np.round(doublings).astype(int)]
        return found

    def time_s(self, layouts: Columns) -> Floats:
        """Seconds of an iteration (n,), infinite where a plan runs out of memory."""
        job = self.job
        if self.kind == "N":
            slower = {"inter_node_gbytes_per_s": 0.4 * job.cluster.inter_node_gbytes_per_s}
            other = {"training": self.document["training"] | {"framework": "nanotron"}}
            job = parse_job(self.document | other | {"cluster": self.document["cluster"] | slower}, "other", None)
        top, every = job.cluster.gpu.clock_max_mhz, np.arange(len(layouts["pp"]))
        physics = CostModel(job, layouts)
        found = physics.evaluate(every, uniform_stage_clocks(layouts["pp"], top))
        plans = Drawn(job, layouts, np.full(len(every), top), found["iteration_time_s"], found["avg_power_w"])
        time_s = found["iteration_time_s"]
        if self.kind in "ST":
            time_s = {"S": simulated, "T": physics_with_steps}[self.kind](plans, Silent())[0]
        if self.kind == "F":
            time_s = time_s * np.exp(self.unknown(layouts))
        memory = physics.memory_bytes / 2**30 * np.exp(np.random.default_rng(self.seed).normal(0.0, OF_MEMORY))
        return np.where(memory > memory_limit_gib(self.job), np.inf, time_s)


class Cluster:
    """A launcher whose runs take the time of a space, which it keeps without noise."""

    name = "simulated"

    def __init__(self, space: Space, seed: int) -> None:
        self.space, self.rng = space, np.random.default_rng(seed)
        self.times: list[float] = []

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {name: plan[name] for name in PLAN_KEYS if name in plan and name != "stage_clock_mhz"}
        return self.run_layout(parse_plan(known, self.space.job).layouts)

    def run_layout(self, layout: Columns) -> Mapping[str, Any]:
        time_s = float(self.space.time_s({name: layout[name] for name in LAYOUT_COLUMNS})[0])
        self.times.append(time_s)
        if not math.isfinite(time_s):
            return {"status": "oom"}
        return {"status": "ok", "iteration_time_s": time_s * math.exp(NOISE * self.rng.standard_normal())}


def document(model: str, gpus: int, batch: int, seq_length: int) -> dict[str, Any]:
    per_node = min(gpus, 8)
    return {
        "model": model,
        "training": {"global_batch_size": batch, "seq_length": seq_length, "framework": "megatron-lm"},
        "cluster": {"gpu": "h100-sxm5-80gb", "nodes": gpus // per_node, "gpus_per_node": per_node},
        "objectives": ["iteration_time_s"],
        "search": {"dp_replicate": [1], "recompute_num_layers": [0]},
    }  # fmt: skip


def drawn_space(number: int) -> Space:
    """The space of a job of a model, GPUs, batch and length that are drawn; another is drawn where few plans fit."""
    rng, kind = np.random.default_rng(number), KINDS[number]
    while True:
        model, gpus = str(rng.choice(MODELS)), int(rng.choice([16, 32, 64, 128][: 3 if kind == "S" else 4]))
        tokens, seq_length = 2 ** int(rng.integers(19, 23)), int(rng.choice([2048, 4096, 8192]))
        of_job = document(model, gpus, max(tokens // seq_length, gpus), seq_length)
        space = Space(kind, parse_job(of_job, f"{kind}{number}", None), of_job, number)
        if len(space.layouts["pp"]) >= FEWEST:
            return space


@dataclass(frozen=True)
class Problem:
    """Plans (n,), what the physics says of them, and what a run of each shows: seconds, infinite for a failure."""

    plans: Columns
    predicted: Floats
    likely: np.ndarray  # to fit in memory
    run: Callable[[int], float]


def in_order(problem: Problem, seed: int) -> list[int]:
    """The physics' list: plans that are likely to fit by predicted time, then the others."""
    return np.lexsort([problem.predicted, ~problem.likely])[:BUDGET].tolist()


def plain_loop(problem: Problem, seed: int) -> list[int]:
    """Plans in the order in which a plain loop runs them."""
    names = ("dp", "tp", "pp", "cp", "vpp", "micro_batch_size", "sequence_parallel", "recompute", "zero_stage")
    doublings = [np.log2(problem.plans[name].astype(float)) for name in names[:6]]
    x = np.stack([*doublings, *(problem.plans[name].astype(float) for name in names[6:])], axis=1)
    left, ran, y = np.ones(len(problem.predicted), bool), [], []
    score = np.log(problem.predicted)
    while len(ran) < BUDGET and left.any():
        among = np.flatnonzero(left & problem.likely if (left & problem.likely).any() else left)
        place = int(among[np.argmin(score[among])])
        left[place] = False
        ran.append(place)
        y.append(math.log(problem.run(place) / problem.predicted[place]))
        known = np.isfinite(y)
        if known.any():
            kernel = ConstantKernel(0.1**2) * RBF(2.0) + WhiteKernel(0.03**2)  # fitted instead it needs more runs
            process = GaussianProcessRegressor(kernel, optimizer=None)
            values = np.array(y)[known]
            process.fit(x[ran][known], values - values.mean())
            mean, deviation = process.predict(x, return_std=True)
            score = np.log(problem.predicted) + mean - deviation
    return ran


def by_tpe(problem: Problem, seed: int) -> list[int]:
    """Plans in the order in which Optuna's TPE asks for them, `ASKS` times at most; what is no plan costs no run."""
    names = [name for name in LAYOUT_COLUMNS if name != "dp" and len(np.unique(problem.plans[name])) > 1]
    values = {name: np.unique(problem.plans[name]).tolist() for name in names}
    place_of = {tuple(problem.plans[name][i].item() for name in names): i for i in np.flatnonzero(problem.likely)}
    study, ran = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed)), []
    for _ in range(ASKS):
        trial = study.ask()
        place = place_of.get(tuple(trial.suggest_categorical(name, values[name]) for name in names))
        if place is None or place in ran:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        ran.append(place)
        seconds = problem.run(place)
        if math.isfinite(seconds):
            study.tell(trial, seconds)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if len(ran) >= BUDGET:
            break
    return ran


OTHERS = {"physics' list": in_order, "plain loop": plain_loop, "TPE": by_tpe}


def runs_to(times: list[float], goal_s: float) -> float:
    """The number of the first of some runs that takes no longer."""
    return next((number for number, time_s in enumerate(times, 1) if time_s <= goal_s), math.inf)


def of_space(number: int, seeds: int, ways: list[str]) -> dict[str, list[float]]:
    space = drawn_space(number)
    kind, job, seed = space.kind, space.job, space.seed
    truth = space.time_s(space.layouts)
    goal_s, candidates = 1.01 * truth.min(), searched_candidates(space.job)
    good, tried = (truth <= goal_s).sum(), np.isfinite(truth).sum()
    reach = space.time_s({name: candidates.plans[name] for name in LAYOUT_COLUMNS}).min() / truth.min() - 1.0
    found: dict[str, list[float]] = {"random": [(tried + 1) / (good + 1)]}
    physics = CostModel(space.job, space.layouts)
    every = np.arange(len(truth))
    predicted = physics.evaluate(every, uniform_stage_clocks(space.layouts["pp"], physics.top_mhz))["iteration_time_s"]
    likely = JobModel(space.job).fit_probability(physics) >= 0.5
    for each in range(seeds):
        for way in ways:
            cluster = Cluster(space, 100 * each + seed)
            if way == "tune":
                tune(space.job, cluster, BUDGET, seed=each)
            else:

                def run(place: int, cluster: Cluster = cluster) -> float:
                    row = cluster.run_layout({name: values[[place]] for name, values in space.layouts.items()})
                    return row.get("iteration_time_s", math.inf)

                order = OTHERS[way](Problem(space.layouts, predicted, likely, run), each)
                if way == "physics' list":
                    cluster.times = truth[order].tolist()
            found.setdefault(way, []).append(runs_to(cluster.times, goal_s))
    counts = ", ".join(f"{way} {'/'.join(f'{k:.0f}' for k in values)}" for way, values in found.items())
    words = f"{kind} {job.model.name} on {job.cluster.num_gpus}: {len(truth):,} plans, {good} within 1 %"
    print(f"{words}, best candidate {reach:.1%} behind: {counts}", flush=True)
    return found


def of_group(rows: Any, ways: list[str]) -> dict[str, list[float]]:
    job, goal_s = parse_job(job_document(rows), "replay", Path()), 1.01 * rows["iteration_time_s"].min()
    found = {"random": [random_order(rows)]}
    launcher = ReplayLauncher(rows)
    candidates = listed_candidates(launcher.candidates(job), job)
    answers = [launcher.run(job, candidates.question(i)) for i in range(candidates.size)]
    truth = np.array([a["iteration_time_s"] if a["status"] == "ok" else np.inf for a in answers], float)
    likely = candidates.log_load <= 0.0
    predicted = candidates.predicted["iteration_time_s"]
    problem = Problem(candidates.plans, predicted, likely, lambda place: float(truth[place]))
    for way in ways:
        if way == "tune":
            times = [run.result("iteration_time_s") for run in tune(job, "replay", BUDGET, table=rows).runs]
        else:
            times = [float(truth[place]) for place in OTHERS[way](problem, 0)]
        found[way] = [runs_to(times, goal_s)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["recorded", "spaces"])
    parser.add_argument("--only", type=int, nargs="+", default=list(range(len(KINDS))))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--without", nargs="+", default=[])
    given = parser.parse_args()
    ways = [way for way in ("tune", *OTHERS) if way not in given.without]
    if given.what == "recorded":
        each = [of_group(rows, ways) for _, _, rows in groups()]
    else:
        each = [of_space(number, given.seeds, ways) for number in given.only]
    for way in ("random", *ways):
        counts = np.array([k for found in each for k in found[way]])
        mean, within = np.minimum(counts, BUDGET + 1).mean(), [np.mean(counts <= most) for most in (5, 10)]
        print(
            f"{way:14} median {np.median(counts):4.1f}, mean (31 = never) {mean:5.2f}, "
            f"within 5 {within[0]:.2f}, 10 {within[1]:.2f} of {len(counts)}"
        )  # fmt: skip
    if {"tune", "physics' list"} <= set(ways):
        pairs = [(min(k, BUDGET + 1), min(one["physics' list"][0], BUDGET + 1)) for one in each for k in one["tune"]]
        later = [k - of_list for k, of_list in pairs]
        print(f"tune behind the physics' list by more than one run: {sum(k > 1 for k in later)}, at most {max(later)}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    main()
