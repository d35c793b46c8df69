"""The answers of ``tune`` and ``validate``: one line per real run beside its prediction, and why there are no more."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar

from jointopt.core.budget import Spent
from jointopt.core.secrets import masked
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job
from jointopt.report import tables
from jointopt.report.page.content import Table
from jointopt.report.page.figures import ABOVE, Figure, colour, rounded
from jointopt.report.page.render import Page
from jointopt.report.plans import differing, plan_table, plan_words
from jointopt.report.reasons import own_reasons, reasons_of, wider_lines
from jointopt.report.tables import Result, TextColumn, pick
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
        return masked(self.storage) if self.storage else None

    def how_run(self) -> str:
        """How the plans were run, as a participle: a replay returns rows of its table, and nothing runs."""
        replayed = "looked up in the table (a replay runs nothing)"
        return replayed if self.launcher == "replay" else f"run by {self.launcher}"

    def report(self) -> Page:
        """The runs as one HTML page: predicted beside measured, and what was learned by round."""

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
        lines = tables.paragraphs(
            [f"{legend} {over}".strip(), f"{STOPPED[self.stopped]} {self.reason}".strip(), *notes]
        )
        if self.place and (len(self.runs) > self.unstored or not self.unstored):
            without = f", without the {self.unstored} that could not be stored" if self.unstored else ""
            lines.append(f"Measurements: {self.place}{without}")
        if self.study_name:
            name, opened = tables.study_lines(self.study_name, self.place or "", self.study_name)
            lines += [name, *tables.paragraphs([opened], "      ")]
        return tables.blocks_text(tables.paragraphs([title]), rows or ["Nothing was measured."], lines)


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
        if math.isfinite(least := tables.least_of(values)):
            predicted = [run.predicted.get(name, math.nan) for run in runs]
            columns.append(tables.measured(head, values, units, least))
            columns += [tables.measured("pre-\ndicted", predicted, units, least), *beside]
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
        slower = tables.percent_of(kept, tables.least_of(kept), ".1f")
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
        return f"lower the least {tables.OBJECTIVE_UNITS[objectives[0]][0]} measured"
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
            head = tables.RESULT_UNITS[name][0].capitalize()
            within = f"{sum(inside)} of {len(inside)} runs lie in their 90 % interval"
            remarks.append(f"{head} is off by {error:.1%} (median); {within}.")
        own = own_reasons(reasons)
        marks = [
            "=" * r.reference + "0" * (r.earlier and not self.all_known) + "?" * bool(why)
            for r, why in zip(runs, own, strict=True)
        ]
        judged = {
            name: [
                TextColumn("err\n%", tables.fixed((100 * run.error(name) for run in runs), "+.0f")),
                TextColumn("in", [{True: "y", False: "n", None: "-"}[run.inside(name)] for run in runs]),
            ]
            for name in ("iteration_time_s", "energy_j", "peak_memory_gib")
        }
        rows = run_table(runs, [TextColumn("", marks)], judged)
        sentences = [text for text, needed in legend.items() if needed]
        return self.page(title, rows, " ".join([*sentences, *wider_lines(reasons, interval="interval")]), remarks)


# Gains of real runs: less time, less energy in no more time, and the hypervolume of the measured front.


LITTLE = 0.0005  # a share that prints as 0.0 %


def sound(runs: Sequence[MeasuredRun]) -> list[int]:
    """Places of the runs that succeeded and kept the job's constraints."""
    return [place for place, run in enumerate(runs) if run.status == "ok" and not run.broken]


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
        time, energy = ([run.result(name) for run in runs] for name in ("iteration_time_s", "energy_j"))
        good = sound(runs)
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


def hypervolume_words(before: float, after: float) -> str:
    """By how much the hypervolume of a measured front grew; blank where there is none."""
    if not after > 0.0:
        return ""
    grew = f"grew from {before:.1%} to {after:.1%}" if after - before > LITTLE else f"stayed at {after:.1%}"
    return f"The measured front's hypervolume {grew} of the box from zero to 1.1 times the worst run in each objective."


# The page of real runs: what `tune` and `validate` measured beside the predictions, and what each round taught.


Runs = Sequence[MeasuredRun]
_SHOWN = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib", "peak_power_w")
_TITLES = {
    "iteration_time_s": "Iteration time", "energy_j": "Energy of all GPUs for one iteration",
    "avg_power_w": "Power per GPU", "peak_memory_gib": "Memory of the fullest GPU",
}  # fmt: skip
_HEIGHT = 360


@dataclass(frozen=True)
class Picture:
    """A figure of the page: its place, its heading, and what it shows in words."""

    id: str
    heading: str
    words: str
    figure: Figure


@dataclass(frozen=True)
class RunContent:
    """All that the template shows."""

    title: str
    lead: str
    cards: Sequence[tuple[str, str, str]]
    pictures: Sequence[Picture]
    table: Table
    notes: Sequence[str]
    provenance: Sequence[tuple[str, str]]
    job_file: str

    @property
    def data(self) -> Mapping[str, Any]:
        """The figures by their places."""
        return {"figures": {one.id: one.figure for one in self.pictures}}


def run_page(result: MeasuredResult) -> Page:
    """The page of the runs of a ``tune`` or a ``validate``."""
    names = [name for name in _SHOWN if any(math.isfinite(run.error(name)) for run in result.runs)]
    notes = [*result.notes, *([result.fault] if result.fault else [])]
    content = RunContent(
        title=f"{result.job.name}: predicted beside measured", lead=_lead(result), cards=_cards(result, names),
        pictures=list(_pictures(result, names)), table=_table(result.runs), notes=notes,
        provenance=_provenance(result), job_file=dump_job(result.job),
    )  # fmt: skip
    return Page(content, "runs")


def _lead(result: MeasuredResult) -> str:
    runs, plural = len(result.runs), "s" * (len(result.runs) != 1)
    if isinstance(result, Tuned):
        begin = f"{runs} of {result.candidates:,} plans {result.how_run()}, each the most promising then,"
        begin += f" for {' and '.join(result.objectives)}."
    else:
        begin = f"{runs} proposed plan{plural}, {result.how_run()}."
    return f"{begin} {STOPPED[result.stopped]} {result.reason}".strip()


def _judged(runs: Runs, name: str) -> list[float]:
    """Absolute errors of the predictions of runs that had not been measured before."""
    return [abs(run.error(name)) for run in runs if math.isfinite(run.error(name)) and not _earlier(run)]


def _earlier(run: MeasuredRun) -> bool:
    return bool(getattr(run, "earlier", False) or getattr(run, "round", 1) == 0)


def _cards(result: MeasuredResult, names: Sequence[str]) -> list[tuple[str, str, str]]:
    cards = []
    good = [run for run in result.runs if math.isfinite(run.result("iteration_time_s")) and not run.broken]
    if good:
        best = min(good, key=lambda run: run.result("iteration_time_s"))
        cards.append(("Fastest run", tables.result("iteration_time_s", best.result("iteration_time_s")),
                      f"run {result.runs.index(best) + 1} of {len(result.runs)}"))  # fmt: skip
    cards += _gain_cards(result)
    for name in names:
        if errors := _judged(result.runs, name):
            inside = [i for run in result.runs if not _earlier(run) and (i := run.inside(name)) is not None]
            cards.append((f"{tables.OBJECTIVE_UNITS[name][0].capitalize()} off by", f"{statistics.median(errors):.1%}",
                          f"median; {sum(inside)} of {len(inside)} in their 90 % interval"))  # fmt: skip
    if isinstance(result, Tuned) and math.isfinite(result.gain_left):
        cards.append(("Expected of the plans left", f"{result.gain_left:z.1%}", _expected(result.objectives)))
    failed = sum(run.status != "ok" for run in result.runs)
    return cards + ([("Did not succeed", str(failed), "out of memory, failed, timed out")] if failed else [])


def _gain_cards(result: MeasuredResult) -> list[tuple[str, str, str]]:
    """By how much less time and energy runs did than the one that they are compared with."""
    if (gains := result.gains) is None:
        return []
    than = f"than run {gains.against + 1}, {gains.called}"
    shares = {
        "Less time": (gains.less_time, f"run {gains.fastest + 1} {than}"),
        "Less energy": (gains.less_energy, f"run {gains.leanest + 1} {than}, in no more time"),
    }
    return [(head, f"{share:.1%}", words) for head, (share, words) in shares.items() if share > LITTLE]


def _volume_words(result: Tuned) -> str:
    grown = result.grown()
    return f" Dotted: the measured front's hypervolume, as a share of that in the end. {grown}" if grown else ""


def _expected(objectives: Sequence[str]) -> str:
    if len(objectives) == 1:
        return f"off the least {tables.OBJECTIVE_UNITS[objectives[0]][0]} measured"
    return "more hypervolume of the measured front (of logarithms)"


def _pictures(result: MeasuredResult, names: Sequence[str]) -> Iterator[Picture]:
    runs = result.runs
    for name in names:
        yield Picture(
            f"against-{name}", _TITLES[name],
            "On the line a prediction is right; bars are its 90 % interval. Predictions are those from before the run.",
            _against(runs, name),
        )  # fmt: skip
    if isinstance(result, Tuned) and names:
        yield Picture(
            "rounds", "Learning by round",
            "How far predictions were off before each round ran (median of its runs)." + _volume_words(result),
            _by_round(result, names),
        )  # fmt: skip
        yield Picture(
            "progress", "The best so far", "Each run as measured, and the best of the runs up to it.", _progress(result)
        )


def _hint(runs: Runs) -> list[str]:
    varied = differing([run.plan for run in runs])
    return [
        f"<b>run {number}</b>: {plan_words(run.plan, varied)}{_round(run)}" for number, run in enumerate(runs, start=1)
    ]


def _round(run: MeasuredRun) -> str:
    of = getattr(run, "round", None)
    return "" if of is None else f"<br>round {of}" if of else "<br>measured before"


def _against(runs: Runs, name: str) -> Figure:
    """Measured over predicted, with the intervals and the line on which both are the same."""
    hints = _hint(runs)
    shown = [i for i, run in enumerate(runs) if math.isfinite(run.error(name))]
    factor, unit = tables.unit_of(min(runs[i].result(name) for i in shown), tables.OBJECTIVE_UNITS[name][1])
    predicted, low, high = ([_of(runs[i], f"{name}{end}") / factor for i in shown] for end in ("", "_low", "_high"))
    measured = [runs[i].result(name) / factor for i in shown]
    ends = [0.9 * min(*predicted, *measured), 1.1 * max(*predicted, *measured)]
    bars = {
        "type": "data", "symmetric": False, "color": "var(--muted)", "thickness": 1,
        "array": rounded(_span(predicted, high)), "arrayminus": rounded(_span(low, predicted)),
    }  # fmt: skip
    data: list[Figure] = [
        {"name": "predicted = measured", "x": rounded(ends), "y": rounded(ends), "mode": "lines", "hoverinfo": "skip",
         "line": {"color": "var(--muted)", "dash": "dot", "width": 1.5}},
        {"name": "runs", "x": rounded(predicted), "y": rounded(measured), "mode": "markers+text", "error_x": bars,
         "text": [str(i + 1) for i in shown], "textposition": "top center", "customdata": [hints[i] for i in shown],
         "marker": {"size": 9, "color": colour(0)},
         "hovertemplate": f"%{{customdata}}<br>predicted %{{x}} {unit}, measured %{{y}} {unit}<extra></extra>"},
    ]  # fmt: skip
    layout = {
        "height": _HEIGHT, "margin": {"t": 26, "r": 16, "l": 70, "b": 50}, "legend": ABOVE,
        "xaxis": {"title": {"text": f"predicted, {unit}"}, "range": ends, "constrain": "domain"},
        "yaxis": {"title": {"text": f"measured, {unit}"}, "range": ends},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _of(run: MeasuredRun, name: str) -> float:
    return float(run.predicted.get(name, math.nan))


def _span(low: Sequence[float], high: Sequence[float]) -> list[float]:
    """Lengths between both, 0 where one is unknown."""
    lengths = (b - a for a, b in zip(low, high, strict=True))
    return [length if math.isfinite(length) else 0.0 for length in lengths]


def _by_round(result: Tuned, names: Sequence[str]) -> Figure:
    """Median error of each round's predictions in percent, and by several objectives the hypervolume after it."""
    rounds = sorted({run.round for run in result.runs if run.round > 0})
    data: list[Figure] = []
    for number, name in enumerate(names):
        errors = {of: _judged([run for run in result.runs if run.round == of], name) for of in rounds}
        known = [of for of in rounds if errors[of]]
        data.append({
            "name": f"{tables.OBJECTIVE_UNITS[name][0]}, error", "x": known, "mode": "lines+markers",
            "y": rounded(100 * statistics.median(errors[of]) for of in known), "line": {"color": colour(number)},
            "hovertemplate": "round %{x}: %{y} %<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    last = {run.round: volume for run, volume in zip(result.runs, result.hypervolume, strict=True)}
    whole = max(result.hypervolume, default=0.0) or 1.0
    covered = rounded(100 * last[of] / whole for of in rounds)
    data += (len(result.objectives) > 1) * [{
        "name": "front's hypervolume", "x": rounds, "y": covered, "yaxis": "y2",
        "mode": "lines", "line": {"color": "var(--muted)", "dash": "dot", "shape": "hv"},
        "hovertemplate": "after round %{x}: %{y} %<extra>%{fullData.name}</extra>",
    }]  # fmt: skip
    layout = {
        "height": _HEIGHT, "margin": {"t": 26, "r": 70, "l": 70, "b": 50}, "legend": ABOVE,
        "xaxis": {"title": {"text": "round"}, "dtick": max(1, len(rounds) // 12)},
        "yaxis": {"title": {"text": "error of predictions, %"}, "rangemode": "tozero"},
        "yaxis2": {"title": {"text": "front's hypervolume, % of the last"}, "overlaying": "y", "side": "right",
                   "range": [0, 105], "tickvals": [0, 25, 50, 75, 100], "showgrid": False},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _progress(result: Tuned) -> Figure:
    """The first objective of each run in order, and the best up to it."""
    name = result.objectives[0]
    values = [math.nan if run.broken else run.result(name) for run in result.runs]
    factor, unit = tables.unit_of(tables.least_of(values), tables.OBJECTIVE_UNITS[name][1])
    best: list[float] = []
    for value in values:
        best.append(min([v for v in (value, *best[-1:]) if math.isfinite(v)], default=math.nan))
    numbers = list(range(1, len(values) + 1))
    data = [
        {"name": "runs", "x": numbers, "y": _blank(values, factor), "mode": "markers", "text": _hint(result.runs),
         "marker": {"size": 9, "color": colour(0)}, "hovertemplate": f"%{{text}}<br>%{{y}} {unit}<extra></extra>"},
        {"name": "best so far", "x": numbers, "y": _blank(best, factor), "mode": "lines", "hoverinfo": "skip",
         "line": {"color": colour(1), "shape": "hv"}},
    ]  # fmt: skip
    layout = {
        "height": _HEIGHT, "margin": {"t": 26, "r": 16, "l": 70, "b": 50}, "legend": ABOVE,
        "xaxis": {"title": {"text": "run"}, "dtick": max(1, len(values) // 12)},
        "yaxis": {"title": {"text": f"{tables.OBJECTIVE_UNITS[name][0]}, {unit}"}},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _blank(values: Sequence[float], factor: float) -> list[float | None]:
    return rounded(value / factor if math.isfinite(value) else None for value in values)


def _table(runs: Runs) -> Table:
    """A row for each run: its plan, how it ended, and each result as measured and as predicted."""
    varied = differing([run.plan for run in runs])
    names = [name for name in _SHOWN if any(math.isfinite(run.result(name)) for run in runs)]
    foreseen = {name for name in names if any(math.isfinite(_of(run, name)) for run in runs)}
    columns = [
        ("run", [str(number) for number in range(1, len(runs) + 1)]),
        ("plan", [plan_words(run.plan, varied) for run in runs]),
        ("status", list(map(_status, runs))),
    ]
    for name in names:
        columns.append((tables.OBJECTIVE_UNITS[name][0], [_figure(name, run.result(name)) for run in runs]))
        if name in foreseen:
            columns.append(("predicted", [_figure(name, _of(run, name)) for run in runs]))
            columns.append(("off by", [_percent(run.error(name)) for run in runs]))
    return Table.of("All runs in their order; an error is the prediction against the measurement", columns)


def _status(run: MeasuredRun) -> str:
    words = "beyond " + ", ".join(run.broken) if run.broken else run.status
    return f"{words}: {run.notes}" if run.status != "ok" and run.notes else words


def _figure(name: str, value: float) -> str:
    return tables.result(name, value) if math.isfinite(value) else "-"


def _percent(value: float) -> str:
    return f"{value:+z.1%}" if math.isfinite(value) else "-"


def _provenance(result: MeasuredResult) -> list[tuple[str, str]]:
    rows = [("jointopt", version("jointopt")), ("launcher", result.launcher)]
    if isinstance(result, Validated):
        rows.append(("surrogate", result.surrogate))
    if isinstance(result, Tuned):
        rows += [("seed", str(result.seed)), ("spent", f"{result.spent.runs} runs, {result.spent.gpu_hours:.2f} "
                  f"GPU-hours, {result.spent.minutes:.1f} minutes")]  # fmt: skip
    if result.place:
        rows.append(("measurements", result.place))
    return rows + ([("study", result.study_name)] if result.study_name else [])
