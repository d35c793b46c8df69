"""The answer of ``fleet``: who gets how much of a site's power, and what that is worth against simpler ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.jobs.plans.text import format_stage_clocks
from jointopt.report.page.power_page import compared_figure, power_page
from jointopt.report.page.render import Page
from jointopt.report.plans import plan_words
from jointopt.report.tables import Block, Result, TextColumn, figure, format_values, lay_out, paragraphs, pick

_WIDTH, _ROWS, _CLEAR_GAP = 80, 10, 1e-6
_LITTLE = 1.006  # times the tokens/s of simpler ways: all that an optimum gains between equal jobs


@dataclass(frozen=True)
class JobShare:
    """What one job gets; no plan: it pauses."""

    name: str
    plan: Mapping[str, Any] | None
    gpus: int
    priority: float
    tokens_per_s: float
    power_kw: float
    power_kw_high: float
    relative: float  # tokens/s against those without a limit
    deadline_met: bool | None  # None: it has none


@dataclass(frozen=True)
class Shares:
    """One way to share the power."""

    jobs: tuple[JobShare, ...]

    @property
    def power_kw(self) -> float:
        """Mean power of all jobs at the meter."""
        return sum(one.power_kw for one in self.jobs)

    @property
    def power_kw_high(self) -> float:
        """The sum of what each job stays below with 95 %."""
        return sum(one.power_kw_high for one in self.jobs)

    @property
    def relative_throughput(self) -> float:
        """Mean over jobs, weighted by priority, of tokens/s against those without a limit."""
        return sum(one.priority * one.relative for one in self.jobs) / sum(one.priority for one in self.jobs)

    @property
    def deadlines_met(self) -> int:
        """How many deadlines are kept."""
        return sum(one.deadline_met is True for one in self.jobs)

    @property
    def gpus(self) -> int:
        """GPUs that run."""
        return sum(one.gpus for one in self.jobs)

    def document(self) -> dict[str, Any]:
        """Jobs and sums."""
        return pick(self, "jobs power_kw power_kw_high relative_throughput deadlines_met gpus")


@dataclass(frozen=True, repr=False)
class Allocation(Result):
    """The best shares of a site's power, with equal shares and those of a greedy operator beside them."""

    rows = "jobs"
    keys = "site_kw deadlines gap unlimited_kw unlimited_gpus gpus_at_full_clocks more_gpus limits equal_share greedy"
    site_kw: float
    found: Shares
    equal_share: Shares
    greedy: Shares
    gap: float  # most by which another way could be better, as a share
    unlimited_kw: float  # that all jobs may draw without a limit
    unlimited_gpus: int  # that they run on then
    limit_use: tuple[tuple[str, float, float], ...]  # name, kW, high end of what its jobs draw

    @property
    def deadlines(self) -> int:
        """How many jobs have one."""
        return sum(one.deadline_met is not None for one in self.found.jobs)

    @property
    def gpus_at_full_clocks(self) -> int:
        """How many GPUs the site could feed if each drew as much as without a limit."""
        return int(self.unlimited_gpus * min(self.site_kw / self.unlimited_kw, 1.0))

    @property
    def more_gpus(self) -> int:
        """How many more than that run."""
        return max(self.found.gpus - self.gpus_at_full_clocks, 0)

    @property
    def limits(self) -> list[dict[str, Any]]:
        """Each limit, and the high end of what its jobs draw."""
        return [{"name": name, "kw": kw, "power_kw_high": used} for name, kw, used in self.limit_use]

    def document(self) -> dict[str, Any]:
        """The best shares, then what else is known."""
        return self.found.document() | super().document()

    def report(self) -> Page:
        """The shares as one HTML page that needs no network: who gets what, beside simpler ways, and each limit."""
        ways = {"best": self.found, "equal shares": self.equal_share, "greedy steps": self.greedy}
        names, limits = [one.name for one in self.found.jobs], self.limits
        head = {"head": ["job", "GPUs", "kW", "95 %", "% of its tokens/s", "clocks in MHz", "plan"],
                "caption": "What each job gets"}  # fmt: skip
        rows = [
            [one.name, one.gpus, figure(one.power_kw), figure(one.power_kw_high), f"{100 * one.relative:.1f}",
             _clocks(one), plan_words(one.plan, one.plan) if one.plan else "-"]
            for one in self.found.jobs
        ]  # fmt: skip
        shown = {
            "Tokens/s beside simpler ways": compared_figure(
                names, {way: [100 * one.relative for one in of.jobs] for way, of in ways.items()},
                "% of its tokens/s",
            ),
            "Power of each limit": compared_figure(
                [one["name"] for one in limits],
                {"drawn (high end, 95 %)": [one["power_kw_high"] for one in limits],
                 "limit": [one["kw"] for one in limits]}, "kW",
            ),
        }  # fmt: skip
        paused = [one.name for one in self.found.jobs if one.plan is None]
        cards = [
            (name.capitalize(), f"{100 * way.relative_throughput:.2f} %", "of the tokens/s without a limit")
            for name, way in ways.items()
        ]
        cards.append(("Power", f"{self.found.power_kw_high:.2f} kW", f"the high end, of {figure(self.site_kw)} kW"))
        lines = " ".join(self.text().split("\n\n")[0].split())
        return power_page(
            f"{len(names)} jobs under {figure(self.site_kw)} kW", "Power of one site between its jobs.",
            lines + (f" Paused: {', '.join(paused)}." if paused else ""), cards, shown, self.text(verbose=True),
            tables=[head | {"rows": rows}],
        )  # fmt: skip

    def blocks(self, *, verbose: bool = False) -> Iterator[Block]:
        """The sums, the jobs (``verbose``: all), and what the optimum is worth."""
        best, jobs = self.found, self.found.jobs
        met = f"; {best.deadlines_met} of {self.deadlines} deadlines kept" if self.deadlines else ""
        whose = "its" if len(jobs) == 1 else "their"
        gap = f" (proved to {100 * self.gap:.2g} %)" if self.gap > _CLEAR_GAP else ""
        yield _lines(
            f"{len(jobs)} job{'s' * (len(jobs) != 1)} under {figure(self.site_kw)} kW: "
            f"{100 * best.relative_throughput:.2f} % of {whose} tokens/s without a limit{gap}{met}.",
            f"Power {figure(round(best.power_kw, 2))} kW, below {figure(round(best.power_kw_high, 2))} kW with 95 %; "
            f"without a limit below {figure(round(self.unlimited_kw, 2))} kW.",
        )
        shown = jobs if verbose else jobs[:_ROWS]
        columns = [
            TextColumn("job", [one.name[:30] for one in shown], left=True),
            TextColumn("GPUs", [f"{one.gpus:,}" for one in shown]),
            TextColumn("kW", [figure(one.power_kw) for one in shown]),
            TextColumn("95 %", [figure(one.power_kw_high) for one in shown]),
            TextColumn("%", format_values((100.0 * one.relative for one in shown), ".1f")),
            TextColumn("clocks in MHz", [_clocks(one) for one in shown], left=True),
        ]
        more = len(jobs) - len(shown)
        yield [[*lay_out(columns), *([f"... {more:,} more (-v)"] if more else [])]]
        if verbose:
            yield [[f"{one.name}: {plan_words(one.plan, one.plan)}" for one in jobs if one.plan]]
        used = [f"{name} {figure(round(high, 1))} of {figure(kw)} kW" for name, kw, high in self.limit_use[1:]]
        yield _lines(*([f"Limits: {'; '.join(used)}."] if used else []), *self._worth())

    def _worth(self) -> Iterator[str]:
        ways = {"equal shares": self.equal_share, "greedy steps": self.greedy}
        parts = [
            f"{name} {100 * way.relative_throughput:.2f} %"
            + (f" ({way.deadlines_met} in time)" if self.deadlines else "")
            for name, way in ways.items()
        ]
        best = self.found.relative_throughput
        is_little = all(best <= _LITTLE * way.relative_throughput for way in ways.values())
        yield f"Beside it: {', '.join(parts)}." + (len(self.found.jobs) > 1 and is_little and not self.deadlines) * (
            " Between equal jobs the optimum gains only .1 to .6 %; deadlines, priorities and kinds of GPU make the "
            "difference, and how many GPUs run."
        )
        if self.more_gpus:
            yield (
                f"At full clocks the site would feed {self.gpus_at_full_clocks:,} GPUs; now it feeds "
                f"{self.found.gpus:,} ({self.more_gpus:,} more)."
            )


def _clocks(one: JobShare) -> str:
    """The clocks of a job, once where all stages have the same, and whether it keeps its deadline."""
    late = "" if one.deadline_met is None else ", in time" if one.deadline_met else ", LATE"
    if one.plan is None:
        return f"paused{late}"
    clocks = one.plan["stage_clock_mhz"]
    text = format_stage_clocks(clocks if len({*clocks}) > 1 else clocks[:1])
    return f"{text if len(text) < 24 else f'{min(clocks):g}..{max(clocks):g}'}{late}"


def _lines(*sentences: str) -> list[str]:
    return paragraphs(sentences, most=_WIDTH)
