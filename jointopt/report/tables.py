"""What all answers share: numbers with units, aligned tables, and the one text and the one JSON of a result."""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import reduce
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jointopt.core.facts import Assumption
from jointopt.core.quote import html_text, our_command
from jointopt.core.schema import Columns
from jointopt.core.short_repr import prompt_text
from jointopt.core.units import KWH
from jointopt.jobs.objectives import OBJECTIVE_COLUMNS
from jointopt.jobs.plans.text import PLAN_KEYS, plan_records
from jointopt.surrogate.memory import FEASIBLE

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 100  # of what goes to a file or a pipe, and the most of sentences
BRIEF_WIDTH = 80  # of a short answer
_NARROWEST = 60

Units = Sequence[tuple[float, str]]  # (size in the basic unit, name)
TIME_UNITS: Units = ((1e-3, "ms"), (1.0, "s"))
ENERGY_UNITS: Units = ((1.0, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ"))
MEMORY_UNITS: Units = ((1.0, "GiB"),)
MESSAGE_UNITS: Units = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
SITE_POWER_UNITS: Units = ((1e3, "kW"), (1e6, "MW"))
RUN_TIME_UNITS: Units = ((60.0, "min"), (3600.0, "h"), (86400.0, "days"))
RUN_ENERGY_UNITS: Units = ((KWH, "kWh"), (1e3 * KWH, "MWh"), (1e6 * KWH, "GWh"))
CARBON_UNITS: Units = ((1e-6, "mg"), (1e-3, "g"), (1.0, "kg"), (1e3, "t"))
COUNT_UNITS: Units = ((1.0, ""), (1e3, "thousand"), (1e6, "million"))
RESULT_UNITS: dict[str, tuple[str, Units]] = {  # of the result columns, with the short name of each
    "iteration_time_s": ("time", TIME_UNITS), "energy_j": ("energy", ENERGY_UNITS),
    "avg_power_w": ("power", ((1.0, "W/GPU"),)), "peak_memory_gib": ("memory", MEMORY_UNITS),
}  # fmt: skip
OBJECTIVE_UNITS = (
    {name: (one.word.replace("_", " "), ((1.0, one.unit),)) for name, one in OBJECTIVE_COLUMNS.items()}
    | RESULT_UNITS
    | {"peak_power_w": ("peak", ((1.0, "W/GPU"),)), "time_to_train_s": ("time to train", RUN_TIME_UNITS)}
    | {"useful_energy_j": ("useful energy", RUN_ENERGY_UNITS)}
)


@dataclass(frozen=True)
class FigureFormat:
    """How tables show one figure: its header, and the units of its cells, or their format where one unit suits all."""

    head: str
    units: Units = ()
    form: str = ""
    factor: float = 1.0  # of the cells in the unit that the header names


FIGURE_FORMATS = {  # by the name of the attribute or column, whose ending is the unit before the factor
    "iteration_time_s": FigureFormat("time", TIME_UNITS), "energy_j": FigureFormat("energy", ENERGY_UNITS),
    "avg_power_w": FigureFormat("power\nW/GPU", form=".0f"), "power_w": FigureFormat("power\nW/GPU", form=".0f"),
    "peak_power_w": FigureFormat("peak\nW/GPU", form=".0f"), "peak_memory_gib": FigureFormat("mem\nGiB", form=".1f"),
    "tokens_per_s": FigureFormat("tok/s", form=",.0f"),
    "tokens_per_s_per_gpu": FigureFormat("tok/s\n/GPU", form=",.0f"),
    "mfu": FigureFormat("MFU\n%", form=".1f", factor=100.0),
    "efficiency": FigureFormat("scaling\n%", form=".0f", factor=100.0),
    "cluster_power_kw": FigureFormat("site\nkW", form=",.0f"), "money": FigureFormat("cost", form=",.0f"),
    "run_time_s": FigureFormat("run", RUN_TIME_UNITS), "run_energy_j": FigureFormat("energy", RUN_ENERGY_UNITS),
    "time_to_train_s": FigureFormat("train", RUN_TIME_UNITS), "spares": FigureFormat("spare\nnodes", form=".0f"),
    "useful_energy_j": FigureFormat("in all", RUN_ENERGY_UNITS),
    "effective_time_ratio": FigureFormat("useful\n%", form=".2f", factor=100.0),
    "checkpoint_interval_s": FigureFormat("save\nevery", ((1.0, "s"), *RUN_TIME_UNITS)),
    "clock_mhz": FigureFormat("clock\nMHz", form=".0f"), "busy_s": FigureFormat("busy", TIME_UNITS),
    "idle_s": FigureFormat("idle", TIME_UNITS), "temperature_c": FigureFormat("hottest\n°C", form=".1f"),
}  # fmt: skip


@dataclass(frozen=True)
class TextColumn:
    """One column: header lines joined by a newline, one cell per row, numbers to the right."""

    header: str
    cells: Sequence[str]
    left: bool = False
    spare: bool = False  # left out where the table would be too wide with it
    brief: Sequence[str] = ()  # cells that take the place of these where it would be too wide even then

    @property
    def width(self) -> int:
        """Characters of the widest line."""
        return max(map(len, [*self.header.split("\n"), *self.cells]))


Block = Iterable[str | Sequence[str]]  # of a text: sentences, and lines that are laid out already, such as a table's


def known_columns(columns: Iterable[TextColumn]) -> list[TextColumn]:
    """The columns but those of dashes alone, of which nothing is known."""
    return [column for column in columns if set(column.cells) != {"-"}]


def fit_columns(columns: Sequence[TextColumn], width: int, gap: str = "  ") -> list[TextColumn]:
    """The columns that a table of ``width`` characters has room for: spare ones go as needed, left ones first.

    Where that is not enough, columns have their brief cells, if the table fits with these.
    """
    kept = list(columns)
    for column in columns:
        if column.spare and table_width(kept, gap) > width:
            kept.remove(column)
    brief = [replace(column, cells=column.brief, brief=()) if column.brief else column for column in kept]
    return brief if table_width(brief, gap) <= width < table_width(kept, gap) else kept


def lay_out(columns: Sequence[TextColumn], gap: str = "  ") -> list[str]:
    """The lines of the table, header first, without trailing blanks; every column has the same number of cells."""
    height = max(column.header.count("\n") for column in columns)
    blocks = []
    for column in columns:
        missing = "\n" * (height - column.header.count("\n"))
        cells = [*f"{column.header}{missing}".split("\n"), *column.cells]
        blocks.append([f"{cell:{'<' if column.left else '>'}{column.width}}" for cell in cells])
    return [gap.join(line).rstrip() for line in zip(*blocks, strict=True)]


def table_width(columns: Sequence[TextColumn], gap: str = "  ") -> int:
    """Characters of the widest line that `lay_out` may make."""
    return sum(column.width + len(gap) for column in columns) - len(gap)


def line_width(most: int = 240) -> int:
    """Characters of a line of a table, ``most`` and those of a terminal at most.

    Where the text goes elsewhere those that ``$COLUMNS`` states, else 100.
    """
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):  # no terminal, or no stdout at all
        stated = os.environ.get("COLUMNS", "")
        columns = int(stated) if stated.isdecimal() else WIDTH
    return min(most, max(columns, _NARROWEST)) if columns else WIDTH


def paragraphs(sentences: Iterable[str], indent: str = "  ", *, first: str = "", most: int = WIDTH) -> list[str]:
    """The lines of sentences, each from a new line that begins with ``first``, later ones indented by more.

    Of ``most`` characters at most; long words such as URLs stay whole.
    """
    wrapper = textwrap.TextWrapper(
        line_width(most), initial_indent=first, subsequent_indent=first + indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line for text in sentences for line in wrapper.wrap(text)]


def _decimals_for(scale: float) -> int:
    """Decimals that show ``scale`` with four significant digits, between 0 and 6."""
    return min(6, max(0, 3 - math.floor(math.log10(scale)))) if 0 < scale < math.inf else 0


def format_numbers(values: Sequence[float], scale: float) -> list[str]:
    """As `format_values`, with the decimals that ``scale`` needs, fewer where values would take over 7 characters."""
    whole_digits = max((len(f"{abs(value):.0f}") for value in values if math.isfinite(value)), default=1)
    return format_values(values, f".{max(0, min(_decimals_for(scale), 6 - whole_digits))}f")


def format_values(values: Iterable[float | None], form: str) -> list[str]:
    """The values in a format such as ``+.1f``, none as ``-0.0``; a dash for None and for what is not finite."""
    form = f"+z{form[1:]}" if form.startswith("+") else f"z{form}"
    return ["-" if v is None or not math.isfinite(v) else format(v, form) for v in values]


def percent_of(values: Iterable[float], reference: float, form: str) -> list[str]:
    """The percentages by which values lie above a reference, as `format_values`."""
    return format_values((100 * (value / reference - 1) for value in values), form)


def plus_minus(values: Sequence[str], half_widths: Sequence[float]) -> list[str]:
    """Values with half of an interval behind them, ``+14.2±5.1``, where it is known; the signs below one another."""
    halves = ["" if half != half else f"±{half:.{0 if half >= 9.95 else 1}f}" for half in half_widths]
    first, second = (max(map(len, words), default=0) for words in (values, halves))
    return [f"{value:>{first}}{half:<{second}}" for value, half in zip(values, halves, strict=True)]


def figure(value: float) -> str:
    """One number of a sentence: all of its whole digits, or four digits in all, without an exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:z.{_decimals_for(abs(value))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit_of(largest: float, units: Units) -> tuple[float, str]:
    """The largest (factor, unit) that keeps ``largest`` at 1 or more; the smallest unit where none does."""
    return max((unit for unit in units if largest >= unit[0]), default=min(units))


def least_positive(values: Iterable[float]) -> float:
    """The least value above 0; NaN where there is none."""
    return min((value for value in values if 0 < value < math.inf), default=math.nan)


def unit_column(head: str, values: Sequence[float], units: Units, at: float | None = None) -> TextColumn:
    """A column in the unit and with the decimals that suit ``at`` (default: the least value); the unit is a header."""
    at = least_positive(values) if at is None else at
    factor, unit = unit_of(at, units)
    cells = format_numbers([value / factor for value in values], at / factor)
    return TextColumn(f"{head}\n{unit}" if head else unit, cells)


def figure_column(name: str, rows: Iterable[Any], at: float | None = None, *, spare: bool = False) -> TextColumn:
    """The column of the figure of that name of each row, a mapping or an object; a dash where it is not known.

    ``at``: as in `unit_column`, of a figure in units.
    """
    how, found = FIGURE_FORMATS[name], [value_of(row, name) for row in rows]
    values = [math.nan if value is None else float(value) for value in found]
    if how.units:
        return replace(unit_column(how.head, values, how.units, at), spare=spare)
    return TextColumn(how.head, format_values((how.factor * value for value in values), how.form), spare=spare)


def quantity(value: float, units: Units) -> str:
    """One number with its unit, such as ``3.554 s``."""
    column = unit_column("", [value], units, value)
    return f"{column.cells[0]} {column.header}"


def result_text(name: str, value: float) -> str:
    """A figure of a result column with its unit."""
    return quantity(value, OBJECTIVE_UNITS[name][1])


def study_lines(name: str, storage: str, study: str | None = None) -> list[str]:
    """The name of a study, and the command that opens it, or the newest one of the storage."""
    return [f"Study: {name}", f"  {our_command('dashboard', storage=storage, study=study)}"]


def equal_runs(keys: Iterable[Hashable]) -> list[range]:
    """The positions of each run of equal neighbours."""
    ends = accumulate((len(list(run)) for _, run in groupby(keys)), initial=0)
    return [range(*bounds) for bounds in pairwise(ends)]


def range_text(low: object, high: object, dots: str = "..") -> str:
    """Two cells as one, ``1200..1410``; equal ones once."""
    return str(low) if low == high else f"{low}{dots}{high}"


# Results as JSON: plain Python values of numpy ones, and what the answers of all verbs share.


_NOISE = 1e-9  # of the total: what differences of sums leave


class Result(ABC):
    """The answer of a verb: the same content as a mapping, a table and a text."""

    keys: ClassVar[str] = ""  # of the JSON document, as in `pick`
    rows: ClassVar[str]  # key of the document under which the rows of the table stand

    def document(self) -> dict[str, Any]:
        """The keys of the JSON document in their order; values need not be plain."""
        return pick(self, self.keys)

    @abstractmethod
    def blocks(self, *_: Any, **options: Any) -> Iterable[Block]:
        """The answer for people: sentences and tables in blocks, between which a text has blank lines."""

    def text(self, **options: Any) -> str:
        """The answer as the command prints it.

        Parameters
        ----------
        **options
            As the command has them: ``brief`` and ``show_all`` of a proposal, for instance.

        Returns
        -------
        str
            Lines of at most 100 characters; 80 where ``brief``.
        """
        # the blocks as a text, a blank line between them: sentences are wrapped; blocks without a line are left out
        blocks, most = self.blocks(**options), BRIEF_WIDTH if options.get("brief") else WIDTH
        laid = ([line for part in block for line in (paragraphs([part], most=most) if isinstance(part, str) else part)]
                for block in blocks)  # fmt: skip
        return "\n\n".join("\n".join(lines) for lines in laid if lines)

    def refusal(self, *, allow_tight: bool = False) -> str:
        """Why nothing that was asked for is feasible, after which a command ends with 1; blank where something is.

        ``allow_tight``: what is not expected to fit in memory is an answer all the same.
        """
        return ""

    def to_dict(self) -> dict[str, Any]:
        """The document of ``--json``.

        Returns
        -------
        dict
            Plain lists, numbers, strings and None, units in the names of the keys.
        """
        return plain(self.document())  # type: ignore[no-any-return]

    def to_frame(self) -> pd.DataFrame:
        """The rows of the answer as a table.

        Returns
        -------
        DataFrame
            A column for each key, units in its name; parts of a cell are columns of their own.
        """
        return flat_frame(self.to_dict()[self.rows])

    def __repr__(self) -> str:
        """The text as the command prints it by default, for a prompt: ``brief`` where there is such, and what fits."""
        return prompt_text(self._default_text())

    def _repr_html_(self) -> str:
        """The answer as a notebook shows it."""
        return f"<pre>{html_text(self._default_text())}</pre>"

    def _default_text(self) -> str:
        has_brief = "brief" in inspect.signature(self.blocks).parameters
        return self.text(brief=True) if has_brief else self.text()

    def markdown(self) -> str:
        """The rows of the answer as a table in Markdown."""
        return markdown(self.to_frame())


def flat_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of a document as a table of numbers, text and blanks.

    A part of a cell is a column ``<cell>.<part>``; a list is text with ``;`` between its items, as tables have it, and
    a list of mappings a column of such text for each of their keys.
    """
    import pandas as pd

    return pd.DataFrame([_flat(row) for row in rows])


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row by the names of their columns."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            parts = [_flat(item) if isinstance(item, Mapping) else {"": item} for item in value]
            keys = dict.fromkeys(key for part in parts for key in part)
            value = {key: [part.get(key) for part in parts] for key in keys}
        if isinstance(value, Mapping):
            cells |= {f"{name}.{key}" if key else str(name): cell for key, cell in _flat(value).items()}
        else:
            cells[str(name)] = _joined(value) if isinstance(value, list | tuple) else value
    return cells


def _joined(items: Iterable[Any]) -> str | None:
    """A list as the text of one cell; None for an empty one."""
    nested = (_joined(item) if isinstance(item, list | tuple) else item for item in items)
    texts = ["" if item is None else f"{item:.15g}" if isinstance(item, float) else str(item) for item in nested]
    return ";".join(texts) if texts else None


def markdown(frame: pd.DataFrame) -> str:
    """A table as Markdown; columns of which nothing is known go, figures have five digits."""

    def cell(value: Any) -> str:
        if value is None or value != value:
            return ""
        if isinstance(value, float):
            return f"{value:.5g}" if abs(value) < 1e5 else f"{value:,.0f}"
        return str(value).replace("|", "\\|").replace("\n", " ")

    known = frame.dropna(axis=1, how="all")
    rows = [[*map(str, known.columns)], ["---"] * known.shape[1]]
    rows += [[cell(value) for value in row] for row in known.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def pick(item: object, keys: str) -> dict[str, Any]:
    """Attributes of ``item`` by the words of ``keys``: "key", or "key=path.of.attributes" where the names differ."""
    pairs = (word.partition("=") for word in keys.split())
    return {key: reduce(value_of, (path or key).split("."), item) for key, _, path in pairs}


def value_of(item: Any, name: str) -> Any:
    """The part of that name of a mapping (None where it has none) or of an object."""
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name)


def plain(value: Any) -> Any:
    """The value with arrays as lists, objects as mappings, assumptions as sentences, what is not finite as ``None``."""
    if value is None or isinstance(value, str | int | float):  # numbers of NumPy among them, but for those of 32 bits
        value = value.item() if isinstance(value, np.generic) else value
        return None if isinstance(value, float) and not math.isfinite(value) else value
    if hasattr(value, "document"):
        return plain(value.document())
    if isinstance(value, Assumption):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def json_text(document: Any) -> str:
    """One JSON document, indented; it holds no NaN, which JSON does not know."""
    return json.dumps(plain(document), indent=1, allow_nan=False, ensure_ascii=False)


def plan_entries(columns: Columns, index: Iterable[int] | None = None) -> list[dict[str, Any]]:
    """Each row (or those of ``index``) as a plain mapping: the plan as in `plan_records`, then every other column.

    Where it is known how probably plans fit in memory, ``feasible`` says whether that is enough.
    """
    rows = list(range(len(columns["pp"])) if index is None else index)
    results = {name: values for name, values in columns.items() if name not in PLAN_KEYS}
    if (fitting := columns.get("fit_probability")) is not None and "feasible" not in columns:
        results["feasible"] = ~(np.asarray(fitting, np.float64) < FEASIBLE)
    plans = plan_records(columns, columns["stage_clock_mhz"], rows) if rows else []
    return [
        plan | {name: plain(values[i]) for name, values in results.items()} for i, plan in zip(rows, plans, strict=True)
    ]


def known_figures(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row without its blanks."""
    return {str(name): value for name, value in row.items() if value == value}


def tidy_parts(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts with rounding noise moved to the largest part, and a negative ``leakage`` counted as ``static``."""
    tidy = dict(parts)
    if "static" in tidy and tidy.get("leakage", 0.0) < 0:
        tidy["static"] += tidy.pop("leakage")
    total = abs(sum(parts.values()))
    noise = {name: value for name, value in tidy.items() if 0 < abs(value) < _NOISE * total}
    if noise:
        tidy |= dict.fromkeys(noise, 0.0)
        tidy[max(tidy, key=lambda name: tidy[name])] += sum(noise.values())
    return tidy
