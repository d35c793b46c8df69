"""The answers of ``tune`` and ``validate``: one line per real run beside its prediction, and why there are no more."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from jointopt.core.budget import Spent
from jointopt.jobs.job import Job
from jointopt.report import table
from jointopt.report.documents import Result, pick
from jointopt.report.gains import Gains, hypervolume_words, sound
from jointopt.report.plans import plan_table
from jointopt.report.reasons import own_reasons, reasons_of, wider_lines
from jointopt.report.table import TextColumn
from jointopt.surrogate.intervals import RESULTS

if TYPE_CHECKING:
    from jointopt.report.page.render import Page

TERMINATED = "Ended by a signal: runs that had ended are kept, and the same command goes on."
STOPPED = {  # why no further plan is run
    "done": "",
    "interrupted": "Interrupted: what was on its way is lost, all else is kept; the same command goes on.",
    "failed": "Stopped before its time:",  # and the reason
    "budget": "The budget is spent.",
    "converged": "Converged: no run that is left is expected to save what it costs.",
    "exhausted": "Exhausted: every plan that can be run has been run.",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One real run: its plan, the prediction when the plan was chosen, and the measurement."""

    plan: Mapping[str, Any]  # plan columns of one plan; stage_clock_mhz is a list of floats
    row: Mapping[str, Any]  # the measurement, columns of jointopt.core.schema
    predicted: Mapping[str, float]  # results, each with _low and _high (90 % interval)
    broken: tuple[str, ...] = ()  # constraints of the job that the run did not keep
    keys: ClassVar[str] = "broken"  # of the document, besides plan, results and predictions

    @property
    def status(self) -> str:
        """The status with which the run ended: one of `schema.STATUSES`."""
        return str(self.row["status"])

    @property
    def notes(self) -> str:
        """The launcher's notes, empty where there are none."""
        notes = self.row.get("notes")
        return notes if isinstance(notes, str) else ""

    def result(self, name: str) -> float:
        """A result column as a number, NaN where unknown or where the run failed."""
        value = self.row.get(name)
        return math.nan if value is None or self.status != "ok" else float(value)

    def error(self, name: str) -> float:
        """Prediction minus measurement, as a share of the measurement; NaN where unknown."""
        value = self.result(name)
        return (self.predicted.get(name, math.nan) - value) / value if value else math.nan

    def inside(self, name: str) -> bool | None:
        """True where the measurement lies in the 90 % interval; None where one of them is unknown."""
        low, high = (self.predicted.get(f"{name}_{end}", math.nan) for end in ("low", "high"))
        value = self.result(name)
        return bool(low <= value <= high) if math.isfinite(value) and math.isfinite(low) else None

    @property
    def _foreseen(self) -> list[str]:
        """Results that were predicted."""
        return [name for name in self.predicted if not name.endswith(("_low", "_high"))]

    def document(self) -> dict[str, Any]:
        """Plan, measurement and prediction under the keys of a measurement table."""
        predicted = {f"predicted_{name}": value for name, value in self.predicted.items()}
        results = {name: self.result(name) for name in dict.fromkeys([*RESULTS, *self._foreseen])}
        return {**self.plan, "status": self.status, **results, **predicted, **pick(self, self.keys)}


@dataclass(frozen=True, kw_only=True)
class TunedRun(MeasuredRun):
    """One run of `tune`; its objectives were predicted."""

    round: int  # from 1; plans of one round were chosen before any of them had run; 0 = measured before this tune
    probability_fits: float  # in memory and within the job's constraints, when the plan was chosen
    keys = "round probability_fits broken"


@dataclass(frozen=True, kw_only=True)
class ValidatedRun(MeasuredRun):
    """One proposed plan that was run."""

    in_domain: bool
    doubts: str = ""  # why not: names of doubts, a blank between them
    reference: bool  # what a job does without jointopt: the fastest plan at the GPU's own clock
    earlier: bool  # the store had measured it, it was not run again
    keys = "in_domain doubts reference earlier broken notes"

    def document(self) -> dict[str, Any]:
        """As of every run, with the error of each prediction."""
        errors = {f"error_{name}": self.error(name) for name in RESULTS}
        return super().document() | errors | {f"{name}_inside": self.inside(name) for name in RESULTS}


@dataclass(frozen=True, kw_only=True)
class MeasuredResult(Result):
    """The part that the results of ``tune`` and ``validate`` share: the runs, why they ended, where they are kept."""

    rows = "measured"
    job: Job
    launcher: str
    runs: Sequence[MeasuredRun]
    stopped: str  # a key of `STOPPED`
    storage: str | None = None
    study_name: str | None = None  # the study whose trials the runs are
    notes: tuple[str, ...] = ()  # sentences: earlier runs that counted, predictions that were not trusted
    fault: str = ""  # why no run is a plan to use; empty where one is
    reason: str = ""  # why it failed or no other run is worth it, one of the notes
    unstored: int = 0  # runs that could not be stored

    @property
    def place(self) -> str | None:
        """The storage without its password."""
        from jointopt.runs.database import without_password  # with SQLAlchemy

        return without_password(self.storage) if self.storage else None

    def how_run(self) -> str:
        """How the plans were run, as a participle: a replay returns rows of its table, and nothing runs."""
        replayed = "looked up in the table (a replay runs nothing)"
        return replayed if self.launcher == "replay" else f"run by {self.launcher}"

    def report(self) -> Page:
        """The runs as one HTML page: predicted beside measured, and what was learned by round."""
        from jointopt.report.page.runs import run_page  # Jinja2 and Plotly's program

        return run_page(self)

    def document(self) -> dict[str, Any]:
        """All of `keys`, the fault and the gains, null where there are none."""
        gains = self.gains.document() if self.gains else None
        return super().document() | {"fault": self.fault or None, "gains": gains}

    @functools.cached_property
    def gains(self) -> Gains | None:
        """Gains on the run that the others are compared with; None where that is the only sound one."""
        start = self._start(good) if len(good := sound(self.runs)) > 1 else None
        return None if start is None else Gains.of(self.runs, *start)

    def _start(self, good: Sequence[int]) -> tuple[int, str] | None:
        """Of the places of sound runs the one that others are compared with, and what it is."""
        return good[0], "the first that succeeded"

    def page(self, title: str, rows: Sequence[str], legend: str, remarks: Sequence[str]) -> str:
        """The text: title, table, legend, why there are no further runs, remarks, and where runs and study are."""
        broken = sorted({name for run in self.runs for name in run.broken})
        over = f"over: beyond the job's bound on {', '.join(broken)}." if broken else ""
        notes = [text for text in (*self.notes, *remarks) if text != self.reason]
        lines = table.paragraphs([f"{legend} {over}".strip(), f"{STOPPED[self.stopped]} {self.reason}".strip(), *notes])
        if self.place and (len(self.runs) > self.unstored or not self.unstored):
            without = f", without the {self.unstored} that could not be stored" if self.unstored else ""
            lines.append(f"Measurements: {self.place}{without}")
        if self.study_name:
            name, opened = table.study_lines(self.study_name, self.place or "", self.study_name)
            lines += [name, *table.paragraphs([opened], "      ")]
        return table.blocks_text(table.paragraphs([title]), rows or ["Nothing was measured."], lines)


def run_table(
    runs: Sequence[MeasuredRun], left: Sequence[TextColumn], results: Mapping[str, Sequence[TextColumn]],
    *right: TextColumn,
) -> list[str]:  # fmt: skip
    """The table of plans with the status of each run (``over``: beyond a bound of the job), and its results.

    ``results`` are names of results that are shown as measured and, in the same unit, as predicted, as far as known;
    each with the columns after it.
    """
    columns = [TextColumn("status", ["over" if run.broken else run.status for run in runs], left=True)]
    for name, beside in results.items():
        (head, units), values = table.OBJECTIVE_UNITS[name], [run.result(name) for run in runs]
        if math.isfinite(least := table.least_of(values)):
            predicted = [run.predicted.get(name, math.nan) for run in runs]
            columns.append(table.measured(head, values, units, least))
            columns += [table.measured("pre-\ndicted", predicted, units, least), *beside]
    return plan_table([run.plan for run in runs], left, [*columns, *right]) if runs else []


@dataclass(frozen=True, kw_only=True)
class Tuned(MeasuredResult):
    """The runs of a budget, in their order, and the best of them."""

    keys = (
        "job=job.name launcher seed candidates objectives measured=runs front hypervolume stopped "
        "expected_gain_left=gain_left predicted_by next_run spent storage=place study=study_name notes"
    )
    runs: tuple[TunedRun, ...]
    seed: int
    candidates: int  # plans that could have been run
    front: tuple[int, ...]  # indices into runs: no other run beats them in every objective
    hypervolume: tuple[float, ...]  # after each run, see `jointopt.workflows.tune.volumes`
    objectives: tuple[str, ...]  # of the job's, those that the runs measure
    gain_left: float = math.nan  # share by which the plans that are left are expected to better the runs
    # cost and worth of the run that is most worth it, and their unit and the training that it is for
    next_run: Mapping[str, Any] | None = None
    predicted_by: str = ""  # what the predictions of plans that are left rest on; blank: no plan was predicted
    spent: Spent = field(default_factory=Spent)

    def text(self) -> str:
        """The runs in their order, * on those that no other beats, and a summary."""
        new = sum(run.round > 0 for run in self.runs)  # the others had been measured before
        first, plans = self.objectives[0], f"{new} of {self.candidates:,} plans {self.how_run()}"
        title = f"{self.job.name}: {plans}, for {' and '.join(self.objectives)}."
        legend = f"* no other run is better; Δ%: {first} beyond the least of all runs; predicted was before the run."
        gain = gain_words(self.gain_left, self.objectives, "the plans that are left")
        numbers = itertools.count(max(self.spent.runs - new, 0) + 1)
        numbered = [str(next(numbers)) if run.round > 0 else "-" for run in self.runs]
        left = [
            TextColumn("", ["*" if i in self.front else " " for i in range(len(self.runs))]),
            TextColumn("run", numbered),
        ]
        kept = [math.nan if run.broken else run.result(first) for run in self.runs]
        slower = table.percent_of(kept, table.least_of(kept), ".1f")
        shown: Any = dict.fromkeys(("iteration_time_s", "energy_j", *self.objectives), ())
        rows = run_table(self.runs, left, shown, TextColumn("best\nΔ%", slower))
        names = [f"run {number}" if number != "-" else "a run of an earlier tune" for number in numbered]
        remarks = [*(self.gains.sentences(names.__getitem__) if self.gains else []), *filter(None, [self.grown()])]
        remarks += [f"{gain[:1].upper()}{gain[1:]}."] if self.front else []
        remarks += [f"Plans that are left are predicted by {self.predicted_by}."] if self.predicted_by else []
        return self.page(title, rows, legend if self.front else "", remarks)

    def grown(self) -> str:
        """By how much the measured front's hypervolume grew in this tune; blank of one objective, or of no run."""
        if len(self.objectives) < 2 or len(sound(self.runs)) < 2:
            return ""
        volumes = list(zip(self.runs, self.hypervolume, strict=True))
        known = [volume for run, volume in volumes if run.round > 0 and volume] or [0.0]
        before = [volume for run, volume in volumes if run.round == 0 and volume]
        return hypervolume_words((before[-1:] or known)[0], known[-1])

    def _start(self, good: Sequence[int]) -> tuple[int, str] | None:
        before = [place for place in good if self.runs[place].round == 0]
        if not before:
            return super()._start(good)
        fastest = min(before, key=lambda place: self.runs[place].result("iteration_time_s"))
        return fastest, "the fastest before this tune"


def gain_words(gain: float, objectives: Sequence[str], plans: str) -> str:
    """The expected gain of ``plans``: a share of the best value, or of a hypervolume; NaN = not known yet."""
    if math.isnan(gain):
        return f"what {plans} may gain is not known yet (too few runs)"
    return f"{plans} should {expected_of(objectives)} by {gain:z.1%}"


def expected_of(objectives: Sequence[str]) -> str:
    """The object of an expected gain: the best value of one objective, or the hypervolume by several."""
    if len(objectives) == 1:
        return f"lower the least {table.OBJECTIVE_UNITS[objectives[0]][0]} measured"
    return "enlarge the measured front's hypervolume (of logarithms)"


@dataclass(frozen=True, kw_only=True)
class Validated(MeasuredResult):
    """The best proposed plans, run."""

    keys = (
        "job=job.name launcher surrogate proposed measured=runs median_absolute_error=median_errors stopped "
        "storage=place study=study_name notes"
    )
    runs: tuple[ValidatedRun, ...]
    surrogate: str
    proposed: int  # plans that none other was predicted to beat

    @property
    def median_errors(self) -> dict[str, float]:
        """Median absolute error, as a share, of every result that was predicted and measured.

        Runs that were measured before do not count: the predictions have learned from them.
        """
        new = [run for run in self.runs if not run.earlier]
        errors = {name: [abs(e) for run in new if math.isfinite(e := run.error(name))] for name in RESULTS}
        return {name: statistics.median(found) for name, found in errors.items() if found}

    @property
    def all_known(self) -> bool:
        """Whether every plan had been measured before."""
        return bool(self.runs) and all(run.earlier for run in self.runs)

    def _start(self, good: Sequence[int]) -> tuple[int, str] | None:
        found = [place for place in good if self.runs[place].reference]
        return (found[0], "the fastest plan proposed at the GPU's own clock") if found else None

    def how_run(self) -> str:
        """How the plans were run, as a participle."""
        return "all measured before and not run again (--again does)" if self.all_known else super().how_run()

    def text(self) -> str:
        """The runs in the order of the proposal with the errors of their predictions, and a summary."""
        runs = self.runs
        plans = f"{len(runs)} proposed plan{'s' * (len(runs) != 1)} (surrogate {self.surrogate})"
        title = f"{self.job.name}: {plans}, {self.how_run()}."
        legend = {
            "err: the prediction against the measurement; in: within the 90 % interval.": True,
            "= the fastest plan at the GPU's own clock.": any(run.reference for run in runs),
            "0 measured before, not run again (--again does).": any(run.earlier for run in runs) and not self.all_known,
        }
        reasons = reasons_of([pick(run, "in_domain doubts") for run in runs], self.surrogate, self.job)
        remarks = [
            f"Row {number}, {run.status}: {run.notes or 'no reason known'}"
            for number, run in enumerate(runs, start=1)
            if run.status != "ok"
        ]
        remarks += self.gains.sentences(lambda place: f"row {place + 1}") if self.gains else []
        for name, error in self.median_errors.items():
            inside = [found for run in runs if not run.earlier and (found := run.inside(name)) is not None]
            head = table.RESULT_UNITS[name][0].capitalize()
            within = f"{sum(inside)} of {len(inside)} runs lie in their 90 % interval"
            remarks.append(f"{head} is off by {error:.1%} (median); {within}.")
        own = own_reasons(reasons)
        marks = [
            "=" * r.reference + "0" * (r.earlier and not self.all_known) + "?" * bool(why)
            for r, why in zip(runs, own, strict=True)
        ]
        judged = {
            name: [
                TextColumn("err\n%", table.fixed((100 * run.error(name) for run in runs), "+.0f")),
                TextColumn("in", [{True: "y", False: "n", None: "-"}[run.inside(name)] for run in runs]),
            ]
            for name in ("iteration_time_s", "energy_j", "peak_memory_gib")
        }
        rows = run_table(runs, [TextColumn("", marks)], judged)
        sentences = [text for text, needed in legend.items() if needed]
        return self.page(title, rows, " ".join([*sentences, *wider_lines(reasons, interval="interval")]), remarks)
