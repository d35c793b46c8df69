"""The answer of ``import``: the job, the plan that runs today, its measured rows, and what could be gained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jointopt.core.facts import Assumption
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job, job_mapping
from jointopt.report.decision import command_lines, job_words, narrow_lines
from jointopt.report.tables import Block, Result, TextColumn, known_figures, lay_out, pick, result_text

if TYPE_CHECKING:
    import pandas as pd

PROPOSALS = 6

_REMARKS = 5  # lines of them, in a short answer


@dataclass(frozen=True)
class Gain:
    """The share that a proposal is expected to take of today's plan, less one: -0.08 is 8 % less; 90 % interval."""

    expected: float
    low: float
    high: float

    def text(self) -> str:
        """``-8.1 % (-12.0 to -3.9)``; a hyphen where nothing is known."""
        if not math.isfinite(self.expected):
            return "-"
        return f"{100 * self.expected:+z.1f} % ({100 * self.low:+z.1f} to {100 * self.high:+z.1f})"


@dataclass(frozen=True)
class ProposedPlan:
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
    violations: tuple[str, ...]  # rules and constraints that it breaks, a sentence each
    proposals: tuple[ProposedPlan, ...]
    beside: tuple[str, ...] = ()  # lines on published plans, and on the best one inside of what people run
    next_command: Mapping[str, str] | None = None  # that starts the first proposal, a note; None: no job file is named

    def block(self, *, brief: bool = False) -> Iterator[str | Sequence[str]]:
        """A table: today's plan, then the proposals with what they change; ``brief``: the first alone, as a command."""
        time, energy = (result_text(name, values[0]) for name, values in self.today.items())
        how = "measured" if self.is_measured else "predicted"
        yield f"Today's plan: {time}, {energy} ({how}). Proposals, with 90 % intervals of what they take:"
        yield lay_out([
            TextColumn("", [f"{i + 1}" for i in range(len(self.proposals))]),
            *(TextColumn(name, [getattr(one, name).text() for one in self.proposals]) for name in ("time", "energy")),
        ])  # fmt: skip
        shown = self.proposals[: bool(self.next_command is None) if brief else None]
        yield from (f"{i + 1}: {one.text}" for i, one in enumerate(shown))
        yield [] if brief else self.beside
        yield from (f"Today's plan could not be run: {text}" for text in self.violations)
        yield "The fastest of them is 1." * bool(self.next_command)
        yield command_lines(self.next_command)


@dataclass(frozen=True, repr=False)
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
        return pick(self, "job=job.name") | {
            "job_file": job_mapping(self.job), "plan": self.plan, "plan_text": self.plan_text,
            "rows": [known_figures(row) for row in self.runs],
        } | pick(self, "formats unread without_effect remarks assumed origins") | {
            "comparison": self.comparison,
        }  # fmt: skip

    def job_text(self) -> str:
        """The job as its file."""
        return dump_job(self.job)

    def frame(self) -> pd.DataFrame:
        """The measured rows as a measurement table."""
        import pandas as pd

        frame = pd.DataFrame(list(self.runs))
        return frame.mask(frame.isin([""]))  # a blank cell is not known

    def blocks(self, *, brief: bool = False, written: bool = False) -> Iterator[Block]:
        """The job file, the plan, the rows, and what was not read; ``brief``: the job in words, and no origins.

        ``written``: the job file is written, so that nothing is said on how to.
        """
        read = f"Read {', '.join(f'{name} ({form})' for name, form in self.formats.items())}."
        yield [read, f"{self.job.name}: {job_words(self.job)}."] if brief else [read]
        yield [] if brief else [self.job_text().splitlines()]
        yield [f"The plan that runs today: {self.plan_text}"]
        measured = []
        for row in self.runs:
            time = result_text("iteration_time_s", row["iteration_time_s"]) if row["status"] == "ok" else row["status"]
            joules = row.get("energy_j", math.nan)
            energy = f", {result_text('energy_j', joules)}" if np.isfinite(joules) else ""
            measured.append(f"Measured: {time}{energy}: {row['notes']}.")
        yield measured
        yield self.comparison.block(brief=brief) if self.comparison else []
        count = self.without_effect
        effect = f"{count:,} more option{'s have' if count != 1 else ' has'} no effect on time and energy."
        remarks = [
            *(f"{name}: {len(keys)} not known and not read: {', '.join(keys)}." for name, keys in self.unread.items()),
            effect * bool(count),
            *(f"{remark}." for remark in (*self.remarks, *self.assumed)),
        ]
        if brief:
            lines = [line for text in remarks for line in narrow_lines(text)]
            more = ["and more: -v"] * (len(lines) > _REMARKS)
            yield [[*lines[:_REMARKS], *more]]
            gains = "" if self.comparison else ", --propose says what could be gained"
            hint = "" if written else f"--out job.yaml writes the job{gains}; "
            yield [f"{hint}-v prints {'the job' if written else 'it'}, and where its fields are from."]
            return
        yield remarks
        by_place: dict[str, list[str]] = {}
        for name, place in self.origins.items():
            by_place.setdefault(place, []).append(name)
        lines = [f"{place}: {', '.join(names)}" for place, names in by_place.items()]
        yield ["Where each field comes from:", *lines] if lines else []
