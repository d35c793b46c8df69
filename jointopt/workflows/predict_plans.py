"""``jointopt.predict``: plans of a job, or the rows of a table, with what is predicted of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import LAYOUT_COLUMNS, decode_cells
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import check_plan, violations
from jointopt.jobs.plans.text import parse_plan, stage_clocks_to_text, widened
from jointopt.physics.throughput import throughput
from jointopt.search.pareto import concat
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.memory import FEASIBLE
from jointopt.workflows.answers import accepts_paths, as_list, check_priceable, model_of, with_power_limits
from jointopt.workflows.predict import predict as predict_table
from jointopt.workflows.predict import predicted_columns

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.workflows.answers import CalibrationLike, MachineLike, TableLike

Plan = str | Mapping[str, Any]


def predict(
    job_or_table: Job | pd.DataFrame | str | Path, plans: Plan | Sequence[Plan] | None = None, *,
    surrogate: str = "default", measured: TableLike | None = None,
    calibration: CalibrationLike | None = None, storage: str | None = None, machine: MachineLike | None = None,
    pue: float | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A table of measurements, or ``plans`` of a job one a row, with predicted columns.

    Parameters
    ----------
    job_or_table : Job, DataFrame or path
        A path is read: a table where it ends in .csv or .csv.gz, else a job file.
    plans : str, mapping, or sequence of these, optional
        Plans of a job, as words or fields; none with a table, whose rows have theirs.
    surrogate : str, optional
        Name of a shipped surrogate, folder that `retrain` wrote, or "none" for physics alone.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database whose measured runs correct the predictions too; none by default.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.
    pue : float, optional
        Power usage effectiveness of the site, whose energy is predicted too.

    Returns
    -------
    DataFrame
        The rows with ``predicted_iteration_time_s`` (s), ``predicted_energy_j`` (J, all GPUs),
        ``predicted_avg_power_w`` (W per GPU) and ``predicted_peak_memory_gib`` (GiB, worst GPU), each with ``_low`` and
        ``_high`` (90 % interval).

    Raises
    ------
    UsageError
        Where plans are missing or too many, and for a table or a job that cannot be read.

    Examples
    --------
    >>> found = jointopt.predict("opt-350m-2x4-a100", ["tp=2", "tp=4"], surrogate="none")
    >>> [name for name in found if name.startswith("predicted_avg")]
    ['predicted_avg_power_w', 'predicted_avg_power_w_low', 'predicted_avg_power_w_high']
    """
    name = str(job_or_table) if isinstance(job_or_table, str | Path) else ""
    options: dict[str, Any] = {
        "surrogate": surrogate, "measured": measured, "calibration": calibration, "storage": storage,
        "machine": machine, "pue": pue,
    }  # fmt: skip
    if name.endswith((".csv", ".csv.gz")) or type(job_or_table).__name__ == "DataFrame":
        if plans is not None:
            raise UsageError("A table has its plans in its rows; give plans with a job alone, and surrogate by name.")
        return accepts_paths(predict_table)(job_or_table, **options)  # type: ignore[arg-type]
    if plans is None:
        raise UsageError("Plans are missing: jointopt.predict(job, plans), or jointopt.predict(table).")
    return predict_plans_of_job(job_or_table, as_list(plans), **options)  # type: ignore[arg-type]


@accepts_paths
def predict_plans_of_job(
    job: Job, plans: Sequence[Plan], *, surrogate: str = "default", measured: TableLike | None = None,
    calibration: CalibrationLike | None = None, storage: str | None = None, machine: MachineLike | None = None,
    pue: float | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Plans of a job (n rows) as columns of a table, with the predicted columns of `predict_table`.

    Raises PlanError for one that cannot be read or priced, UsageError for no plan.
    """
    import pandas as pd

    if not plans:
        raise UsageError("There is no plan to predict; expected at least one, such as 'tp=2 pp=1'.")
    model = model_of(job.on_site(pue), surrogate, measured, calibration, storage, machine)
    parsed = [parse_plan(plan, model.job) for plan in plans]
    for one in parsed:
        record = one.record
        check_priceable(model.job, record, check_plan(model.job, record))
    layouts = concat(with_power_limits([one.layouts for one in parsed], model.job))
    deepest = max(one.stage_clock_mhz.shape[1] for one in parsed)
    clocks = np.concatenate([widened(one.stage_clock_mhz, deepest) for one in parsed])
    columns = model.predict(layouts | {"stage_clock_mhz": clocks})
    layouts = {name: columns[name] for name in LAYOUT_COLUMNS}
    cells: dict[str, Any] = {name: decode_cells(name, values) for name, values in layouts.items()}
    cells["stage_clock_mhz"] = stage_clocks_to_text(clocks)
    cells |= predicted_columns(model.job, columns, RESULTS)
    cells |= {name: columns[name] for name in ("fit_probability", "in_domain", "doubts")}
    cells |= throughput(model.job, layouts, columns["iteration_time_s"], columns["energy_j"])
    fits = columns["fit_probability"] >= FEASIBLE
    found = pd.DataFrame(cells | {"predicted_fits": fits, "violations": violations(model.job, layouts)})
    return found.assign(assumed=[" ".join(one.assumed) for one in parsed])
