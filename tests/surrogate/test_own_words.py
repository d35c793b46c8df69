"""Features of trees in the words of a plan."""

from __future__ import annotations

import pytest

from jointopt.surrogate.own_words import feature_words


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
