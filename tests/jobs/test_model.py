import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.model import Model
from jointopt.jobs.shape import inline_model

PLAIN = Model("plain", 2, 64, 256, 4, 4, 1000, 16)


def test_a_gpt_layer_has_twelve_squares_of_the_hidden_size_and_thirteen_biases_and_norms() -> None:
    gpt3 = load_model("gpt3-175b")  # 12 h^2 + 13 h, Narayanan et al. 2021 (arXiv:2104.04473), equation 2
    assert gpt3.layer_parameters(gpt3.pattern[0]) == 12 * 12288**2 + 13 * 12288


def test_a_tied_head_has_no_parameters_of_its_own() -> None:
    tied = dataclasses.replace(PLAIN, tied_embeddings=True)
    assert tied.head_parameters == 0
    assert PLAIN.parameters - tied.parameters == 1000 * 64


def test_a_dense_model_uses_all_its_parameters() -> None:
    assert PLAIN.active_parameters == PLAIN.parameters


def test_experts_with_biases_have_one_in_the_router_for_each() -> None:
    plain = dataclasses.replace(PLAIN, num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=32)
    biased = dataclasses.replace(plain, moe_linear_bias=True)
    # up and gate 32 wide, down 64, and one in the router
    assert biased.parameters - plain.parameters == 2 * 8 * (2 * 32 + 64 + 1)


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(1, 16))
def test_more_active_experts_never_use_fewer_parameters(first: int, second: int) -> None:
    counts = [
        dataclasses.replace(PLAIN, num_experts=16, moe_ffn_hidden_size=32, moe_router_topk=k).active_parameters
        for k in sorted((first, second))
    ]
    assert counts[0] <= counts[1]


def test_latent_attention_is_smaller_than_the_same_heads_without_it() -> None:
    deepseek = load_model("deepseek-v3")
    ordinary = dataclasses.replace(deepseek, kv_lora_rank=0, q_lora_rank=0)
    assert deepseek.attention_parameters < ordinary.attention_parameters


def test_grouped_queries_save_exactly_the_keys_and_values_left_out() -> None:
    grouped = dataclasses.replace(PLAIN, num_query_groups=1)
    assert PLAIN.attention_parameters - grouped.attention_parameters == 2 * 3 * 16 * 64


def test_an_inline_shape_counts_as_its_catalogue_twin() -> None:
    keys = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32}
    inline = inline_model(keys | {"num_query_groups": 8, "vocab_size": 128256, "gated_mlp": True}, "llama-3-8b")
    assert inline == load_model("llama-3-8b")
