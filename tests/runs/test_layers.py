"""Layers of several kinds in the cells of tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from jointopt.jobs.model import Layer, Model
from jointopt.runs.workloads import workloads
from tests.each import each
from tests.jobs.test_pattern import MODELS, model

ROW = {
    "model": "hybrid", "num_layers": 8, "hidden_size": 512, "ffn_hidden_size": 2048, "num_attention_heads": 8,
    "num_query_groups": 2, "vocab_size": 1000, "gated_mlp": True, "seq_length": 1024, "global_batch_size": 8,
    "dtype": "bf16", "framework": "megatron-lm", "gpu": "h100-sxm5-80gb", "gpus_per_node": 8, "num_gpus": 8, "dp": 8,
    "tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1, "attention": "flash3",
}  # fmt: skip
SIZES = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size",
    "gated_mlp", "num_experts", "moe_router_topk", "moe_ffn_hidden_size", "num_shared_experts",
)  # fmt: skip
MAMBA = "mamba_num_heads=16;mamba_head_dim=64;mamba_state_dim=32;mamba_num_groups=1;mamba_conv_kernel_dim=4"
GPT_OSS = {
    "model": "gpt-oss-20b", "num_layers": 24, "hidden_size": 2880, "ffn_hidden_size": 2880, "num_attention_heads": 64,
    "num_query_groups": 8, "vocab_size": 201088, "num_experts": 32, "moe_router_topk": 4, "ep": 8,
    "attention_kind": "gqa+sliding_window",
}  # fmt: skip


def read(cells: dict[str, Any]) -> tuple[Model | None, str]:
    """The model of a row beside a plain one, or why it is left out."""
    found, reasons = workloads(pd.DataFrame([ROW, ROW | cells]))
    models = [work.job.model for work in found if 1 in work.rows]
    return (models[0] if models else None), reasons.get(1, "")


def test_a_cell_of_layers_repeats_to_the_depth_of_the_model() -> None:
    found, _ = read({"layers": f"3*mamba2:dense;full:none;head_dim=32;{MAMBA}"})
    assert found is not None
    assert found.pattern == (*[Layer("mamba2")] * 3, Layer("full", "none")) * 2
    assert (found.mamba_num_heads, found.head_dim) == (16, 32)


@each("name", [name for name in MODELS if model(name).layers])
def test_the_cells_of_a_model_say_its_layers_again(name: str) -> None:
    whole = model(name)
    sizes = {name: size for name, size in whole.size_cells(SIZES).items() if size or name == "gated_mlp"}
    found, why = read(sizes | whole.attention_cells)
    assert found is not None, why
    assert found.pattern == whole.pattern
    kinds = {kind for layer in whole.layers for kind in layer.mixers}
    assert [found.mixer_weights(kind) for kind in kinds] == [whole.mixer_weights(kind) for kind in kinds]


@pytest.mark.parametrize("cells", [{}, {"window_size": 128}, {"window_size": "128,0", "window_attn_skip_freq": 2}])
def test_windows_of_gpt_oss_are_in_every_other_layer(cells: dict[str, Any]) -> None:
    found, why = read(GPT_OSS | cells)
    assert found is not None, why
    assert (found.window_size, sum(found.windowed_layers), found.head_dim) == (128, 12, 64)


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ("3*mamba2:dense", "expected layers to divide num_layers"),
        ("mamba2:dense", "and to state the sizes of their kinds"),
        ("mamba3:dense", "layers must be kinds of layers such as"),
        ("full:dense;x=1", "layers must be kinds of layers such as"),
    ],
)
def test_layers_that_no_model_has_leave_out_their_row_alone(layers: str, why: str) -> None:
    found, reason = read({"layers": layers})
    assert found is None
    assert why in reason
