"""Statements of Lu, Hu, Zhu, Investigating the Energy and Latency Tradeoff in Rack Scale Computing."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from jointopt.core.units import GIB, TERA
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job, shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.memory import memory_parts
from jointopt.studies.blocks import HIDDEN, INNER, MODES, Priced, machine
from jointopt.studies.evidence import NOMINAL, SPANS, STUDIES, Constants, outcomes
from jointopt.studies.statements.rack_training import TRAINING
from jointopt.studies.statements.statement import Finding, Statement, near

# of a compute unit: half a GHz, to sixteen operations in a cycle of 1 GHz
OPEN = {name: span for name, span in SPANS.items() if name in ("batch", "network", "static", "hbm")} | {
    "unit": (0.5, 16.0)
}
COUNTS = (4, 6, 8, 10, 16, 32)
PIPELINES = (12, 24, 48)  # GPUs of the attention block's six products
THREADS = (64, 128, 256, 512, 1024)
BATCH = 16
_TRAINED = 300e9  # tokens of GPT-3
_KWH_J = 3.6e6


@functools.cache
def block(
    kind: str, mode: str, gpus: int, threads: int = 1024, c: Constants = NOMINAL, whole_gpu: bool = False
) -> Priced:
    """One block under one mode; the feed-forward's batch is open, the attention's is the paper's 16."""
    batch = BATCH if kind == "attention" else max(round(BATCH * c.batch), 1)
    return MODES[mode](kind, batch, gpus, machine(threads, c, whole_gpu))


def _ratio(kind: str, first: str, second: str, gpus: int, c: Constants, threads: int = 1024) -> float:
    """Compute latency of the first mode over the second's."""
    return block(kind, first, gpus, threads, c).compute_s / block(kind, second, gpus, threads, c).compute_s


def _comm_j(kind: str, mode: str, gpus: int, c: Constants) -> float:
    found = block(kind, mode, gpus, c=c)
    return found.forward_link_j + found.backward_link_j


def _links(_: Constants) -> Finding:
    beta = 1e12 / 900e9, 1e12 / 50e9
    words = f"{beta[0]:.2f} and {beta[1]:.0f} ps/B from the bandwidths"
    return Finding(words, abs(beta[0] - 1.11) < 0.01 and beta[1] == 20)


def _energy_ratio(_: Constants) -> Finding:
    cluster: Cluster = shipped_job("llama-3-70b-4x8-h200").cluster
    ratio = cluster.inter_node_pj_per_bit / cluster.intra_node_pj_per_bit
    return near(ratio, 20.0 / 1.3, f"{ratio:.1f} times (the paper's own figures stand in the catalogue)")


def _bytes_per_parameter(_: Constants) -> Finding:
    job = shipped_job("llama-3-8b-1x8-h100")
    layout = parse_plan("dp=8 zero_stage=0", replace(job, training=replace(job.training, global_batch_size=8))).layouts
    parts = memory_parts(job, layout)
    held = sum(float(parts[name].max()) for name in ("weights", "gradients", "optimizer"))
    each = held / job.model.parameters
    return near(each, 8.0, f"{each:.0f} bytes a parameter, {each * 100:.0f} GB for 100 B")


def _mfu(c: Constants) -> Finding:
    job = shipped_job("llama-3-8b-1x8-h100")
    found = outcomes(job, ["dp=8 zero_stage=3 micro_batch_size=1 recompute=selective"], replace(c, batch=1.0))[0]
    tokens = job.training.global_batch_size * job.training.seq_length
    peak = 8 * job.cluster.gpu.peak_tflops["bf16"] * TERA
    mfu = 6.0 * job.model.parameters * tokens / (found.iteration_time_s * peak)
    return Finding(f"Llama-3-8B on 8 H100: {mfu:.0%}", 0.33 < mfu < 0.47)


def _gpt3_energy(c: Constants) -> Finding:
    job = load_job(STUDIES / "rack-scale-blocks" / "gpt3-v100.yaml")
    found = outcomes(job, ["tp=8 pp=16 dp=8 micro_batch_size=1 recompute=full"], replace(c, batch=1.0))[0]
    steps = _TRAINED / (job.training.global_batch_size * job.training.seq_length)
    site = job.cluster.pue * (found.energy_j + job.cluster.nodes * job.cluster.host_power_w * found.iteration_time_s)
    mwh, rate = site * steps / _KWH_J / 1e3, _v100_rate(job, found.iteration_time_s)
    words = f"{mwh:,.0f} MWh with hosts and cooling, on 1,024 V100 at {rate:.0f} TFLOP/s each"
    return near(mwh, 1287.0, f"{words} (the estimate: 10,000 at 24.6, so that some of this is chance)")


def _v100_rate(job: Job, seconds: float) -> float:
    tokens = job.training.global_batch_size * job.training.seq_length
    return 6.0 * job.model.parameters * tokens / (seconds * job.cluster.num_gpus * TERA)


def _scaled(nodes: int, per_gpu: int | None, c: Constants) -> tuple[float, float]:
    """Seconds and joules of Llama-3-8B, data parallel on nodes of 8 H100; weak where a batch per GPU is given."""
    job = shipped_job("llama-3-8b-1x8-h100")
    batch = 512 if per_gpu is None else per_gpu * nodes * 8
    job = replace(
        job, training=replace(job.training, global_batch_size=batch, seq_length=8192),
        cluster=replace(job.cluster, nodes=nodes),
    )  # fmt: skip
    plan = f"dp={8 * nodes} zero_stage=1 micro_batch_size=1 recompute=full"
    found = outcomes(job, [plan], replace(c, batch=1.0))[0]
    return found.iteration_time_s, found.energy_j


def _weak_scaling(c: Constants) -> Finding:
    efficiency = _scaled(1, 8, c)[0] / _scaled(32, 8, c)[0]
    return Finding(f"{efficiency:.0%} from 8 to 256 H100", efficiency > 0.85)


def _diminishing(c: Constants) -> Finding:
    joules = [_scaled(nodes, None, c)[1] for nodes in (4, 16, 64)]
    growth = joules[-1] / joules[0] - 1.0
    return Finding(f"{growth:+.1%} energy from 32 to 512 H100 at one batch", bool((np.diff(joules) > 0.0).all()))


def _alike(c: Constants) -> Finding:
    ratios = [_ratio("feed-forward", "tp", "dp", gpus, c) for gpus in COUNTS[:5]]
    words = f"tp over dp {min(ratios):.2f} to {max(ratios):.2f}"
    return Finding(words, min(ratios) > 0.8 and max(ratios) < 1.25)


def _alike_at_32(c: Constants) -> Finding:
    ratio = _ratio("feed-forward", "tp", "dp", 32, c)
    fast = [block("feed-forward", mode, 32, c=c, whole_gpu=True).compute_s for mode in ("tp", "dp")]
    return Finding(f"tp over dp {ratio:.2f} (H100: {fast[0] / fast[1]:.2f})", 0.8 < ratio < 1.25)


def _falls(kind: str, mode: str, counts: tuple[int, ...], c: Constants) -> bool:
    return bool((np.diff([block(kind, mode, n, c=c).compute_s for n in counts]) < 0.0).all())


def _both_fall(c: Constants) -> Finding:
    good = [_falls("feed-forward", mode, COUNTS, c) for mode in ("dp", "tp")]
    times = [f"{1e3 * block('feed-forward', mode, n, c=c).compute_s:.2f}" for mode in ("dp", "tp") for n in (4, 32)]
    return Finding(f"4 to 32 GPUs: dp {times[0]} to {times[1]} ms, tp {times[2]} to {times[3]} ms", all(good))


def _reads_more(c: Constants) -> Finding:
    ratio = block("feed-forward", "tp", 16, c=c).read_j / block("feed-forward", "dp", 16, c=c).read_j
    return Finding(f"{ratio:.1f} times the read energy of dp on 16 GPUs", ratio > 1.2)


def _repeated_weights(_: Constants) -> Finding:
    whole = 2.0 * 2.0 * HIDDEN * INNER
    return Finding(f"dp reads {16 * whole / GIB:.1f} GiB of weights on 16 GPUs, tp {whole / GIB:.1f}", True)


def _stops_at_the_batch(c: Constants) -> Finding:
    at = {mode: [block("attention", mode, n, c=c).compute_s for n in (16, 32)] for mode in ("dp", "tp")}
    words = ", ".join(f"{mode} {1e3 * a:.2f} to {1e3 * b:.2f} ms" for mode, (a, b) in at.items())
    return Finding(f"16 to 32 GPUs: {words}", at["dp"][1] == at["dp"][0] and at["tp"][1] < 0.95 * at["tp"][0])


def _pipeline_slower(c: Constants) -> Finding:
    ratios = [_ratio("feed-forward", "pp+tp", "tp", gpus, c) for gpus in COUNTS]
    return Finding(f"{min(ratios):.2f} to {max(ratios):.2f} times tp", min(ratios) > 1.5)


def _plateau(c: Constants) -> Finding:
    gain = block("feed-forward", "pp+tp", 8, c=c).compute_s / block("feed-forward", "pp+tp", 32, c=c).compute_s
    return Finding(f"8 to 32 GPUs: {gain:.1f} times faster", gain < 1.2)


def _pipeline_reads(c: Constants) -> Finding:
    joules = [block("feed-forward", mode, 16, c=c).read_j for mode in ("dp", "pp+tp")]
    return Finding(f"reads {joules[1] / joules[0]:.1f} times dp's", joules[1] > 1.2 * joules[0])


def _pipeline_writes(c: Constants) -> Finding:
    joules = [block("feed-forward", mode, 16, c=c).written_j for mode in ("dp", "pp+tp")]
    return Finding(f"writes {joules[1] / joules[0]:.1f} times dp's", joules[1] > 1.2 * joules[0])


def _modest(c: Constants) -> Finding:
    ratios = [_ratio("attention", "pp+tp", "tp", gpus, c) for gpus in PIPELINES[:2]]
    good = min(ratios) > 1.0 and max(ratios) < 2.0 and _falls("attention", "pp+tp", PIPELINES, c)
    return Finding(f"{min(ratios):.2f} to {max(ratios):.2f} times tp at 12 and 24 GPUs", good)


def _small_blocks(c: Constants) -> Finding:
    times = {mode: block("attention", mode, 6 if mode == "pp+tp" else 4, 64, c).latency_s for mode in MODES}
    words = ", ".join(f"{mode} {1e3 * seconds:.1f} ms" for mode, seconds in times.items())
    return Finding(f"64 threads: {words}", times["dp"] == min(times.values()))


def _sooner(c: Constants) -> Finding:
    times = {mode: [block("attention", mode, 4, n, c).latency_s for n in (256, 1024)] for mode in ("dp", "tp")}
    gains = {mode: small / large for mode, (small, large) in times.items()}
    words = f"256 to 1,024 threads: dp {gains['dp']:.1f} times, tp {gains['tp']:.1f} times"
    return Finding(words, gains["dp"] < 0.95 * gains["tp"])


def _identical(c: Constants) -> Finding:
    ratios = [_ratio("feed-forward", "tp", "dp", 4, c, threads) for threads in THREADS]
    words = f"compute tp over dp {min(ratios):.2f} to {max(ratios):.2f}"
    return Finding(words, max(abs(ratio - 1.0) for ratio in ratios) < 0.05)


def _orders(c: Constants) -> Finding:
    ratio = max(_ratio("feed-forward", "pp+tp", "tp", 4, c, threads) for threads in THREADS)
    return Finding(f"{ratio:.2f} times tp at most", ratio > 10.0)


def _same_energy(c: Constants) -> Finding:
    dynamic = [found.energy_j - found.at_rest_j for found in (block("feed-forward", "tp", 4, n, c) for n in THREADS)]
    whole = [block("feed-forward", "tp", 4, n, c).energy_j for n in THREADS]
    spread = max(dynamic) / min(dynamic) - 1.0
    words = f"{spread:.0%} without power at rest ({max(whole) / min(whole):.1f} times with it)"
    return Finding(words, spread < 0.1)


def _no_forward_comm(c: Constants) -> Finding:
    every = [block(kind, "dp", n, c=c) for kind in ("feed-forward", "attention") for n in COUNTS]
    ok = all(one.forward_comm_s == one.forward_link_j == 0.0 < one.backward_comm_s for one in every)
    return Finding(f"forward 0, backward up to {1e3 * max(one.backward_comm_s for one in every):.1f} ms", ok)


def _least_comm(c: Constants) -> Finding:
    joules = {mode: _comm_j("feed-forward", mode, 32, c) for mode in MODES}
    words = ", ".join(f"{mode} {value:.2f} J" for mode, value in joules.items())
    return Finding(f"forward and backward: {words}", joules["pp+tp"] == min(joules.values()))


def _least_comm_attention(c: Constants) -> Finding:
    joules = {mode: _comm_j("attention", mode, 24, c) for mode in MODES}
    words = ", ".join(f"{mode} {value:.2f} J" for mode, value in joules.items())
    return Finding(f"24 GPUs: {words}", joules["pp+tp"] == min(joules.values()))


def _least_energy(c: Constants) -> Finding:
    def joules(mode: str, gpus: int) -> float:
        found = block("feed-forward", mode, gpus, c=c)
        return found.energy_j - found.at_rest_j

    least = [min(MODES, key=lambda mode: joules(mode, n)) for n in COUNTS]
    words = ", ".join(f"{mode} {joules(mode, 16):.1f} J" for mode in MODES)
    words = f"16 GPUs without power at rest: {words}; dp is least at {least.count('dp')} of {len(least)} counts"
    return Finding(words, set(least) == {"dp"})


def _not_dominant(c: Constants) -> Finding:
    def share(gpus: int, whole_gpu: bool = False) -> float:
        found = block("feed-forward", "tp", gpus, c=c, whole_gpu=whole_gpu)
        return found.forward_comm_s / found.latency_s

    words = f"at most {max(map(share, COUNTS)):.1%} of the forward pass (16 H100: {share(16, True):.0%})"
    return Finding(words, max(map(share, COUNTS)) < 0.5)


def _goes_on(c: Constants) -> Finding:
    gain, fast = (
        block("attention", "tp", 16, c=c, whole_gpu=whole).latency_s
        / block("attention", "tp", 32, c=c, whole_gpu=whole).latency_s
        for whole in (False, True)
    )
    return Finding(f"with its communication 16 to 32 GPUs: {gain:.2f} times faster (H100: {fast:.2f})", gain > 1.02)


_MAPPER = (
    "the paper's own guess is that its mapper loads weights again for each stage; here a stage keeps its weights, and "
    "pays only the fill of the pipeline, as an ordinary job too (1.06 times tp, rack-scale-jobs). Weights read anew "
    "for every token would take six tenths of an H100's memory bandwidth, or 41 times that of NDR 400"
)
STATEMENTS = (
    Statement("R1", "III.B", "NVLink-C2C 900 GB/s is 1.11 ps/B, NDR 400 20 ps/B", "1.11, 20", _links, varies=False),
    Statement("R2", "III.B", "a bit: 20 pJ between racks, 1.3 over NVLink", "15.4 times", _energy_ratio, varies=False),
    Statement(
        "R3", "I", "100 B parameters need 800 GB to train in FP16", "8 B/parameter", _bytes_per_parameter,
        "Adam with fp32 master and moments takes 16 to 18 bytes, as every framework of the catalogue holds it",
        varies=False,
    ),
    Statement("R4", "I", "utilization of 35 to 45 % at small scales", "35-45 %", _mfu),
    Statement("R5", "I", "GPT-3's training took 1,287 MWh", "1,287 MWh", _gpt3_energy),
    Statement("R6", "II.A", "data parallelism scales to hundreds of GPUs above 85 %", "> 85 %", _weak_scaling),
    Statement("R7", "I", "energy efficiency diminishes with scale", "diminishes", _diminishing),
    Statement("R8", "2", "feed-forward: dp and tp have similar latency, 4 to 16 GPUs", "equivalent", _alike),
    Statement("R32", "2", "the same on 32 GPUs", "equivalent", _alike_at_32),
    Statement("R9", "2", "feed-forward: both fall with GPUs", "fall", _both_fall),
    Statement("R10", "6", "tp: higher energy of memory reads than dp", "noticeably", _reads_more),
    Statement("R11", "IV.A", "dp loads weights again, tp does not", "repeated", _repeated_weights, varies=False),
    Statement("R12", "4", "attention: dp stops at its batch of 16, tp goes on", "16 GPUs", _stops_at_the_batch),
    Statement("R13", "3", "feed-forward: pp+tp is significantly slower", "significant", _pipeline_slower, _MAPPER),
    Statement("R14", "3", "feed-forward: pp+tp plateaus after 8 GPUs", "plateau", _plateau, _MAPPER),
    Statement("R15", "6", "pp+tp: more energy of main memory reads", "marked", _pipeline_reads),
    Statement("R16", "6", "pp+tp: more energy of memory writes", "marked", _pipeline_writes),
    Statement("R17", "5", "attention: pp+tp is modestly slower than tp, and falls with GPUs", "modest", _modest),
    Statement("R18", "7", "attention, small GPUs: dp is the fastest", "dp", _small_blocks),
    Statement(
        "R19", "7", "attention: dp plateaus sooner with GPU size", "sooner", _sooner,
        "both are bound by their compute units at every size; with those of an H100 what does not shrink is tp's "
        "communication",
    ),
    Statement("R20", "8", "feed-forward: dp and tp nearly identical at every size", "identical", _identical),
    Statement("R21", "8", "feed-forward: pp+tp two orders of magnitude slower", "100 times", _orders, _MAPPER),
    Statement("R22", "9", "energy does not depend on block size", "not significant", _same_energy),
    Statement("R23", "10, 11", "dp has no communication forward, some backward", "0", _no_forward_comm),
    Statement("R24", "10", "pp+tp has the least communication energy at 32 GPUs", "lowest", _least_comm),
    Statement(
        "R25", "10", "the same of the attention block", "lowest", _least_comm_attention,
        "without flash attention its scores, 4 GiB, go from one product's GPUs to the next",
    ),
    Statement("R26", "IV.C", "dp takes the least energy", "least", _least_energy),
    Statement("R27", "11", "tp's communication does not dominate", "not dominant", _not_dominant),
    Statement("R28", "IV.C", "tp goes on gaining past dp's plateau, communication and all", "goes on", _goes_on),
    Statement(
        "R29", "12, 13", "energy over GPU counts, transformer", "unused figures",
        why="an appendix without a word on them; ours in studies/rack-scale-blocks",
    ),
    Statement("R30", "II.B", "in-network reduction: 2 to 5 times less latency", "2-5", why="not in the model"),
    Statement(
        "R31", "II.D", "energy and latency vary 20 times over loop nests", "> 20",
        why="the model has no mapper of loop nests",
    ),
    Statement(
        "R37", "1", "how each mode splits a feed-forward block", "a diagram",
        why="a diagram without a figure; the modes are those of studies/blocks.py",
    ),
    *TRAINING,
)  # fmt: skip
