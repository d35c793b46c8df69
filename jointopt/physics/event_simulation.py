"""Training runs played event by event: the check of `jointopt.physics.renewal`, and the spread of runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jointopt.core.progress import steps
from jointopt.core.schema import Bools, Floats
from jointopt.physics.renewal import ROUNDING, Run
from jointopt.physics.repair import RepairShop

_LANES = 8192  # runs that are played together: their arrays then stay in the cache
_SWEEP = 64  # events after which runs that have ended make room
_OF_RUN = ("work_s", "iteration_s", "interval_s", "checkpoint_s", "failure_s", "restart_s")


def simulated_times_s(run: Run, runs: int, seed: int = 0) -> Floats:
    """Calendar times (runs,) in s of that many runs, from random failures and repairs, both exponential.

    Figures of the run may be (runs,): each then has its own. Events are failures, repairs and the end; all runs take
    one at a time, as arrays.
    """
    rng = np.random.default_rng(seed)
    figures = {name: np.broadcast_to(np.asarray(getattr(run, name), np.float64), (runs,)) for name in _OF_RUN}
    parts = [slice(start, start + _LANES) for start in range(0, runs, _LANES)]
    played = [
        _Lanes(run, {name: values[part] for name, values in figures.items()}, rng).played()
        for part in steps(parts, "runs played")
    ]
    return np.concatenate(played)


class _Lanes:
    """Runs that are played together, an entry of each array for every one that has not ended."""

    def __init__(self, run: Run, figures: dict[str, Any], rng: np.random.Generator) -> None:
        self.run, self.rng, self.figures = run, rng, figures
        whole, rest = replace(run, **figures).intervals
        self.state = figures | {
            "lane": np.arange(len(whole), dtype=np.float64), "time": np.zeros(len(whole)), "whole": whole, "rest": rest,
            "worked": np.zeros(len(whole)), "saved": np.zeros(len(whole)), "wait": np.zeros(len(whole)),
            "broken": np.zeros(len(whole)), "until": rng.standard_exponential(len(whole)) * figures["failure_s"],
        }  # fmt: skip
        self.ended = np.empty(len(whole))

    def played(self) -> Floats:
        """The times of all runs."""
        alive = np.full(len(self.ended), True)
        while len(self.state["time"]):
            for _ in range(_SWEEP):
                alive = self._step(alive)
            over = self.state["lane"][~alive].astype(np.int64)
            self.ended[over] = self.state["time"][~alive]
            self.state = {name: values[alive] for name, values in self.state.items()}
            alive = alive[alive]
        return self.ended

    def _step(self, alive: Bools) -> Bools:
        """The next event of every run; which of them are left.

        A run waits until it trains again, has ``worked`` of an interval and ``saved`` of its checkpoint.
        """
        s, shop = self.state, self.run.shop if isinstance(self.run.shop, RepairShop) else None
        speeds = np.ones(1) if shop is None else np.append(shop.speed, 0.0)
        speed = speeds[s["broken"].astype(np.int64)]
        stopped, pace = speed == 0.0, np.where(speed == 0.0, 1.0, speed)
        passes = np.where(stopped, np.inf, s["until"] / pace)
        repaired = np.full(len(passes), np.inf)
        if shop is not None:
            draws = self.rng.standard_exponential(len(passes)) * shop.repair_s
            repaired = np.divide(draws, s["broken"], out=repaired, where=s["broken"] > 0)
        event = np.minimum(passes, repaired)
        moving = np.where(stopped, 0.0, event)
        active = np.maximum(moving - s["wait"], 0.0)
        length = s["interval_s"] / pace + s["checkpoint_s"]
        at = s["worked"] / pace + s["saved"]
        last = np.where(s["rest"] > 0.0, s["rest"] / pace + s["checkpoint_s"], 0.0)
        needed = s["whole"] * length + last - at
        ends = active >= needed
        s["time"] = np.where(alive, s["time"] + np.where(ends, s["wait"] + needed, event), s["time"])
        done = np.floor((at + active) / length)
        s["whole"] = s["whole"] - np.minimum(done, s["whole"])
        at = at + active - done * length
        work = np.where(s["whole"] > 0, s["interval_s"], s["rest"])
        s["worked"] = np.minimum(at * pace, work)
        s["saved"] = at - s["worked"] / pace
        s["wait"] = s["wait"] - np.minimum(moving, s["wait"])
        s["until"] = s["until"] - moving * pace
        self._take(passes <= repaired)
        return np.asarray(alive & ~ends)

    def _take(self, fails: Bools) -> None:
        """What failures undo, and the nodes that break or are repaired."""
        s, shop = self.state, self.run.shop
        iterations = np.floor(s["worked"] / s["iteration_s"] * (1.0 + ROUNDING))
        kept = 0.0 if self.run.rolls_back else iterations * s["iteration_s"]
        s["worked"], s["saved"] = np.where(fails, kept, s["worked"]), np.where(fails, 0.0, s["saved"])
        s["wait"] = np.where(fails, s["restart_s"], s["wait"])
        s["until"] = np.where(fails, self.rng.standard_exponential(len(fails)) * s["failure_s"], s["until"])
        if shop is not None:
            s["broken"] = s["broken"] + np.where(fails, 1.0, -1.0)
