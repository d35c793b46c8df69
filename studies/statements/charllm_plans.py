"""Predictions behind the figures of CharLLM-PPT (MICRO'25, arXiv:2509.10371): models, clusters, strategies, options.

Strategies, batch, lengths and options are those of its harness, github.com/sitar-lab/CharLLM-PPT.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import breakdown
from jointopt.physics.explain.timeline import excursion, power_swing, warming
from jointopt.studies.evidence import NOMINAL, STUDIES, Constants, Outcome, fits, outcomes, varied

CLUSTERS = ("h200", "h100")
SIZES = (1, 2, 4, 8)
SHARDED = "tp=8 dp=4 zero_stage=3 sequence_parallel=false"
# in the order of the paper's figures: sharded, then by stages
STRATEGIES: dict[str, dict[str, tuple[str, ...]]] = {
    "h200": {
        "gpt3-175b": (SHARDED, "tp=8 pp=4", "tp=4 pp=8", "tp=2 pp=16", "tp=1 pp=32"),
        "llama-3-70b": (
            SHARDED, "tp=8 pp=2 dp=2", "tp=4 pp=4 dp=2", "tp=2 pp=8 dp=2", "tp=1 pp=16 dp=2"
        ),
        "mixtral-8x7b": ("ep=4 tp=2 dp=16", "ep=8 tp=1 dp=32"),
        "mixtral-8x22b": ("ep=8 tp=4 dp=8", "ep=8 tp=2 pp=2 dp=8", "ep=8 tp=1 pp=4 dp=8"),
    },
    "h100": {
        "gpt3-175b": ("tp=8 pp=8", "tp=4 pp=16", "tp=2 pp=32"),
        "llama-3-70b": ("tp=8 pp=4 dp=2", "tp=4 pp=8 dp=2", "tp=2 pp=16 dp=2", "tp=1 pp=32 dp=2"),
        "mixtral-8x7b": ("ep=8 tp=1 pp=2 dp=32", "ep=4 tp=2 pp=2 dp=16"),
        "mixtral-8x22b": ("ep=8 tp=8 dp=8", "ep=8 tp=4 pp=2 dp=8", "ep=8 tp=2 pp=4 dp=8", "ep=8 tp=1 pp=8 dp=8"),
    },
}  # fmt: skip
# the same tensor ranks on 32 H200 and on twice as many H100, whose stages hold half as many layers
BESIDE = {
    "gpt3-175b": ("tp=2 pp=16", "tp=2 pp=32"), "mixtral-8x22b": ("ep=8 tp=1 pp=4 dp=8", "ep=8 tp=1 pp=8 dp=8")
}  # fmt: skip
MODELS = tuple(STRATEGIES["h200"])
DENSE = MODELS[:2]
PIPELINES = {model: tuple(s for s in STRATEGIES["h200"][model] if "pp=" in s) for model in DENSE}


def harness_job(model: str, cluster: str, link: float | None = None, overlap: bool = False, **more: Any) -> Job:
    """A job of the harness: without its option "cc" nothing overlaps; ``link`` in GB/s, ``more`` of the cluster."""
    job = load_job(STUDIES / "charllm-strategies" / f"{model}-{cluster}.yaml")
    profile = replace(job.training.framework, grouped_experts=False)
    if not overlap:
        profile = replace(profile, tp_overlap=0.0, dp_overlap=0.0)
    if link is not None:
        more["inter_node_gbytes_per_s"] = link
    return replace(
        job, training=replace(job.training, framework=profile), cluster=replace(job.cluster, **more)
    )  # fmt: skip


def plan(strategy: str, size: int = 1, recompute: str = "full") -> str:
    """A strategy of the harness as a plan: plain 1F1B."""
    return f"{strategy} micro_batch_size={size} vpp=1 recompute={recompute}"


def linked(
    model: str, strategy: str, link: float | None, c: Constants, size: int = 1, how: str = "full", overlap: bool = False
) -> Outcome:
    """One strategy on 32 H200 that a link of so many GB/s per GPU joins, the job's where None."""
    job = harness_job(model, "h200", link, overlap)
    return outcomes(job, [plan(strategy, size, how)], replace(c, batch=1.0))[0]


def hours(link: float | None, c: Constants) -> tuple[float, float, float]:
    """Hours of the runs, 11 iterations each, of sharded models for figures 4, 8 and 13 on 32 H200.

    Their start is put at what a run of figure 8 that is not sharded takes in all: 24 hours of these are expected.
    """
    others = sum(strategy != SHARDED for strategies in STRATEGIES["h200"].values() for strategy in strategies)
    start_s = 24.0 * 3600.0 / (4 * others)
    options = [(1, how, overlap) for how in ("none", "full") for overlap in (False, True)]
    ways = ([(1, "full", False)], options, [(size, "full", False) for size in SIZES])
    found = [
        sum(start_s + 11.0 * linked(model, SHARDED, link, c, *way).iteration_time_s for model in DENSE for way in each)
        for each in ways
    ]
    first, second, third = (seconds / 3600.0 for seconds in found)
    return first, second, third


def beside(model: str, link: float | None, c: Constants) -> tuple[Outcome, Outcome]:
    """One strategy on 32 H200 and on 64 H100, with recomputation."""
    few, many = (
        outcomes(harness_job(model, cluster, link), [plan(strategy)], replace(c, batch=1.0))[0]
        for cluster, strategy in zip(CLUSTERS, BESIDE[model], strict=True)
    )
    return few, many


def efficiency(one: Outcome) -> float:
    """Work over time and energy, the harness' samples/(s MJ) of one batch, in 1/(s J)."""
    return 1.0 / (one.iteration_time_s * one.energy_j)


def name(strategy: str) -> str:
    """A strategy as the paper writes it, TP8-PP4."""
    sharded = "zero_stage=3" in strategy
    words = [word for word in strategy.upper().split() if not word.startswith(("ZERO", "DP", "SEQUENCE"))]
    return "-".join([word.replace("=", "") for word in words] + ["FSDP"] * sharded)


@functools.cache
def swept(
    model: str, strategy: str, c: Constants, sizes: tuple[int, ...] = SIZES, link: float | None = None
) -> tuple[Outcome, ...]:
    """Figure 13: one strategy on 32 H200 over micro-batch sizes, with recomputation."""
    job = harness_job(model, "h200", link)
    return tuple(outcomes(job, [plan(strategy, size) for size in sizes], replace(c, batch=1.0)))


@dataclass(frozen=True)
class Moments:
    """Moments of the GPU that has most: W before its limit acts and for how long, °C, K within an iteration."""

    peak_w: float
    limit_w: float
    lasts_s: float
    peak_c: float
    swing_k: float


@functools.cache
def moments(model: str, strategy: str, c: Constants, sizes: tuple[int, ...] = (SIZES[0], SIZES[-1])) -> list[Moments]:
    """One strategy on 32 H200 over micro-batch sizes, with recomputation."""
    job = varied(harness_job(model, "h200"), replace(c, batch=1.0))
    return [_moments(job, plan(strategy, size)) for size in sizes]


def _moments(job: Job, text: str) -> Moments:
    parsed = parse_plan(text, job)
    physics, clocks = CostModel(job, parsed.layouts), parsed.stage_clock_mhz[0]
    parts = breakdown(physics, 0, clocks)
    burst, heat = excursion(physics, 0, clocks, parts), warming(physics, 0, clocks, parts)
    return Moments(
        peak_w=float(burst.peak_w.max()), limit_w=float(burst.limit_w.max()), lasts_s=float(burst.lasts_s.max()),
        peak_c=float(heat.peak_c.max()), swing_k=float((heat.peak_c - heat.trough_c).max()),
    )  # fmt: skip


def metered_w(model: str, strategy: str, size: int) -> float:
    """Highest power of a GPU over one iteration as a meter of 10 Hz has it, passes at their mean and pauses."""
    job = harness_job(model, "h200")
    parsed = parse_plan(plan(strategy, size), job)
    of_stages, _ = power_swing(CostModel(job, parsed.layouts), 0, parsed.stage_clock_mhz[0], 0.1)
    return float(of_stages.peak_w.max())


@functools.cache
def options(model: str, strategy: str, c: Constants, cluster: str = "h200") -> dict[str, Outcome]:
    """Figure 8: base, overlap (cc), recomputation (act), both."""
    found = {}
    for label, overlap, recompute in (
        ("base", False, "none"), ("cc", True, "none"), ("act", False, "full"), ("cc+act", True, "full"),
    ):  # fmt: skip
        job = harness_job(model, cluster, overlap=overlap)
        found[label] = outcomes(job, [plan(strategy, recompute=recompute)], replace(c, batch=1.0))[0]
    return found


@functools.cache
def on_cluster(model: str, cluster: str, link: float | None, c: Constants) -> tuple[float, float, float]:
    """(least s, most s, least J) of an iteration over all strategies that fit, with and without recomputation."""
    job = varied(harness_job(model, cluster, link), replace(c, batch=1.0))
    plans = [plan(strategy, 1, how) for strategy in STRATEGIES[cluster][model] for how in ("none", "full")]
    layouts = [parse_plan(text, job).layouts for text in plans]
    merged: Columns = {key: np.concatenate([one[key] for one in layouts]) for key in layouts[0]}
    physics = CostModel(job, merged)
    found = physics.evaluate(np.arange(len(plans)), np.full((len(plans), 1), physics.top_mhz))
    limit = job.training.framework.memory_fraction * job.cluster.gpu.memory_gib
    held = found["peak_memory_gib"] <= limit
    time, energy = found["iteration_time_s"][held], found["energy_j"][held]
    return float(time.min()), float(time.max()), float(energy.min())


@functools.cache
def adapters(c: Constants = NOMINAL) -> tuple[list[bool], list[tuple[Outcome, Outcome]]]:
    """(whether it fits 32 H200 with LoRA, outcomes of all weights and of adapters) of each strategy of dense models.

    Of the harness' `scripts/experiments/lora`: adapters of rank 32 beside q, k, v, 2,048 tokens, no recomputation.
    """
    held, pairs = list[bool](), list[tuple[Outcome, Outcome]]()
    for model, strategies in PIPELINES.items():
        whole = harness_job(model, "h200")
        whole = replace(whole, training=replace(whole.training, seq_length=2048))
        lora = replace(whole.training, lora_dim=32, lora_target_modules=("linear_qkv",))
        plans = [plan(strategy, recompute="none") for strategy in strategies]
        both = [outcomes(job, plans, replace(c, batch=1.0)) for job in (whole, replace(whole, training=lora))]
        held += [fits(whole, one) for one in both[1]]
        pairs += zip(*both, strict=True)
    return held, pairs


def all_fit(cluster: str, c: Constants = NOMINAL) -> tuple[int, int]:
    """(strategies that fit with recomputation and one sequence, all strategies)."""
    count = total = 0
    for model, strategies in STRATEGIES[cluster].items():
        job = harness_job(model, cluster)
        for one in outcomes(job, [plan(strategy) for strategy in strategies], replace(c, batch=1.0)):
            count, total = count + fits(job, one), total + 1
    return count, total
