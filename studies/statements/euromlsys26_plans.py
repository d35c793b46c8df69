"""Predictions behind the figures of EuroMLSys'26 (doi 10.1145/3805621.3807634), each worked out once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.studies.evidence import NOMINAL, Constants, Outcome, clock_sweep, outcomes, varied, with_batch

LAYOUTS = ("dp=8 pp=4 tp=1", "dp=4 pp=8 tp=1", "dp=8 pp=2 tp=2", "dp=4 pp=4 tp=2", "dp=4 pp=2 tp=4", "dp=2 pp=4 tp=4")
SIZES = (1, 2, 4)
# a group of 4 experts' ranks in a node of 4, as the paper has it; with tp 2 one lies over 8 GPUs, two nodes
EXPERT_LAYOUTS = ("dp=32 pp=1 tp=1", "dp=16 pp=2 tp=1", "dp=8 pp=4 tp=1")
ACROSS_NODES = ("dp=16 pp=1 tp=2", "dp=8 pp=2 tp=2")
FOUR = {
    "A": "dp=4 pp=1 tp=2 micro_batch_size=1", "B": "dp=2 pp=2 tp=2 micro_batch_size=2",
    "C": "dp=2 pp=2 tp=2 micro_batch_size=1", "D": "dp=1 pp=4 tp=2 micro_batch_size=4",
}  # fmt: skip
# DeepSpeed's partition_method "parameters", embedding and head counted: a stage of two has 12 layers as by layers
BY_PARAMETERS = FOUR | {"D": f"{FOUR['D']} stage_layers=5;7;7;5"}
BATCHES = (256, 512, 1024)
LOWEST_MHZ = 780.0  # below it every curve of figure 5 has passed its valley
_WORDS = {"dp": "dp", "pp": "pp", "tp": "tp", "mbs": "micro_batch_size"}  # as the paper writes a layout
Key = TypeVar("Key")


@functools.cache
def dense(constants: Constants) -> dict[tuple[str, int], Outcome]:
    """Figure 1: predictions by layout and micro-batch size."""
    names = list(itertools.product(LAYOUTS, SIZES))
    plans = [f"{layout} micro_batch_size={size}" for layout, size in names]
    return dict(zip(names, outcomes(shipped_job("opt-350m-8x4-gh200"), plans, constants), strict=True))


@functools.cache
def experts(constants: Constants, layouts: tuple[str, ...] = EXPERT_LAYOUTS, size: int = 1) -> dict[str, list[Outcome]]:
    """Figure 2: predictions by layout at expert-parallel degrees 1, 2 and 4."""
    job = shipped_job("olmoe-1b-7b-8x4-gh200")
    return {
        layout: outcomes(job, [f"{layout} ep={ep} micro_batch_size={size}" for ep in (1, 2, 4)], constants)
        for layout in layouts
    }


def on_two_nodes(batch: int) -> Job:
    """The job of figure 5 at so many sequences per iteration."""
    return with_batch(shipped_job("opt-350m-2x4-a100"), batch)


def over_batches(job: Job, plans: Mapping[Key, str]) -> Iterator[tuple[int, Key, Outcome]]:
    """Outcomes of plans, each by its key, at every batch of the paper in turn."""
    for batch in BATCHES:
        for key, found in zip(plans, outcomes(with_batch(job, batch), list(plans.values())), strict=True):
            yield batch, key, found


def on_one_gpu() -> Job:
    """The job of figures 3 and 4."""
    job = on_two_nodes(256)
    return replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=1))


@functools.cache
def every_layout(batch: int, c: Constants) -> dict[tuple[str, str], tuple[str, float]]:
    """The layout and value that is least of figure 5's job, by (flat or deep: without or with stages, prediction).

    Of all layouts that fit, at any clock, waiting stages slowed first; and the least energy of the fastest layout.
    """
    job = varied(on_two_nodes(batch), replace(c, batch=1.0))
    physics = CostModel(job, enumerate_layouts(job).layouts)
    grid = np.arange(len(job.search.clock_mhz))[::-4]  # the top clock among them
    index = np.repeat(np.arange(len(physics.layouts["pp"])), len(grid))
    clocks = physics.stage_clocks(index, np.tile(grid, len(index) // len(grid)), np.ones(len(index)))
    found, best = physics.evaluate(index, clocks), {}
    for kind, alike in {"flat": physics.layouts["pp"][index] == 1, "deep": physics.layouts["pp"][index] > 1}.items():
        allowed = np.where(alike & (found["violation"] <= 0.0), 1.0, np.inf)
        for name in ("iteration_time_s", "energy_j"):
            row = int((found[name] * allowed).argmin())
            words = "-".join(f"{word}{physics.layouts[key][index[row]]}" for word, key in _WORDS.items())
            best[kind, name] = words, float(found[name][row])
    fits = np.where(found["violation"] <= 0.0, 1.0, np.inf)
    fastest = index[(found["iteration_time_s"] * fits).argmin()]
    least = (found["energy_j"] * fits)[index == fastest].min()
    words, _ = min(best["flat", "iteration_time_s"], best["deep", "iteration_time_s"], key=lambda pair: pair[1])
    return best | {("fastest", "energy_j"): (words, float(least))}


@functools.cache
def one_gpu(constants: Constants) -> Columns:
    """Figures 3 and 4: one A100 at every clock, ascending."""
    return clock_sweep(on_one_gpu(), "micro_batch_size=1", 0.0, replace(constants, batch=1.0))


def falling_clocks(job: Job, plan: str) -> Columns:
    """Plans of one layout from the top clock down: the slack of its stages is spent first, then all slow down.

    ``lowest_mhz``: of the stages; ``spent``: the share of the slack that is spent.
    """
    layout = parse_plan(plan, job).layouts
    physics, deep = CostModel(job, layout), int(layout["pp"][0]) > 1
    grid = np.asarray(job.search.clock_mhz)
    lower = np.arange(len(grid) - 1, np.searchsorted(grid, LOWEST_MHZ) - 1, -1)
    share = np.linspace(0.0, 1.0, 12) if deep else np.ones(1)
    clock = np.concatenate([np.full(len(share), len(grid) - 1), lower[1:]])
    spent = np.concatenate([share, np.ones(len(lower) - 1)])
    index = np.zeros(len(clock), np.int64)
    stages = physics.stage_clocks(index, clock, spent)
    clocks = {"stage_clock_mhz": stages, "clock_mhz": grid[clock], "lowest_mhz": np.nanmin(stages, axis=1)}
    return physics.evaluate(index, stages) | clocks | {"spent": spent}


@functools.cache
def falling(letter: str, batch: int, constants: Constants = NOMINAL, by_parameters: bool = False) -> Columns:
    """Figure 5: one of its layouts as its clocks fall."""
    plans = BY_PARAMETERS if by_parameters else FOUR
    return falling_clocks(varied(on_two_nodes(batch), replace(constants, batch=1.0)), plans[letter])


@functools.cache
def at_top(batch: int, constants: Constants = NOMINAL, by_parameters: bool = False) -> dict[str, Outcome]:
    """Figure 5: the four layouts at the maximum clock."""
    plans = BY_PARAMETERS if by_parameters else FOUR
    found = outcomes(on_two_nodes(batch), list(plans.values()), replace(constants, batch=1.0))
    return dict(zip(plans, found, strict=True))
