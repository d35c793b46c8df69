"""Ranks of pipelines that are alike: sums over all of them from the seconds of those that differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from jointopt.core.schema import STAGE_LAYERS
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.physics.cost_model import CostModel
from jointopt.physics.layouts import FIRST, LAST
from jointopt.physics.stage_costs import Pipelines


@pytest.fixture
def pipes(make_job: Callable[..., Job], price: Callable[..., CostModel], gpt_model: Callable[..., Model]) -> Pipelines:
    """pp 4, vpp 2: ranks 1 and 2 have the same chunks, 3 and 2 layers, then other ones, 3 and 2, and 2 and 3."""
    codes = np.array([STAGE_LAYERS.code_of(layers) for layers in ((1, 3, 3, 1, 1, 2, 2, 1), (1, 3, 2, 1, 1, 2, 3, 1))])
    return price(make_job(8, gpt_model(14)), dp=2, pp=4, vpp=2, stage_layers=codes).distinct[0].costs.pipelines


def test_ranks_that_hold_the_same_chunks_are_alike_and_the_first_and_the_last_are_like_none(pipes: Pipelines) -> None:
    seconds = np.array([[1.0, 40.0, 10.0, 0.0], [1.0, 40.0, 10.0, 20.0]])  # first, last, then by their chunks
    assert pipes.of_all_ranks(seconds, np.arange(2)).tolist() == [[1.0, 10.0, 10.0, 40.0], [1.0, 20.0, 10.0, 40.0]]


def test_of_ranks_alike_sums_go_up_to_the_first_or_up_to_the_last(pipes: Pipelines) -> None:
    seconds, rows = np.array([[1.0, 40.0, 10.0, 0.0]]), np.zeros(1, np.int64)
    assert pipes.before(seconds, rows, FIRST)[0, :3].tolist() == [0.0, 21.0, 1.0]
    assert pipes.before(seconds, rows, LAST)[0, :3].tolist() == [0.0, 21.0, 11.0]
