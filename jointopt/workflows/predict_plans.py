"""``jointopt.predict``: plans of a job, or the rows of a table, with what is predicted of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import LAYOUT_COLUMNS, decode_cells
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import check_plan, violations
from jointopt.jobs.plans.text import parse_plan, plan_records, stage_clocks_to_text, widened
from jointopt.physics.throughput import throughput
from jointopt.search.pareto import concat
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import FEASIBLE
from jointopt.workflows.answers import check_priceable, from_files, listed, with_limits
from jointopt.workflows.predict import as_predicted
from jointopt.workflows.predict import predict as predict_table

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements

Plan = str | Mapping[str, Any]


def predict(
    job_or_table: Job | pd.DataFrame | str | Path, plans: Plan | Sequence[Plan] | None = None, *,
    surrogate: str = "default", measured: pd.DataFrame | Measurements | None = None,
    calibration: Calibration | None = None, storage: str | None = None, machine: Machine | None = None,
    pue: float | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A table of measurements, or ``plans`` of a job one a row, with predicted columns (`predict_table`, `of_plans`).

    Of a job give plans as text or mappings, of a table none. A path is read: a table where it ends in .csv or .csv.gz,
    else a job file. Other options are those of `jointopt.propose`, and ``pue`` of a site, whose energy is predicted
    too. Raises UsageError where plans are missing or too many, and as these do.
    """
    name = str(job_or_table) if isinstance(job_or_table, str | Path) else ""
    options: dict[str, Any] = {
        "surrogate": surrogate, "measured": measured, "calibration": calibration, "storage": storage,
        "machine": machine, "pue": pue,
    }  # fmt: skip
    if name.endswith((".csv", ".csv.gz")) or type(job_or_table).__name__ == "DataFrame":
        if plans is not None:
            raise UsageError("A table has its plans in its rows; give plans with a job alone, and surrogate by name.")
        return from_files(predict_table)(job_or_table, **options)  # type: ignore[arg-type]
    if plans is None:
        raise UsageError("Plans are missing: jointopt.predict(job, plans), or jointopt.predict(table).")
    return of_plans(job_or_table, listed(plans), **options)  # type: ignore[arg-type]


@from_files
def of_plans(
    job: Job, plans: Sequence[Plan], *, surrogate: str = "default", measured: pd.DataFrame | Measurements | None = None,
    calibration: Calibration | None = None, storage: str | None = None, machine: Machine | None = None,
    pue: float | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Plans of a job (n rows) as columns of a table, with the predicted columns of `predict_table`.

    Raises PlanError for one that cannot be read or priced, UsageError for no plan.
    """
    import pandas as pd

    if not plans:
        raise UsageError("There is no plan to predict; expected at least one, such as 'tp=2 pp=1'.")
    model = JobModel.of(job.on_site(pue), surrogate, measured, calibration, storage, machine)
    parsed = [parse_plan(plan, model.job) for plan in plans]
    for one in parsed:
        record = plan_records(one.layouts, one.stage_clock_mhz, [0])[0]
        check_priceable(model.job, record, check_plan(model.job, record))
    layouts = concat(with_limits([one.layouts for one in parsed], model.job))
    deepest = max(one.stage_clock_mhz.shape[1] for one in parsed)
    clocks = np.concatenate([widened(one.stage_clock_mhz, deepest) for one in parsed])
    columns = model.predict(layouts | {"stage_clock_mhz": clocks})
    layouts = {name: columns[name] for name in LAYOUT_COLUMNS}
    cells: dict[str, Any] = {name: decode_cells(name, values) for name, values in layouts.items()}
    cells["stage_clock_mhz"] = stage_clocks_to_text(clocks)
    cells |= as_predicted(model.job, columns, RESULTS)
    cells |= {name: columns[name] for name in ("fit_probability", "in_domain", "doubts")}
    cells |= throughput(model.job, layouts, columns["iteration_time_s"], columns["energy_j"])
    fits = columns["fit_probability"] >= FEASIBLE
    found = pd.DataFrame(cells | {"predicted_fits": fits, "violations": violations(model.job, layouts)})
    return found.assign(assumed=[" ".join(one.assumed) for one in parsed])
