"""Training runs played event by event: the check of `jointopt.physics.renewal`, the spread of runs, and what it cannot.

That is failures that are no independent ones of a constant rate: see `Failures`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.core.progress import steps
from jointopt.core.schema import Bools, Floats
from jointopt.physics.renewal import ROUNDING, Expected, Run
from jointopt.physics.repair import RepairShop

_LANES = 8192  # runs that are played together: their arrays then stay in the cache
_SWEEP = 64  # events after which runs that have ended make room
_OF_RUN = ("work_s", "iteration_s", "interval_s", "checkpoint_s", "failure_s", "restart_s", "write_s")
_SUMS = ("time", "work", "restart", "idle", "failures")  # of a run so far: seconds, and failures
_SEEN = ("time", "whole", "worked", "saved", "work", "restart", "idle")  # of an event
_TYPICAL_OF = 51  # runs, of which the one of median time is typical


@dataclass(frozen=True)
class Failures:
    """How failures differ from independent ones at a constant rate; the mean time between them is the run's.

    ``shape`` of a Weibull distribution of the time from one to the next. ``rack_share`` of them take ``rack_nodes``
    nodes, and all copies of a state where ``rack_copies``. ``lemons`` of ``nodes`` fail ``lemon_factor`` times as often
    as the others, each until it is replaced after ``lemon_failures`` in the mean.
    """

    shape: float = 1.0
    rack_share: float = 0.0
    rack_nodes: int = 1
    rack_copies: bool = False
    nodes: int = 1
    lemons: float = 0.0
    lemon_factor: float = 1.0
    lemon_failures: float | None = None

    def simulation_reason(self, run: Run) -> str:
        """What of it the closed form of `expected` does not know; blank where that holds."""
        racks = self.rack_share and (run.shop is not None or (self.rack_copies and not run.rolls_back))
        words = {
            "Weibull failures": self.shape != 1.0,
            "rack failures": racks,
            "lemon nodes that are replaced": self.lemons and self.lemon_factor != 1.0 and self.lemon_failures,
        }
        return ", ".join(name for name, counts in words.items() if counts)

    def slower(self, lemons: Floats) -> Floats:
        """The mean time between failures with so many lemon nodes left, over that with all of them."""
        more = self.lemon_factor - 1.0
        return (self.nodes + more * self.lemons) / (self.nodes + more * lemons)


CONSTANT = Failures()


@dataclass(frozen=True)
class SimulatedRuns:
    """Runs that were played, an entry of each array for every one: calendar times, seconds lost by part, failures."""

    run: Run
    times_s: Floats
    lost_s: dict[str, Floats]
    failures: Floats

    def expected(self) -> Expected:
        """What they come to in the mean."""
        lost_s = {name: values.mean() for name, values in self.lost_s.items()}
        return Expected(self.times_s.mean(), self.failures.mean(), lost_s, self.times_s.std(ddof=1))


def simulated_times_s(run: Run, runs: int, seed: int = 0) -> Floats:
    """Calendar times (runs,) in s of that many runs, as `simulated`."""
    return simulated(run, runs, seed).times_s


def simulated(run: Run, runs: int, seed: int = 0, failures: Failures = CONSTANT) -> SimulatedRuns:
    """That many runs with random failures, and repairs of exponential times.

    Figures of the run may be (runs,): each then has its own. Events are failures, repairs and the end; all runs take
    one at a time, as arrays.
    """
    rng = np.random.default_rng(seed)
    figures: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(getattr(run, name), np.float64), (runs,)) for name in _OF_RUN
    }
    parts = [slice(start, start + _LANES) for start in range(0, runs, _LANES)]
    played = [
        _Lanes(run, {name: values[part] for name, values in figures.items()}, rng, failures).played()
        for part in steps(parts, "runs played")
    ]
    sums = {name: np.concatenate([one[name] for one in played]) for name in _SUMS}
    whole, rest = replace(run, **figures).intervals
    lost = {name: sums[name] for name in ("work", "restart", "idle")}
    lost |= {"checkpoint": (whole + (rest > 0.0)) * figures["checkpoint_s"]}
    slower = sums["time"] - figures["work_s"] - sum(lost.values())
    lost |= {"degraded": np.maximum(slower, 0.0) if run.shop else np.zeros(runs)}
    return SimulatedRuns(run, sums["time"], lost, sums["failures"])


def typical_run(run: Run, seed: int = 0, failures: Failures = CONSTANT) -> dict[str, Floats]:
    """Seconds by part that a run of median length has spent after each of its events: columns of equal length."""
    rng, each = np.random.default_rng(seed), np.ones(_TYPICAL_OF)
    lanes = _Lanes(run, {name: getattr(run, name) * each for name in _OF_RUN}, rng, failures)
    events: list[dict[str, Floats]] = []
    whole, lost = float(run.intervals[0]), ("work", "restart", "idle")
    times_s = lanes.played(events)["time"]
    median = np.argsort(times_s)[_TYPICAL_OF // 2]
    own = [np.array([[0.0], [whole], *[[0.0]] * 5])]  # the begin
    own += [np.stack([event[name] for name in _SEEN])[:, event["lane"] == median] for event in events]
    seen = np.concatenate(own, axis=1)
    found = dict(zip(_SEEN, seen[:, np.append(True, np.diff(seen[0]) > 0.0)][:, :-1], strict=True))
    done = whole - found["whole"]
    parts = {"useful": done * run.interval_s + found["worked"], "checkpoint": done * run.checkpoint_s + found["saved"]}
    parts |= {name: found[name] for name in lost}
    degraded = np.maximum(found["time"] - sum(parts.values()), 0.0)
    return {"time": found["time"]} | parts | {"degraded": degraded if run.shop else 0.0 * degraded}


class _Lanes:
    """Runs that are played together, an entry of each array for every one that has not ended."""

    def __init__(self, run: Run, figures: dict[str, Any], rng: np.random.Generator, failures: Failures) -> None:
        self.run, self.rng, self.figures, self.failures = run, rng, figures, failures
        whole, rest = replace(run, **figures).intervals
        zero = np.zeros(len(whole))
        self.state = figures | dict.fromkeys(("worked", "saved", "wait", "broken", "written", *_SUMS), zero) | {
            "lane": np.arange(len(whole), dtype=np.float64), "whole": whole, "rest": rest,
            "lemons": np.full(len(whole), failures.lemons), "until": self._next_failure_s(figures["failure_s"]),
        }  # fmt: skip
        self.ended = {name: np.empty(len(whole)) for name in _SUMS}

    def played(self, events: list[dict[str, Floats]] | None = None) -> dict[str, Floats]:
        """Time, losses and failures of all runs; ``events`` gains the state after each event."""
        alive = np.full(len(self.ended["time"]), True)
        while len(self.state["time"]):
            for _ in range(_SWEEP):
                alive = self._step(alive)
                if events is not None:
                    events.append({name: self.state[name] for name in ("lane", *_SEEN)})
            over = self.state["lane"][~alive].astype(np.int64)
            for name, values in self.ended.items():
                values[over] = self.state[name][~alive]
            self.state = {name: values[alive] for name, values in self.state.items()}
            alive = alive[alive]
        return self.ended

    def _step(self, alive: Bools) -> Bools:
        """The next event of every run; which of them are left.

        A run waits until it trains again, has ``worked`` of an interval and ``saved`` of its checkpoint.
        """
        s, shop = self.state, self.run.shop if isinstance(self.run.shop, RepairShop) else None
        speeds = np.ones(1) if shop is None else np.append(shop.speed, 0.0)
        speed = speeds[np.minimum(s["broken"], len(speeds) - 1).astype(np.int64)]
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
        s["restart"] = s["restart"] + np.where(alive, np.minimum(moving, s["wait"]), 0.0)
        s["idle"] = s["idle"] + np.where(alive & stopped, event, 0.0)
        done = np.floor((at + active) / length)
        s["whole"] = s["whole"] - np.minimum(done, s["whole"])
        s["written"] = s["written"] + done  # checkpoints since the last failure
        at = at + active - done * length
        work = np.where(s["whole"] > 0, s["interval_s"], s["rest"])
        s["worked"] = np.minimum(at * pace, work)
        s["saved"] = at - s["worked"] / pace
        s["wait"] = s["wait"] - np.minimum(moving, s["wait"])
        s["until"] = s["until"] - moving * pace
        alive = np.asarray(alive & ~ends)
        self._take(passes <= repaired, alive, at)
        return alive

    def _take(self, fails: Bools, alive: Bools, at: Floats) -> None:
        """What failures undo, and the nodes that break or are repaired; ``at`` are the seconds since a checkpoint."""
        s, shop, how = self.state, self.run.shop, self.failures
        takes_rack = fails & (self.rng.random(len(fails)) < how.rack_share) if how.rack_share else fails & False
        iterations = np.floor(s["worked"] / s["iteration_s"] * (1.0 + ROUNDING))
        rolls_back = self.run.rolls_back | (takes_rack & how.rack_copies)
        kept = np.where(rolls_back, 0.0, iterations * s["iteration_s"])
        again = fails & rolls_back & (s["written"] > 0.0) & (at < s["write_s"])  # that checkpoint has not arrived
        undone = s["worked"] - kept + s["saved"] + np.where(again, s["interval_s"] + s["checkpoint_s"], 0.0)
        s["work"] = s["work"] + np.where(fails & alive, undone, 0.0)
        s["failures"] = s["failures"] + (fails & alive)
        s["whole"], s["written"] = s["whole"] + again, np.where(fails, 0.0, s["written"])
        s["worked"], s["saved"] = np.where(fails, kept, s["worked"]), np.where(fails, 0.0, s["saved"])
        s["wait"] = np.where(fails, s["restart_s"], s["wait"])
        if how.lemons and how.lemon_failures:
            of_lemons = how.lemon_factor * s["lemons"]
            share = of_lemons / (of_lemons + how.nodes - s["lemons"]) / how.lemon_failures
            s["lemons"] = np.maximum(s["lemons"] - (fails & (self.rng.random(len(fails)) < share)), 0.0)
        s["until"] = np.where(fails, self._next_failure_s(s["failure_s"] * how.slower(s["lemons"])), s["until"])
        if shop is not None:
            broken = np.where(takes_rack, how.rack_nodes, 1.0) if how.rack_share else 1.0
            s["broken"] = s["broken"] + np.where(fails, broken, -1.0)

    def _next_failure_s(self, mean_s: Floats) -> Floats:
        """Seconds until a next failure, of a Weibull distribution with these means."""
        shape, drawn = self.failures.shape, self.rng.standard_exponential(len(mean_s))
        return np.asarray(mean_s * (drawn if shape == 1.0 else drawn ** (1.0 / shape) / math.gamma(1.0 + 1.0 / shape)))
