"""Workloads below a model in job files: what they name, what they leave out, and how they are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import UsageError
from jointopt.core.schema import MODEL_BLOCKS
from jointopt.jobs.catalog.models import load_model, model_names
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job, parse_job, with_changes
from jointopt.jobs.model import block_of
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.reading import parse_yaml
from tests.each import each

SIZES = {"hidden_size": 1024, "num_attention_heads": 16}


def job_of(**model: Any) -> Job:
    training = {"seq_length": 2048, "global_batch_size": 16, "attention": "unfused"}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8}
    return parse_job({"model": model, "training": training, "cluster": cluster}, "stem", Path())


def test_a_block_of_a_catalogue_model_is_one_layer_unless_more_are_given() -> None:
    model = job_of(catalog="llama-3-8b", block="attention").model
    assert (model.name, model.num_layers, model.parameters) == ("llama-3-8b-attention", 1, 41_943_040 + 4096)
    assert job_of(catalog="llama-3-8b", block="feed_forward", num_layers=2).model.parameters == 2 * (176_160_768 + 4096)


def test_a_block_written_in_place_needs_no_more_than_its_sizes() -> None:
    assert job_of(block="feed_forward", hidden_size=1024, ffn_hidden_size=4096, gated_mlp=True).model.parameters == (
        3 * 1024 * 4096 + 1024
    )
    assert job_of(block="attention", **SIZES, gated_mlp=True).model.parameters == 4 * 1024 * 1024 + 1024


@each("block", MODEL_BLOCKS)
@each("name", model_names())
def test_blocks_of_every_model_survive_being_saved_and_have_no_more_than_a_layer(name: str, block: str) -> None:
    job = job_of(catalog=name, block=block)
    assert parse_job(parse_yaml(dump_job(job)), "stem", Path()) == job
    whole = load_model(name)
    layers = [*map(whole.layer_parameters, whole.pattern)]
    assert 0 < job.model.parameters <= max(layers)
    if not whole.layers:
        assert (job.model.parameters == layers[-1]) == (block == "layer")


@pytest.mark.parametrize(("block", "positions"), [("layer", "rope"), ("attention", "rope"), ("feed_forward", "alibi")])
def test_a_block_has_no_ends_and_positions_only_where_its_attention_turns_them(block: str, positions: str) -> None:
    model, learned = (block_of(load_model(name), block) for name in ("llama-3-8b", "opt-350m"))
    for one in (model, learned):
        assert one.vocab_size == one.max_position_embeddings == one.embedding_size == one.mtp_num_layers == 0
        assert one.num_layers == 1
    assert (model.position_embedding, learned.position_embedding) == (positions, "alibi")


@each("name", [name for name in model_names() if all(one.parts == 2 for one in load_model(name).pattern)])
def test_attention_and_mlp_have_the_parameters_of_a_layer_together(name: str) -> None:
    one, two, both = (block_of(load_model(name), block).parameters for block in ("attention", "feed_forward", "layer"))
    assert one + two == both


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"catalog": "llama-3-8b"}, r"model\.block is missing; expected one of layer, attention, feed_forward\."),
        ({"catalog": "llama-3-8b", "block": "atention"}, r"model\.block must be one of .*did you mean 'attention'"),
        (
            {"catalog": "llama-3-8c", "block": "layer"},
            r"model\.catalog: The model 'llama-3-8c' is not in the catalogue",
        ),
        (
            {"catalog": 7, "block": "layer"},
            r"model\.catalog must be a catalogue name or a path to a config\.json; got 7",
        ),
        ({"catalog": "llama-3-8b", "block": "layer", "num_layers": 0}, r"model\.num_layers must be a whole number"),
        ({"catalog": "llama-3-8b", "block": "layer", "hidden_size": 64}, r"The key 'hidden_size' in model is unknown"),
        ({"block": "attention", "hidden_size": 1024}, r"model\.num_attention_heads is missing"),
        ({"block": "ffn", **SIZES}, r"model\.block must be one of layer, attention, feed_forward.*; got 'ffn'\."),
    ],
)
def test_blocks_that_make_no_sense_are_refused_in_a_sentence(model: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        job_of(**model)
    assert str(error.value).count("\n") == 0


def test_tensor_ranks_cut_what_a_block_has() -> None:
    tall = job_of(block="feed_forward", hidden_size=1024, ffn_hidden_size=4096)
    few_heads = job_of(block="attention", hidden_size=1024, num_attention_heads=4, ffn_hidden_size=1)
    assert set(enumerate_layouts(tall).layouts["tp"].tolist()) == {1, 2, 4, 8}
    assert set(enumerate_layouts(few_heads).layouts["tp"].tolist()) == {1, 2, 4}


def test_without_attention_selective_recompute_is_the_same_plan_as_none() -> None:
    job = job_of(block="feed_forward", hidden_size=1024)
    plan = dict.fromkeys(("tp", "pp", "cp", "ep", "vpp", "micro_batch_size"), 1) | {"dp": 8, "zero_stage": 0}
    stated = plan | {"sequence_parallel": False, "recompute": "selective"}
    assert check_plan(job, stated) == ["selective recompute with no attention is the same plan as none."]
    whole = replace(job, model=replace(job.model, block="layer", num_attention_heads=16, num_query_groups=16))
    assert check_plan(whole, stated) == []


@pytest.mark.parametrize(
    ("block", "targets", "wanting"),
    [
        ("attention", ["linear_fc1"], "linear_qkv, linear_proj"),
        ("feed_forward", ["linear_qkv"], "linear_fc1, linear_fc2"),
    ],
)
def test_adapters_beside_nothing_of_a_block_are_refused(block: str, targets: list[str], wanting: str) -> None:
    change = {"training.framework": "generic", "training.lora_dim": 16}
    job = with_changes(job_of(catalog="llama-3-8b", block=block), change)  # all targets: those that are there
    with pytest.raises(
        UsageError, match=f"has no {targets[0]}, and nothing would be trained; expected some of {wanting}"
    ):
        with_changes(job, {"training.lora_target_modules": targets})
    assert with_changes(job, {"training.lora_target_modules": ["linear_qkv", "linear_fc1"]}).training.frozen
