"""Stage clocks, and plans with them, in little room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from jointopt.core.schema import Columns
from jointopt.spec.plans.clocks import plain_number
from jointopt.spec.plans.parse import format_plan


def short_clocks(clocks_mhz: Sequence[float], width: int) -> str:
    """The clocks of one plan in at most ``width`` characters where that can be done without a lie.

    ``1410`` for one clock on all stages, ``1410×14,1200×2`` where the runs fit, else ``1200..1410``: the lowest and
    the highest of them.
    """
    whole = [round(clock) for clock in clocks_mhz]
    runs = [(clock, len(list(run))) for clock, run in groupby(whole)]
    if len(runs) == 1:
        return str(runs[0][0])
    text = ",".join(f"{clock}×{count}" if count > 1 else str(clock) for clock, count in runs)
    return text if len(text) <= width else f"{min(whole)}..{max(whole)}"


def short_plan(plans: Columns, row: int) -> str:
    """The plan of a row as `jointopt.spec.plans.parse.parse_plan` reads it, runs of equal clocks as ``1680x7,1755``."""
    layout = format_plan(plans, plans["stage_clock_mhz"], row).rsplit(" ", 1)[0]
    clocks = [clock for clock in plans["stage_clock_mhz"][row].tolist() if clock == clock]
    runs = [(plain_number(clock), len(list(run))) for clock, run in groupby(clocks)]
    words = [f"{clock}x{count}" if count > 1 and len(runs) > 1 else clock for clock, count in runs]
    return f"{layout} clock_mhz={','.join(words)}"
