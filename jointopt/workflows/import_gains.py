"""The plans that `propose` finds beside the one that was imported, and their gains."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jointopt.core.units import Z_90
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.jobs.plans.text import format_plan
from jointopt.report.alternatives import published_plan_lines
from jointopt.report.explanation import Explanation
from jointopt.report.imported import Comparison, Gain, Imported, ProposedPlan
from jointopt.report.proposal import Proposal, rows_along_front
from jointopt.report.tables import plan_entries

if TYPE_CHECKING:
    import pandas as pd

PROPOSALS = 6  # beside today's plan


def with_proposals(imported: Imported, **options: Any) -> Imported:
    """The import with the plans that `propose` finds beside the one that runs, and what each is expected to gain.

    ``options`` as those of `propose`; the measured rows move its predictions.
    """
    from jointopt.workflows.explain import explain
    from jointopt.workflows.propose import propose

    if imported.runs:
        options["measured"] = _with(options.get("measured"), imported.frame())
    proposal = propose(imported.job, **options)
    basis = ("surrogate", "measured", "calibration", "storage", "machine")
    own = {key: value for key, value in options.items() if key in basis}
    today = explain(imported.job, imported.plan, **own)
    return dataclasses.replace(imported, comparison=comparison_of(proposal, today, imported.runs))


def _with(earlier: Any, rows: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    return rows if earlier is None else pd.concat([earlier.table, rows], ignore_index=True)


def comparison_of(proposal: Proposal, today: Explanation, rows: Sequence[Mapping[str, Any]]) -> Comparison:
    """The front of a proposal, thinned, beside a plan that was measured in ``rows`` (the first counts) or not."""
    known = {name: (getattr(today, name), *today.intervals[name]) for name in OBJECTIVES}
    row = next((row for row in rows if row["status"] == "ok"), {})
    known |= {name: (float(row[name]),) * 3 for name in OBJECTIVES if math.isfinite(row.get(name, math.nan))}
    front, proposed = proposal.front, []
    index = rows_along_front(front, PROPOSALS).tolist()
    for i, plan in zip(index, plan_entries(front, index), strict=True):
        gains = (gain_of(plan, known, name) for name in OBJECTIVES)
        proposed.append(ProposedPlan(plan, format_plan(front, front["stage_clock_mhz"], i), *gains))
    lines = tuple(published_plan_lines(proposal.beside, proposal.feasible_layouts))
    return Comparison(known, bool(row), tuple(today.violations), tuple(proposed), lines)


def gain_of(plan: Mapping[str, Any], today: Mapping[str, tuple[float, float, float]], name: str) -> Gain:
    """The gain of a plan from (value, low, high) of today's plan; a measured one has low equal to high.

    Where today's plan is predicted too, half of each interval's width (of the logarithm) is taken as common.
    """
    value, low, high = today[name]
    here = [plan[name], plan[f"{name}_low"], plan[f"{name}_high"]]
    if not all(isinstance(x, float | int) and x and math.isfinite(x) for x in (value, low, high, *here)):
        return Gain(math.nan, math.nan, math.nan)
    share = 1.0 if low == high else 0.5
    widths = (share * math.log(here[2] / here[1]), share * math.log(high / low))
    sd = math.hypot(*widths) / (2 * Z_90)
    ratio = here[0] / value
    return Gain(ratio - 1.0, ratio * math.exp(-Z_90 * sd) - 1.0, ratio * math.exp(Z_90 * sd) - 1.0)
