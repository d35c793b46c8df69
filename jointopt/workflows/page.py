"""``report``: a proposal as one HTML file, its chosen plans taken apart pass by pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.jobs.calibration import Calibration
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.physics.site import with_site
from jointopt.report.page.choice import Reported
from jointopt.surrogate.files import holds_surrogate, load
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import from_files
from jointopt.workflows.pictured_plans import report_of
from jointopt.workflows.stored_plans import PROPOSAL, stored_proposal

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from jointopt.surrogate.measurements import Measurements


@from_files
def page(
    source: str, *, surrogate: str | None = None, studies: str | None = None,
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    storage: str | None = None, machine: Machine | None = None, pue: float | None = None,
) -> Reported:  # fmt: skip
    """The report of a stored proposal: a file or folder of ``propose --out``, or a study of ``studies`` by its name.

    Its plans are priced by the surrogate that it names, unless another is given; ``pue`` is that of the site in place
    of the job's; other options as in `JobModel.of`.
    Raises UsageError where nothing is proposed.
    """
    document = stored_proposal(source, studies)
    job = parse_job(document["job_file"], document["job"], Path()).on_site(pue)
    if pue is not None:
        document |= {"front": [billed(job, entry) for entry in document["front"]]}
        document |= {"reference": billed(job, document["reference"])} if document.get("reference") else {}
    named = surrogate or str(document["surrogate"])
    return report_of(document, JobModel.of(job, named, measured, calibration, storage, machine))


def surrogate_plot(source: str) -> go.Figure | None:
    """A plot of what moves the time and power that the surrogate in the folder ``source`` predicts; None where none is.

    As `retrain --plot` draws it, from the importance in the card. UsageError where no trees count.
    """
    folder = Path(source)
    if not folder.is_dir() or (folder / PROPOSAL).exists() or not holds_surrogate(folder):
        return None
    from jointopt.report.plot import importance_plot

    return importance_plot(load(folder).importance, folder)


def billed(job: Job, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of a document with what the site draws and pays for it, as the job states its site."""
    sides = [end for end in ("", "_low", "_high") if f"iteration_time_s{end}" in entry]
    names = [f"{name}{end}" for name in ("iteration_time_s", "energy_j", "avg_power_w") for end in sides]
    paid = with_site(job, {name: np.array([entry[name]], np.float64) for name in names})  # a null is NaN
    known = {name: float(values[0]) for name, values in paid.items() if name not in names}
    return dict(entry) | {name: value if math.isfinite(value) else None for name, value in known.items()}
