"""The answer of ``scale``: cluster sizes and kinds side by side, and the one that a deadline, budget or power picks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from jointopt.core.units import Z_90
from jointopt.jobs.catalog.clusters import with_host_at
from jointopt.jobs.job import Job
from jointopt.physics.site import HOUR_S, run_costs
from jointopt.report import tables
from jointopt.report.doubts import above_best
from jointopt.report.plans import COMPARED, half_difference, half_width, is_tight, odds, plan_words, tight_lines
from jointopt.report.reasons import wider_lines
from jointopt.report.tables import Result, TextColumn, flat_frame, plain

if TYPE_CHECKING:
    import pandas as pd

_MOST_PARTS = 6
_BILLION = 10**9


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

    def document(self) -> dict[str, Any]:
        """Every field."""
        return {
            "size": self.size, "plan": dict(self.plan), "objective": self.objective, "limits": dict(self.limits),
            "at_high_end": self.at_high_end,
        }  # fmt: skip


@dataclass(frozen=True)
class Scaled(Result):
    """Sizes in the order given; ``front``: (size, entry) of the plans that none beats in time and energy of the run."""

    rows = "sizes"
    sizes: tuple[Size, ...]
    front: tuple[tuple[int, Mapping[str, Any]], ...]
    pick: Pick | None = None
    weak: bool = False
    open_settings: tuple[str, ...] = ()  # what the job leaves open, with what is assumed

    def document(self) -> dict[str, Any]:
        """The sizes, the front over all of them, and the pick."""
        return {
            "job": self.sizes[0].job.model.name, "weak": self.weak, "sizes": self.sizes,
            "front": [{"size": size, **entry} for size, entry in self.front], "pick": self._pick_document(),
            "open_settings": self.open_settings, "doubts": self._above(),
        }  # fmt: skip

    def _pick_document(self) -> dict[str, Any] | None:
        """The pick, with the time and money of its run at both ends and the probability that it keeps the limits."""
        if self.pick is None:
            return None
        job = self.sizes[self.pick.size].job
        ends = {end: run_at(job, self.pick.plan, end) for end in ("", "_low", "_high")}
        found = {f"{name}{end}": run[name] for end, run in ends.items() for name in ("days", "money")}
        return self.pick.document() | found | {"limits_probability": kept_probability(job, self.pick)}

    def refusal(self, *, allow_tight: bool = False) -> str:
        """Why no cluster is feasible; blank where one is, or where what comes nearest to fitting is an answer."""
        if any(size.feasible or (allow_tight and size.plans) for size in self.sizes):
            return ""
        many = len(self.sizes) > 1
        none = f"No cluster of {len(self.sizes)} is feasible; the first" if many else "The cluster is not feasible"
        return f"{none}: {self.sizes[0].reason}"

    def to_frame(self) -> pd.DataFrame:
        """A row per plan of each cluster, or why it has none; parts of the time beside the fastest."""
        rows: list[dict[str, Any]] = []
        for size in self.sizes:
            cluster = {key: value for key, value in plain(size.document()).items() if key not in ("plans", "time_s")}
            for at, plan in enumerate(size.plans or ({},)):
                rows.append(cluster | plain(plan) | ({"time_s": plain(size.time_s or {})} if at == 0 else {}))
        return flat_frame(rows)

    def text(self) -> str:
        """A line per cluster, the parts of its time, the front over clusters, and the pick."""
        first, sizes = self.sizes[0].job, [size for size in self.sizes if size.plans]
        kind = "the batch grows with the GPUs" if self.weak else f"{first.training.global_batch_size:,} sequences"
        title = [
            f"{first.model.name}: {len(self.sizes)} cluster{'s' * (len(self.sizes) != 1)}, {kind} per iteration of "
            f"{first.training.seq_length:,} tokens. {_of_what(first)}"
        ]
        left_out = [
            f"{'~ ' * bool(size.plans)}{_words(size.job)}: {size.reason}" for size in self.sizes if not size.feasible
        ]
        known = any("time_vs_first_percent" in plan for size in sizes for plan in size.plans)
        legend = ["± behind a difference is its 90 % interval."] * known
        if any(size.feasible for size in sizes):
            legend += tight_lines([size.plans[0] for size in sizes if size.feasible])
        legend += wider_lines([size.doubts for size in sizes], [_words(size.job) for size in sizes])
        assumed = dict.fromkeys(size.job.assumed_clocks for size in sizes)
        legend += [f"Assumed {clocks}." for clocks in assumed if clocks]
        legend = tables.paragraphs(legend)
        if left := ", ".join(self.open_settings):
            title.append(f"Left open, and so assumed: {left}; `propose` prices what they move.")
        title += self._above()
        blocks = [[*size_table(sizes), *legend], part_table(sizes), self._front_lines(), self._pick_lines()]
        return tables.blocks_text(tables.paragraphs(title), *blocks, tables.paragraphs(left_out))

    def _above(self) -> list[str]:
        """Sentences on clusters whose fastest plan is above every record."""
        sizes = (size for size in self.sizes if size.plans)
        return [text for size in sizes if (text := above_best(size.job, size.plans[0], f"{_words(size.job)}: the"))]

    def _front_lines(self) -> list[str]:
        if not self.front:
            return tables.paragraphs(["No plan of these is expected to fit in memory."])
        used = dict.fromkeys(size for size, _ in self.front)
        words = ", ".join(_words(self.sizes[size].job) for size in used)
        return tables.paragraphs([f"Plans that no other beats in time and energy, over all clusters: {words}."])

    def _pick_lines(self) -> list[str]:
        if self.pick is None:
            return []
        limits = ", ".join(f"{_LIMITS[name].format(value)}" for name, value in self.pick.limits.items())
        job, plan = self.sizes[self.pick.size].job, self.pick.plan
        costs, low, high = (run_at(job, plan, end) for end in ("", "_low", "_high"))
        factor, unit = (1, "days") if costs["for_run"] else (24, "h per billion tokens")
        bill = [f"{factor * costs['days']:.3g} {unit} ({factor * low['days']:.3g} to {factor * high['days']:.3g})"]
        bill += [f"{costs['money']:,.0f} {job.cluster.currency}".strip()] if costs["money"] is not None else []
        bill.append(f"{plan['cluster_power_kw']:,.0f} kW")
        sure = kept_probability(job, self.pick)
        kept = "" if math.isnan(sure) else f" It keeps that with probability {odds(sure)}"
        advice = "; --at-high-end picks a plan that keeps it at the high end." if sure < 0.95 else "."
        held = " at the high end of its interval" * self.pick.at_high_end
        return tables.paragraphs([
            f"Under {limits}{held}, least {self.pick.objective}: {_words(job)}, "
            f"{plan_words(plan, _SHOWN)}: {', '.join(bill)}, {plan['avg_power_w']:.0f} W per GPU."
            + (f"{kept}{advice}" if kept else "")
        ])  # fmt: skip


def run_at(job: Job, plan: Mapping[str, Any], end: str = "") -> dict[str, Any]:
    """As `run_costs`, at that ``end`` (_low, _high) of the plan's 90 % intervals and of what is assumed of hosts."""
    if not end or plan.get(f"iteration_time_s{end}") is None:
        return run_costs(job, plan)
    at = {name: plan[f"{name}{end}"] for name in ("iteration_time_s", "energy_j")}
    return run_costs(replace(job, cluster=with_host_at(job.cluster, end.removeprefix("_"))), at)


def kept_probability(job: Job, pick: Pick) -> float:
    """The probability that the run of a pick keeps its deadline and budget; NaN without either, or an interval."""
    low, mean, high = (run_at(job, pick.plan, end) for end in ("_low", "", "_high"))
    bounds = {"deadline_days": "days", "budget": "money"}
    found = [
        _below(pick.limits[limit], low[name], mean[name], high[name]) for limit, name in bounds.items()
        if limit in pick.limits
    ]  # fmt: skip
    return min(found, default=math.nan)


def _below(bound: float, low: float, mean: float, high: float) -> float:
    """The probability that a figure with that 90 % interval, normal in its logarithm, is not above the bound."""
    end = high if bound > mean else low
    if not low < mean < high:
        return math.nan
    return NormalDist().cdf(Z_90 * math.log(bound / mean) / abs(math.log(end / mean)))


_LIMITS = {
    "deadline_days": "a deadline of {:g} days",
    "budget": "a budget of {:,.0f}",
    "site_kw": "{:g} kW of the site",
}
_SHOWN = frozenset({"cp", "ep", "vpp", "stage_clock_mhz"})


def _of_what(job: Job) -> str:
    tokens = job.training.run_tokens
    of = f"Of a run of {tokens:,} tokens" if tokens else "Of a billion tokens"
    return f"{of}, at the site's meter (PUE {job.cluster.pue:g}):"


def _words(job: Job) -> str:
    return f"{job.cluster.num_gpus:,} x {job.cluster.gpu.id}"


def size_table(sizes: Sequence[Size]) -> list[str]:
    """A line per cluster: its fastest plan, what scaling leaves, what the run takes, and its plan of least energy."""
    if not sizes:
        return []
    first, costs = [size.plans[0] for size in sizes], [_of_run(size) for size in sizes]
    least, tight = [size.plans[-1] for size in sizes], [is_tight(size.plans[0]) for size in sizes]
    columns = [
        *([TextColumn("", ["~" * one for one in tight], left=True)] if any(tight) else []),
        TextColumn("GPU", [size.job.cluster.gpu.id for size in sizes], left=True),
        TextColumn("GPUs", [f"{size.job.cluster.num_gpus:,}" for size in sizes]),
        TextColumn("layout", [_degrees(plan) for plan in first], left=True),
        tables.of("iteration_time_s", first),
        TextColumn("±\n%", tables.fixed(map(half_width, first), ".0f")),
        tables.of("tokens_per_s", first),
        tables.of("efficiency", sizes),
        tables.of("mfu", first),
        tables.of("cluster_power_kw", first),
        *(tables.of(name, costs) for name in ("run_time_s", "run_energy_j", "money")),
        _change("energy", first, least),
        _change("time", first, least),
    ]
    return tables.lay_out(tables.fitting(tables.known(columns), tables.room()))


def _of_run(size: Size) -> dict[str, Any]:
    """Time, energy and money of the run with the fastest plan of a cluster, by their names in `tables.FIGURES`."""
    costs = run_costs(size.job, size.plans[0])
    return {"run_time_s": 24 * HOUR_S * costs["days"], "run_energy_j": costs["energy_j"], "money": costs["money"]}


_LEAST = {"energy": "least\nenergy %", "time": "at\ntime %"}


def _change(name: str, first: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> TextColumn:
    """Time or energy of other plans against the first ones, with half of the 90 % interval of that."""
    column = COMPARED[name]
    pairs = [(one[column], two[column]) for one, two in zip(first, other, strict=True)]
    plain = tables.fixed((100 * (b / a - 1) if a and b else None for a, b in pairs), "+.1f")
    halves = [half_difference(two, name) for two in other]
    known = [math.nan if cell == "-" or not half else half for cell, half in zip(plain, halves, strict=True)]
    return TextColumn(_LEAST[name], tables.plus_minus(plain, known), brief=plain)


def _degrees(plan: Mapping[str, Any]) -> str:
    names = ("dp", "tp", "pp", "cp", "ep", "vpp")
    return " ".join(f"{name}{plan[name]}" for name in names if plan[name] > 1) or "1"


def part_table(sizes: Sequence[Size]) -> list[str]:
    """Shares of the time of each cluster's fastest plan by part, in percent: where scaling is lost."""
    shares = [{n: s / sum(size.time_s.values()) for n, s in size.time_s.items()} for size in sizes if size.time_s]
    if not shares:
        return []
    names = sorted(dict.fromkeys(n for one in shares for n in one), key=lambda n: -max(o.get(n, 0.0) for o in shares))
    shown = [name for name in names if max(one.get(name, 0.0) for one in shares) >= 0.005][:_MOST_PARTS]
    columns = [TextColumn("Share of the time, %", [_words(size.job) for size in sizes], left=True)]
    columns += [TextColumn(n, tables.fixed([100 * one.get(n, 0.0) for one in shares], ".1f")) for n in shown]
    return tables.lay_out(columns)
