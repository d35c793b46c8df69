"""The one table of plans: a line per plan, columns that differ, and a sentence above for those that do not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, RECOMPUTE_NAMES, Columns
from jointopt.report import table
from jointopt.report.clocks import short_clocks
from jointopt.report.table import TextColumn
from jointopt.spec.plans.clocks import stage_clocks_to_text

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
_SHORTEST_CLOCKS = 10  # "1200..1410"
_TRUTH = {False: ("-", "no"), True: ("y", "yes")}


@dataclass(frozen=True)
class PlanColumn:
    """A column of the plan as it is shown: its head in a table, its name in a sentence, and special values."""

    head: str
    word: str
    always: bool = False  # where all plans have the same value, too
    values: Mapping[Any, tuple[str, str]] | None = None  # value -> (cell, word)

    def cell(self, value: Any) -> str:
        return str(value) if self.values is None else self.values[value][0]

    def say(self, value: Any) -> str:
        return f"{self.word} {value if self.values is None else self.values[value][1]}"


_SHOWN = {
    "dp": PlanColumn("dp", "dp", True),
    "tp": PlanColumn("tp", "tp", True),
    "pp": PlanColumn("pp", "pp", True),
    "micro_batch_size": PlanColumn("mbs", "micro-batch", True),
    "sequence_parallel": PlanColumn("sp", "sequence parallel", values=_TRUTH),
    "recompute": PlanColumn(
        "rc", "recompute", values={"none": ("-", "no"), "selective": ("sel", "selective"), "full": ("all", "full")}
    ),
    "zero_stage": PlanColumn("ZeRO", "ZeRO"),
}  # fmt: skip
PLAN_COLUMNS = {name: _SHOWN.get(name, PlanColumn(name, name)) for name in LAYOUT_COLUMNS}


def plan_table(plans: Sequence[Row], left: Sequence[TextColumn], right: Sequence[TextColumn]) -> list[str]:
    """Lines of a table of plans (records) between two groups of columns, no wider than the text.

    Layout columns in which all plans agree become a sentence above the table; clocks take the room that is left.
    """
    differ = {name for name in PLAN_COLUMNS if len(plans) == 1 or len({plan[name] for plan in plans}) > 1}
    shown = [name for name, column in PLAN_COLUMNS.items() if column.always or name in differ]
    equal = [column.say(plans[0][name]) for name, column in PLAN_COLUMNS.items() if name not in shown]
    columns = [
        *left, *(TextColumn(PLAN_COLUMNS[n].head, [PLAN_COLUMNS[n].cell(p[n]) for p in plans]) for n in shown)
    ]  # fmt: skip
    room = max(_SHORTEST_CLOCKS, table.text_width() - table.table_width([*columns, *right]) - 1)
    clocks = TextColumn("clock\nMHz", [short_clocks(plan["stage_clock_mhz"], room) for plan in plans])
    return [
        *(table.wrapped(f"All plans: {', '.join(equal)}.") if equal else []),
        *table.lay_out([*columns, clocks, *right]),
    ]


def predicted_table(plans: Sequence[Row], marks: Sequence[str]) -> list[str]:
    """A table of plans with their predictions, each objective against the first plan, as far as known.

    ``?`` is added to the marks of plans outside of what the prediction was checked against.
    """
    marks = [
        mark + ("?" if plan.get("in_domain") is False else "")
        for mark, plan in zip(marks, plans, strict=True)
    ]
    time, energy, power, memory = (
        known(plans, name) for name in ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
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
    return plan_table(
        plans,
        [TextColumn("", marks, left=True)],
        [column for column in columns if set(column.cells) != {"-"}],
    )


def known(plans: Sequence[Row], name: str) -> list[float]:
    """A column of numbers, NaN where no real run measured it."""
    return [math.nan if plan[name] is None else float(plan[name]) for plan in plans]


def _half_interval_percent(plan: Row) -> float:
    low, high = plan.get("iteration_time_s_low"), plan.get("iteration_time_s_high")
    return math.nan if low is None or high is None else float(50 * (high - low) / plan["iteration_time_s"])


def _against_first(values: Sequence[float]) -> list[str]:
    first = values[0] if math.isfinite(values[0]) else math.nan
    return [
        "-" if math.isnan(first) else "0",
        *table.fixed((100 * (v / first - 1) for v in values[1:]), "+.1f"),
    ]


def plan_frame(plans: Columns) -> pd.DataFrame:
    """Plans as a table with the columns of a measurement table: recompute by name, stage clocks as ``1410;1395``."""
    import pandas as pd

    columns = dict(plans)
    columns["recompute"] = np.asarray(RECOMPUTE_NAMES)[plans["recompute"]]
    columns["stage_clock_mhz"] = np.asarray(stage_clocks_to_text(plans["stage_clock_mhz"]))
    return pd.DataFrame({name: list(v) if v.ndim > 1 else v for name, v in columns.items()})
