"""Stage clocks, and plans with them, in little room."""

from __future__ import annotations

from collections.abc import Sequence

from jointopt.core.schema import Columns
from jointopt.report.table import equal_runs, span
from jointopt.spec.plans.clocks import plain_number
from jointopt.spec.plans.parse import format_plan


def short_clocks(clocks_mhz: Sequence[float], width: int) -> str:
    """The clocks of one plan in at most ``width`` characters where they fit without loss.

    ``1410`` for one clock on all stages, ``1410×14,1200×2`` where the runs fit, else ``1200..1410``: the lowest and
    the highest of them.
    """
    whole = [round(clock) for clock in clocks_mhz]
    runs = equal_runs(whole)
    if len(runs) == 1:
        return str(whole[0])
    text = ",".join(f"{whole[run[0]]}×{len(run)}" if len(run) > 1 else str(whole[run[0]]) for run in runs)
    return text if len(text) <= width else span(str(min(whole)), str(max(whole)))


def short_plan(plans: Columns, row: int) -> str:
    """The plan of a row as `jointopt.spec.plans.parse.parse_plan` reads it, runs of equal clocks as ``1680x7,1755``."""
    layout = format_plan(plans, plans["stage_clock_mhz"], row).rsplit(" ", 1)[0]
    clocks = [plain_number(clock) for clock in plans["stage_clock_mhz"][row].tolist() if clock == clock]
    runs = equal_runs(clocks)
    words = [clocks[run[0]] + (f"x{len(run)}" if len(run) > 1 and len(runs) > 1 else "") for run in runs]
    return f"{layout} clock_mhz={','.join(words)}"
