"""Whole trainings for the rack-scale paper: Llama-3-8B over GPU counts, modes and links, beside its blocks."""

from __future__ import annotations

import functools
from dataclasses import replace

from jointopt.core.units import PICO
from jointopt.jobs.catalog.frameworks import with_another
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job
from jointopt.studies.evidence import NOMINAL, STUDIES, Constants, Outcome, outcomes
from jointopt.studies.statements.statement import ENERGY, Finding, order

COUNTS = (4, 8, 16, 32)
LINKS = (400.0, 100.0, 50.0, 25.0, 12.5)  # GB/s per GPU between domains
MODES = ("dp", "tp", "pp+tp")
BATCH = 16


def training_job(gpus: int, link: float = 50.0) -> Job:
    """The job on so many GPUs, eight to a domain; its iteration is one graph, as the paper leaves launches out."""
    job = load_job(STUDIES / "rack-scale-training" / "llama-3-8b.yaml")
    job = replace(job, training=with_another(job.training, {"cuda_graph": "full_iteration"}))
    nodes = max(gpus // job.cluster.gpus_per_node, 1)
    cluster = replace(job.cluster, nodes=nodes, gpus_per_node=gpus // nodes, inter_node_gbytes_per_s=link)
    return replace(job, cluster=cluster)


def plan(mode: str, gpus: int) -> str:
    """A mode as a plan: beyond the batch, data parallelism takes tensor parallelism with it."""
    replicas = min(gpus, BATCH)
    shape = {"dp": f"dp={replicas} tp={gpus // replicas}", "tp": f"tp={gpus}", "pp+tp": f"pp=2 tp={gpus // 2}"}
    return f"{shape[mode]} zero_stage=1 micro_batch_size=1 vpp=1 recompute=full"


@functools.cache
def trained(mode: str, gpus: int, link: float = 50.0, c: Constants = NOMINAL) -> Outcome:
    """One iteration under one mode."""
    return outcomes(training_job(gpus, link), [plan(mode, gpus)], replace(c, batch=1.0))[0]


def link_j(one: Outcome, gpus: int) -> float:
    """Joules of all GPUs' links, at what the busiest stage sends."""
    cluster = training_job(gpus).cluster
    each = one.intra_bytes * cluster.intra_node_pj_per_bit + one.inter_bytes * cluster.inter_node_pj_per_bit
    return 8.0 * PICO * gpus * each


def least_energy(c: Constants) -> Finding:
    """Data parallelism takes the least energy at every count."""
    joules = {n: {mode: trained(mode, n, c=c).energy_j for mode in MODES} for n in COUNTS}
    words = ", ".join(f"{mode} {value / 1e3:.2f} kJ" for mode, value in joules[16].items())
    ratios = [[found[mode] / found["dp"] for mode in MODES[1:]] for found in joules.values()]
    return order(f"16 GPUs: {words}", ratios, ENERGY)


def tensor_goes_on(c: Constants) -> Finding:
    """Tensor parallelism goes on past data parallelism's batch."""
    times = [trained("tp", n, c=c).iteration_time_s for n in COUNTS]
    words = ", ".join(f"{seconds:.2f} s" for seconds in times)
    return order(f"4, 8, 16, 32 GPUs: {words}", [times[1] / times[2], times[2] / times[3]])


def least_comm(c: Constants) -> Finding:
    """Pipelines take the least energy of links."""
    joules = {mode: link_j(trained(mode, 32, c=c), 32) for mode in MODES}
    words = ", ".join(f"{mode} {value:.1f} J" for mode, value in joules.items())
    return order(f"32 GPUs: {words}", [joules[mode] / joules["pp+tp"] for mode in MODES[:2]], ENERGY)


def slow_link(c: Constants) -> Finding:
    """A slow link between domains costs pipelines the least time."""
    slower = {
        mode: trained(mode, 16, 12.5, c).iteration_time_s / trained(mode, 16, 50.0, c).iteration_time_s
        for mode in MODES
    }
    words = ", ".join(f"{mode} {ratio:.2f} times" for mode, ratio in slower.items())
    return order(
        f"a quarter of the link between domains: {words}", [slower[mode] / slower["pp+tp"] for mode in MODES[:2]]
    )
