"""Boosted trees: fitted, kept and read again; a file that could not be followed safely is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jointopt.surrogate.trees import Trees, check_nodes, fit_trees, trees_of

FEATURES = 5
POINTS = np.random.default_rng(1).uniform(-1, 1, (50, FEATURES))


def data(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (n, FEATURES))
    return features, 0.3 * (features[:, 0] > 0) + 0.02 * rng.normal(size=n)


@pytest.fixture(scope="module")
def few() -> Trees:
    """Fifteen trees on a step at 0.2."""
    features, _ = data()
    return fit_trees(features, 0.7 + (features[:, 0] > 0.2), max_depth=3, n_estimators=15, reg_lambda=1.0)


def test_it_learns_a_step_and_ignores_outliers():
    features, residual = data()
    spoiled = residual.copy()
    spoiled[::25] = 1.0
    clean, robust = (fit_trees(features, y).predict(features) for y in (residual, spoiled))
    high = features[:, 0] > 0
    assert clean[high].mean() - clean[~high].mean() > 0.2
    assert np.median(np.abs(robust - clean)) < 0.05


def test_the_same_rows_and_seed_give_the_same_trees():
    first, second = (fit_trees(*data(), subsample=0.5, random_state=1).document for _ in range(2))
    assert first == second


def test_trees_walked_here_answer_as_xgboost_does(few: Trees):
    import xgboost

    assert few.base == pytest.approx(0.7, abs=1e-6)  # the median of what they were fitted to
    edges = np.unique(few.nodes["split_conditions"])[:40].astype(float)[:, None] * np.ones(FEATURES)
    for points in (POINTS, POINTS[:1], edges, POINTS.repeat(20_000 // len(POINTS), axis=0)):
        expected = few.booster.predict(xgboost.DMatrix(points))
        np.testing.assert_allclose(few.predict(points), expected, atol=1e-6)
        np.testing.assert_allclose(few.contributions(points).sum(axis=1), expected, atol=1e-5)


def test_trees_of_more_leaves_than_a_byte_can_number_answer_as_xgboost_does():
    import xgboost

    features = np.random.default_rng(3).uniform(-1, 1, (4000, FEATURES))
    truth = np.sin(7 * features).mean(axis=1)
    trees = fit_trees(features, truth, max_depth=11, n_estimators=1, reg_lambda=0.0, min_child_weight=0.0, max_bin=256)
    assert (trees.nodes["left_children"] < 0).sum() > 300  # leaves
    expected = trees.booster.predict(xgboost.DMatrix(features))
    np.testing.assert_allclose(trees.predict(features), expected, atol=1e-6)


def test_trees_are_read_as_they_were_written(few: Trees, tmp_path: Path):
    read = Trees.read(tmp_path / "trees.json", few.save(tmp_path / "trees.json"))
    assert read is not None
    assert read.document == few.document
    np.testing.assert_array_equal(read.predict(POINTS), few.predict(POINTS))


def test_what_xgboost_itself_writes_is_read(few: Trees, tmp_path: Path):
    few.booster.save_model(tmp_path / "trees.json")
    again = trees_of(json.loads((tmp_path / "trees.json").read_bytes()), few.settings, few.width)
    assert again.document == few.document


def _tree(**values: Any) -> Callable[[dict[str, Any]], None]:
    """Sets entries of the first tree: a list of (position, value) for an array."""

    def damage(document: dict[str, Any]) -> None:
        tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
        for name, (at, value) in values.items():
            tree[name][at] = value

    return damage


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a child far away": _tree(left_children=(0, 10**6)),
    "a child before its node": _tree(left_children=(1, 0)),
    "one child twice": _tree(right_children=(0, 1)),
    "a leaf with one child": _tree(left_children=(-1, 1)),
    "a leaf with a second child alone": _tree(right_children=(-1, 1)),  # the last node is a leaf
    "a leaf by another sign": _tree(left_children=(-1, -2)),
    "a child of half a number": _tree(left_children=(0, 1.5)),
    "another parent": _tree(parents=(1, 2)),
    "a feature that is not there": _tree(split_indices=(0, FEATURES)),
    "a feature before the first": _tree(split_indices=(0, -1)),
    "a threshold that is no number": _tree(split_conditions=(0, float("nan"))),
    "a leaf that no training leaves": _tree(split_conditions=(-1, 2.1)),
    "a split by category": _tree(split_type=(0, 1)),
    "more nodes than it has": _tree(tree_param=("num_nodes", "99")),
    "other features": _tree(tree_param=("num_feature", "9")),
    "a missing node": lambda d: d["learner"]["gradient_booster"]["model"]["trees"][0]["parents"].pop(),
    "a missing tree": lambda d: d["learner"]["gradient_booster"]["model"]["trees"].pop(),
    "two classes": lambda d: d["learner"]["learner_model_param"].update(num_class="2"),
    "no base score": lambda d: d["learner"]["learner_model_param"].update(base_score="[NaN]"),
    "a base score that no training leaves": lambda d: d["learner"]["learner_model_param"].update(base_score="[2.1E0]"),
    "another objective": lambda d: d["learner"]["objective"].update(name="binary:logistic"),
    "a weight of nothing": _tree(sum_hessian=(-1, 0.0)),
    "a weight that is not that of its children": _tree(sum_hessian=(0, 1.0)),
    "a weight without end": _tree(sum_hessian=(-1, 1e39)),
    "a gain that is text": _tree(loss_changes=(0, "much")),
    "a linear model": lambda d: d["learner"]["gradient_booster"].update(name="gblinear"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_could_not_be_followed_is_refused(few: Trees, damage: str):
    document = json.loads(json.dumps(few.document))
    DAMAGE[damage](document)
    with pytest.raises((ValueError, KeyError, TypeError)):
        trees_of(document, few.settings, few.width)


def test_a_tree_deeper_than_any_that_training_writes_is_refused_as_its_paths_are_followed_by_recursion(few: Trees):
    depth = 70
    at = np.arange(2 * depth + 1)
    inner = (at % 2 == 0) & (at < 2 * depth)  # each second node is a leaf
    nodes = {name: np.ones(len(at), values.dtype) for name, values in few.nodes.items()} | {
        "left_children": np.where(inner, at + 1, -1), "right_children": np.where(inner, at + 2, -1),
        "parents": (at - 1) // 2 * 2,
    }  # fmt: skip
    with pytest.raises(ValueError, match="deeper than 64"):
        check_nodes(replace(few, nodes=nodes, start=0 * at))
