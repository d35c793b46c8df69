"""How good the plans are that `jointopt tune` finds for time and energy in few real runs, beside a sweep of all plans.

Trainings are real: four processes of torchrun with gloo on CPU cores. Their GPUs are those of the stand-in for the
driver's library (tests/stand_in/nvml.c), to which the real zeus and pynvml speak: clocks are locked and restored, and
energy is that of an H100's cubic law at the clock that is locked. Clocks do not slow the cores down, so the truth is
that of every layout the lowest clock is best. Predictions are those of an H100, hundreds of times faster than a core:
a hard case, in which little but the runs themselves can be relied on.

    .venv/bin/python tests/bench/bench_tune_stand_in.py [--budget 8] [--repeats 1] [--iterations 4]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bench_tune_cpu import tuned

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job
from jointopt.measure.hardware.host import FOR_TESTS
from jointopt.measure.torchrun import TorchrunLauncher
from jointopt.surrogate.plan_process import ROUGH, USUAL
from jointopt.workflows.campaign.candidates import searched_candidates
from jointopt.workflows.tune import tune

JOB = """
model: {num_layers: 4, hidden_size: 128, ffn_hidden_size: 512, num_attention_heads: 4, num_query_groups: 4,
        vocab_size: 1024, gated_mlp: true}
training: {seq_length: 128, global_batch_size: 16, dtype: fp32, attention: unfused, framework: torchtitan}
cluster: {gpu: h100-sxm5-80gb, nodes: 1, gpus_per_node: 4}
search: {cp: [1], vpp: [1], recompute: [none], zero_stage: [2], sequence_parallel: [false], micro_batch_size: [4],
         clock_mhz: {min: 990, max: 1980, step: 495}}
objectives: [iteration_time_s, energy_j]
"""
KEYS = ("dp", "tp", "pp", "micro_batch_size")
GOALS = ("iteration_time_s", "energy_j")
Found = dict[tuple, np.ndarray]


def with_stand_in(folder: Path) -> None:
    """This program again, in an environment in which there are stand-in GPUs: pynvml opens its library once."""
    source = Path(__file__).parents[1] / "stand_in" / "nvml.c"
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
    (folder / "gpus").mkdir()
    own = {"STAND_IN_NVML": str(folder / "gpus"), "XDG_STATE_HOME": str(folder / "state")}
    own |= {"LD_LIBRARY_PATH": str(folder), "OMP_NUM_THREADS": "1", FOR_TESTS: "1"}
    subprocess.run([sys.executable, *sys.argv], env={**os.environ, **own}, check=True)


def plan_key(plan: Mapping[str, Any]) -> tuple:
    clocks = plan["stage_clock_mhz"]
    first = clocks.split(";")[0] if isinstance(clocks, str) else clocks[0]
    return (*(int(plan[name]) for name in KEYS), int(float(first)))


def swept(path: Path, repeats: int, iterations: int) -> tuple[Found, dict[int, list[float]]]:
    """Time and energy of every plan of the job, the least of the repeats, and watts by clock."""
    job = load_job(path)
    candidates, launcher = searched_candidates(job), TorchrunLauncher(iterations=iterations)
    found: Found = {}
    watts: dict[int, list[float]] = {}
    for _ in range(repeats):
        for index in range(candidates.size):
            row, key = launcher.run(job, candidates.question(index)), plan_key(candidates.record(index))
            values = np.array([row[name] for name in GOALS])
            print(f"sweep: {key}: {row['status']}, {values}, {row['notes']}", file=sys.stderr, flush=True)
            if row["status"] == "ok":
                found[key] = np.fmin(values, found.get(key, np.inf))
                watts.setdefault(key[-1], []).append(row["avg_power_w"])
    return found, watts


class Sweep:
    """Every plan of a sweep again, without running it."""

    name = "sweep"

    def __init__(self, found: Found) -> None:
        self.found = found

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        values = self.found.get(plan_key(plan))
        return {"status": "failed"} if values is None else {"status": "ok", **dict(zip(GOALS, values, strict=True))}


def behind(found: Found, keys: list[tuple]) -> list[str]:
    """How far the best of the runs so far lies behind the best of the sweep in each goal, after each run."""
    best = np.nanmin(list(found.values()), axis=0)
    runs = np.array([found.get(key, np.full(2, np.inf)) for key in keys])
    return [" / ".join(f"{value:+.0%}" for value in row / best - 1) for row in np.minimum.accumulate(runs, axis=0)]


def restored(calls: list[str]) -> str:
    """Whether what was locked last of each GPU was given back, and how often it was locked."""
    last = {line.split()[1]: line.split()[0] for line in calls}
    count = Counter(line.split()[0] for line in calls)
    return f"{count['lock']} clocks locked, {count['reset']} given back, held now: {list(last.values()).count('lock')}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if "STAND_IN_NVML" not in os.environ:
            with_stand_in(Path(scratch))
            return
        path = Path(scratch) / "job.yaml"
        path.write_text(JOB, encoding="utf-8")
        start = time.perf_counter()
        document = tuned(Path(scratch), given.budget, given.iterations)
        spent_s = time.perf_counter() - start
        calls = (Path(os.environ["STAND_IN_NVML"]) / "calls").read_text().splitlines()
        found, watts = swept(path, given.repeats, given.iterations)
        job = load_job(path)
    report(document, spent_s, calls, found, watts)
    for name, spread in (("GPUs", USUAL), ("CPU cores", ROUGH)):
        keys = [plan_key(run.plan) for run in tune(job, Sweep(found), given.budget, spread=spread).runs]
        print(f"the sweep replayed with the spread for {name}: {', '.join(behind(found, keys))}")


def report(document: dict, spent_s: float, calls: list[str], found: Found, watts: dict[int, list[float]]) -> None:
    measured = document["measured"]
    energies = sum(run["energy_j"] is not None for run in measured)
    print(f"tune: {len(measured)} runs in {spent_s:.0f} s, {energies} with energy, stopped: {document['stopped']}")
    print(f"  {restored(calls)}")
    for clock, seen in sorted(watts.items()):
        law = 90 + 600 * (clock / 1980) ** 3
        print(f"  {clock} MHz: {np.mean(seen):.0f} W per GPU measured in {len(seen)} runs, {law:.0f} W by the law")
    values = np.array(list(found.values()))
    print(f"sweep: {len(found)} plans, {np.nanmin(values, axis=0)} to {np.nanmax(values, axis=0)} (s, J)")
    print(f"tune's best behind the sweep's best, time / energy, after each run: "
          f"{', '.join(behind(found, [plan_key(run) for run in measured]))}")  # fmt: skip


if __name__ == "__main__":
    main()
