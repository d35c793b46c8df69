"""Plain Python values of numpy ones, for JSON and YAML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jointopt.core.schema import Columns
from jointopt.spec.plans.parse import PLAN_KEYS, plan_records


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


def json_text(document: Any) -> str:
    """One JSON document, indented; it holds no NaN, which JSON does not know."""
    return json.dumps(plain(document), indent=1, allow_nan=False, ensure_ascii=False)


def plan_entries(columns: Columns, index: Iterable[int] | None = None) -> list[dict[str, Any]]:
    """Each row (or those of ``index``) as a plain mapping: the plan as in `plan_records`, then every other column."""
    rows = list(range(len(columns["pp"])) if index is None else index)
    results = {name: values for name, values in columns.items() if name not in PLAN_KEYS}
    plans = plan_records(columns, columns["stage_clock_mhz"], rows) if rows else []
    return [
        plan | {name: plain(values[i]) for name, values in results.items()}
        for i, plan in zip(rows, plans, strict=True)
    ]
