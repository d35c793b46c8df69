"""Generalised tensor parallelism by hand: gathers and scatters of weights, what a rank stores, buffers, what hides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.physics.memory import memory_parts
from tests.physics.hand.plain_machine import (
    BATCHES,
    DENSE,
    LAYER_WEIGHTS,
    MOE,
    NOTHING_COMPUTES,
    TABLE_WEIGHTS,
    across_s,
    inside_s,
    passes_s,
    physics,
    products_s,
    seconds,
    stages,
)

WEIGHTS = 4 * LAYER_WEIGHTS + 2 * TABLE_WEIGHTS
EXPERTS = 16 * 3 * 1024 * 512  # of one layer


def gather_s(weights: float) -> float:
    return inside_s("all_gather", 2 * weights, 4)


def scatter_s(weights: float) -> float:
    return inside_s("reduce_scatter", 4 * weights, 4)


def memory(**plan: object) -> dict[str, float]:
    made = physics(**plan)  # type: ignore[arg-type]
    return {name: float(part[0, 0]) for name, part in memory_parts(made.job, made.layouts).items()}


def test_every_micro_batch_gathers_weights_in_both_passes_and_scatters_their_gradients() -> None:
    forward, backward = passes_s(dp=8, gtp=4, machine=NOTHING_COMPUTES)
    assert forward == pytest.approx(4 * gather_s(LAYER_WEIGHTS) + 2 * gather_s(TABLE_WEIGHTS))
    # the backward pass of an embedding needs no weights
    gathered = 4 * gather_s(LAYER_WEIGHTS) + gather_s(TABLE_WEIGHTS)
    assert backward == pytest.approx(gathered + 4 * scatter_s(LAYER_WEIGHTS) + 2 * scatter_s(TABLE_WEIGHTS))


def test_full_recompute_gathers_the_weights_of_layers_once_more() -> None:
    (_, once), (_, twice) = (
        passes_s(dp=8, gtp=4, recompute=recompute, machine=NOTHING_COMPUTES) for recompute in (0, 2)
    )
    assert twice - once == pytest.approx(4 * gather_s(LAYER_WEIGHTS))


def test_a_rank_stores_its_part_of_a_weight_and_its_gradient_and_the_optimizer_its_part_of_that() -> None:
    found = memory(dp=8, gtp=4, zero_stage=1)
    states = [found[name] for name in ("weights", "gradients", "optimizer")]
    assert states == pytest.approx([2 * WEIGHTS / 4, 4 * WEIGHTS / 4, 12 * WEIGHTS / 8])


def test_buffers_hold_a_layer_s_weights_of_both_passes_and_its_whole_gradients() -> None:
    found = memory(dp=8, gtp=4)
    assert found["gathered_weights"] == pytest.approx((2 + 2 + 4) * (LAYER_WEIGHTS + 2 * TABLE_WEIGHTS))
    assert memory(dp=8)["gathered_weights"] == 0.0


def test_the_gradients_of_a_part_are_reduced_between_the_ranks_that_store_the_same() -> None:
    # ranks 0 to 3 of a node gather, 4 to 7 too: two copies in each of two nodes
    found = seconds(dp=16, gtp=4, zero_stage=1)["dp_comm"]
    part = WEIGHTS / 4
    expected = across_s("reduce_scatter", 4 * part, 4, 2) + across_s("all_gather", 2 * part, 4, 2)
    assert found == pytest.approx(expected)


def test_experts_have_ranks_of_their_own_that_gather_them() -> None:
    plain, found = (memory(dp=8, ep=2, model=MOE, egtp=egtp, zero_stage=1) for egtp in (1, 4))
    assert plain["weights"] - found["weights"] == pytest.approx(2 * 4 * EXPERTS / 2 * 3 / 4)
    assert plain["optimizer"] == pytest.approx(found["optimizer"])
    # each expert's two buffers of both passes, since a layer's are gathered while those before it compute
    assert found["gathered_weights"] == pytest.approx((4 + 4 + 4) * EXPERTS / 2)
    forward, backward = passes_s(dp=8, egtp=4, model=MOE, machine=NOTHING_COMPUTES)
    assert forward == pytest.approx(4 * gather_s(EXPERTS))
    assert backward == pytest.approx(4 * gather_s(EXPERTS) + 4 * scatter_s(EXPERTS))


def test_gathers_hide_under_the_kernels_of_their_layer_as_far_as_these_last() -> None:
    model, plan = replace(DENSE, num_layers=3), {"pp": 3, "dp": 4, "gtp": 4, "framework": {"dp_overlap": 1.0}}
    exposed, alone = (
        float(stages(model=model, **plan | more).forward_comm_s[0, 1])  # type: ignore[arg-type]
        for more in ({}, {"gtp": 1})
    )
    matrices = LAYER_WEIGHTS - 2 * 1024
    assert exposed - alone < gather_s(LAYER_WEIGHTS) - products_s(matrices)
    assert exposed - alone == pytest.approx(max(gather_s(LAYER_WEIGHTS) - layer_s(model, plan), 0.0))


def layer_s(model: object, plan: dict[str, object]) -> float:
    """Forward kernels of the middle stage, one layer."""
    return float(stages(model=model, **plan).forward_sm_s[0, 1])  # type: ignore[arg-type]


def test_one_rank_alone_gathers_nothing_whatever_the_others_do() -> None:
    plain = physics(dp=8)
    both = {name: np.repeat(values, 2) for name, values in plain.layouts.items()} | {"gtp": np.array([1, 4])}
    found = type(plain)(plain.job, both, NOTHING_COMPUTES).groups[0]
    assert found.forward_comm_s[0, 0] == 0.0 < found.forward_comm_s[1, 0]
    assert found.num_micro_batches[0] == BATCHES
