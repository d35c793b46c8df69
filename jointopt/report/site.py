"""Energy, carbon and money at the site's meter, as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Floats
from jointopt.physics.facility import bill
from jointopt.report import table
from jointopt.report.table import TextColumn
from jointopt.spec.job import Job

_HEADS = {"facility_energy_j": "energy", "carbon_kg": "CO2", "cost": "cost", "time_s": "time"}
_UNITS: dict[str, table.Units] = {
    "facility_energy_j": table.ENERGY_UNITS,
    "run_facility_energy_j": table.RUN_ENERGY_UNITS,
    "run_time_s": table.RUN_TIME_UNITS,
    "carbon_kg": table.CARBON_UNITS,
    "run_carbon_kg": table.CARBON_UNITS,
}


def has_site_costs(job: Job) -> bool:
    """True where the job states anything that turns energy into what the site pays."""
    cluster = job.cluster
    rates = (job.training.run_tokens, cluster.carbon_kg_per_kwh, cluster.price_per_kwh)
    return any(rate is not None for rate in rates)


def site_table(job: Job, names: Sequence[str], time_s: npt.ArrayLike, energy_j: npt.ArrayLike) -> list[str]:
    """One line per plan, per iteration and for the run where its tokens are given; at most 100 characters wide."""
    paid = bill(job, np.asarray(time_s, np.float64), np.asarray(energy_j, np.float64))
    power = paid["facility_energy_j"] / np.asarray(time_s, np.float64)
    above = "\n" if job.training.run_tokens is not None else ""
    columns = [table.measured(f"{above}power", power.tolist(), table.SITE_POWER_UNITS)]
    columns += [_column(job, name, values, above) for name, values in paid.items()]
    return [
        *_title(job),
        *table.lay_out([TextColumn("", [f"  {name}" for name in names], left=True), *columns], "  "),
    ]


def _title(job: Job) -> list[str]:
    cluster, iterations = job.cluster, job.training.run_iterations
    hosts = f"{cluster.nodes:,} x {cluster.host_power_w:,.0f} W of hosts"
    text = f"At the site's meter, GPUs and {hosts} times PUE {cluster.pue:g}, per iteration"
    if iterations is not None:
        text += f" and for a run of {job.training.run_tokens:,} tokens ({iterations:,} iterations)"
    return table.wrapped(f"{text}:")


def _column(job: Job, name: str, values: Floats, above: str) -> TextColumn:
    head = _HEADS[name.removeprefix("run_")]
    of = "run\n" if name.startswith("run_") else above
    return table.measured(f"{of}{head}", values.tolist(), _UNITS.get(name, ((1.0, job.cluster.currency),)))
