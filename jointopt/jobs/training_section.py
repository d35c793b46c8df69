"""The ``training`` section of a job file."""

from __future__ import annotations

import dataclasses
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.facts import Assumption
from jointopt.core.schema import OTHER_RECIPES
from jointopt.jobs.catalog.frameworks import framework_names, framework_of_words, load_framework, named_class, of_class
from jointopt.jobs.catalog.kernels import (
    architectures_of,
    attention_kernels,
    only_recipe,
    recipes_of,
    scaled_dtype,
    scaling_recipe,
)
from jointopt.jobs.catalog.limits import check_batch, number, whole
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.defaults import FUSED_NORM, default_attention, default_dtype
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import (
    ATTENTIONS,
    CUDA_GRAPHS,
    DTYPES,
    FP8_RECIPES,
    LORA_TARGETS,
    RECIPE_CLASSES,
    STATE_BYTES,
    STATE_FIELDS,
    TF32,
    TOKEN_DISPATCHERS,
    ScalingRecipe,
    Training,
)
from jointopt.jobs.model import Model
from jointopt.jobs.reading import Section

TRAINING_KEYS = tuple(f.name for f in dataclasses.fields(Training) if not f.name.endswith("_assumed"))
# `row.dtype` of a table row is the row's own type: scripts that write jobs from tables write it down
_PANDAS_ROW = "object"


def read_training(section: Section, gpu: Gpu) -> Training:
    """The training of a job file for that GPU; JobError names the key that makes no sense."""
    training = section.section("training", TRAINING_KEYS)
    precision = default_dtype(gpu)
    if training.values.get("dtype") != _PANDAS_ROW:
        precision = training.choice("dtype", (*DTYPES, TF32), precision)
    dtype = "fp32" if precision == TF32 else precision
    if precision == TF32 and not gpu.has_tf32:
        raise JobError(f"{training.at('dtype')}: GPU {gpu.id!r} has no tf32; expected fp32 or a format of 16 bits.")
    if dtype not in gpu.peak_tflops:
        raise JobError(
            f"{training.at('dtype')}: no source states the {dtype} rate of GPU {gpu.id!r}; "
            f"expected one of {', '.join(gpu.peak_tflops)}."
        )
    framework, stated = _framework(training)
    attention, assumed = _attention(training, framework, gpu, dtype)
    seq_length = whole(training, "seq_length", "training.seq_length")
    check_batch(training.whole("global_batch_size"), seq_length)
    framework = dataclasses.replace(framework, tf32=framework.tf32 or precision == TF32)
    return Training(
        seq_length=seq_length,
        global_batch_size=training.whole("global_batch_size"),
        dtype=dtype,
        fp8_recipe=_fp8_recipe(training, gpu, dtype),
        dtype_assumed=training.values.get("dtype") == _PANDAS_ROW,
        attention=attention,
        attention_assumed=assumed,
        fused_norm=training.flag("fused_norm", FUSED_NORM),
        framework=framework,
        recipe_class=stated,
        token_dispatcher=training.choice("token_dispatcher", TOKEN_DISPATCHERS, ""),
        overlap_moe_a2a=training.flag("overlap_moe_a2a", False),
        moe_load_imbalance=_load_imbalance(training),
        moe_router_force_load_balancing=training.flag("moe_router_force_load_balancing", False),
        cuda_graph=_cuda_graph(training, framework),
        run_tokens=_run_tokens(training),
        **_state_formats(training),
        **_adapters(training, framework),
    )


def _framework(training: Section) -> tuple[Framework, str]:
    """The framework's profile by the recipe class of the job, and that class, which free text may name as a table's."""
    given = training.values.get("framework")
    text = given if isinstance(given, str) else ""
    meant = framework_of_words(text)
    profile = meant or load_framework(training.choice("framework", framework_names(), "generic"))
    stated = training.choice("recipe_class", RECIPE_CLASSES, "") or (named_class(text) if meant else "")
    return of_class(profile, stated), stated


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


def _cuda_graph(training: Section, framework: Framework) -> str:
    """The kind of CUDA graphs, which is known of Megatron Core and what is built on it alone."""
    named = training.choice("cuda_graph", CUDA_GRAPHS, "none")
    if named != "none" and framework.family != "megatron-core":
        raise JobError(
            f"{training.at('cuda_graph')}: the memory of {framework.name}'s CUDA graphs is unknown; expected none."
        )
    return "" if named == "none" else named


def _load_imbalance(training: Section) -> float:
    """How much more tokens the most loaded expert has than the mean, which forced balance leaves no choice of."""
    stated = number(training, "moe_load_imbalance", "training.moe_load_imbalance", default=1.0)
    if stated < 1.0:
        raise training.refuse("moe_load_imbalance", "a number from 1 (balanced) on")
    if stated > 1.0 and training.flag("moe_router_force_load_balancing", False):
        raise JobError(
            f"{training.at('moe_load_imbalance')} {stated:g} contradicts moe_router_force_load_balancing, which draws "
            f"experts at random; expected one of the two."
        )
    return stated


def check_imbalance(model: Model, training: Training) -> None:
    """JobError for more tokens than all at the most loaded expert, each of which goes there once."""
    most = model.num_experts / model.moe_router_topk if model.is_moe else 1.0
    if training.moe_load_imbalance > most:
        why = (
            f"each token goes to {model.moe_router_topk} of {model.num_experts} experts"
            if model.is_moe
            else "no experts"
        )
        raise JobError(
            f"training.moe_load_imbalance must be at most {most:g} for {model.name} ({why}); "
            f"got {training.moe_load_imbalance:g}."
        )


def check_a2a_overlap(model: Model, training: Training) -> None:
    """JobError for all-to-alls that no plan of the job could overlap: of no experts, or as Megatron Core asserts."""
    if not training.overlap_moe_a2a:
        return
    reason = "" if model.is_moe else f"{model.name} has no experts"
    if training.framework.family == "megatron-core":
        reason = reason or ("it needs bf16 or fp16, and dtype is fp32" if training.dtype == "fp32" else "")
        many = f"it needs at most one multi-token-prediction layer, and {model.name} has {model.mtp_num_layers}"
        reason = reason or (many if model.mtp_num_layers > 1 else "")
    if reason:
        raise JobError(f"training.overlap_moe_a2a: {reason}; expected false, or leave it out.")


def _state_formats(training: Section) -> dict[str, Any]:
    """Formats of gradients and optimizer states that the job states."""
    given = [name for name in STATE_FIELDS if training.has(name)]
    dtypes = {name: training.choice(name, tuple(STATE_BYTES)) for name in given if name.endswith("_dtype")}
    return dtypes | {name: training.flag(name, False) for name in given if name not in dtypes}


def _adapters(training: Section, framework: Framework) -> dict[str, Any]:
    """LoRA's adapters, which frameworks train that have them alone."""
    given = [key for key in ("lora_dim", "lora_alpha", "lora_target_modules") if training.has(key)]
    if given and not framework.trains_adapters:
        able = ", ".join(name for name in framework_names() if load_framework(name).trains_adapters)
        raise JobError(f"{training.at(given[0])}: {framework.name} trains no adapters (LoRA); expected one of {able}.")
    if not given:
        return {}
    targets = training.values.get("lora_target_modules") or list(LORA_TARGETS)
    if not isinstance(targets, list) or not all(target in LORA_TARGETS for target in targets):
        raise training.refuse("lora_target_modules", f"a list of some of {', '.join(LORA_TARGETS)}")
    found: dict[str, Any] = {"lora_dim": whole(training, "lora_dim", "training.lora_dim")}
    if training.has("lora_alpha"):
        found["lora_alpha"] = number(training, "lora_alpha", "training.lora_alpha")
    every = set(targets) == set(LORA_TARGETS)
    return found | {"lora_target_modules": None if every else tuple(t for t in LORA_TARGETS if t in targets)}


def _run_tokens(training: Section) -> int | None:
    """Tokens of the whole run, which people write as 15e12."""
    if not training.has("run_tokens"):
        return None
    tokens = number(training, "run_tokens", "training.run_tokens")
    if not tokens.is_integer():
        raise training.refuse("run_tokens", "a whole number of tokens")
    return int(tokens)


def _attention(training: Section, framework: Framework, gpu: Gpu, dtype: str) -> tuple[str, bool]:
    """(the job's attention kernel, one that the GPU can run; whether it is assumed: neither it nor a release is named).

    A release that runs another kernel than the newest states that.
    """
    software = str(training.values.get("framework", ""))
    usual, named = (default_attention(framework, gpu, dtype, text, newer=True) for text in ("", software))
    kernel = training.choice("attention", ATTENTIONS, named)
    able = attention_kernels(gpu)
    if kernel not in able:
        raise JobError(
            f"{training.at('attention')}: {kernel} does not run on GPU {gpu.id!r} ({gpu.architecture}); "
            f"expected one of {', '.join(able)}."
        )
    return kernel, not training.has("attention") and named == usual


def assumed_dtype(section: Section, training: Training, gpu: Gpu) -> tuple[Assumption, ...]:
    """An assumption where the job states no precision of its own and gets another than most."""
    reason = f"dtype: {_PANDAS_ROW!r} is pandas' word for a whole row, not a precision; {training.dtype} is assumed"
    if not training.dtype_assumed:
        reason = f"dtype is not given and {gpu.id} has no bf16; {training.dtype} is assumed"
        if section.section("training", TRAINING_KEYS).has("dtype") or training.dtype == "bf16":
            return ()
    return (Assumption("dtype", training.dtype, reason),)


def assumed_recipe(section: Section, training: Training, gpu: Gpu) -> tuple[Assumption, ...]:
    """An assumption where the job states no recipe and its precision has but one."""
    if training.fp8_recipe is None or section.section("training", TRAINING_KEYS).has("fp8_recipe"):
        return ()
    name = training.fp8_recipe.name
    sentence = f"{name}, the only one of {training.dtype} on {gpu.id}, is assumed"
    return (Assumption.not_given("fp8_recipe", name, name, sentence),)


def check_adapters(model: Model, training: Training) -> None:
    """JobError where no layer of the model has a linear that adapters are wanted for, so that nothing is trained."""
    there = LORA_TARGETS[:2] * model.has_attention + LORA_TARGETS[2:] * model.has_mlp
    if training.frozen and not set(training.adapted) & set(there):
        wanted = ", ".join(training.adapted)
        raise JobError(
            f"training.lora_target_modules: {model.name} has no {wanted}, and nothing would be trained; "
            f"expected some of {', '.join(there)}."
        )
