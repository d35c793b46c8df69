"""Power within an iteration as a meter shows it: means over a window that slides over passes and pauses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.physics.breakdown import Breakdown, breakdown
from jointopt.physics.cost_model import CostModel
from jointopt.physics.timeline import Timeline, stage_power_w, timeline

# Of nvmlDeviceGetPowerUsage on Ampere (but A100) and newer, and so of nvidia-smi's power.draw (NVML's reference)
METER_S = 1.0
MOST_PASSES = 10_000  # walked through; the middle of longer iterations repeats


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
    line = timeline(physics, index, stage_clock_mhz, MOST_PASSES)
    curves = joules_of_ranks(physics, index, parts, line)
    whole = line.iteration_s
    every = np.unique(np.concatenate([at for at, _ in curves]))
    total = np.sum([np.interp(every, *curve) for curve in curves], axis=0) * parts.gpus_per_stage
    found = [_extremes(at, joules, whole, window_s) for at, joules in curves]
    return Swing(*np.array(found).T), Swing(*np.array([_extremes(every, total, whole, window_s)]).T)


def joules_of_ranks(
    physics: CostModel, index: int, parts: Breakdown, line: Timeline
) -> list[tuple[Floats, Floats]]:  # fmt: skip
    """Energy of one GPU of each rank since the start of the iteration: seconds and joules where its slope changes."""
    runs_w, waits_w = stage_power_w(physics, index, parts)
    of_gpu = runs_w, waits_w, parts.stage_energy_j / parts.gpus_per_stage
    return [_joules(line, rank, *watts) for rank, watts in enumerate(zip(*(v.tolist() for v in of_gpu), strict=True))]


def _joules(line: Timeline, rank: int, runs_w: float, waits_w: float, whole_j: float) -> tuple[Floats, Floats]:
    """`joules_of_ranks` of one rank, which draws ``runs_w`` while passes run and ``waits_w`` between them.

    Where a long iteration repeats itself, and lists no pass, power is what is left of the whole.
    """
    own = line.rank == rank
    step = line.pipeline_s + line.tail_s["gradients"]
    starts, ends = np.append(line.start_s[own], step), np.append(line.end_s[own], step + line.tail_s["optimizer"])
    at = np.concatenate([[0.0], np.stack([starts, ends], axis=1).reshape(-1), [line.iteration_s]])
    joules = np.where(np.arange(len(at) - 1) % 2, runs_w, waits_w) * np.diff(at)
    left, right = line.repeated_s
    if right > left:
        middle = int(np.argmax((at[:-1] <= left) & (at[1:] >= right)))
        joules[middle] += whole_j - joules.sum()
    return at, np.concatenate([[0.0], np.cumsum(joules)])


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
