"""Layers and groups counted on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.placement import even_domain, placement
from jointopt.jobs.plans.stages import layers_by_cost, layers_per_stage
from jointopt.physics.layouts import LayoutArrays


def layout(**cells: int) -> Columns:
    names = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage", "recompute", "sequence_parallel")
    return {name: np.array([cells.get(name, int(name not in names[-3:]))]) for name in names}


@pytest.mark.parametrize(
    ("head", "layers"), [(0.0, [2, 3, 3, 2]), (0.9, [2, 3, 3, 2]), (1.1, [3, 3, 3, 1]), (2.1, [3, 3, 3, 1])]
)
def test_a_head_worth_layers_relieves_the_last_stage(head: float, layers: list[int]) -> None:
    # every stage has a layer, however heavy the head
    assert layers_per_stage(10, 4, head_layers=head) == tuple(layers)


def test_a_rank_takes_layers_until_it_is_over_its_share_of_the_cost() -> None:
    # 4 layers of 10 and a head of 25: a share is 21.7, so the first rank takes 30 and the last a layer with the head
    assert layers_by_cost(4, 3, 10, 25) == (3, 0, 1)
    # a head of 2: a share is 14, the second rank ends at 28 and takes the third layer
    assert layers_by_cost(4, 3, 10, 2) == (2, 1, 1)


# A layer's attention takes 64·8·(2·8 + 2·4) = 12,288 weights, its MLP 3·64·96 = 18,432: 30,720 in all.
@pytest.mark.parametrize(("vocab", "layers"), [(450, [2, 3, 3, 2]), (530, [3, 3, 3, 1])])
def test_the_head_counts_by_its_weights_over_a_layer_s(
    vocab: int, layers: list[int], make_job: Callable[..., Job], dense: Model
) -> None:
    # vocabulary·64: 0.94 and 1.10 layers
    model = replace(dense, num_layers=10, vocab_size=vocab)
    assert LayoutArrays(make_job(model=model), layout(pp=4)).layers.tolist() == [layers]


@pytest.mark.parametrize(("vocab", "layers"), [(600, [2, 3, 3, 2]), (650, [3, 3, 3, 1])])
def test_of_experts_those_count_that_a_token_sees(
    vocab: int, layers: list[int], make_job: Callable[..., Job], moe: Model
) -> None:
    # two routed and one shared expert of 3·64·48 = 9,216 and attention: 39,936, over 64 that are 624 words
    model = replace(moe, num_layers=10, vocab_size=vocab, num_shared_experts=1)
    assert LayoutArrays(make_job(model=model), layout(pp=4)).layers.tolist() == [layers]


def test_tokens_and_micro_batches_of_a_rank(make_job: Callable[..., Job]) -> None:
    # 24 sequences of 128 tokens
    lay = LayoutArrays(make_job(), layout(dp=3, cp=2, tp=4, micro_batch_size=4, sequence_parallel=1))
    assert lay.micro_batches.tolist() == [2]
    assert lay.tokens.tolist() == [4 * 128 / 2]
    assert lay.sharded_tokens.tolist() == [4 * 128 / 2 / 4]


@pytest.mark.parametrize(
    ("domain", "local"),
    [
        (16, {"tp": 2, "cp": 2, "dp": 4, "dp_cp": 8, "ep": 2, "expert_dp": 4, "pp": 1}),
        (8, {"tp": 2, "cp": 2, "dp": 2, "dp_cp": 4, "ep": 2, "expert_dp": 2, "pp": 1}),
        (4, {"tp": 2, "cp": 2, "dp": 1, "dp_cp": 2, "ep": 2, "expert_dp": 1, "pp": 1}),
        (64, {"tp": 2, "cp": 2, "dp": 4, "dp_cp": 8, "ep": 2, "expert_dp": 4, "pp": 2}),
    ],
)
def test_members_of_each_group_that_share_a_domain(domain: int, local: dict[str, int]) -> None:
    # ranks in the order tp, cp, dp, pp: strides 1, 2, 4 and 16
    found = placement(layout(tp=2, cp=2, dp=4, pp=2, ep=2), domain)
    assert {name: int(found[name].local[0]) for name in local} == local
    sizes = {"tp": 2, "cp": 2, "dp": 4, "dp_cp": 8, "ep": 2, "expert_dp": 4, "pp": 2}
    assert {name: int(found[name].size[0]) for name in sizes} == sizes


@pytest.mark.parametrize(("nodes", "domain"), [(20, 5), (9, 9), (11, 6), (6, 6), (27, 9)])
def test_racks_of_nine_nodes_are_filled_alike_where_that_fills_half_of_each(
    nodes: int, domain: int, make_job: Callable[..., Job]
) -> None:
    # 20 nodes: 4 racks of 5; 11 have no equal share but 1, so two racks of 6 and 5
    cluster = make_job(nodes, 1).cluster
    assert even_domain(replace(cluster, gpu=replace(cluster.gpu, scale_up_gpus=9))) == domain
