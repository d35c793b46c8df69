"""Boosted trees on disk: a file that XGBoost could not follow safely is refused before it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import TableError
from jointopt.surrogate.residual_trees import ResidualBooster
from jointopt.surrogate.trees import Forest, Trees, _check_nodes, check_trees, load_forest, load_regressor

FEATURES = 4
POINTS = np.random.default_rng(1).uniform(-1, 1, (50, FEATURES))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Fifteen trees, as XGBoost writes them."""
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (200, FEATURES))
    booster = ResidualBooster(max_depth=3, n_estimators=15, reg_lambda=1.0).fit(features, 0.7 + (features[:, 0] > 0.2))
    path = tmp_path_factory.mktemp("trees") / "trees.json"
    booster.booster_.get_booster().save_model(path)
    return path.read_bytes()


def test_what_xgboost_wrote_is_read_again(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "trees.json").write_bytes(text)
    assert np.ptp(load_regressor(tmp_path / "trees.json", FEATURES).predict(POINTS)) > 0.3


def reason(path: Path) -> str:
    """The sentence by which a file is refused; blank for one that gives finite numbers."""
    try:
        return "" if np.isfinite(load_regressor(path, FEATURES).predict(POINTS)).all() else "not finite\n"
    except TableError as error:
        return str(error)


def test_files_with_four_bytes_changed_end_in_one_sentence_or_in_finite_numbers(text: bytes, tmp_path: Path) -> None:
    rng, reasons = np.random.default_rng(2), []
    for _ in range(200):
        changed = bytearray(text)
        for at in rng.integers(0, len(text), 4):
            changed[at] = int(rng.integers(0, 256))
        (tmp_path / "trees.json").write_bytes(changed)
        reasons.append(reason(tmp_path / "trees.json"))
    assert not any("\n" in sentence for sentence in reasons)
    assert sum(map(bool, reasons)) > 100


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
    "a slope of nothing": lambda d: d["learner"]["objective"]["pseudo_huber_param"].update(huber_slope="1e-320"),
    "no version": lambda d: d.update(version=[3]),
    "a weight of nothing": _tree(sum_hessian=(-1, 0.0)),
    "a weight that is not that of its children": _tree(sum_hessian=(0, 1.0)),
    "a weight without end": _tree(sum_hessian=(-1, 1e39)),
    "a gain that is text": _tree(loss_changes=(0, "much")),
    "a linear model": lambda d: d["learner"]["gradient_booster"].update(name="gblinear"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_xgboost_could_not_follow_is_refused(text: bytes, damage: str) -> None:
    document = json.loads(text)
    check_trees(document, FEATURES)
    DAMAGE[damage](document)
    with pytest.raises((ValueError, KeyError, TypeError)):
        check_trees(document, FEATURES)


def test_what_xgboost_itself_refuses_is_refused_in_one_sentence(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jointopt.surrogate.trees._SLOPES", (0.0, np.inf))
    document = json.loads(text)
    DAMAGE["a slope of nothing"](document)
    (tmp_path / "trees.json").write_text(json.dumps(document))
    with pytest.raises(TableError, match=r"\(Out of range value for huber_slope.*\); expected a file that") as error:
        load_regressor(tmp_path / "trees.json", FEATURES)
    assert "\n" not in str(error.value)


def test_a_tree_deeper_than_any_that_training_writes_is_refused_as_its_paths_are_followed_by_recursion() -> None:
    depth = 70
    parents = [(at - 1) // 2 * 2 for at in range(1, 2 * depth + 1)]  # each second node is a leaf
    inner = [at % 2 == 0 and at < 2 * depth for at in range(2 * depth + 1)]
    tree = {
        "left_children": [at + 1 if of else -1 for at, of in enumerate(inner)],
        "right_children": [at + 2 if of else -1 for at, of in enumerate(inner)],
        "parents": [2**31 - 1, *parents],
        **{name: [0] * len(inner) for name in ("split_indices", "split_conditions", "default_left")},
    }
    with pytest.raises(ValueError, match="tree 3 is deeper than 64"):
        _check_nodes(tree, 3, FEATURES)


def test_xgboost_reads_what_was_checked_though_the_file_has_a_list_twice(text: bytes, tmp_path: Path) -> None:
    twice = text.replace(b'"left_children":[', b'"left_children":[99999],"left_children":[')
    expected = []
    for content in (text, twice, b'{"learner":{},' + text[1:]):
        (tmp_path / "trees.json").write_bytes(content)
        expected.append(load_regressor(tmp_path / "trees.json", FEATURES).predict(POINTS))
    np.testing.assert_array_equal(expected[0], expected[1])
    np.testing.assert_array_equal(expected[0], expected[2])


def test_trees_walked_here_answer_as_xgboost_does(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "trees.json").write_bytes(text)
    forest, regressor = (load(tmp_path / "trees.json", FEATURES) for load in (load_forest, load_regressor))
    assert forest.base == pytest.approx(0.7, abs=1e-6)  # the median of what they were fitted to
    edges = np.unique(forest.threshold)[:40].astype(float)[:, None] * np.ones(FEATURES)  # exactly on a threshold
    for points in (POINTS, POINTS[:1], edges, POINTS.repeat(20_000 // len(POINTS), axis=0)):
        np.testing.assert_allclose(forest.predict(points), regressor.predict(points), atol=1e-6)


def test_trees_of_more_leaves_than_a_byte_can_number_answer_as_xgboost_does(tmp_path: Path) -> None:
    features = np.random.default_rng(3).uniform(-1, 1, (4000, FEATURES))
    booster = ResidualBooster(max_depth=11, n_estimators=1, reg_lambda=0.0, min_child_weight=0.0)
    booster.fit(features, np.sin(7 * features).mean(axis=1)).booster_.get_booster().save_model(tmp_path / "trees.json")
    forest, regressor = (load(tmp_path / "trees.json", FEATURES) for load in (load_forest, load_regressor))
    assert (forest.left == np.arange(len(forest.left))).sum() > 300  # leaves
    np.testing.assert_allclose(forest.predict(features), regressor.predict(features), atol=1e-6)


def test_few_rows_and_many_are_corrected_alike_within_the_range_of_training_and_outside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = np.random.default_rng(4).uniform(-1, 1, (300, FEATURES))
    trees = Trees.of(ResidualBooster(max_depth=3, strength=0.5).fit(features, 0.5 * np.sign(features[:, 0])))
    read = Trees.read(tmp_path / "trees.json", trees.save(tmp_path / "trees.json"))
    assert read is not None
    points = np.where(np.arange(FEATURES) < np.arange(FEATURES + 1)[:, None], 9.0, 0.5)  # more and more of it outside
    few = read.predict(points)
    monkeypatch.setattr("jointopt.surrogate.trees.MANY", 0)
    many = read.predict(points)
    np.testing.assert_allclose(few, many, atol=1e-6)
    assert few[0] == pytest.approx(0.25, abs=0.05)
    assert few[1:] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("nodes", "kind"), [(256, np.uint8), (257, np.uint16), (65_536, np.uint16), (65_537, np.uint32)]
)
def test_leaves_have_numbers_as_small_as_the_largest_tree_lets_them(nodes: int, kind: type[Any]) -> None:
    alone = np.arange(nodes)
    forest = Forest(alone, alone, np.zeros(nodes, int), np.zeros(nodes), np.zeros(nodes), np.array([0]), 0.0)
    assert forest._place is kind
