import numpy as np
import pytest

from jointopt.core.errors import JobError
from jointopt.jobs.shape import inline_model

SHAPE = {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 50272}


def test_the_four_required_keys_give_a_gpt() -> None:
    model = inline_model(SHAPE, "mine")
    assert (model.ffn_hidden_size, model.num_query_groups, model.head_dim) == (4096, 16, 64)
    assert (model.gated_mlp, model.tied_embeddings, model.norm_bias, model.linear_bias) == (False, False, True, True)


def test_a_gated_mlp_brings_rmsnorm_and_no_biases() -> None:
    model = inline_model(SHAPE | {"gated_mlp": True}, "mine")
    assert (model.rmsnorm, model.norm_bias, model.linear_bias) == (True, False, False)


def test_experts_are_as_wide_as_the_mlp_unless_given() -> None:
    experts = {"num_experts": 8, "moe_router_topk": 2}
    assert inline_model(SHAPE | experts, "mine").moe_ffn_hidden_size == 4096
    assert inline_model(SHAPE | experts | {"moe_ffn_hidden_size": 512}, "mine").moe_ffn_hidden_size == 512


def test_zeros_of_a_dense_model_may_be_written_out() -> None:
    zeros = dict.fromkeys(("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "num_shared_experts"), 0)
    assert inline_model(SHAPE | zeros, "mine") == inline_model(SHAPE, "mine")


def test_numbers_of_a_table_are_numbers_too() -> None:
    assert inline_model({key: np.int64(value) for key, value in SHAPE.items()}, "mine") == inline_model(SHAPE, "mine")


@pytest.mark.parametrize("key", SHAPE)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(JobError, match=f"model.{key} is missing"):
        inline_model({k: v for k, v in SHAPE.items() if k != key}, "mine")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_attention_heads": 15}, "15 attention heads do not divide"),
        ({"num_query_groups": 3}, r"num_query_groups \(3\) must divide"),
        ({"num_experts": 4, "moe_router_topk": 5}, "moe_router_topk must be from 1 to num_experts"),
        ({"moe_router_topk": 2}, "need num_experts above 0"),
        ({"num_experts": 4, "moe_router_topk": 1, "num_dense_layers": 24}, "must be less than num_layers"),
        ({"position_embedding": "learned"}, "needs max_position_embeddings"),
        ({"kv_lora_rank": 8}, "together"),
        ({"gated_mlp": 1}, "gated_mlp must be true or false"),
        ({"vocab_size": 1e4}, "vocab_size must be a whole number"),
    ],
)
def test_a_contradiction_is_one_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        inline_model(SHAPE | change, "mine")


def test_a_stated_head_width_frees_the_heads_from_dividing_the_hidden_size() -> None:
    assert inline_model(SHAPE | {"num_attention_heads": 15, "head_dim": 128}, "mine").head_dim == 128
