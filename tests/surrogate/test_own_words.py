"""What was learned from a cluster's own runs in words, whose sums are right."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from jointopt.physics.describe import CONSTANTS, OCCUPANCY, SHARES
from jointopt.surrogate.clock_response import ClockResponse, LearnedResponse
from jointopt.surrogate.own_runs import Mix, OwnRuns, booster, inputs
from jointopt.surrogate.own_words import _GROUPS, group_words, learned_sentence
from jointopt.surrogate.residual_gp import FEATURES, Runs
from jointopt.surrogate.trees import Trees

NAMES = ("log2_pp", "log2_tp", "recompute")


def runs(count: int = 200, seed: int = 0) -> Runs:
    rng = np.random.default_rng(seed)
    features = {name: rng.integers(0, 4, count).astype(float) for name in sorted({*FEATURES, *NAMES})}
    features["recompute"] %= 3  # none, selective, full
    return Runs(rng.uniform(0, 0.3, (count, 3)), features, np.full(count, "lab|megatron-lm|h100-sxm5-80gb|8"),
                np.full(count, "m|64"))  # fmt: skip


def own(shift: float = 0.15) -> OwnRuns:
    """Trees of runs that take 1.16 times as long, more with tp 8 and less with recomputation."""
    known, columns = runs(), inputs(runs(), NAMES)
    slow = shift + 0.1 * (known.features["log2_tp"] == 3) - 0.05 * known.features["recompute"]
    return OwnRuns(str(known.source[0]), time=Mix(Trees.of(booster(columns, slow, NAMES)), 0.75, False, NAMES))


def percents(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([+-][0-9.]+)%", text)]


def test_contributions_and_what_all_runs_have_add_up_to_what_trees_predict_even_outside_of_training() -> None:
    trees, far = own().time.trees, inputs(runs(50, 1), NAMES)
    assert trees is not None
    far[::2] += 0.02  # some beyond the range of training
    assert trees.range.gate(far).min() < 1.0
    np.testing.assert_allclose(trees.contributions(far).sum(axis=1), trees.predict(far), atol=1e-6)


def sentence(one: Runs) -> str:
    return learned_sentence(own(), 0.2, 0.0, one)


@pytest.mark.parametrize("row", range(0, 40, 5))
def test_the_sentence_has_the_whole_share_of_the_trees_and_parts_that_add_up_to_it(row: int) -> None:
    trees, one = own().time.trees, runs().take(np.array([row]))
    assert trees is not None
    share = 75.0 * trees.predict(inputs(one, NAMES))[0]
    of_all, whole, *parts = percents(sentence(one).replace("counted at", ""))
    assert (of_all, whole) == pytest.approx((22.1, 100 * np.expm1(share / 100)), abs=0.051)
    assert 100 * np.log1p(np.array(parts) / 100).sum() == pytest.approx(share, abs=0.2)


def test_reasons_name_what_of_the_plan_made_the_runs_slower_and_faster() -> None:
    known = runs()
    tp, recompute = (known.features[name] for name in ("log2_tp", "recompute"))
    for rows, slower, reason in (
        ((tp == 3) & (recompute == 1), "+", "tp 8"), ((tp < 3) & (recompute == 2), "-", "recompute full"),
    ):  # fmt: skip
        words = sentence(known.take(np.flatnonzero(rows)[:1]))
        assert re.search(rf"\{slower}[0-9.]+% for {reason}", words)
    assert "common to all of these runs" in sentence(known.take(np.array([0])))


def test_the_sentence_states_by_how_much_trees_beyond_the_range_of_their_training_count() -> None:
    one = runs().take(np.array([0]))
    far = replace(one, features=dict(one.features) | {"log2_tp": np.array([3.3])})
    assert re.search(
        r"Of this, trees give \+[0-9.]+% \(counted at [1-8]\d%, as the plan is beyond these runs\): ", sentence(far)
    )
    assert "counted at" not in sentence(one)


def test_a_learned_clock_response_is_named_with_the_factor_at_the_plan_s_clocks() -> None:
    learned = replace(OwnRuns("lab"), response=LearnedResponse(ClockResponse(0.82, 0.04), 0.04, 0.03))
    shares = "82% of compute-bound and 4% of other kernels' time follow the clock."
    low = learned_sentence(learned, np.log(1.304), np.log(1.268 / 1.304), runs(1))
    assert low.endswith(f"time by +30.4% at the top clock and +26.8% at this plan's, as {shares}")
    top = learned_sentence(learned, np.log(1.304), 0.0, runs(1))
    assert top.endswith(f"time by +30.4% at the top clock, below which {shares}")
    assert learned_sentence(OwnRuns("lab"), 0.1, 0.0, runs(1)).endswith("time by +10.5%.")


@pytest.mark.parametrize(
    ("group", "values", "words"),
    [
        ("tp", {"log2_tp": 3.0, "log2_hidden": 12.0}, "tp 8 at hidden 4,096"), ("tp", {"log2_tp": 3.0}, "tp 8"),
        ("pp", {"log2_pp": 2.0, "log2_vpp": 1.0, "share_bubble": 0.1}, "pp 4 with vpp 2"),
        ("host", {"share_host": 0.124}, "host 12% of the time"),
        ("recompute", {"recompute": 1.0}, "recompute selective"),
        ("micro_batch_size", {"log2_micro_batch_size": 1.0, "log2_seq_length": 13.0},
         "micro_batch_size 2 at seq_length 8,192"),
        ("ep", {}, "ep"), ("fan_speed", {"fan_speed": 3.0}, "fan speed"),
    ],
)  # fmt: skip
def test_a_group_of_features_is_named_in_the_words_of_a_plan(group: str, values: dict[str, float], words: str) -> None:
    assert group_words(group, values) == words


def test_every_feature_and_constant_is_of_one_group() -> None:
    features = [name for names in _GROUPS.values() for name in names]
    assert len(features) == len(set(features))
    assert {*CONSTANTS, *FEATURES, *(f"share_{part}" for part in SHARES), *OCCUPANCY} - {*features} == set()
