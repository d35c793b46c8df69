"""The worth of free stage splits, and what hill climbing over the layers of single chunks finds beyond them.

    .venv/bin/python tests/bench/bench_splits.py [JOB ...]

`propose` lists few splits of a pipeline (`jointopt.jobs.plans.stages.offered_splits`) and searches others
(`jointopt.workflows.feasible_layouts`): the ends of its front without and with these. From the fastest plan of each of
the first four combinations of degrees on the front with them one layer after the other moves to another chunk, as long
as that helps: the time at the top clock, or the least energy within 5 % more than the least time of all, each plan at
every clock without and with its slack used. By the physics alone; of more than `MOST` moves so many are tried.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jointopt.core.schema import STAGE_LAYERS, Floats
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job, shipped_job
from jointopt.jobs.plans.stages import can_be_built, framework_split
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.search.pareto import concat
from jointopt.workflows import feasible_layouts
from jointopt.workflows.propose import propose

JOBS = ("gpt3-175b-128x8-a100", "llama-3-405b-2048x8-h100", "llama-3-70b-4x8-h200", "mixtral-8x22b-8x8-h100")
PLANS, MOST, STEPS, LATER = 4, 200, 30, 1.05
DEGREES = ("tp", "pp", "cp", "vpp", "ep")
KEYS = (
    "dp", *DEGREES, "micro_batch_size", "sequence_parallel", "recompute", "zero_stage", "schedule",
    "recompute_modules", "recompute_num_layers",
)  # fmt: skip
Split = tuple[int, ...]


def priced(job: Job, plan: dict[str, Any], splits: list[Split]) -> tuple[Floats, Floats, Floats]:
    """Time and energy (splits, clocks and slack) of a plan under each split, and its memory (splits,)."""
    texts = [plan | {"stage_layers": ";".join(map(str, split))} for split in splits]
    physics, clocks = (
        CostModel(job, concat([parse_plan(text, job).layouts for text in texts])),
        len(job.search.clock_mhz),
    )
    layout, clock = np.repeat(np.arange(len(splits)), 2 * clocks), np.tile(np.arange(clocks), 2 * len(splits))
    slack = np.tile(np.repeat([0.0, 1.0], clocks), len(splits))
    found = physics.evaluate(layout, physics.stage_clocks(layout, clock, slack))
    time_s, energy_j = (found[name].reshape(len(splits), -1) for name in ("iteration_time_s", "energy_j"))
    return time_s, energy_j, physics.memory_bytes


def neighbours(job: Job, split: Split) -> Iterator[Split]:
    """The splits that differ by one layer on another chunk, as the framework takes them."""
    for giver in range(len(split)):
        for taker in range(len(split)):
            moved = list(split)
            moved[giver], moved[taker] = moved[giver] - 1, moved[taker] + 1
            if giver != taker and min(moved) >= 0 and can_be_built(job.training.framework, moved):
                yield tuple(moved)


def climbed(score: Callable[[list[Split]], Floats], job: Job, split: Split) -> tuple[float, float, Split]:
    """The score of a split, the best that single layers lead to from it, and that split."""
    start = best = float(score([split])[0])
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        new = list(neighbours(job, split))
        if len(new) > MOST:
            new = [new[i] for i in rng.permutation(len(new))[:MOST]]
        scores = score(new) if new else np.full(1, np.inf)
        if scores.min() >= best * (1.0 - 1e-6):
            break
        best, split = float(scores.min()), new[int(scores.argmin())]
    return start, best, split


def front(job: Job, *, free: bool = True) -> list[dict[str, Any]]:
    """The plans of a job's front, with or without searched splits."""
    kept = feasible_layouts.free_splits
    feasible_layouts.free_splits = kept if free else lambda *_: []
    try:
        rows: list[dict[str, Any]] = propose(job, surrogate="none").to_dict()["front"]
    finally:
        feasible_layouts.free_splits = kept
    return rows


def ends(rows: list[dict[str, Any]]) -> str:
    """The least time and the least energy of a front."""
    return " s, ".join(f"{min(row[name] for row in rows):.5g}" for name in ("iteration_time_s", "energy_j")) + " J"


def lines(job: Job) -> Iterator[str]:
    """A line per plan."""
    rows = front(job)
    yield f"without free splits {ends(front(job, free=False))}, with {ends(rows)}"
    deadline_s = LATER * min(row["iteration_time_s"] for row in rows)
    seen: set[tuple[int, ...]] = set()
    for row in sorted(rows, key=lambda row: row["iteration_time_s"]):
        degrees = tuple(int(row[name]) for name in DEGREES)
        whole = framework_split(job, row["pp"], row["vpp"])
        if row["pp"] == 1 or degrees in seen or len(seen) == PLANS:
            continue
        seen.add(degrees)
        plan = {name: row[name] for name in KEYS if row.get(name) not in (None, "")}
        split = STAGE_LAYERS.numbers(STAGE_LAYERS.code(row["stage_layers"] or "")) or tuple(map(int, whole))
        room = float(priced(job, plan, [split])[2][0])

        def time(splits: list[Split], plan: dict[str, Any] = plan, room: float = room) -> Floats:
            time_s, _, memory = priced(job, plan, splits)
            return np.where(memory <= room, time_s.min(axis=1), np.inf)

        def energy(splits: list[Split], plan: dict[str, Any] = plan, room: float = room) -> Floats:
            time_s, energy_j, memory = priced(job, plan, splits)
            return np.where((time_s <= deadline_s) & (memory <= room)[:, None], energy_j, np.inf).min(axis=1)

        named = " ".join(f"{name}={value}" for name, value in zip(DEGREES, degrees, strict=True))
        parts = []
        for what, score in (("time", time), ("energy", energy)):
            start, best, _ = climbed(score, job, split)
            parts.append(f"{what} {start:.5g} -> {best:.5g} ({100.0 * (1.0 - best / start):.2f} % less)")
        yield f"{named}: {', '.join(parts)}"


def main() -> None:
    for name in sys.argv[1:] or JOBS:
        job = load_job(name) if name.endswith(".yaml") else shipped_job(name)
        print(name, flush=True)
        for line in lines(job):
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
