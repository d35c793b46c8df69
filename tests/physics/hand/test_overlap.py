"""Overlap as a plan chooses it: the shares of collectives that hide, and the memory of the buffers that do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import OVERLAP
from jointopt.jobs.framework import Framework, overlap_is_on, overlap_not_offered, overlap_share
from tests.physics.hand.plain_machine import COMPUTING, NOTHING_COMPUTES, STREAM, inside_s, physics, seconds, stages

CHOICES = {"dp_overlap": 0.4, "chosen_dp_overlap": 0.25, "chosen_tp_overlap": 0.75}
CODES = {text: OVERLAP.code(text) for text in ("", "none", "dp", "tp", "dp;tp")}


def comm_s(overlap: str, part: str, **plan: Any) -> float:
    return seconds(framework=CHOICES, overlap=CODES[overlap], **plan)[part]


@pytest.mark.parametrize(("overlap", "left"), [("", 0.6), ("none", 1.0), ("dp", 0.75), ("tp", 1.0), ("dp;tp", 0.75)])
def test_gradients_stay_exposed_by_the_share_that_the_choice_does_not_hide(overlap: str, left: float) -> None:
    whole = comm_s("none", "dp_comm", dp=2)
    assert whole > 0.0
    assert comm_s(overlap, "dp_comm", dp=2) == pytest.approx(left * whole)


@pytest.mark.parametrize(("overlap", "left"), [("", 1.0), ("none", 1.0), ("dp", 1.0), ("tp", 0.25), ("dp;tp", 0.25)])
def test_tensor_collectives_stay_exposed_by_the_share_that_the_choice_does_not_hide(overlap: str, left: float) -> None:
    costs = stages(framework=CHOICES, overlap=CODES[overlap], tp=2, machine=COMPUTING)
    whole = 4 * 2 * inside_s("all_reduce", STREAM, 2)
    assert costs.forward_comm_s[0, 0] == pytest.approx(left * whole)


def test_nothing_hides_where_nothing_computes_whatever_is_chosen() -> None:
    choices = ("none", "dp;tp")
    left = [comm_s(overlap, "tp_comm", tp=2, machine=NOTHING_COMPUTES) for overlap in choices]
    assert left[0] == left[1]


@pytest.mark.parametrize(("overlap", "left"), [("none", 1.0), ("dp", 0.75)])
def test_weights_of_zero_3_are_fetched_ahead_where_gradients_overlap(overlap: str, left: float) -> None:
    plan = {"dp": 2, "zero_stage": 3, "micro_batch_size": 4}
    assert comm_s(overlap, "zero_comm", **plan) == pytest.approx(left * comm_s("none", "zero_comm", **plan))


def test_user_buffers_come_with_the_overlap_of_megatron_and_go_with_it() -> None:
    plan = {"tp": 2, "sequence_parallel": True}
    held = {
        text: physics(framework=CHOICES | {"family": "megatron-core"}, overlap=code, **plan).memory_bytes[0]
        for text, code in CODES.items()
    }
    assert held["tp"] - held["none"] == pytest.approx(10 * STREAM)
    assert held["dp;tp"] == held["tp"]
    assert held[""] == held["dp"] == held["none"]


def test_plans_side_by_side_have_the_shares_of_each() -> None:
    codes = np.array([CODES[text] for text in ("", "none", "dp;tp", "tp")])
    framework = Framework(**{**CHOICES, "tp_overlap": 0.1})
    assert np.asarray(overlap_share(framework, "dp", codes)).tolist() == [0.4, 0.0, 0.25, 0.0]
    assert np.asarray(overlap_share(framework, "tp", codes)).tolist() == [0.1, 0.0, 0.75, 0.75]
    assert [overlap_is_on(framework, "dp", text) for text in ("", "none", "dp", "tp")] == [True, False, True, False]


def test_a_framework_without_the_choice_offers_only_what_it_does_by_itself() -> None:
    codes = np.array([CODES[text] for text in ("", "none", "dp", "tp", "dp;tp")])
    columns = {name: np.full(5, 2) for name in ("dp", "cp", "tp")} | {"overlap": codes}
    free, fixed = Framework(**CHOICES), Framework(dp_overlap=0.5)
    assert overlap_not_offered(free, columns).tolist() == [False] * 5
    assert overlap_not_offered(fixed, columns).tolist() == [False, True, False, True, True]
    assert overlap_not_offered(fixed, columns | {"dp": np.ones(5, int), "cp": np.ones(5, int)})[1] == np.bool_(False)
