"""Features and sensitivities of plans, and the key of runs that are comparable."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel, unscaled_heat
from jointopt.physics.costs import SharedCosts
from jointopt.physics.makespan import least_makespan_s
from jointopt.physics.sensitivities import (
    NETWORK,
    least_times_s,
    one_constant,
    sensitivities,
    shape_columns,
    share_columns,
    with_constants,
)
from jointopt.surrogate.kernel import DELAY, Runs


def runs_of(physics: CostModel, stage_clock_mhz: Floats, layout: Ints, source: str) -> Runs:
    """Plans of ``layout`` (n,) of the physics at clocks (n, S) as runs of a source, whose key is `Source`'s.

    Shares and sensitivities are those of the layout at the GPU's top clock, the only one that runs of many layouts were
    recorded at: so what is learned moves a layout by one factor at every clock, and time still falls with the clock as
    the physics predicts (with those of the plan's own clock it rose by up to 0.6 % from one clock to the next).
    """
    job, every, count = physics.job, np.arange(len(physics.layouts["pp"])), len(layout)
    top = np.full((len(every), 1), physics.top_mhz)
    slopes = sensitivities(physics, every, top)[layout]
    layouts = {name: values[layout] for name, values in physics.layouts.items()}
    features = shape_columns(job, layouts, stage_clock_mhz)
    features |= {name: values[layout] for name, values in share_columns(physics, every, top).items()}
    features[DELAY] = network_delay(physics, layout)
    gpu = job.cluster.gpu
    if job.cluster.machine is not None:  # whose memory was measured: it is no other GPU
        gpu = known_gpu(gpu.id) or gpu
    peak = gpu.peak_tflops.get("bf16", gpu.peak_tflops.get("fp16", 1.0))
    rated = {"peak": peak, "memory": gpu.memory_gbytes_per_s}
    features |= {f"log2_{name}": np.full(count, np.log2(value)) for name, value in rated.items()}
    group = f"{job.model.name}|{job.training.global_batch_size}|{job.cluster.num_gpus}|{job.training.seq_length}"
    return Runs(slopes, features, np.full(count, source), np.full(count, group))


def seconds_and_watts_at(physics: CostModel, layout: Ints, shares: tuple[float, ...]) -> Floats:
    """Time in s and average power (2, shares, n) of the ``layout`` (n,), every stage at a share of the top clock.

    Over the least time where chunks of a rank differ: to walk their schedules took most of a search's time.
    """
    depth = physics.layouts["pp"][layout]
    clocks = (uniform_stage_clocks(depth, share * physics.top_mhz) for share in shares)
    found = [physics.evaluate(layout, mhz, least_makespan_s) for mhz in clocks]
    return np.stack([[one[name] for one in found] for name in ("iteration_time_s", "avg_power_w")])


def watts_at(physics: CostModel, layout: Ints, shares: tuple[float, ...]) -> Floats:
    """The power of `seconds_and_watts_at`, (shares, n)."""
    return np.asarray(seconds_and_watts_at(physics, layout, shares)[1])


def seconds_at(physics: CostModel, layout: Ints, shares: tuple[float, ...]) -> Floats:
    """Time (shares, n) in s of the ``layout`` (n,) of the physics, as `watts_at` has their power."""
    depth = physics.layouts["pp"][layout]
    clocks = (uniform_stage_clocks(depth, share * physics.top_mhz) for share in shares)
    return np.stack([physics.least_time_s(layout, mhz) for mhz in clocks])


def heat_of(physics: CostModel, layout: Ints, stage_clock_mhz: Floats) -> Columns:
    """Peak power and temperature over the inlet air (n,) of plans by the physics alone, of the hottest stage."""
    found = unscaled_heat(physics, layout, stage_clock_mhz)
    return {PEAK: found["peak_power_w"], RISE: found["temperature_c"] - physics.job.cluster.inlet_temperature_c}


def clocks_reached(physics: CostModel, stage_clock_mhz: Floats) -> Floats:
    """Of clocks (n, S) of all layouts of the physics those that they reach within their power limits, in MHz."""
    out = np.full_like(stage_clock_mhz, np.nan)
    for g, at, rows, depth in physics.blocks(np.arange(len(out))):
        out[at, :depth] = physics.reached_mhz(g, rows, stage_clock_mhz[at, :depth])
    return out


# Doubt of the time of plans where the network between nodes is assumed.


# How many times slower a network may be than the reference system of its GPU (95 %): Jean Zay's A100 have 6.25 GB/s
# each, where that system has 25. Recorded runs whose network is assumed, under stand-ins of their profiles: where a
# tenth of the network would make a plan e times as long, bounds of a new source held 65 % of them, with 2, e and 4
# times 81, about 86 and 89 % (docs/appendix/surrogate-experiments.md).
SLOWER_NETWORK = float(np.e)
NETWORK_DOUBT = 0.15  # of a logarithm of time, from which a plan's network is remarked on
SEEN_SHARE = 0.5  # of a plan's delay: a run that depends as much on the network shows what that is


def network_assumed(job: Job) -> bool:
    """Whether traffic goes between nodes, and neither job, table, catalogued cluster nor machine states how fast."""
    cluster = job.cluster
    crossed = cluster.num_gpus > cluster.scale_up_gpus and cluster.nodes > 1
    return crossed and cluster.origin("inter_node_gbytes_per_s") == "assumed"


def network_delay(physics: CostModel, layout: Ints) -> Floats:
    """The logarithm of how much longer plans of ``layout`` (n,) take on a network `SLOWER_NETWORK` times slower, (n,).

    Priced there, at the top clock: traffic that passes hide on the network assumed comes to light on a slower one, so
    that a tenth less of it shows a sixth of this where weights are gathered layer by layer.
    """
    if physics.job.cluster.nodes == 1:
        return np.zeros(len(layout))
    slower = with_constants(physics.job, one_constant(NETWORK, np.log(SLOWER_NETWORK)))
    common, every = (
        physics.common or SharedCosts(physics.hardware, physics.shapes),
        np.arange(len(physics.layouts["pp"])),
    )
    top = uniform_stage_clocks(physics.layouts["pp"], physics.top_mhz)
    (there_s,) = least_times_s([slower], physics, every, top, common)
    return np.asarray(np.maximum(np.log(there_s / physics.least_time_s(every, top)), 0.0)[layout])


def delay_of(runs: Runs) -> Floats:
    """`network_delay` (n,) of runs; by their sensitivity, mostly less, where an older surrogate kept them without."""
    known = runs.features.get(DELAY)
    return np.asarray(np.log(SLOWER_NETWORK) * runs.sensitivity[:, NETWORK] if known is None else known)


def network_half_width(job: Job, delay: Floats, seen: float = 0.0) -> Floats:
    """The width that an assumed network adds to the upper 90 % half-width of the logarithm of time, (n,).

    ``delay`` (n,): of plans; ``seen``: that of the run of the cluster which depends on the network most.
    """
    known: Bools = delay <= seen / SEEN_SHARE
    return np.where(known | (not network_assumed(job)), 0.0, delay)


# Names of peak power and temperature as they are learned.


# By their name among predictions: the temperature over the inlet air, which is what power heats. Then the column of
# tables, and what lines and cards call it.
PEAK, RISE = "peak_power_w", "temperature_rise_k"
HEAT_COLUMNS: Mapping[str, str] = {PEAK: "peak_power_w", RISE: "temperature_c"}
HEAT_NAMES: Mapping[str, str] = {PEAK: "peak power", RISE: "temperature above the air"}
