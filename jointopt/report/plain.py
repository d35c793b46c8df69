"""Numpy in, plain Python out: what `json` and `yaml` can write and every other language can read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jointopt.plans.clocks import plain_number
from jointopt.schema import LAYOUT_COLUMNS, RECOMPUTE_NAMES, Columns

_PLAN = (*LAYOUT_COLUMNS, "stage_clock_mhz", "power_limit_w")


def plain(value: Any) -> Any:
    """The value with arrays as lists, numpy numbers as numbers, and what is not a finite number as ``None``."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(document: Mapping[str, Any]) -> str:
    """One JSON document, indented; it holds no NaN, which JSON does not know."""
    return json.dumps(plain(document), indent=1, allow_nan=False, ensure_ascii=False)


def length(columns: Columns) -> int:
    """Number of rows; 0 for an empty mapping."""
    return len(next(iter(columns.values()))) if columns else 0


def plan_entries(columns: Columns) -> Iterator[dict[str, Any]]:
    """Each row as a plain mapping: recompute by name, clocks as a list without the blanks beyond pp."""
    for i in range(length(columns)):
        row = {name: plain(values[i]) for name, values in columns.items()}
        yield {**_plan(row), **{name: value for name, value in row.items() if name not in _PLAN}}


def _plan(row: Mapping[str, Any]) -> dict[str, Any]:
    plan = {name: row[name] for name in LAYOUT_COLUMNS}
    plan["sequence_parallel"] = bool(row["sequence_parallel"])
    plan["recompute"] = recompute_name(row["recompute"])
    plan["stage_clock_mhz"] = [json.loads(plain_number(c)) for c in row["stage_clock_mhz"] if c is not None]
    if row.get("power_limit_w") is not None:
        plan["power_limit_w"] = row["power_limit_w"]
    return plan


def recompute_name(code: int | str) -> str:
    """The name of a recompute code; a name stays what it is."""
    return code if isinstance(code, str) else RECOMPUTE_NAMES[code]
