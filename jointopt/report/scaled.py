"""The answer of ``scale``: cluster sizes and kinds side by side, and the one that a deadline, budget or power picks."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.quote import sh_command
from jointopt.core.schema import LOG_COLUMNS
from jointopt.core.short_repr import ShortRepr
from jointopt.core.units import Z_90
from jointopt.jobs.job import Job
from jointopt.physics.site import HOUR_S, run_costs
from jointopt.report import tables
from jointopt.report.decision import (
    LINES,
    SETTINGS,
    WIDTH,
    Difference,
    command_lines,
    cost_words,
    difference_lines,
    job_words,
    narrow_lines,
    plan_warnings,
    run_costs_at,
)
from jointopt.report.doubts import OpenSetting, above_best, settings_lines, wider_lines
from jointopt.report.plans import (
    COMPARED,
    against_first,
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
_SURE = 0.95  # of keeping a limit; below it the answer says how to be surer
_BESIDE = 4  # lines of a short answer beside its blocks: two of the table's head, two blank ones
_ASK = "To pick by a limit: --deadline-days, --budget or --site-kw, with --run-tokens."


@dataclass(frozen=True, repr=False)
class Size(ShortRepr):
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
    source: str = ""  # how a shell names the job; blank: not known
    hangs_on: tuple[OpenSetting, ...] = ()  # what the job leaves open, by how much it moves the time of `chosen`
    next_command: Mapping[str, str] | None = None  # that starts `chosen`, and a note; None: no shell named the job

    @property
    def chosen(self) -> Pick:
        """What is picked; without a limit the fastest plan of all clusters, of those that are feasible if any is."""
        if self.pick is not None:
            return self.pick
        some = [at for at, size in enumerate(self.sizes) if size.feasible]
        some = some or [at for at, size in enumerate(self.sizes) if size.plans]
        days = {at: run_costs(self.sizes[at].job, self.sizes[at].plans[0])["days"] for at in some}
        best = min(days, key=days.__getitem__)
        return Pick(best, self.sizes[best].plans[0], "time", {})

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

    @property
    def job_words(self) -> str:
        """How a shell names the job on the cluster that is picked."""
        job = self.sizes[self.chosen.size].job
        of_kind = ("gpu.id", "price_per_gpu_hour") if len({size.job.cluster.gpu.id for size in self.sizes}) > 1 else ()
        names = (*of_kind, "nodes", "gpus_per_node")
        changes = {f"cluster.{name.removesuffix('.id')}": attrgetter(name)(job.cluster) for name in names}
        changes |= {"training.global_batch_size": job.training.global_batch_size} if self.weak else {}
        known = (("--set", f"{key}={value}") for key, value in changes.items() if value is not None)
        return f"{self.source} {sh_command(itertools.chain.from_iterable(known))}"

    def blocks(self, *, brief: bool = False) -> Iterator[Block]:
        """A line per cluster, the parts of its time, the front over clusters, the pick, and what was left out.

        ``brief``: the cluster and plan that are picked, what they give, what that hangs on, and the next command.
        """
        if brief:
            yield from _short_answer(self)
            return
        first, sizes = self.sizes[0].job, [size for size in self.sizes if size.plans]
        kind = "the batch grows with the GPUs" if self.weak else f"{first.training.global_batch_size:,} sequences"
        tokens = first.training.run_tokens
        of = f"Of a run of {tokens:,} tokens" if tokens else "Of a billion tokens"
        kinds = {size.job.cluster.gpu.id for size in self.sizes}
        clusters = f"{len(self.sizes)} cluster{'s' * (len(self.sizes) != 1)}"
        clusters += f" of {first.cluster.gpu.id}" * (len(kinds) == 1)
        yield (
            f"{first.model.name}: {clusters}, {kind} per iteration "
            f"of {first.training.seq_length:,} tokens. {of}, at the site's meter (PUE {first.cluster.pue:g}):",
            f"Left open, and so assumed: {', '.join(self.open_settings)}; `propose` prices what they move."
            * bool(self.open_settings),
            *self._above(),
        )
        feasible = [size.plans[0] for size in sizes if size.feasible]
        assumed = dict.fromkeys(size.job.assumed_clocks for size in sizes)
        drawn = size_table(sizes)
        yield [
            drawn,
            *["± behind a difference is its 90 % interval."] * any(re.search(r"\d±\d", line) for line in drawn),
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


def _short_answer(found: Scaled) -> Iterator[list[str]]:
    """What is picked, what it gives, what that hangs on, the clusters, and a command."""
    left_out = ", ".join(one.name for one in found.sizes if not one.feasible)
    short = narrow_lines(f"Not feasible (-v says why): {left_out}.") if left_out else []
    if not any(one.plans for one in found.sizes):
        yield short
        return
    pick = found.chosen
    size, plan = found.sizes[pick.size], pick.plan
    limits = ", ".join(_LIMITS[name].format(value) for name, value in pick.limits.items())
    held = " at the high end of its interval" * pick.at_high_end
    why = f"least {pick.objective} under {limits}{held}" if limits else "the fastest, for no limit is stated"
    sure = kept_probability(size.job, pick)
    keeps = "" if math.isnan(sure) else f"It keeps that with probability {probability_text(sure)}"
    keeps += "; --at-high-end keeps it at the high end." if sure < _SURE else "." * bool(keeps)
    head = [
        f"{job_words(size.job)}.", *plan_warnings(size.job, plan, size.doubts),
        f"Picked of {len(found.sizes)} cluster{'s' * (len(found.sizes) != 1)}: {size.name}, {why}",
    ]  # fmt: skip
    first = [line for sentence in head for line in narrow_lines(sentence)]
    first += narrow_lines(plan_words(plan, _SHOWN), "  ") + narrow_lines(cost_words(size.job, plan), "  ")
    first += narrow_lines(keeps, "  ") + _against_lines(found, pick)
    last = [*narrow_lines(_ASK) * (not limits), *command_lines(found.next_command)]
    room = LINES - len([*first, *last, *short]) - _BESIDE  # for settings and rows of the table
    named = max(1, min(SETTINGS, room - 2 - min(6, len(found.sizes))))
    first += settings_lines(found.hangs_on, named, whose="Its", width=WIDTH)
    yield first
    yield [*_short_table(found, pick, LINES - len([*first, *last, *short]) - _BESIDE), *short]
    yield last


def _against_lines(found: Scaled, pick: Pick) -> list[str]:
    """What the pick takes against the fastest plan of its cluster; none where it is that (the table has the others)."""
    size, plan, fastest = found.sizes[pick.size], pick.plan, found.sizes[pick.size].plans[0]
    if plan is fastest or plan["iteration_time_s"] <= fastest["iteration_time_s"]:
        return []
    known = [Difference(name, *against_first(plan, name)) for name in COMPARED]
    known = [one for one in known if math.isfinite(one.percent)]
    return [*narrow_lines(f"Against the fastest plan of {size.name}"), *difference_lines(known)] if known else []


def _short_table(found: Scaled, pick: Pick, most: int) -> list[str]:
    """A line per cluster, at most so many: its fastest plan or the picked one (=), and what its run takes."""
    sizes = {at: size for at, size in enumerate(found.sizes) if size.plans}
    rows = len(sizes) if len(sizes) <= most else max(most - 1, 2)  # a line says how many are left out
    kept = np.linspace(0, len(sizes) - 1, min(rows, len(sizes))).round().astype(int)
    own = list(sizes).index(pick.size)
    kept[np.abs(kept - own).argmin()] = own
    shown = [list(sizes)[row] for row in kept.tolist()]
    plans = [pick.plan if at == pick.size else sizes[at].plans[0] for at in shown]
    marks = ["=" * (at == pick.size) + "~" * (probability_of_fitting(plan) < NOT_TIGHT)
             for at, plan in zip(shown, plans, strict=True)]  # fmt: skip
    columns = [
        TextColumn("", marks, left=True),
        TextColumn("cluster", [sizes[at].name for at in shown], left=True),
        *_run_columns([sizes[at].job for at in shown], plans),
        tables.figure_column("cluster_power_kw", plans),
        tables.figure_column("efficiency", [sizes[at] for at in shown]),
    ]
    left_out = len(sizes) - len(shown)
    more = [f"and {left_out} more cluster{'s' * (left_out != 1)}: -v"] * (left_out > 0)
    return [*tables.lay_out(tables.fit_columns(tables.known_columns(columns), WIDTH)), *more]


def _run_columns(jobs: Sequence[Job], plans: Sequence[Mapping[str, Any]]) -> list[TextColumn]:
    """Time, energy and money of the run of each plan."""
    costs = [  # by their names in `tables.FIGURE_FORMATS`
        {"run_time_s": 24 * HOUR_S * run["days"], "run_energy_j": run["energy_j"], "money": run["money"]}
        for run in map(run_costs, jobs, plans)
    ]
    return [tables.figure_column(name, costs) for name in ("run_time_s", "run_energy_j", "money")]


def _pick_words(size: Size, pick: Pick) -> str:
    """The pick in a sentence: its limits, its cluster and plan, what its run takes, and how surely it keeps a limit."""
    job, plan = size.job, pick.plan
    limits = ", ".join(_LIMITS[name].format(value) for name, value in pick.limits.items())
    held = " at the high end of its interval" * pick.at_high_end
    words = (
        f"Under {limits}{held}, least {pick.objective}: {size.name}, {plan_words(plan, _SHOWN)}: "
        f"{cost_words(job, plan)}."
    )
    sure = kept_probability(job, pick)
    if math.isnan(sure):
        return words
    advice = "; --at-high-end picks a plan that keeps it at the high end." if sure < 0.95 else "."
    return f"{words} It keeps that with probability {probability_text(sure)}{advice}"


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
    tight = [probability_of_fitting(plan) < NOT_TIGHT for plan in first]
    names = [name for name in LOG_COLUMNS if name != "micro_batch_size"]
    layouts = [" ".join(f"{name}{plan[name]}" for name in names if plan[name] > 1) or "1" for plan in first]
    columns = [
        *([TextColumn("", ["~" * one for one in tight], left=True)] if any(tight) else []),
        TextColumn("GPU", gpus := [size.job.cluster.gpu.id for size in sizes], left=True, spare=len({*gpus}) == 1),
        TextColumn("GPUs", [f"{size.job.cluster.num_gpus:,}" for size in sizes]),
        TextColumn("layout", layouts, left=True),
        tables.figure_column("iteration_time_s", first),
        TextColumn("±\n%", tables.format_values(map(interval_half_width, first), ".0f")),
        tables.figure_column("tokens_per_s", first, spare=True),
        tables.figure_column("efficiency", sizes, spare=True),
        tables.figure_column("mfu", first, spare=True),
        tables.figure_column("cluster_power_kw", first, spare=True),
        *_run_columns([size.job for size in sizes], first),
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
    while len(columns) > 2 and tables.table_width(columns) > tables.line_width():
        columns.pop()
    return tables.lay_out(columns)
