"""Statements of Go et al., Characterizing the Efficiency of Distributed Training (MICRO'25, arXiv:2509.10371).

At hand were its abstract and the settings of its harness, not its figures.
"""

from __future__ import annotations

import numpy as np

from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.traffic import collective_time_s
from jointopt.studies.evidence import SPANS, Constants, Outcome, varied
from jointopt.studies.statements.charllm_plans import (
    DENSE,
    MODELS,
    PIPELINES,
    Moments,
    adapters_fit,
    all_fit,
    harness_job,
    moments,
    name,
    on_cluster,
    options,
    plan,
    swept,
)  # fmt: skip
from jointopt.studies.statements.statement import Finding, Statement

OPEN = {key: span for key, span in SPANS.items() if key != "batch"}
FAST, SLOW = 50.0, 0.8  # GB/s per GPU between nodes: InfiniBand NDR, and a sixtieth of it
_SHARDED = "tp=8 dp=4 zero_stage=3"
_SWEPT = [(model, strategy) for model in DENSE for strategy in PIPELINES[model]]


def _fits(c: Constants) -> Finding:
    found = {cluster: all_fit(cluster, c) for cluster in ("h200", "h100")}
    words = ", ".join(f"{some} of {every} on {cluster.upper()}" for cluster, (some, every) in found.items())
    return Finding(words, all(some == every for some, every in found.values()))


def _scale_out(c: Constants) -> Finding:
    gains = [on_cluster(model, "h200", FAST, c)[0] / on_cluster(model, "h100", FAST, c)[0] for model in MODELS]
    return Finding(f"64 H100 {min(gains):.2f} to {max(gains):.2f} times as fast as 32 H200", min(gains) > 1.0)


def _not_only_capacity(c: Constants) -> Finding:
    gains = [on_cluster(model, "h200", FAST, c)[0] / on_cluster(model, "h100", FAST, c)[0] for model in MODELS]
    return Finding(f"twice the GPUs: {min(gains):.2f} to {max(gains):.2f} times the throughput", max(gains) < 2.0)


def _bound(link: float, what: int, c: Constants) -> list[float]:
    """64 H100 over 32 H200, of each model: seconds (0) or joules (2) of an iteration."""
    return [on_cluster(model, "h100", link, c)[what] / on_cluster(model, "h200", link, c)[what] for model in MODELS]


def _scale_up(c: Constants) -> Finding:
    ratios = _bound(SLOW, 0, c)
    return Finding(f"at {SLOW} GB/s 64 H100 take {min(ratios):.2f} to {max(ratios):.2f} of the time", max(ratios) > 1.0)


def _scale_up_per_gpu(c: Constants) -> Finding:
    slow, fast = _bound(SLOW, 0, c), _bound(FAST, 0, c)
    words = f"at {SLOW} GB/s an H200 does {2 * min(slow):.2f} to {2 * max(slow):.2f} of an H100's work"
    return Finding(words, min(slow) > 0.5 and max(fast) > 0.5)


def _scale_up_energy(c: Constants) -> Finding:
    slow = _bound(SLOW, 2, c)
    return Finding(f"at {SLOW} GB/s 64 H100 take {min(slow):.2f} to {max(slow):.2f} of the energy", min(slow) > 1.0)


def _tuned(c: Constants) -> Finding:
    ratios = [on_cluster(model, "h100", SLOW, c)[1] / on_cluster(model, "h200", SLOW, c)[0] for model in MODELS]
    words = f"at {SLOW} GB/s the slowest strategy of 64 H100 takes {min(ratios):.1f} to {max(ratios):.1f} times the"
    return Finding(f"{words} fastest of 32 H200", max(ratios) > 1.0)


def _reached(strategy: str, c: Constants) -> float:
    """Share of the network's bandwidth that a send between stages reaches."""
    job = varied(harness_job("gpt3-175b", "h200"), c)
    physics = CostModel(job, parse_plan(plan(strategy), job).layouts)
    tensor = float(physics.layouts["tp"][0])
    moved = 2.0 * job.training.seq_length * job.model.hidden_size / tensor
    hardware = physics.hardware
    seconds = collective_time_s("p2p", moved, 2, 1, hardware.constants.collectives, hardware.links)
    return moved / (float(seconds) * job.cluster.inter_node_gbytes_per_s * 1e9)


def _chunks(c: Constants) -> Finding:
    alone, split = _reached("tp=1 pp=32", c), _reached("tp=8 pp=4", c)
    return Finding(f"a send reaches {alone:.0%} of the link at TP1, {split:.0%} at TP8", split < 0.9 * alone)


def _network_idle(c: Constants) -> Finding:
    found = {strategy: swept("gpt3-175b", strategy, c)[0].inter_node for strategy in PIPELINES["gpt3-175b"]}
    words = ", ".join(f"{name(strategy)} {share:.1%}" for strategy, share in found.items())
    shares = list(found.values())
    return Finding(f"of the network in use: {words}", max(shares) < 0.05 and shares == sorted(shares))


def _chunks_cost(c: Constants) -> Finding:
    parts = [swept("gpt3-175b", strategy, c)[0] for strategy in PIPELINES["gpt3-175b"]]
    sent_s = [one.inter_bytes / (FAST * 1e9) / one.iteration_time_s for one in parts]
    shares = [share / _reached(s, c) for share, s in zip(sent_s, PIPELINES["gpt3-175b"], strict=True)]
    return Finding(f"sends take {max(shares):.1%} of the time at most", max(shares) > 0.05)


def _sweeps(c: Constants) -> list[tuple[Outcome, ...]]:
    return [swept(model, strategy, c) for model, strategy in _SWEPT]


def _optimum(c: Constants) -> Finding:
    slower = [row[-1].iteration_time_s / min(one.iteration_time_s for one in row) - 1.0 for row in _sweeps(c)]
    return Finding(f"8 sequences cost {min(slower):.0%} to {max(slower):.0%} against the best size", min(slower) > 0.01)


def _bursty(c: Constants) -> Finding:
    ratios = [[one.peak_power_w / one.avg_power_w for one in (row[0], row[-1])] for row in _sweeps(c)]
    words = ", ".join(f"{small:.2f} to {large:.2f}" for small, large in ratios[:2])
    bursty = all(small < large for small, large in ratios)
    return Finding(f"peak over average, GPT-3 TP8-PP4 and TP4-PP8: {words}", bursty)


def _moments(c: Constants) -> list[list[Moments]]:
    return [moments(model, strategy, c) for model, strategy in _SWEPT]


def _excursions(c: Constants) -> Finding:
    found = [one for pair in _moments(c) for one in pair]
    above = [one.peak_w - one.limit_w for one in found]
    words = f"{min(above):.0f} to {max(above):.0f} W above it after a pause, for up to {1e3 * found[0].lasts_s:.0f} ms"
    return Finding(words, min(above) > 0.02 * found[0].limit_w and min(one.lasts_s for one in found) > 0.0)


def _peak(c: Constants) -> Finding:
    rises = [large.peak_w - small.peak_w for small, large in _moments(c)]
    return Finding(f"{min(rises):+.0f} to {max(rises):+.0f} W before the limit acts", min(rises) > 0.0)


def _peak_sharded(c: Constants) -> Finding:
    pairs = [moments(model, _SHARDED, c) for model in DENSE]
    rises = [large.peak_w - small.peak_w for small, large in pairs]
    return Finding(f"{min(rises):+.0f} to {max(rises):+.0f} W before the limit acts", min(rises) > 0.0)


def _hotter(c: Constants) -> Finding:
    rises = [large.peak_c - small.peak_c for small, large in _moments(c)]
    swings = [large.swing_k - small.swing_k for small, large in _moments(c)]
    words = f"hottest moment {min(rises):+.0f} to {max(rises):+.0f} K from 1 to 8 sequences"
    return Finding(f"{words}, swing {min(swings):+.0f} to {max(swings):+.0f} K", min(rises) > 0.0)


def _over_options(c: Constants) -> list[dict[str, Outcome]]:
    return [options(model, strategy, c) for model, strategy in _SWEPT]


def _hotter_sharded(c: Constants) -> Finding:
    rows = [swept(model, _SHARDED, c) for model in DENSE]
    rises = [row[-1].temperature_c - row[0].temperature_c for row in rows]
    watts = [row[-1].avg_power_w / row[0].avg_power_w - 1.0 for row in rows]
    words = f"{min(rises):+.0f} to {max(rises):+.0f} K, {min(watts):+.0%} to {max(watts):+.0%} power"
    return Finding(words, min(rises) > 0.0)


def _changes(pairs: list[tuple[Outcome, Outcome]], key: str) -> list[float]:
    """Relative changes of a prediction from the first to the second."""
    return [getattr(after, key) / getattr(before, key) - 1.0 for before, after in pairs]


def _recompute(c: Constants) -> Finding:
    pairs = [(one["base"], one["act"]) for one in _over_options(c)]
    time, joules, memory = (_changes(pairs, key) for key in ("iteration_time_s", "energy_j", "peak_memory_gib"))
    words = f"time {min(time):+.0%} to {max(time):+.0%}, energy {min(joules):+.0%} to {max(joules):+.0%}"
    held = f"memory {min(memory):+.0%} to {max(memory):+.0%}"
    return Finding(f"{words}, {held}", min(time) > 0.1 and min(joules) > 0.1 and max(memory) < 0.0)


def _overlap(c: Constants) -> Finding:
    found = zip(_SWEPT, _over_options(c), strict=True)
    pairs = [(one["base"], one["cc"]) for (_, strategy), one in found if "tp=1" not in strategy]
    time, power = (_changes(pairs, key) for key in ("iteration_time_s", "avg_power_w"))
    words = f"time {min(time):+.0%} to {max(time):+.0%}, power {min(power):+.0%} to {max(power):+.0%}"
    return Finding(words, max(time) < 0.0 < min(power))


def _hot_row(c: Constants) -> Finding:
    cool, warm, hot = (_in_air(rise, c) for rise in (0.0, 15.0, 45.0))
    words = f"{cool:.1f} s, {warm:.1f} s, {hot:.1f} s with an exhaust row 0, 15, 45 K above the inlet"
    return Finding(f"GPT-3 TP4-PP8: {words}", warm > 1.005 * cool)


def _in_air(rise: float, c: Constants) -> float:
    job = varied(harness_job("gpt3-175b", "h200", exhaust_rise_k=rise), c)
    parsed, only = parse_plan(plan("tp=4 pp=8"), job), np.zeros(1, np.int64)
    return float(CostModel(job, parsed.layouts).evaluate(only, parsed.stage_clock_mhz)["iteration_time_s"][0])


def _adapters(c: Constants) -> Finding:
    some, every, least, most = adapters_fit(c)
    words = f"{some} of {every} strategies of GPT-3 and Llama 3 fit, at {least:.2f} to {most:.2f} of the energy"
    return Finding(words, some == every)


_PINNED = (
    "boards exceed their limit by nearly as much at any size: how large kernels are, and so what they draw, is decided "
    "by the tensor ranks more than by the sequences of a micro-batch (C27)"
)
_MEAN = (
    "larger micro-batches have more bubble, so GPUs rest longer: the swing of temperature grows with them, its top "
    "falls (with a time constant of 14 or 75 s too)"
)
_HALF = (
    "both clusters do the same work and send the same bytes per micro-batch, and 64 GPUs have half as many of these: "
    "nothing in the model grows with nodes fast enough (no congestion, no jitter, no slowest GPU of 64)"
)
_PLOT = "its plot was not at hand, and the abstract has no figure; ours in studies/"
STATEMENTS = (
    Statement("C1", "harness", "its strategies run on 32 H200 and 64 H100", "all", _fits, varies=False),
    Statement("C2", "abstract", "scale-out has the higher throughput elsewhere", "higher", _scale_out),
    Statement("C3", "abstract", "performance is not hardware capacity alone", "not alone", _not_only_capacity),
    Statement("C4", "abstract", "scale-up outperforms where communication binds", "higher", _scale_up, _HALF),
    Statement("C5", "abstract", "the same per GPU", "higher", _scale_up_per_gpu),
    Statement("C6", "abstract", "the same in energy", "less", _scale_up_energy),
    Statement("C7", "abstract", "but only if tuned: tuned scale-up beats untuned scale-out", "tuned", _tuned),
    Statement("C8", "abstract", "tensor with pipeline under-uses bandwidth", "under-used", _network_idle),
    Statement("C9", "abstract", "through small chunks", "chunks", _chunks),
    Statement(
        "C10", "abstract", "so that it costs performance", "costs", _chunks_cost,
        "a message of 6 MB gets seven tenths of the link through NCCL's chunks and buffers, and stages compute a "
        "hundred times as long as they send",
    ),
    Statement("C11", "abstract", "past some micro-batch size nothing is gained", "past a point", _optimum),
    Statement("C12", "abstract", "larger micro-batches make execution bursty", "bursty", _bursty),
    Statement("C13", "abstract", "and raise peak power", "excursions", _peak, _PINNED),
    Statement("C26", "abstract", "peak power excursions: above the board's limit", "excursions", _excursions),
    Statement("C27", "abstract", "larger micro-batches raise the peak under TP8-FSDP", "raise", _peak_sharded),
    Statement("C14", "abstract", "and heat GPUs until they throttle", "worsen", _hotter, _MEAN),
    Statement("C25", "abstract", "the same where weights are sharded (TP8-FSDP)", "hotter", _hotter_sharded),
    Statement("C15", "abstract", "recomputation costs time and energy, frees memory", "evaluated", _recompute),
    Statement("C16", "abstract", "overlap hides communication and raises power", "evaluated", _overlap),
    Statement("C17", "5, 17", "a hotter row of GPUs slows the whole job", "slows", _hot_row),
    Statement("C18", "4", "temperature, power, clock by strategy", "a plot", why=f"{_PLOT}charllm-strategies"),
    Statement("C19", "8", "the same by optimization", "a plot", why=f"{_PLOT}charllm-strategies"),
    Statement("C20", "13, 15", "the same by micro-batch size", "a plot", why=f"{_PLOT}charllm-micro-batch"),
    Statement("C21", "10", "parts of the time, overlapped or not", "a plot", why="the same; `explain` has ours"),
    Statement("C22", "harness", "its LoRA configs run on 32 H200", "all", _adapters, varies=False),
    Statement("C23", "abstract", "AMD MI250", "measured", why="the harness has no configs of it beside Megatron's"),
    Statement("C24", "harness", "inference", "configs", why="the model is one of training"),
)  # fmt: skip
