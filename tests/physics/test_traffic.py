"""Bytes of each kind of parallelism, against published volumes and in the limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from jointopt.jobs.model import Model
from jointopt.jobs.plans.placement import Group
from jointopt.physics import traffic

ONE = np.array(1.0)


def test_tensor_parallelism_reduces_s_b_h_elements(gpt_model: Callable[..., Model]) -> None:
    # arXiv:2104.04473 section 3.2: b·s·h per all-reduce; GPT-3, one sequence of 2048 in fp16: 48 MiB
    assert float(traffic.hidden_bytes(gpt_model(hidden=12288, heads=96), np.array(2048.0), 2.0)) == 48 * 2**20


def test_a_ring_over_nodes_is_delayed_by_its_steps_and_one_inside_a_node_is_not() -> None:
    size, local = np.array([16.0, 32.0, 8.0, 1.0]), np.array([8.0, 8.0, 8.0, 1.0])
    found = traffic.ring_delay_s(Group(size, local), 60e-6)
    assert found.tolist() == pytest.approx([1.8e-3, 3.72e-3, 0.0, 0.0])  # 2 * 15 and 2 * 31 steps
    one = [float(traffic.ring_delay_s(Group(*pair), 60e-6)) for pair in zip(size, local, strict=True)]
    assert found.tolist() == one


def test_pipelines_send_their_shard_only_under_sequence_parallelism(gpt_model: Callable[..., Model]) -> None:
    tokens, tp, sp = np.full(2, 2048.0), np.full(2, 8.0), np.array([False, True])
    whole, shard = traffic.pipeline_bytes(gpt_model(), tokens, tp, sp, 2.0)
    assert whole == 8 * shard == 2 * 2048 * 1024


def test_grouped_queries_shrink_what_context_parallelism_gathers(catalogue_model: Callable[[str], Model]) -> None:
    model = catalogue_model("llama-3-8b")  # 8 KV groups of 128: K and V of 1024 elements each
    gathered = traffic.context_bytes(model, np.array(1024.0), np.array(8.0), ONE, 2.0)
    assert float(gathered) == 2 * 1024 * 8 * (2 * 8 * 128)


def test_ranks_beyond_the_kv_heads_gather_one_head_each(catalogue_model: Callable[[str], Model]) -> None:
    model = catalogue_model("llama-3-8b")  # 8 KV heads of 128
    gathered = [float(traffic.context_bytes(model, ONE, ONE, np.array(tp), 1.0)) for tp in (4.0, 8.0, 16.0, 32.0)]
    assert gathered == [2 * 2 * 128, 2 * 128, 2 * 128, 2 * 128]


def test_latent_attention_gathers_the_keys_and_values_of_its_heads(catalogue_model: Callable[[str], Model]) -> None:
    model = catalogue_model("deepseek-v3")  # arXiv:2412.19437: 128 heads, keys of 128 + 64, values of 128
    assert float(traffic.context_bytes(model, ONE, ONE, ONE, 1.0)) == 128 * (128 + 64 + 128)


def test_top_k_copies_of_every_token_are_routed(catalogue_model: Callable[[str], Model]) -> None:
    model = catalogue_model("mixtral-8x7b")
    assert float(traffic.routed_bytes(model, np.array(4096.0), ONE, 2.0)) == 2 * 4096 * 2 * 4096


def test_many_layouts_at_once_equal_each_alone(gpt_model: Callable[..., Model]) -> None:
    tokens, tp, sp = np.array([512.0, 2048.0]), np.array([2.0, 8.0]), np.array([True, False])
    together = traffic.pipeline_bytes(gpt_model(), tokens, tp, sp, 2.0)
    alone = [float(traffic.pipeline_bytes(gpt_model(), *row, 2.0)) for row in zip(tokens, tp, sp, strict=True)]
    assert together.tolist() == pytest.approx(alone)
