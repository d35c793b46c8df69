"""What was learned from a cluster's own runs in words, whose sums are right."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from jointopt.surrogate.clock_response import ClockResponse, LearnedResponse
from jointopt.surrogate.own_runs import Mix, OwnRuns, booster, inputs
from jointopt.surrogate.own_words import feature_words, learned_sentence
from jointopt.surrogate.residual_gp import FEATURES, Runs
from jointopt.surrogate.trees import Trees

NAMES = ("log2_pp", "log2_tp", "recompute")


def runs(count: int = 200, seed: int = 0) -> Runs:
    rng = np.random.default_rng(seed)
    features = {name: rng.integers(0, 4, count).astype(float) for name in {*FEATURES, *NAMES}}
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


@pytest.mark.parametrize("row", range(0, 40, 5))
def test_the_sentence_has_the_whole_share_of_the_trees_and_reasons_of_the_difference_s_sign(row: int) -> None:
    learned, known = own(), runs()
    one = known.take(np.array([row]))
    share, mean = (
        100 * np.expm1(0.75 * learned.time.trees.predict(inputs(some, NAMES)).mean()) for some in (one, known)
    )
    of_all, *rest = percents(learned_sentence(learned, 0.2, 0.0, one, known))
    assert (of_all, *rest[:2]) == pytest.approx((22.1, share, mean), abs=0.051)
    assert rest[2:] or abs(share - mean) < 2.0
    assert all(reason * (share - mean) > 0 for reason in rest[2:])


def test_reasons_name_the_features_that_made_the_runs_slower_and_faster() -> None:
    known, learned = runs(), own()
    assert learned.time.trees is not None
    inside = learned.time.trees.range.gate(inputs(known, NAMES)) > 0.99
    tp, recompute = (known.features[name] for name in ("log2_tp", "recompute"))
    rows = {"more": inside & (tp == 3) & (recompute == 1), "less": inside & (tp < 3) & (recompute == 3)}
    for word, reason in (("more", "tp 8 +"), ("less", "recompute 3 -")):
        one = known.take(np.flatnonzero(rows[word])[:1])
        said = learned_sentence(learned, 0.2, 0.0, one, known).partition(f"in the mean, here {word} because of ")[2]
        assert reason in said


def test_a_learned_clock_response_is_named_with_the_factor_at_the_plan_s_clocks() -> None:
    learned = replace(OwnRuns("lab"), response=LearnedResponse(ClockResponse(0.82, 0.04), 0.04, 0.03))
    shares = "82% of compute-bound and 4% of other kernels' time follow the clock."
    low = learned_sentence(learned, np.log(1.304), np.log(1.268 / 1.304), runs(1), runs())
    assert low.endswith(f"time +30.4% on the physics at the top clock and +26.8% at this plan's, as {shares}")
    top = learned_sentence(learned, np.log(1.304), 0.0, runs(1), runs())
    assert top.endswith(f"time +30.4% on the physics at the top clock, below which {shares}")
    assert learned_sentence(OwnRuns("lab"), 0.1, 0.0, runs(1), runs()).endswith("time +10.5% on the physics.")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log2_tp", 3.0, "tp 8"), ("log2_hidden", 12.0, "hidden 4,096"),
        ("log2_rank_tokens", 0.5, "rank tokens 1.41421"),
        ("share_bubble", 0.124, "bubble 12%"), ("recompute", 2.0, "recompute 2"),
        ("sensitivity to inter_node", None, "sensitivity to inter node"),
    ],
)  # fmt: skip
def test_a_feature_is_named_with_its_value(name: str, value: float | None, words: str) -> None:
    assert feature_words(name, value) == words
