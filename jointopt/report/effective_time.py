"""The answer of ``goodput``: a whole run with its failures, and where its calendar time goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.facts import Assumption
from jointopt.core.schema import Floats
from jointopt.jobs.job import Job
from jointopt.jobs.reliability import POLICIES, Reliability
from jointopt.measure.run_history import History
from jointopt.physics.failure_rate import Rate
from jointopt.report.explanation import Explanation
from jointopt.report.page.render import Page
from jointopt.report.page.whole_run import course_figure, events_figure, waterfall_figure, worth_figure
from jointopt.report.plans import plan_words
from jointopt.report.tables import RUN_ENERGY_UNITS, Block, Result, TextColumn, figure, lay_out, paragraphs, unit_of

_WIDTH, _INDENT = 80, "  "
_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
_WORDS = {
    "work": "lost work", "checkpoint": "checkpoints", "restart": "detection, restart", "idle": "waits for repair",
    "degraded": "fewer replicas",
}  # fmt: skip
_IMPROVED = {
    "restart_minute": "a minute less per restart", "detection_minute": "a minute less per detection",
    "checkpoint_half": "checkpoints twice as fast", "failures_half": "half the failures", "spare": "one more spare",
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
    spares: int | None  # nodes; None: a replacement is always at hand
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
    reason: str = ""  # what of it no formula knows, so that the answer is that of these runs

    @classmethod
    def of(cls, times_s: Floats, work_s: float, reason: str = "") -> Simulated:
        """The ratio of work to the mean of the times, and its standard error."""
        mean = float(times_s.mean())
        error = float(times_s.std(ddof=1)) / math.sqrt(len(times_s))
        return cls(len(times_s), work_s / mean, work_s / mean**2 * error, reason)


_HISTORY_ROWS = {  # of what happened, by the name of the figure
    "failures": "failures", "detection_s": "detection", "restart_s": "restart", "checkpoint_s": "checkpoint",
    "checkpoint_interval_s": "from checkpoint to checkpoint", "iteration_time_s": "iteration",
    "effective_time_ratio": "useful training",
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A run as its logs tell it, and what should have happened without knowing them."""

    history: History
    rate: Rate  # of failures per GPU-hour
    expected: Mapping[str, float | None]
    modelled_ratio: float  # of useful training, by the model with the measured figures

    def document(self) -> dict[str, Any]:
        """The history, the rate with its 90 % interval and prior, and the figures of the model."""
        rate = {f"failures_per_gpu_hour{end}": getattr(self.rate, part)
                for part, end in {"mean": "", "low": "_low", "high": "_high"}.items()}  # fmt: skip
        model = {"expected": self.expected, "modelled_effective_time_ratio": self.modelled_ratio}
        return vars(self.history) | rate | {"prior": "Jeffreys"} | model

    def table(self) -> list[str]:
        """What happened beside what should have, a line for each figure that is known."""
        pairs = {label: (getattr(self.history, name), self.expected[name]) for name, label in _HISTORY_ROWS.items()}
        known = {label: pair for label, pair in pairs.items() if math.isfinite(pair[0])}
        columns = [TextColumn("", [f"{_INDENT}{label}" for label in known], left=True)]
        for place, head in enumerate(("happened", "should have")):
            columns.append(TextColumn(head, [_cell(label, pair[place]) for label, pair in known.items()]))
        return lay_out(columns)

    def sentences(self) -> Iterator[str]:
        """How often it failed and of what, and how well the model explains it."""
        history, rate = self.history, self.rate
        causes = ", ".join(f"{count} {name}" for name, count in history.causes.items())
        yield (
            f"{days(history.calendar_s)}, failures: {history.failures}{f' ({causes})' if causes else ''}, "
            f"{rate.mean:.3g} per GPU-hour, 90 % {rate.low:.3g} to {rate.high:.3g} (Jeffreys' prior)."
        )
        if history.trained:
            yield (
                f"{history.lost_iterations:,} iterations were lost. The model with what happened: "
                f"{100 * self.modelled_ratio:.1f} % useful."
            )
        yield from (f"{remark}." for remark in history.remarks)


def _cell(label: str, value: float | None) -> str:
    if value is None or label == "failures":
        return "-" if value is None else f"{value:.2g}" if value < 100 else figure(value)
    return f"{100 * value:.1f} %" if label == "useful training" else days(value)


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
        "policies=outcomes by_spares failures=chosen.failures mean_time_between_failures_s=failure_s "
        "young_interval_s=young_s daly_interval_s=daly_s state_copies=copies worth feasible=explained.feasible assumed"
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
    course: Callable[[], dict[str, Floats]]  # seconds by part of a typical run after each of its events
    simulated: Simulated | None = None
    measured: Comparison | None = None
    assumed: tuple[Assumption, ...] = ()
    by_spares: tuple[Outcome, ...] = ()  # under the chosen policy, with each number of spares that was tried

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
        beside = {"simulated": self.simulated, "measured": self.measured}
        return found | {name: value for name, value in beside.items() if value}

    def report(self) -> Page:
        """The run as one HTML page that needs no network: the decision, where its time goes, and what would help."""
        best, stated = self.chosen, self.reliability
        after = f"After a failure: {best.policy}, {POLICIES[best.policy]}; {self._spares()}"
        saved = {label: self.worth[f"{name}_s"] or 0.0 for name, label in _IMPROVED.items()}
        if stated.spares is None:
            saved.pop(_IMPROVED["spare"])
        names = {"useful": "useful training"} | _WORDS
        rows = [[one.policy, f"{100 * one.effective_time_ratio:.2f} %", days(one.time_to_train_s),
                 f"{days(one.p10)} to {days(one.p90)}"] for one in self.outcomes]  # fmt: skip
        course, text = self.course(), self.text(brief=False).splitlines()
        content = {
            "title": f"{self.job.name}: the whole run", "alert": "" if self.explained.feasible else text[3],
            "lead": f"Plan {plan_words(self.explained.plan, ('stage_clock_mhz',))}.",
            "decision": f"Save every {self._interval()}. {after}.",
            "cards": [
                ("Useful training", f"{100 * best.effective_time_ratio:.2f} %", "of the calendar time"),
                ("Time to train", days(best.time_to_train_s), f"{days(best.p10)} to {days(best.p90)} in 80 % of runs"),
                ("A failure every", days(self.failure_s), f"{figure(round(best.failures, 1))} in all"),
                ("A checkpoint", days(stated.checkpoint_s or 0.0), self._why()),
            ],
            "policies": {"caption": "Policies", "head": ["policy", "useful", "time to train", "80 % of runs"],
                         "rows": rows},
            "happened": self.measured and {
                "lines": self.measured.table(), "sentences": list(self.measured.sentences()),
            },
            "assumed": [str(one) for one in self._stand_ins],
            "text": "\n".join(text),
            "data": {"figures": {
                "waterfall": waterfall_figure(best.time_to_train_s, {_WORDS[name]: best.lost[name] for name in _WORDS}),
                "events": events_figure(course), "course": course_figure(course, names), "worth": worth_figure(saved),
            }},
        }  # fmt: skip
        return Page(content, "whole_run")

    def blocks(self, *, brief: bool = True) -> Iterator[Block]:
        """Ratio and time, what happened, where the time goes, checkpoints, failures, what would help, what was assumed.

        ``brief``: without the sources of what is assumed, and beside what happened without the parts of the time.
        """
        whole = not (brief and self.measured is not None and self.measured.history.trained)
        best, spread = self.chosen, "simulated" if self.simulated else "by a normal approximation"
        why_not = f": {' '.join(self.explained.against)}" if whole else " (-v says why)."
        ends = " to ".join(days(end) for end in (best.p10, best.p90))
        head = (
            f"{self.job.name}: {100 * best.effective_time_ratio:.2f} % of the time to train is useful training.",
            f"Time to train {days(best.time_to_train_s)} ({ends} in 80 % of runs, {spread}).",
            f"Plan: {plan_words(self.explained.plan, ('stage_clock_mhz',))}",
            *([] if self.explained.feasible else [f"NOT FEASIBLE{why_not}"]),
        )
        yield [line for sentence in head for line in _lines(sentence)]
        if self.measured:
            yield [self.measured.table()]
            yield [line for sentence in self.measured.sentences() for line in _lines(sentence)]
        if whole:
            yield [self._parts()]
        yield [line for sentence in self._sentences(whole) for line in _lines(sentence)]
        if not brief:
            yield [line for one in self._stand_ins for line in _lines(f"{one}.")]
        elif self.assumed and whole:
            shown = (f"{one.key.removeprefix('reliability.')} {one.value:.6g}" for one in self._stand_ins)
            yield _lines(f"Assumed (-v has the sources): {', '.join(shown) or 'see --json'}.")

    @property
    def _stand_ins(self) -> list[Assumption]:
        """What stands in for keys of the section reliability."""
        return [one for one in self.assumed if one.key.startswith("reliability.")]

    def _parts(self) -> list[str]:
        """Where the calendar time goes: a line for each part that takes any."""
        shares = {"useful training": self.chosen.effective_time_ratio}
        shares |= {_WORDS[name]: share for name, share in self.chosen.lost.items() if share >= _SHOWN}
        columns = [TextColumn("", [f"{_INDENT}{name}" for name in shares], left=True)]
        columns += [TextColumn("", [f"{100 * share:.2f} %" for share in shares.values()])]
        columns += [TextColumn("", [days(share * self.chosen.time_to_train_s) for share in shares.values()])]
        return lay_out(columns)[1:]

    def _sentences(self, whole: bool) -> Iterator[str]:
        best, stated = self.chosen, self.reliability
        written = stated.checkpoint_write_s or 0.0
        checks = f" Young {days(self.young_s)}, Daly {days(self.daly_s)}." if whole else ""
        yield (
            f"A checkpoint every {self._interval(whole)}, {days(stated.checkpoint_s or 0.0)} each"
            f"{f', whole {days(written)} later' if written else ''}: {self._why()}.{checks}"
        )
        rolls = "rolls back to the checkpoint" if best.rolls_back else "loses an iteration at most"
        yield (
            f"A failure every {days(self.failure_s)}, {figure(round(best.failures, 1))} in all; each {rolls}. "
            f"{best.policy}: {POLICIES[best.policy]}; {self._spares()}."
        )
        if stated.planned_share:
            yield f"Planned stops: {figure(stated.planned_stops_per_day)} a day of {days(stated.planned_stop_s)}."
        others = [f"{one.policy} {days(one.time_to_train_s)}" for one in self.outcomes if one is not best]
        if others:
            yield f"Other policies: {', '.join(others)}."
        if len(self.by_spares) > 1:
            yield f"By spares: {', '.join(f'{one.spares} {days(one.time_to_train_s)}' for one in self.by_spares)}."
        if math.isfinite(best.useful_energy_j) and whole:
            factor, unit = unit_of(best.useful_energy_j, RUN_ENERGY_UNITS)
            cost = "" if best.money is None else f"; cost {best.money:,.0f} {self.job.cluster.currency}"
            yield f"Energy of the GPUs {best.useful_energy_j / factor:.4g} {unit}{cost.rstrip()}."
        spare = f"; one more spare {self._saved('spare')}" if stated.spares is not None else ""
        yield f"A minute less per restart saves {self._saved('restart_minute')}{spare}."
        if self.simulated:
            ratio, error = (100 * part for part in (self.simulated.effective_time_ratio, self.simulated.standard_error))
            why = f" in place of a formula ({self.simulated.reason})" if self.simulated.reason else ""
            yield f"{self.simulated.runs:,} simulated runs{why}: {ratio:.2f} ± {error:.2g} % useful training."

    def _interval(self, whole: bool = True) -> str:
        count = f" ({self.interval_iterations:,} iteration{'s' * (self.interval_iterations != 1)})"
        return f"{days(self.interval_s)} of training{count if whole else ''}"

    def _why(self) -> str:
        """Where the interval comes from."""
        if self.job.reliability.checkpoint_interval_s is not None:
            return "as stated"
        if self.simulated and self.simulated.reason:
            return "the best at a constant rate"
        return "the best" if self.chosen.rolls_back else "the best for restarts, kept for the loss of all copies"

    def _spares(self) -> str:
        spares = self.reliability.spares
        return "a replacement at hand" if spares is None else f"{spares} spare{'s' * (spares != 1)}"

    def _saved(self, what: str) -> str:
        """The time, and where there are prices the money, that a change saves."""
        seconds, money = (self.worth[f"{what}_{unit}"] or 0.0 for unit in ("s", "money"))
        words = f"{days(seconds)} and {money:,.0f}" if money > 0.0 else f"{days(seconds)} for {-money:,.0f}"
        return f"{words} {self.job.cluster.currency}".rstrip() if money else days(seconds)


def _lines(sentence: str) -> list[str]:
    return paragraphs([sentence], most=_WIDTH)
