"""Which layers look back a window: by Megatron Core's words, by configurations, by cells of tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import JobError
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.model import Model, block_of, skip_freq_text
from jointopt.jobs.shape import inline_model
from jointopt.jobs.windows import named_skip_freq, skip_freq_of, windows_of
from tests.each import each

SHAPE = {"num_layers": 6, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000}
TYPES = {"s": "sliding_attention", "f": "full_attention"}


def marks(model: Model) -> str:
    """``w`` for a layer with a window, ``.`` for one without."""
    return "".join("w" if windowed else "." for windowed in model.windowed_layers)


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, "......"), ({"window_size": 8}, "wwwwww"), ({"window_size": 8, "window_attn_skip_freq": 1}, "......"),
        ({"window_size": 8, "window_attn_skip_freq": 3}, "ww.ww."),
        ({"window_size": 8, "window_attn_skip_freq": [0, 0, 1, 0, 1, 1]}, "..w.ww"),
    ],
)  # fmt: skip
def test_layers_have_the_window_as_in_megatron_core(keys: dict[str, Any], layers: str) -> None:
    assert marks(inline_model(SHAPE | keys, "m")) == layers


@each(
    ("family", "keys", "size", "layers"),
    [
        ("mistral", {}, 4096, "wwwwww"), ("mistral", {"sliding_window": None}, 0, "......"),
        ("mixtral", {"sliding_window": 32}, 32, "wwwwww"), ("mixtral", {}, 0, "......"), ("llama", {}, 0, "......"),
        ("qwen2", {"sliding_window": 32, "max_window_layers": 4}, 0, "......"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 4}, 4096, "....ww"),
        ("qwen2", {"use_sliding_window": True}, 0, "......"),  # its first 28 layers see all
        ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 4}, 4096, "w.w..."),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, 8, "wwwwww"),
        ("gpt_neo", {}, 256, ".w.w.w"), ("gpt_neo", {"window_size": 16}, 16, ".w.w.w"),
        ("gpt_neo", {"attention_types": [[["global"], 2], [["local", "local"], 2]]}, 256, "..wwww"),
        ("gemma2", {}, 4096, "w.w.w."), ("gemma3_text", {"sliding_window": 8}, 8, "wwwww."),
        ("gemma3_text", {"sliding_window_pattern": 3}, 4096, "ww.ww."), ("cohere2", {}, 4096, "www.ww"),
        ("gpt_oss", {}, 128, "w.w.w."), ("phi3", {"sliding_window": 2047}, 2047, "wwwwww"),
        ("gpt_oss", {"layer_types": [TYPES[kind] for kind in "fsffff"]}, 128, ".w...."),
        ("gpt_oss", {"layer_types": [TYPES[kind] for kind in "ffffff"]}, 0, "......"),
    ],
)  # fmt: skip
def test_a_configuration_states_windows_by_layer_types_or_by_the_rule_of_its_family(
    family: str, keys: dict[str, Any], size: int, layers: str
) -> None:
    model = inline_model(SHAPE | {"config": {"model_type": family} | keys}, "m")
    assert (model.window_size, marks(model)) == (size, layers)
    assert windows_of({"model_type": family} | keys, family, 6).get("window_size", 0) == size


def test_what_a_shape_states_goes_before_its_configuration() -> None:
    config = {"model_type": "mistral"}
    assert inline_model(SHAPE | {"config": config, "window_size": 5}, "m").window_size == 5
    assert inline_model(SHAPE | {"config": config, "window_size": 0}, "m").window_size == 0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"window_attn_skip_freq": 2}, "window_attn_skip_freq needs window_size"),
        ({"window_size": 8, "window_attn_skip_freq": [1, 0]}, "a 0 or 1 for each of the 6 layers"),
        ({"window_size": 8, "window_attn_skip_freq": [1, 0, 2]}, "every N-th layer sees all tokens"),
        ({"window_size": 8, "window_attn_skip_freq": True}, "every N-th layer sees all tokens"),
        ({"window_size": 8, "window_attn_skip_freq": -1}, "every N-th layer sees all tokens"),
        ({"config": {"model_type": "gpt_oss", "layer_types": ["linear_attention"] * 6}}, "config: layer_types must be"),
        ({"config": {"model_type": "gpt_neo", "attention_types": [[["local"], 2]]}}, "attention of all 6 layers"),
        ({"config": {"model_type": "gpt_neo", "attention_types": ["local"]}}, "attention_types must be a list like"),
    ],
)
def test_windows_that_make_no_sense_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        inline_model(SHAPE | keys, "m")


@given(st.lists(st.booleans(), min_size=1, max_size=40).filter(any))
def test_layers_come_back_from_the_shortest_frequency_and_from_its_cell(windowed: list[bool]) -> None:
    freq = skip_freq_of(windowed)
    assert named_skip_freq(skip_freq_text(freq)) == freq or len(windowed) == 1
    assert replace(load_model("mistral-7b"), num_layers=len(windowed), window_attn_skip_freq=freq).windowed_layers == (
        tuple(windowed)
    )


@pytest.mark.parametrize("text", ["", "x", "1;2", "-1", "1.5"])
def test_a_cell_that_is_no_frequency_means_none(text: str) -> None:
    assert named_skip_freq(text) is None


def test_a_block_has_the_windows_of_the_first_layers_and_an_mlp_has_none() -> None:
    neo = load_model("gpt-neo-1.3b")
    assert marks(block_of(neo, "layer")) == "."
    assert marks(block_of(neo, "attention", 3)) == ".w."
    assert block_of(neo, "feed_forward").window_cells == {}


def test_rows_of_tables_state_windows_where_a_layer_has_one() -> None:
    mistral = load_model("mistral-7b")
    assert mistral.window_cells == {"window_size": 4096}
    some = replace(mistral, window_attn_skip_freq=4)
    assert some.window_cells == {"window_size": 4096, "window_attn_skip_freq": "4"}
    assert replace(mistral, window_attn_skip_freq=1).window_cells == {} == load_model("llama-3-8b").window_cells
