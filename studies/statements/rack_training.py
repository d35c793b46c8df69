"""Whole trainings for the rack-scale paper: Llama-3-8B over GPU counts, modes and links."""

from __future__ import annotations

import functools
from dataclasses import replace

from jointopt.core.units import PICO
from jointopt.jobs.catalog.frameworks import with_another
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job
from jointopt.studies.evidence import NOMINAL, STUDIES, Constants, Outcome, outcomes
from jointopt.studies.statements.statement import Finding, Statement

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


def _least_energy(c: Constants) -> Finding:
    joules = {n: {mode: trained(mode, n, c=c).energy_j for mode in MODES} for n in COUNTS}
    words = ", ".join(f"{mode} {value / 1e3:.2f} kJ" for mode, value in joules[16].items())
    return Finding(f"16 GPUs: {words}", all(found["dp"] == min(found.values()) for found in joules.values()))


def _tensor_goes_on(c: Constants) -> Finding:
    times = [trained("tp", n, c=c).iteration_time_s for n in COUNTS]
    words = ", ".join(f"{seconds:.2f} s" for seconds in times)
    return Finding(f"4, 8, 16, 32 GPUs: {words}", times[3] < times[2] < times[1])


def _least_comm(c: Constants) -> Finding:
    joules = {mode: link_j(trained(mode, 16, c=c), 16) for mode in MODES}
    words = ", ".join(f"{mode} {value:.1f} J" for mode, value in joules.items())
    return Finding(f"16 GPUs: {words}", joules["pp+tp"] == min(joules.values()))


def _slow_link(c: Constants) -> Finding:
    slower = {
        mode: trained(mode, 16, 12.5, c).iteration_time_s / trained(mode, 16, 50.0, c).iteration_time_s
        for mode in MODES
    }
    words = ", ".join(f"{mode} {ratio:.2f} times" for mode, ratio in slower.items())
    return Finding(f"a quarter of the link between domains: {words}", slower["pp+tp"] == min(slower.values()))


TRAINING = (
    Statement("R33", "IV.C", "a whole training: dp takes the least energy", "least", _least_energy),
    Statement(
        "R34", "IV.C", "a whole training: tp goes on past dp's batch", "goes on", _tensor_goes_on,
        "two all-reduces in every layer cross between domains from 16 GPUs on, over a link of an eighteenth",
    ),
    Statement("R35", "IV.C", "a whole training, 16 GPUs: pp+tp has the least link energy", "lowest", _least_comm),
    Statement("R36", "IV.A", "communication between racks costs time, pp+tp the least", "slower", _slow_link),
)  # fmt: skip
