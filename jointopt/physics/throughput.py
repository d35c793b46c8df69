"""Throughput of plans in the units of the field: tokens, model flops and their share of the peak, tokens per joule."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats, evaluate, num_gpus
from jointopt.core.units import KWH, TERA
from jointopt.jobs.catalog.kernels import fp32_time_factor
from jointopt.jobs.defaults import completed
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Layer, Model, evaluated, kinds_of
from jointopt.physics.layers import adapters
from jointopt.physics.layouts import Recompute, seen_share
from jointopt.physics.site import with_site

THROUGHPUT = (
    "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "tokens_per_j",
    "kwh_per_billion_tokens",
)  # fmt: skip
# flops per weight and token: of the forward pass, with the backward pass to inputs, and that to trained weights
_FORWARD, _FROZEN, _TRAINED = 2.0, 4.0, 6.0
_BILLION = 1e9


def model_flops_per_token(
    model: Model, seq_length: int, *, causal: bool = False, training: Training | None = None
) -> float:
    """Flops that training one token takes by the model alone: 6 per weight that it is multiplied with, and its scores.

    PaLM's convention (Chowdhery et al. 2022, arXiv:2204.02311, appendix B), and that of Megatron-LM's papers, of
    torchtitan and llm-foundry: all s scores of a token count, 12·s·heads·width in each layer. ``causal``: only the half
    that the mask leaves, as Megatron-LM prints since 0.12 and Megatron-Bridge publishes. Layers with a window count the
    share of either that it leaves, as Megatron-Bridge counts GPT-OSS. Word embeddings are looked up and do not count,
    as do norms and biases; the head does; of routed experts those that a token is sent to; multi-token prediction with
    its head. Weights that a ``training`` freezes count 4, as NVIDIA counts LoRA (Megatron-Bridge's flop_utils.py), and
    its adapters 6; those of experts once for each that a token is sent to.
    """
    counts, (attention, ffn) = Counter(model.pattern), _layer_weights(model)
    width, last = model.embedding_size or model.hidden_size, model.pattern[-1]
    head = width * model.vocab_size + (2 * width * model.hidden_size if width != model.hidden_size else 0)
    predicted = model.mtp_num_layers * (attention[last] + ffn[last] + head + 2 * model.hidden_size**2)  # of two states
    weights = float(sum(count * (attention[one] + ffn[one]) for one, count in counts.items()) + head + predicted)
    scores = 3.0 * _score_flops(model, seq_length, causal)
    if training is None or not training.frozen:
        return _TRAINED * weights + scores
    own, one = 0.0, np.ones(1)
    for layer, count in counts.items():
        found = adapters(model, training, layer, one, one, one, one)
        own += sum(float((count * each.tokens * each.parameters(training.lora_dim or 0)).item()) for each in found)
    return _FROZEN * weights + _TRAINED * own + scores


def _score_flops(model: Model, seq_length: int, causal: bool) -> float:
    """Forward flops per token of all layers' scores and their product with the values, or of what stands in for them.

    Of a window the share of either that it leaves; of a chunk, which is a triangle of its own, that of a shorter
    sequence; of chosen tokens as of a window, and the scores of their indexer.
    """
    half, found = 0.5 if causal else 1.0, 0.0
    full = 0.0
    for layer, count in Counter(model.pattern).items():
        for kind in layer.mixers:
            entry = kinds_of("attention")[kind]
            if "scores" not in entry:
                found += count * float(evaluated(model, kind, "mixing"))
                continue
            seen, *widths = entry["scores"]
            each = sum(evaluate(width, vars(model)) for width in widths)
            one = _FORWARD * seq_length * model.num_attention_heads * each * half
            full = one if not layer.window else full
            if seen not in ("full", "sliding", "chunked"):
                kept = int(evaluate(seen, vars(model)))
                found += count * _FORWARD * seq_length * half * model.index_n_heads * model.index_head_dim
                found += count * one * seen_share(kept, seq_length)
            elif seen == "chunked":
                found += count * one * min(layer.window / seq_length, 1.0)
            else:
                found += count * one * (seen_share(layer.window, seq_length) if layer.window else 1.0)
    return found + model.mtp_num_layers * (full or found / model.num_layers)


def _layer_weights(model: Model) -> tuple[dict[Layer, int], dict[Layer, int]]:
    """Weights per token of each distinct layer: of its attention, and of its feed-forward, an MoE's router with it."""
    routed = model.moe_router_topk * model.expert_parameters + model.shared_expert_parameters + model.latent_parameters
    of = {"none": 0, "dense": model.dense_mlp_parameters, "experts": routed + model.hidden_size * model.num_experts}
    kinds = dict.fromkeys(model.pattern)
    return {one: sum(map(model.mixer_weights, one.mixers)) for one in kinds}, {one: of[one.ffn] for one in kinds}


def hardware_flops_per_token(job: Job, layouts: Columns) -> Floats:
    """Model flops and those of forward passes that layouts recompute, (n,) (Korthikanti et al. 2022, arXiv:2205.05198).

    Of layers recomputed whole all but the head; of selective recomputation attention's scores, the MLP, or the routed
    experts, where they are named. What flash attention recomputes by itself is not counted, as usual.
    """
    model, seq_length = job.model, job.training.seq_length
    re = Recompute(completed(job, layouts), model.num_layers)
    counts, (attention, ffn) = Counter(model.pattern), _layer_weights(model)
    scores = _score_flops(model, seq_length, causal=False)
    mlp, moe = (
        _FORWARD * sum(count * ffn[one] for one, count in counts.items() if one.ffn == name)
        for name in ("dense", "experts")
    )
    layers = _FORWARD * sum(count * attention[one] for one, count in counts.items()) + mlp + moe + scores
    selective = (re.usual | re.has("core_attn")) * scores + re.has("mlp") * mlp + re.has("moe") * moe
    flops = model_flops_per_token(model, seq_length, training=job.training)
    return np.asarray(flops + re.full_share * layers + selective)


def throughput(job: Job, layouts: Columns, time_s: npt.ArrayLike, energy_j: npt.ArrayLike) -> Columns:
    """The columns of `THROUGHPUT`, (n,) each, from time (s) and energy (J) of all GPUs of one iteration.

    ``mfu`` and ``hfu`` are shares of the GPU's dense peak in the job's precision; NaN where no source states it.
    """
    tokens = job.training.global_batch_size * job.training.seq_length
    # those of the plan: a table's need not fill its last node
    gpus = num_gpus(layouts)
    rate = tokens / np.asarray(time_s, np.float64)
    model = rate / gpus / TERA * model_flops_per_token(job.model, job.training.seq_length, training=job.training)
    hardware = rate / gpus / TERA * hardware_flops_per_token(job, layouts)
    peak, joules = peak_tflops(job), np.asarray(energy_j, np.float64)
    values = (
        rate, rate / gpus, model, model / peak, hardware / peak, tokens / joules, joules / tokens * _BILLION / KWH,
    )  # fmt: skip
    return dict(zip(THROUGHPUT, values, strict=True))


def peak_tflops(job: Job) -> float:
    """The dense peak of one GPU in the job's precision, TFLOP/s; NaN where no source states it."""
    gpu = job.cluster.gpu
    slower = fp32_time_factor(gpu) if job.training.precision == "fp32" and not gpu.is_cpu else None
    if slower is not None and gpu.peak_16_bit_tflops is not None:  # the catalogue's fp32 is that of tensor cores
        return gpu.peak_16_bit_tflops / slower
    return float(gpu.peak_tflops.get(job.training.dtype, np.nan))


def with_rates(job: Job, plans: Columns) -> Columns:
    """Plans with the columns of `THROUGHPUT`, and what their site draws and pays (`site.with_site`)."""
    layouts = {name: plans[name] for name in LAYOUT_COLUMNS if name in plans}
    return with_site(job, plans) | throughput(job, layouts, plans["iteration_time_s"], plans["energy_j"])
