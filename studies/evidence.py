"""Predictions of plans, sweeps over clocks, and the constants that papers leave open: for all studies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.stats import qmc

from jointopt.core.schema import Columns, Floats
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import utilization

STUDIES = Path(__file__).parent
SCENARIOS = 32
_HOST = (
    "host_floor_s", "host_floor_pp_s", "host_floor_pp_tp_s", "expert_host_s", "moe_host_s",
    "micro_batch_overhead_s",
)  # fmt: skip


@dataclass(frozen=True)
class Constants:
    """Constants that no paper states, over the catalogue's: factors, and values where the catalogue's would be 0 or 1.

    ``None`` leaves a framework's overlap as its profile has it.
    """

    batch: float = 1.0  # sequences per iteration
    dp_overlap: float | None = None
    tp_overlap: float | None = None
    host: float = 1.0  # launches, Python, the framework's own time
    network: float = 1.0  # bandwidth reached between nodes
    knee: float = 1.0  # clock below which the voltage no longer falls
    voltage: float = 1.0  # voltage ratio less one
    static: float = 1.0  # power whatever runs, and while waiting
    hbm: float = 1.0  # energy of a byte of device memory
    unit: float = 1.0  # rate of a compute unit of the rack-scale paper, over a multiply-accumulate in 1 ns
    unfused: float = 0.0  # from a half on: attention of separate kernels instead of the job's


# Batches are a quarter, a half and the whole of the usual; launches of a fast and of a slow host (GH200 takes 1.4 times
# an x86 server in the catalogue); link shares that its profiles reach; knee 0.67 to 0.85 and voltage 1.18 to
# 1.37 around A40 and A100 (jointopt/jobs/catalog/power.yaml); static power and memory energy as far as fits differ.
SPANS: dict[str, tuple[float, float]] = {
    "batch": (0.25, 1.0), "host": (0.5, 1.7), "network": (0.6, 1.0), "knee": (0.86, 1.1), "voltage": (0.65, 1.3),
    "static": (0.8, 1.25), "hbm": (0.5, 1.7),
}  # fmt: skip
NOMINAL = Constants()


def scenarios(spans: dict[str, tuple[float, float]], count: int = SCENARIOS) -> list[Constants]:
    """So many draws over the spans, the same ones in every run."""
    draws = qmc.scale(qmc.Sobol(len(spans), seed=0).random(count), *np.transpose(list(spans.values())))
    return [_constants(dict(zip(spans, draw.tolist(), strict=True))) for draw in draws]


def _constants(draw: dict[str, float]) -> Constants:
    batch = min((0.25, 0.5, 1.0), key=lambda share: abs(share - draw.get("batch", 1.0)))
    return Constants(**draw | {"batch": batch})


def varied(job: Job, constants: Constants) -> Job:
    """The job under other constants than the catalogue's."""
    if constants == NOMINAL:
        return job
    profile, gpu = job.training.framework, job.cluster.gpu
    overlaps = {name: getattr(constants, name) for name in ("dp_overlap", "tp_overlap")}
    known = {name: value for name, value in overlaps.items() if value is not None}
    known |= {name: getattr(profile, name) * constants.host for name in _HOST}
    profile = replace(profile, network_efficiency=profile.network_efficiency * constants.network, **known)
    attention = "unfused" if constants.unfused >= 0.5 else job.training.attention
    batch = max(round(job.training.global_batch_size * constants.batch), 1)
    power = gpu.power and varied_power(gpu.power, constants)
    return replace(
        job,
        training=replace(job.training, framework=profile, global_batch_size=batch, attention=attention),
        cluster=replace(job.cluster, gpu=replace(gpu, power=power)),
    )


def varied_power(k: PowerConstants, constants: Constants) -> PowerConstants:
    """Power constants of a GPU under other constants than the catalogue's."""
    return replace(
        k, static_w=k.static_w * constants.static, wait_w=k.wait_w * constants.static,
        knee_fraction=min(k.knee_fraction * constants.knee, 0.99),
        voltage_ratio=1.0 + (k.voltage_ratio - 1.0) * constants.voltage,
        pj_per_hbm_byte=k.pj_per_hbm_byte * constants.hbm,
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Predictions of one plan at one clock for all stages; powers per GPU, shares the mean over the stages."""

    iteration_time_s: float
    energy_j: float
    avg_power_w: float
    peak_power_w: float
    temperature_c: float
    peak_memory_gib: float
    clock_mhz: float  # reached, the mean over the stages
    sm_active: float  # share of the time in which compute kernels run: DCGM's SM active, were each on all SMs
    gpu_utilization: float  # or collectives and receives, whose kernels NVML's utilization.gpu counts while they wait
    tensor_active: float  # operations over what tensor cores could do at the clock reached, as DCGM's tensor active
    intra_node: float  # share of the link's bandwidth in use, the busiest stage's
    inter_node: float
    intra_bytes: float  # sent by a GPU of that stage
    inter_bytes: float


def shown(one: Outcome) -> dict[str, float]:
    """The columns of a prediction that tables of several studies begin with, in the papers' units."""
    return {
        "time s": one.iteration_time_s, "energy kJ": one.energy_j / 1e3, "power W": one.avg_power_w,
        "SM active %": 100.0 * one.sm_active, "GPU utilization %": 100.0 * one.gpu_utilization,
        "tensor active %": 100.0 * one.tensor_active,
    }  # fmt: skip


def with_batch(job: Job, batch: int) -> Job:
    """The job at so many sequences per iteration."""
    return replace(job, training=replace(job.training, global_batch_size=batch))


def outcomes(job: Job, plans: Sequence[str], constants: Constants = NOMINAL) -> list[Outcome]:
    """Predictions of the plans, in their order, each at its clock (the highest where it names none)."""
    job = varied(job, constants)
    return [_outcome(job, plan) for plan in plans]


def _outcome(job: Job, plan: str) -> Outcome:
    parsed, only = parse_plan(plan, job), np.zeros(1, np.int64)
    physics = CostModel(job, parsed.layouts)
    found = physics.evaluate(only, parsed.stage_clock_mhz) | physics.heat(only, parsed.stage_clock_mhz)
    used = utilization(physics, 0, parsed.stage_clock_mhz[0])
    group, row = int(physics.group_of[0]), int(physics.row_of[0])
    reached = physics.reached_mhz(group, physics.row_of[[0]], parsed.stage_clock_mhz)
    costs, peak = physics.groups[group], physics.hardware.kernels.gemm.peak_flops
    rate = costs.num_micro_batches[row] * costs.flops[row] / physics.hardware.kernels.flop_energy
    rate = rate / found["iteration_time_s"][0]
    return Outcome(
        **{one.name: float(found[one.name][0]) for one in fields(Outcome) if one.name in found},
        clock_mhz=float(np.nanmean(reached)), sm_active=float(used.kernels.mean()),
        gpu_utilization=float(used.running.mean()),
        tensor_active=float((rate / (peak * reached[0, : costs.depth] / physics.top_mhz)).mean()),
        **{link: float(share.max()) for link, share in used.links.items()},
        **{f"{link.split('_')[0]}_bytes": float(sent.max()) for link, sent in used.link_bytes.items()},
    )  # fmt: skip


def fits(job: Job, outcome: Outcome) -> bool:
    """Whether the plan's memory is within what the framework can use of the GPU's."""
    return outcome.peak_memory_gib <= job.training.framework.memory_fraction * job.cluster.gpu.memory_gib


def clock_sweep(job: Job, plan: str, slack: float = 0.0, constants: Constants = NOMINAL) -> Columns:
    """Predictions of one layout at every clock of its job, ascending; ``slack`` as in `CostModel.stage_clocks`.

    ``lowest_mhz``: of the stages that wait.
    """
    job = varied(job, constants)
    physics = CostModel(job, parse_plan(plan, job).layouts)
    count = len(job.search.clock_mhz)
    layout, clock = np.zeros(count, np.int64), np.arange(count)
    stage_clocks = physics.stage_clocks(layout, clock, np.full(count, slack))
    clocks = {"clock_mhz": np.asarray(job.search.clock_mhz), "lowest_mhz": np.nanmin(stage_clocks, axis=1)}
    return physics.evaluate(layout, stage_clocks) | clocks


def columns(found: Sequence[Outcome], *names: str) -> Iterator[Floats]:
    """The named predictions of many plans, an array each."""
    return (np.array([getattr(one, name) for one in found]) for name in names)
