"""Plans for people: clocks in little room, a plan in one line, and the one table of plans."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, NEUTRAL, Columns, outside
from jointopt.report import table
from jointopt.report.table import TextColumn
from jointopt.spec.plans.clocks import plain_number, stage_clocks_to_text
from jointopt.spec.plans.parse import format_plan

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
TIGHT = 0.9  # a plan that fits less probably is marked
_SHORTEST_CLOCKS = 10  # "1200..1410"
_CLOCKS_IN_WORDS = 40
_HEADS = {name: name for name in LAYOUT_COLUMNS} | {
    "micro_batch_size": "mbs", "sequence_parallel": "sp", "recompute": "rc", "zero_stage": "ZeRO",
    "stage_clock_mhz": "clock",
} | {name: COLUMNS[name].short or name for name in NEUTRAL}  # fmt: skip
_NAMES = {"sequence_parallel": "sequence parallel", "zero_stage": "ZeRO"}
_VALUES: dict[str, dict[Any, tuple[str, str]]] = {  # column -> value -> (cell, word)
    "sequence_parallel": {False: ("-", "no"), True: ("y", "yes")},
    "recompute": {"none": ("-", "no"), "selective": ("sel", "selective"), "full": ("all", "full")},
}  # fmt: skip
_IN_TABLES = ("dp", "tp", "pp", "micro_batch_size")  # where all plans have the same value, too
_IN_WORDS = (*_IN_TABLES, "recompute", "zero_stage")


def short_clocks(clocks_mhz: Sequence[float], width: int) -> str:
    """The clocks of one plan in at most ``width`` characters where they fit without loss.

    ``1410`` for one clock on all stages, ``1410×14,1200×2`` where the runs fit, else ``1200..1410``: the lowest and
    the highest of them.
    """
    whole = [round(clock) for clock in clocks_mhz]
    runs = table.equal_runs(whole)
    if len(runs) == 1:
        return str(whole[0])
    text = ",".join(f"{whole[run[0]]}×{len(run)}" if len(run) > 1 else str(whole[run[0]]) for run in runs)
    return text if len(text) <= width else table.span(str(min(whole)), str(max(whole)))


def short_plan(plans: Columns, row: int) -> str:
    """The plan of a row as `jointopt.spec.plans.parse.parse_plan` reads it, runs of equal clocks as ``1680x7,1755``."""
    layout = format_plan(plans, plans["stage_clock_mhz"], row).rsplit(" ", 1)[0]
    clocks = [plain_number(clock) for clock in plans["stage_clock_mhz"][row].tolist() if clock == clock]
    runs = table.equal_runs(clocks)
    words = [clocks[run[0]] + (f"x{len(run)}" if len(run) > 1 and len(runs) > 1 else "") for run in runs]
    return f"{layout} clock_mhz={','.join(words)}"


def differing(plans: Iterable[Row]) -> frozenset[str]:
    """Plan columns in which ``plans`` (records) differ."""
    met: dict[str, set[str]] = {}
    for plan in plans:
        for name, value in plan.items():
            met.setdefault(name, set()).add(str(value))
    return frozenset(name for name, values in met.items() if len(values) > 1)


def is_neutral(name: str, value: Any) -> bool:
    """Whether a column of a plan is one that most plans do without, at the value that has no effect."""
    return name in NEUTRAL and value == COLUMNS[name].outside(NEUTRAL[name])


def plan_words(plan: Row, differing: Collection[str]) -> str:
    """A plan in one line: the columns that distinguish most plans, and those in which it is ``differing``."""
    shown = [name for name in _HEADS if name in _IN_WORDS or name in differing]
    return " ".join(f"{_HEADS[name]}={_word(plan[name])}" for name in shown)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "y" if value else "n"
    return f"{short_clocks(value, _CLOCKS_IN_WORDS)} MHz" if isinstance(value, list | tuple) else str(value)


def plan_table(plans: Sequence[Row], left: Sequence[TextColumn], right: Sequence[TextColumn]) -> list[str]:
    """Lines of a table of plans (records) between two groups of columns, no wider than the text.

    Layout columns in which all plans agree become a sentence above the table; clocks take the room that is left.
    """
    columns, equal = [*left], []
    for name in LAYOUT_COLUMNS:
        if all(is_neutral(name, plan[name]) for plan in plans):
            continue
        shown = [_VALUES.get(name, {}).get(plan[name], (str(plan[name]),) * 2) for plan in plans]
        if name in _IN_TABLES or len(plans) == 1 or len(set(shown)) > 1:
            columns.append(TextColumn(_HEADS[name], [cell for cell, _ in shown]))
        else:
            equal.append(f"{_NAMES.get(name, name)} {shown[0][1]}")
    room = max(_SHORTEST_CLOCKS, table.text_width() - table.table_width([*columns, *right]) - 1)
    clocks = TextColumn("clock\nMHz", [short_clocks(plan["stage_clock_mhz"], room) for plan in plans])
    sentence = f"All plans: {', '.join(equal)}." if equal else ""
    return [*table.paragraphs([sentence]), *table.lay_out([*columns, clocks, *right])]


def predicted_table(plans: Sequence[Row], marks: Sequence[str]) -> list[str]:
    """A table of plans with their predictions, each objective against the first plan, as far as known.

    ``?`` is added to the marks of plans outside of what the prediction was checked against, ``~`` to those that may
    not fit in memory.
    """
    unsure = ["?" * (plan.get("in_domain") is False) + "~" * is_tight(plan) for plan in plans]
    time, energy, power, memory = (
        [math.nan if plan[name] is None else float(plan[name]) for plan in plans]
        for name in ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
    )
    columns = [
        table.measured("time", time, table.TIME_UNITS),
        TextColumn("±\n%", table.fixed(map(_half_interval_percent, plans), ".0f")),
        table.measured("energy", energy, table.ENERGY_UNITS),
        TextColumn("power\nW/GPU", table.numbers(power, 1000.0)),
        TextColumn("mem\nGiB", table.fixed(memory, ".1f")),
        TextColumn("time\nΔ%", _against_first(time)),
        TextColumn("energy\nΔ%", _against_first(energy)),
    ]
    left = TextColumn("", list(map("".join, zip(marks, unsure, strict=True))), left=True)
    return plan_table(plans, [left], [column for column in columns if set(column.cells) != {"-"}])


def is_tight(plan: Row) -> bool:
    """Whether a predicted plan may well not fit in memory."""
    return float(plan.get("fit_probability", 1.0)) < TIGHT


def _half_interval_percent(plan: Row) -> float:
    low, high = (plan.get(f"iteration_time_s_{side}") for side in ("low", "high"))
    return math.nan if low is None or high is None else float(50 * (high - low) / plan["iteration_time_s"])


def _against_first(values: Sequence[float]) -> list[str]:
    first = values[0] if math.isfinite(values[0]) else math.nan
    others = table.fixed((100 * (v / first - 1) for v in values[1:]), "+.1f")
    return ["-" if math.isnan(first) else "0", *others]


def plan_frame(plans: Columns) -> pd.DataFrame:
    """Plans as a table with the columns of a measurement table: recompute by name, stage clocks as ``1410;1395``."""
    import pandas as pd

    columns = dict(plans)
    columns |= {name: outside(name, plans[name]) for name in LAYOUT_COLUMNS}
    columns["stage_clock_mhz"] = np.asarray(stage_clocks_to_text(plans["stage_clock_mhz"]))
    return pd.DataFrame({name: list(v) if v.ndim > 1 else v for name, v in columns.items()})
