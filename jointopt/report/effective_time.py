"""The answer of ``goodput``: a whole run with its failures, and where its calendar time goes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.facts import Assumption
from jointopt.core.schema import Floats
from jointopt.jobs.job import Job
from jointopt.jobs.reliability import POLICIES, Reliability
from jointopt.report.explanation import Explanation
from jointopt.report.plans import plan_words
from jointopt.report.tables import RUN_ENERGY_UNITS, Block, Result, TextColumn, figure, lay_out, paragraphs, unit_of

_WIDTH, _INDENT = 80, "  "
_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
_WORDS = {
    "work": "lost work", "checkpoint": "checkpoints", "restart": "detection, restart", "idle": "waits for repair",
    "degraded": "fewer replicas",
}  # fmt: skip
_SHOWN = 5e-5  # of the time: smaller parts are not listed


def days(seconds: float) -> str:
    """A time of a run in the unit that suits it."""
    factor, unit = unit_of(abs(seconds), _UNITS)
    text = f"{seconds / factor:.3g} {unit}"
    return "1 day" if text == "1 days" else text


@dataclass(frozen=True)
class Outcome:
    """What a run comes to under one policy."""

    policy: str
    time_to_train_s: float
    useful_energy_j: float  # of the GPUs, all of it; NaN where their power is not known
    money: float | None
    effective_time_ratio: float
    lost: Mapping[str, float]  # shares of the time; with the ratio they add up to 1
    failures: float
    rolls_back: bool  # to the last checkpoint after each failure
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Simulated:
    """Runs that were played event by event."""

    runs: int
    effective_time_ratio: float
    standard_error: float

    @classmethod
    def of(cls, times_s: Floats, work_s: float) -> Simulated:
        """The ratio of work to the mean of the times, and its standard error."""
        mean = float(times_s.mean())
        error = float(times_s.std(ddof=1)) / math.sqrt(len(times_s))
        return cls(len(times_s), work_s / mean, work_s / mean**2 * error)


@dataclass(frozen=True, repr=False)
class Goodput(Result):
    """A whole run under the policies of its job, and the one of them that takes least time."""

    rows = "policies"
    keys = (
        "job=job.name plan=explained.plan time_to_train_s=chosen.time_to_train_s "
        "useful_energy_j=chosen.useful_energy_j money=chosen.money currency=job.cluster.currency "
        "effective_time_ratio=chosen.effective_time_ratio lost=chosen.lost checkpoint_interval_s=interval_s "
        "checkpoint_interval_iterations=interval_iterations checkpoint_s=reliability.checkpoint_s "
        "spares=reliability.spares p10=chosen.p10 p50=chosen.p50 p90=chosen.p90 distribution policy=chosen.policy "
        "policies=outcomes failures=chosen.failures mean_time_between_failures_s=failure_s young_interval_s=young_s "
        "daly_interval_s=daly_s state_copies=copies worth feasible=explained.feasible assumed"
    )
    job: Job
    explained: Explanation
    reliability: Reliability  # with what stands in for what is not stated
    outcomes: tuple[Outcome, ...]
    chosen: Outcome
    failure_s: float
    interval_s: float
    young_s: float
    daly_s: float
    copies: float  # replicas that hold the same state
    worth: Mapping[str, float | None]  # seconds and money that a minute less per restart, and one more spare, save
    simulated: Simulated | None = None
    assumed: tuple[Assumption, ...] = ()

    @property
    def distribution(self) -> str:
        """Where the spread of times comes from."""
        return "simulated" if self.simulated else "normal"

    @property
    def interval_iterations(self) -> int:
        """Whole iterations of training between checkpoints."""
        return max(round(self.interval_s / self.explained.iteration_time_s), 1)

    def refusal(self, *, allow_tight: bool = False) -> str:
        """Why the plan is not feasible."""
        return self.explained.refusal(allow_tight=allow_tight)

    def document(self) -> dict[str, Any]:
        """The run of least time, then those of all policies."""
        found = super().document()
        return found | ({"simulated": self.simulated} if self.simulated else {})

    def blocks(self) -> Iterator[Block]:
        """Ratio and time, where the time goes, checkpoints and failures, what would help, and what was assumed."""
        best, spread = self.chosen, "simulated" if self.simulated else "by a normal approximation"
        ends = " to ".join(days(end) for end in (best.p10, best.p90))
        head = (
            f"{self.job.name}: {100 * best.effective_time_ratio:.2f} % of the time to train is useful training.",
            f"Time to train {days(best.time_to_train_s)} ({ends} in 80 % of runs, {spread}).",
            f"Plan: {plan_words(self.explained.plan, ('stage_clock_mhz',))}",
            *([] if self.explained.feasible else [f"NOT FEASIBLE: {' '.join(self.explained.against)}"]),
        )
        yield [line for sentence in head for line in _lines(sentence)]
        yield [self._parts()]
        yield [line for sentence in self._sentences() for line in _lines(sentence)]
        if self.assumed:
            names = [one for one in self.assumed if one.key.startswith("reliability.")]
            shown = ", ".join(f"{one.key.removeprefix('reliability.')} {one.value:.6g}" for one in names)
            yield _lines(f"Assumed (--json has the sources): {shown or 'see --json'}.")

    def _parts(self) -> list[str]:
        """Where the calendar time goes: a line for each part that takes any."""
        shares = {"useful training": self.chosen.effective_time_ratio}
        shares |= {_WORDS[name]: share for name, share in self.chosen.lost.items() if share >= _SHOWN}
        columns = [TextColumn("", [f"{_INDENT}{name}" for name in shares], left=True)]
        columns += [TextColumn("", [f"{100 * share:.2f} %" for share in shares.values()])]
        columns += [TextColumn("", [days(share * self.chosen.time_to_train_s) for share in shares.values()])]
        return lay_out(columns)[1:]

    def _sentences(self) -> Iterator[str]:
        best, stated = self.chosen, self.reliability
        count = f"{self.interval_iterations:,} iteration{'s' * (self.interval_iterations != 1)}"
        best_for = "the best" if best.rolls_back else "the best for restarts, kept for the loss of all copies"
        why = best_for if self.job.reliability.checkpoint_interval_s is None else "as stated"
        yield (
            f"A checkpoint every {days(self.interval_s)} of training ({count}), {days(stated.checkpoint_s or 0.0)} "
            f"each: {why}. Young {days(self.young_s)}, Daly {days(self.daly_s)}."
        )
        spares = (
            "a replacement at hand" if stated.spares is None else f"{stated.spares} spare{'s' * (stated.spares != 1)}"
        )
        rolls = "rolls back to the checkpoint" if best.rolls_back else "loses an iteration at most"
        yield (
            f"A failure every {days(self.failure_s)}, {figure(round(best.failures, 1))} in all; each {rolls}. "
            f"{best.policy}: {POLICIES[best.policy]}; {spares}."
        )
        others = [f"{one.policy} {days(one.time_to_train_s)}" for one in self.outcomes if one is not best]
        if others:
            yield f"Other policies: {', '.join(others)}."
        if math.isfinite(best.useful_energy_j):
            factor, unit = unit_of(best.useful_energy_j, RUN_ENERGY_UNITS)
            cost = "" if best.money is None else f"; cost {best.money:,.0f} {self.job.cluster.currency}"
            yield f"Energy of the GPUs {best.useful_energy_j / factor:.4g} {unit}{cost.rstrip()}."
        spare = f"; one more spare {self._saved('spare')}" if stated.spares is not None else ""
        yield f"A minute less per restart saves {self._saved('restart_minute')}{spare}."
        if self.simulated:
            ratio, error = (100 * part for part in (self.simulated.effective_time_ratio, self.simulated.standard_error))
            yield f"{self.simulated.runs:,} simulated runs: {ratio:.2f} ± {error:.2g} % useful training."

    def _saved(self, what: str) -> str:
        """The time, and where there are prices the money, that a change saves."""
        seconds, money = (self.worth[f"{what}_{unit}"] or 0.0 for unit in ("s", "money"))
        words = f"{days(seconds)} and {money:,.0f}" if money > 0.0 else f"{days(seconds)} for {-money:,.0f}"
        return f"{words} {self.job.cluster.currency}".rstrip() if money else days(seconds)


def _lines(sentence: str) -> list[str]:
    return paragraphs([sentence], most=_WIDTH)
