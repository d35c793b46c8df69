"""Statements of Go et al., Characterizing the Efficiency of Distributed Training (MICRO'25, arXiv:2509.10371).

At hand were its abstract, the settings and plotting scripts of its harness (axes, no results), and what others wrote
down while they read its full text: three readings with figures, and shorter summaries. Statements of these are at
second hand, and where they differ the one with figures counts. Its pictures were not at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import breakdown
from jointopt.physics.traffic import collective_time_s
from jointopt.studies.evidence import SPANS, Constants, Outcome, fits, varied
from jointopt.studies.statements.charllm_plans import (
    BESIDE,
    DENSE,
    MODELS,
    PIPELINES,
    SHARDED,
    STRATEGIES,
    adapters,
    all_fit,
    beside,
    efficiency,
    harness_job,
    hours,
    linked,
    moments,
    name,
    on_cluster,
    options,
    plan,
    swept,
)  # fmt: skip
from jointopt.studies.statements.statement import (
    ENERGY,
    EXPERT_ENERGY,
    EXPERT_TIME,
    MEMORY,
    MOST_OFF,
    POWER,
    Finding,
    Grade,
    Statement,
    alike,
    either,
    near,
    order,
    whole,
)  # fmt: skip
from jointopt.surrogate.intervals import physics_errors

OPEN = {key: span for key, span in SPANS.items() if key != "batch"}
# GB/s per GPU between nodes: with a port of 100 Gb/s for each GPU instead of the node, and half of a node's
FAST, SLOW = 12.5, 0.8
_SWEPT = [(model, strategy) for model in DENSE for strategy in PIPELINES[model]]
_EVERY = [(model, strategy) for model in DENSE for strategy in STRATEGIES["h200"][model]]
_SHARDED = [(model, SHARDED) for model in DENSE]
_INLET_C = 22.0
_FIRST, _SECOND = (0, 1, 2, 3), (4, 5, 6, 7)  # local ranks of half a node


@dataclass(frozen=True)
class Cooled:
    """An iteration where the air differs: K between the hottest stage's mean temperature and the coolest's."""

    seconds: float
    joules: float
    gap_k: float

    @property
    def efficiency(self) -> float:
        """As `efficiency` of an outcome."""
        return 1.0 / (self.seconds * self.joules)


def _fits(c: Constants) -> Finding:
    found = {cluster: all_fit(cluster, c) for cluster in ("h200", "h100")}
    words = ", ".join(f"{some} of {every} on {cluster.upper()}" for cluster, (some, every) in found.items())
    all_run = all(some == every for some, every in found.values())
    return Finding(words, Grade.REPRODUCED if all_run else Grade.CONTRADICTED)


def _cluster(_: Constants) -> Finding:
    cluster = harness_job("gpt3-175b", "h200").cluster
    watts = cluster.gpu.need("tdp_w", "compare it")
    return Finding(
        f"{64.0 * cluster.inter_node_gbytes_per_s:.0f} Gb/s a node, {watts:.0f} W in the job files", Grade.INPUT
    )


def _bound(link: float | None, what: int, c: Constants) -> list[float]:
    """64 H100 over 32 H200, of each model: seconds (0) or joules (2) of an iteration."""
    return [on_cluster(model, "h100", link, c)[what] / on_cluster(model, "h200", link, c)[what] for model in MODELS]


def _scale_out(c: Constants) -> Finding:
    ratios = 1.0 / np.array(_bound(None, 0, c)[1:3])
    return order(f"64 H100 {ratios.min():.2f} to {ratios.max():.2f} times as fast as 32 H200", ratios, EXPERT_TIME)


def _not_only_capacity(c: Constants) -> Finding:
    ratios = 2.0 * np.array(_bound(None, 0, c))
    words = f"twice the GPUs: {2.0 / ratios.max():.2f} to {2.0 / ratios.min():.2f} times the throughput"
    return order(words, ratios, EXPERT_TIME)


def _scale_up(c: Constants) -> Finding:
    """GPT-3 with two tensor ranks is faster on 32 H200, with what a doubling of nodes is known to add on 64 H100."""
    nodes = 1.0 + max(physics_errors()["nodes"]["interval"])
    few, many = beside("gpt3-175b", None, c)
    ratio = nodes * many.iteration_time_s / few.iteration_time_s
    return order(f"64 H100 take {ratio:.2f} of its time, {nodes - 1.0:.1%} for the nodes added", ratio, EXPERT_TIME)


def _scale_up_fastest(c: Constants) -> Finding:
    """On an ever slower network, some model's fastest strategy is faster on 32 H200."""
    ratios = _bound(SLOW, 0, c)
    words = f"at {SLOW} GB/s 64 H100 take {min(ratios):.2f} to {max(ratios):.2f} of the time"
    return order(words, max(ratios))


def _scale_up_energy(c: Constants) -> Finding:
    pairs = [beside(model, None, c) for model in BESIDE]
    ratios = [many.energy_j / few.energy_j for few, many in pairs]
    return order(f"64 H100 take {min(ratios):.2f} to {max(ratios):.2f} of the energy", ratios, EXPERT_ENERGY)


def _tuned(c: Constants) -> Finding:
    ratios = [on_cluster(model, "h100", SLOW, c)[1] / on_cluster(model, "h200", SLOW, c)[0] for model in MODELS]
    words = f"the slowest strategy of 64 H100 takes {min(ratios):.1f} to {max(ratios):.1f} times the fastest of 32 H200"
    return order(words, max(ratios))


def _reached(strategy: str, c: Constants, link: float | None = None) -> float:
    """Share of the network's bandwidth that a send between stages reaches."""
    job = varied(harness_job("gpt3-175b", "h200", link), c)
    physics = CostModel(job, parse_plan(plan(strategy), job).layouts)
    tensor = float(physics.layouts["tp"][0])
    moved = 2.0 * job.training.seq_length * job.model.hidden_size / tensor
    hardware = physics.hardware
    seconds = collective_time_s("p2p", moved, 2, 1, hardware.constants.collectives, hardware.links)
    return moved / (float(seconds) * job.cluster.inter_node_gbytes_per_s * 1e9)


def _chunks(c: Constants) -> Finding:
    alone, split = _reached("tp=1 pp=32", c), _reached("tp=8 pp=4", c)
    return order(f"a send reaches {alone:.0%} of the link at TP1, {split:.0%} at TP8", alone / split)


def _chunks_cost(c: Constants, link: float | None) -> Finding:
    """Sends take a twentieth of the time at least."""
    job, shares = harness_job("gpt3-175b", "h200", link), []
    for strategy in PIPELINES["gpt3-175b"]:
        one, rate = linked("gpt3-175b", strategy, link, c), _reached(strategy, c, link)
        shares.append(one.inter_bytes / (job.cluster.inter_node_gbytes_per_s * 1e9 * one.iteration_time_s * rate))
    return order(f"sends take {min(shares):.1%} to {max(shares):.1%} of the time", np.array(shares) / 0.05)


def _hours(c: Constants, link: float | None = None) -> Finding:
    first, second, third = hours(link, c)
    words = f"{third:.0f} h, {second:.0f} of figure 8's 36 and {first:.0f} of figure 4's 10"
    return near(third, 24.0, words)


def _by_port(check: Callable[[Constants, float | None], Finding], c: Constants) -> Finding:
    """With a port for each node, as the hours of C21 say, and for each GPU."""
    per_gpu = check(c, FAST)
    return either(check(c, None), replace(per_gpu, ours=f"a port for each GPU: {per_gpu.ours}"))


def _axes(c: Constants, link: float | None) -> Finding:
    """GPT-3 at one sequence is within the axes that the harness draws."""
    sharded, *piped = (linked(*one, link, c).iteration_time_s for one in _EVERY if one[0] == "gpt3-175b")
    words = f"{min(piped):.0f} to {max(piped):.0f} s, sharded {sharded:,.0f} s"
    return order(words, [40.0 / max(piped), 1800.0 / sharded], sized=False)


def _kernels(c: Constants, link: float | None) -> Finding:
    """Compute over all kernels, those of collectives while they wait too: Mixtral's below a half, Llama's above."""
    sparse = swept("mixtral-8x22b", "ep=8 tp=4 dp=8", c, (1,), link)[0]
    share = sparse.sm_active / sparse.gpu_utilization
    piped = [swept("llama-3-70b", strategy, c, (1,), link)[0] for strategy in PIPELINES["llama-3-70b"]]
    dense = np.array([one.sm_active / one.gpu_utilization for one in piped])
    return whole(
        order(f"compute is {share:.0%} of Mixtral's kernels", 0.5 / share, EXPERT_TIME),
        order(f"{min(dense):.0%} to {max(dense):.0%} of Llama's", dense / 0.5),
    )


def _either_way(c: Constants) -> Finding:
    """Sharded GPT-3 three times as fast with four sequences; its pipeline of 16 stages less efficient."""
    one, _, four, _ = (each.iteration_time_s for each in swept("gpt3-175b", SHARDED, c))
    first, _, fourth, _ = (efficiency(each) for each in swept("gpt3-175b", "tp=2 pp=16", c))
    words = f"TP8-FSDP {one / four:.1f} times as fast, TP2-PP16 {fourth / first:.2f} times as efficient"
    return whole(order(words, one / four), order("", first / fourth, ENERGY))


def _larger(c: Constants, strategies: Sequence[tuple[str, str]] = _EVERY) -> Finding:
    """From 1 to 8 sequences: peak over average power, the peak before the limit acts, the hottest moment, the clock."""
    rows = [swept(model, strategy, c) for model, strategy in strategies]
    pairs = [moments(model, strategy, c) for model, strategy in strategies]
    bursts = [row[-1].peak_power_w / row[-1].avg_power_w * row[0].avg_power_w / row[0].peak_power_w for row in rows]
    peaks = [large.peak_w / small.peak_w for small, large in pairs]
    heat = [(large.peak_c - _INLET_C) / (small.peak_c - _INLET_C) for small, large in pairs]
    clocks = [row[0].clock_mhz / row[-1].clock_mhz for row in rows]
    hotter = [large.peak_c - small.peak_c for small, large in pairs]
    above = [one.peak_w - one.limit_w for pair in pairs for one in pair]
    return whole(
        order(f"peak over average power {min(bursts):.2f} to {max(bursts):.2f} times", bursts, POWER),
        order(f"before the limit acts {min(above):.0f} to {max(above):.0f} W above it at any size", peaks, POWER),
        order(f"hottest moment {min(hotter):+.0f} to {max(hotter):+.0f} K", heat, POWER),
        order(f"clocks {1.0 / max(clocks) - 1.0:+.1%} to {1.0 / min(clocks) - 1.0:+.1%}", clocks, POWER),
    )


def _over_options(c: Constants, first: str, second: str) -> list[tuple[str, Outcome, Outcome]]:
    """(strategy, outcomes under both options) of the dense models' strategies that fit under both."""
    found = []
    for model, strategy in _SWEPT:
        both = [options(model, strategy, c)[option] for option in (first, second)]
        if all(fits(harness_job(model, "h200"), one) for one in both):
            found.append((strategy, both[0], both[1]))
    return found


def _span(pairs: list[tuple[str, Outcome, Outcome]], key: str) -> str:
    """The least and most relative change of a prediction from the first to the second."""
    found = [getattr(after, key) / getattr(before, key) - 1.0 for _, before, after in pairs]
    return f"{min(found):+.0%} to {max(found):+.0%}"


def _recompute(c: Constants) -> Finding:
    pairs = _over_options(c, "base", "act")
    words = f"time {_span(pairs, 'iteration_time_s')}, energy {_span(pairs, 'energy_j')}"
    return whole(
        order(
            f"{words}, memory {_span(pairs, 'peak_memory_gib')}",
            [b.iteration_time_s / a.iteration_time_s for _, a, b in pairs],
        ),
        order("", [b.energy_j / a.energy_j for _, a, b in pairs], ENERGY),
        order("", [a.peak_memory_gib / b.peak_memory_gib for _, a, b in pairs], MEMORY),
    )


def _unlocks(c: Constants, link: float | None) -> Finding:
    """With recomputation Mixtral needs one tensor rank alone, which is twice as efficient."""
    *others, first = STRATEGIES["h200"]["mixtral-8x22b"]
    job = harness_job("mixtral-8x22b", "h200")
    plain, held = (linked("mixtral-8x22b", first, link, c, 1, how) for how in ("none", "full"))
    best = max(efficiency(linked("mixtral-8x22b", strategy, link, c, 1, "none")) for strategy in others)
    gain, new = efficiency(held) / best, fits(job, held) and not fits(job, plain)
    return whole(
        Finding("" if new else "it fits without, too", Grade.REPRODUCED if new else Grade.CONTRADICTED),
        order(
            f"{gain:.1f} times as efficient as the best without", gain, EXPERT_ENERGY,
            sized=gain > 2.0 * (1.0 - MOST_OFF),
        ),
    )  # fmt: skip


def _recompute_throttles(c: Constants) -> Finding:
    """Clocks reached: higher in GPT-3's deepest pipeline that fits, lower in sharded Llama."""
    deep, sharded = options("gpt3-175b", PIPELINES["gpt3-175b"][2], c), options("llama-3-70b", SHARDED, c)
    clocks = [one[option].clock_mhz for one in (deep, sharded) for option in ("base", "act")]
    mhz = [f"{before:,.0f} to {after:,.0f} MHz" for before, after in (clocks[:2], clocks[2:])]
    return order(
        f"GPT-3 TP2-PP16 {mhz[0]}, Llama TP8-FSDP {mhz[1]}", [clocks[1] / clocks[0], clocks[2] / clocks[3]], POWER
    )


def _overlap(c: Constants) -> Finding:
    pairs = [one for one in _over_options(c, "base", "cc") if "tp=1" not in one[0]]
    rises = [b.temperature_c - a.temperature_c for _, a, b in pairs]
    words = f"{min(rises):+.1f} to {max(rises):+.1f} K, power {_span(pairs, 'avg_power_w')}"
    words = f"{words}, time {_span(pairs, 'iteration_time_s')}"
    return order(words, [(b.temperature_c - _INLET_C) / (a.temperature_c - _INLET_C) for _, a, b in pairs], POWER)


def _overlap_gains(c: Constants) -> Finding:
    """Overlap speeds up TP8, sharded or not, and pipelines of one or two tensor ranks not."""
    wide, deep = list[float](), list[float]()
    for model, strategy in _EVERY:
        if "tp=4" not in strategy:
            found = options(model, strategy, c)
            gain = found["act"].iteration_time_s / found["cc+act"].iteration_time_s
            (wide if "tp=8" in strategy else deep).append(gain)
    words = f"TP8 {min(wide):.2f} to {max(wide):.2f} times as fast, TP1 and TP2 {min(deep):.2f} to {max(deep):.2f}"
    return whole(order(words, wide), alike("", deep))


def _deep_throttles(c: Constants) -> Finding:
    clocks = {s: swept("gpt3-175b", s, c)[0].clock_mhz for s in PIPELINES["gpt3-175b"]}
    words = ", ".join(f"{name(s)} {mhz:,.0f} MHz" for s, mhz in clocks.items())
    shallow, *_, deep = clocks.values()
    return order(words, shallow / deep, POWER)


def _hot_row(c: Constants) -> Finding:
    cool, warm, hot = (_in_air(rise, c).seconds for rise in (0.0, 15.0, 45.0))
    words = f"{cool:.1f} s, {warm:.1f} s, {hot:.1f} s with an exhaust row 0, 15, 45 K above the inlet"
    return order(f"GPT-3 TP4-PP8: {words}", warm / cool)


def _in_air(rise: float, c: Constants, row: tuple[int, ...] | None = None, layers: str = "") -> Cooled:
    """GPT-3 TP4-PP8, whose stages fill half a node each, with local ranks ``row`` in the exhaust."""
    return _cooled(harness_job("gpt3-175b", "h200", exhaust_rise_k=rise, exhaust_ranks=row), "tp=4 pp=8", c, layers)


def _cooled(job: Job, strategy: str, c: Constants, layers: str) -> Cooled:
    """Seconds, joules and the K between the stages' mean temperatures, most to least."""
    job = varied(job, c)
    parsed = parse_plan(plan(strategy) + (f" stage_layers={layers}" if layers else ""), job)
    one = breakdown(CostModel(job, parsed.layouts), 0, parsed.stage_clock_mhz[0])
    seconds, joules = sum(one.time_s.values()), float(one.stage_energy_j.sum())
    return Cooled(seconds, joules, float(np.ptp(one.stage_temperature_c)))


def _placed(c: Constants) -> Finding:
    gains = [_in_air(15.0, c).seconds / _in_air(15.0, c, row).seconds - 1.0 for row in (_SECOND, _FIRST)]
    return order(f"{max(gains):.1%} at best, an exhaust row of 15 K", 1.0 + max(gains))


def _moved(c: Constants) -> Finding:
    """Stages in the cool row hold 13 layers of GPT-3, those in the exhaust 11."""
    even, moved = _in_air(15.0, c, _SECOND), _in_air(15.0, c, _SECOND, ";".join(["13;11"] * 4))
    lost, closer = even.efficiency / moved.efficiency, even.gap_k / moved.gap_k
    words = f"{1.0 - 1.0 / lost:.1%} less efficient, a gap of {even.gap_k:.1f} K {1.0 - 1.0 / closer:.0%} smaller"
    sized = [abs((1.0 - 1.0 / ratio) / paper - 1.0) <= MOST_OFF for ratio, paper in ((lost, 0.07), (closer, 0.17))]
    return whole(order(words, lost, ENERGY, sized[0]), order("", closer, POWER, sized[1]))


def _moved_llama(c: Constants) -> Finding:
    """The same of one of Llama's two replicas, 16 GPUs: 21 layers and 19."""
    job = harness_job("llama-3-70b", "h200", exhaust_rise_k=15.0, exhaust_ranks=_SECOND, nodes=2)
    job = replace(job, training=replace(job.training, global_batch_size=64))
    even, moved = (_cooled(job, "tp=4 pp=4", c, layers) for layers in ("", "21;19;21;19"))
    gain, closer = moved.efficiency / even.efficiency, 1.0 - moved.gap_k / even.gap_k
    return order(f"{gain - 1.0:+.1%}, a gap of {even.gap_k:.1f} K {closer:.0%} smaller", gain, ENERGY)


def _adapters(c: Constants) -> Finding:
    held, pairs = adapters(c)
    power = [after.avg_power_w / before.avg_power_w for before, after in pairs]
    gains = [
        before.energy_j * before.iteration_time_s / (after.energy_j * after.iteration_time_s) for before, after in pairs
    ]
    words = f"power {min(power) - 1.0:+.0%} to {max(power) - 1.0:+.0%}, throughput over energy {min(gains):.1f} to"
    return whole(
        order(f"{words} {max(gains):.1f} times", 1.0 / np.array(power), POWER),
        order(f"{sum(held)} of {len(held)} strategies fit", np.array(gains) / 10.0, ENERGY),
    )


_HALF = (
    "the model sends the same bytes per micro-batch on both, and 64 GPUs share the micro-batches. Congestion, jitter "
    "and the slowest of many do not explain it: recorded runs that differ in data ranks alone take 1 % longer for each "
    "doubling of the nodes (90 %: 0.3 to 1.6, physics_error.yaml), where 40 % would be needed"
)
_MEAN = (
    "in pipelines larger micro-batches have more bubble, so GPUs rest longer: power gets bursty, the hottest moment "
    "falls (with a time constant of 14 or 75 s too). Sharded, GPUs rest less, and get hotter and steadier. Boards "
    "exceed their limit by nearly as much at any size, for 25 ms: the tensor ranks decide how large kernels are. The "
    "harness' peak is the highest reading of NVML's instantaneous power of any GPU"
)
_PORT = "how many ports a node has would tell: one was chosen by hours that its harness expects (C21)"
_SPLIT = "15 K of exhaust are put in; efficiency is that of the harness, samples/(s MJ)"
STATEMENTS = (
    Statement("C1", "harness", "its strategies run on 32 H200 and 64 H100", "all", _fits, varies=False),
    Statement("C2", "abstract, readings", "64 H100 are faster for Llama-3-70B and Mixtral-8x7B", "higher", _scale_out),
    Statement("C3", "abstract", "performance is not hardware capacity alone", "not alone", _not_only_capacity),
    Statement(
        "C4", "abstract, readings", "32 H200 outperform where communication binds: GPT-3 TP2-PP16", "higher", _scale_up,
        _HALF,
        (
            ("fastest strategies", _scale_up_fastest),
            ("tuned against untuned", _tuned),
        ),
    ),
    Statement(
        "C37", "readings", "and take less energy a token: GPT-3 TP2-PP16, Mixtral-8x22B EP8-TP1-PP4", "less",
        _scale_up_energy,
    ),
    Statement(
        "C8", "abstract", "tensor with pipeline under-uses bandwidth through small chunks", "under-used", _chunks,
    ),
    Statement(
        "C10", "readings", "which stalls compute", "costs", partial(_by_port, _chunks_cost), _PORT,
    ),
    Statement(
        "C21", "harness", "its eight sharded runs of figure 13 take 24 hours", "24 h", _hours,
        "one port of 100 Gb/s a node was chosen by the 36 hours that it expects of figure 8's eight (a port for each "
        "GPU: 9, two a node: 22), two of which are figure 4's, so that figure 13's alone are judged",
        (("a port for each GPU", partial(_hours, link=FAST)),),
    ),
    Statement(
        "C44", "harness, 15", "kernels of GPT-3's iteration within axes of 40 s, sharded 1,800 s", "40, 1,800",
        partial(_by_port, _axes),
        f"{_PORT}; gradients that are summed before they are sent would take a third off the sharded time",
    ),
    Statement(
        "C38", "3, readings", "communication is over half of Mixtral-8x22B EP8-TP4, less of Llama-3-70B", "half",
        partial(_by_port, _kernels),
        f"{_PORT}. SM active over GPU utilization, which counts collectives while they wait; Llama without TP8-FSDP",
    ),
    Statement(
        "C39", "13, readings", "4 sequences: TP8-FSDP more than 3 times as fast; TP2-PP16 less efficient", "> 3, less",
        _either_way,
    ),
    Statement(
        "C12", "abstract, readings", "larger micro-batches: bursty, higher peaks, hotter, lower clocks, faster or not",
        "all", _larger, _MEAN,
        (
            ("pipelines", partial(_larger, strategies=_SWEPT)), ("TP8-FSDP", partial(_larger, strategies=_SHARDED)),
        ),
    ),
    Statement("C15", "abstract, readings", "recomputation costs time and energy, frees memory", "costs", _recompute),
    Statement(
        "C40", "readings", "and lets Mixtral-8x22B run as EP8-TP1-PP4, more than twice as efficient", "> 2",
        partial(_by_port, _unlocks), _PORT,
    ),
    Statement(
        "C28", "readings", "recomputation: less throttling in GPT-3's deep pipelines, more in sharded Llama", "both",
        _recompute_throttles, "the clock that the power limit leaves is nearly the same: kernels decide it, not memory",
    ),
    Statement("C16", "readings", "overlap raises the peak temperature", "raises", _overlap),
    Statement(
        "C41", "readings", "overlap gains where communication is heavy, not in deep pipelines", "gains", _overlap_gains,
        "that it may harm deep ones is not in the model, where kernels of pipelines share nothing with their sends",
    ),
    Statement(
        "C29", "readings", "pipelines of 16 and 32 stages throttle more than few", "more", _deep_throttles,
        "in the same order",
    ),
    Statement(
        "C17", "5, 17, readings", "GPUs in the exhaust are up to 27 % hotter, and slow the whole job", "27 %, slows",
        _hot_row,
        "the exhaust's 15 K, 27 % of 57 °C, are put in here; what throttling at that temperature cost would tell",
    ),
    Statement(
        "C30", "reading", "ranks placed by temperature gain up to 2 %", "2 %", _placed,
        "GPT-3 TP4-PP8; at 30 K 2 % (charllm-temperature). A gain of 2 % is a tie whatever the model says",
    ),
    Statement(
        "C42", "reading", "GPT-3 with 11 layers in the exhaust, 13 before: 7 % less efficient, gap 17 % smaller",
        "7, 17 %",
        _moved, f"{_SPLIT}. A summary that gives 4 to 7 % as gains has left out the sign",
    ),
    Statement(
        "C43", "reading", "Llama-3-70B with 19 and 21: 4 % more efficient, gap 8 % smaller", "4, 8 %", _moved_llama,
        f"{_SPLIT}. No GPU throttles at 15 K here, so that the even split is the best",
    ),
    Statement(
        "C22", "harness, readings", "LoRA: less power, more than 10 times the efficiency", "> 10", _adapters,
        "efficiency as the harness plots it, samples/(s MJ); adapters save the weights' gradients, a third of the work",
        varies=False,
    ),
    Statement("C31", "readings", "InfiniBand of 100 Gb/s, boards of 700 W", "100, 700", _cluster, varies=False),
    Statement(
        "C36", "1-20", "points of its figures: by strategy, option, micro-batch, GPU", "plots",
        note="neither harness nor readings have them; the paper's pictures would tell. Ours in these studies",
    ),
    Statement(
        "C33", "readings", "deep pipelines have more thread blocks and warps resident", "more",
        note="the model counts kernels and operations, not warps; DCGM's SM occupancy by strategy would tell",
    ),
    Statement(
        "C34", "readings", "a power failure made GPUs four times as slow", "> 4 times",
        note="to which limit or clock boards fell is not stated; it would tell",
    ),
    Statement(
        "C35", "readings", "simulated at data-centre scale, with links up to 800 Gb/s", "a projection",
        note="the projected figures were not at hand; they, and the simulator's network, would tell",
    ),
    Statement(
        "C23", "abstract, readings", "AMD MI250: larger micro-batches help, its two dies 5 to 10 °C apart", "5-10 °C",
        note="strategies of its runs are not published, and the model has no dies; both would be needed",
    ),
    Statement(
        "C24", "harness", "inference over micro-batch sizes", "configs",
        note="the model is one of training; one of prefill and decoding would be needed",
    ),
)  # fmt: skip
