"""Models whose layers are of several kinds, as job files state them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from jointopt.core.errors import JobError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job, parse_job
from jointopt.jobs.model import Layer, Model, block_of, kinds_of
from jointopt.jobs.plans.rules import layout_rules
from jointopt.jobs.shape import inline_model
from tests.each import each

# Shapes in the words of a job file, and the parameters of the published weights.
MODELS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("pattern_models.yaml").read_text())


def job(name: str) -> Job:
    rest: dict[str, Any] = {"training": {"seq_length": 4096, "global_batch_size": 64, "framework": "megatron-lm"}}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 1}
    return parse_job({"model": MODELS[name]["shape"] | {"name": name}, "cluster": cluster} | rest, name, Path())


def model(name: str) -> Model:
    return inline_model(MODELS[name]["shape"], name)


@each("name", list(MODELS))
def test_models_of_several_kinds_of_layers_have_their_published_parameters(name: str) -> None:
    assert model(name).parameters == pytest.approx(MODELS[name]["published"], rel=1e-3)


def test_layers_that_fields_can_say_become_these_fields() -> None:
    layers = [
        {"attention": "full", "ffn": "dense"},
        {"attention": "sliding", "window": 8, "ffn": "experts", "repeat": 3},
    ]
    shape = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "num_experts": 4, "moe_router_topk": 2}
    found = inline_model(shape | {"layers": layers, "layers_repeat": 1}, "m")
    assert (found.layers, found.num_layers, found.num_dense_layers, found.window_size) == ((), 4, 1, 8)
    assert found.pattern == (Layer("full", "dense"), *[Layer("sliding", "experts", 8)] * 3)


def test_two_mixers_side_by_side_share_one_norm_and_one_mlp() -> None:
    both = model("falcon-h1-0.5b")
    assert both.pattern[0].mixers == ("full", "mamba2")
    assert both.pattern[0].parts == 2


def test_a_block_of_a_pattern_has_the_layers_with_experts() -> None:
    whole = model("jamba-v0.1")
    assert [layer.ffn for layer in block_of(whole, "layer", 2).pattern] == ["experts", "experts"]
    assert block_of(whole, "feed_forward").pattern == (Layer("none", "experts"),)
    assert block_of(whole, "attention").pattern == (Layer("mamba", "none"),)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("full", "a list such as"),
        ([{"attention": "fll"}], r"attention must be one of .*; got 'fll' .did you mean 'full'"),
        ([{"attention": "mamba2"}], "needs mamba_num_heads, mamba_head_dim"),
        ([{"attention": "sliding"}], "needs window, the tokens that it sees, or the model.s window_size"),
        ([{"attention": "full", "window": 8}], "window is of sliding or chunked attention"),
        ([{"attention": "none", "ffn": "none"}], "a layer must have attention or a feed-forward"),
        ([{"ffn": "experts"}, {"ffn": "none"}], "layers with experts need num_experts"),
        ([{"ffn": "dense", "kind": 1}], "The key 'kind' in model"),
    ],
)
def test_layers_that_no_model_has_are_refused(layers: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        inline_model({"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "layers": layers}, "m")


def test_a_written_job_has_its_layers_again() -> None:
    job = {"model": MODELS["jamba-v0.1"]["shape"], "training": {"seq_length": 4096, "global_batch_size": 64}}
    first = parse_job(job | {"cluster": {"gpu": "h100-sxm5-80gb", "nodes": 8}}, "job", Path())
    again = parse_job(yaml.safe_load(dump_job(first)), "job", Path())
    assert again.model == first.model
    assert len(again.model.layers) == 32


def test_tensor_parallelism_must_divide_the_heads_and_the_groups_of_a_state_space() -> None:
    rule = next(one for one in layout_rules(job("nemotron-h-8b")) if one.name == "mixer_heads")
    assert rule.broken({"tp": np.array([1, 8, 16])}).tolist() == [False, False, True]
    assert "state space (Mamba-2)" in rule.sentence.format(tp=16, **rule.figures)


def test_rates_of_kinds_that_no_run_has_are_named_as_assumed() -> None:
    of = {one.key: one.reason for one in job("jamba-v0.1").cluster.assumed}
    assert of["model.layers"].startswith("state space (Mamba): the rates of its kernels")
    assert not any(one.key == "model.layers" for one in job("gemma-3-1b").cluster.assumed)


@each("kind", [kind for kind in kinds_of("attention") if kind != "none"])
def test_the_last_product_of_a_kind_is_the_one_on_its_output(kind: str) -> None:
    *_, (_, outputs, cut) = kinds_of("attention")[kind]["products"].values()
    assert (outputs, cut) == ("hidden_size", "row")
