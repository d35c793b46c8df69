"""What plans take and cost at the site's meter, for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Floats
from jointopt.core.units import KWH
from jointopt.physics.facility import bill, facility_parts_j
from jointopt.report.table import ENERGY_UNITS, TextColumn, lay_out, numbers, unit_of, wrapped
from jointopt.spec.job import Job

_RUN_UNITS = {
    "run_time_s": ((60.0, "min"), (3600.0, "h"), (86400.0, "days")),
    "run_facility_energy_j": ((KWH, "kWh"), (1e3 * KWH, "MWh"), (1e6 * KWH, "GWh")),
}
_CARBON_UNITS = ((1e-6, "mg"), (1e-3, "g"), (1.0, "kg"), (1e3, "t"))
_HEADS = {"facility_energy_j": "energy", "carbon_kg": "CO2", "cost": "cost", "time_s": "time"}


def asks_for_site(job: Job) -> bool:
    """Whether the job states anything that turns energy into what the site pays."""
    cluster = job.cluster
    return job.training.run_tokens is not None or not (
        cluster.carbon_kg_per_kwh is cluster.price_per_kwh is None
    )


def site_table(job: Job, names: Sequence[str], time_s: npt.ArrayLike, energy_j: npt.ArrayLike) -> list[str]:
    """One line per plan, per iteration and for the run where its tokens are given; at most 100 characters wide."""
    paid = bill(job, np.asarray(time_s, np.float64), np.asarray(energy_j, np.float64))
    power = paid["facility_energy_j"] / np.asarray(time_s, np.float64)
    columns = [_power(job, power), *(_column(job, name, values) for name, values in paid.items())]
    return [
        *_title(job),
        *lay_out([TextColumn("", [f"  {name}" for name in names], left=True), *columns], "  "),
    ]


def site_parts(job: Job, time_s: float, energy_j: float) -> dict[str, float]:
    """Energy of the site for one iteration by part, J; the parts add up to it."""
    return {name: float(value) for name, value in facility_parts_j(job.cluster, time_s, energy_j).items()}


def _title(job: Job) -> list[str]:
    cluster, iterations = job.cluster, job.training.run_iterations
    hosts = f"{cluster.nodes:,} x {cluster.host_power_w:,.0f} W of hosts"
    said = f"At the site's meter, GPUs and {hosts} times PUE {cluster.pue:g}, per iteration"
    if iterations is not None:
        said += f" and for a run of {job.training.run_tokens:,} tokens ({iterations:,} iterations)"
    return wrapped(f"{said}:")


def _power(job: Job, power_w: Floats) -> TextColumn:
    factor, unit = unit_of(float(power_w.min()), ((1e3, "kW"), (1e6, "MW")))
    head = "\npower" if job.training.run_tokens is not None else "power"
    return TextColumn(f"{head}\n{unit}", numbers((power_w / factor).tolist(), float(power_w.min()) / factor))


def _column(job: Job, name: str, values: Floats) -> TextColumn:
    least = float(values[values > 0].min(initial=np.inf))
    units = {"cost": ((1.0, job.cluster.currency),), "carbon_kg": _CARBON_UNITS}
    what = name.removeprefix("run_")
    factor, unit = unit_of(least, _RUN_UNITS.get(name) or units.get(what) or ENERGY_UNITS)
    of = "run\n" if name.startswith("run_") else "\n" if job.training.run_tokens is not None else ""
    return TextColumn(f"{of}{_HEADS[what]}\n{unit}", numbers((values / factor).tolist(), least / factor))
