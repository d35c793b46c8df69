"""The page of real runs: what `tune` and `validate` measured beside the predictions, and what each round taught."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from jointopt.jobs.jobfile import dump_job
from jointopt.report import table
from jointopt.report.gains import LITTLE
from jointopt.report.page.content import Table
from jointopt.report.page.figures import ABOVE, Figure, colour, rounded
from jointopt.report.page.render import Page
from jointopt.report.plans import differing, plan_words
from jointopt.report.real_runs import STOPPED, MeasuredResult, MeasuredRun, Tuned, Validated

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
        cards.append(("Fastest run", table.result("iteration_time_s", best.result("iteration_time_s")),
                      f"run {result.runs.index(best) + 1} of {len(result.runs)}"))  # fmt: skip
    cards += _gain_cards(result)
    for name in names:
        if errors := _judged(result.runs, name):
            inside = [i for run in result.runs if not _earlier(run) and (i := run.inside(name)) is not None]
            cards.append((f"{table.OBJECTIVE_UNITS[name][0].capitalize()} off by", f"{statistics.median(errors):.1%}",
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
        return f"off the least {table.OBJECTIVE_UNITS[objectives[0]][0]} measured"
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
    factor, unit = table.unit_of(min(runs[i].result(name) for i in shown), table.OBJECTIVE_UNITS[name][1])
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
            "name": f"{table.OBJECTIVE_UNITS[name][0]}, error", "x": known, "mode": "lines+markers",
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
    factor, unit = table.unit_of(table.least_of(values), table.OBJECTIVE_UNITS[name][1])
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
        "yaxis": {"title": {"text": f"{table.OBJECTIVE_UNITS[name][0]}, {unit}"}},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _blank(values: Sequence[float], factor: float) -> list[float | None]:
    return rounded(value / factor if math.isfinite(value) else None for value in values)


def _table(runs: Runs) -> Table:
    """A row for each run: its plan, how it ended, and each result as measured and as predicted."""
    varied = differing([run.plan for run in runs])
    names = [name for name in _SHOWN if any(math.isfinite(run.result(name)) for run in runs)]
    foreseen = {name for name in names if any(math.isfinite(_of(run, name)) for run in runs)}
    head = ["run", "plan", "status"]
    for name in names:
        head += [table.OBJECTIVE_UNITS[name][0], *(["predicted", "off by"] if name in foreseen else [])]
    rows = []
    for number, run in enumerate(runs, start=1):
        cells = [str(number), plan_words(run.plan, varied), _status(run)]
        for name in names:
            beside = [_figure(name, _of(run, name)), _percent(run.error(name))] if name in foreseen else []
            cells += [_figure(name, run.result(name)), *beside]
        rows.append(cells)
    return Table("All runs in their order; an error is the prediction against the measurement", head, rows)


def _status(run: MeasuredRun) -> str:
    words = "beyond " + ", ".join(run.broken) if run.broken else run.status
    return f"{words}: {run.notes}" if run.status != "ok" and run.notes else words


def _figure(name: str, value: float) -> str:
    return table.result(name, value) if math.isfinite(value) else "-"


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
