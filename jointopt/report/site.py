"""Energy, carbon and money at the site's meter, as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jointopt.physics.facility import bill
from jointopt.report import table
from jointopt.report.table import TextColumn
from jointopt.spec.job import Job

_HEADS = {"facility_energy_j": "energy", "carbon_kg": "CO2", "cost": "cost", "time_s": "time"}
_UNITS = {
    "facility_energy_j": table.ENERGY_UNITS, "run_facility_energy_j": table.RUN_ENERGY_UNITS,
    "run_time_s": table.RUN_TIME_UNITS, "carbon_kg": table.CARBON_UNITS, "run_carbon_kg": table.CARBON_UNITS,
}  # fmt: skip


def has_site_costs(job: Job) -> bool:
    """True where the job states anything that turns energy into what the site pays."""
    rates = (job.training.run_tokens, job.cluster.carbon_kg_per_kwh, job.cluster.price_per_kwh)
    return any(rate is not None for rate in rates)


def site_table(job: Job, names: Sequence[str], time_s: npt.ArrayLike, energy_j: npt.ArrayLike) -> list[str]:
    """One line per plan, per iteration and for the run where its tokens are given; at most 100 characters wide."""
    cluster, iterations = job.cluster, job.training.run_iterations
    time_s, energy_j = np.asarray(time_s, np.float64), np.asarray(energy_j, np.float64)
    title = f"At the site's meter, GPUs and {cluster.nodes:,} x {cluster.host_power_w:,.0f} W of hosts times PUE "
    title += f"{cluster.pue:g}, per iteration"
    if iterations is not None:
        title += f" and for a run of {job.training.run_tokens:,} tokens ({iterations:,} iterations)"
    paid = bill(job, time_s, energy_j)
    above = "\n" if iterations is not None else ""
    power = (paid["facility_energy_j"] / time_s).tolist()
    columns = [TextColumn("", [f"  {name}" for name in names], left=True)]
    columns.append(table.measured(f"{above}power", power, table.SITE_POWER_UNITS))
    for name, values in paid.items():
        over = "run\n" if name.startswith("run_") else above
        units = _UNITS.get(name, ((1.0, cluster.currency),))
        columns.append(table.measured(f"{over}{_HEADS[name.removeprefix('run_')]}", values.tolist(), units))
    return [*table.wrapped(f"{title}:"), *table.lay_out(columns, "  ")]
