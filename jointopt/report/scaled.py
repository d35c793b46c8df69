"""The answer of ``scale``: cluster sizes and kinds side by side, and the one that a deadline, budget or power picks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from jointopt.core.schema import LOG_COLUMNS
from jointopt.core.units import Z_90
from jointopt.jobs.catalog.clusters import with_host_at
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.physics.site import HOUR_S, run_costs
from jointopt.report import tables
from jointopt.report.doubts import above_best, wider_lines
from jointopt.report.plans import (
    difference_column,
    interval_half_width,
    plan_words,
    probability_of_fitting,
    probability_text,
    tight_lines,
)
from jointopt.report.tables import Block, Result, TextColumn, flat_frame, plain
from jointopt.surrogate.memory import NOT_TIGHT

if TYPE_CHECKING:
    import pandas as pd

_MOST_PARTS = 6


@dataclass(frozen=True)
class Size:
    """One cluster: its plans by time (entries: fastest, knee, least energy), or why nothing is feasible on it.

    With both the plans are those that come nearest to fitting in memory.
    """

    job: Job
    plans: tuple[Mapping[str, Any], ...] = ()
    time_s: Mapping[str, float] | None = None  # part -> seconds of the fastest plan
    reason: str = ""  # why it is not feasible
    doubts: tuple[str, ...] = ()  # why the interval of its fastest plan is wider
    efficiency: float = math.nan  # tokens/s per GPU over those of the smallest cluster of the kind

    @property
    def name(self) -> str:
        """The number and kind of its GPUs."""
        return f"{self.job.cluster.num_gpus:,} x {self.job.cluster.gpu.id}"

    @property
    def feasible(self) -> bool:
        """Whether its plans keep every rule and constraint and are likelier to fit in memory than not."""
        return bool(self.plans) and not self.reason

    def document(self) -> dict[str, Any]:
        """The cluster, its plans, and the breakdown of the fastest."""
        cluster = self.job.cluster
        return {
            "gpu": cluster.gpu.id, "nodes": cluster.nodes, "gpus_per_node": cluster.gpus_per_node,
            "num_gpus": cluster.num_gpus, "global_batch_size": self.job.training.global_batch_size,
            "feasible": self.feasible, "reason": self.reason, "efficiency": self.efficiency,
            "time_s": self.time_s or {}, "plans": list(self.plans), "doubts": list(self.doubts),
        }  # fmt: skip


@dataclass(frozen=True)
class Pick:
    """The plan and the cluster that keep every limit and are best in the objective."""

    size: int  # which of the sizes
    plan: Mapping[str, Any]
    objective: str
    limits: Mapping[str, float]  # deadline_days, budget, site_kw
    at_high_end: bool = False  # the upper ends of 90 % intervals are held to the limits


@dataclass(frozen=True, repr=False)
class Scaled(Result):
    """Sizes in the order given; ``front``: (size, entry) of the plans that none beats in time and energy of the run."""

    rows = "sizes"
    sizes: tuple[Size, ...]
    front: tuple[tuple[int, Mapping[str, Any]], ...]
    pick: Pick | None = None
    weak: bool = False
    open_settings: tuple[str, ...] = ()  # what the job leaves open, with what is assumed

    def document(self) -> dict[str, Any]:
        """The sizes, the front over all of them, and the pick.

        The pick with the time and money of its run at both ends and the probability that it keeps the limits.
        """
        pick = None
        if self.pick is not None:
            job, pick = self.sizes[self.pick.size].job, dict(vars(self.pick))
            for end in ("", "_low", "_high"):
                run = run_costs_at(job, self.pick.plan, end)
                pick |= {f"{name}{end}": run[name] for name in ("days", "money")}
            pick |= {"limits_probability": kept_probability(job, self.pick)}
        return {
            "job": self.sizes[0].job.model.name, "weak": self.weak, "sizes": self.sizes,
            "front": [{"size": size, **entry} for size, entry in self.front], "pick": pick,
            "open_settings": self.open_settings, "doubts": self._above(),
        }  # fmt: skip

    def refusal(self, *, allow_tight: bool = False) -> str:
        """Why no cluster is feasible; blank where one is, or where what comes nearest to fitting is an answer."""
        if any(size.feasible or (allow_tight and size.plans) for size in self.sizes):
            return ""
        none = f"No cluster of {len(self.sizes)} is feasible; the first"
        return f"{none if len(self.sizes) > 1 else 'The cluster is not feasible'}: {self.sizes[0].reason}"

    def to_frame(self) -> pd.DataFrame:
        """A row per plan of each cluster, or why it has none; parts of the time beside the fastest."""
        rows: list[dict[str, Any]] = []
        for size in self.sizes:
            cluster = {key: value for key, value in plain(size.document()).items() if key not in ("plans", "time_s")}
            for at, plan in enumerate(size.plans or ({},)):
                rows.append(cluster | plain(plan) | ({"time_s": plain(size.time_s or {})} if at == 0 else {}))
        return flat_frame(rows)

    def blocks(self) -> Iterator[Block]:
        """A line per cluster, the parts of its time, the front over clusters, the pick, and what was left out."""
        first, sizes = self.sizes[0].job, [size for size in self.sizes if size.plans]
        kind = "the batch grows with the GPUs" if self.weak else f"{first.training.global_batch_size:,} sequences"
        tokens = first.training.run_tokens
        of = f"Of a run of {tokens:,} tokens" if tokens else "Of a billion tokens"
        yield (
            f"{first.model.name}: {len(self.sizes)} cluster{'s' * (len(self.sizes) != 1)}, {kind} per iteration of "
            f"{first.training.seq_length:,} tokens. {of}, at the site's meter (PUE {first.cluster.pue:g}):",
            f"Left open, and so assumed: {', '.join(self.open_settings)}; `propose` prices what they move."
            * bool(self.open_settings),
            *self._above(),
        )
        known = any("time_vs_first_percent" in plan for size in sizes for plan in size.plans)
        feasible = [size.plans[0] for size in sizes if size.feasible]
        assumed = dict.fromkeys(size.job.assumed_clocks for size in sizes)
        yield [
            size_table(sizes),
            *["± behind a difference is its 90 % interval."] * known,
            *(tight_lines(feasible) if feasible else []),
            *wider_lines([size.doubts for size in sizes], [size.name for size in sizes]),
            *(f"Assumed {clocks}." for clocks in assumed if clocks),
        ]
        yield [part_table(sizes)]
        used = ", ".join(self.sizes[size].name for size in dict.fromkeys(size for size, _ in self.front))
        yield [
            f"Plans that no other beats in time and energy, over all clusters: {used}."
            if self.front else "No plan of these is expected to fit in memory."
        ]  # fmt: skip
        yield [_pick_words(self.sizes[self.pick.size], self.pick)] if self.pick else []
        yield [f"{'~ ' * bool(size.plans)}{size.name}: {size.reason}" for size in self.sizes if not size.feasible]

    def _above(self) -> list[str]:
        """Sentences on clusters whose fastest plan is above every record."""
        sizes = (size for size in self.sizes if size.plans)
        return list(filter(None, (above_best(one.job, one.plans[0], f"{one.name}: the") for one in sizes)))


def _pick_words(size: Size, pick: Pick) -> str:
    """The pick in a sentence: its limits, its cluster and plan, what its run takes, and how surely it keeps a limit."""
    job, plan = size.job, pick.plan
    limits = ", ".join(_LIMITS[name].format(value) for name, value in pick.limits.items())
    costs, low, high = (run_costs_at(job, plan, end) for end in ("", "_low", "_high"))
    factor, unit = (1, "days") if costs["for_run"] else (24, "h per billion tokens")
    money = f"{costs['money']:,.0f} {job.cluster.currency}".strip() + ", " if costs["money"] is not None else ""
    held = " at the high end of its interval" * pick.at_high_end
    words = (
        f"Under {limits}{held}, least {pick.objective}: {size.name}, {plan_words(plan, _SHOWN)}: "
        f"{factor * costs['days']:.3g} {unit} ({factor * low['days']:.3g} to {factor * high['days']:.3g}), "
        f"{money}{plan['cluster_power_kw']:,.0f} kW, {plan['avg_power_w']:.0f} W per GPU."
    )
    sure = kept_probability(job, pick)
    if math.isnan(sure):
        return words
    advice = "; --at-high-end picks a plan that keeps it at the high end." if sure < 0.95 else "."
    return f"{words} It keeps that with probability {probability_text(sure)}{advice}"


def run_costs_at(job: Job, plan: Mapping[str, Any], end: str = "") -> dict[str, Any]:
    """As `run_costs`, at that ``end`` (_low, _high) of the plan's 90 % intervals and of what is assumed of hosts."""
    if not end or plan.get(f"iteration_time_s{end}") is None:
        return run_costs(job, plan)
    at_end = replace(job, cluster=with_host_at(job.cluster, end.removeprefix("_")))
    found = run_costs(at_end, {name: plan[f"{name}{end}"] for name in OBJECTIVES})
    if plan.get("time_to_train_s") is None:
        return found
    # failures take the same share of the run at both ends
    with_failures, without = (run_costs(job, one) for one in (plan, {name: plan[name] for name in OBJECTIVES}))
    scaled = {
        name: found[name] and found[name] * with_failures[name] / without[name]
        for name in ("days", "energy_j", "money")
    }
    return found | scaled


def kept_probability(job: Job, pick: Pick) -> float:
    """The probability that the run of a pick keeps its deadline and budget; NaN without either, or an interval."""
    low, mean, high = (run_costs_at(job, pick.plan, end) for end in ("_low", "", "_high"))
    found = []
    for limit, name in (("deadline_days", "days"), ("budget", "money")):
        if limit in pick.limits:
            bound, middle = pick.limits[limit], mean[name]
            end = high[name] if bound > middle else low[name]  # normal in its logarithm, on that side
            known = low[name] < middle < high[name]
            deviations = Z_90 * math.log(bound / middle) / abs(math.log(end / middle)) if known else math.nan
            found.append(NormalDist().cdf(deviations))
    return min(found, default=math.nan)


_LIMITS = {
    "deadline_days": "a deadline of {:g} days",
    "budget": "a budget of {:,.0f}",
    "site_kw": "{:g} kW of the site",
}
_LEAST = {"energy": "least\nenergy %", "time": "at\ntime %"}  # of the plan of least energy: its head
_SHOWN = frozenset({*LOG_COLUMNS, "stage_clock_mhz"} - {"dp", "tp", "pp", "micro_batch_size"})


def size_table(sizes: Sequence[Size]) -> list[str]:
    """A line per cluster: its fastest plan, what scaling leaves, what the run takes, and its plan of least energy."""
    if not sizes:
        return []
    first, least = [size.plans[0] for size in sizes], [size.plans[-1] for size in sizes]
    costs = [  # by their names in `tables.FIGURE_FORMATS`
        {"run_time_s": 24 * HOUR_S * run["days"], "run_energy_j": run["energy_j"], "money": run["money"]}
        for run in (run_costs(size.job, size.plans[0]) for size in sizes)
    ]
    tight = [probability_of_fitting(plan) < NOT_TIGHT for plan in first]
    names = [name for name in LOG_COLUMNS if name != "micro_batch_size"]
    layouts = [" ".join(f"{name}{plan[name]}" for name in names if plan[name] > 1) or "1" for plan in first]
    columns = [
        *([TextColumn("", ["~" * one for one in tight], left=True)] if any(tight) else []),
        TextColumn("GPU", [size.job.cluster.gpu.id for size in sizes], left=True),
        TextColumn("GPUs", [f"{size.job.cluster.num_gpus:,}" for size in sizes]),
        TextColumn("layout", layouts, left=True),
        tables.figure_column("iteration_time_s", first),
        TextColumn("±\n%", tables.format_values(map(interval_half_width, first), ".0f")),
        tables.figure_column("tokens_per_s", first),
        tables.figure_column("efficiency", sizes),
        tables.figure_column("mfu", first),
        tables.figure_column("cluster_power_kw", first),
        *(tables.figure_column(name, costs) for name in ("run_time_s", "run_energy_j", "money")),
        *(difference_column(name, least, first, least, head=head) for name, head in _LEAST.items()),
    ]
    return tables.lay_out(tables.fit_columns(tables.known_columns(columns), tables.line_width()))


def part_table(sizes: Sequence[Size]) -> list[str]:
    """Shares of the time of each cluster's fastest plan by part, in percent: where scaling is lost."""
    shares = [{n: s / sum(size.time_s.values()) for n, s in size.time_s.items()} for size in sizes if size.time_s]
    if not shares:
        return []
    names = sorted(dict.fromkeys(n for one in shares for n in one), key=lambda n: -max(o.get(n, 0.0) for o in shares))
    shown = [name for name in names if max(one.get(name, 0.0) for one in shares) >= 0.005][:_MOST_PARTS]
    columns = [TextColumn("Share of the time, %", [size.name for size in sizes], left=True)]
    columns += [TextColumn(n, tables.format_values([100 * one.get(n, 0.0) for one in shares], ".1f")) for n in shown]
    return tables.lay_out(columns)
