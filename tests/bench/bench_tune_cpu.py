"""How good a plan `jointopt tune` finds in 8 real runs on CPU cores, beside an exhaustive sweep of the same space.

A tiny GPT, four processes of torchrun with gloo. The command runs in an empty folder, as a user runs it; then every
plan of the space is run, several times where the machine is noisy, and of each the fastest counts. Plans are judged by
the sweep: the plan that tune found, by what the sweep measured of it.

    .venv/bin/python tests/bench/bench_tune_cpu.py [--budget 8] [--repeats 2] [--iterations 8]
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job
from jointopt.measure.torchrun import TorchrunLauncher
from jointopt.surrogate.kernel import Kernel
from jointopt.surrogate.plan_process import ROUGH, USUAL
from jointopt.workflows.campaign.candidates import searched_candidates
from jointopt.workflows.tune import tune

JOB = """
model: {num_layers: 4, hidden_size: 128, ffn_hidden_size: 512, num_attention_heads: 4, num_query_groups: 4,
        vocab_size: 1024, gated_mlp: true}
training: {seq_length: 128, global_batch_size: 16, dtype: fp32, attention: unfused, framework: torchtitan}
cluster: {gpu: cpu-core, nodes: 1, gpus_per_node: 4}
search: {cp: [1], vpp: [1], recompute: [none], zero_stage: [2], sequence_parallel: [false], micro_batch_size: [1, 2, 4]}
objectives: [iteration_time_s]
"""
KEYS = ("dp", "tp", "pp", "micro_batch_size", "zero_stage", "sequence_parallel")


def plan_key(plan: dict) -> tuple:
    return tuple(int(plan[name]) for name in KEYS)


def tuned(folder: Path, budget: int, iterations: int) -> dict:
    """The answer of `jointopt tune` for the job file of a folder."""
    command = [
        sys.executable, "-m", "jointopt", "tune", "job.yaml", "--launcher", "torchrun", "--budget", str(budget),
        "--iterations", str(iterations), "--json",
    ]  # fmt: skip
    return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


def swept(path: Path, repeats: int, iterations: int) -> dict[tuple, float]:
    """Seconds of every plan of the job, the fastest of the repeats; repeats lie far apart, so that noise is shared."""
    job = load_job(path)
    candidates, launcher = searched_candidates(job), TorchrunLauncher(iterations=iterations)
    times: dict[tuple, float] = {}
    for _ in range(repeats):
        for index in range(candidates.size):
            row = launcher.run(job, candidates.question(index))
            key = plan_key(candidates.record(index))
            print(f"sweep: {key}: {row['status']}, {row['iteration_time_s']:.4f} s", file=sys.stderr, flush=True)
            if row["status"] == "ok":
                times[key] = min(row["iteration_time_s"], times.get(key, float("inf")))
            else:
                print(f"  {dict(zip(KEYS, key, strict=True))}: {row['status']}: {row['notes']}")
    return times


class Sweep:
    """Every plan of a sweep again, without running it."""

    name = "sweep"

    def __init__(self, times: dict[tuple, float]) -> None:
        self.times = times

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self.times.get(plan_key(plan))
        return {"status": "failed"} if found is None else {"status": "ok", "iteration_time_s": found}


def replayed(job: Job, times: dict[tuple, float], budget: int, spread: Kernel) -> list[float]:
    """How far the best of the runs so far lies behind the sweep's best, after each run of a replayed tune."""
    runs = tune(job, Sweep(times), budget, spread=spread).runs
    best = itertools.accumulate((times.get(plan_key(run.plan), float("inf")) for run in runs), min)
    return [value / min(times.values()) - 1 for value in best]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "job.yaml"
        path.write_text(JOB, encoding="utf-8")
        start = time.perf_counter()
        found = tuned(Path(scratch), given.budget, given.iterations)
        spent_s = time.perf_counter() - start
        times = swept(path, given.repeats, given.iterations)
        job = load_job(path)
    runs = [run for run in found["measured"] if run["status"] == "ok"]
    chosen = found["measured"][found["front"][0]]
    best_s, chosen_s = min(times.values()), times[plan_key(chosen)]
    rank = sorted(times.values()).index(chosen_s) + 1
    print(f"tune: {len(runs)} runs in {spent_s:.0f} s, stopped: {found['stopped']}, study {found['study']}")
    print(f"sweep: {len(times)} plans, best {best_s:.4f} s, worst {max(times.values()):.4f} s")
    print(f"tune's plan {dict(zip(KEYS, plan_key(chosen), strict=True))}: {chosen['iteration_time_s']:.4f} s in tune, ")
    print(f"  {chosen_s:.4f} s in the sweep: {chosen_s / best_s - 1:+.1%} against the best, rank {rank}")
    for number in range(1, len(runs) + 1):
        best = min(times[plan_key(one)] for one in runs[:number])
        print(f"  after run {number}: {best / best_s - 1:+.1%}")
    for name, spread in (("CPU cores", ROUGH), ("GPUs", USUAL)):
        behind = ", ".join(f"{value:+.0%}" for value in replayed(job, times, given.budget, spread))
        print(f"the sweep replayed with the spread for {name}: {behind}")
    gain = found["expected_gain_left"]
    print(f"  expected gain left at the end: {'not known' if gain is None else f'{gain:.1%}'}")


if __name__ == "__main__":
    main()
