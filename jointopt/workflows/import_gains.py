"""The plans that `propose` finds beside the one that was imported, and their gains."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jointopt.core.quote import sh_command
from jointopt.frameworks.exported import start_command
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.jobs.plans.text import format_plan
from jointopt.report.alternatives import published_plan_lines
from jointopt.report.imported import Comparison, Gain, Imported, ProposedPlan
from jointopt.report.plans import COMPARED, against_first
from jointopt.report.proposal import Proposal, rows_along_front
from jointopt.report.tables import plan_entries

if TYPE_CHECKING:
    import pandas as pd

PROPOSALS = 6  # beside today's plan


def with_proposals(imported: Imported, *, source: str = "", **options: Any) -> Imported:
    """The import with the plans that `propose` finds beside the one that runs, and what each is expected to gain.

    ``source``: the job file, as a shell names it. ``options`` as those of `propose`; the measured rows move its
    predictions.
    """
    from jointopt.workflows.propose import propose

    if imported.runs:
        options["measured"] = _with(options.get("measured"), imported.frame())
    proposal = propose(imported.job, baseline=imported.plan_text, **options)
    return dataclasses.replace(imported, comparison=comparison_of(proposal, imported.runs, source))


def _with(earlier: Any, rows: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    return rows if earlier is None else pd.concat([earlier.table, rows], ignore_index=True)


def comparison_of(proposal: Proposal, rows: Sequence[Mapping[str, Any]], source: str) -> Comparison:
    """The front of a proposal, thinned, beside its baseline, measured in ``rows`` (the first counts) or not."""
    (today,) = plan_entries(proposal.reference)
    known: dict[str, tuple[float, float, float]] = {}
    for name in OBJECTIVES:
        value, low, high = (today.get(f"{name}{end}") or math.nan for end in ("", "_low", "_high"))
        known[name] = (value, low, high)
    row = next((row for row in rows if row["status"] == "ok"), {})
    known |= {name: (float(row[name]),) * 3 for name in OBJECTIVES if math.isfinite(row.get(name, math.nan))}
    front, proposed = proposal.front, []
    index = rows_along_front(front, PROPOSALS).tolist()
    for i, plan in zip(index, plan_entries(front, index), strict=True):
        gains = (Gain(*(percent / 100.0 for percent in against_first(plan, name))) for name in COMPARED)
        proposed.append(ProposedPlan(plan, format_plan(front, front["stage_clock_mhz"], i), *gains))
    lines = tuple(published_plan_lines(proposal.beside, proposal.feasible_layouts))
    fastest = proposed[0]
    start = start_command(proposal.job, fastest.plan, source, sh_command(["--plan", fastest.text])) if source else None
    return Comparison(known, bool(row), tuple(proposal.reference_breaks), tuple(proposed), lines, start)
