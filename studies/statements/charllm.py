"""Statements of Go et al., Characterizing the Efficiency of Distributed Training (MICRO'25, arXiv:2509.10371).

At hand were its abstract, the settings and plotting scripts of its harness (axes, no results), and public summaries of
its full text, from which statements are taken at second hand. Its figures were not at hand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.traffic import collective_time_s
from jointopt.studies.evidence import SPANS, Constants, Outcome, fits, outcomes, varied
from jointopt.studies.statements.charllm_plans import (
    DENSE,
    MODELS,
    PIPELINES,
    Moments,
    adapters,
    all_fit,
    harness_job,
    moments,
    name,
    on_cluster,
    options,
    plan,
    swept,
)  # fmt: skip
from jointopt.studies.statements.statement import ENERGY, POWER, Finding, Grade, Statement, either, order, whole

OPEN = {key: span for key, span in SPANS.items() if key != "batch"}
FAST, SLOW = 12.5, 0.8  # GB/s per GPU between nodes: 100 Gb/s InfiniBand for each, and half of it for each node
_SHARDED = "tp=8 dp=4 zero_stage=3"
_SWEPT = [(model, strategy) for model in DENSE for strategy in PIPELINES[model]]
_INLET_C = 22.0


def _fits(c: Constants) -> Finding:
    found = {cluster: all_fit(cluster, c) for cluster in ("h200", "h100")}
    words = ", ".join(f"{some} of {every} on {cluster.upper()}" for cluster, (some, every) in found.items())
    all_run = all(some == every for some, every in found.values())
    return Finding(words, Grade.REPRODUCED if all_run else Grade.CONTRADICTED)


def _cluster(_: Constants) -> Finding:
    cluster = harness_job("gpt3-175b", "h200").cluster
    watts = cluster.gpu.need("tdp_w", "compare it")
    return Finding(
        f"{8.0 * cluster.inter_node_gbytes_per_s:.0f} Gb/s per GPU, {watts:.0f} W in the job files", Grade.INPUT
    )


def _bound(link: float, what: int, c: Constants) -> list[float]:
    """64 H100 over 32 H200, of each model: seconds (0) or joules (2) of an iteration."""
    return [on_cluster(model, "h100", link, c)[what] / on_cluster(model, "h200", link, c)[what] for model in MODELS]


def _scale_out(c: Constants) -> Finding:
    ratios = 1.0 / np.array(_bound(FAST, 0, c))
    return order(f"64 H100 {ratios.min():.2f} to {ratios.max():.2f} times as fast as 32 H200", ratios)


def _not_only_capacity(c: Constants) -> Finding:
    ratios = 2.0 * np.array(_bound(FAST, 0, c))
    words = f"twice the GPUs: {2.0 / ratios.max():.2f} to {2.0 / ratios.min():.2f} times the throughput"
    return order(words, ratios)


def _scale_up(c: Constants) -> Finding:
    """In a regime bound by communication, some model is faster on 32 H200."""
    ratios = _bound(SLOW, 0, c)
    words = f"at {SLOW} GB/s 64 H100 take {min(ratios):.2f} to {max(ratios):.2f} of the time"
    return order(words, max(ratios))


def _scale_up_per_gpu(c: Constants) -> Finding:
    slow = _bound(SLOW, 0, c)
    words = f"at {SLOW} GB/s an H200 does {2 * min(slow):.2f} to {2 * max(slow):.2f} of an H100's work"
    return order(words, 2.0 * np.array(slow))


def _scale_up_energy(c: Constants) -> Finding:
    slow = _bound(SLOW, 2, c)
    return order(f"64 H100 take {min(slow):.2f} to {max(slow):.2f} of the energy", slow, ENERGY)


def _tuned(c: Constants) -> Finding:
    ratios = [on_cluster(model, "h100", SLOW, c)[1] / on_cluster(model, "h200", SLOW, c)[0] for model in MODELS]
    words = f"the slowest strategy of 64 H100 takes {min(ratios):.1f} to {max(ratios):.1f} times the fastest of 32 H200"
    return order(words, max(ratios))


def _reached(strategy: str, c: Constants, link: float = FAST) -> float:
    """Share of the network's bandwidth that a send between stages reaches."""
    job = varied(harness_job("gpt3-175b", "h200", link), c)
    physics = CostModel(job, parse_plan(plan(strategy), job).layouts)
    tensor = float(physics.layouts["tp"][0])
    moved = 2.0 * job.training.seq_length * job.model.hidden_size / tensor
    hardware = physics.hardware
    seconds = collective_time_s("p2p", moved, 2, 1, hardware.constants.collectives, hardware.links)
    return moved / (float(seconds) * link * 1e9)


def _chunks(c: Constants) -> Finding:
    alone, split = _reached("tp=1 pp=32", c), _reached("tp=8 pp=4", c)
    return order(f"a send reaches {alone:.0%} of the link at TP1, {split:.0%} at TP8", alone / split)


def _network_idle(c: Constants) -> Finding:
    shares = [swept("gpt3-175b", strategy, c)[0].inter_node for strategy in PIPELINES["gpt3-175b"]]
    words = ", ".join(f"{name(s)} {share:.1%}" for s, share in zip(PIPELINES["gpt3-175b"], shares, strict=True))
    rises = np.array(shares[1:]) / np.array(shares[:-1])
    return whole(order(f"of the network in use: {words}", rises), order("", 0.5 / np.array(shares)))


def _chunks_cost(c: Constants) -> Finding:
    """Sends take a twentieth of the time at least, by either reading of the network."""
    return either(_sends_cost(FAST, c), _sends_cost(FAST / 8, c))


def _sends_cost(link: float, c: Constants) -> Finding:
    job, strategies, shares = harness_job("gpt3-175b", "h200", link), PIPELINES["gpt3-175b"], []
    for strategy, one in zip(
        strategies, outcomes(job, [plan(s) for s in strategies], replace(c, batch=1.0)), strict=True
    ):
        shares.append(one.inter_bytes / (link * 1e9 * one.iteration_time_s * _reached(strategy, c, link)))
    return order(
        f"at {link:.3g} GB/s sends take {min(shares):.1%} to {max(shares):.1%} of the time", np.array(shares) / 0.05
    )


def _sweeps(c: Constants) -> list[tuple[Outcome, ...]]:
    return [swept(model, strategy, c) for model, strategy in _SWEPT]


def _optimum(c: Constants) -> Finding:
    slower = np.array([row[-1].iteration_time_s / min(one.iteration_time_s for one in row) for row in _sweeps(c)])
    words = f"8 sequences cost {slower.min() - 1.0:.0%} to {slower.max() - 1.0:.0%} against the best size"
    return order(words, slower)


def _bursty(c: Constants) -> Finding:
    ratios = np.array([[one.peak_power_w / one.avg_power_w for one in (row[0], row[-1])] for row in _sweeps(c)])
    words = ", ".join(f"{small:.2f} to {large:.2f}" for small, large in ratios[:2])
    return order(f"peak over average, GPT-3 TP8-PP4 and TP4-PP8: {words}", ratios[:, 1] / ratios[:, 0], POWER)


def _moments(c: Constants) -> list[list[Moments]]:
    return [moments(model, strategy, c) for model, strategy in _SWEPT]


def _excursions(c: Constants) -> Finding:
    found = [one for pair in _moments(c) for one in pair]
    above = [one.peak_w - one.limit_w for one in found]
    words = f"{min(above):.0f} to {max(above):.0f} W for up to {1e3 * found[0].lasts_s:.0f} ms after a pause"
    return order(words, [one.peak_w / one.limit_w for one in found], POWER)


def _peak(c: Constants) -> Finding:
    return _peaks(_moments(c))


def _peak_sharded(c: Constants) -> Finding:
    return _peaks([moments(model, _SHARDED, c) for model in DENSE])


def _peaks(pairs: list[list[Moments]]) -> Finding:
    rises = [large.peak_w - small.peak_w for small, large in pairs]
    words = f"{min(rises):+.0f} to {max(rises):+.0f} W before the limit acts, from 1 to 8 sequences"
    return order(words, [large.peak_w / small.peak_w for small, large in pairs], POWER)


def _hotter(c: Constants) -> Finding:
    rises = [large.peak_c - small.peak_c for small, large in _moments(c)]
    swings = [large.swing_k - small.swing_k for small, large in _moments(c)]
    words = f"hottest moment {min(rises):+.0f} to {max(rises):+.0f} K from 1 to 8 sequences"
    above = [(large.peak_c - _INLET_C) / (small.peak_c - _INLET_C) for small, large in _moments(c)]
    return order(f"{words}, swing {min(swings):+.0f} to {max(swings):+.0f} K", above, POWER)


def _hotter_sharded(c: Constants) -> Finding:
    rows = [swept(model, _SHARDED, c) for model in DENSE]
    rises = [row[-1].temperature_c - row[0].temperature_c for row in rows]
    watts = [row[-1].avg_power_w / row[0].avg_power_w for row in rows]
    words = f"{min(rises):+.0f} to {max(rises):+.0f} K, {min(watts) - 1.0:+.0%} to {max(watts) - 1.0:+.0%} power"
    return order(words, watts, POWER)


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
        order("", [a.peak_memory_gib / b.peak_memory_gib for _, a, b in pairs]),
    )


def _recompute_throttles(c: Constants) -> Finding:
    """Clocks reached: higher in GPT-3's deepest pipeline that fits, lower in sharded Llama."""
    deep, sharded = options("gpt3-175b", PIPELINES["gpt3-175b"][2], c), options("llama-3-70b", _SHARDED, c)
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


def _deep_throttles(c: Constants) -> Finding:
    clocks = {s: swept("gpt3-175b", s, c)[0].clock_mhz for s in PIPELINES["gpt3-175b"]}
    words = ", ".join(f"{name(s)} {mhz:,.0f} MHz" for s, mhz in clocks.items())
    shallow, *_, deep = clocks.values()
    return order(words, shallow / deep, POWER)


def _hot_row(c: Constants) -> Finding:
    cool, warm, hot = (_in_air(rise, c) for rise in (0.0, 15.0, 45.0))
    words = f"{cool:.1f} s, {warm:.1f} s, {hot:.1f} s with an exhaust row 0, 15, 45 K above the inlet"
    return order(f"GPT-3 TP4-PP8: {words}", warm / cool, POWER)


def _in_air(rise: float, c: Constants, row: tuple[int, ...] | None = None) -> float:
    job = varied(harness_job("gpt3-175b", "h200", exhaust_rise_k=rise, exhaust_ranks=row), c)
    parsed, only = parse_plan(plan("tp=4 pp=8"), job), np.zeros(1, np.int64)
    return float(CostModel(job, parsed.layouts).evaluate(only, parsed.stage_clock_mhz)["iteration_time_s"][0])


def _placed(c: Constants) -> Finding:
    gains = [_in_air(15.0, c) / _in_air(15.0, c, row) - 1.0 for row in ((4, 5, 6, 7), (0, 1, 2, 3))]
    return order(
        f"GPT-3 TP4-PP8, an exhaust row of 15 K: {max(gains):.1%} at best by placement", 1.0 + max(gains), POWER
    )


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


_PLOT = (
    "its points are not published with the harness; they, or the figure with its scale, would tell. Ours in studies/"
)
_HALF = (
    "both clusters do the same work and send the same bytes per micro-batch, and 64 GPUs have half as many of these: "
    "nothing in the model grows with nodes fast enough (no congestion, no jitter, no slowest GPU of 64)"
)
_PINNED = (
    "boards exceed their limit by nearly as much at any size: how large kernels are, and so what they draw, is decided "
    "by the tensor ranks more than by the sequences of a micro-batch"
)
_MEAN = (
    "larger micro-batches have more bubble, so GPUs rest longer: the swing of temperature grows with them, its top "
    "falls (with a time constant of 14 or 75 s too)"
)
STATEMENTS = (
    Statement("C1", "harness", "its strategies run on 32 H200 and 64 H100", "all", _fits, varies=False),
    Statement("C2", "abstract", "scale-out has the higher throughput elsewhere", "higher", _scale_out),
    Statement("C3", "abstract", "performance is not hardware capacity alone", "not alone", _not_only_capacity),
    Statement(
        "C4", "abstract", "scale-up outperforms where communication binds, if tuned", "higher", _scale_up, _HALF,
        (("per GPU", _scale_up_per_gpu), ("energy", _scale_up_energy), ("tuned against untuned", _tuned)),
    ),
    Statement("C8", "abstract", "tensor with pipeline under-uses bandwidth", "under-used", _network_idle),
    Statement("C9", "abstract", "through small chunks", "chunks", _chunks),
    Statement(
        "C10", "abstract", "so that it costs performance", "costs", _chunks_cost,
        "whether 100 Gb/s are a GPU's or a node's decides; how many ports a node has would tell",
    ),
    Statement("C11", "summary", "past some micro-batch size nothing is gained", "past a point", _optimum),
    Statement("C12", "abstract", "larger micro-batches make execution bursty", "bursty", _bursty),
    Statement(
        "C13", "abstract", "and raise peak power", "excursions", _peak, _PINNED,
        (("above the board's limit", _excursions), ("TP8-FSDP", _peak_sharded)),
    ),
    Statement(
        "C14", "abstract", "and heat GPUs until they throttle", "worsen", _hotter, _MEAN,
        (("TP8-FSDP", _hotter_sharded),),
    ),
    Statement("C15", "abstract, summary", "recomputation costs time and energy, frees memory", "costs", _recompute),
    Statement(
        "C28", "summary", "recomputation: less throttling in GPT-3's deep pipelines, more in sharded Llama", "both",
        _recompute_throttles, "the clock that the power limit leaves is nearly the same: kernels decide it, not memory",
    ),
    Statement("C16", "summary", "overlap raises the peak temperature", "raises", _overlap),
    Statement(
        "C29", "summary", "pipelines of 16 and 32 stages throttle more than few", "more", _deep_throttles,
        "in the same order",
    ),
    Statement(
        "C17", "5, 17", "GPUs in the exhaust are up to 27 % hotter, and slow the whole job", "27 %, slows", _hot_row,
        "the exhaust's 15 K, 27 % of 59 °C, are put in here; what throttling at that temperature cost would tell",
    ),
    Statement(
        "C30", "summary", "layers and ranks placed by temperature gain 4 to 7 %", "4-7 %", _placed,
        "layers are not moved here; at 30 K placement gains 2 % (charllm-temperature)",
    ),
    Statement(
        "C22", "harness, summary", "LoRA: less power, more than 10 times the efficiency", "> 10", _adapters,
        "efficiency as the harness plots it, samples/(s MJ); adapters save the weights' gradients, a third of the work",
     varies=False,
    ),
    Statement("C31", "summary", "InfiniBand of 100 Gb/s, boards of 700 W", "100, 700", _cluster, varies=False),
    Statement("C18", "4", "temperature, power, clock by strategy", "a plot", note=f"{_PLOT}charllm-strategies"),
    Statement("C19", "8", "the same by optimization", "a plot", note=f"{_PLOT}charllm-strategies"),
    Statement("C20", "13", "the same by micro-batch size", "a plot", note=f"{_PLOT}charllm-micro-batch"),
    Statement(
        "C21", "10, 15", "parts of the time by strategy and micro-batch size", "a plot",
        note="the traces are not published with the harness; they would tell. `explain` has our parts",
    ),
    Statement(
        "C32", "5, 17", "heat maps of temperature and throttling by GPU", "a plot",
        note="the model has rows of a node, not single GPUs; temperatures by GPU at 1 Hz would tell",
    ),
    Statement(
        "C36", "1-3, 6, 7, 9, 11, 12, 14, 16, 18, 19", "figures that neither harness nor summary describes", "plots",
        note="the paper's full text was not at hand; it would tell",
    ),
    Statement(
        "C33", "summary", "deep pipelines have more thread blocks and warps resident", "more",
        note="the model counts kernels and operations, not warps; DCGM's SM occupancy by strategy would tell",
    ),
    Statement(
        "C34", "summary", "a power failure made GPUs four times as slow", "> 4 times",
        note="to which limit or clock boards fell is not stated; it would tell",
    ),
    Statement(
        "C35", "summary", "simulated at data-centre scale, with links up to 800 Gb/s", "a projection",
        note="the projected figures were not at hand; they, and the simulator's network, would tell",
    ),
    Statement(
        "C23", "abstract", "AMD MI250: measured, its two dies 5 to 10 °C apart", "5-10 °C",
        note="the harness has no configs of it beside Megatron's, and the model has no dies; both would be needed",
    ),
    Statement(
        "C24", "harness", "inference over micro-batch sizes", "configs",
        note="the model is one of training; one of prefill and decoding would be needed",
    ),
)  # fmt: skip
