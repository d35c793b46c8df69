"""Layer counts per stage: equal where they can be, exactly balanced where they cannot."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import PlanError
from jointopt.core.schema import STAGE_LAYERS
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.plans.stages import balanced_split, largest_chunk, layers_by_cost, layers_per_stage


def one(num_layers, pp, embedding=0.0, head=0.0, vpp=1):
    return list(layers_per_stage(num_layers, pp, vpp, embedding, head))


def test_126_layers_on_16_stages_spare_both_ends_as_llama_3_405b_does():
    # arXiv:2407.21783, section 3.3.2: one transformer layer less on the first and on the last stage.
    assert one(126, 16) == [7, *[8] * 14, 7]


def test_61_layers_on_16_stages_relieve_the_stage_with_the_head():
    layers = one(61, 16, embedding=0.1, head=1.5)
    assert layers[-1] == 2
    assert max(layers) == 4


@given(st.integers(1, 40), st.integers(1, 8))
def test_stages_are_equal_where_the_layers_divide(per_stage, pp):
    assert one(per_stage * pp, pp, 0.7, 2.5) == [per_stage] * pp


def heaviest(layers, embedding, head):
    loads = list(layers)
    loads[0] += embedding
    loads[-1] += head
    return max(loads)


@given(st.integers(2, 5), st.integers(2, 12), st.floats(0, 6), st.floats(0, 6))
def test_no_split_has_a_lighter_heaviest_stage(pp, num_layers, embedding, head):
    num_layers = max(num_layers, pp) + (max(num_layers, pp) % pp == 0)
    splits = itertools.product(range(1, num_layers + 1), repeat=pp)
    best = min(heaviest(s, embedding, head) for s in splits if sum(s) == num_layers)
    assert heaviest(one(num_layers, pp, embedding, head), embedding, head) == pytest.approx(best, abs=1e-9)


@given(st.integers(1, 30), st.floats(0, 5), st.floats(0, 5))
def test_every_plan_has_all_layers_and_a_layer_on_each_stage(pp, embedding, head):
    layers = one(30, pp, embedding, head)
    assert (len(layers), sum(layers)) == (pp, 30)
    assert min(layers) >= 1


def test_interleaved_stages_of_a_table_share_layers_that_do_not_divide():
    assert one(10, 4, vpp=2) == [2.5] * 4


def test_more_stages_than_layers_is_an_error():
    with pytest.raises(PlanError, match="at most the model's 4 layers; got 5"):
        one(4, 5)


@pytest.mark.parametrize(("pp", "stages"), [(1, [16]), (2, [11, 5]), (4, [6, 5, 5, 0]), (8, [3, 3, 2, 3, 2, 3, 0, 0])])
def test_nanotron_gives_blocks_out_by_their_flops_and_the_head_may_stand_alone(pp: int, stages: list[int]) -> None:
    # 16 layers of 67,108,864 multiplications and a head of four layers' worth, through `build_model` of models/base.py
    assert layers_by_cost(16, pp, 67_108_864, 4 * 67_108_864) == tuple(stages)


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 10**9), st.integers(0, 10**10))
def test_layers_given_out_by_cost_are_all_there_and_no_stage_is_a_layer_over_its_share(
    layers: int, pp: int, layer: int, head: int
) -> None:
    stages = layers_by_cost(layers, pp, layer, head)
    assert sum(stages) == layers
    assert min(stages) >= 0
    assert max(stages) * layer < (layers * layer + head) / pp + 2 * layer


def test_the_largest_chunk_is_the_longest_of_those_stated_else_an_equal_share_rounded_up():
    model = replace(load_model("llama-3-8b"), num_layers=10)
    stated = STAGE_LAYERS.code_of((2, 3, 4, 1))
    columns = {"pp": [2, 4, 2, 2], "vpp": [1, 1, 2, 2], "stage_layers": [0, 0, 0, stated]}
    found = largest_chunk(model, {name: np.array(values) for name, values in columns.items()})
    assert found.tolist() == [5, 3, 3, 4]


def test_interleaved_chunks_of_embedding_or_head_alone_are_left_without_layers():
    # four ranks of two chunks: the first chunk of the first rank and the last of the last one may be empty
    assert balanced_split(6, 4, 2, head_layers=1.0) == (0, 1, 1, 1, 1, 1, 1, 0)
    assert balanced_split(4, 4, 1, head_layers=1.0) == (1, 1, 1, 1)
