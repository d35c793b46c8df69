"""Runs of made-up clusters whose truth is known: tables to learn from, as `jointopt retrain` reads them.

T: the physics of this package times steps and interactions that it does not know. T2: larger ones, which depend on
shapes of kernels and on the clock. C: the same of kernels that follow
the clock otherwise (`FOLLOWING`). S: another simulator with equations of its own (saturating products, links shared by
what crosses them, an event-driven pipeline), which shares no code with the physics. All are one cluster of H100 nodes,
ten models, plans drawn from the feasible space, noise of 2 %.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options
from jointopt.jobs.model import Model
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel, memory_limit_gib
from jointopt.physics.memory import peak_memory_bytes
from jointopt.physics.sensitivities import with_clock_shares
from jointopt.report.plans import plan_frame

MODELS = (
    "llama-3-8b", "llama-2-7b", "llama-2-13b", "llama-3-70b", "qwen2-7b", "qwen3-32b", "qwen2-72b", "gpt-neox-20b",
    "opt-30b", "pythia-12b",
)  # fmt: skip
GPU, FRAMEWORK, NOISE = "h100-sxm5-80gb", "megatron-lm", 0.02
FOLLOWING = 0.75, 0.2  # of C: shares of compute-bound and of other kernels' time that follow the clock
MOST_LAYOUTS = 400  # of one job, drawn before they are priced
DEEPEST = 16
GIB = 2.0**30


@dataclass(frozen=True)
class Drawn:
    """Plans of one job, (n,): layouts, one clock each, and the physics' time and power."""

    job: Job
    layouts: Columns
    clock_mhz: Floats
    time_s: Floats
    power_w: Floats

    def take(self, rows: Ints) -> Drawn:
        """Some of the plans."""
        layouts = {name: values[rows] for name, values in self.layouts.items()}
        return Drawn(self.job, layouts, self.clock_mhz[rows], self.time_s[rows], self.power_w[rows])


def jobs(rng: np.random.Generator, models: tuple[str, ...] = MODELS) -> Iterator[Job]:
    """Jobs without end, the models in turn, on 8 to 256 GPUs."""
    while True:
        for model in models:
            gpus = int(rng.choice([8, 16, 32, 64, 128, 256]))
            tokens, seq_length = 2 ** int(rng.integers(19, 23)), int(rng.choice([2048, 4096, 8192]))
            batch = max(tokens // seq_length, gpus)
            yield job_from_options(model, GPU, gpus, batch, seq_length, dtype="bf16", framework=FRAMEWORK)


def draw(job: Job, rng: np.random.Generator, count: int, *, clocks: bool) -> Drawn | None:
    """At most ``count`` plans of a job that fit in memory, at the highest clock or at ``clocks`` of all kinds."""
    layouts = enumerate_layouts(job).layouts
    some = np.flatnonzero((layouts["pp"] <= DEEPEST) & (layouts["dp_replicate"] == 1))
    some = rng.permutation(some)[:MOST_LAYOUTS]
    layouts = {name: values[some] for name, values in layouts.items()}
    fits = np.flatnonzero(peak_memory_bytes(job, layouts) <= memory_limit_gib(job) * GIB)[:count] if len(some) else some
    if not len(fits):
        return None
    layouts = {name: values[fits] for name, values in layouts.items()}
    physics, top = CostModel(job, layouts), job.cluster.gpu.clock_max_mhz or 1.0
    clock = top * (rng.uniform(0.6, 1.0, len(fits)) if clocks else np.ones(len(fits)))
    clock = np.round(clock / 15.0) * 15.0
    stages = np.where(np.isfinite(uniform_stage_clocks(layouts["pp"], top)), clock[:, None], np.nan)
    found = physics.evaluate(np.arange(len(fits)), stages)
    return Drawn(job, layouts, clock, found["iteration_time_s"], found["avg_power_w"])


def table(
    truth: str, rows: int, seed: int = 0, *, models: tuple[str, ...] = MODELS, clocks: bool = False
) -> pd.DataFrame:
    """A measurement table of so many ``rows`` of one of `TRUTHS`; ``clocks``: at clocks of all kinds, with power."""
    rng = np.random.default_rng(seed)
    parts: list[pd.DataFrame] = []
    count, each = 0, max(2, min(12, rows // len(models)))
    for job in jobs(rng, models):
        plans = draw(with_clock_shares(job, *FOLLOWING) if truth == "C" else job, rng, each, clocks=clocks)
        if plans is None:
            continue
        parts.append(_rows(plans, *TRUTHS[truth](plans, rng)))
        count += len(parts[-1])
        if count >= rows:
            break
    found = pd.concat(parts, ignore_index=True).head(rows)
    return found if clocks else found.drop(columns=["avg_power_w", "energy_j"])


def _rows(plans: Drawn, time_s: Floats, power_w: Floats) -> pd.DataFrame:
    job, count = plans.job, len(plans.time_s)
    power_w = np.minimum(power_w, job.cluster.power_limit_w)  # as a board would
    frame = plan_frame(plans.layouts | {"stage_clock_mhz": plans.clock_mhz[:, None]})
    return frame.drop(columns="stage_clock_mhz").assign(
        source="own cluster", group=f"{job.model.name}/{job.cluster.num_gpus}/{job.training.seq_length}",
        model=job.model.name, framework=FRAMEWORK, gpu=GPU, gpus_per_node=job.cluster.gpus_per_node,
        num_gpus=job.cluster.num_gpus, seq_length=job.training.seq_length, dtype=job.training.dtype,
        global_batch_size=job.training.global_batch_size, clock_mhz=plans.clock_mhz, status="ok",
        iteration_time_s=time_s, avg_power_w=power_w, energy_j=power_w * time_s * np.full(count, job.cluster.num_gpus),
    )  # fmt: skip


# --- T: the physics with steps


def physics_with_steps(plans: Drawn, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Time and power of truth T, (n,)."""
    lay, model = plans.layouts, plans.job.model
    nodes = plans.job.cluster.nodes
    factor = np.full(len(plans.time_s), 1.12)
    factor *= np.where(lay["tp"] >= 8, 1.0 + 0.08 * (8192 / model.hidden_size), 1.0)
    factor *= np.where((lay["pp"] > 1) & (lay["vpp"] == 1), 1.06, 1.0)
    factor *= np.where(lay["micro_batch_size"] >= 4, 0.94, 1.0)
    factor *= np.where(lay["cp"] > 1, 1.10, 1.0)
    factor *= np.where((lay["tp"] > 1) & ~lay["sequence_parallel"].astype(bool), 1.05, 1.0)
    factor *= 1.0 + 0.03 * np.log2(nodes) * (lay["dp"] > 8)
    factor *= np.where(model.hidden_size >= 8192, 0.95, 1.0)
    factor *= np.where(lay["recompute"] == 2, 0.97, 1.0)
    share = plans.clock_mhz / plans.clock_mhz.max()
    power = plans.power_w * (1.08 - 0.05 * (lay["tp"] >= 4) + 0.06 * (lay["pp"] > 1)) * (0.9 + 0.1 * share)
    noise = np.exp(NOISE * rng.standard_normal((2, len(factor))))
    return plans.time_s * factor * noise[0], power * noise[1]


def physics_with_interactions(plans: Drawn, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Time and power of truth T2, (n,)."""
    lay, model, seq_length = plans.layouts, plans.job.model, plans.job.training.seq_length
    width, tokens = model.hidden_size / lay["tp"], lay["micro_batch_size"] * seq_length / lay["cp"]
    share = plans.clock_mhz / (plans.job.cluster.gpu.clock_max_mhz or 1.0)
    factor = np.full(len(plans.time_s), 1.1)
    factor *= np.where(width < 1024, 1.0 + 0.25 * (tokens < 8192), np.where(width < 2048, 1.08, 1.0))
    factor *= np.where(tokens % 8192 != 0, 1.10, 1.0) * np.where(width % 512 != 0, 1.12, 1.0)
    factor *= np.where((lay["pp"] > 1) & (lay["vpp"] == 1), 1.0 + 0.04 * np.log2(np.maximum(lay["pp"], 1)), 1.0)
    factor *= np.where((lay["tp"] > 1) & ~lay["sequence_parallel"].astype(bool), 1.0 + 0.06 * np.log2(lay["tp"]), 1.0)
    factor *= np.where((lay["cp"] > 1) & (seq_length < 8192), 1.18, 1.0)
    factor *= 1.0 + 0.05 * np.log2(plans.job.cluster.nodes) * (lay["dp"] * lay["cp"] > 8)
    factor *= np.where((lay["recompute"] == 2) & (lay["tp"] < 4), 0.92, 1.0)
    factor *= np.where(share < 0.75, 1.0 + 0.12 * (lay["tp"] >= 4), 1.0)
    factor *= np.where(model.num_query_groups < model.num_attention_heads, 0.93, 1.0)
    power = plans.power_w * (1.05 - 0.08 * (width < 2048) + 0.07 * (lay["pp"] > 1) - 0.06 * (tokens < 4096))
    noise = np.exp(NOISE * rng.standard_normal((2, len(factor))))
    return plans.time_s * factor * noise[0], power * (0.85 + 0.15 * share) * noise[1]


# --- S: a simulator of its own

PEAK, HBM, NVLINK, FABRIC = 989e12, 3.35e12, 360e9, 42e9  # flop/s; bytes/s of a GPU
NVLINK_S, FABRIC_S, LAUNCH_S, HOST_S = 9e-6, 18e-6, 5e-6, 2.5e-3
STATIC_W, DYNAMIC_W, LINK_W = 130.0, 560.0, 60.0


def simulated(plans: Drawn, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Time and power of truth S, (n,)."""
    found = np.array([_simulated(plans, row) for row in range(len(plans.time_s))])
    noise = np.exp(NOISE * rng.standard_normal(found.shape))
    return found[:, 0] * noise[:, 0], found[:, 1] * noise[:, 1]


def _simulated(plans: Drawn, row: int) -> tuple[float, float]:
    """Seconds of an iteration and watts of a GPU of one plan."""
    job = plans.job
    lay = {name: int(values[row]) for name, values in plans.layouts.items()}
    model, batch = job.model, job.training.global_batch_size
    speed = plans.clock_mhz[row] / (job.cluster.gpu.clock_max_mhz or 1.0)
    forward, backward, busy = _layer_s(model, lay, job.training.seq_length, speed)
    chunk = model.num_layers / (lay["pp"] * lay["vpp"])
    head = 2.0 * _tokens(job, lay) * model.hidden_size * model.vocab_size / lay["tp"] / (0.6 * PEAK * speed)
    send = _tokens(job, lay) * model.hidden_size * 2 / lay["tp"] / FABRIC + FABRIC_S if lay["pp"] > 1 else 0.0
    micro_batches = batch // (lay["dp"] * lay["micro_batch_size"])
    stages = [[chunk * forward, chunk * backward] for _ in range(lay["pp"])]
    stages[-1][0] += head / lay["vpp"]
    stages[-1][1] += 2.0 * head / lay["vpp"]
    pipeline = _events(stages, micro_batches * lay["vpp"], send)
    pipeline += (1.0 / lay["vpp"] - 1.0) * (lay["pp"] - 1) * chunk * (forward + backward)
    end, optimizer = _reduction_s(job, lay, pipeline), 12.0 * _parameters(model, lay) / max(lay["dp"], 1) / HBM
    time_s = pipeline + end + optimizer + HOST_S * (1.0 + 0.1 * lay["pp"]) + 2e-4 * micro_batches
    active = busy * chunk * lay["vpp"] * micro_batches * (forward + backward) / time_s
    return time_s, STATIC_W + DYNAMIC_W * min(active, 1.0) * speed**2.2 + LINK_W * (1.0 - min(active, 1.0))


def _tokens(job: Job, lay: dict[str, int]) -> float:
    return lay["micro_batch_size"] * job.training.seq_length / lay["cp"]


def _parameters(model: Model, lay: dict[str, int]) -> float:
    return model.parameters / (lay["tp"] * lay["pp"])


def _product_s(m: float, n: float, k: float, speed: float) -> float:
    """A product whose share of the peak saturates with its three sides; tiles of 128 that do not fill are wasted."""
    filled = (m / (128 * np.ceil(m / 128))) * (n / (128 * np.ceil(n / 128)))
    share = 0.74 * filled * (m / (m + 900)) * (n / (n + 500)) * (k / (k + 350))
    return float(2.0 * m * n * k / (PEAK * speed * share) + LAUNCH_S)


def _layer_s(model: Model, lay: dict[str, int], seq_length: int, speed: float) -> tuple[float, float, float]:
    """Forward and backward seconds of one layer and micro-batch, and the share of them that products take."""
    h, f, tp = model.hidden_size, model.ffn_hidden_size, lay["tp"]
    tokens = lay["micro_batch_size"] * seq_length / lay["cp"]
    heads, groups = model.num_attention_heads / tp, max(model.num_query_groups / tp, 1.0)
    qkv = (heads + 2 * groups) * model.head_dim
    products = _product_s(tokens, qkv, h, speed) + _product_s(tokens, h, heads * model.head_dim, speed)
    wide = 2 if model.gated_mlp else 1
    products += _product_s(tokens, wide * f / tp, h, speed) + _product_s(tokens, h, f / tp, speed)
    scores = 2.0 * tokens * seq_length * heads * model.head_dim / (0.48 * PEAK * speed) + 3 * LAUNCH_S
    split = tp if lay["sequence_parallel"] else 1
    streamed = tokens * (14 * h / split + 3 * wide * f / tp + 2 * qkv) * 2 / (0.8 * HBM) + 9 * LAUNCH_S
    links = _tensor_s(tokens * h * 2, tp, bool(lay["sequence_parallel"])) + _ring_s(
        tokens, groups * model.head_dim, lay["cp"]
    )
    forward = products + scores + streamed + links
    again = {0: 0.0, 1: scores, 2: forward}[lay["recompute"]]
    backward = 2.0 * products + 2.6 * scores + 1.7 * streamed + 1.6 * links + again
    return forward, backward, (3.0 * products + 3.6 * scores) / (forward + backward)


def _tensor_s(size: float, tp: int, sequence_parallel: bool) -> float:
    """Two collectives of a layer; without sequence parallelism each moves everything twice, a quarter hides."""
    if tp == 1:
        return 0.0
    share, calls = (tp - 1) / tp, 4 if sequence_parallel else 2
    moved = 4.0 * size * share / NVLINK
    return float(0.75 * moved + calls * NVLINK_S * np.log2(tp) * (1.0 if sequence_parallel else 1.4))


def _ring_s(tokens: float, width: float, cp: int) -> float:
    return 0.0 if cp == 1 else (cp - 1) * (2 * tokens * width * 2 / (0.5 * NVLINK) + 2 * NVLINK_S)


def _events(stages: list[list[float]], micro_batches: int, send: float) -> float:
    """The end of a 1F1B pipeline by events: a stage takes the oldest backward pass that is ready, else a forward."""
    depth = len(stages)
    if depth == 1:
        return micro_batches * (stages[0][0] + stages[0][1])
    if micro_batches > 6 * depth:  # steady state: what is left goes at the pace of the slowest stage
        slowest = max(f + b for f, b in stages)
        return _events(stages, 6 * depth, send) + (micro_batches - 6 * depth) * (slowest + 0.3 * send)
    ready: list[tuple[float, int, int, int]] = [(0.0, 1, 0, batch) for batch in range(micro_batches)]
    heapq.heapify(ready)
    free, held = [0.0] * depth, [0] * depth
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(depth)]
    end, left = 0.0, 2 * depth * micro_batches
    now = 0.0
    while left:
        while ready and ready[0][0] <= now + 1e-15:
            _, kind, stage, batch = heapq.heappop(ready)
            heapq.heappush(waiting[stage], (kind, batch))
        for stage in range(depth):
            if free[stage] > now + 1e-15 or not waiting[stage]:
                continue
            kind, batch = waiting[stage][0]
            if kind == 1 and held[stage] >= depth - stage:
                continue
            heapq.heappop(waiting[stage])
            free[stage] = now + stages[stage][1 - kind]
            end, left = max(end, free[stage]), left - 1
            held[stage] += 1 if kind == 1 else -1
            if kind == 1:
                last = stage + 1 == depth
                goal = (free[stage], 0, stage, batch) if last else (free[stage] + send, 1, stage + 1, batch)
                heapq.heappush(ready, goal)
            elif stage:
                heapq.heappush(ready, (free[stage] + send, 0, stage - 1, batch))
        times = [t for t in free if t > now + 1e-15] + ([max(ready[0][0], now)] if ready and ready[0][0] > now else [])
        now = min(times) if times else now
    return end


def _reduction_s(job: Job, lay: dict[str, int], pipeline_s: float) -> float:
    """Seconds of the gradients' reduction that no backward pass hides; nodes share their uplinks."""
    dp = lay["dp"] * lay["cp"]
    if dp == 1:
        return 0.0
    per_node = job.cluster.gpus_per_node
    inside = dp * lay["tp"] <= per_node
    sharing = 1.0 if inside else 1.0 + 0.15 * np.log2(max(job.cluster.nodes, 2))
    size = _parameters(job.model, lay) * (6.0 if lay["zero_stage"] else 8.0) * (dp - 1) / dp
    seconds = size / (NVLINK if inside else FABRIC) * sharing + np.log2(dp) * FABRIC_S * 20
    return float(max(seconds - 0.12 * pipeline_s, 0.25 * seconds))


TRUTHS = {
    "T": physics_with_steps, "T2": physics_with_interactions, "C": physics_with_steps, "S": simulated,
}  # fmt: skip
