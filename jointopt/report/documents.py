"""Results as JSON: plain Python values of numpy ones, and what the answers of all verbs share.

The keys of a document are a contract: add, do not rename. Numbers are in seconds, joules, watts, GiB and MHz.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jointopt.core.facts import Assumption
from jointopt.core.quote import html_text
from jointopt.core.schema import Columns
from jointopt.jobs.plans.text import PLAN_KEYS, plan_records
from jointopt.surrogate.memory import FEASIBLE

if TYPE_CHECKING:
    import pandas as pd

_NOISE = 1e-9  # of the total: what differences of sums leave


class Result(ABC):
    """The answer of a verb: the same content as a mapping, a table and a text."""

    keys: ClassVar[str] = ""  # of the JSON document, as in `pick`
    rows: ClassVar[str]  # key of the document under which the rows of the table stand

    def document(self) -> dict[str, Any]:
        """The keys of the JSON document in their order; values need not be plain."""
        return pick(self, self.keys)

    @abstractmethod
    def text(self) -> str:
        """The answer for people, lines of at most 100 characters."""

    def refusal(self, *, allow_tight: bool = False) -> str:
        """Why nothing that was asked for is feasible, after which a command ends with 1; blank where something is.

        ``allow_tight``: what is not expected to fit in memory is an answer all the same.
        """
        return ""

    def to_dict(self) -> dict[str, Any]:
        """The document of ``--json``: plain lists, numbers, strings and None."""
        return plain(self.document())  # type: ignore[no-any-return]

    def to_frame(self) -> pd.DataFrame:
        """The rows of the answer as a pandas table, as `flat_frame` has them."""
        return flat_frame(self.to_dict()[self.rows])

    def _repr_html_(self) -> str:
        """The answer as a notebook shows it."""
        return f"<pre>{html_text(self.text())}</pre>"

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
            value = {key: [part.get(key) for part in parts] for key in dict.fromkeys(key for p in parts for key in p)}
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
    known = frame.dropna(axis=1, how="all")
    rows = [[_cell(value) for value in row] for row in known.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*map(str, known.columns)], ["---"] * known.shape[1], *rows))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.5g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def pick(item: object, keys: str) -> dict[str, Any]:
    """Attributes of ``item`` by the words of ``keys``: "key", or "key=path.of.attributes" where the names differ."""
    pairs = (word.partition("=") for word in keys.split())
    return {key: reduce(_part, (path or key).split("."), item) for key, _, path in pairs}


def _part(item: Any, name: str) -> Any:
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
