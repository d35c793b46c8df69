"""The answer of ``import``: the job, the plan that runs today, its measured rows, and what could be gained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jointopt.core.facts import Assumption
from jointopt.core.units import Z_90
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job, job_mapping
from jointopt.jobs.plans.text import format_plan
from jointopt.report.explanation import Explanation
from jointopt.report.proposal import Proposal, spread_along
from jointopt.report.published_plans import beside_lines
from jointopt.report.tables import (
    Result,
    TextColumn,
    blocks_text,
    known_figures,
    lay_out,
    paragraphs,
    pick,
    plan_entries,
    result,
)

if TYPE_CHECKING:
    import pandas as pd

PROPOSALS = 6


@dataclass(frozen=True)
class Gain:
    """The share that a proposal is expected to take of today's plan, less one: -0.08 is 8 % less; 90 % interval."""

    expected: float
    low: float
    high: float

    @classmethod
    def of(cls, plan: Mapping[str, Any], today: Mapping[str, tuple[float, float, float]], name: str) -> Gain:
        """From (value, low, high) of today's plan; a measured one has low equal to high.

        Where today's plan is predicted too, half of each interval's width (of the logarithm) is taken as common.
        """
        value, low, high = today[name]
        here = [plan[name], plan[f"{name}_low"], plan[f"{name}_high"]]
        if not all(isinstance(x, float | int) and x and math.isfinite(x) for x in (value, low, high, *here)):
            return cls(math.nan, math.nan, math.nan)
        share = 1.0 if low == high else 0.5
        widths = (share * math.log(here[2] / here[1]), share * math.log(high / low))
        sd = math.hypot(*widths) / (2 * Z_90)
        ratio = here[0] / value
        return cls(ratio - 1.0, ratio * math.exp(-Z_90 * sd) - 1.0, ratio * math.exp(Z_90 * sd) - 1.0)

    def text(self) -> str:
        """``-8.1 % (-12.0 to -3.9)``; a hyphen where nothing is known."""
        if not math.isfinite(self.expected):
            return "-"
        return f"{100 * self.expected:+z.1f} % ({100 * self.low:+z.1f} to {100 * self.high:+z.1f})"


@dataclass(frozen=True)
class Proposed:
    """One proposal beside today's plan."""

    plan: Mapping[str, Any]
    text: str  # the plan as `--plan` takes it
    time: Gain
    energy: Gain


@dataclass(frozen=True)
class Comparison:
    """Today's plan (value, low, high of time and energy) and the proposals beside it, the fastest first."""

    today: Mapping[str, tuple[float, float, float]]
    is_measured: bool  # its time; the energy where it was metered
    violations: tuple[str, ...]
    proposals: tuple[Proposed, ...]
    beside: tuple[str, ...] = ()  # lines on published plans, and on the best one inside of what people run

    @classmethod
    def of(cls, proposal: Proposal, today: Explanation, rows: Sequence[Mapping[str, Any]]) -> Comparison:
        """The front of a proposal, thinned, beside a plan that was measured in ``rows`` (the first counts) or not."""
        names = ("iteration_time_s", "energy_j")
        known = {name: (getattr(today, name), *today.intervals[name]) for name in names}
        row = next((row for row in rows if row["status"] == "ok"), {})
        known |= {name: (float(row[name]),) * 3 for name in names if math.isfinite(row.get(name, math.nan))}
        index = spread_along(proposal.front, PROPOSALS).tolist()
        plans = plan_entries(proposal.front, index)
        texts = [format_plan(proposal.front, proposal.front["stage_clock_mhz"], i) for i in index]
        proposed = tuple(
            Proposed(plan, text, Gain.of(plan, known, names[0]), Gain.of(plan, known, names[1]))
            for plan, text in zip(plans, texts, strict=True)
        )
        lines = tuple(beside_lines(proposal.beside, proposal.feasible_layouts))
        return cls(known, bool(row), tuple(today.violations), proposed, lines)

    def lines(self) -> list[str]:
        """A table: today's plan, then the proposals with what they change."""
        time, energy = (result(name, values[0]) for name, values in self.today.items())
        how = "measured" if self.is_measured else "predicted"
        out = paragraphs([f"Today's plan: {time}, {energy} ({how}). Proposals, with 90 % intervals of what they take:"])
        out += lay_out([
            TextColumn("", [f"{i + 1}" for i in range(len(self.proposals))]),
            *(TextColumn(name, [getattr(one, name).text() for one in self.proposals]) for name in ("time", "energy")),
        ])  # fmt: skip
        out += paragraphs(f"{i + 1}: {one.text}" for i, one in enumerate(self.proposals))
        out += self.beside
        return out + paragraphs(f"Today's plan is outside of the search space: {text}" for text in self.violations)


@dataclass(frozen=True)
class Imported(Result):
    """The job of a run, the plan that it runs today, its measured rows, and what of its files was not read."""

    rows: ClassVar[str] = "rows"
    job: Job
    plan: Mapping[str, Any]
    plan_text: str  # as `jointopt explain --plan` takes it
    runs: tuple[dict[str, Any], ...]  # rows of a measurement table
    formats: Mapping[str, str]  # file -> what it was read as
    unread: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # file -> options or keys that are not known
    without_effect: int = 0  # options that change neither time nor energy
    remarks: tuple[str, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)  # of each field of the job and the plan
    comparison: Comparison | None = None

    def document(self) -> dict[str, Any]:
        """The job as its file would say it, the plan, the rows, and what was not read."""
        compared = None if self.comparison is None else dataclasses.asdict(self.comparison)
        return pick(self, "job=job.name") | {
            "job_file": job_mapping(self.job), "plan": self.plan, "plan_text": self.plan_text,
            "rows": [known_figures(row) for row in self.runs],
        } | pick(self, "formats unread without_effect remarks assumed origins") | {"comparison": compared}  # fmt: skip

    def job_text(self) -> str:
        """The job as its file."""
        return dump_job(self.job)

    def frame(self) -> pd.DataFrame:
        """The measured rows as a measurement table."""
        import pandas as pd

        return pd.DataFrame(list(self.runs))

    def text(self) -> str:
        """The job file, the plan, the rows, and what was not read."""
        read = ", ".join(f"{name} ({form})" for name, form in self.formats.items())
        plan = paragraphs([f"The plan that runs today: {self.plan_text}"])
        compared = self.comparison.lines() if self.comparison else []
        return blocks_text(
            [f"Read {read}."], self.job_text().splitlines(), plan, self._measured(), compared, self._notes(),
            self._origin_lines(),
        )  # fmt: skip

    def _origin_lines(self) -> list[str]:
        """Where the fields come from, those of one place together."""
        by_place: dict[str, list[str]] = {}
        for name, place in self.origins.items():
            by_place.setdefault(place, []).append(name)
        lines = [f"{place}: {', '.join(names)}" for place, names in by_place.items()]
        return ["Where each field comes from:", *paragraphs(lines)] if lines else []

    def _measured(self) -> list[str]:
        lines = []
        for row in self.runs:
            time = result("iteration_time_s", row["iteration_time_s"]) if row["status"] == "ok" else row["status"]
            joules = row.get("energy_j", math.nan)
            energy = f", {result('energy_j', joules)}" if np.isfinite(joules) else ""
            lines.append(f"Measured: {time}{energy}: {row['notes']}.")
        return paragraphs(lines)

    def _notes(self) -> list[str]:
        lines = [
            f"{name}: {len(keys)} not known and not read: {', '.join(keys)}." for name, keys in self.unread.items()
        ]
        if self.without_effect:
            lines.append(f"{self.without_effect:,} more options have no effect on time and energy.")
        lines += [f"{remark}." for remark in self.remarks] + [f"{one}." for one in self.assumed]
        return paragraphs(lines)
