"""The plans that `propose` finds beside the one that was imported, and their gains."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jointopt.report.imported import Comparison, Imported

if TYPE_CHECKING:
    import pandas as pd


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
    return dataclasses.replace(imported, comparison=Comparison.of(proposal, today, imported.runs))


def _with(earlier: Any, rows: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    return rows if earlier is None else pd.concat([earlier.table, rows], ignore_index=True)
