"""The answer of ``select``: the best stored plan under limits, what relaxing them would buy, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jointopt.core.quote import our_command, sh_lines
from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_jobs
from jointopt.jobs.objectives import OBJECTIVES, SITE_ENERGY
from jointopt.jobs.plans.text import PLAN_KEYS
from jointopt.report.doubts import reasons_of, wider_lines
from jointopt.report.plans import (
    compared_lines,
    plan_frame,
    predicted_table,
    short_plan,
    shows_site,
    site_table,
    tight_lines,
)
from jointopt.report.tables import (
    Block,
    Result,
    TextColumn,
    figure,
    format_values,
    known_columns,
    lay_out,
    pick,
    plan_entries,
)

if TYPE_CHECKING:
    import pandas as pd

AS_GIVEN = "as given"  # the reason of an objective that the caller chose


@dataclass(frozen=True)
class Relaxation:
    """The gain from a looser limit, the others as they are; ``row`` is the plan chosen then."""

    row: int
    relaxed_to: float
    gain: float  # in units of the objective, 0 where nothing better comes within reach
    gain_percent: float


@dataclass(frozen=True)
class Limit:
    """One upper bound that a stored plan had to keep, and how the plan chosen stands to it."""

    name: str  # column that is bounded
    bound: float
    value: float  # of the plan chosen
    held: float  # what is held to the bound: the value, or the upper end of its interval
    high: float | None  # upper end of its 90 % interval
    binds: bool  # without this limit alone a better plan would be chosen
    relaxed: Relaxation  # by 5 %
    nearest: Relaxation | None  # the least that buys something worth having; None = nothing does

    @property
    def room_percent(self) -> float:
        """Distance of the plan chosen from the bound, in percent of it."""
        return 100.0 * (1.0 - self.held / self.bound)

    @property
    def useful(self) -> Relaxation:
        """The gain from 5 % more, or where that is none, from the nearest bound that has one."""
        return self.relaxed if self.relaxed.gain > 0 or self.nearest is None else self.nearest


@dataclass(frozen=True, repr=False)
class Selection(Result):
    """The best of stored plans under limits. ``plans`` are all that were stored; rows are counted in them."""

    source: str
    job_name: str
    job: Job | None
    plans: Columns
    row: int  # the plan chosen
    objective: str  # time | energy | edp | knee
    energy: str  # column that counts as energy: energy_j, or facility_energy_j
    reason: str  # why that objective
    satisfying: int  # plans within all limits
    at_high_end: bool  # limits were kept by the upper ends of the 90 % intervals
    limits: tuple[Limit, ...]
    ends: tuple[int, int]  # the fastest plan and the one of least energy within all limits
    binds_together: bool  # no limit alone keeps the best plan away, all of them do
    measured: bool = False  # the values are of real runs, and not predicted
    surrogate: str = ""  # that alone predicted them; blank: not known, or measured runs did so too
    place: str = ""  # of the plans, in whose front the one chosen has a number from 1; 0: in none
    number: int = 0
    storage: str | None = None

    @property
    def num_plans(self) -> int:
        """Plans that were stored."""
        return len(self.plans["pp"])

    @property
    def binding(self) -> tuple[str, ...]:
        """Limits that bind, each of them alone."""
        return tuple(limit.name for limit in self.limits if limit.binds)

    @property
    def next_command(self) -> str:
        """What explains the plan chosen: of its study, its file or a proposal; else ``job.yaml`` stands for its job."""
        if self.number and not self.place:
            return f"proposal[{self.number - 1}].explain()"
        if self.number:
            return our_command("explain", plan=f"{self.place}:{self.number}", storage=self.storage)
        job = self.job_name if self.job_name in shipped_jobs() else "job.yaml"
        return our_command("explain", job, plan=short_plan(self.plans, self.row))

    def document(self) -> dict[str, Any]:
        """The plan chosen with its predictions, how it stands to every limit, and what a looser one buys."""
        (entry,) = plan_entries(self.plans, [self.row])
        plan = {name: value for name, value in entry.items() if name in PLAN_KEYS}
        keys = (
            "source job=job_name objective objective_because=reason energy measured at_high_end binding binds_together "
            "stored_plans=num_plans satisfying_plans=satisfying next=next_command"
        )
        results = {name: value for name, value in entry.items() if name not in plan}
        return pick(self, keys) | {"plan": plan, **results} | {
            "constraints": {limit.name: pick(limit, "limit=bound value high room_percent") for limit in self.limits},
            "relaxations": {
                limit.name: self._bought(limit, limit.relaxed)
                | {"nearest_useful": limit.nearest and self._bought(limit, limit.nearest)}
                for limit in self.limits
            },
        }  # fmt: skip

    def _bought(self, limit: Limit, relaxation: Relaxation) -> dict[str, Any]:
        """``gain`` is in units of the objective: seconds, joules, or their product."""
        return {
            "relaxed_to": relaxation.relaxed_to,
            "relaxed_by_percent": 100.0 * (relaxation.relaxed_to / limit.bound - 1.0),
            **pick(relaxation, "gain gain_percent"),
            **{name: self.plans[name][relaxation.row] for name in ("iteration_time_s", self.energy)},
        }

    def to_frame(self) -> pd.DataFrame:
        """All stored plans; the column ``chosen`` is true in one row."""
        frame = plan_frame(self.plans)
        return frame.assign(chosen=frame.index == self.row)

    def blocks(self) -> Iterator[Block]:
        """The plan chosen (=) with those that a looser limit would buy (a, b, ...) or the two ends, and the limits."""
        job, stored = self.job, self.num_plans
        # rows beside the chosen one, by their mark: what a looser limit would buy, or else the two ends
        others = {mark: row for mark, row in zip("fe", self.ends, strict=True) if row != self.row}
        if self.limits:
            bought = [limit.useful.row for limit in self.limits if limit.useful.gain > 0]
            others = dict(zip("abcd", [row for row in dict.fromkeys(bought) if row != self.row], strict=False))
        rows, marks = [self.row, *others.values()], ["=", *others]
        kept = f"; {self.satisfying:,} keep{'s' * (self.satisfying == 1)} every limit" if self.limits else ""
        measured = ", measured by real runs" if self.measured else ""
        counted = f"{stored:,} plan{'s' * (stored != 1)} of {self.source}{measured}{kept}"
        energy = ", hosts and PUE counted as energy" if self.energy == SITE_ENERGY else ""
        why = self.reason if self.reason == AS_GIVEN else f"{self.reason}; --objective changes that"
        best = f"{'The knee' if self.objective == 'knee' else f'Least {self.objective}'} ({why}){energy}:"
        yield [f"{f'{self.job_name}: ' if self.job_name else ''}{counted}.", best]
        ends = "" if self.limits or not others else ", f the fastest, e that of least energy"
        entries = plan_entries(self.plans, rows)
        drawn = predicted_table(entries, marks)
        half = "; ± is half of the time's 90 % interval" * any("±" in line for line in drawn)
        yield [
            drawn, f"= the plan chosen{ends}; Δ% is relative to it{half}.", *compared_lines(entries, drawn),
            *wider_lines(reasons_of(entries, self.surrogate, job)), *tight_lines(entries),
        ]  # fmt: skip
        yield [_limit_table(self, others), *_remarks(self)]
        if job is not None and (shows_site(job) or self.energy == SITE_ENERGY) and entries[0]["energy_j"]:
            time_s, energy_j = (self.plans[name][rows] for name in OBJECTIVES)
            yield [site_table(job, marks, time_s, energy_j)]
        own = "" if self.number or self.job_name in shipped_jobs() else " (with your job file)"
        in_python = self.number and not self.place
        command = [self.next_command] if in_python else sh_lines(self.next_command).split("\n")
        yield [[f"Next: take it apart{own}", *(f"  {line}" for line in command)]]


def _limit_table(found: Selection, others: Mapping[str, int]) -> list[str]:
    """One line per limit: how the plan chosen stands to it, and for one that binds what a looser one would buy."""
    if not found.limits:
        return []
    marks = {row: mark for mark, row in others.items()}

    def offered(head: str, cell: Callable[[Limit, Relaxation], str]) -> TextColumn:
        pairs = ((limit, limit.useful) for limit in found.limits)
        return TextColumn(head, [cell(one, buy) if one.binds and buy.gain > 0 else "-" for one, buy in pairs])

    columns = [
        TextColumn("limit", [limit.name for limit in found.limits], left=True),
        TextColumn("at most", [figure(limit.bound) for limit in found.limits]),
        TextColumn("is", [figure(limit.value) for limit in found.limits]),
        TextColumn("up to", [figure(limit.held) if found.at_high_end else "-" for limit in found.limits]),
        TextColumn("room\n%", format_values((limit.room_percent for limit in found.limits), ".1f")),
        TextColumn("binds", ["yes" if limit.binds else "no" for limit in found.limits]),
        offered("relaxed\nto", lambda _, buy: figure(buy.relaxed_to)),
        offered("by\n%", lambda limit, buy: f"{100 * (buy.relaxed_to / limit.bound - 1):.1f}"),
        offered(f"less {found.objective}\n%", lambda _, buy: figure(round(buy.gain_percent, 2))),
        offered("row", lambda _, buy: marks.get(buy.row, "-")),
    ]
    return lay_out(known_columns(columns))


def _remarks(found: Selection) -> list[str]:
    """Sentences on limits: those that no looser one helps, that bind together, or that an interval goes beyond."""
    over = [limit.name for limit in found.limits if limit.high is not None and limit.high > limit.bound]
    powers = [f"constraints.{limit.name}" for limit in found.limits if "power" in limit.name]
    useless = [limit.name for limit in found.limits if limit.binds and not limit.useful.gain > 0]
    remarks = {
        f"No looser limit on {' or '.join(useless)} lowers the {found.objective} by 0.1 % or more.": useless,
        "Limits (--max-...) choose another plan.": not found.limits,
        "No limit binds alone: a better plan breaks several of them at once.": found.binds_together,
        f"The 90 % interval of {' and '.join(over)} goes beyond the limit; --at-high-end keeps that within.":
            over and not found.at_high_end,
        f"The search kept plans for time and energy: with {' and '.join(powers)} in the job file, "
        "`jointopt propose` may find a better one under that power.": powers and not found.measured,
    }  # fmt: skip
    return [sentence for sentence, holds in remarks.items() if holds]
