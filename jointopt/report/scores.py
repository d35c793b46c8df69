"""The answers of ``evaluate``, ``retrain`` and ``calibrate``: how far predictions are off, before and after a fit."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from jointopt.jobs.calibration import Calibration
from jointopt.report.tables import (
    Result,
    TextColumn,
    blocks_text,
    fixed,
    known_figures,
    lay_out,
    paragraphs,
    pick,
    table_width,
    text_width,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

LEAST_SHARED = 10  # held-out rows that two surrogates must share to be compared
_MOST_WORK = 12
_HEAD = 10  # characters of a line of a table's head
_WORK_HEADS = {  # of the columns of the work that was measured; savings are in percent of the energy
    "work": "work", "clock_sensitive_share": "clock-sensitive", "least_energy_clock_mhz": "least energy at MHz",
    "least_energy_saving_percent": "saved %",
} | {f"saving_percent_at_{n}_percent_slowdown": f"{n} % slower" for n in (1, 5, 10)}  # fmt: skip


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [known_figures(row) for row in frame.to_dict("records")]


def _table(frame: pd.DataFrame) -> str:
    return frame.round(3).to_string(index=False, na_rep="")


def _scored(frame: pd.DataFrame) -> str:
    """The table with shares in percent, the bias with its sign, without figures of which none is known."""
    frame = frame.dropna(axis=1, how="all")
    shown = {name: functools.partial(_score, name) for name in _PERCENT}
    return frame.to_string(index=False, na_rep="", formatters=shown, float_format=lambda value: f"{value:.3f}")


def _score(name: str, value: float) -> str:
    """A figure as tables and sentences show it; blank where it is not known."""
    if value != value:
        return ""
    return format(value, _PERCENT.get(name, "," if isinstance(value, int) else "z.3f"))


def _words(name: str, value: float) -> str:
    """A figure with its name, as a sentence has them."""
    kelvin = name.endswith("_k")
    return f"{name.removesuffix('_k').replace('_', ' ')} {_score(name, value)}{' K' * kelvin}"


_PERCENT = {"bias": "+z.1%", "top1_regret": ".1%", "covered": ".0%", "oom_recall": ".0%", "oom_precision": ".0%"} | {
    f"{of}_error": ".1%" for of in ("median", "mean", "power", "energy", "memory", "peak_power")
}

_LEGEND = "Errors are of iteration time; bias: + is slower than measured; covered: within the 90 % interval."


@dataclass(frozen=True)
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
        found: dict[str, Any] = {"groups": _rows(self.groups), "overall": known_figures(self.overall)}
        found |= {"learned_rows": self.learned_rows}
        return found | ({} if self.summary is None else {"summary": _rows(self.summary)})

    def text(self, *, groups: bool = True) -> str:
        """The groups as a table (or the summary by source and GPU), then the figures over all rows."""
        words = (_words(name, value) for name, value in known_figures(self.overall).items())
        lines = [*paragraphs([f"Overall: {', '.join(words)}."]), *self._fit_lines()]
        if groups or self.summary is None:
            return "\n".join([_scored(self.groups), "", *lines])
        many = f"{len(self.groups):,} groups: --groups prints each. " if len(self.groups) > 1 else ""
        return "\n".join([_scored(self.summary), "", f"{many}{_LEGEND}", *lines])

    def _fit_lines(self) -> list[str]:
        """A sentence on rows that predictions learned from; none where there is none, or it is not known."""
        if not self.learned_rows:
            return []
        of = f"{self.learned_rows:,} of {self.overall['rows']:,} rows are among those that predictions learned from"
        return paragraphs([f"{of}: these are training errors, not errors of prediction."])


@dataclass(frozen=True)
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

    def plot(self) -> go.Figure:
        """Importance of the trees' features as a Plotly figure; UsageError where no trees count."""
        from jointopt.report.plot import importance_plot

        return importance_plot(self.importance, self.out)

    def document(self) -> dict[str, Any]:
        """The errors per source, and the comparison with the surrogate that was replaced."""
        compared = None if self.compared is None else self.compared.to_dict("records")
        found = {"out": str(self.out), "sources": _rows(self.sources), "compared": compared}
        return found | pick(self, "forgotten remarks")

    def text(self) -> str:
        """Remarks, errors by source, and the comparison with the surrogate that was replaced."""
        mean = self.sources.set_index("source").round(4).to_dict("index")["mean"]
        group_out = mean.get("group out", math.nan)
        errors = "unknown (too few runs or groups to judge by)" if math.isnan(group_out) else f"{group_out:.1%}"
        remarks = (line for remark in self.remarks for line in remark.split("\n"))
        lines = [*paragraphs(remarks, "    "), "", *_held_out_lines(self.sources), ""]
        lines.append(f"held-out groups: median error {errors}, physics alone {mean['physics']:.1%}")
        if group_out > mean["physics"]:
            lines.append("On groups left out these runs do not help: compare plans of others with --surrogate none.")
        if self.compared is not None and self.compared.empty:
            lines += ["", not_comparable(self.out, self.judged)]
        elif self.compared is not None:
            percent = dict.fromkeys(("before", "now"), "{:.1%}".format)
            lines += ["", f"On the same held-out rows, the surrogate now in {self.out} (before) and this one (now):"]
            lines.append(self.compared.to_string(index=False, formatters=percent))
            before, now = (self.compared[name].mean() for name in percent)
            lines.append(f"mean of sources: before {before:.1%}, now {now:.1%}")
        if self.forgotten:
            lines.append(f"only the one now there was trained on {', '.join(self.forgotten)}")
        return "\n".join([*lines, f"written to {self.out}"])


_COVERED = " covered"  # the end of a column's name: the share of runs within their intervals


def _held_out_lines(sources: pd.DataFrame) -> list[str]:
    """Median errors of each source, and how many runs its intervals held, in tables of a line of text's width."""
    names = [str(name) for name in sources.columns if name != "source"]
    errors = [name for name in names if not name.endswith(_COVERED)]
    held = [name for name in names if name.endswith(_COVERED)]
    lines = ["Median error of time in %, by what was left out:", *_percents(sources, errors)]
    return (
        [*lines, "", "Held-out runs within their 90 % intervals, in %:", *_percents(sources, held)] if held else lines
    )


def _percents(sources: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Those columns in percent beside the source, in as many tables as lines of a text need."""
    left = TextColumn("source", [str(name) for name in sources["source"]], left=True)
    tables = [[left]]
    for name in names:
        head = "\n".join(wrap(name.removesuffix(_COVERED), _HEAD, break_long_words=False))
        column = TextColumn(head, fixed((100.0 * float(value) for value in sources[name]), ".1f"))
        if table_width([*tables[-1], column]) > text_width() and len(tables[-1]) > 1:
            tables.append([left])
        tables[-1].append(column)
    return blocks_text(*map(lay_out, tables)).split("\n")


def not_comparable(out: Path, judged: int) -> str:
    """A sentence on a surrogate in ``out`` that shares too few held-out rows with the new one, of ``judged`` rows."""
    few = (
        f"fewer than {LEAST_SHARED} of the held-out rows that one was judged on are among those of the other (other "
        "measurements, another physics, or a surrogate of an earlier version)"
    )
    none = "no row could be held out to judge the new one, for which runs of another source or group are needed"
    return f"The surrogate now in {out} and the new one are not comparable: {few if judged else none}."


@dataclass(frozen=True)
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

    def text(self) -> str:
        """Constants, fit, the clock of the least energy per piece of work, what to measure next, predictions."""
        import pandas as pd

        found, on = self.calibration, self.calibration.fitted_on
        error = ", ".join(f"{n.replace('_', ' ')} {_share(v)} %" for n, v in found.fit_error_percent.items())
        rows, them = ("row", "it") if on["rows"] == 1 else ("rows", "them")
        lines = [f"{found.gpu}: {on['kind']}, {on['rows']:,} {rows}; mean error on {them}: {error}.", ""]
        for name, value in asdict(found.constants).items():
            if value is not None:
                spread = f" ± {found.plus_minus[name]:.2g}" if name in found.plus_minus else ""
                lines.append(f"  {name:<14} {value:>8.4g}{spread}")
        if found.work:
            work = pd.DataFrame(found.work[:_MOST_WORK]).rename(columns=_WORK_HEADS)
            lines += ["", _table(work[[name for name in _WORK_HEADS.values() if name in work]])]
            more = len(found.work) - _MOST_WORK
            lines += [f"and {more} more in the file", ""] if more > 0 else [""]
        lines += [f"To know more, measure {advice}." for advice in found.measure_next]
        return "\n".join([*lines, *([] if self.predictions is None else _prediction_lines(self.predictions))])


def _share(percent: float) -> str:
    """A share in percent as it was rounded, but for what rounding alone leaves of none."""
    return f"{percent:g}" if abs(percent) >= 1e-3 else f"{percent:.1f}"


def _prediction_lines(predictions: pd.DataFrame) -> list[str]:
    reasons = predictions["not_predicted"].astype(str).value_counts()
    predicted = int(reasons.pop("")) if "" in reasons else 0
    lines = [f"{predicted:,} of {len(predictions):,} row{'s' * (len(predictions) != 1)} predicted."]
    if "assumed" in predictions and (several := int((predictions["assumed"].astype(str) != "").sum())):
        words = "of stages that no column tells apart: the mean of all, with an interval that holds them all"
        lines.append(f"  {several:,} in no order, {words}. A column stage would say which.")
    return lines + [f"  {count:,} not: {reason}." for reason, count in reasons.head(5).items()]
