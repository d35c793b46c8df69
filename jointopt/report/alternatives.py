"""What stands beside a front: published plans, the best inside of what people run, and the two-step answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.schema import Columns
from jointopt.core.short_repr import ShortRepr
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.report.plans import probability_text, rank_words
from jointopt.report.tables import OBJECTIVE_UNITS, paragraphs, plan_entries, result_text
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


# The two-step answer (the fastest layout, then its clocks), and what the joint search saves against it.


LITTLE = 0.0005  # a share that prints as 0.0 %
_START = "Joint search against two steps (the fastest layout, then its clocks, stage by stage):"
_NOTHING = "it saves nothing here; the fastest layout is the best at every clock."
_RUN_START = "Joint search against the layout that is fastest in one iteration, then its clocks, interval and policy:"
_GOALS = {"energy": ("less {1} in equal {0}", 0, "at_time_s"), "time": ("less {0} at equal {1}", 1, "at_energy_j")}


@dataclass(frozen=True)
class SavingShare:
    """The largest share of an objective that the joint front saves at equal value of the other, with its interval."""

    share: float
    at: float  # s or J
    low: float  # 90 % interval of the share; negative where it may cost
    high: float
    probability: float  # of saving anything

    def document(self, name: str, at: str) -> dict[str, float]:
        """The share of the objective ``name`` by the keys of the JSON document; ``at`` is that of the equal value."""
        key = f"largest_{name}_saving"
        return {
            key: self.share, at: self.at,
            f"{key}_low": self.low, f"{key}_high": self.high, f"{key}_probability": self.probability,
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class JointSavings(ShortRepr):
    """The two-step answer, and the most that the joint search saves against it."""

    two_step: Columns  # plan columns, time (s) and energy (J), by time
    energy: SavingShare
    time: SavingShare
    objectives: tuple[str, ...] = OBJECTIVES  # the columns of time and energy: of an iteration, or of the whole run
    behind: float = 0.0  # of the plan of least time to train: the time to train of the plan with the fastest iteration

    def document(self) -> dict[str, Any]:
        """The two-step front by time, and the savings."""
        front = {"two_step_front": plan_entries(self.two_step)}
        found = front | self.energy.document("energy", "at_time_s") | self.time.document("time", "at_energy_j")
        run = {"objectives": self.objectives, "fastest_iteration_behind": self.behind}
        return found | (run if self.objectives != OBJECTIVES else {})


def fastest_iteration_words(document: Mapping[str, Any]) -> str:
    """A sentence of a `JointSavings.document` on the plan with the fastest iteration, where another trains sooner."""
    behind = float(document.get("fastest_iteration_behind", 0.0))
    if behind < LITTLE:
        return ""
    return f"The plan with the fastest iteration is not the one to run: it trains {behind:.1%} longer."


def joint_words(document: Mapping[str, Any]) -> str:
    """A `JointSavings.document` in a sentence: how much is saved at most, where, and how surely, as far as known."""
    shares = {name: float(document[f"largest_{name}_saving"]) for name in _GOALS}
    columns, start, nothing = document.get("objectives", OBJECTIVES), _START, _NOTHING
    if "objectives" in document:
        start, nothing = f"{fastest_iteration_words(document)} {_RUN_START}".lstrip(), "it saves nothing here."
    if max(shares.values()) < LITTLE:
        return f"{start} {nothing}"
    words, labels = [], [OBJECTIVE_UNITS[name][0] for name in columns]
    for name, (what, equal, at_key) in _GOALS.items():
        ends = (document.get(f"largest_{name}_saving_{end}", math.nan) for end in ("low", "high", "probability"))
        (low, high, probability), sure = ends, ""
        if shares[name] >= LITTLE and math.isfinite(probability):  # a document of an earlier version states none
            interval = f"90 % interval {100.0 * low:+z.1f} to {100.0 * high:+z.1f} %"
            sure = f"; {interval}, more than nothing with probability {probability:.2f}"
        at = result_text(columns[equal], float(document[at_key]))
        words.append(f"at most {shares[name]:z.1%} {what.format(*labels)} (at {at}{sure})")
    return f"{start} {', '.join(words)}."
