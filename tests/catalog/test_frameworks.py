"""Framework profiles: complete, sourced, and recognised in what tables call them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from jointopt.catalog.frameworks import framework_names, load_framework, recognise_framework
from jointopt.errors import CatalogError
from jointopt.schema import ATTENTIONS, RECOMPUTE_NAMES
from jointopt.spec.framework import Framework


@pytest.mark.parametrize("name", framework_names())
def test_a_profile_says_where_its_habits_come_from(name: str) -> None:
    profile = load_framework(name)
    assert profile.name == name
    assert len(profile.source) > 10


@pytest.mark.parametrize("name", framework_names())
def test_the_habits_of_a_profile_are_possible(name: str) -> None:
    profile = load_framework(name)
    assert profile.default_recompute in profile.recomputes
    assert set(profile.recomputes) <= set(RECOMPUTE_NAMES)
    assert profile.default_attention in ATTENTIONS
    assert set(profile.zero_stages_with_pipeline) <= {0, 1, 2, 3}
    shares = ("dp_overlap", "tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "selective_share")
    assert all(0 <= getattr(profile, share) <= 1 for share in shares)
    assert 0 < profile.memory_fraction <= 1
    assert 0 < profile.network_efficiency <= 1
    assert min(profile.compute_factor, profile.elementwise_factor, profile.activation_factor) > 0


@pytest.mark.parametrize("name", framework_names())
def test_the_figures_of_a_profile_have_the_types_of_the_dataclass(name: str) -> None:
    profile, plain = load_framework(name), Framework()
    for field in fields(Framework):
        value, default = getattr(profile, field.name), getattr(plain, field.name)
        wanted = (int, float) if isinstance(default, float) else type(default)
        assert isinstance(value, wanted), field.name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Megatron-LM", "megatron-lm"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("DeepSpeed 0.14", "deepspeed"),
        ("AA-Scaling (Aleph Alpha, Megatron-like)", "aa-scaling"),
        ("NVIDIA NeMo Framework Release 25.04", "nemo"),
        ("PyTorch NVIDIA Release 23.09", "nemo"),
        ("Composer FSDP (MPT)", "composer"),
        ("PyTorch FSDP (HSDP)", "fsdp"),
        ("torchtitan", "torchtitan"),
        ("nanotron", "nanotron"),
    ],
)
def test_what_tables_call_a_framework_is_recognised(text: str, name: str) -> None:
    profile, known = recognise_framework(text)
    assert (profile.name, known) == (name, True)


@pytest.mark.parametrize("text", ["", "Colossal-AI", "in-house"])
def test_an_unknown_framework_is_the_generic_one_and_said_to_be_unknown(text: str) -> None:
    profile, known = recognise_framework(text)
    assert (profile.name, known) == ("generic", False)


def test_a_mistyped_profile_names_the_nearest() -> None:
    with pytest.raises(CatalogError, match="did you mean 'nanotron'"):
        load_framework("nanotrn")


def test_a_relative_shares_habits_and_neither_names_nor_measurements() -> None:
    parent, child = load_framework("generic"), load_framework("deepspeed")
    assert not child.fitted
    kept = replace(
        child, name=parent.name, aliases=parent.aliases, source=parent.source, fitted=parent.fitted
    )
    differing = {f.name for f in fields(Framework) if getattr(kept, f.name) != getattr(parent, f.name)}
    assert child.aliases == ("deepspeed",)
    assert "compute_factor" not in differing
