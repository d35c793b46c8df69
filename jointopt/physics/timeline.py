"""One iteration of one plan in time: every pass of every rank, and what each stage draws while it runs and waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import SCHEDULE, Floats, Ints
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.physics import zero_bubble
from jointopt.physics.breakdown import Breakdown
from jointopt.physics.cost_model import CostModel
from jointopt.physics.makespan import StageTimes, chunk_times_s
from jointopt.physics.schedule import warmup_slots
from jointopt.physics.zero_bubble import FORWARD, INPUT, WEIGHT, WHOLE, Pass

KINDS = {FORWARD: "forward", INPUT: "backward of inputs", WEIGHT: "backward of weights", WHOLE: "backward"}
MOST_PASSES = 60_000  # that are walked through; of longer iterations the middle, which repeats, is left out
Source = Callable[[int, Pass], tuple[int, Pass] | None]


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

    The last pass ends with the makespan of `CostModel.times`; times are corrected as its totals are.
    """
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    costs = physics.groups[g]
    clocks = np.asarray(stage_clock_mhz, float)[None, : costs.depth]
    t = physics.times(g, np.array([row]), clocks)
    batches, schedule, vpp = _shape(physics, g, row)
    walked = _fewer(batches, costs.depth, vpp, schedule, most_passes)
    orders, source = _orders(schedule, costs.depth, vpp, walked)
    seconds = _chunk_seconds(physics, g, row, t)
    passes = _walk(orders, source, seconds)
    whole = _arranged(passes, batches, walked, float(t.makespan_s[0]))
    stretch = float(physics.time_factor[index])
    other = float(t.total_s[0] - t.makespan_s[0] - t.dp_exposed_s[0] - t.optimizer_s[0])
    tail = {"gradients": float(t.dp_exposed_s[0]), "optimizer": float(t.optimizer_s[0]), "other": other}
    return replace(
        whole, start_s=whole.start_s * stretch, end_s=whole.end_s * stretch, pipeline_s=whole.pipeline_s * stretch,
        tail_s={name: stretch * max(value, 0.0) for name, value in tail.items()},
        repeated_s=(whole.repeated_s[0] * stretch, whole.repeated_s[1] * stretch),
    )  # fmt: skip


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


def _shape(physics: CostModel, g: int, row: int) -> tuple[int, str, int]:
    """(micro-batches, schedule, chunks of a rank)."""
    costs = physics.groups[g]
    schedule = SCHEDULE.text(int(costs.layouts["schedule"][row])) if "schedule" in costs.layouts else "1f1b"
    vpp = int(costs.layouts["vpp"][row])
    return int(costs.num_micro_batches[row]), schedule, CHUNKS_OF_SCHEDULE.get(schedule, vpp)


def _fewer(batches: int, pp: int, vpp: int, schedule: str, most_passes: int) -> int:
    """Micro-batches that are walked through: all, or whole groups of pp, some for either end of the iteration."""
    if vpp > 1 and pp > 1 and schedule not in CHUNKS_OF_SCHEDULE:
        batches = -(-batches // pp) * pp
    groups = max(most_passes // (2 * vpp * pp * pp), 4)
    return min(batches, groups * pp)


def _orders(schedule: str, pp: int, vpp: int, batches: int) -> tuple[list[list[Pass]], Source]:
    if schedule in CHUNKS_OF_SCHEDULE:
        orders = [zero_bubble.rank_order(schedule, pp, batches, rank) for rank in range(pp)]
        return orders, lambda rank, one: zero_bubble.predecessor(schedule, pp, rank, one)
    return [_one_f_one_b(pp, vpp, batches, rank) for rank in range(pp)], _delivers(pp, vpp)


def _one_f_one_b(pp: int, vpp: int, batches: int, rank: int) -> list[Pass]:
    """The passes of one rank as `schedule.schedule_order` has them, without an object for each."""
    slots, group = batches * vpp, pp if vpp > 1 else 1
    ahead = warmup_slots(pp, vpp, batches, rank)
    turns = np.arange(slots - ahead)
    kind = np.concatenate([np.full(ahead, FORWARD), np.tile([FORWARD, WHOLE], len(turns)), np.full(ahead, WHOLE)])
    by_turns = np.stack([turns + ahead, turns], axis=1).reshape(-1)
    slot = np.concatenate([np.arange(ahead), by_turns, np.arange(slots - ahead, slots)])
    groups, inside = np.divmod(slot, group * vpp)
    chunk, member = np.divmod(inside, group)
    chunk = np.where(kind == WHOLE, vpp - 1 - chunk, chunk)
    return list(zip(kind.tolist(), chunk.tolist(), (groups * group + member).tolist(), strict=True))


def _delivers(pp: int, vpp: int) -> Source:
    def source(rank: int, one: Pass) -> tuple[int, Pass] | None:
        kind, chunk, micro_batch = one
        place = chunk * pp + rank
        if kind == FORWARD:
            place -= 1
            return None if place < 0 else (place % pp, (FORWARD, place // pp, micro_batch))
        place += 1
        if place == pp * vpp:
            return rank, (FORWARD, chunk, micro_batch)
        return place % pp, (INPUT, place // pp, micro_batch)

    return source


def _walk(orders: Sequence[Sequence[Pass]], source: Source, seconds: Floats) -> Floats:
    """Rows (N, 6) of rank, kind, chunk, micro-batch, start, end; ``seconds`` (kinds, vpp, pp) of one pass."""
    length = seconds.tolist()
    done: dict[tuple[int, Pass] | None, float] = {None: 0.0}
    at, free, rows = [0] * len(orders), [0.0] * len(orders), list[tuple[float, ...]]()
    left = sum(map(len, orders))
    while left > 0:
        before = left
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and (ready := done.get(source(rank, order[at[rank]]))) is not None:
                kind, chunk, micro_batch = order[at[rank]]
                start = max(ready, free[rank])
                free[rank] = end = start + length[kind][chunk][rank]
                done[rank, (INPUT if kind == WHOLE else kind, chunk, micro_batch)] = end
                rows.append((rank, kind, chunk, micro_batch, start, end))
                at[rank] += 1
                left -= 1
        if left == before:
            raise PlanError(f"The pipeline schedule never ends; {left} passes are left, and none can start.")
    found = np.array(rows)
    return np.asarray(found[np.lexsort((found[:, 4], found[:, 0]))])


def _chunk_seconds(physics: CostModel, g: int, row: int, t: StageTimes) -> Floats:
    """Seconds (kinds, vpp, pp) of one pass of one micro-batch."""
    costs, rows = physics.groups[g], np.array([row])
    pipes, (_, _, chunks) = costs.pipelines, _shape(physics, g, row)
    if pipes.split.walked[pipes.split.which[row]]:
        chunks_s = chunk_times_s(pipes, rows, t.forward_s, t.backward_s, weights=True)
        forward, backward, weight = (s[:, :, 0] for s in chunks_s)
        return np.stack([forward, backward - weight, weight, backward])
    forward, backward = (np.repeat(s / chunks, chunks, axis=0) for s in (t.forward_s, t.backward_s))
    return np.stack([forward, backward, np.zeros_like(backward), backward])


def _arranged(passes: Floats, batches: int, walked: int, makespan_s: float) -> Timeline:
    """The passes up to ``makespan_s``: what was not walked through is a gap in the middle; empty places go."""
    end = float(passes[:, 5].max())
    start_s, end_s = passes[:, 4].copy(), passes[:, 5].copy()
    middle = (end, end)
    if walked < batches:
        later = start_s >= end / 2.0
        start_s[later] += makespan_s - end
        end_s[later] += makespan_s - end
        middle = (float(end_s[~later].max()), float(start_s[later].min()))
    elif walked > batches:  # the last group is partly empty
        start_s *= makespan_s / end
        end_s *= makespan_s / end
    columns = passes[:, :4].astype(np.int64)
    there = columns[:, 3] < batches
    rank, kind, chunk, micro_batch = columns[there].T
    middle = middle if walked < batches else (makespan_s, makespan_s)
    return Timeline(
        rank, kind, chunk, micro_batch, start_s[there], end_s[there], batches, makespan_s, {}, middle
    )  # fmt: skip
