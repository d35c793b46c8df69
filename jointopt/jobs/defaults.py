"""The one table of defaults: what a job file, a plan and a row of a table mean by what they leave blank.

Where sources differ, a default is what the recorded runs of its framework were fitted with (docs/accuracy.md), because
those predictions are known to hold; but for attention, of which software of today has faster kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import (
    COLUMNS,
    DEGREES,
    EXPRESSION_NAMES,
    LAYOUT_COLUMNS,
    MODULES,
    NEUTRAL,
    RECOMPUTE_CODES,
    SCHEDULE,
    STAGE_LAYERS,
    Bools,
    Columns,
    Floats,
    Ints,
    evaluate,
)
from jointopt.jobs.catalog.frameworks import is_newer
from jointopt.jobs.catalog.kernels import flash_is_usual, runnable_attention
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE, Framework
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.stages import largest_chunk, recipe_split, states_even

FUSED_NORM = True  # every framework with a profile has brought fused norms since 2021
PLAIN_LINK_GBYTES_PER_S = 12.5  # one 100 Gb/s port per GPU, of a table's GPU that has no reference system
# Of several blank degrees all but the last are 1, in this order (cp, pp, tp, dp): published runs that do not mention
# context parallelism have none, and data parallelism is what takes up the remaining GPUs in every framework.
_BLANK_FIRST = DEGREES[::-1]


@dataclass(frozen=True)
class DefaultPlan:
    """Layouts (n,) per column without blanks, and where each column is an assumption: blank, and with a choice.

    A single blank degree is what the other degrees leave of the GPUs; it is no assumption.
    """

    layouts: Columns
    assumed: Mapping[str, Bools]


def default_plan(job: Job, given: Mapping[str, npt.ArrayLike]) -> DefaultPlan:
    """The layouts that n plans with blank fields mean for a job: by its framework, model, batch and number of GPUs.

    ``given`` has float arrays (n,) by layout column, NaN where blank; a missing column is blank in all rows;
    ``recompute`` by code. What is given stays as it is, sense or not: `jointopt.jobs.plans.rules` judges it.
    """
    size = max((np.size(values) for values in given.values()), default=1)
    raw = {name: np.broadcast_to(np.asarray(given.get(name, np.nan), np.float64), size) for name in LAYOUT_COLUMNS}
    blank = {name: np.isnan(values) for name, values in raw.items()}
    filled, guessed = fill_degrees(raw, np.full(size, float(job.cluster.num_gpus)))
    # experts lie whole on every rank; a micro-batch of 1 fits best
    first = {name: COLUMNS[name].values.start for name in LAYOUT_COLUMNS} | NEUTRAL
    filled = {name: np.where(blank[name], first[name], raw[name]) for name in LAYOUT_COLUMNS} | filled
    layouts: Columns = {name: values.astype(np.int64) for name, values in filled.items()}
    figures = EXPRESSION_NAMES | {
        "job": job, "model": job.model, "training": job.training, "framework": job.training.framework,
        "recompute_codes": RECOMPUTE_CODES, "default_vpp": _default_vpp, "own_chunks": _own_chunks,
        "default_zero_stage": _default_zero_stage, "default_etp": default_etp, "usual_splits": _usual_splits,
    }  # fmt: skip
    for name in (name for name in LAYOUT_COLUMNS if COLUMNS[name].blank):
        layouts[name] = np.where(blank[name], evaluate(COLUMNS[name].blank, layouts, figures), layouts[name])
    assumed = dict(guessed)
    for name in LAYOUT_COLUMNS[len(DEGREES) :]:
        usual = COLUMNS[name].effect or "True" if COLUMNS[name].neutral is None else "False"
        assumed[name] = blank[name] & evaluate(COLUMNS[name].assumed or usual, layouts, figures)
    return DefaultPlan({n: layouts[n].astype(COLUMNS[n].array_dtype) for n in LAYOUT_COLUMNS}, assumed)


def _default_zero_stage(framework: Framework, pp: Ints) -> Ints:
    """The framework's own stage; with pipelines the next lower one that it can combine with them, else the lowest."""
    usual = framework.default_zero_stage
    offered = sorted(set(framework.zero_stages) & set(framework.zero_stages_with_pipeline)) or [0]
    piped = max((stage for stage in offered if stage <= usual), default=offered[0])
    return np.where(pp > 1, piped, usual)


def _usual_splits(job: Job, layouts: Columns) -> Ints:
    """Codes (n,) of the splits that a blank ``stage_layers`` means, 0 where it is the framework's even one."""
    pairs, which = np.unique(np.stack([layouts["pp"], layouts["vpp"]]), axis=1, return_inverse=True)
    codes = [STAGE_LAYERS.code_of(recipe_split(job, int(pp), int(vpp))) for pp, vpp in pairs.T]
    return np.asarray(codes, np.int64)[which.reshape(-1)]


def default_etp(job: Job, layouts: Columns) -> Ints:
    """The degree (n,) that cuts an expert: tp where the framework does so and ep leaves tp free; 0 without experts."""
    if not job.model.is_moe:
        return np.zeros_like(layouts["tp"])
    whole = (layouts["dp"] * layouts["cp"]) % layouts["ep"] == 0
    return np.where(job.training.framework.expert_tensor_parallel & whole, layouts["tp"], 1)


def completed(job: Job, layouts: Columns) -> Columns:
    """The layouts with missing columns of `NEUTRAL`, which most plans do without, added at their defaults.

    A schedule whose number of chunks is not the plan's vpp becomes 1F1B: no framework starts it.
    """
    if not all(name in layouts for name in NEUTRAL):
        found = {name: np.full(len(layouts["tp"]), value) for name, value in NEUTRAL.items()}
        layouts = found | {"etp": default_etp(job, layouts)} | layouts
    if not (schedule := layouts["schedule"]).any():
        return layouts
    own = _own_chunks(schedule)
    return layouts | {"schedule": np.where((own == 0) | (own == layouts["vpp"]), schedule, 0)}


def _own_chunks(schedule: npt.NDArray[Any]) -> Ints:
    """The vpp (n,) that each schedule (n,), by code, requires; 0 where it leaves that open."""
    found = np.zeros(np.shape(schedule), np.int64)
    for name, chunks in CHUNKS_OF_SCHEDULE.items():
        found[schedule == SCHEDULE.code(name)] = chunks
    return found


def fill_degrees(given: Mapping[str, Floats], num_gpus: Floats) -> tuple[dict[str, Floats], dict[str, Bools]]:
    """Degrees (n,) without blanks, and masks (n,) of where each is a guess.

    Of several blank ones all but the last of `_BLANK_FIRST` are 1; the last is what the others leave of the GPUs. That
    one is no guess, except for a cp above 1, nor is any where the stated degrees leave no GPUs.
    """
    blank = {name: np.isnan(given[name]) for name in _BLANK_FIRST}
    left, guessed = np.sum(list(blank.values()), axis=0), {}
    for name in _BLANK_FIRST:
        guessed[name] = blank[name] & (left > 1)
        left = left - guessed[name]
    known = {name: np.where(blank[name], 1.0, given[name]) for name in _BLANK_FIRST}
    product = np.prod(list(known.values()), axis=0)
    rest = np.maximum(num_gpus // product, 1.0)
    single = {name: blank[name] & ~guessed[name] for name in _BLANK_FIRST}
    degrees = {name: np.where(single[name], rest, known[name]) for name in DEGREES}
    guessed = {name: guess & (product != num_gpus) for name, guess in guessed.items()}
    # most frameworks run without context parallelism: where the others leave some, a figure may as well be wrong
    return degrees, guessed | {"cp": guessed["cp"] | (single["cp"] & (rest > 1.0))}


def canonical(job: Job, layouts: Columns) -> Columns:
    """The layouts with each choice that has no effect at its neutral value, so that equal plans are equal rows."""
    out = dict(layouts)
    for name in LAYOUT_COLUMNS:
        if effect := COLUMNS[name].effect:
            out[name] = np.where(evaluate(effect, out), out[name], COLUMNS[name].values.start)
    core = MODULES.bit("core_attn")
    modules = out["recompute_modules"] & ~idle_modules(job.model)
    if job.selective_is_none:  # there are no scores to drop
        modules = modules & ~core
        selective = (out["recompute"] == RECOMPUTE_CODES["selective"]) & (modules == 0)
        out["recompute"] = np.where(selective, RECOMPUTE_CODES["none"], out["recompute"])
    fewer = out["recompute_num_layers"]
    out |= {
        "recompute_modules": np.where(modules == core, 0, modules),  # what a blank means
        "recompute_num_layers": np.where(fewer < largest_chunk(job.model, layouts), fewer, 0),
        "stage_layers": np.where(states_even(job.model, layouts), 0, out["stage_layers"]),
    }
    if not job.model.is_moe:
        out["etp"] = np.where(out["etp"] > 1, out["etp"], 0)
    return out | {name: out[name].astype(COLUMNS[name].array_dtype) for name in LAYOUT_COLUMNS if name in out}


def idle_modules(model: Model) -> int:
    """Bits of the recompute modules that this model has no layer of, which Megatron Core passes over."""
    idle = [] if model.is_moe else ["moe"]
    idle += [] if model.num_shared_experts else ["shared_experts"]
    idle += [] if model.num_plain_layers else ["mlp"]
    return sum(map(MODULES.bit, idle))


def default_dtype(gpu: Gpu) -> str:
    """bf16, which all recorded runs since 2021 train in where the GPU has it; else fp16 (V100)."""
    return "bf16" if "bf16" in gpu.peak_tflops else "fp16"


def default_attention(framework: Framework, gpu: Gpu, dtype: str, software: str = "", *, newer: bool) -> str:
    """The attention kernel where none is named: what its newer or its older releases run on that GPU.

    ``software``: text that may name the release; ``newer``: what one that is not named is. A job is a run to come, by
    software of today; a row of a table records one of an unknown day, and profiles with ``fused`` were fitted to such
    rows of A100 and V100. Older libraries chose flash2 by themselves from Hopper on, for 16 bit and less
    (FlashAttention's README). What the GPU cannot run gives way to flash2, then to fused.
    """
    wanted = "flash2" if flash_is_usual(gpu) and dtype != "fp32" else framework.default_attention
    if dtype != "fp32" and is_newer(framework, software, newer):
        wanted = framework.newer_attention.get(gpu.architecture.lower(), wanted)
    return runnable_attention(gpu, wanted)


def _default_vpp(job: Job, layouts: Columns) -> Ints:
    """The most chunks, of at least the framework's usual layers each, that interleaving allows; 1 where none do.

    Only NeMo's recipes interleave by themselves. It needs pp to divide the micro-batches, and pp*vpp the layers.
    """
    pp, layers, least = layouts["pp"], job.model.num_layers, job.training.framework.default_chunk_layers
    vpp = np.ones_like(pp)
    for chunks in range(2, layers // (2 * least) + 1 if least else 2):
        vpp = np.where((layers % (pp * chunks) == 0) & (layers // (pp * chunks) >= least), chunks, vpp)
    micro_batches = job.training.global_batch_size // (layouts["dp"] * layouts["micro_batch_size"])
    return np.where((pp > 1) & (micro_batches % pp == 0), vpp, 1)
