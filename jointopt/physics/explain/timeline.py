"""One iteration of one plan in time: every pass of every rank, and what each stage draws while it runs and waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import SCHEDULE, Floats, Ints
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.physics.clock_law import busy_power_w, lead_s, scaled_time_s
from jointopt.physics.cooling import throttle_c
from jointopt.physics.cost_model import CostModel, scaled_burst_w
from jointopt.physics.explain.parts import Breakdown, breakdown
from jointopt.physics.makespan import StageTimes, chunk_times_s
from jointopt.physics.schedule import FORWARD, INPUT, WEIGHT, WHOLE, ends_s, schedule_graph
from jointopt.physics.stage_costs import StageCosts

KINDS = {FORWARD: "forward", INPUT: "backward of inputs", WEIGHT: "backward of weights", WHOLE: "backward"}
MOST_PASSES = 60_000  # that are walked through; of longer iterations the middle, which repeats, is left out


@dataclass(frozen=True)
class Timeline:
    """Passes (N,) in seconds from the start of the iteration, sorted by rank and start; then what no rank overlaps.

    ``repeated_s``: from when to when ranks only repeat what they do before, and no pass is listed; empty: (t, t).
    """

    rank: Ints
    kind: Ints  # of `KINDS`
    chunk: Ints
    micro_batch: Ints
    start_s: Floats
    end_s: Floats
    num_micro_batches: int
    pipeline_s: float  # when the last pass ends
    tail_s: dict[str, float]  # after it, one after another: gradients, optimizer, other
    repeated_s: tuple[float, float]

    @property
    def iteration_s(self) -> float:
        """The whole iteration."""
        return self.pipeline_s + sum(self.tail_s.values())


def timeline(physics: CostModel, index: int, stage_clock_mhz: Floats, most_passes: int = MOST_PASSES) -> Timeline:
    """Passes of layout row ``index`` at one clock per stage (pp,) in MHz, each as soon as rank and input are ready.

    The last pass ends with the makespan of `CostModel.times`; times are corrected as its totals are. What was not
    walked through is a gap in the middle; empty places of a last group of micro-batches go.
    """
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    costs = physics.groups[g]
    t = physics.times(g, np.array([row]), np.asarray(stage_clock_mhz, float)[None, : costs.depth])
    makespan_s, batches = float(t.makespan_s[0]), int(costs.num_micro_batches[row])
    schedule = SCHEDULE.text(int(costs.layouts["schedule"][row])) if "schedule" in costs.layouts else "1f1b"
    vpp = CHUNKS_OF_SCHEDULE.get(schedule, int(costs.layouts["vpp"][row]))
    # all micro-batches, or whole groups of pp, some for either end of the iteration
    grouped = vpp > 1 and costs.depth > 1 and schedule not in CHUNKS_OF_SCHEDULE
    walked = -(-batches // costs.depth) * costs.depth if grouped else batches
    walked = min(walked, max(most_passes // (2 * vpp * costs.depth**2), 4) * costs.depth)
    graph = schedule_graph(costs.depth, vpp, walked, schedule)
    seconds = _chunk_seconds(costs, row, vpp, t)[graph.kind, graph.chunk, graph.rank]
    end_s = ends_s(graph, seconds)
    whole = np.append(end_s, 0.0)
    start_s, end = np.maximum(whole[graph.previous], whole[graph.source]), float(end_s.max())
    middle = (makespan_s, makespan_s)
    if walked < batches:
        later = start_s >= end / 2.0
        start_s[later] += makespan_s - end
        end_s[later] += makespan_s - end
        middle = (float(end_s[~later].max()), float(start_s[later].min()))
    elif walked > batches:  # the last group is partly empty
        start_s, end_s = start_s * (makespan_s / end), end_s * (makespan_s / end)
    order = np.lexsort((start_s, graph.rank))
    order = order[graph.micro_batch[order] < batches]
    stretch = float(physics.stretch(np.array([index]), t.total_s)[0])
    other = float(t.total_s[0] - t.makespan_s[0] - t.dp_exposed_s[0] - t.optimizer_s[0])
    tail = {"gradients": float(t.dp_exposed_s[0]), "optimizer": float(t.optimizer_s[0]), "other": other}
    return Timeline(
        graph.rank[order], graph.kind[order], graph.chunk[order], graph.micro_batch[order], start_s[order] * stretch,
        end_s[order] * stretch, batches, makespan_s * stretch,
        {name: stretch * max(value, 0.0) for name, value in tail.items()}, (middle[0] * stretch, middle[1] * stretch),
    )  # fmt: skip


def _chunk_seconds(costs: StageCosts, row: int, vpp: int, t: StageTimes) -> Floats:
    """Seconds (kinds, vpp, pp) of one pass of one micro-batch."""
    pipes = costs.pipelines
    if pipes.split.irregular[pipes.split.which[row]]:
        chunks_s = chunk_times_s(pipes, np.array([row]), t.forward_s, t.backward_s, weights=True)
        forward, backward, weight = (s[:, :, 0] for s in chunks_s)
        return np.stack([forward, backward - weight, weight, backward])
    forward, backward = (np.repeat(s / vpp, vpp, axis=0) for s in (t.forward_s, t.backward_s))
    return np.stack([forward, backward, np.zeros_like(backward), backward])


def stage_power_w(physics: CostModel, index: int, parts: Breakdown) -> tuple[Floats, Floats]:
    """Watts (pp,) of a GPU of each stage of layout row ``index`` while passes run, and while it waits.

    The optimizer step counts as a pass. Two levels whose mean over the iteration is the stage's: what runs draws what
    waiting does not.
    """
    total_s = parts.busy_s + parts.idle_s
    of_gpu = total_s * parts.gpus_per_stage
    waiting = max(physics.power.wait_w - physics.power.static_w, 0.0) * float(physics.power_factor[index])
    at_rest = (parts.stage_energy_parts_j["static"] + parts.stage_energy_parts_j["leakage"]) / of_gpu
    waits_w = np.minimum(at_rest + waiting, parts.stage_energy_j / of_gpu)
    runs_w = (parts.stage_energy_j / parts.gpus_per_stage - waits_w * parts.idle_s) / parts.busy_s
    return runs_w, waits_w


# Power within an iteration as a meter shows it: means over a window that slides over passes and pauses.


# Of nvmlDeviceGetPowerUsage on Ampere (but A100) and newer, and so of nvidia-smi's power.draw (NVML's reference)
METER_S = 1.0
SWING_PASSES = 10_000  # walked through; the middle of longer iterations repeats


@dataclass(frozen=True)
class Swing:
    """Watts of a GPU of each stage (pp,), or of all GPUs (1,): the mean, the highest and lowest mean over a window."""

    mean_w: Floats
    peak_w: Floats
    trough_w: Floats


def power_swing(
    physics: CostModel, index: int, stage_clock_mhz: Floats, window_s: float = METER_S, parts: Breakdown | None = None
) -> tuple[Swing, Swing]:
    """(of a GPU of each stage, of all GPUs) of layout row ``index`` at one clock per stage (pp,) in MHz.

    Derived here: passes draw what `timeline.stage_power_w` gives for their stage, pauses what waiting does; iterations
    follow each other. Shorter bursts, within a pass, are no part of it.
    """
    parts = parts or breakdown(physics, index, stage_clock_mhz)
    line = timeline(physics, index, stage_clock_mhz, SWING_PASSES)
    curves = joules_of_ranks(physics, index, parts, line)
    whole = line.iteration_s
    every = np.unique(np.concatenate([at for at, _ in curves]))
    total = np.sum([np.interp(every, *curve) for curve in curves], axis=0) * parts.gpus_per_stage
    found = [_extremes(at, joules, whole, window_s) for at, joules in curves]
    return Swing(*np.array(found).T), Swing(*np.array([_extremes(every, total, whole, window_s)]).T)


def joules_of_ranks(physics: CostModel, index: int, parts: Breakdown, line: Timeline) -> list[tuple[Floats, Floats]]:
    """Energy of one GPU of each rank since the start of the iteration: seconds and joules where its slope changes.

    It draws one power while passes run and another between them. Where a long iteration repeats itself, and lists no
    pass, power is what is left of the whole.
    """
    runs_w, waits_w = stage_power_w(physics, index, parts)
    whole_j, step, (left, right) = parts.stage_energy_j / parts.gpus_per_stage, line.pipeline_s, line.repeated_s
    step += line.tail_s["gradients"]
    curves = []
    for rank in range(len(runs_w)):
        own = line.rank == rank
        starts, ends = np.append(line.start_s[own], step), np.append(line.end_s[own], step + line.tail_s["optimizer"])
        at = np.concatenate([[0.0], np.stack([starts, ends], axis=1).reshape(-1), [line.iteration_s]])
        joules = np.where(np.arange(len(at) - 1) % 2, runs_w[rank], waits_w[rank]) * np.diff(at)
        if right > left:
            middle = int(np.argmax((at[:-1] <= left) & (at[1:] >= right)))
            joules[middle] += whole_j[rank] - joules.sum()
        curves.append((at, np.concatenate([[0.0], np.cumsum(joules)])))
    return curves


def _extremes(at: Floats, joules: Floats, whole_s: float, window_s: float) -> tuple[float, float, float]:
    """(mean, highest, lowest) watts: extreme windows begin or end where power changes, iteration after iteration."""
    mean, window = float(joules[-1] / whole_s), window_s % whole_s
    turns = (window_s - window) / whole_s
    ahead = np.concatenate([at, at[1:] + whole_s])
    twice = np.concatenate([joules, joules[1:] + joules[-1]])
    begins = np.concatenate([at, (at - window) % whole_s])
    moved = np.interp(begins + window, ahead, twice) - np.interp(begins, ahead, twice)
    watts = (moved + turns * joules[-1]) / window_s
    return mean, float(watts.max()), float(watts.min())


# Temperature within an iteration and after a start: a first-order response of GPU and heat sink to power.


@dataclass(frozen=True)
class Warming:
    """Temperatures in °C of the hottest GPU of each stage (pp,) once iterations repeat, and seconds to get there.

    ``settles_s``: from then on within 5 % of a step of power. ``throttles_s`` (pp,): from the air's temperature to the
    throttle's if kernels ran without a pause; infinite where they would not get there.
    """

    peak_c: Floats
    trough_c: Floats
    settles_s: float
    throttles_s: Floats


def warming(physics: CostModel, index: int, stage_clock_mhz: Floats, parts: Breakdown | None = None) -> Warming:
    """Temperature of layout row ``index`` at one clock per stage (pp,) in MHz, with the assumed time constant.

    Derived here: C·dT/dt = P - (T - T_air)/R, with P of `timeline.stage_power_w`; leakage, which follows temperature,
    makes swings larger and slower by the same factor.
    """
    parts, cooler = parts or breakdown(physics, index, stage_clock_mhz), physics.cooler
    line = timeline(physics, index, stage_clock_mhz, SWING_PASSES)
    curves, tau_s = joules_of_ranks(physics, index, parts, line), cooler.time_constant_s
    kelvin_per_w = cooler.resistance_k_per_w * cooler.slowing
    # beyond the mean, iteration after iteration
    swing_w = [filtered_w(np.diff(at), np.diff(joules), tau_s) - joules[-1] / at[-1] for at, joules in curves]
    high_c, low_c = parts.stage_temperature_c + kelvin_per_w * np.array([(one.max(), one.min()) for one in swing_w]).T
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    air_c = np.where(physics.in_exhaust(g, rows)[0], cooler.hottest_inlet_c, cooler.inlet_c)
    lasting_k = cooler.resistance_k_per_w * parts.stage_peak_power_w
    after_s = rise_time_s(throttle_c(physics.job.cluster.gpu) - air_c, lasting_k, tau_s)
    return Warming(high_c, low_c, float(np.log(20.0)) * tau_s, after_s)


def rise_time_s(rise_k: Floats, lasting_k: Floats, time_constant_s: float) -> Floats:
    """Seconds until a first-order response to a step of ``lasting_k`` has risen by ``rise_k``; infinite if never."""
    with np.errstate(divide="ignore", invalid="ignore"):
        after_s = -time_constant_s * np.log1p(-np.maximum(rise_k, 0.0) / lasting_k)
    return np.where(lasting_k > rise_k, after_s, np.inf)


def filtered_w(seconds: Floats, joules: Floats, time_constant_s: float) -> Floats:
    """First-order low-pass of the power of an iteration that repeats: its value in W at the end of each segment.

    Within a segment of constant power P it goes from x to P + (x - P)·e^(-t/τ) (derived here).
    """
    there = seconds > 0.0
    decay = np.exp(-seconds[there] / time_constant_s)
    steps = (joules[there] / seconds[there] * (1.0 - decay)).tolist()
    end, kept = 0.0, float(np.prod(decay))
    for step, left in zip(steps, decay.tolist(), strict=True):
        end = end * left + step
    felt, now = [], end / (1.0 - kept)
    for step, left in zip(steps, decay.tolist(), strict=True):
        now = now * left + step
        felt.append(now)
    return np.array(felt)


# Power above a board's limit for milliseconds: what kernels draw after a pause, before the limit holds their clock.


# Perseus' A100-PCIe ranks under limits (`clock_law.lead_s`), 15 to 50 ms on its A40; of newer boards none is published
REACTION_S = 0.025


@dataclass(frozen=True)
class Excursion:
    """Power of each stage's hottest GPU, (pp,): ``peak_w`` before the limit acts, at the clock that the plan sets.

    ``lasts_s``: the longest time above the limit at a stretch; ``share``: of the iteration.
    """

    peak_w: Floats
    limit_w: Floats
    lasts_s: Floats
    share: Floats


def excursion(physics: CostModel, index: int, stage_clock_mhz: Floats, parts: Breakdown | None = None) -> Excursion:
    """Power of layout row ``index`` at one clock per stage (pp,) in MHz beyond what its limit leaves in the mean.

    Derived here: a pass that follows a pause runs at its own clock for `clock_law.lead_s`, as boards under a limit were
    measured to do; where no pass waits, or no limit binds, nothing is above it. Mean power of a pass's kernels: single
    kernels may draw more for microseconds.
    """
    parts = parts or breakdown(physics, index, stage_clock_mhz)
    line = timeline(physics, index, stage_clock_mhz, SWING_PASSES)
    free_w, limit_w = _unlimited_burst_w(physics, index, stage_clock_mhz), parts.stage_power_limit_w
    above = free_w > limit_w * (1.0 + 1e-6)
    lasts, share = np.array([_unlimited_runs(line, rank) for rank in range(len(free_w))]).T
    there = above & (lasts > 0.0)
    held_w = np.minimum(free_w, parts.stage_peak_power_w)
    return Excursion(
        np.where(there, free_w, held_w), limit_w, np.where(there, lasts, 0.0), np.where(there, share, 0.0)
    )  # fmt: skip


def _unlimited_burst_w(physics: CostModel, index: int, stage_clock_mhz: Floats) -> Floats:
    """Watts (pp,) of the hottest GPU while a micro-batch's kernels run at the clocks set, whatever the limit."""
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    costs = physics.groups[g]
    clock = np.asarray(stage_clock_mhz, float)[None, : costs.depth]
    sm_s = costs.forward_sm_s[rows] + costs.backward_sm_s[rows]
    memory_s = costs.forward_memory_s[rows] + costs.backward_memory_s[rows]
    busy_s = scaled_time_s(sm_s, memory_s, clock, physics.top_mhz)
    free_w = busy_power_w(physics.power, clock, physics.top_mhz, busy_s, costs.flops[rows], costs.hbm_bytes[rows])
    leaks_w = physics.cooler.air_leakage_w(physics.in_exhaust(g, rows))
    return np.asarray(scaled_burst_w(physics, np.array([index]), free_w + leaks_w)[0])


def _unlimited_runs(line: Timeline, rank: int) -> tuple[float, float]:
    """(longest seconds, share of the iteration) for which passes of a rank run before a power limit slows them."""
    own = line.rank == rank
    starts, ends = line.start_s[own], line.end_s[own]
    before = np.concatenate([[ends[-1] - line.iteration_s], ends[:-1]])
    left, right = line.repeated_s
    unlisted = (starts >= right) & (before <= left) & (right > left)  # passes that repeat: no pause
    gaps = np.where(unlisted, 0.0, starts - before)
    ahead = np.minimum(lead_s(REACTION_S, np.maximum(gaps, 0.0)), ends - starts)
    return float(ahead.max()), float(ahead.sum() / line.iteration_s)
