"""Kernels of one transformer layer, its adapters, of the embedding and of the head: their time, flops and bytes.

First one dense matrix product on one GPU: tiles, waves, prologue, power, HBM and launch floor. Kernels are those of one
micro-batch on one rank, at the maximum clock; ``tokens`` are the rank's (micro-batch x sequence / cp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import CatalogError
from jointopt.core.schema import Bools, Floats, evaluate
from jointopt.jobs.catalog import kernels as arch
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job, ScalingRecipe, Training
from jointopt.jobs.kernels import GemmConstants, KernelConstants
from jointopt.jobs.model import Layer, Model, evaluated, kinds_of, products_of
from jointopt.physics.layouts import BLOCK_QUERIES, Span, kv_heads_of_rank, seen_share, windowed_span

OUTPUT_BYTES = 2.0  # 8- and 4-bit products still write 16-bit results


def gemm_time_s(
    m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, constants: GemmConstants, dtype: str = "bf16", batch:
    npt.ArrayLike = 1.0, throttled: bool = True, m_spread: npt.ArrayLike = 0.0,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Seconds of an m x k by k x n product at the maximum SM clock: (bound by the SMs, by device memory); they add up.

    ``batch`` products run grouped (experts), equal but for their m, whose standard deviation ``m_spread`` is.
    ``throttled`` includes the power limit as measured boards had it. A roofline (Williams et al. 2009) with tiles,
    waves and a prologue, fitted to m 256-32768, n and k 32-65536 in bf16 on A100, H100, H200, idle and with warm
    caches; training takes 1.0-1.3 times as long. What was measured on the machine itself multiplies it, one factor per
    dtype. Raises `CatalogError` for a dtype that the GPU has no rate for.
    """
    c = constants
    m, n, k, batch = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
    factor = dtype_time_factor(c, dtype)
    quantised, spread = _best_waves(m, n, batch, c, np.asarray(m_spread, dtype=np.float64))
    deep = k + c.prologue_k
    # the best tiling, or a split along k where the tiles would leave SMs idle
    sm_s = factor * np.minimum(quantised * deep, spread * deep + c.split_k_s)
    memory_s = gemm_bytes(m, n, k, c.dtype_bytes[dtype], batch) * (1.0 / (c.hbm_bytes_per_s * c.hbm_fraction))
    # the roofline maximum, rounded (4-norm: 19 % above it where the sides are equal), split by who binds
    memory_4 = np.square(np.square(memory_s))
    total_4 = np.square(np.square(sm_s)) + memory_4
    total_s = np.sqrt(np.sqrt(total_4))
    memory_bound_s = total_s * memory_4 / total_4
    sm_bound_s = c.launch_s + (total_s - memory_bound_s)
    if throttled and c.sustained_fraction is not None:
        # the rate that the board's power sustains falls slowly for ever larger products
        flop = 2.0 * (batch * m * n * k)
        slowed = 1.0 + c.throttle_slope * np.log1p(flop / c.throttle_flop)
        sustained_s = factor * (flop * slowed / (c.peak_flops * c.sustained_fraction))
        total_s = sm_bound_s + memory_bound_s
        # a rounded maximum, 9 % above it where the two are equal: power averages over a product's phases
        larger, smaller = np.maximum(total_s, sustained_s), np.minimum(total_s, sustained_s)
        sm_bound_s = sm_bound_s + (larger * (1.0 + (smaller / larger) ** 8) ** 0.125 - total_s)
    measured = c.measured_time_factor.get(dtype, 1.0)
    return sm_bound_s * measured, memory_bound_s * measured


def dtype_time_factor(constants: GemmConstants, dtype: str) -> float:
    """SM time of a product in ``dtype`` relative to bf16 (catalogue); `CatalogError` where the GPU cannot run it."""
    if dtype not in constants.dtype_time_factor:
        known = ", ".join(sorted(constants.dtype_time_factor))
        raise CatalogError(f"The GPU has no rate for products in {dtype!r}; expected one of {known}.")
    return constants.dtype_time_factor[dtype]


def gemm_bytes(m: Floats, n: Floats, k: Floats, operand_bytes: float, batch: Floats | float = 1.0) -> Floats:
    """Bytes that a product must move at least: both operands in, the result out (the roofline's compulsory traffic)."""
    return batch * (operand_bytes * k * (m + n) + max(operand_bytes, OUTPUT_BYTES) * (m * n))


def expected_tiles(m: Floats, m_spread: Floats, rows: int) -> Floats:
    """Mean number of tiles of ``rows`` rows that m rows need, where m has the standard deviation ``m_spread``.

    m as uniform: the integral of its ceiling over its range; half a tile is wasted where the range is several of them.
    """
    whole = m * (1.0 / rows)
    if not m_spread.any():
        return np.asarray(np.ceil(whole))
    half = np.minimum(np.sqrt(3.0) * m_spread / rows, whole)
    ends = np.stack([whole - half, whole + half])
    full = np.floor(ends)
    low, high = 0.5 * full * (full + 1.0) + (ends - full) * (full + 1.0)  # integrals of the ceiling from 0
    apart = half > 1e-6
    return np.where(apart, (high - low) / np.where(apart, 2.0 * half, 1.0), np.ceil(whole))


def _best_waves(m: Floats, n: Floats, batch: Floats, c: GemmConstants, m_spread: Floats) -> tuple[Floats, Floats]:
    """Seconds per unit of k of the best tiling: with partial waves priced, and with all SMs kept busy."""
    quantised = spread = np.asarray(np.inf)
    down = {rows: expected_tiles(m, m_spread, rows) for rows in {tile.rows for tile in c.tiles}}
    across = {columns: batch * np.ceil(n * (1.0 / columns)) for columns in {tile.columns for tile in c.tiles}}
    for tile in c.tiles:
        wave_s = 2.0 * tile.rows * tile.columns * c.sm_count / (c.peak_flops * tile.peak_fraction)
        # Divided, not multiplied by the inverse: a whole number of waves must stay one.
        waves = down[tile.rows] * across[tile.columns] / c.sm_count
        even = waves * wave_s
        spread = np.minimum(spread, even)
        # Schedulers overlap the tail of one wave with the next, so a partial wave costs less than a full one.
        partial = (1.0 - c.wave_quantisation) * even + (c.wave_quantisation * wave_s) * np.ceil(waves)
        quantised = np.minimum(quantised, partial)
    return quantised, spread


# Kernels of a layer, of which products are most.


@dataclass(frozen=True)
class Work:
    """Costs of kernels: time bound by the SMs, time bound by memory or latency, flops, device-memory bytes."""

    sm_s: Floats
    memory_s: Floats
    flops: Floats
    hbm_bytes: Floats

    def __add__(self, other: Work) -> Work:
        # named one by one: layouts are priced by thousands of such sums, of small arrays
        return Work(
            self.sm_s + other.sm_s, self.memory_s + other.memory_s, self.flops + other.flops,
            self.hbm_bytes + other.hbm_bytes,
        )  # fmt: skip

    def map(self, of: Callable[[Floats], Floats]) -> Work:
        """Each of the four after ``of``."""
        return Work(of(self.sm_s), of(self.memory_s), of(self.flops), of(self.hbm_bytes))

    def times(self, factor: Floats | float) -> Work:
        """The work, ``factor`` times."""
        return self.map(lambda x: x * factor)

    def clocked(self, profile: Framework) -> Work:
        """The work with the profile's shares of its seconds among those that follow the SM clock."""
        shares = profile.compute_clock_share, profile.memory_clock_share
        if shares == (1.0, 0.0):
            return self
        followed_s, other_s = by_clock_shares(self.sm_s, self.memory_s, *shares)
        return replace(self, sm_s=followed_s, memory_s=other_s)

    @property
    def time_s(self) -> Floats:
        """Seconds at the maximum clock."""
        return self.sm_s + self.memory_s


def by_clock_shares(sm_s: Floats, memory_s: Floats, compute: float, memory: float) -> tuple[Floats, Floats]:
    """Seconds that follow the SM clock, and the others: shares of those bound by compute, and of those by memory."""
    followed_s = compute * sm_s + memory * memory_s
    return followed_s, (1.0 - compute) * sm_s + (1.0 - memory) * memory_s


@dataclass(frozen=True)
class Pass:
    """Forward and backward of the same thing."""

    forward: Work
    backward: Work

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.backward + other.backward)

    def map(self, of: Callable[[Floats], Floats]) -> Pass:
        """Both passes after ``of``."""
        return Pass(self.forward.map(of), self.backward.map(of))

    def times(self, factor: float) -> Pass:
        """Both passes, ``factor`` times."""
        return self.map(lambda x: x * factor)

    def clocked(self, profile: Framework) -> Pass:
        """Both passes, whose time at the top clock stays, with the profile's shares of it that follow the SM clock."""
        return Pass(self.forward.clocked(profile), self.backward.clocked(profile))


def no_kernels(shape: tuple[int, ...]) -> Pass:
    """Passes that take nothing, arrays of that shape."""
    none = Work(*np.zeros((4, *shape)))
    return Pass(none, none)


@dataclass(frozen=True)
class Kernels:
    """Speed at which one GPU runs kernels under one framework and precision."""

    gemm: GemmConstants
    dtype: str  # of linear layers
    wide_dtype: str  # of the head and the attention core: 16 bit, or fp32
    element_bytes: float  # of activations
    attention: str
    core: arch.AttentionConstants
    compute_factor: float
    elementwise_factor: float
    loss_passes: float
    unaligned: tuple[float, ...]  # time over an aligned product's, by `ALIGNMENTS`
    unaligned_head_factor: float
    grouped_experts: bool = True
    fused_experts: bool = False
    frozen: bool = False  # weights get no gradients (LoRA)
    cast_factor: float = 1.0
    # that scales operands of fp8 and fp4, whose constants ``gemm`` has; None: not stated
    recipe: ScalingRecipe | None = None

    @property
    def flop_energy(self) -> float:
        """Energy of one operation in the linear layers' precision over one in 16 bit, taken as its time."""
        return dtype_time_factor(self.gemm, self.dtype)


def kernels(job: Job, constants: KernelConstants) -> Kernels:
    """The kernels that the job's GPU, precision and framework run.

    Products whose operands a recipe scales move bytes with scales, and take the time over one scale per tensor that
    Transformer Engine's published timings of large products have (``catalog/scaling.yaml``).
    """
    training, profile, gpu = job.training, job.training.framework, job.cluster.gpu
    gemm, overhead, recipe = constants.gemm, arch.training_factor(gpu), job.training.fp8_recipe
    slower = profile.slower_on.get(gpu.architecture.lower(), {})
    plain, unfused = arch.fp32_time_factor(gpu), 1.0 if training.fused_norm else 1.5
    kernel = arch.attention_kernel(gpu, training.attention, in_fp8=training.attends_in_fp8)
    if training.dtype == "fp32" and not profile.tf32 and plain is not None:
        # FP32 cores are slow enough to be fed: products reach about 0.9 of their peak, alone or in training
        top_share = max(tile.peak_fraction for tile in gemm.tiles)
        gemm = replace(gemm, dtype_time_factor={**gemm.dtype_time_factor, "fp32": plain * top_share / 0.9})
        overhead = 1.0
    if recipe is not None:
        scaled_s = dtype_time_factor(gemm, recipe.dtype) * recipe.product_time_factor
        gemm = replace(
            gemm, dtype_bytes={**gemm.dtype_bytes, recipe.dtype: recipe.operand_bytes},
            dtype_time_factor={**gemm.dtype_time_factor, recipe.dtype: scaled_s},
        )  # fmt: skip
    return Kernels(
        gemm=gemm, recipe=recipe, dtype=training.dtype,
        wide_dtype=training.dtype if training.dtype in ("fp32", "fp16") else "bf16",
        element_bytes=4.0 if training.dtype == "fp32" else 2.0, attention=training.attention,
        core=arch.attention_constants(gpu, kernel).slower(profile.attention_factor * slower.get(kernel, 1.0)),
        compute_factor=profile.compute_factor * slower.get("compute", 1.0) * overhead,
        elementwise_factor=profile.elementwise_factor * slower.get("elementwise", 1.0) * unfused,
        loss_passes=profile.loss_passes, unaligned=arch.unaligned_factors(gpu),
        unaligned_head_factor=profile.unaligned_head_factor, grouped_experts=profile.grouped_experts,
        fused_experts=profile.fused_experts, frozen=training.frozen, cast_factor=profile.cast_factor,
    )  # fmt: skip


def alignment_factor(k: Kernels, *widths: Floats | float) -> Floats:
    """Time of a 16-bit product over that of an aligned one, from the widths that lie contiguous in memory.

    The least aligned width decides (arXiv:2401.14489, figures in ``catalog/architectures.yaml``). 1 for fp32, which was
    not measured, and where a width is no whole number: no framework cuts one so.
    """
    slower = np.ones(np.broadcast_shapes(*(np.shape(width) for width in widths)))
    if k.wide_dtype == "fp32":
        return slower
    factors = np.array(k.unaligned)
    for width in widths:
        whole = np.rint(width)
        powers = np.gcd(whole.astype(np.int64), arch.ALIGNMENTS[-1])
        found = factors[np.searchsorted(arch.ALIGNMENTS, powers)]
        slower = np.maximum(slower, np.where(np.abs(whole - width) < 1e-6, found, 1.0))
    return slower


def linear(
    k: Kernels, tokens: Floats, n: Floats | float, depth: Floats | float, count: Floats | float = 1.0, dtype:
    str = "", padded: bool = False, spread: Floats | float = 0.0, gathered_from: Floats | None = None,
    scattered_to: Floats | None = None, casts: tuple[bool, bool] = (True, True),
) -> Pass:  # fmt: skip
    """Kernels of a linear layer tokens x depth -> tokens x n: one product forward, two backward (dgrad, wgrad).

    Frozen weights have no wgrad. 2·tokens·n·depth flops each (Narayanan et al. 2021, arXiv:2104.04473, appendix); time
    by `gemm_time_s`. ``count`` layers (experts) run grouped, or one by one, on tokens of that relative
    ``spread``; ``padded`` (vocabularies) are aligned whatever n is. Tokens of a rank that gathers its inputs
    (``gathered_from``), or the gradients of its outputs (``scattered_to``), are cast before that under a stated recipe.
    ``casts``: whether kernels of their own cast inputs and gradients of outputs.
    """
    aligned = 1.0 if padded else alignment_factor(k, n, depth)

    def product(a: Floats, b: Floats, c: Floats, rows: Floats | float = spread * tokens) -> Work:
        together, apart = (count, 1.0) if k.grouped_experts else (1.0, count)
        sm, memory = gemm_time_s(a, b, c, k.gemm, dtype or k.dtype, together, throttled=False, m_spread=rows)
        moved = gemm_bytes(a, b, c, k.gemm.dtype_bytes[dtype or k.dtype], count)
        slower = k.compute_factor * apart
        return Work(sm * slower * aligned, memory * slower, 2.0 * count * a * b * c, moved)

    a, b, c = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (tokens, n, depth)))
    inputs = product(a, c, b)
    products = Pass(product(a, b, c), inputs if k.frozen else inputs + product(b, c, a, 0.0))
    if (dtype or k.dtype) not in QUANTIZED:
        return products
    sides = (c, gathered_from), (b, scattered_to)
    own = (quantization(k, count * a * x, None if cut is None else cut * (count * x)) for x, cut in sides)
    return products + Pass(*(work.times(float(apart)) for work, apart in zip(own, casts, strict=True)))


def quantization(k: Kernels, elements: Floats, own: Floats | None = None) -> Work:
    """Kernels that cast the operand of a product to fp8 or fp4: 16 bit read, two low-precision copies written.

    One copy by rows for this product, one by columns for the gradient of the weights (Transformer Engine's quantizers),
    which frozen weights have not. Weights are cast once per iteration and not counted. A stated recipe reads and writes
    what its kernels do (`ScalingRecipe.cast_bytes`): a rank casts its ``own`` share of ``elements`` and gathers the
    others quantized; what is scaled per tensor along rows, then transposed where products want that copy (before
    Blackwell).
    """
    recipe = k.recipe
    if recipe is None:
        copies = 1.0 if k.frozen else 2.0
        moved = elements * (k.element_bytes + copies * k.gemm.dtype_bytes[k.dtype])
        return elementwise(k, moved * (k.cast_factor / k.elementwise_factor), 1)
    own = elements if own is None else own
    whole = recipe.cast_bytes(k.element_bytes, k.frozen)
    moved = own * whole
    if not recipe.scale_bytes and recipe.copies >= 2.0 and not k.frozen:
        rows = recipe.cast_bytes(k.element_bytes, one_copy=True)
        moved = np.where(own < elements, own * rows + 2.0 * recipe.value_bytes * elements, own * whole)
    return elementwise(k, moved * (k.cast_factor / k.elementwise_factor), recipe.launches)


STREAMED = 0.85  # share of the nominal bandwidth that streaming kernels reach
QUANTIZED = ("fp8", "fp4")  # precisions of products whose operands are cast before them


def elementwise(k: Kernels, moved_bytes: Floats, launches: float) -> Work:
    """Memory-bound kernels (norms, activations, dropout, residuals): bytes over bandwidth, plus launches.

    They reach the share `STREAMED` of the nominal bandwidth; the profile's ``elementwise_factor`` is how far a
    framework fuses them.
    """
    moved = moved_bytes * k.elementwise_factor
    time = moved / (STREAMED * k.gemm.hbm_bytes_per_s) + launches * k.gemm.launch_s
    return Work(np.zeros(np.shape(moved)), time, np.zeros(np.shape(moved)), moved)


# per score of two bytes: scale, mask, softmax, dropout, two reads
_SCORE_BYTES = {"unfused": (30.0, 36.0), "fused": (13.0, 16.0)}
# Time of flash attention whose kernel adds ALiBi's bias to every score, over that without. Fitted to llm-foundry's MPT
# (139 runs on A100): at 1.0, 512 tokens are 5 % too slow and 65,536 12 % too fast.
ALIBI_FACTOR = 1.35


def mixer_core(
    k: Kernels, model: Model, layer: Layer, tokens: Floats, seq_length: int, tp: Floats, cp: Floats
) -> Pass:  # fmt: skip
    """Kernels of a layer's attention beside its products with weights: scores, or what stands in their place, (L,)."""
    found = no_kernels(np.shape(tokens))
    for kind in layer.mixers:
        entry = kinds_of("attention")[kind]
        if "scores" not in entry:
            found = found + mixing(k, model, kind, tokens, tp)
            continue
        seen, qk, values = entry["scores"]
        widths = (int(evaluate(qk, vars(model))), int(evaluate(values, vars(model))))
        span: Span | None = None
        if seen == "chunked" and layer.window:
            span = layer.window / 2.0, 0.0
        elif layer.window:
            span = windowed_span(seq_length, layer.window, cp)
        elif seen not in ("full", "sliding", "chunked"):
            kept = int(evaluate(seen, vars(model)))
            span = seen_share(kept, seq_length) * seq_length / 2.0, 0.0
            found = found + index_scores(k, model, tokens, seq_length // entry.get("indexed", 1))
        found = found + attention_core(k, model, tokens, seq_length, tp, span, widths)
    return found


def index_scores(k: Kernels, model: Model, tokens: Floats, seq_length: int) -> Pass:
    """Kernels in which an indexer scores all tokens before each, whole on every tensor rank; backward twice as much.

    2·tokens·s/2·heads·width flops (DeepSeek-V3.2-Exp, equation 1). At the rate of flash attention, which is assumed:
    no published run states it.
    """
    flops = tokens * seq_length * float(model.index_n_heads * model.index_head_dim)
    seconds = flops / (k.gemm.peak_flops * k.core.forward) * k.compute_factor
    one = Work(seconds, np.full(np.shape(flops), k.gemm.launch_s), flops, np.zeros(np.shape(flops)))
    return Pass(one, one.times(2.0))


def mixing(k: Kernels, model: Model, kind: str, tokens: Floats, tp: Floats) -> Pass:
    """Kernels of a kind of attention without scores: products within chunks, and what they stream, (L,).

    Flops and elements per token by ``catalog/layer_kinds.yaml`` (arXiv:2405.21060, arXiv:2412.06464), as are the rate
    of the products and what the backward pass takes over the forward one, which are assumed.
    """
    rates = read_yaml("layer_kinds.yaml")
    flops = tokens * float(evaluated(model, kind, "mixing")) / tp
    moved = tokens * float(evaluated(model, kind, "moved")) * k.element_bytes / tp
    seconds = flops / (k.gemm.peak_flops * rates["mixing_rate"]) * k.compute_factor
    none = np.zeros(np.shape(flops))
    forward = Work(seconds, none, flops, none) + elementwise(k, moved / k.elementwise_factor, 8)
    return Pass(forward, forward.times(rates["mixing_backward"]))


def attention_core(
    k: Kernels, model: Model, tokens: Floats, seq_length: int, tp: Floats, span: Span | None = None,
    widths: tuple[int, int] | None = None,
) -> Pass:  # fmt: skip
    """Kernels of causal scores and their product with the values; flash skips the masked half and recomputes backward.

    Flops forward 2·tokens·s·a·(d_qk + d_v)/tp, halved when causal blocks are skipped; backward 2.5 times that for
    flash (Dao 2023, arXiv:2307.08691, section 3), twice for unfused. Unfused scores go through memory, where ALiBi's
    bias comes with the mask. In flash a ``span`` of fewer keys stands for the s/2 of the mask; where it starts late,
    half a block of masked scores more. ``widths``: of a head's queries and keys, and of its values.
    """
    d_qk, d_v = widths or model.head_widths
    core_flops_per_s = k.gemm.peak_flops / dtype_time_factor(k.gemm, k.wide_dtype)
    flops = 2.0 * tokens * seq_length * model.num_attention_heads * (d_qk + d_v) / tp
    io = 4.0 * k.element_bytes * tokens * model.num_attention_heads * d_v / tp
    if k.attention in _SCORE_BYTES:
        # the core where every score is worked out and goes through memory; a head's elements are rows of its products
        scores = tokens * seq_length * model.num_attention_heads / tp
        forward_bytes, backward_bytes = (k.element_bytes / 2.0 * each for each in _SCORE_BYTES[k.attention])
        slower = float(alignment_factor(k, d_qk, d_v))
        slower *= 1.0 if k.wide_dtype == "fp32" or d_qk % 8 == d_v % 8 == 0 else k.unaligned_head_factor
        core = core_flops_per_s * (0.8 if k.wide_dtype == "fp32" else 0.55) / slower
        return Pass(
            Work(flops / core * k.compute_factor, np.zeros_like(flops), flops, io)
            + elementwise(k, scores * forward_bytes / k.elementwise_factor, 4),
            Work(2 * flops / core * k.compute_factor, np.zeros_like(flops), 2 * flops, 2 * io)
            + elementwise(k, scores * backward_bytes / k.elementwise_factor, 6),
        )
    keys, cut = span or (seq_length / 2.0, 0.0)
    ramp = keys / (keys + (k.core.half_length + cut * BLOCK_QUERIES) / 2.0)
    ramp = ramp * min(1.0, (d_qk + d_v) / 256.0) ** 0.3
    seen = keys / seq_length * flops
    seconds = seen / (core_flops_per_s * ramp) * k.compute_factor
    seconds = seconds * (ALIBI_FACTOR if model.position_embedding == "alibi" else 1.0)
    launch = np.full(np.shape(flops), k.gemm.launch_s)
    return Pass(
        Work(seconds / k.core.forward, launch, seen, io),
        Work(2.5 * seconds / k.core.backward, 2 * launch, 2.5 * seen, 2 * io),
    )


def attention_layer(
    k: Kernels, model: Model, tokens: Floats, core: Pass, tp: Floats, sharded_tokens: Floats,
    mixers: Sequence[str] = (),
) -> Pass:  # fmt: skip
    """Kernels of norm, projections, ``core``, output projection, residual. ``sharded_tokens``: tokens / tp under SP.

    Products of each of the ``mixers`` (by default full or latent attention) by ``catalog/layer_kinds.yaml``: column-
    then row-parallel (Shoeybi et al. 2019, arXiv:1909.08053, section 3), or whole on each rank, as the low-rank ones of
    MLA (DeepSeek-V2, arXiv:2405.04434, section 2.1), which are not absorbed into the core.
    """
    e, wide = k.element_bytes, sharded_tokens * model.hidden_size * k.element_bytes
    projections, outs, inner = no_kernels(np.shape(tokens)), no_kernels(np.shape(tokens)), 0.0 * tokens
    for kind in mixers or (("mla",) if model.kv_lora_rank else ("full",)):
        *products, (inputs, outputs, _) = products_of(model, kind).values()
        for at, (depth, width, cut) in enumerate(products):
            n, deep = (width / tp if cut == "column" else width), (depth / tp if cut == "row" else depth)
            gathered = sharded_tokens if cut == "column" and at == 0 else None
            projections = projections + linear(k, tokens, n, deep, gathered_from=gathered)
        outs = outs + linear(k, tokens, outputs, inputs / tp, scattered_to=sharded_tokens)
        inner = inner + rotated_elements(model, kind, tokens, tp) * 2 * e
    around = Pass(elementwise(k, 5 * wide + inner, 3), elementwise(k, 6 * wide + inner, 4))
    return projections + core + outs + around + stream_mixing(k, model, wide)


def rotated_elements(model: Model, kind: str, tokens: Floats, tp: Floats) -> Floats:
    """Elements of queries and keys that are turned by their positions, and of the gate on the output, (L,)."""
    entry = kinds_of("attention")[kind]
    if "scores" not in entry:
        return 0.0 * tokens
    a, qk = model.num_attention_heads, int(evaluate(entry["scores"][1], vars(model)))
    gate = 1.5 * a * model.head_dim / tp if model.attention_output_gate else 0.0
    if model.position_embedding != "rope":
        return tokens * gate
    if model.kv_lora_rank:
        return tokens * (a * (model.qk_nope_head_dim + model.qk_rope_head_dim) / tp)
    return tokens * ((a / tp + kv_heads_of_rank(model, tp)) * qk + gate)


def mlp_layer(
    k: Kernels, model: Model, tokens: Floats, width: Floats, sharded_tokens: Floats,
    experts: Floats | float | None = None, spread: Floats | float = 0.0, inputs: int = 0,
) -> Pass:  # fmt: skip
    """Kernels of norm, up (and gate) projection, activation, down projection, residual; ``width`` is a rank's share.

    With ``experts`` the products run once per local expert on ``tokens`` tokens each (grouped GEMM), sent in 16 bit, or
    on as many in the mean with that relative ``spread``. ``inputs``: width of their tokens where it is not the model's.
    Where experts are fused, products apply the activation and cast what is inside (Transformer Engine's grouped MLP of
    cuDNN's kernels, ops/fused/forward_grouped_mlp.py).
    """
    h, e, gate = inputs or model.hidden_size, k.element_bytes, 2 if model.gated_mlp else 1
    count, own = (1.0, sharded_tokens) if experts is None else (experts, None)
    apart = experts is None or not k.fused_experts
    wide, inner = sharded_tokens * model.hidden_size * e, tokens * count * width * e * apart
    return (
        linear(k, tokens, gate * width, h, count, spread=spread, gathered_from=own, casts=(True, apart))
        + linear(k, tokens, h, width, count, spread=spread, scattered_to=own, casts=(apart, True))
        + Pass(elementwise(k, 5 * wide + (gate + 1) * inner, 3), elementwise(k, 6 * wide + (2 * gate + 1) * inner, 4))
        + stream_mixing(k, model, wide)
    )


def stream_mixing(k: Kernels, model: Model, wide: Floats) -> Pass:
    """Kernels of hyper-connections around attention or an MLP: its input of n residual streams, and these anew, (L,).

    Forward n streams are read for one input, then they and the output for n new ones: 3n + 2 passes over h elements in
    place of a residual's 3; backward twice that (arXiv:2409.19606, section 3). ``wide``: bytes of h elements.
    """
    n = model.num_residual_streams
    if n <= 1:
        return no_kernels(np.shape(wide))
    return Pass(elementwise(k, (3 * n - 1) * wide, 2), elementwise(k, 2 * (3 * n - 1) * wide, 4))


def embedding(k: Kernels, model: Model, tokens: Floats, tp: Floats) -> Pass:
    """Kernels of the embedding, memory-bound: look-up forward, scatter-add backward; three reads or writes of s·b·h.

    A frozen table gets no gradient.
    """
    moved = 3.0 * tokens * model.hidden_size * k.element_bytes / tp
    backward = elementwise(k, 2 * moved, 3)
    return Pass(elementwise(k, moved, 3), backward.times(0.0) if k.frozen else backward)


def head(k: Kernels, model: Model, tokens: Floats, tp: Floats) -> Pass:
    """Kernels of final norm, output projection and cross-entropy over the vocabulary; never in fp8 or fp4.

    The loss goes ``loss_passes`` times over fp32 logits, two thirds of them forward (a framework profile's figure).
    """
    vocab = model.vocab_size / tp
    logits = tokens * vocab * 4.0
    product = linear(k, tokens, vocab, float(model.hidden_size), dtype=k.wide_dtype, padded=True)
    third = k.loss_passes / 3.0
    return product + Pass(elementwise(k, 2 * third * logits, 6), elementwise(k, third * logits, 3))


# Kernels of the experts of a layer: router, permutation, grouped products, shared experts.


def moe_layer(
    k: Kernels, model: Model, tokens: Floats, tp: Floats, sharded_tokens: Floats, ep: Floats, expert_tp: Floats,
    token_share: Floats, load: Floats, spread: Floats,
) -> tuple[Pass, Pass]:  # fmt: skip
    """Kernels of router, permutation, grouped expert products and shared experts; and how long of it a mean rank waits.

    A rank's experts, one of ``ep`` parts of all, each cut by ``expert_tp``, see ``token_share`` of the rank's tokens: 1
    where tp cuts them, 1/tp where ranks route their own slice. ``load``: tokens of the most loaded rank over the mean;
    ``spread``: standard deviation of an expert's tokens over their mean.

    Seconds are those of the rank with the most tokens, for which all wait in the combine that follows; flops, bytes and
    what is counted as work are a mean rank's, which waits for so many of these seconds. The router is never in fp8 or
    fp4: frameworks keep it out of Transformer Engine's quantized products (Megatron Core's ``moe_router_dtype``).
    """
    routed = tokens * token_share * model.moe_router_topk
    local_experts = model.num_experts / ep
    per_expert = np.maximum(routed / local_experts, 1.0) * load  # in the mean peers send what is sent away
    moved = 2.0 * (1.0 + load) * routed * model.expert_input_size * k.element_bytes  # as sent, and as received
    width = model.moe_ffn_hidden_size / expert_tp
    experts = mlp_layer(k, model, per_expert, width, sharded_tokens, local_experts, spread, model.moe_latent_size)
    router = linear(k, sharded_tokens, float(model.num_experts), float(model.hidden_size), dtype=k.wide_dtype)
    mean, passes = 1.0 / load, (experts.forward, experts.backward)
    own = Pass(*(replace(work, flops=work.flops * mean, hbm_bytes=work.hbm_bytes * mean) for work in passes))
    waiting = Pass(*(Work(work.sm_s * (1.0 - mean), 0.0 * mean, 0.0 * mean, 0.0 * mean) for work in passes))
    work = own + router + Pass(elementwise(k, moved, 4), elementwise(k, moved, 4))
    if model.moe_latent_size:  # both whole on each rank (Megatron Core's MoELayer: fc1_latent_proj, fc2_latent_proj)
        ends = float(model.hidden_size), float(model.moe_latent_size)
        work += linear(k, sharded_tokens, ends[1], ends[0]) + linear(k, sharded_tokens, *ends)
    if model.num_shared_experts:
        shared = model.num_shared_experts * model.moe_ffn_hidden_size / tp
        work += mlp_layer(k, model, tokens, shared, sharded_tokens)
    return work, waiting


# LoRA: adapters of low rank beside frozen linear layers (Hu et al. 2021, arXiv:2106.09685): weights and kernels. As
# Megatron-Bridge lays them (its peft/utils.py, ParallelLinearAdapter): a product down to the rank and one up again, in
# 16 bit, both cut by the ranks that cut their layer; one adapter serves all experts that a rank holds.


@dataclass(frozen=True)
class Adapter:
    """The adapter of one linear layer on one rank of L layouts."""

    fan_in: float  # of the whole layer
    fan_out: float
    row: bool  # its layer is cut along its inputs, else along its outputs
    tokens: Floats  # (L,) that go through it
    tp: Floats  # (L,) ranks that cut it
    routed: bool = False  # of experts
    mlp: bool = True  # of an MLP, else of attention

    def parameters(self, dim: int) -> Floats:
        """Weights of a rank, (L,)."""
        return dim * (self.fan_in + self.fan_out) / self.tp


def adapters(
    model: Model, training: Training, layer: Layer, tokens: Floats, tp: Floats, share: Floats, expert_tp: Floats
) -> list[Adapter]:
    """The adapters of one layer of a kind; none where all weights are trained.

    Of ``tokens`` (L,) through the layers of a rank, which ``tp`` (L,) ranks cut; the rank's experts see a ``share`` of
    them, and are cut by ``expert_tp``: `LayoutArrays.adapter_cuts`. Latent attention has no one product of queries,
    keys and values.
    """
    found: list[tuple[str, Adapter]] = []
    for kind in layer.mixers:
        for name, (inputs, outputs, cut) in products_of(model, kind).items():
            found.append((name, Adapter(inputs, outputs, cut == "row", tokens, tp, mlp=False)))
    mlps = [(model.ffn_hidden_size, tokens, tp, False)] if layer.ffn == "dense" else []
    if layer.ffn == "experts":
        mlps.append((model.moe_ffn_hidden_size, tokens * share * model.moe_router_topk, expert_tp, True))
        if model.num_shared_experts:
            mlps.append((model.num_shared_experts * model.moe_ffn_hidden_size, tokens, tp, False))
    for width, through, cut_by, routed in mlps:
        up, wide = (2 if model.gated_mlp else 1) * width, model.expert_input_size if routed else model.hidden_size
        found.append(("linear_fc1", Adapter(wide, up, False, through, cut_by, routed)))
        found.append(("linear_fc2", Adapter(width, wide, True, through, cut_by, routed)))
    return [adapter for name, adapter in found if name in training.adapted]


def adapter_kernels(k: Kernels, found: Sequence[Adapter], training: Training, sp: Bools) -> list[Pass]:
    """Kernels of each adapter, (L,); ``sp`` (L,): under sequence parallelism.

    Both products; forward the sum's scale and addition, backward the gradient's scale and that of the shared input.
    Scale and addition are kernels of their own in any framework. What a row-parallel layer adds is whole on each rank,
    but for its slice of the sequence.
    """
    k, dim = replace(k, dtype=k.wide_dtype, frozen=False), float(training.lora_dim or 0)
    unfused, out = k.element_bytes / k.elementwise_factor, []
    for one in found:
        inputs = one.fan_in / (one.tp if one.row else 1.0)
        down = linear(k, one.tokens, dim if one.row else dim / one.tp, inputs)
        up = linear(k, one.tokens, one.fan_out / one.tp, dim)
        added = one.tokens * one.fan_out / np.where(one.row & ~sp, 1.0, one.tp) * unfused
        read = 3.0 * one.tokens * inputs * unfused
        scaled = Pass(elementwise(k, 5.0 * added, 2), elementwise(k, 2.0 * added + read, 2))
        out.append(down + up + scaled)
    return out
