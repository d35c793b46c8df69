"""Doubt of the time of plans where the network between nodes is assumed."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import Common
from jointopt.physics.sensitivities import NETWORK, least_times_s, moved, only
from jointopt.surrogate.kernel import DELAY, Runs

# How many times slower a network may be than the reference system of its GPU (95 %): Jean Zay's A100 have 6.25 GB/s
# each, where that system has 25. Recorded runs whose network is assumed, under stand-ins of their profiles: where a
# tenth of the network would make a plan e times as long, bounds of a new source held 65 % of them, with 2, e and 4
# times 81, about 86 and 89 % (docs/appendix/surrogate-experiments.md).
SLOWER = float(np.e)
NETWORK_DOUBT = 0.15  # of a logarithm of time, from which a plan's network is remarked on
SEEN = 0.5  # of a plan's delay: a run that depends as much on the network shows what that is


def network_assumed(job: Job) -> bool:
    """Whether traffic goes between nodes, and neither job, table, catalogued cluster nor machine states how fast."""
    cluster = job.cluster
    crossed = cluster.num_gpus > cluster.scale_up_gpus and cluster.nodes > 1
    return crossed and cluster.origin("inter_node_gbytes_per_s") == "assumed"


def network_delay(physics: CostModel, layout: Ints) -> Floats:
    """The logarithm of how much longer plans of ``layout`` (n,) take on a network `SLOWER` times slower, (n,).

    Priced there, at the top clock: traffic that passes hide on the network assumed comes to light on a slower one, so
    that a tenth less of it shows a sixth of this where weights are gathered layer by layer.
    """
    if physics.job.cluster.nodes == 1:
        return np.zeros(len(layout))
    slower = moved(physics.job, only(NETWORK, np.log(SLOWER)))
    common, every = physics.common or Common(physics.hardware, physics.shapes), np.arange(len(physics.layouts["pp"]))
    top = uniform_stage_clocks(physics.layouts["pp"], physics.top_mhz)
    (there_s,) = least_times_s([slower], physics, every, top, common)
    return np.asarray(np.maximum(np.log(there_s / physics.least_time_s(every, top)), 0.0)[layout])


def delay_of(runs: Runs) -> Floats:
    """`network_delay` (n,) of runs; by their sensitivity, mostly less, where an older surrogate kept them without."""
    known = runs.features.get(DELAY)
    return np.asarray(np.log(SLOWER) * runs.sensitivity[:, NETWORK] if known is None else known)


def network_half_width(job: Job, delay: Floats, seen: float = 0.0) -> Floats:
    """The width that an assumed network adds to the upper 90 % half-width of the logarithm of time, (n,).

    ``delay`` (n,): of plans; ``seen``: that of the run of the cluster which depends on the network most.
    """
    known: Bools = delay <= seen / SEEN
    return np.where(known | (not network_assumed(job)), 0.0, delay)
