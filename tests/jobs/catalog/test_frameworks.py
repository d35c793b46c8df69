"""Framework profiles: complete, sourced, and recognised in what tables call them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from jointopt.core.errors import CatalogError
from jointopt.core.schema import ATTENTIONS, CROSS_ENTROPIES, DTYPES, RECOMPUTE_NAMES, TOKEN_DISPATCHERS
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.frameworks import framework_names, load_framework, recognise_framework, with_settings
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import STATE_BYTES, ScalingRecipe, Training
from jointopt.physics.layers import gemm_time_s
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
    ("JAX Pax", "jax"),
    ("paxml 24.04", "jax"),
    ("JAX instead of NeMo", "jax"),
    ("MaxText JAX on NVIDIA cluster", "maxtext"),
    ("FSDP2", "fsdp"),
    ("MosaicML LLM Foundry", "composer"),
    ("not DeepSpeed, Megatron-LM", "megatron-lm"),
    (" torchtitan ", "torchtitan"),
    ("JAX instead of NeMo", "jax"),
]


@each(("text", "name"), RECOGNISED)
def test_what_tables_call_a_framework_is_recognised(text: str, name: str) -> None:
    profile, known = recognise_framework(text)
    assert (profile.name, known) == (name, True)


@each(
    "text",
    ["", "Colossal-AI", "in-house", "NVIDIA", "nemotron in-house", "nemotron",
     "not Megatron (own code)", "non-Megatron", "in-house, not based on Megatron-LM", "isn't NeMo", "Megatron-like",
     "PyTorch instead of JAX", "decomposer", "Azure foundry"],
)  # fmt: skip
def test_an_unknown_framework_is_the_generic_one_and_marked_as_unknown(text: str) -> None:
    profile, known = recognise_framework(text)
    assert (profile.name, known) == ("generic", False)


# What a release and stated settings make of a profile (its ``changes``).

MXFP8 = {"dtype": "fp8", "fp8_recipe": "mxfp8", "architecture": "blackwell"}


def bridge(kind: dict[str, str] = MXFP8, **settings: object) -> Framework:
    return with_settings(load_framework("megatron-bridge"), settings, **kind)


def test_a_captured_iteration_leaves_the_host_nothing_and_captured_attention_half_a_layer() -> None:
    bf16 = MXFP8 | {"dtype": "bf16", "fp8_recipe": ""}
    eager, partly, whole = (bridge(bf16, cuda_graph=g) for g in ("none", "transformer_engine", "full_iteration"))
    assert partly.host_floor_s == eager.host_floor_s / 2
    assert partly.moe_host_s == eager.moe_host_s > whole.moe_host_s == whole.host_floor_s == 0.0


def test_recipes_of_releases_from_26_06_on_capture_fuse_and_overlap_experts_on_blackwell_in_mxfp8() -> None:
    found = {release: bridge(framework_release=release) for release in ("26.04.01", "26.06", "26.08", "27.02")}
    assert not found["26.04.01"].fused_experts
    assert found["26.04.01"].moe_host_s > 0.0
    for release in ("26.06", "26.08", "27.02"):  # one newer than the newest known is as that
        assert found[release].fused_experts
        assert (found[release].moe_host_s, found[release].ep_overlap) == (0.0, found[release].chosen_ep_overlap)


@each("name", framework_names())
def test_a_loss_of_fewer_kernels_keeps_no_more_of_a_logit(name: str) -> None:
    profile = load_framework(name)
    found = [with_settings(profile, {"cross_entropy": loss}).logits_bytes for loss in CROSS_ENTROPIES]
    assert found == sorted(found, reverse=True)
    assert found[0] >= profile.logits_bytes >= found[-1] == 2.0


def test_a_stated_loss_goes_before_that_of_a_compiled_model() -> None:
    titan, newer = load_framework("torchtitan"), {"framework_release": "0.2", "compile": True}
    assert with_settings(titan, newer).logits_bytes == 4
    assert with_settings(titan, newer | {"cross_entropy": "unfused"}).logits_bytes == titan.logits_bytes


@each("other", [{"dtype": "bf16", "fp8_recipe": ""}, {"fp8_recipe": "tensorwise"}, {"architecture": "hopper"}])
def test_other_precisions_and_gpus_do_as_before(other: dict[str, str]) -> None:
    kind = MXFP8 | other
    assert bridge(kind, framework_release="26.06") == bridge(kind, framework_release="26.04")


def test_what_is_stated_goes_before_what_a_release_usually_does() -> None:
    assert bridge(framework_release="26.06", ep_overlap=0.0).ep_overlap == 0.0
    eager = bridge(framework_release="26.06", cuda_graph="none")
    assert eager.moe_host_s > 0.0
    assert not eager.fused_experts


def test_dropless_experts_are_captured_with_attention_alone_before_26_06() -> None:
    early = bridge(framework_release="26.04", cuda_graph="full_iteration")
    assert early == bridge(framework_release="26.04", cuda_graph="transformer_engine")


def test_a_stated_share_of_hidden_all_to_alls_holds_on_any_fabric() -> None:
    assert bridge(ep_overlap=True).network_ep_share < bridge(ep_overlap=0.7).network_ep_share == 1.0


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


def test_torchtitan_moves_more_bytes_where_nothing_is_compiled_and_repeats_all_fp8_products_but_the_last() -> None:
    titan, kind = load_framework("torchtitan"), {"dtype": "bf16", "fp8_recipe": "", "architecture": "hopper"}
    eager = with_settings(titan, {"compile": False}, **kind)
    assert eager.elementwise_factor > 2 * titan.elementwise_factor
    assert with_settings(titan, {"compile": True}, **kind) == titan
    assert titan.recomputed_products["selective"] == [0.5, 0.333]
    assert with_settings(titan, {}, **kind | {"dtype": "fp8"}).recomputed_products["selective"] == [1.0, 0.667]


@each("gpu", ["mi300x", "mi325x", "mi350x", "mi355x"])
def test_large_products_of_amd_reach_what_its_library_sustains(gpu: str) -> None:
    published = {"mi300x": 708, "mi325x": 843, "mi350x": 1376, "mi355x": 1686}[gpu]
    constants = kernel_constants(load_gpu(gpu)).gemm
    seconds = sum(gemm_time_s(4096, 4864, 32896, constants, throttled=False))
    assert 2 * 4096 * 4864 * 32896 / seconds == pytest.approx(published * 1e12, rel=0.06)


@each(("release", "hidden", "messages"), [("", 0.5, 8), ("24.04", 0.5, 8), ("23.10", 0.0, 16), ("v1", 0.0, 16)])
def test_pax_hides_no_gather_behind_a_layer_before_its_container_24_04(
    release: str, hidden: float, messages: float
) -> None:
    found = with_settings(load_framework("jax"), {"framework_release": release})
    assert (found.dp_overlap, found.messages_per_layer) == (hidden, messages)


def test_maxtext_is_jax_that_recomputes_whole_layers_and_has_flash_attention() -> None:
    pax, maxtext = load_framework("jax"), load_framework("maxtext")
    differing = {f.name for f in fields(Framework) if getattr(pax, f.name) != getattr(maxtext, f.name)}
    assert differing == {"name", "aliases", "source", "fitted", "default_recompute", "default_attention"}
    assert (maxtext.default_recompute, maxtext.default_attention) == ("full", "flash2")


CHANGES = (
    {"when": "release >= (26, 6)", "set": {"compute_factor": 0.9}, "source": "its notes"},
    {"when": "compile is False", "set": {"compute_factor": "2 * compute_factor", "loss_passes": 3}, "source": "a run"},
    {"when": "cuda_graph == 'none' and dtype == 'fp8'", "set": {"host_floor_s": 0.5}, "source": "a run"},
)


@each(("settings", "dtype", "moved"), [
    ({}, "fp8", {}), ({"framework_release": "26.04.01"}, "fp8", {}),
    ({"framework_release": "nemo:26.06"}, "fp8", {"compute_factor": 0.9}),
    ({"framework_release": "26.10", "compile": False}, "bf16", {"compute_factor": 1.8, "loss_passes": 3}),
    ({"cuda_graph": "none"}, "fp8", {"host_floor_s": 0.5}), ({"cuda_graph": "none"}, "bf16", {}),
])  # fmt: skip
def test_a_profile_s_changes_apply_in_their_order(settings: dict[str, Any], dtype: str, moved: dict[str, Any]) -> None:
    profile = Framework(changes=CHANGES)
    found = with_settings(profile, settings, dtype=dtype)
    changed = {key: value for key, value in vars(found).items() if value != getattr(profile, key)}
    assert changed == moved | {"kind": {"dtype": dtype}}


@each(("framework", "stated", "share"), [
    ("megatron-lm", {"tp_overlap": True}, 0.7), ("megatron-lm", {"tp_overlap": 0.25}, 0.25),
    ("nemo", {"tp_overlap": False}, 0.0), ("nemo", {}, 0.7), ("hai-llm", {"ep_overlap": True}, 1.0),
])  # fmt: skip
def test_a_stated_overlap_stands_in_for_the_profile_s(framework: str, stated: dict[str, Any], share: float) -> None:
    name = next(iter(stated), "tp_overlap")
    assert getattr(with_settings(load_framework(framework), stated), name) == share


def test_a_relative_has_the_changes_of_its_parent_before_its_own() -> None:
    profiles = [load_framework(name) for name in framework_names()]
    entries = read_yaml("frameworks.yaml")
    for profile in (one for one in profiles if "like" in entries[one.name]):
        parent = load_framework(entries[profile.name]["like"])
        assert profile.changes == (*parent.changes, *entries[profile.name].get("changes", ()))
