"""What `tune` expects of the energy of plans left, and its front, on made-up clusters whose truth is known.

    OMP_NUM_THREADS=1 python tests/bench/bench_tune_energy.py [--truths TCS] [--jobs 6] [--seeds 2] [--tunes 2]

Truths T, C and S of `jointopt.studies.learning.truths`, of the best 500 plans of each job, nothing known before.
After 8, 16 and 32 runs drawn at random: median errors of the others' energy and power, and the coverage of the energy's
90 % intervals, where energy is learned as one number and where its time and its power may be instead. Then the share of
the true front's volume that the runs of a tune hold after 4, 8 and 16 of them, both ways.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
from bench_tune_goals import plan_key

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import LAYOUT_COLUMNS, Floats
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel
from jointopt.physics.sensitivities import with_clock_shares
from jointopt.search.pareto import non_dominated, volume
from jointopt.studies.learning.truths import FOLLOWING, Drawn, jobs, physics_with_steps, simulated
from jointopt.surrogate.plan_process import USUAL
from jointopt.workflows.campaign.candidates import Candidates, searched_candidates
from jointopt.workflows.campaign.expectation import EarlierRuns, Outlook
from jointopt.workflows.tune import tune

AFTER = (4, 8, 16)
ONE, PARTS = "energy as one number", "or as time and power"


def problems(count: int) -> list[tuple[Job, Candidates]]:
    """So many jobs of at most 128 GPUs with 60 plans or more."""
    return list(itertools.islice(_problems(), count))


def _problems() -> Iterator[tuple[Job, Candidates]]:
    for job in jobs(np.random.default_rng(0)):
        try:
            found = searched_candidates(job) if job.cluster.num_gpus <= 128 else None
        except InfeasibleError:
            continue
        if found is not None and found.size >= 60:
            yield job, found


def truth(kind: str, job: Job, found: Candidates, seed: int) -> dict[str, Floats]:
    """Results (n,) of all candidates on a cluster of that kind."""
    layouts = {name: found.plans[name] for name in LAYOUT_COLUMNS}
    clocks = found.plans["stage_clock_mhz"]
    of = with_clock_shares(job, *FOLLOWING) if kind == "C" else job
    known = CostModel(of, layouts).evaluate(np.arange(found.size), clocks) if kind == "C" else found.predicted
    drawn = Drawn(of, layouts, np.nanmax(clocks, axis=1), known["iteration_time_s"], known["avg_power_w"])
    time_s, power_w = (simulated if kind == "S" else physics_with_steps)(drawn, np.random.default_rng(seed))
    power_w = np.minimum(power_w, job.cluster.power_limit_w)
    return {"iteration_time_s": time_s, "energy_j": time_s * power_w * job.cluster.num_gpus, "avg_power_w": power_w}


class Cluster:
    """A launcher whose runs are the truth of candidates."""

    name = "simulated"

    def __init__(self, candidates: Candidates, results: Mapping[str, Floats]) -> None:
        self.plans, self.results = candidates, results
        self.places = {plan_key(candidates.question(i)): i for i in range(candidates.size)}

    def candidates(self, job: Job) -> Mapping[str, Any]:
        return self.plans.rows.to_dict("list")

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.row(job, self.places[plan_key(plan)])

    def row(self, job: Job, at: int) -> dict[str, Any]:
        found = {name: float(values[at]) for name, values in self.results.items() if name != "avg_power_w"}
        return {"status": "ok", "num_gpus": job.cluster.num_gpus} | found

    def shares(self, places: list[int]) -> list[float]:
        """Share of the true front's volume that the first 4, 8 and 16 plans hold."""
        every = np.column_stack([self.results[name] for name in ("iteration_time_s", "energy_j")])
        best = every[non_dominated(every)]
        return [volume(every[places[:count]], best) / volume(best, best) for count in AFTER]


def errors(job: Job, cluster: Cluster, count: int, seed: int) -> dict[str, list[float]]:
    """(median error of energy, covered, median error of power) by each way, after runs drawn at random."""
    size, results, found = cluster.plans.size, cluster.results, {}
    ran = np.random.default_rng(100 * seed + count).permutation(size)[:count]
    left, rows = np.setdiff1d(np.arange(size), ran), [cluster.row(job, int(at)) for at in ran]
    for way, outlook in _both_ways(job, cluster.plans):
        expected = outlook.after(("iteration_time_s", "energy_j"), ran, rows).columns
        energy, high = np.log(expected["energy_j"]), np.log(expected["energy_j_high"])
        off = np.abs(energy - np.log(results["energy_j"]))[left]
        power = energy - np.log(expected["iteration_time_s"] * job.cluster.num_gpus)
        of_power = np.median(np.abs(power - np.log(results["avg_power_w"]))[left])
        found[way] = [float(np.median(off)), float(np.mean(off <= (high - energy)[left])), float(of_power)]
    return found


def _both_ways(job: Job, candidates: Candidates) -> Iterator[tuple[str, Outlook]]:
    for way in (ONE, PARTS):
        with one_number(way):
            yield way, Outlook(job, candidates, EarlierRuns(), USUAL, np.random.default_rng(0))


def one_number(way: str) -> Any:
    """A patch by which energy is learned as one number, where that is the way."""
    real = Outlook._of_parts
    learned = (lambda _self, direct, *_parts: direct) if way == ONE else real
    return patch.object(Outlook, "_of_parts", learned)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truths", default="TCS")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tunes", type=int, default=2)
    given = parser.parse_args()
    every = problems(given.jobs)
    for kind in given.truths:
        clusters = [(job, Cluster(plans, truth(kind, job, plans, at))) for at, (job, plans) in enumerate(every)]
        for count in (8, 16, 32):
            found = [errors(job, one, count, seed) for job, one in clusters for seed in range(given.seeds)]
            for way in (ONE, PARTS):
                energy, covered, power = 100 * np.mean([lines[way] for lines in found], axis=0)
                words = f"energy {energy:.2f} % off, {covered:.0f} % covered, power {power:.2f} % off"
                print(f"{kind}, {count:2} runs, {way:20}: {words}", flush=True)
        for way in (ONE, PARTS):
            with one_number(way):
                shares = [
                    one.shares([one.places[plan_key(run.plan)] for run in tuned.runs])
                    for seed in range(given.tunes) for job, one in clusters
                    for tuned in [tune(job, one, AFTER[-1], seed=seed, surrogate="none")]
                ]  # fmt: skip
            print(f"{kind}, tune, {way:20}: volume {np.mean(shares, axis=0).round(3).tolist()}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    main()
