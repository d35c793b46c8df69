"""The ``training`` section of a job file."""

from __future__ import annotations

import dataclasses
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.facts import Assumption
from jointopt.core.schema import (
    ATTENTIONS,
    CUDA_GRAPHS,
    DTYPES,
    FP8_RECIPES,
    LORA_TARGETS,
    OTHER_RECIPES,
    RECIPE_CLASSES,
    TOKEN_DISPATCHERS,
)
from jointopt.jobs.catalog.frameworks import (
    framework_names,
    framework_of_words,
    load_framework,
    named_class,
    profile_of_class,
)
from jointopt.jobs.catalog.kernels import (
    architectures_of,
    attention_kernels,
    only_recipe,
    recipes_of,
    scaled_dtype,
    scaling_recipe,
)
from jointopt.jobs.catalog.limits import check_batch, limited_number, limited_whole
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.defaults import FUSED_NORM, default_attention, default_dtype
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import STATE_BYTES, STATE_FIELDS, TF32, ScalingRecipe, Training
from jointopt.jobs.model import Model
from jointopt.jobs.reading import Section

TRAINING_KEYS = tuple(f.name for f in dataclasses.fields(Training) if not f.name.endswith("_assumed"))
# `row.dtype` of a table row is the row's own type: scripts that write jobs from tables write it down
_PANDAS_ROW = "object"


def read_training(section: Section, gpu: Gpu, model: Model) -> Training:
    """The training of a job file for that GPU; JobError names the key that makes no sense."""
    training = section.section("training", TRAINING_KEYS)
    given, row = training.values, training.values.get("dtype") == _PANDAS_ROW
    usual = default_dtype(gpu)
    precision = usual if row else training.choice("dtype", (*DTYPES, TF32), usual)
    dtype = "fp32" if precision == TF32 else precision
    if precision == TF32 and not gpu.has_tf32:
        raise JobError(f"{training.at('dtype')}: GPU {gpu.id!r} has no tf32; expected fp32 or a format of 16 bits.")
    if dtype not in gpu.peak_tflops:
        raise JobError(
            f"{training.at('dtype')}: no source states the {dtype} rate of GPU {gpu.id!r}; "
            f"expected one of {', '.join(gpu.peak_tflops)}."
        )
    # free text may name the framework, and the class of its recipe, as a table's does
    text = given["framework"] if isinstance(given.get("framework"), str) else ""
    meant = framework_of_words(text)
    framework = meant or load_framework(training.choice("framework", framework_names(), "generic"))
    stated = training.choice("recipe_class", RECIPE_CLASSES, "") or (named_class(text) if meant else "")
    framework = profile_of_class(framework, stated)
    # a release that runs another kernel than the newest states that; where neither is named, the kernel is assumed
    software = str(given.get("framework", ""))
    newest, named = (default_attention(framework, gpu, dtype, words, newer=True) for words in ("", software))
    attention, able = training.choice("attention", ATTENTIONS, named), attention_kernels(gpu)
    if attention not in able:
        raise JobError(
            f"{training.at('attention')}: {attention} does not run on GPU {gpu.id!r} ({gpu.architecture}); "
            f"expected one of {', '.join(able)}."
        )
    seq_length = limited_whole(training, "seq_length", "training.seq_length")
    check_batch(training.whole("global_batch_size"), seq_length)
    read = Training(
        seq_length=seq_length,
        global_batch_size=training.whole("global_batch_size"),
        dtype=dtype,
        fp8_recipe=_fp8_recipe(training, gpu, dtype),
        dtype_assumed=row,
        attention=attention,
        attention_assumed=not training.has("attention") and named == newest,
        fused_norm=training.flag("fused_norm", FUSED_NORM),
        framework=dataclasses.replace(framework, tf32=framework.tf32 or precision == TF32),
        recipe_class=stated,
        token_dispatcher=training.choice("token_dispatcher", TOKEN_DISPATCHERS, ""),
        **_further(training, framework),
    )
    _check_experts(model, read)
    # adapters of which no layer of the model has the linear would leave nothing to train
    there = LORA_TARGETS[:2] * model.has_attention + LORA_TARGETS[2:] * model.has_mlp
    if read.frozen and not set(read.adapted) & set(there):
        raise JobError(
            f"training.lora_target_modules: {model.name} has no {', '.join(read.adapted)}, and nothing would be "
            f"trained; expected some of {', '.join(there)}."
        )
    return read


def _fp8_recipe(training: Section, gpu: Gpu, dtype: str) -> ScalingRecipe | None:
    """The recipe that scales fp8 and fp4 products: one that the precision has and the GPU runs; None: not stated.

    Of fp4 Transformer Engine has but one, which is meant where none is stated.
    """
    if not training.has("fp8_recipe"):
        return only_recipe(dtype, gpu)
    name = training.choice("fp8_recipe", (*FP8_RECIPES, *OTHER_RECIPES))
    name = OTHER_RECIPES.get(name, name)
    able, scaled = recipes_of(dtype, gpu), scaled_dtype(name)
    if scaled != dtype:
        others = f"one of {', '.join(able)}, or " if able else ""
        raise JobError(
            f"{training.at('fp8_recipe')}: {name} scales products in {scaled}, and dtype is {dtype}; "
            f"expected {others}dtype {scaled}, or leave it out."
        )
    if name not in able:
        raise JobError(
            f"{training.at('fp8_recipe')}: {name} does not run on GPU {gpu.id!r} ({gpu.architecture}), but on "
            f"{', '.join(architectures_of(name))}; expected one of {', '.join(able)}."
        )
    return scaling_recipe(name, gpu)


def _further(training: Section, framework: Framework) -> dict[str, Any]:
    """Keys that most jobs leave out: experts, CUDA graphs, tokens of the run, formats of states, adapters."""
    graph = training.choice("cuda_graph", CUDA_GRAPHS, "none")
    if graph != "none" and framework.family != "megatron-core":
        raise JobError(
            f"{training.at('cuda_graph')}: the memory of {framework.name}'s CUDA graphs is unknown; expected none."
        )
    flags = ("overlap_moe_a2a", "moe_router_force_load_balancing")
    found: dict[str, Any] = {"cuda_graph": "" if graph == "none" else graph}
    found |= {key: training.flag(key, False) for key in flags}
    found["moe_load_imbalance"] = limited_number(
        training, "moe_load_imbalance", "training.moe_load_imbalance", default=1.0
    )
    if found["moe_load_imbalance"] < 1.0:
        raise training.refuse("moe_load_imbalance", "a number from 1 (balanced) on")
    if training.has("run_tokens"):  # which people write as 15e12
        tokens = limited_number(training, "run_tokens", "training.run_tokens")
        if not tokens.is_integer():
            raise training.refuse("run_tokens", "a whole number of tokens")
        found["run_tokens"] = int(tokens)
    for name in (name for name in STATE_FIELDS if training.has(name)):
        dtype = name.endswith("_dtype")
        found[name] = training.choice(name, tuple(STATE_BYTES)) if dtype else training.flag(name)
    adapters = [key for key in ("lora_dim", "lora_alpha", "lora_target_modules") if training.has(key)]
    if not adapters:
        return found
    if not framework.trains_adapters:
        able = ", ".join(name for name in framework_names() if load_framework(name).trains_adapters)
        raise JobError(
            f"{training.at(adapters[0])}: {framework.name} trains no adapters (LoRA); expected one of {able}."
        )
    targets = training.values.get("lora_target_modules") or list(LORA_TARGETS)
    if not isinstance(targets, list) or not all(target in LORA_TARGETS for target in targets):
        raise training.refuse("lora_target_modules", f"a list of some of {', '.join(LORA_TARGETS)}")
    found["lora_dim"] = limited_whole(training, "lora_dim", "training.lora_dim")
    if training.has("lora_alpha"):
        found["lora_alpha"] = limited_number(training, "lora_alpha", "training.lora_alpha")
    if set(targets) != set(LORA_TARGETS):
        found["lora_target_modules"] = tuple(target for target in LORA_TARGETS if target in targets)
    return found


def _check_experts(model: Model, training: Training) -> None:
    """JobError for a moe_load_imbalance that no plan can have, and for an overlap_moe_a2a that none can run.

    A token goes to an expert at most once, and forced balance draws experts at random. Megatron Core asserts the rest.
    """
    imbalance = training.moe_load_imbalance
    if imbalance > 1.0 and training.moe_router_force_load_balancing:
        raise JobError(
            f"training.moe_load_imbalance {imbalance:g} contradicts moe_router_force_load_balancing, which draws "
            f"experts at random; expected one of the two."
        )
    most, why = 1.0, "no experts"
    if model.is_moe:
        most = model.num_experts / model.moe_router_topk
        why = f"each token goes to {model.moe_router_topk} of {model.num_experts} experts"
    if imbalance > most:
        raise JobError(
            f"training.moe_load_imbalance must be at most {most:g} for {model.name} ({why}); got {imbalance:g}."
        )
    megatron = training.framework.family == "megatron-core"
    reasons = (
        (not model.is_moe, f"{model.name} has no experts"),
        (megatron and training.dtype == "fp32", "it needs bf16 or fp16, and dtype is fp32"),
        (megatron and model.mtp_num_layers > 1, "it needs at most one multi-token-prediction layer, and "
         f"{model.name} has {model.mtp_num_layers}"),
    )  # fmt: skip
    for wrong, reason in reasons:
        if training.overlap_moe_a2a and wrong:
            raise JobError(f"training.overlap_moe_a2a: {reason}; expected false, or leave it out.")


def training_assumptions(section: Section, training: Training, gpu: Gpu) -> tuple[Assumption, ...]:
    """What is assumed of a precision, and of the recipe that scales it, where the job states none."""
    given, dtype, found = section.section("training", TRAINING_KEYS), training.dtype, []
    if training.dtype_assumed:
        reason = f"dtype: {_PANDAS_ROW!r} is pandas' word for a whole row, not a precision; {dtype} is assumed"
        found.append(Assumption("dtype", dtype, reason))
    elif not given.has("dtype") and dtype != "bf16":
        found.append(Assumption("dtype", dtype, f"dtype is not given and {gpu.id} has no bf16; {dtype} is assumed"))
    if training.fp8_recipe is not None and not given.has("fp8_recipe"):
        name = training.fp8_recipe.name
        sentence = f"{name}, the only one of {dtype} on {gpu.id}, is assumed"
        found.append(Assumption.not_given("fp8_recipe", name, name, sentence))
    return tuple(found)
