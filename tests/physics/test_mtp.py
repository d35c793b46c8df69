"""Layers for the prediction of further tokens (DeepSeek-V3): work, weights, logits and place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import SCHEDULE
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.stages import tail_layers, token_costs
from jointopt.physics.cost_model import CostModel
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.memory import memory_parts, stage_parameters


@pytest.fixture
def pair(
    make_job: Callable[..., Job], gpt_model: Callable[..., Model], price: Callable[..., CostModel]
) -> Callable[..., list[CostModel]]:
    """The same plans without such a layer and with one."""

    def both(**plan: object) -> list[CostModel]:
        models = (gpt_model(8), replace(gpt_model(8), mtp_num_layers=1))
        return [price(make_job(model=model), **plan) for model in models]

    return both


def test_a_further_token_costs_a_layer_a_projection_and_a_head_on_the_last_rank(
    pair: Callable[..., list[CostModel]], gpt_model: Callable[..., Model]
) -> None:
    plain, more = (physics.groups[0].forward_flops[0] for physics in pair(pp=4, dp=2))
    shallow = pair(pp=4, dp=2)[0].groups[0].forward_flops[0, 1]
    layer, model = shallow / 2, gpt_model(8)
    tail = plain[-1] - 2 * layer  # the head
    assert (more - plain)[:-1].tolist() == [0.0, 0.0, 0.0]
    assert (more - plain)[-1] == pytest.approx(layer + tail * (1 + 2 * model.hidden_size / model.vocab_size))


def test_it_holds_a_layers_weights_a_projection_and_an_embedding_and_logits_twice(
    pair: Callable[..., list[CostModel]], gpt_model: Callable[..., Model]
) -> None:
    plain, more = pair(pp=4, dp=2)
    held = [stage_parameters(p.job, LayoutArrays(p.job, p.layouts)).dense[0] for p in (plain, more)]
    model, h = gpt_model(8), gpt_model(8).hidden_size
    layer = held[0][1] / 2
    assert held[1][-1] - held[0][-1] == pytest.approx(layer + 2 * h * h + model.vocab_size * h)
    logits = [memory_parts(p.job, p.layouts)["logits"][0] for p in (plain, more)]
    assert logits[1].tolist() == [0.0, 0.0, 0.0, 2 * logits[0][-1]]


def test_along_a_v_it_lies_on_the_first_rank(pair: Callable[..., list[CostModel]]) -> None:
    plain, more = (LayoutArrays(p.job, p.layouts) for p in pair(pp=4, vpp=2, dp=2, schedule=SCHEDULE.code("zbv")))
    assert (more.layers - plain.layers).tolist() == [[1, 0, 0, 0]]
    assert np.all(more.split.kinds[0][0].sum(axis=0) == [4, 5])


def test_the_balanced_split_counts_it(gpt_model: Callable[..., Model]) -> None:
    model = gpt_model(8)
    per_layer, head = token_costs(model)
    with_one = tail_layers(replace(model, mtp_num_layers=1))
    assert with_one - tail_layers(model) == pytest.approx(1 + (head + 2 * model.hidden_size**2) / per_layer)
