"""Energy, carbon and money of the site from the energy of its GPUs, which includes the links' pJ per bit.

Hosts are all else in a node: a constant power, and a share of what its GPUs draw, so that a host draws less while they
wait. Not counted: network switches outside of nodes, and storage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import KILO, KWH
from jointopt.jobs.catalog.clusters import with_host_at
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job

Array = npt.ArrayLike
_PAID = ("facility_energy_j", "carbon_kg", "cost", "gpu_cost")
_OF_RUN = ("time_to_train_s", "useful_energy_j")
SITE_COLUMNS = ("cluster_power_kw", *_PAID, "run_time_s", "run_gpu_hours", *(f"run_{name}" for name in _PAID))
HOUR_S = 3600.0
_BILLION = 10**9


def facility_parts_j(cluster: Cluster, time_s: Array, energy_j: Array) -> dict[str, Floats]:
    """Energy of the site for one iteration by part, (n,) J, from its time and the energy of all GPUs.

    ``gpus``, ``hosts`` (at rest over the whole time, and what follows the GPUs) and ``overhead``, which is PUE - 1 of
    both. PUE: ISO/IEC 30134-2, a mean over the year. Nodes of 8 H100 in training to 8 % (``catalog/links.yaml``).
    """
    gpus = np.asarray(energy_j, np.float64)
    hosts = np.multiply(time_s, cluster.host_power_w * cluster.nodes) + cluster.host_load_share * gpus
    return {"gpus": gpus, "hosts": hosts, "overhead": (cluster.pue - 1.0) * (gpus + hosts)}


def facility_energy_j(cluster: Cluster, time_s: Array, energy_j: Array) -> Floats:
    """Energy of the site for one iteration, (n,) J: GPUs and hosts, times PUE; the sum of `facility_parts_j`."""
    resting = np.multiply(time_s, cluster.host_power_w * cluster.nodes)
    return np.asarray((np.multiply(energy_j, 1.0 + cluster.host_load_share) + resting) * cluster.pue)


def cluster_power_kw(cluster: Cluster, avg_power_w: Array) -> Floats:
    """Mean power of the site, (n,) kW, from the mean power of a GPU in W: `facility_energy_j` over time."""
    loaded = np.multiply(avg_power_w, cluster.num_gpus * (1.0 + cluster.host_load_share))
    return np.asarray((loaded + cluster.host_power_w * cluster.nodes) * cluster.pue / KILO)


def bill(job: Job, time_s: Array, energy_j: Array) -> Columns:
    """Payments of the site, (n,) each, from time and energy of the GPUs of one iteration.

    ``facility_energy_j`` always; ``carbon_kg`` and ``cost`` (of electricity, in the job's currency) in proportion to it
    where the job states them per kWh; ``gpu_cost`` for the time of all GPUs where it states their price; with
    ``run_tokens`` all of these, ``run_time_s`` and ``run_gpu_hours`` for the whole run too.
    """
    cluster, iterations = job.cluster, job.training.run_iterations
    out: Columns = {"facility_energy_j": facility_energy_j(cluster, time_s, energy_j)}
    per_kwh = {"carbon_kg": cluster.carbon_kg_per_kwh, "cost": cluster.price_per_kwh}
    out |= {name: out["facility_energy_j"] / KWH * rate for name, rate in per_kwh.items() if rate is not None}
    hours = np.asarray(time_s, np.float64) * cluster.num_gpus / HOUR_S
    if cluster.price_per_gpu_hour is not None:
        out["gpu_cost"] = hours * cluster.price_per_gpu_hour
    if iterations is not None:
        run = {"time_s": np.asarray(time_s, np.float64), "gpu_hours": hours} | out
        out |= {f"run_{name}": values * iterations for name, values in run.items()}
    return out


def run_costs(job: Job, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Days, site energy in J and money (electricity and GPUs, None without a price) of the run that a plan would do.

    Of ``run_tokens``, else of a billion tokens; ``for_run`` says which. ``plan``: an entry with time and energy (J); of
    one with those of the whole run, its failures count too.
    """
    if plan.get("time_to_train_s") is not None:
        time_s, joules = plan["time_to_train_s"], facility_energy_j(job.cluster, *(plan[name] for name in _OF_RUN))
        return {"days": time_s / (24 * HOUR_S), "energy_j": float(joules), "money": plan["money"], "for_run": True}
    tokens = job.training.global_batch_size * job.training.seq_length
    times = job.training.run_iterations or _BILLION / tokens
    energy_j = math.nan if plan["energy_j"] is None else plan["energy_j"]
    paid = bill(job, plan["iteration_time_s"], energy_j)
    money = [float(paid[name]) for name in ("cost", "gpu_cost") if name in paid]
    return {
        "days": plan["iteration_time_s"] * times / (24 * HOUR_S), "energy_j": float(paid["facility_energy_j"]) * times,
        "money": sum(money) * times if money else None, "for_run": job.training.run_iterations is not None,
    }  # fmt: skip


def with_site(job: Job, plans: Columns) -> Columns:
    """Plans with those of `SITE_COLUMNS` that the job states figures for, (n,) each, from their time, energy and power.

    Where the plans have 90 % intervals, ``_low`` and ``_high`` too: time, energy and assumed hosts at that end.
    """
    sites = {"": job}
    if "iteration_time_s_low" in plans:
        sites |= {f"_{end}": replace(job, cluster=with_host_at(job.cluster, end)) for end in ("low", "high")}
    out = dict(plans)
    for side, site in sites.items():
        out[f"cluster_power_kw{side}"] = cluster_power_kw(site.cluster, plans[f"avg_power_w{side}"])
        paid = bill(site, plans[f"iteration_time_s{side}"], plans[f"energy_j{side}"])
        out |= {f"{name}{side}": values for name, values in paid.items()}
    return out
