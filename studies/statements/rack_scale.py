"""Statements of Lu, Hu, Zhu, Investigating the Energy and Latency Tradeoff in Rack Scale Computing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from jointopt.core.schema import Floats
from jointopt.core.units import GIB, TERA
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job, shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.memory import memory_parts
from jointopt.studies.blocks import HIDDEN, INNER, MODES, Priced, machine, pipelined
from jointopt.studies.evidence import NOMINAL, SPANS, STUDIES, Constants, outcomes
from jointopt.studies.statements import rack_training
from jointopt.studies.statements.statement import ENERGY, Finding, Grade, Statement, alike, either, near, order, whole

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


def _ratio(kind: str, gpus: int, c: Constants, whole_gpu: bool, threads: int = 1024) -> float:
    """Compute latency of pp+tp over tp's."""
    pipeline, tensor = (block(kind, mode, gpus, threads, c, whole_gpu).compute_s for mode in ("pp+tp", "tp"))
    return pipeline / tensor


def _comm_j(kind: str, mode: str, gpus: int, c: Constants) -> float:
    found = block(kind, mode, gpus, c=c)
    return found.forward_link_j + found.backward_link_j


def _links(_: Constants) -> Finding:
    words = f"{1e12 / 900e9:.2f} and {1e12 / 50e9:.0f} ps/B, the bandwidths turned over"
    return Finding(words, Grade.INPUT)


def _energy_ratio(_: Constants) -> Finding:
    cluster: Cluster = shipped_job("llama-3-70b-4x8-h200").cluster
    words = (
        f"{cluster.inter_node_pj_per_bit:g} and {cluster.intra_node_pj_per_bit:g} pJ, the paper's own in the catalogue"
    )
    return Finding(words, Grade.INPUT)


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
    return Finding(f"Llama-3-8B on 8 H100: {mfu:.0%}", Grade.REPRODUCED if 0.35 <= mfu <= 0.45 else Grade.CONTRADICTED)


def _gpt3_energy(c: Constants) -> Finding:
    job = load_job(STUDIES / "rack-scale-blocks" / "gpt3-v100.yaml")
    found = outcomes(job, ["tp=8 pp=16 dp=8 micro_batch_size=1 recompute=full"], replace(c, batch=1.0))[0]
    steps = _TRAINED / (job.training.global_batch_size * job.training.seq_length)
    site = job.cluster.pue * (found.energy_j + job.cluster.nodes * job.cluster.host_power_w * found.iteration_time_s)
    mwh, rate = site * steps / _KWH_J / 1e3, _v100_rate(job, found.iteration_time_s)
    words = f"{mwh:,.0f} MWh with hosts and cooling, on 1,024 V100 at {rate:.0f} TFLOP/s each"
    return near(mwh, 1287.0, words)


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
    return order(f"{efficiency:.0%} from 8 to 256 H100", efficiency / 0.85)


def _diminishing(c: Constants) -> Finding:
    joules = [_scaled(nodes, None, c)[1] for nodes in (4, 16, 64)]
    growth = joules[-1] / joules[0] - 1.0
    return order(f"{growth:+.1%} energy from 32 to 512 H100 at one batch", joules[-1] / joules[0], ENERGY)


_UNITS = {"Timeloop's units": False, "an H100's": True}  # whose rate the paper leaves open


def _by_units(check: Callable[[Constants, bool], Finding], c: Constants) -> Finding:
    """With either compute unit."""
    found = [(words, check(c, whole_gpu)) for words, whole_gpu in _UNITS.items()]
    return either(*(replace(one, ours=f"{words}: {one.ours}") for words, one in found))


def _alike(c: Constants, whole_gpu: bool) -> Finding:
    dp, tp = ([_compute_s(mode, n, c, whole_gpu) for n in COUNTS] for mode in ("dp", "tp"))
    ratios = np.divide(tp, dp)
    return alike(f"tp over dp {ratios.min():.2f} to {ratios.max():.2f}", ratios)


def _compute_s(mode: str, gpus: int, c: Constants, whole_gpu: bool, threads: int = 1024) -> float:
    return block("feed-forward", mode, gpus, threads, c, whole_gpu).compute_s


def _pipeline_steps(c: Constants, whole_gpu: bool) -> Floats:
    """Compute latency of the attention's pipelines over that on twice as many GPUs."""
    times = np.array([block("attention", "pp+tp", n, 1024, c, whole_gpu).compute_s for n in PIPELINES])
    return np.asarray(times[:-1] / times[1:])


def _both_fall(c: Constants, whole_gpu: bool) -> Finding:
    times = np.array([[_compute_s(mode, n, c, whole_gpu) for n in (4, 8, 16, 32)] for mode in ("dp", "tp")])
    (first, last), (second, end) = 1e3 * times[:, [0, -1]]
    words = f"dp {first:,.1f} to {last:,.1f} ms, tp {second:,.1f} to {end:,.1f} ms"
    return order(words, times[:, :-1] / times[:, 1:])


def _traffic(mode: str, others: tuple[str, ...], kind: str, c: Constants) -> Finding:
    """Memory traffic over others' on 16 GPUs: forward, and as a job with its backward pass, by rack-scale-jobs."""
    name, forward = {"read": "read_j", "written": "written_j"}[kind], functools.partial(block, "feed-forward")
    table = pd.read_csv(STUDIES / "rack-scale-jobs" / "table.csv")
    table = table[(table["sweep"] == "GPUs") & (table["block"] == "feed-forward") & (table["GPUs"] == 16)]
    job = table.set_index("mode")[f"memory {kind} J"]
    ratios = [getattr(forward(mode, 16, c=c), name) / getattr(forward(one, 16, c=c), name) for one in others]
    both = [float(job[mode] / job[one]) for one in others]
    words = [
        ", ".join(f"{value:.2f} times {one}'s" for one, value in zip(others, each, strict=True))
        for each in (ratios, both)
    ]
    return either(order(f"{kind} {words[0]} on 16 GPUs", ratios), order(f"with its backward pass {words[1]}", both))


def _repeated_weights(_: Constants) -> Finding:
    each = 2.0 * 2.0 * HIDDEN * INNER
    return Finding(
        f"dp reads {16 * each / GIB:.1f} GiB of weights on 16 GPUs, tp {each / GIB:.1f}, by definition", Grade.INPUT
    )


def _stops_at_the_batch(c: Constants, whole_gpu: bool) -> Finding:
    """Compute latency, as its figure has it."""
    at = {mode: [block("attention", mode, n, 1024, c, whole_gpu).compute_s for n in (16, 32)] for mode in ("dp", "tp")}
    words = ", ".join(f"{mode} {1e3 * a:.2f} to {1e3 * b:.2f} ms" for mode, (a, b) in at.items())
    return whole(order(words, at["tp"][0] / at["tp"][1]), alike("", at["dp"][0] / at["dp"][1]))


def _pipeline_slower(c: Constants, whole_gpu: bool) -> Finding:
    ratios = np.array([_ratio("feed-forward", gpus, c, whole_gpu) for gpus in COUNTS])
    return order(f"{ratios.min():.2f} to {ratios.max():.2f} times tp", ratios)


def _plateau(c: Constants, whole_gpu: bool) -> Finding:
    few, many = (_compute_s("pp+tp", n, c, whole_gpu) for n in (8, 32))
    return alike(f"8 to 32 GPUs: {few / many:.1f} times faster", few / many)


def _gains_diminish(c: Constants, whole_gpu: bool) -> Finding:
    first, second = _pipeline_steps(c, whole_gpu)
    return order(f"{first:.2f} times faster from 12 to 24 GPUs, {second:.2f} from 24 to 48", first / second)


def _modest(c: Constants, whole_gpu: bool) -> Finding:
    """Modest: a quarter more at most."""
    ratios = np.array([_ratio("attention", gpus, c, whole_gpu) for gpus in PIPELINES[:2]])
    words = f"{ratios.min():.2f} to {ratios.max():.2f} times tp at 12 and 24 GPUs"
    return whole(order(words, ratios, sized=ratios.max() < 1.25), order("", _pipeline_steps(c, whole_gpu)))


def _latency_s(mode: str, threads: int, c: Constants, whole_gpu: bool) -> float:
    """Of the attention on few GPUs, communication among it."""
    return block("attention", mode, 6 if mode == "pp+tp" else 4, threads, c, whole_gpu).latency_s


def _small_blocks(c: Constants, whole_gpu: bool) -> Finding:
    times = {mode: _latency_s(mode, 64, c, whole_gpu) for mode in MODES}
    words = ", ".join(f"{mode} {1e3 * seconds:.1f} ms" for mode, seconds in times.items())
    return order(f"64 threads: {words}", [times[mode] / times["dp"] for mode in ("tp", "pp+tp")])


def _sooner(c: Constants, whole_gpu: bool) -> Finding:
    """Dp gains nothing from more threads, the others do."""
    gains = {mode: _latency_s(mode, 256, c, whole_gpu) / _latency_s(mode, 1024, c, whole_gpu) for mode in MODES}
    words = ", ".join(f"{mode} {gain:.1f} times" for mode, gain in gains.items())
    later = [gains[mode] / gains["dp"] for mode in ("tp", "pp+tp")]
    return whole(alike(f"256 to 1,024 threads: {words} as fast", gains["dp"]), order("", later))


def _identical(c: Constants, whole_gpu: bool) -> Finding:
    dp, tp = ([_compute_s(mode, 4, c, whole_gpu, n) for n in THREADS] for mode in ("dp", "tp"))
    ratios = np.divide(tp, dp)
    return alike(f"tp over dp {ratios.min():.2f} to {ratios.max():.2f}", ratios)


def _orders(c: Constants, whole_gpu: bool) -> Finding:
    ratio = max(_ratio("feed-forward", 4, c, whole_gpu, threads) for threads in THREADS)
    return near(ratio, 100.0, f"{ratio:.2f} times tp at most")


def _same_energy(c: Constants) -> Finding:
    """With an H100's power at rest beside so many units, and without any."""
    found = [block("feed-forward", "tp", 4, n, c) for n in THREADS]
    dynamic, total = (
        np.array([one.energy_j - one.at_rest_j for one in found]),
        np.array([one.energy_j for one in found]),
    )
    spans = [float(joules.max() / joules.min()) for joules in (dynamic, total)]
    return either(
        alike(f"{spans[0] - 1.0:.0%} without power at rest", spans[0], ENERGY),
        alike(f"{spans[1]:.1f} times with an H100's", spans[1], ENERGY),
    )


def _no_forward_comm(c: Constants) -> Finding:
    most = max(block(kind, "dp", n, c=c).backward_comm_s for kind in ("feed-forward", "attention") for n in COUNTS)
    return Finding(f"forward 0 by definition, backward up to {1e3 * most:.1f} ms", Grade.INPUT)


def _least_comm(c: Constants) -> Finding:
    """Whether the next stage gathers whole rows or not; and its latency is the higher one, with either unit."""
    sent = either(_comm_energies("feed-forward", 32, c), _comm_energies("feed-forward", 32, c, gathers=True))
    return whole(sent, _by_units(_later, c))


def _later(c: Constants, whole_gpu: bool) -> Finding:
    late = _ratio("feed-forward", 32, c, whole_gpu)
    return order(f"{late:.2f} times tp's latency", late)


def _comm_energies(kind: str, gpus: int, c: Constants, gathers: bool = False) -> Finding:
    joules = {mode: _comm_j(kind, mode, gpus, c) for mode in MODES}
    words = ", ".join(f"{mode} {value:.2f} J" for mode, value in joules.items())
    words = f"{gpus} GPUs, forward and backward: {words}"
    if gathers:
        found = pipelined(kind, BATCH, gpus, machine(1024, c), gathers=True)
        joules["pp+tp"] = found.forward_link_j + found.backward_link_j
        words = f"with rows gathered pp+tp {joules['pp+tp']:.2f} J"
    return order(words, [joules[mode] / joules["pp+tp"] for mode in ("dp", "tp")])


def _least_energy(c: Constants) -> Finding:
    """Of both blocks, with an H100's power at rest beside so many units, and without any."""
    parts = []
    for words, rest in {"without power at rest": 0.0, "with an H100's": 1.0}.items():
        ratios, shown = [], []
        for kind, counts in {"feed-forward": COUNTS, "attention": PIPELINES[:2]}.items():
            found = {mode: np.array([_energy_j(kind, mode, n, rest, c) for n in counts]) for mode in MODES}
            shown.append(kind + " " + ", ".join(f"{mode} {joules[-1]:.1f} J" for mode, joules in found.items()))
            ratios += [ratio for mode in ("tp", "pp+tp") for ratio in found[mode] / found["dp"]]
        parts.append(order(f"32 and 24 GPUs {words}: {', '.join(shown)}", ratios, ENERGY))
    return either(*parts)


def _energy_j(kind: str, mode: str, gpus: int, rest: float, c: Constants) -> float:
    found = block(kind, mode, gpus, c=c)
    return found.energy_j - (1.0 - rest) * found.at_rest_j


def _not_dominant(c: Constants, whole_gpu: bool) -> Finding:
    """Forward and backward, which computes twice as much: less than half of the time."""
    priced = [block("feed-forward", "tp", n, c=c, whole_gpu=whole_gpu) for n in COUNTS]
    sent = [one.forward_comm_s + one.backward_comm_s for one in priced]
    shares = np.divide(sent, [3.0 * one.compute_s + s for one, s in zip(priced, sent, strict=True)])
    return order(f"at most {shares.max():.1%} of both passes", 0.5 / shares)


def _between_racks(c: Constants) -> Finding:
    times = [block("feed-forward", "tp", n, c=c).forward_comm_s for n in COUNTS]
    words = ", ".join(f"{1e3 * seconds:.2f}" for seconds in times)
    return Finding(f"tp on {', '.join(map(str, COUNTS))} GPUs in domains of 8: {words} ms", Grade.INPUT)


_MAPPER = (
    "the paper's own guess is that its mapper loads weights again for each stage; here a stage keeps its weights, and "
    "pays only the fill of the pipeline, as an ordinary job too (1.06 times tp, rack-scale-jobs). Weights read anew "
    "for every token would take six tenths of an H100's memory bandwidth, or 41 times that of NDR 400"
)
_REVERSED = (
    "which passes the figure has would tell: with the backward one, as the package prices an ordinary job, gradients "
    "of weights, whole on every GPU of dp, are most of the traffic"
)
_LEVELS = "The paper has a main memory beside that of GPUs, the model has theirs alone, which stands for both"
_RATE = (
    "the rate of the paper's compute units would tell: by Timeloop's blocks are bound by them, as the paper has it, by "
    "an H100's they are not"
)
STATEMENTS = (
    Statement("R1", "III.B", "NVLink-C2C 900 GB/s is 1.11 ps/B, NDR 400 20 ps/B", "1.11, 20", _links, varies=False),
    Statement("R2", "III.B", "a bit: 20 pJ between racks, 1.3 over NVLink", "20, 1.3", _energy_ratio, varies=False),
    Statement(
        "R3", "I", "100 B parameters need 800 GB to train in FP16", "8 B/parameter", _bytes_per_parameter,
        "the paper's footnote counts weights, gradients and optimizer states at 2 bytes; Adam with fp32 master and "
        "moments takes 16 to 18, as every framework of the catalogue holds it",
        varies=False,
    ),
    Statement("R4", "I", "MFU of 35 to 45 % at small scales", "35-45 %", _mfu),
    Statement(
        "R5", "I", "GPT-3's training took 1,287 MWh", "1,287 MWh", _gpt3_energy,
        "the estimate counts 10,000 V100 at 24.6 TFLOP/s: the size is partly chance",
    ),
    Statement("R6", "II.A", "data parallelism scales to hundreds of GPUs above 85 %", "> 85 %", _weak_scaling),
    Statement("R7", "I", "energy efficiency diminishes with scale", "diminishes", _diminishing),
    Statement(
        "R8", "2", "feed-forward: dp and tp have similar latency, 4 to 32 GPUs", "equivalent",
        functools.partial(_by_units, _alike), _RATE,
    ),
    Statement("R9", "2", "feed-forward: both fall with GPUs", "fall", functools.partial(_by_units, _both_fall)),
    Statement(
        "R10", "6", "tp: higher energy of memory reads than dp", "noticeably",
        functools.partial(_traffic, "tp", ("dp",), "read"), f"{_REVERSED}. {_LEVELS}",
    ),
    Statement("R11", "IV.A", "dp loads weights again, tp does not", "repeated", _repeated_weights, varies=False),
    Statement(
        "R12", "4, IV.C", "attention: dp stops at its batch of 16, tp goes on", "16 GPUs",
        functools.partial(_by_units, _stops_at_the_batch),
        "that dp stops is put in, it splits by sequences; in a whole training all-reduces cross between domains from "
        "16 GPUs on",
        (("a whole training, tp", rack_training.tensor_goes_on),),
    ),
    Statement("R13", "3", "feed-forward: pp+tp is significantly slower", "significant",
        functools.partial(_by_units, _pipeline_slower),
    ),
    Statement("R14", "3", "feed-forward: pp+tp plateaus after 8 GPUs", "plateau",
        functools.partial(_by_units, _plateau), _MAPPER,
    ),
    Statement(
        "R15", "6", "pp+tp: more energy of main memory reads than dp and tp", "marked",
        functools.partial(_traffic, "pp+tp", ("dp", "tp"), "read"), "as R10",
    ),
    Statement(
        "R16", "6", "pp+tp: more energy of memory writes than dp and tp", "marked",
        functools.partial(_traffic, "pp+tp", ("dp", "tp"), "written"),
        "forward tp, with its backward pass dp writes the most: either reverses a pair. Memories as R10",
    ),
    Statement(
        "R17", "5", "attention: pp+tp is modestly slower than tp, and falls with GPUs", "modest",
        functools.partial(_by_units, _modest),
        f"{_RATE}; two thirds more is not modest",
    ),
    Statement("R32", "IV.C", "attention: pp+tp gains less with each doubling", "diminish",
        functools.partial(_by_units, _gains_diminish),
    ),
    Statement("R18", "7", "attention, small GPUs: dp is the fastest", "dp",
        functools.partial(_by_units, _small_blocks), "by .007 % before tp",
    ),
    Statement(
        "R19", "7", "attention: dp plateaus sooner with GPU size than tp and pp+tp", "sooner",
        functools.partial(_by_units, _sooner),
        "all are bound by their compute units at every size; with those of an H100 what does not shrink is tp's "
        "communication",
    ),
    Statement("R20", "8", "feed-forward: dp and tp nearly identical at every size", "identical",
        functools.partial(_by_units, _identical),
    ),
    Statement("R21", "8", "feed-forward: pp+tp two orders of magnitude slower", "100 times",
        functools.partial(_by_units, _orders), "as R14",
    ),
    Statement(
        "R22", "9", "energy does not depend on block size", "not significant", _same_energy,
        "operations and bytes are the same by definition; what a GPU of few units draws at rest would tell",
    ),
    Statement("R23", "10, 11", "dp has no communication forward, some backward", "0", _no_forward_comm, varies=False),
    Statement(
        "R24", "10", "pp+tp has the least communication energy at 32 GPUs, despite a higher latency", "lowest",
        _least_comm,
        "whether figure 10 has the full input rows of IV.A, which ranks gather, would tell; 32 GPUs are a count of the "
        "feed-forward's, attention's unfused scores, 4 GiB, go from one product's GPUs to the next",
        (
            ("attention", functools.partial(_comm_energies, "attention", 24)),
            ("a whole training", rack_training.least_comm),
        ),
    ),
    Statement(
        "R26", "IV.C", "dp takes the least energy", "least", _least_energy,
        "what a GPU of few units draws at rest would tell", (("a whole training", rack_training.least_energy),),
    ),
    Statement("R27", "11", "tp's communication does not dominate", "not dominant",
        functools.partial(_by_units, _not_dominant), _RATE,
    ),
    Statement(
        "R36", "IV.A", "communication grows with GPUs, most where it leaves a rack", "slower", _between_racks,
        "the paper's bandwidths and ring, put in",
        also=(("a whole training", rack_training.slow_link),),
    ),
    Statement(
        "R29", "12, 13", "energy over GPU counts, transformer", "unused figures",
        note="an appendix without a word on them; the figures would tell. Ours in studies/rack-scale-blocks",
    ),
    Statement(
        "R30", "II.B", "in-network reduction: 2 to 5 times less latency", "2-5",
        note="collectives of the model end at GPUs; timings with and without SHARP would be needed",
    ),
    Statement(
        "R31", "II.D", "energy and latency vary 20 times over loop nests", "> 20",
        note="the model has no mapper of loop nests; Timeloop has",
    ),
    Statement(
        "R37", "1", "how each mode splits a feed-forward block", "a diagram",
        note="a diagram has nothing to compare; the modes are those of studies/blocks.py",
    ),
)  # fmt: skip
