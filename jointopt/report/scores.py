"""The answers of ``evaluate``, ``retrain`` and ``calibrate``: how far predictions are off, before and after a fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from jointopt.core.facts import Source
from jointopt.core.quote import our_command
from jointopt.jobs.calibration import Calibration
from jointopt.report.decision import LINES, command_lines, narrow_lines
from jointopt.report.page.content import table_of
from jointopt.report.page.figures import bar_figure
from jointopt.report.page.render import Page
from jointopt.report.tables import (
    WIDTH,
    Block,
    Result,
    TextColumn,
    format_values,
    known_figures,
    lay_out,
    line_width,
    paragraphs,
    pick,
    table_width,
)
from jointopt.surrogate.features import HEAT_NAMES

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_NO_HELP = "On groups left out these runs do not help: compare plans of others with --surrogate none."
LEAST_SHARED = 10  # held-out rows that two surrogates must share to be compared
_MOST_WORK = 12
_HEAD = 10  # characters of a line of a table's head
_WORK_HEADS = {  # of the columns of the work that was measured; savings are in percent of the energy
    "work": "work", "clock_sensitive_share": "clock-sensitive", "least_energy_clock_mhz": "least energy at MHz",
    "least_energy_saving_percent": "saved %",
} | {f"saving_percent_at_{n}_percent_slowdown": f"{n} % slower" for n in (1, 5, 10)}  # fmt: skip


_PERCENT = {"bias": "+z.1%", "top1_regret": ".1%", "covered": ".0%", "oom_recall": ".0%", "oom_precision": ".0%"} | {
    f"{of}_error": ".1%" for of in ("median", "mean", "power", "energy", "memory", "peak_power")
}
_LEGEND = "Errors are of iteration time; bias: + is slower than measured; covered: within the 90 % interval."
_COVERED = " covered"  # the end of a column's name: the share of runs within their intervals


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table without their blanks."""
    return [known_figures(row) for row in frame.to_dict("records")]


def _score(name: str, value: float) -> str:
    """A figure as tables and sentences show it; blank where it is not known."""
    if value != value:
        return ""
    return format(value, _PERCENT.get(name, "," if isinstance(value, int) else "z.3f"))


def _table(frame: pd.DataFrame, form: Callable[[str, Any], str]) -> list[str]:
    """The rows with heads of several lines; ``form`` writes a figure of the column of that name, blanks stay."""
    columns = []
    for name in map(str, frame.columns):
        values = frame[name].tolist()
        cells = [value if isinstance(value, str) else "" if value != value else form(name, value) for value in values]
        head = "\n".join(wrap(name.replace("_", " "), _HEAD, break_long_words=False))
        columns.append(TextColumn(head, cells, left=isinstance(values[0], str)))
    return lay_out(columns)


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """One row of figures per group, and over all rows; blank where a group has too few runs for one.

    Groups of one name are distinguished by their source, where the table has that column.
    """

    rows = "groups"
    groups: pd.DataFrame
    overall: dict[str, int | float]
    summary: pd.DataFrame | None = None  # the same figures by source and GPU, the signed error first
    learned_rows: int | None = None  # of the judged rows those that predictions learned from; None: not known

    def document(self) -> dict[str, Any]:
        """The groups, and the figures over all rows, as far as known."""
        figures = {"overall": known_figures(self.overall), "learned_rows": self.learned_rows}
        found: dict[str, Any] = {"groups": _rows(self.groups), **figures}
        return found | ({} if self.summary is None else {"summary": _rows(self.summary)})

    def blocks(self, *, groups: bool = True) -> Iterator[Block]:
        """The groups as a table (or the summary by source and GPU), then the figures over all rows.

        Shares are in percent, the bias has its sign; figures of which none is known are left out.
        """
        shown = self.groups if groups or self.summary is None else self.summary
        known = shown.dropna(axis=1, how="all")
        yield [_table(known, _score)]
        many = f"{len(self.groups):,} groups: --groups prints each. " if len(self.groups) > 1 else ""
        figures = []
        for name, value in known_figures(self.overall).items():
            kelvin = " K" * name.endswith("_k")
            figures.append(f"{name.removesuffix('_k').replace('_', ' ')} {_score(name, value)}{kelvin}")
        yield [
            "" if shown is self.groups else f"{many}{_LEGEND}",
            f"Overall: {', '.join(figures)}.",
            f"{self.learned_rows:,} of {self.overall['rows']:,} rows are among those that predictions learned from: "
            "these are training errors, not errors of prediction."
            if self.learned_rows else "",
        ]  # fmt: skip


@dataclass(frozen=True, repr=False)
class Retrained(Result):
    """A surrogate that was trained and written to ``out``.

    ``compared`` has source, rows, before and now; empty: not comparable; None: nothing was replaced, or one that was
    trained on the same tables and could not be judged either.
    """

    rows = "sources"
    remarks: tuple[str, ...]  # rows that were left out, and the use of each source
    sources: pd.DataFrame  # median errors per held-out source; the last row, called mean, is their mean
    compared: pd.DataFrame | None
    forgotten: tuple[str, ...]  # sources that only the replaced surrogate was trained on
    out: Path
    # of features, by source and quantity, where trees count
    importance: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    judged: int = 0  # rows that could be held out
    learned: Mapping[str, int] = field(default_factory=dict)  # rows by source
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # source -> group left out -> median error

    @classmethod
    def of_errors(
        cls, errors: Mapping[str, Mapping[str, float]], out: Path, importance: Mapping[str, Any],
        learned: Mapping[str, int], groups: Mapping[str, Mapping[str, float]],
    ) -> Retrained:  # fmt: skip
        """As of a surrogate that was trained before, by the ``errors`` of its card."""
        import pandas as pd

        sources = pd.DataFrame([{"source": source, **of} for source, of in errors.items()])
        sources = sources.sort_values("source", key=lambda names: names == "mean", kind="stable")
        return cls((), sources, None, (), out, importance, 0, learned, groups)

    def plot(self) -> go.Figure:
        """Importance of the trees' features as a Plotly figure; UsageError where no trees count."""
        from jointopt.report.plot import importance_plot

        return importance_plot(self.importance, self.out)

    def report(self) -> Page:
        """What was learned as one HTML page: errors before and after by source, what moves them, what to measure."""
        first, *rest = self.lesson
        pictures = list(self._pictures())
        percents = [
            (str(name).replace(_COVERED, ", in 90 %"), format_values((100.0 * float(v) for v in values), ".1f"))
            for name, values in self.sources.drop(columns="source").items()
        ]
        caption = "Median errors of time by what was left out, and runs in their 90 % intervals, in percent"
        return Page({
            "title": f"{self.out}: what was learned", "answer": (first, " ".join([*rest[:1], *self._replaced()])),
            "lead": " ".join([*rest[1:], *self.lessons_left]), "next": self.next_command, "cards": self._cards(),
            "drawn": "Errors before and after", "pictures": pictures, "rows": "Sources", "left": 1,
            "table": table_of(caption, [("source", [str(name) for name in self.sources["source"]]), *percents]),
            "provenance": [("jointopt", version("jointopt")), ("surrogate", str(self.out))],
            "notes": list(self.remarks), "job_file": "",
            "data": {"figures": {one["id"]: one["figure"] for one in pictures}},
        }, "runs")  # fmt: skip

    def _cards(self) -> list[tuple[str, str, str]]:
        """The error now and by the physics alone, how sure that is, from how many rows, and what few runs give."""
        mean = {name: f"{value:.1%}" for name, value in self._mean.items() if value == value}
        sources = f"of {len(self.learned)} source{'s' * (len(self.learned) != 1)}"
        cards = {
            "Off by": (mean.get("group out", "not known"), "median, of models left out"),
            "Physics alone": (mean.get("physics"), "on the same runs"),
            "In their 90 % interval": (mean.get(f"group out{_COVERED}"), "of models left out"),
            "Learned from": (f"{sum(self.learned.values()):,} rows", sources),
            "Another cluster": (mean.get("+3 runs"), f"with 3 measured runs; {mean.get('source out')} without"),
        }
        return [(label, value, note) for label, (value, note) in cards.items() if value]

    def _pictures(self) -> Iterator[dict[str, Any]]:
        """Errors by source, errors of the groups left out, and what moves what trees predict."""
        (_, names), _, *columns = self.error_columns()
        errors = {head: cells for head, cells in columns if head != "in 90 %"}
        figure, words = (
            bar_figure(names, errors, "median error, %"),
            "Of models left out: by the physics alone, and now.",
        )
        yield {"id": "errors", "heading": "Error of time by source", "words": words, "figure": figure}
        worst = sorted(((error, _group_words(source, group)) for source, of in self.groups.items()
                        for group, error in of.items()), reverse=True)[:_MOST_WORK]  # fmt: skip
        if worst:
            cells = format_values((100.0 * error for error, _ in worst), ".1f")
            figure = bar_figure([name for _, name in worst], {"now": cells}, "median error, %")
            words = "Each was left out; runs of those on top teach most."
            yield {"id": "groups", "heading": "Where the errors are largest", "words": words, "figure": figure}
        for source, by_quantity in self.importance.items():
            for of, features in by_quantity.items():
                shown = dict(list(features.items())[:_MOST_WORK])
                heading = f"What moves the {HEAT_NAMES.get(of, of)} of {Source.parse(source).to_text()}"
                cells = format_values((100.0 * value for value in shown.values()), ".2f")
                yield {"id": f"moves-{of}-{len(heading)}", "heading": heading, "words": "By the trees of its own runs.",
                       "figure": bar_figure(list(shown), {of: cells}, "mean size of SHAP values, %")}  # fmt: skip

    def document(self) -> dict[str, Any]:
        """The errors per source, and the comparison with the surrogate that was replaced."""
        compared = None if self.compared is None else self.compared.to_dict("records")
        found = {"out": str(self.out), "sources": _rows(self.sources), "compared": compared}
        return found | pick(self, "forgotten remarks")

    def blocks(self, *, brief: bool = False, written: bool = False) -> Iterator[Block]:
        """Remarks, errors by source, and the comparison with the surrogate that was replaced.

        ``brief``: what was learned, the sources with the largest errors, what would teach most, and what uses it.
        ``written``: a page of them is.
        """
        if brief:
            yield from self._short_answer(written)
            return
        yield [paragraphs((line for remark in self.remarks for line in remark.split("\n")), "    ")]
        names = [str(name) for name in self.sources.columns if name != "source"]
        held = [name for name in names if name.endswith(_COVERED)]
        first, *more = _percents(self.sources, [name for name in names if name not in held])
        yield [["Median error of time in %, by what was left out:", *first]]
        yield from ([table] for table in more)
        if held:
            first, *more = _percents(self.sources, held)
            yield [["Held-out runs within their 90 % intervals, in %:", *first]]
            yield from ([table] for table in more)
        yield [self._verdict()]

    @property
    def lesson(self) -> list[str]:
        """Sentences on what was learned, and how far off that is on what was left out."""
        mean, rows = self._mean, sum(self.learned.values())
        many = f"{len(self.learned)} sources" if len(self.learned) != 1 else next(iter(self.learned))
        found = [f"Learned from {rows:,} timed rows of {many}."] * bool(rows)
        if math.isnan(error := mean.get("group out", math.nan)):
            return [*found, "Too few runs or groups to judge it by: its errors are not known."]
        inside = mean.get(f"group out{_COVERED}", math.nan)
        within = f"; {inside:.0%} of runs in their 90 % interval" * (inside == inside)
        found.append(
            f"Of models left out it is off by {error:.1%} (median), physics alone by {mean['physics']:.1%}{within}."
        )
        return [*found, *[_NO_HELP] * (error > mean["physics"])]

    @property
    def _mean(self) -> dict[str, float]:
        """The means over sources."""
        mean = self.sources.set_index("source").round(4).to_dict("index")["mean"]
        return {str(name): float(value) for name, value in mean.items()}

    @property
    def lessons_left(self) -> list[str]:
        """Sentences on what runs would teach most: groups with the largest errors, and runs of another cluster."""
        mean, worst = self._mean, sorted(
            ((error, source, group) for source, errors in self.groups.items() for group, error in errors.items()),
            reverse=True,
        )[:2]  # fmt: skip
        found = [f"{_group_words(source, group)}, off by {error:.1%}" for error, source, group in worst]
        told = [f"Most is left to learn of {' and of '.join(found)}: runs of such models teach most."] if found else []
        out, few = (mean.get(name, math.nan) for name in ("source out", "+3 runs"))
        more = f"Of a cluster that is none of these 3 measured runs take the error from {out:.1%} to {few:.1%}."
        return [*told, *[more] * (few < out)]

    def error_columns(self) -> list[tuple[str, list[str]]]:
        """By source, the largest error first: rows, error of the physics, of what was replaced, and now, in percent."""
        shown = self.sources[self.sources["source"] != "mean"]
        shown = shown.sort_values("group out", ascending=False) if "group out" in shown else shown
        before = (
            {} if self.compared is None else dict(zip(self.compared["source"], self.compared["before"], strict=True))
        )
        names = [str(name) for name in shown["source"]]
        columns: dict[str, Any] = {
            "physics": shown["physics"], "before": [before.get(name) for name in names],
            "now": shown.get("group out", [None] * len(names)),
            "in 90 %": shown.get(f"group out{_COVERED}", [None] * len(names)),
        }  # fmt: skip
        percents = {head: format_values((None if v is None else 100.0 * float(v) for v in values), ".1f")
                    for head, values in columns.items()}  # fmt: skip
        return [
            ("source", names), ("rows", [f"{self.learned[name]:,}" if name in self.learned else "-" for name in names]),
            *((head, cells) for head, cells in percents.items() if set(cells) - {"-"}),
        ]  # fmt: skip

    @property
    def next_command(self) -> dict[str, str]:
        """The command that predicts with it, and a note on that."""
        return {"note": "What predicts with it:", "command": our_command("propose", "JOB", surrogate=str(self.out))}

    def _short_answer(self, written: bool) -> Iterator[list[str]]:
        """What was learned, errors by source, what would teach most, and the command that predicts with it."""
        first = [line for sentence in [*self.lesson, *self._replaced()] for line in narrow_lines(sentence)]
        left = [line for sentence in self.lessons_left for line in narrow_lines(sentence)]
        last = [*command_lines(self.next_command), "All errors: -v." + " A page: --report FILE." * (not written)]
        yield first
        columns = self.error_columns()
        room = max(1, LINES - len([*first, *left, *last]) - 5)  # beside heads and blank lines
        more = len(columns[0][1]) - room
        table = lay_out([
            TextColumn(head if head in ("source", "rows") else f"{head}\n%", cells[:room], left=head == "source")
            for head, cells in columns
        ])  # fmt: skip
        yield [*table, *[f"and {more} more sources, of smaller errors"] * (more > 0)]
        yield left
        yield last

    def _replaced(self) -> list[str]:
        """Sentences on the surrogate that was replaced."""
        if self.compared is None:
            return []
        if self.compared.empty:
            return [not_comparable(self.out, self.judged)]
        before, now = (self.compared[name].mean() for name in ("before", "now"))
        return [f"On the same held-out rows the surrogate before it erred by {before:.1%}, this one by {now:.1%}."]

    def _verdict(self) -> list[str]:
        """Lines on whether the surrogate helps, and how it compares with the one that was replaced."""
        mean = self._mean
        group_out = mean.get("group out", math.nan)
        errors = "unknown (too few runs or groups to judge by)" if math.isnan(group_out) else f"{group_out:.1%}"
        lines = [f"held-out groups: median error {errors}, physics alone {mean['physics']:.1%}"]
        if group_out > mean["physics"]:
            lines.append(_NO_HELP)
        if self.compared is not None and self.compared.empty:
            lines += ["", not_comparable(self.out, self.judged)]
        elif self.compared is not None:
            percent = dict.fromkeys(("before", "now"), "{:.1%}".format)
            shared = f"On the same held-out rows, the surrogate now in {self.out} (before) and this one (now):"
            lines += ["", *paragraphs([shared])]
            lines.append(self.compared.to_string(index=False, formatters=percent))
            before, now = (self.compared[name].mean() for name in percent)
            lines.append(f"mean of sources: before {before:.1%}, now {now:.1%}")
        if self.forgotten:
            lines.append(f"only the one now there was trained on {', '.join(self.forgotten)}")
        return [*lines, f"written to {self.out}"]


def _group_words(source: str, group: str) -> str:
    """A group of runs that were left out together, in words."""
    model, *sizes = group.split("|")
    words = zip(sizes, ("batch {}", "{} GPUs", "{} tokens"), strict=False)
    return f"{source}'s {model}" + f" ({', '.join(form.format(size) for size, form in words)})" * bool(sizes)


def _percents(sources: pd.DataFrame, names: Sequence[str]) -> list[list[str]]:
    """Those columns in percent beside the source, in as many tables as lines of a text need."""
    left = TextColumn("source", [str(name) for name in sources["source"]], left=True)
    tables = [[left]]
    for name in names:
        head = "\n".join(wrap(name.removesuffix(_COVERED), _HEAD, break_long_words=False))
        column = TextColumn(head, format_values((100.0 * float(value) for value in sources[name]), ".1f"))
        if table_width([*tables[-1], column]) > line_width(WIDTH) and len(tables[-1]) > 1:
            tables.append([left])
        tables[-1].append(column)
    return list(map(lay_out, tables))


def not_comparable(out: Path, judged: int) -> str:
    """A sentence on a surrogate in ``out`` that shares too few held-out rows with the new one, of ``judged`` rows."""
    few = (
        f"fewer than {LEAST_SHARED} of the held-out rows that one was judged on are among those of the other (other "
        "measurements, another physics, or a surrogate of an earlier version)"
    )
    none = "no row could be held out to judge the new one, for which runs of another source or group are needed"
    return f"The surrogate now in {out} and the new one are not comparable: {few if judged else none}."


@dataclass(frozen=True, repr=False)
class Calibrated(Result):
    """The calibration, and the query with predicted columns where there is one."""

    rows = "work"
    keys = (
        "gpu=calibration.gpu constants=calibration.constants plus_minus=calibration.plus_minus "
        "fitted_on=calibration.fitted_on fit_error_percent=calibration.fit_error_percent work=calibration.work "
        "measure_next=calibration.measure_next"
    )
    calibration: Calibration
    predictions: pd.DataFrame | None

    def blocks(self) -> Iterator[Block]:
        """Constants, fit, the clock of the least energy per piece of work, what to measure next, predictions."""
        import pandas as pd

        found, on = self.calibration, self.calibration.fitted_on
        # a share in percent as it was rounded, but for what rounding alone leaves of none
        shares = {name: f"{v:g}" if abs(v) >= 1e-3 else f"{v:.1f}" for name, v in found.fit_error_percent.items()}
        error = ", ".join(f"{name.replace('_', ' ')} {share} %" for name, share in shares.items())
        rows, them = ("row", "it") if on["rows"] == 1 else ("rows", "them")
        yield [f"{found.gpu}: {on['kind']}, {on['rows']:,} {rows}; mean error on {them}: {error}."]
        spread = {name: f" ± {value:.2g}" for name, value in found.plus_minus.items()}
        constants = [
            f"  {name:<14} {value:>8.4g}{spread.get(name, '')}"
            for name, value in asdict(found.constants).items()
            if value is not None
        ]
        if found.work:
            yield [constants]
            work, more = pd.DataFrame(found.work[:_MOST_WORK]).rename(columns=_WORK_HEADS), len(found.work) - _MOST_WORK
            known = work[[name for name in _WORK_HEADS.values() if name in work]].round(3)
            yield [_table(known, lambda _, value: f"{value:g}"), [f"and {more} more in the file"] * (more > 0)]
        last = [] if found.work else constants
        last += [f"To know more, measure {advice}." for advice in found.measure_next]
        if (predictions := self.predictions) is not None:
            reasons = predictions["not_predicted"].astype(str).value_counts()
            predicted = int(reasons.pop("")) if "" in reasons else 0
            last.append(f"{predicted:,} of {len(predictions):,} row{'s' * (len(predictions) != 1)} predicted.")
            if "assumed" in predictions and (several := int((predictions["assumed"].astype(str) != "").sum())):
                words = "of stages that no column tells apart: the mean of all, with an interval that holds them all"
                last.append(f"  {several:,} in no order, {words}. A column stage would say which.")
            last += [f"  {count:,} not: {reason}." for reason, count in reasons.head(5).items()]
        yield [last]
