"""Doubt of the time of plans where the network between nodes is assumed."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.physics.cost_model import CostModel
from jointopt.physics.describe import NETWORK, sensitivities
from jointopt.spec.job import Job
from jointopt.spec.plans.clocks import uniform_stage_clocks

# How many times slower a network may be than the reference system of its GPU (95 %, along the straight line of a plan's
# sensitivity): Jean Zay's A100 have 6.25 GB/s each, where that system has 25. Recorded runs whose network is assumed,
# under stand-ins of their profiles: where a tenth of the network would make a plan e times as long, bounds of a new
# source held 65 % of them, with 2, e and 4 times 81, about 86 and 89 % (docs/surrogate-experiments.md).
SLOWER = float(np.e)
NETWORK_DOUBT = 0.1  # of a logarithm of time, from which a plan's network is remarked on
SEEN = 0.5  # of a plan's sensitivity: a run that depends as much on the network shows what that is


def network_assumed(job: Job) -> bool:
    """Whether traffic goes between nodes, and neither job, table, catalogued cluster nor machine states how fast."""
    cluster = job.cluster
    crossed = cluster.num_gpus > cluster.scale_up_gpus and cluster.nodes > 1
    return crossed and cluster.origin("inter_node_gbytes_per_s") == "assumed"


def network_slope(physics: CostModel, layout: Ints) -> Floats:
    """By what part of a logarithm plans of ``layout`` (n,) slow down with their network, (n,); at the top clock."""
    every = np.arange(len(physics.layouts["pp"]))
    if not network_assumed(physics.job):
        return np.zeros(len(layout))
    top = uniform_stage_clocks(physics.layouts["pp"], physics.top_mhz)
    return np.asarray(sensitivities(physics, every, top, ("inter_node",))[layout, 0])


def slope_of(sensitivity: Floats) -> Floats:
    """`network_slope` (n,) from all sensitivities (n, `CONSTANTS`)."""
    return np.asarray(sensitivity[:, NETWORK])


def network_half_width(job: Job, slope: Floats, seen: float = 0.0) -> Floats:
    """The width that an assumed network adds to the upper 90 % half-width of the logarithm of time, (n,).

    ``slope`` (n,): how plans depend on it; ``seen``: how far the run of the cluster does that depends on it most.
    """
    known: Bools = slope <= seen / SEEN
    return np.where(known | (not network_assumed(job)), 0.0, np.log(SLOWER) * np.maximum(slope, 0.0))
