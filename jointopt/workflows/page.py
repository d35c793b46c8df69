"""``report``: a proposal as one HTML file, its chosen plans taken apart pass by pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jointopt.report.page.made import Reported, report_of
from jointopt.spec.calibration import Calibration
from jointopt.spec.jobfile import parse_job
from jointopt.spec.machine import Machine
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.stored_proposals import stored_proposal

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements


def page(
    source: str, *, surrogate: str | None = None, studies: str | None = None,
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    storage: str | None = None, machine: Machine | None = None,
) -> Reported:  # fmt: skip
    """The report of a stored proposal: a file or folder of ``propose --out``, or a study of ``studies`` by its name.

    Its plans are priced by the surrogate that it names, unless another is given; other options as in `JobModel.of`.
    Raises UsageError where nothing is proposed.
    """
    document = stored_proposal(source, studies)
    job = parse_job(document["job_file"], document["job"], Path())
    named = surrogate or str(document["surrogate"])
    return report_of(document, JobModel.of(job, named, measured, calibration, storage, machine))
