"""Heads that are the word embedding, recognised by the size that a model's name states."""

from __future__ import annotations

import pandas as pd
import pytest

from jointopt.jobs.model import Model
from jointopt.runs.workloads import with_stated_head, workloads

# layers of 4 * 2048^2 + 3 * 2048 * 8192 parameters and two norms of 2048, one more norm, a table of 131,072 * 2048
LAYERS, TABLE = 16 * (4 * 2048**2 + 3 * 2048 * 8192 + 2 * 2048) + 2048, 131_072 * 2048


def llama(name: str) -> Model:
    return Model(name, 16, 2048, 8192, 32, 32, 131_072, 64)


def test_the_count_of_one_table_ties_the_head() -> None:
    assert llama("").parameters == LAYERS + 2 * TABLE
    assert f"{(LAYERS + TABLE) / 1e9:.2f}" == "1.34"
    assert with_stated_head(llama("Llama-like 1B (1.34B)")).parameters == LAYERS + TABLE


@pytest.mark.parametrize("name", ["L 1B (1.61B)", "Llama 1B", "Llama 1.34B", "Llama (1B)", "L (2.75B)", ""])
def test_a_name_without_the_count_of_one_table_leaves_the_head(name: str) -> None:
    assert with_stated_head(llama(name)) == llama(name)


def test_where_head_and_embedding_are_small_a_count_that_fits_both_leaves_the_head() -> None:
    small = Model("GPT (1.07B)", 16, 2048, 8192, 32, 32, 64, 64)
    assert with_stated_head(small) == small


def test_rows_of_a_table_have_the_head_that_their_name_states() -> None:
    shape = {"num_layers": 16, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 32}
    plan = {"dp": 2, "tp": 2, "pp": 2, "micro_batch_size": 1, "gpu": "h100-sxm5-80gb", "num_gpus": 8}
    work = {"vocab_size": 131_072, "gated_mlp": True, "seq_length": 4096, "global_batch_size": 256}
    rows = [{"model": f"Llama-like 1B ({count}B)", **shape, **plan, **work} for count in ("1.34", "1.61")]
    found, _ = workloads(pd.DataFrame(rows))
    tied = {one.job.model.name: one.job.model.tied_embeddings for one in found}
    assert tied == {"Llama-like 1B (1.34B)": True, "Llama-like 1B (1.61B)": False}
    for one in found:
        assert ("tied_embeddings" in one.assumed[0].split()) == one.job.model.tied_embeddings
