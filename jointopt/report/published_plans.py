"""Plans that stand beside a front: published ones, and the best inside of what people run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.jobs.job import Job
from jointopt.report.plans import probability_text, rank_words
from jointopt.report.tables import paragraphs, result_text
from jointopt.surrogate.memory import NOT_TIGHT

FAR, MOST_REASONS = 0.05, 3  # behind the front's fastest plan, from which on a published plan's differences are named


def under_limits(job: Job) -> str:
    """Words behind a count of layouts that are searched under several power limits each; blank where they are not."""
    limits = len(job.search.power_limit_w or ())
    return f", each under {limits} power limits" if limits > 1 else ""


@dataclass(frozen=True)
class AlternativePlan:
    """One plan beside a front, at the GPU's highest clock unless it states another."""

    source: str  # where it was published; blank: found in the space
    plan: Mapping[str, Any]
    text: str  # the plan as `--plan` takes it
    iteration_time_s: float
    energy_j: float
    peak_memory_gib: float
    fit_probability: float
    # among all feasible layouts by time at the highest clock and probability of fitting; 1 is the first, None is far
    rank: int | None
    behind: float  # of the front's fastest plan: 0.04 is 4 % slower
    violations: tuple[str, ...] = ()  # why it is no plan of the space, or which constraints it breaks
    published_time_s: float | None = None
    behind_low: float | None = None  # lower end of a 90 % interval of ``behind``
    # of a published plan: where it differs from the front's fastest; else: what speaks against that
    reasons: tuple[str, ...] = ()
    fitting: bool = False  # found for fitting in memory more surely than the front's fastest

    def sentence(self, layouts: int) -> str:
        """The plan, its time and rank, and what speaks against it or against the front's fastest."""
        time, probability = (
            result_text("iteration_time_s", self.iteration_time_s),
            probability_text(self.fit_probability),
        )
        word = "slower" if self.behind >= 0.0 else "faster"
        behind = f"{abs(100 * self.behind):.1f} % {word} than the fastest plan of the front"
        place = f"{time}, {rank_words(self.rank, layouts)} layouts, {behind}"
        tight = f"; {self.peak_memory_gib:.0f} GiB fit with probability {probability}" * (
            self.fit_probability < NOT_TIGHT
        )
        broken = ", ".join(text.rstrip(".") for text in self.violations)
        if self.source:
            time_s = self.published_time_s
            published = f"; published {result_text('iteration_time_s', time_s)}" if time_s else ""
            why = f"; not in the space: {broken}" if broken else ""
            if self.behind > FAR and self.reasons:
                why += f"; it differs in {', '.join(self.reasons[:MOST_REASONS])}"
            return f"Published ({self.source}): {self.text}: {place}{tight}{published}{why}"
        if self.fitting:
            return (
                f"The fastest plan may not fit in memory: {'; '.join(self.reasons)}. The fastest that fits with "
                f"probability {probability}: {self.text}: {place}"
            )
        low = f" (at least {100 * self.behind_low:+z.1f} %)" if self.behind_low is not None else ""
        takes = self.behind_low is not None and self.behind_low <= 0.0 and not self.violations
        first = "; take it first" if takes else f"; {broken}" if broken else ""
        return (
            f"The fastest plan is outside of what is published: {'; '.join(self.reasons)}. "
            f"The fastest plan inside: {self.text}: {place}{low}{tight}{first}"
        )


def published_plan_lines(plans: Iterable[AlternativePlan], layouts: int) -> list[str]:
    """A paragraph per plan."""
    return paragraphs(f"- {plan.sentence(layouts)}." for plan in plans)
