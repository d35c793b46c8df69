"""The answers of ``tune`` and ``validate``: one line per real run beside its prediction, and why there are no more."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np

from jointopt.core.budget import Spent
from jointopt.core.secrets import masked
from jointopt.core.short_repr import ShortRepr
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.report import tables
from jointopt.report.decision import LINES, Difference, command_lines, difference_lines, narrow_lines, recommended_row
from jointopt.report.doubts import distinct_reasons, reasons_of, wider_lines
from jointopt.report.page.content import table_of
from jointopt.report.page.figures import ABOVE, Figure, colour, error_bar_lengths, rounded_values
from jointopt.report.page.render import Page
from jointopt.report.plans import differing_columns, plan_table, plan_words
from jointopt.report.tables import Block, Result, TextColumn, pick
from jointopt.surrogate.intervals import RESULTS

TERMINATED = "Ended by a signal: runs that had ended are kept, and the same command goes on."
STOPPED = {  # why no further plan is run
    "done": "",
    "interrupted": "Interrupted: what was on its way is lost, all else is kept; the same command goes on.",
    "failed": "Stopped before its time:",  # and the reason
    "budget": "The budget is spent.",
    "converged": "Converged: no run that is left is expected to save what it costs.",
    "exhausted": "Exhausted: every plan that can be run has been run.",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class MeasuredRun(ShortRepr):
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

    def document(self) -> dict[str, Any]:
        """Plan, measurement and prediction under the keys of a measurement table."""
        predicted = {f"predicted_{name}": value for name, value in self.predicted.items()}
        foreseen = [name for name in self.predicted if not name.endswith(("_low", "_high"))]
        results = {name: self.result(name) for name in dict.fromkeys([*RESULTS, *foreseen])}
        return {**self.plan, "status": self.status, **results, **predicted, **pick(self, self.keys)}


@dataclass(frozen=True, kw_only=True, repr=False)
class TunedRun(MeasuredRun):
    """One run of `tune`; its objectives were predicted."""

    round: int  # from 1; plans of one round were chosen before any of them had run; 0 = measured before this tune
    probability_fits: float  # in memory and within the job's constraints, when the plan was chosen
    keys = "round probability_fits broken"


@dataclass(frozen=True, kw_only=True, repr=False)
class ValidatedRun(MeasuredRun):
    """One proposed plan that was run."""

    in_domain: bool
    doubts: str = ""  # why not: names of doubts, a blank between them
    reference: bool  # what a job does without jointopt: the fastest plan at the GPU's own clock
    earlier: bool  # the store had measured it, it was not run again
    keys = "in_domain doubts reference earlier broken notes"

    def document(self) -> dict[str, Any]:
        """As of every run, with the error of each prediction."""
        inside = {f"{name}_inside": self.inside(name) for name in RESULTS}
        return super().document() | {f"error_{name}": self.error(name) for name in RESULTS} | inside


@dataclass(frozen=True, kw_only=True, repr=False)
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
    next_command: Mapping[str, str] | None = None  # that starts the plan of the best run, a note; None: not known

    @functools.cached_property
    def best(self) -> tuple[int, str] | None:
        """The place of the sound run that is recommended, and why that one; None where no run is sound."""
        if not (good := successful_runs(self.runs)):
            return None
        values = {name: np.array([self.runs[at].result(name) for at in good]) for name in (*OBJECTIVES, *self.goals)}
        if len(self.goals) == 1 and np.isfinite(values[self.goals[0]]).any():
            least = int(np.nanargmin(values[self.goals[0]]))
            return good[least], f"least {tables.OBJECTIVE_UNITS[self.goals[0]][0]}"
        row, why = recommended_row(self.job, values)
        return good[row], why

    @property
    def goals(self) -> tuple[str, ...]:
        """What runs are compared in."""
        return self.job.measured_objectives

    def run_name(self, place: int) -> str:
        """What a sentence calls the run at a place."""
        return f"run {place + 1}"

    @property
    def place(self) -> str | None:
        """The storage without its password."""
        return masked(self.storage) if self.storage else None

    def how_run(self) -> str:
        """How the plans were run, as a participle: a replay returns rows of its table, and nothing runs."""
        replayed = "looked up in the table (a replay runs nothing)"
        return replayed if self.launcher == "replay" else f"run by {self.launcher}"

    def report(self) -> Page:
        """The runs as one HTML page: predicted beside measured, and what was learned by round."""
        names = [name for name in tables.OBJECTIVE_UNITS if any(math.isfinite(run.error(name)) for run in self.runs)]
        plans = f"{len(self.runs)} proposed plan{'s' * (len(self.runs) != 1)}, {self.how_run()}."
        rows = [("jointopt", version("jointopt")), ("launcher", self.launcher)]
        if isinstance(self, Validated):
            rows.append(("surrogate", self.surrogate))
        if isinstance(self, Tuned):
            plans = (
                f"{len(self.runs)} of {self.candidates:,} plans {self.how_run()}, each the most promising then, "
                f"for {' and '.join(self.objectives)}."
            )
            spent = f"{self.spent.runs} runs, {self.spent.gpu_hours:.2f} GPU-hours, {self.spent.minutes:.1f} minutes"
            rows += [("seed", str(self.seed)), ("spent", spent)]
        rows += [("measurements", self.place)] if self.place else []
        rows += [("study", self.study_name)] if self.study_name else []
        pictures = list(_pictures(self, names))
        answer = "No run gives a plan to use."
        if self.best is not None:
            (place, why), varied = self.best, differing_columns([run.plan for run in self.runs])
            name = self.run_name(place)
            answer = f"{name[:1].upper()}{name[1:]}, {why}: {plan_words(self.runs[place].plan, varied)}."
        return Page({
            "title": f"{self.job.name}: predicted beside measured", "answer": ("Best measured.", answer),
            "next": self.next_command, "drawn": "Predicted and measured", "rows": "Runs", "left": 3,
            "lead": f"{plans} {STOPPED[self.stopped]} {self.reason}".strip(),
            "cards": list(_cards(self, names)), "pictures": pictures, "table": _table(self.runs),
            "notes": [*self.notes, *filter(None, [self.fault])], "provenance": rows, "job_file": dump_job(self.job),
            "data": {"figures": {one["id"]: one["figure"] for one in pictures}},
        }, "runs")  # fmt: skip

    def document(self) -> dict[str, Any]:
        """All of `keys`, the fault and the gains, null where there are none."""
        return super().document() | {"fault": self.fault or None, "gains": self.gains}

    @functools.cached_property
    def gains(self) -> Gains | None:
        """Gains on the run that the others are compared with; None where that is the only sound one."""
        start = self._compared_run(good) if len(good := successful_runs(self.runs)) > 1 else None
        return None if start is None else Gains.of(self.runs, *start)

    def _compared_run(self, good: Sequence[int]) -> tuple[int, str] | None:
        """Of the places of sound runs the one that others are compared with, and what it is."""
        return good[0], "the first that succeeded"

    @property
    def differences(self) -> list[Difference]:
        """Of measured time and energy of the best run against the run that others are compared with."""
        if self.best is None or self.gains is None or self.best[0] == self.gains.against:
            return []
        now, before = self.runs[self.best[0]], self.runs[self.gains.against]
        found = [
            Difference(tables.OBJECTIVE_UNITS[name][0], 100.0 * (now.result(name) / before.result(name) - 1.0))
            for name in OBJECTIVES
        ]
        return [one for one in found if math.isfinite(one.percent)]

    def _short_answer(self, title: str, outlook: Sequence[str], written: bool) -> Iterator[list[str]]:
        """The best run beside its prediction, what it gives, how far predictions are off, why that is all, its start.

        ``outlook``: sentences on what further runs would bring.
        """
        ended = Counter("over a bound" if run.broken else run.status for run in self.runs)
        failed = ", ".join(f"{count} {status}" for status, count in ended.items() if status != "ok")
        head = narrow_lines(title)
        if self.best is None:
            yield [
                *head,
                *narrow_lines(f"No run gives a plan to use ({failed}). {STOPPED[self.stopped]} {self.reason}"),
            ]
            return
        place, why = self.best
        run, varied = self.runs[place], differing_columns([run.plan for run in self.runs])
        head += narrow_lines(f"Best measured: {self.run_name(place)} of {len(self.runs)}, {why}")
        head += narrow_lines(plan_words(run.plan, varied), "  ")
        for name in tables.OBJECTIVE_UNITS:
            head += narrow_lines(words, "  ") if (words := beside_prediction(run, name)) else []
        if (gains := self.gains) and not self.differences:
            head += narrow_lines(gains.sentences(self.run_name)[0])
        elif gains:
            against = f"{self.run_name(gains.against)}, {gains.called}"
            head += [*narrow_lines(f"Against {against}, as measured"), *difference_lines(self.differences)]
        yield head
        rest = [
            *(f"Predictions of {name} were off by {text}." for name, text in self.error_words.items()),
            f"Did not succeed: {failed}." * bool(failed),
            f"{STOPPED[self.stopped]} {self.reason}".strip(), *outlook,
            *(text for text in self.notes if text != self.reason),
        ]  # fmt: skip
        page = "" if written else " A page of them: --report FILE."
        last = [*command_lines(self.next_command), f"All runs: -v.{page}"]
        lines = [line for text in rest for line in narrow_lines(text)]
        yield lines[: LINES - len([*head, *last]) - 2]
        yield last

    @property
    def error_words(self) -> dict[str, str]:
        """How far predictions were off, by the short name of each result that was predicted and measured."""
        found = {}
        for name, (head, _) in tables.OBJECTIVE_UNITS.items():
            errors, inside = prediction_errors(self.runs, name)
            if errors:
                within = f"; {sum(inside)} of {len(inside)} in their 90 % interval" * bool(inside)
                found[head] = f"{statistics.median(errors):.1%} (median{within})"
        return found

    def _answer_blocks(self, title: str, rows: Sequence[str], legend: str, remarks: Iterable[str]) -> Iterator[Block]:
        """The blocks: title, table, legend, why there are no further runs, remarks, and where runs and study are."""
        yield [title]
        yield [rows or "Nothing was measured."]
        broken = sorted({name for run in self.runs for name in run.broken})
        over = f"over: beyond the job's bound on {', '.join(broken)}." if broken else ""
        notes = [text for text in (*self.notes, *remarks) if text != self.reason]
        lines = [f"{legend} {over}".strip(), f"{STOPPED[self.stopped]} {self.reason}".strip(), *notes]
        kept: list[str] = []
        if self.place and (len(self.runs) > self.unstored or not self.unstored):
            without = f", without the {self.unstored} that could not be stored" if self.unstored else ""
            kept.append(f"Measurements: {self.place}{without}")
        if self.study_name:
            name, opened = tables.study_lines(self.study_name, self.place or "", self.study_name)
            kept += [name, *tables.paragraphs([opened], "      ")]
        yield [*lines, kept]


def beside_prediction(run: MeasuredRun, name: str) -> str:
    """A result of a run as measured and as predicted, with the interval of that; blank where it was not measured."""
    value, known = run.result(name), run.predicted
    if not math.isfinite(value):
        return ""
    words = f"{tables.OBJECTIVE_UNITS[name][0]} {tables.result_text(name, value)}"
    if not math.isfinite(run.error(name)):
        return words
    ends = [known.get(f"{name}_{end}", math.nan) for end in ("low", "high")]
    span = f" (90 %: {' to '.join(tables.result_text(name, end) for end in ends)})" * all(map(math.isfinite, ends))
    return f"{words}, predicted {tables.result_text(name, known[name])}{span}, off by {run.error(name):+z.1%}"


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
        (head, units), values = tables.OBJECTIVE_UNITS[name], [run.result(name) for run in runs]
        if math.isfinite(least := tables.least_positive(values)):
            predicted = [run.predicted.get(name, math.nan) for run in runs]
            columns.append(tables.unit_column(head, values, units, least))
            columns += [tables.unit_column("pre-\ndicted", predicted, units, least), *beside]
    return plan_table([run.plan for run in runs], left, [*columns, *right]) if runs else []


@dataclass(frozen=True, kw_only=True, repr=False)
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

    @property
    def goals(self) -> tuple[str, ...]:
        """What runs are compared in."""
        return self.objectives

    @functools.cached_property
    def _names(self) -> list[str]:
        numbers = itertools.count(max(self.spent.runs - sum(run.round > 0 for run in self.runs), 0) + 1)
        return [f"run {next(numbers)}" if run.round > 0 else "a run of an earlier tune" for run in self.runs]

    def run_name(self, place: int) -> str:
        """What a sentence calls the run at a place: numbers go on from those of the same budget before."""
        return self._names[place]

    def blocks(self, *, brief: bool = False, written: bool = False) -> Iterator[Block]:
        """The runs in their order, * on those that no other beats, and a summary; ``brief``: the best run alone.

        ``written``: a page of them is.
        """
        new = sum(run.round > 0 for run in self.runs)  # the others had been measured before
        first, plans = self.objectives[0], f"{new} of {self.candidates:,} plans {self.how_run()}"
        legend = f"* no other run is better; Δ%: {first} beyond the least of all runs; predicted was before the run."
        gain = gain_words(self.gain_left, self.objectives, "the plans that are left")
        outlook = [f"{gain[:1].upper()}{gain[1:]}."] if self.front else []
        title = f"{self.job.name}: {plans}, for {' and '.join(self.objectives)}."
        if brief:
            more = ["A larger --budget runs more of them."] * (self.stopped == "budget")
            yield from self._short_answer(title, [" ".join([*outlook, *more])] * (self.gain_left > LITTLE), written)
            return
        numbered = [name.removeprefix("run ") if name.startswith("run ") else "-" for name in self._names]
        left = [
            TextColumn("", ["*" if i in self.front else " " for i in range(len(self.runs))]),
            TextColumn("run", numbered),
        ]
        kept = [math.nan if run.broken else run.result(first) for run in self.runs]
        slower = tables.percent_of(kept, tables.least_positive(kept), ".1f")
        shown: Any = dict.fromkeys((*OBJECTIVES, *self.objectives), ())
        rows = run_table(self.runs, left, shown, TextColumn("best\nΔ%", slower))
        remarks = self.gains.sentences(self.run_name) if self.gains else []
        remarks += [*filter(None, [self.hypervolume_sentence()]), *outlook]
        remarks += [f"Plans that are left are predicted by {self.predicted_by}."] if self.predicted_by else []
        yield from self._answer_blocks(title, rows, legend if self.front else "", remarks)

    def hypervolume_sentence(self) -> str:
        """By how much the measured front's hypervolume grew in this tune; blank of one objective, or of no run."""
        if len(self.objectives) < 2 or len(successful_runs(self.runs)) < 2:
            return ""
        volumes = list(zip(self.runs, self.hypervolume, strict=True))
        known = [volume for run, volume in volumes if run.round > 0 and volume] or [0.0]
        earlier = [volume for run, volume in volumes if run.round == 0 and volume]
        before, after = (earlier[-1:] or known)[0], known[-1]
        if not after > 0.0:
            return ""
        grew = f"grew from {before:.1%} to {after:.1%}" if after - before > LITTLE else f"stayed at {after:.1%}"
        box = "the box from zero to 1.1 times the worst run in each objective"
        return f"The measured front's hypervolume {grew} of {box}."

    def _compared_run(self, good: Sequence[int]) -> tuple[int, str] | None:
        before = [place for place in good if self.runs[place].round == 0]
        if not before:
            return super()._compared_run(good)
        fastest = min(before, key=lambda place: self.runs[place].result("iteration_time_s"))
        return fastest, "the fastest before this tune"


def gain_words(gain: float, objectives: Sequence[str], plans: str) -> str:
    """The expected gain of ``plans``: a share of the best value, or of a hypervolume; NaN = not known yet."""
    if math.isnan(gain):
        return f"what {plans} may gain is not known yet (too few runs)"
    better = "enlarge the measured front's hypervolume (of logarithms)"
    if len(objectives) == 1:
        better = f"lower the least {tables.OBJECTIVE_UNITS[objectives[0]][0]} measured"
    return f"{plans} should {better} by {gain:z.1%}"


@dataclass(frozen=True, kw_only=True, repr=False)
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
        errors = {name: prediction_errors(self.runs, name)[0] for name in RESULTS}
        return {name: statistics.median(found) for name, found in errors.items() if found}

    @property
    def all_known(self) -> bool:
        """Whether every plan had been measured before."""
        return bool(self.runs) and all(run.earlier for run in self.runs)

    def _compared_run(self, good: Sequence[int]) -> tuple[int, str] | None:
        found = [place for place in good if self.runs[place].reference]
        return (found[0], "the fastest plan proposed at the GPU's own clock") if found else None

    def how_run(self) -> str:
        """How the plans were run, as a participle."""
        return "all measured before and not run again (--again does)" if self.all_known else super().how_run()

    def run_name(self, place: int) -> str:
        """What a sentence calls the run at a place."""
        return f"row {place + 1}"

    def blocks(self, *, brief: bool = False, written: bool = False) -> Iterator[Block]:
        """The runs in the proposal's order with the errors of predictions, and a summary; ``brief``: the best alone.

        ``written``: a page of them is.
        """
        runs = self.runs
        plans = f"{len(runs)} proposed plan{'s' * (len(runs) != 1)} (surrogate {self.surrogate})"
        title = f"{self.job.name}: {plans}, {self.how_run()}."
        if brief:
            yield from self._short_answer(title, [], written)
            return
        legend = ["err: the prediction against the measurement; in: within the 90 % interval."]
        legend += ["= the fastest plan at the GPU's own clock."] * any(run.reference for run in runs)
        again = [run.earlier and not self.all_known for run in runs]
        legend += ["0 measured before, not run again (--again does)."] * any(again)
        reasons = reasons_of([pick(run, "in_domain doubts") for run in runs], self.surrogate, self.job)
        remarks = [
            f"Row {number}, {run.status}: {run.notes or 'no reason known'}"
            for number, run in enumerate(runs, start=1)
            if run.status != "ok"
        ]
        remarks += self.gains.sentences(self.run_name) if self.gains else []
        for name, error in self.median_errors.items():
            inside, head = prediction_errors(runs, name)[1], tables.RESULT_UNITS[name][0].capitalize()
            within = f"{sum(inside)} of {len(inside)} runs lie in their 90 % interval"
            remarks.append(f"{head} is off by {error:.1%} (median); {within}.")
        marks = [
            "=" * run.reference + "0" * known + "?" * bool(why)
            for run, known, why in zip(runs, again, distinct_reasons(reasons), strict=True)
        ]
        beside = {
            name: [
                TextColumn("err\n%", tables.format_values((100 * run.error(name) for run in runs), "+.0f")),
                TextColumn("in", [{True: "y", False: "n", None: "-"}[run.inside(name)] for run in runs]),
            ]
            for name in (*OBJECTIVES, "peak_memory_gib")
        }
        legend += wider_lines(reasons, interval="interval")
        table = run_table(runs, [TextColumn("", marks)], beside)
        yield from self._answer_blocks(title, table, " ".join(legend), remarks)


LITTLE = 0.0005  # a share that prints as 0.0 %


def successful_runs(runs: Sequence[MeasuredRun]) -> list[int]:
    """Places of the runs that succeeded and kept the job's constraints."""
    return [place for place, run in enumerate(runs) if run.status == "ok" and not run.broken]


def prediction_errors(runs: Sequence[MeasuredRun], name: str) -> tuple[list[float], list[bool]]:
    """Absolute errors of a result's predictions, and whether measurements lie in their intervals, as far as known.

    Runs that were measured before do not count: the predictions have learned from them.
    """
    new = [run for run in runs if not (getattr(run, "earlier", False) or getattr(run, "round", 1) == 0)]
    errors, inside = ([abs(run.error(name)) for run in new], [run.inside(name) for run in new])
    return [error for error in errors if math.isfinite(error)], [one for one in inside if one is not None]


@dataclass(frozen=True)
class Gains:
    """The fastest of real runs, and the one of least energy in no more time, against one of them; by their places.

    Shares are of what that run took; NaN where energy was not measured.
    """

    against: int
    called: str  # what that run is
    fastest: int
    less_time: float
    leanest: int
    less_energy: float

    @classmethod
    def of(cls, runs: Sequence[MeasuredRun], against: int, called: str) -> Gains:
        """Those of sound ``runs`` against the one at a place."""
        time, energy = ([run.result(name) for run in runs] for name in OBJECTIVES)
        good = successful_runs(runs)
        fastest = min(good, key=time.__getitem__)
        known = [place for place in good if time[place] <= time[against] and math.isfinite(energy[place])]
        leanest = min(known, key=energy.__getitem__, default=against)
        less_time, less_energy = 1.0 - time[fastest] / time[against], 1.0 - energy[leanest] / energy[against]
        return cls(against, called, fastest, less_time, leanest, less_energy)

    def document(self) -> dict[str, Any]:
        """The shares, and the places of the runs."""
        return {
            "against": self.against, "fastest": self.fastest, "less_time": self.less_time,
            "least_energy_in_no_more_time": self.leanest, "less_energy": self.less_energy,
        }  # fmt: skip

    def sentences(self, name: Callable[[int], str]) -> list[str]:
        """Each share with the run that it is against; ``name`` is how the run at a place is called."""
        fastest, leanest = (f"{word[:1].upper()}{word[1:]}" for word in (name(self.fastest), name(self.leanest)))
        than = f"{name(self.against)}, {self.called}"
        lines = [f"No run is faster than {than}."]
        if self.less_time > LITTLE:
            lines = [f"{fastest} is the fastest: {self.less_time:.1%} less time than {than}."]
        if self.less_energy > LITTLE:
            lines.append(f"{leanest} needs {self.less_energy:.1%} less energy than that one in no more time.")
        elif math.isfinite(self.less_energy):
            lines.append("No run needs less energy than that one in no more time.")
        return lines


# The page of real runs: what `tune` and `validate` measured beside the predictions, and what each round taught.

_TITLES = {
    "iteration_time_s": "Iteration time", "energy_j": "Energy of all GPUs for one iteration",
    "avg_power_w": "Power per GPU", "peak_memory_gib": "Memory of the fullest GPU",
}  # fmt: skip
_HEIGHT = 360


def _cards(result: MeasuredResult, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """The best run beside its prediction, what it gives, errors of predictions, what is left to gain, what failed."""
    runs = result.runs
    if result.best is not None:
        best = runs[result.best[0]]
        for name in OBJECTIVES:
            if math.isfinite(value := best.result(name)):
                head, text = tables.OBJECTIVE_UNITS[name][0], tables.result_text(name, value)
                yield f"{head.capitalize()} measured", text, beside_prediction(best, name).partition(", ")[2]
    if (gains := result.gains) and result.best is not None:
        called = f"{result.run_name(gains.against)}, {gains.called}"
        for one in result.differences:
            yield f"{one.name.capitalize()} against {result.run_name(gains.against)}", one.cells[1], gains.called
        if not result.differences:
            yield "Compared with", "itself", f"it is {called}"
    for name in names:
        errors, inside = prediction_errors(runs, name)
        if errors:
            head, off = tables.OBJECTIVE_UNITS[name][0].capitalize(), f"{statistics.median(errors):.1%}"
            yield f"{head} off by", off, f"median; {sum(inside)} of {len(inside)} in their 90 % interval"
    if isinstance(result, Tuned) and math.isfinite(result.gain_left):
        of = "more hypervolume of the measured front (of logarithms)"
        if len(result.objectives) == 1:
            of = f"off the least {tables.OBJECTIVE_UNITS[result.objectives[0]][0]} measured"
        yield "Expected of the plans left", f"{result.gain_left:z.1%}", of
    if failed := sum(run.status != "ok" for run in runs):
        yield "Did not succeed", str(failed), "out of memory, failed, timed out"


def _pictures(result: MeasuredResult, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The figures of the page, each with its place, its heading, and what it shows in words."""
    words = "On the line a prediction is right; bars are its 90 % interval. Predictions are those from before the run."
    # of each run its number, its plan in what the plans differ, and the round in which it was chosen
    varied, hints = differing_columns([run.plan for run in result.runs]), []
    for number, run in enumerate(result.runs, start=1):
        of = getattr(run, "round", None)
        when = "" if of is None else f"<br>round {of}" if of else "<br>measured before"
        hints.append(f"<b>run {number}</b>: {plan_words(run.plan, varied)}{when}")
    for name in names:
        yield {
            "id": f"against-{name}", "heading": _TITLES[name], "words": words,
            "figure": _prediction_figure(result.runs, name, hints),
        }  # fmt: skip
    if isinstance(result, Tuned) and names:
        words = "How far predictions were off before each round ran (median of its runs)."
        grown = result.hypervolume_sentence()
        words += f" Dotted: the measured front's hypervolume, as a share of that in the end. {grown}" if grown else ""
        yield {"id": "rounds", "heading": "Learning by round", "words": words, "figure": _round_figure(result, names)}
        words = "Each run as measured, and the best of the runs up to it."
        yield {
            "id": "progress",
            "heading": "The best so far",
            "words": words,
            "figure": _progress_figure(result, hints),
        }


def _prediction_figure(runs: Sequence[MeasuredRun], name: str, hints: Sequence[str]) -> Figure:
    """Measured over predicted, with the intervals and the line on which both are the same."""
    shown = [i for i, run in enumerate(runs) if math.isfinite(run.error(name))]
    factor, unit = tables.unit_of(min(runs[i].result(name) for i in shown), tables.OBJECTIVE_UNITS[name][1])
    predicted, low, high = (
        [runs[i].predicted.get(f"{name}{end}", math.nan) / factor for i in shown] for end in ("", "_low", "_high")
    )
    measured = [runs[i].result(name) / factor for i in shown]
    ends = [0.9 * min(*predicted, *measured), 1.1 * max(*predicted, *measured)]
    bars = {
        "type": "data", "symmetric": False, "color": "var(--muted)", "thickness": 1,
        "array": error_bar_lengths(predicted, high), "arrayminus": error_bar_lengths(low, predicted),
    }  # fmt: skip
    data: list[Figure] = [
        {"name": "predicted = measured", "x": rounded_values(ends), "y": rounded_values(ends), "mode": "lines",
         "hoverinfo": "skip", "line": {"color": "var(--muted)", "dash": "dot", "width": 1.5}},
        {"name": "runs", "x": rounded_values(predicted), "y": rounded_values(measured), "mode": "markers+text",
         "error_x": bars, "text": [str(i + 1) for i in shown], "textposition": "top center",
         "customdata": [hints[i] for i in shown],
         "marker": {"size": 9, "color": colour(0)},
         "hovertemplate": f"%{{customdata}}<br>predicted %{{x}} {unit}, measured %{{y}} {unit}<extra></extra>"},
    ]  # fmt: skip
    return {"data": data, "layout": {
        "height": _HEIGHT, "margin": {"t": 26, "r": 16, "l": 70, "b": 50}, "legend": ABOVE,
        "xaxis": {"title": {"text": f"predicted, {unit}"}, "range": ends, "constrain": "domain"},
        "yaxis": {"title": {"text": f"measured, {unit}"}, "range": ends},
    }}  # fmt: skip


def _round_figure(result: Tuned, names: Sequence[str]) -> Figure:
    """Median error of each round's predictions in percent, and by several objectives the hypervolume after it."""
    rounds = sorted({run.round for run in result.runs if run.round > 0})
    data: list[Figure] = []
    for number, name in enumerate(names):
        errors = {of: prediction_errors([run for run in result.runs if run.round == of], name)[0] for of in rounds}
        known = [of for of in rounds if errors[of]]
        data.append({
            "name": f"{tables.OBJECTIVE_UNITS[name][0]}, error", "x": known, "mode": "lines+markers",
            "y": rounded_values(100 * statistics.median(errors[of]) for of in known), "line": {"color": colour(number)},
            "hovertemplate": "round %{x}: %{y} %<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    last = {run.round: volume for run, volume in zip(result.runs, result.hypervolume, strict=True)}
    whole = max(result.hypervolume, default=0.0) or 1.0
    covered = rounded_values(100 * last[of] / whole for of in rounds)
    data += (len(result.objectives) > 1) * [{
        "name": "front's hypervolume", "x": rounds, "y": covered, "yaxis": "y2",
        "mode": "lines", "line": {"color": "var(--muted)", "dash": "dot", "shape": "hv"},
        "hovertemplate": "after round %{x}: %{y} %<extra>%{fullData.name}</extra>",
    }]  # fmt: skip
    return {"data": data, "layout": {
        "height": _HEIGHT, "margin": {"t": 26, "r": 70, "l": 70, "b": 50}, "legend": ABOVE,
        "xaxis": {"title": {"text": "round"}, "dtick": max(1, len(rounds) // 12)},
        "yaxis": {"title": {"text": "error of predictions, %"}, "rangemode": "tozero"},
        "yaxis2": {"title": {"text": "front's hypervolume, % of the last"}, "overlaying": "y", "side": "right",
                   "range": [0, 105], "tickvals": [0, 25, 50, 75, 100], "showgrid": False},
    }}  # fmt: skip


def _progress_figure(result: Tuned, hints: Sequence[str]) -> Figure:
    """The first objective of each run in order, and the best up to it."""
    name = result.objectives[0]
    values = [math.nan if run.broken else run.result(name) for run in result.runs]
    factor, unit = tables.unit_of(tables.least_positive(values), tables.OBJECTIVE_UNITS[name][1])
    best: list[float] = []
    for value in values:
        best.append(min([v for v in (value, *best[-1:]) if math.isfinite(v)], default=math.nan))
    measured, least = (
        rounded_values(value / factor if math.isfinite(value) else None for value in some) for some in (values, best)
    )
    numbers = list(range(1, len(values) + 1))
    data = [
        {"name": "runs", "x": numbers, "y": measured, "mode": "markers", "text": hints,
         "marker": {"size": 9, "color": colour(0)}, "hovertemplate": f"%{{text}}<br>%{{y}} {unit}<extra></extra>"},
        {"name": "best so far", "x": numbers, "y": least, "mode": "lines", "hoverinfo": "skip",
         "line": {"color": colour(1), "shape": "hv"}},
    ]  # fmt: skip
    return {"data": data, "layout": {
        "height": _HEIGHT, "margin": {"t": 26, "r": 16, "l": 70, "b": 50}, "legend": ABOVE,
        "xaxis": {"title": {"text": "run"}, "dtick": max(1, len(values) // 12)},
        "yaxis": {"title": {"text": f"{tables.OBJECTIVE_UNITS[name][0]}, {unit}"}},
    }}  # fmt: skip


def _table(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """A row for each run: its plan, how it ended, and each result as measured and as predicted."""
    varied, ended = differing_columns([run.plan for run in runs]), []
    for run in runs:
        words = "beyond " + ", ".join(run.broken) if run.broken else run.status
        ended.append(f"{words}: {run.notes}" if run.status != "ok" and run.notes else words)
    columns = [
        ("run", [str(number) for number in range(1, len(runs) + 1)]),
        ("plan", [plan_words(run.plan, varied) for run in runs]),
        ("status", ended),
    ]
    for name in tables.OBJECTIVE_UNITS:
        measured, predicted = (
            [tables.result_text(name, value) if math.isfinite(value) else "-" for value in values]
            for values in ([run.result(name) for run in runs], [run.predicted.get(name, math.nan) for run in runs])
        )
        errors = [f"{run.error(name):+z.1%}" if math.isfinite(run.error(name)) else "-" for run in runs]
        if set(measured) - {"-"}:
            columns.append((tables.OBJECTIVE_UNITS[name][0], measured))
            columns += [("predicted", predicted), ("off by", errors)] if set(predicted) - {"-"} else []
    return table_of("All runs in their order; an error is the prediction against the measurement", columns)
