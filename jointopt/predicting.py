"""``predict``: a table of measurements with what physics and surrogate say of every row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.catalog.kernels import kernel_constants
from jointopt.calibration import Calibration, calibrated_if_same_gpu
from jointopt.correcting import correct, load_surrogate
from jointopt.errors import JointOptError, TableError
from jointopt.intervals import RESULTS, add_intervals
from jointopt.physics.estimate import Estimator, memory_limit_gib
from jointopt.schema import Columns

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.workloads import Workload


def predict(
    table: pd.DataFrame,
    surrogate: str = "none",
    measured: pd.DataFrame | None = None,
    calibration: Calibration | None = None,
) -> pd.DataFrame:
    """The table with predicted columns (interfaces.md, section 4); rows keep their order and every column stays.

    ``surrogate``: a shipped one's name, a folder, or none for the physics alone. ``measured``: runs at hand (same
    columns, of the same cluster and framework), which the prediction adapts to first; needs a surrogate.
    ``calibration``: what was learned of a GPU, used for the rows that run on it.
    A row that cannot be predicted has blanks there, ``predicted_fits`` false, and the reason in ``not_predicted``.
    Raises TableError for a cell that makes no sense, and where no row can be predicted.
    """
    import pandas as pd

    from jointopt.workloads import workloads

    found, reasons = workloads(table)
    found = [replace(work, job=calibrated_if_same_gpu(work.job, calibration)) for work in found]
    parts = []
    for work in found:
        try:
            parts.append(_predicted(work))
        except JointOptError as error:
            reasons |= dict.fromkeys(work.rows.tolist(), str(error))
    if not parts:
        raise TableError(
            f"No row of the table can be predicted; row {min(reasons) + 1}: {reasons[min(reasons)]}"
        )
    predicted = pd.concat(parts).reindex(range(len(table)))
    predicted["assumed"] = predicted["assumed"].fillna("")
    for flag in ("predicted_fits", "in_domain"):
        predicted[flag] = predicted[flag].eq(True)
    predicted["not_predicted"] = [reasons.get(row, "") for row in range(len(table))]
    learned = load_surrogate(surrogate if measured is None or surrogate != "none" else "default")
    if learned is not None:
        predicted = correct(table, predicted, learned, measured)
    predicted.index = table.index
    return pd.concat([table.drop(columns=[c for c in predicted if c in table]), predicted], axis=1)


def _predicted(work: Workload) -> pd.DataFrame:
    """Predicted columns of the rows of one workload, by position in the table."""
    import pandas as pd

    physics = Estimator(work.job, kernel_constants(work.job.cluster.gpu), work.plans)
    values = physics.evaluate(np.arange(len(work.rows)), work.stage_clock_mhz)
    columns: Columns = {f"predicted_{name}": values[name] for name in RESULTS}
    columns |= work.plans | {"stage_clock_mhz": work.stage_clock_mhz}
    columns = add_intervals(work.job, columns, "predicted_")
    columns["predicted_fits"] = values["peak_memory_gib"] <= memory_limit_gib(work.job)
    columns["assumed"] = np.array(work.assumed, dtype=object)
    kept = {name: v for name, v in columns.items() if name not in work.plans and name != "stage_clock_mhz"}
    return pd.DataFrame(kept, index=work.rows)
