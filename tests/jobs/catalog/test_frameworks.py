"""Framework profiles: complete, sourced, and recognised in what tables call them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from jointopt.core.errors import CatalogError
from jointopt.core.schema import ATTENTIONS, DTYPES, RECOMPUTE_NAMES, TOKEN_DISPATCHERS
from jointopt.jobs.catalog.frameworks import framework_names, load_framework, recognise_framework, with_settings
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import STATE_BYTES, ScalingRecipe, Training
from tests.each import each


@each("name", framework_names())
def test_a_profile_is_possible_and_names_its_source(name: str) -> None:
    profile = load_framework(name)
    assert profile.name == name
    assert len(profile.source) > 10
    assert profile.default_recompute in profile.recomputes
    assert set(profile.recomputes) <= set(RECOMPUTE_NAMES)
    assert profile.default_attention in ATTENTIONS
    assert set(profile.zero_stages_with_pipeline) <= {0, 1, 2, 3}
    shares = ("dp_overlap", "tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "selective_share")
    assert all(0 <= getattr(profile, share) <= 1 for share in shares)
    assert 0 < profile.chosen_ep_overlap <= 1
    assert set(profile.dispatcher_sms) <= set(TOKEN_DISPATCHERS)
    assert 0 < profile.memory_fraction <= 1
    assert 0 < profile.network_efficiency <= 1
    assert min(profile.compute_factor, profile.elementwise_factor, profile.activation_factor) > 0


@each("dtype", DTYPES)
@each("name", framework_names())
def test_frozen_weights_take_no_more_than_16_bit_or_those_of_the_training_unless_a_source_says_so(
    name: str, dtype: str
) -> None:
    profile = load_framework(name)
    training = Training(1, 1, dtype, framework=profile, lora_dim=8)
    if training.frozen_bytes > max(2.0, STATE_BYTES[dtype]):
        assert "frozen weights" in profile.source
    for gather in (None, False, True):  # in 8 bit
        stated = replace(training, fp8_param_gather=gather, fp8_recipe=ScalingRecipe("delayed", dtype, 1.0, copies=1.0))
        assert stated.frozen_bytes <= stated.weight_bytes


@each("name", framework_names())
def test_the_figures_of_a_profile_have_the_types_of_the_dataclass(name: str) -> None:
    profile, plain = load_framework(name), Framework()
    for field in fields(Framework):
        value, default = getattr(profile, field.name), getattr(plain, field.name)
        wanted = (int, float) if isinstance(default, float) else type(default)
        assert isinstance(value, wanted), field.name


@pytest.mark.parametrize(
    ("settings", "kind", "logits_bytes"),
    [
        ({}, {"architecture": "hopper"}, 14),
        ({}, {"architecture": "blackwell"}, 4),
        ({}, {"architecture": "hopper", "model": "moe"}, 4),
        ({"framework_release": "0.2"}, {"architecture": "hopper"}, 4),
        ({"framework_release": "0.0.1"}, {"architecture": "blackwell"}, 14),
        ({"framework_release": "0.2", "compile": False}, {"architecture": "hopper"}, 14),
    ],
)
def test_torchtitan_compiles_the_loss_since_0_1_and_so_in_what_runs_on_newer_gpus_or_has_experts(
    settings: dict[str, Any], kind: dict[str, str], logits_bytes: float
) -> None:
    profile = with_settings(load_framework("torchtitan"), settings, **({"model": "dense"} | kind))
    assert profile.logits_bytes == logits_bytes


@pytest.mark.parametrize(("attention_kind", "moment_bytes"), [("mla", 2), ("", 4)])
def test_megatron_bridge_keeps_moments_of_deepseek_s_kind_of_model_in_16_bit(
    attention_kind: str, moment_bytes: float
) -> None:
    profile = with_settings(load_framework("megatron-bridge"), {}, attention_kind=attention_kind)
    assert profile.moment_bytes == moment_bytes


# Every framework that the recorded runs name, and spellings of the same.
RECOGNISED = [
    ("AA-Scaling (Aleph Alpha, Megatron-like)", "aa-scaling"),
    ("Composer FSDP (MPT)", "composer"),
    ("InternEvo", "internevo"),
    ("MXNet NVIDIA Release 24.04 or PyTorch NVIDIA Release 24.04", "nemo"),
    ("Megatron-DeepSpeed", "megatron-deepspeed"),
    ("Megatron-LM", "megatron-lm"),
    ("Megatron-Bridge 26.08", "megatron-bridge"),
    ("NVIDIA Megatron Bridge (Megatron-Core)", "megatron-bridge"),
    ("NVIDIA NEMO", "nemo"),
    ("NVIDIA NeMo Framework Release 23.09", "nemo"),
    ("NVIDIA NeMo Framework Release 24.04", "nemo"),
    ("NVIDIA NeMo Framework Release 24.09", "nemo"),
    ("NVIDIA NeMo Framework Release 25.01", "nemo"),
    ("NVIDIA NeMo Framework Release 25.04", "nemo"),
    ("NeMo 24.03.01", "nemo"),
    ("NeMo 24.07 or doc revision 08264fe348", "nemo"),
    ("NeMo 24.07 or doc revision ccef6aab5a", "nemo"),
    ("NeMo 24.07 or doc revision e2de75c15e", "nemo"),
    ("NeMo 25.02", "nemo"),
    ("NeMo 25.04", "nemo"),
    ("NeMo 25.07", "nemo"),
    ("OneFlow", "oneflow"),
    ("PyTorch FSDP (FSDP)", "fsdp"),
    ("PyTorch FSDP (HSDP)", "fsdp"),
    ("PyTorch NVIDIA Release 23.09", "nemo"),
    ("nanotron", "nanotron"),
    ("torchtitan", "torchtitan"),
    ("DeepSpeed 0.14", "deepspeed"),
    ("Megatron DeepSpeed", "megatron-deepspeed"),
    ("MegatronLM core_v0.9", "megatron-lm"),
    ("megatron_core", "megatron-lm"),
    ("NeMo2.0", "nemo"),
    ("FSDP2", "fsdp"),
    ("MosaicML LLM Foundry", "composer"),
    ("not DeepSpeed, Megatron-LM", "megatron-lm"),
    (" torchtitan ", "torchtitan"),
]


@each(("text", "name"), RECOGNISED)
def test_what_tables_call_a_framework_is_recognised(text: str, name: str) -> None:
    profile, known = recognise_framework(text)
    assert (profile.name, known) == (name, True)


@each(
    "text",
    ["", "Colossal-AI", "in-house", "MaxText JAX on NVIDIA cluster", "NVIDIA", "nemotron in-house", "nemotron",
     "not Megatron (own code)", "non-Megatron", "in-house, not based on Megatron-LM", "isn't NeMo", "Megatron-like",
     "JAX instead of NeMo", "decomposer", "Azure foundry"],
)  # fmt: skip
def test_an_unknown_framework_is_the_generic_one_and_marked_as_unknown(text: str) -> None:
    profile, known = recognise_framework(text)
    assert (profile.name, known) == ("generic", False)


def test_a_mistyped_profile_names_the_nearest() -> None:
    with pytest.raises(CatalogError, match="did you mean 'nanotron'"):
        load_framework("nanotrn")


def test_a_derived_framework_profile_inherits_constants_and_neither_names_nor_measurements() -> None:
    parent, child = load_framework("generic"), load_framework("deepspeed")
    assert not child.fitted
    kept = replace(child, name=parent.name, aliases=parent.aliases, source=parent.source, fitted=parent.fitted)
    differing = {f.name for f in fields(Framework) if getattr(kept, f.name) != getattr(parent, f.name)}
    assert child.aliases == ("deepspeed",)
    assert "compute_factor" not in differing
