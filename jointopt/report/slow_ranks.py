"""The answer of ``watch``: the slow ranks of a run, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jointopt.core.facts import Assumption
from jointopt.core.units import KWH
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import format_stage_clocks
from jointopt.physics.stragglers import FIRST
from jointopt.report.tables import TIME_UNITS, Block, Result, TextColumn, figure, lay_out, paragraphs, quantity

_WIDTH, _DAY_S, _SHOWN = 80, 86400.0, 8
_HELP = {  # what to do about each kind
    "heat": "its clock falls as it is hotter than its peers: look at its cooling",
    "power": "its clock falls by a power limit: look at nvidia-smi -q -d POWER",
    "clock": "its clock is below its peers' and neither hotter nor capped: jointopt clocks restore",
    "link": "neither end is slow itself: look at the errors of their network cards and cables",
    "host": "the clocks are as their peers': look at the CPUs and other processes of the node",
    "experts": "its work differs from iteration to iteration: balance the router",
    "unknown": "no clocks are known, which would tell heat, power and host apart: exec --watch reads them",
}


@dataclass(frozen=True)
class SlowRank:
    """One slow rank or link, or ranks that cannot be told apart since they wait for each other."""

    rank: int | None  # None: the log has no times of ranks
    stage: int | None
    kind: str  # heat, power, clock, link, host, experts or unknown
    since_iteration: int
    cost_s: float  # by which it alone would make each iteration longer
    slower: float  # than its peers, as a share of their time
    until_iteration: int | None  # None: it still is
    noticed_iteration: int  # after which the log tells it
    node: int | None
    ranks: tuple[int, ...]  # of the node, the group or the link

    def sentence(self) -> str:
        """What is slow, since when, and what it costs, in one line."""
        which = "The run" if self.rank is None else f"Rank {self.name}"
        return (
            f"{which} is slow since iteration {self.since_iteration:,}: {self.kind}, {100 * self.slower:.1f} %, "
            f"{quantity(self.cost_s, TIME_UNITS)} of each iteration; {_HELP[self.kind]}."
        )

    @property
    def name(self) -> str:
        """The rank, or the ranks that are slow together as the first and the last of them."""
        if self.rank is None:
            return "-"
        if self.kind == "link":
            return "-".join(map(str, self.ranks))
        return str(self.rank) if len(self.ranks) == 1 else f"{self.ranks[0]}..{self.ranks[-1]}"


@dataclass(frozen=True)
class Rebalanced:
    """Clocks of stages, in MHz, for replicas that wait for the slow one (none: there is one), and for that one.

    The slow rank itself, and the others of its stage and replica, keep the clock of the plan.
    """

    others_mhz: tuple[float, ...]
    slow_replica_mhz: tuple[float, ...]
    stage: int  # of the slow rank
    replica: int
    energy_j: float  # predicted of all GPUs in an iteration, the waiting included
    energy_before_j: float
    iteration_time_s: float  # predicted, with the slow rank
    iteration_time_before_s: float

    @property
    def saved(self) -> float:
        """The share of the energy that is saved."""
        return 1.0 - self.energy_j / self.energy_before_j

    def sentence(self) -> str:
        """What to hold, and what that saves."""
        own, kw = (
            format_stage_clocks(dict.fromkeys(self.slow_replica_mhz)),
            (self.energy_before_j - self.energy_j) / 1e3,
        )
        others = f"those of the other replicas at {format_stage_clocks(dict.fromkeys(self.others_mhz))} MHz, "
        longer = self.iteration_time_s / self.iteration_time_before_s - 1.0
        return (
            f"Rebalanced: hold the stages of replica {self.replica} at {own} MHz, {others * bool(self.others_mhz)}for "
            f"{100 * self.saved:.1f} % less energy ({kw / self.iteration_time_s:.3g} kW of the GPUs) at "
            f"{100 * max(longer, 0.0):.2f} % more time."
        )


@dataclass(frozen=True, repr=False)
class Watched(Result):
    """A run by the times of its ranks."""

    rows = "slow"
    keys = (
        "source ranks first_iteration last_iteration iteration_time_s slow cost_s gpu_hours_per_day wasted_kw "
        "rebalanced assumed"
    )
    source: str
    ranks: int  # 0: not known
    first_iteration: int
    last_iteration: int
    iteration_time_s: float  # NaN where only the work of ranks is known
    slow: tuple[SlowRank, ...]
    rebalanced: Rebalanced | None = None
    job: Job | None = None
    assumed: tuple[Assumption, ...] = ()

    @property
    def cost_s(self) -> float:
        """Seconds of each iteration that all that is slow now costs together: the worst's, for the rest wait for it."""
        return max((one.cost_s for one in self.slow if one.until_iteration is None), default=0.0)

    @property
    def share(self) -> float:
        """Of the time that is lost; NaN where iterations have no time."""
        return self.cost_s / self.iteration_time_s

    @property
    def gpu_hours_per_day(self) -> float:
        """Hours of GPUs that are lost in a day."""
        return self.share * (self.job.cluster.num_gpus if self.job else self.ranks or math.nan) * _DAY_S / 3600.0

    @property
    def wasted_kw(self) -> float:
        """What GPUs draw while they wait, as a mean over time, in kW at the site's meter."""
        power = self.job.cluster.gpu.power if self.job else None
        if self.job is None or power is None:
            return math.nan
        return self.share * self.job.cluster.num_gpus * power.wait_w * self.job.cluster.pue / 1e3

    def blocks(self) -> Iterator[Block]:
        """What is slow, what it costs, what to do, and what was assumed."""
        span = f"iterations {self.first_iteration:,} to {self.last_iteration:,}"
        ranks = f"{self.ranks} rank{'s' * (self.ranks != 1)}, " if self.ranks else ""
        few = self.last_iteration - self.first_iteration < FIRST
        more = f" So few iterations tell little: {FIRST} or more name a rank that is 2 % slower." if few else ""
        yield _lines(f"{self.source}: {ranks}{span}: {self._count()}.{more}")
        if self.slow:
            yield [self._table()]
            yield [*self._costs(), *self._advice()]
        if self.rebalanced is not None:
            yield _lines(self.rebalanced.sentence())
        if self.assumed:
            yield [line for one in self.assumed for line in _lines(f"Assumed: {one}")]

    def _count(self) -> str:
        if not self.slow:
            return "no rank is slow"
        now = sum(one.until_iteration is None for one in self.slow)
        past = f", {len(self.slow) - now} was before" if now < len(self.slow) else ""
        return f"{now} slow now{past}"

    def _table(self) -> list[str]:
        shown = self.slow[:_SHOWN]
        columns = [
            TextColumn("rank", [one.name for one in shown], left=True),
            TextColumn("stage", ["-" if one.stage is None else str(one.stage) for one in shown]),
            TextColumn("node", ["-" if one.node is None else str(one.node) for one in shown]),
            TextColumn("kind", [one.kind for one in shown], left=True),
            TextColumn("slower", [f"{100 * one.slower:.1f} %" for one in shown]),
            TextColumn("costs", [quantity(one.cost_s, TIME_UNITS) for one in shown]),
            TextColumn("since", [f"{one.since_iteration:,}" for one in shown]),
            TextColumn("until", ["now" if one.until_iteration is None else f"{one.until_iteration:,}"
                                 for one in shown]),
        ]  # fmt: skip
        more = [f"... and {len(self.slow) - _SHOWN} more (--json has all)"] if len(self.slow) > _SHOWN else []
        return [*lay_out([one for one in columns if {*one.cells} != {"-"}]), *more]

    def _costs(self) -> Iterator[str]:
        if not self.cost_s:
            return
        several = sum(one.until_iteration is None for one in self.slow) > 1
        which = "Together they cost" if several else "It costs"
        text = f"{which} {quantity(self.cost_s, TIME_UNITS)} of each iteration"
        if math.isfinite(self.share):
            text += f" ({100 * self.share:.1f} %)"
        if math.isfinite(self.gpu_hours_per_day):
            text += f", {figure(round(self.gpu_hours_per_day, 1))} GPU-hours a day"
        end = " Each row says what it would cost alone; that does not add up." if several else ""
        yield from _lines(f"{text}{self._money()}.{end}")

    def _money(self) -> str:
        """Energy and money of a day, where the job tells power and prices."""
        if self.job is None or not math.isfinite(self.wasted_kw):
            return ""
        cluster, kwh = self.job.cluster, self.wasted_kw * 1e3 * _DAY_S / KWH
        paid = (cluster.price_per_gpu_hour or 0.0) * self.gpu_hours_per_day + (cluster.price_per_kwh or 0.0) * kwh
        return f" and {figure(round(kwh, 1))} kWh of waiting" + (f": {paid:,.0f} {cluster.currency}" if paid else "")

    def _advice(self) -> Iterator[str]:
        for kind in dict.fromkeys(one.kind for one in self.slow):
            yield from _lines(f"{kind}: {_HELP[kind]}.")


def _lines(sentence: str) -> list[str]:
    return paragraphs([sentence], most=_WIDTH)
