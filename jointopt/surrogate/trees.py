"""Boosted trees as a surrogate holds them; XGBoost is imported when they are used, which most predictions never do."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import TableError
from jointopt.core.schema import Floats, Ints

if TYPE_CHECKING:
    import xgboost


@dataclass(frozen=True)
class TrainingRange:
    """Range of training (0.5 % to 99.5 %) of each feature (k,); ``free`` (k,): those whose range counts."""

    low: Floats
    high: Floats
    free: np.ndarray[Any, np.dtype[np.bool_]]

    @classmethod
    def of(
        cls, low: Floats, high: Floats, categories: Sequence[int] | None, monotone: Sequence[int] | None
    ) -> TrainingRange:
        """Without columns of 0 and 1 (``categories``), and without those along which predictions may only rise or fall.

        A gate that shut along a monotone column could turn round what must fall.
        """
        free = np.ones(len(low), bool) if monotone is None else np.array(monotone) == 0
        free[list(categories or ())] = False
        return cls(low, high, free)

    def gate(self, features: Floats) -> Floats:
        """1 inside the training range, 0 where a fifth of the features or more lie outside, (n,)."""
        inside = ((self.low - 1e-9 <= features) & (self.high + 1e-9 >= features))[:, self.free].mean(axis=1)
        return np.asarray(np.clip((inside - 0.8) / 0.2, 0.0, 1.0))


MANY = 500_000  # rows that XGBoost answers sooner, its import included
SETTINGS = {
    "max_depth", "n_estimators", "learning_rate", "reg_lambda", "min_child_weight", "strength", "random_state",
    "categories", "monotone",
}  # fmt: skip
LATER_SETTINGS = {"subsample", "colsample"}  # which cards of trees that see every row and column lack


class Fitted(Protocol):
    """A `ResidualBooster` that was fitted."""

    booster_: xgboost.XGBRegressor
    low_: Floats
    high_: Floats

    def get_params(self) -> dict[str, Any]:
        """Its settings."""


@dataclass(frozen=True)
class Trees:
    """Trained trees: the settings of `ResidualBooster`, its range of training, and the file that holds its trees."""

    settings: Mapping[str, Any]
    low: Floats
    high: Floats
    source: Path | xgboost.XGBRegressor

    @classmethod
    def of(cls, booster: Fitted) -> Trees:
        """The trees of a booster that was fitted."""
        return cls(booster.get_params(), booster.low_, booster.high_, booster.booster_)

    @classmethod
    def read(cls, path: Path, settings: Mapping[str, Any] | None) -> Trees | None:
        """The trees that a card's ``settings`` describe; their file is read when they are used, which is seldom.

        ValueError, KeyError or TypeError for settings of another shape.
        """
        if settings is None:
            return None
        given = settings["parameters"]
        if set(given) - LATER_SETTINGS != SETTINGS:
            raise ValueError(f"settings {', '.join(given)}, expected {', '.join(sorted(SETTINGS))}")
        low, high = (np.asarray(settings[name], dtype=np.float64) for name in ("low", "high"))
        _check(given, low, high)
        return cls(given, low, high, path)

    def save(self, path: Path) -> dict[str, Any]:
        """Write the trees as XGBoost's JSON; what a card holds of them for `read`."""
        self.regressor.get_booster().save_model(path)
        return {"parameters": dict(self.settings), "low": self.low.tolist(), "high": self.high.tolist()}

    @property
    def strength(self) -> float:
        """Share of what the trees predict that corrects; 0 = they change no prediction."""
        return float(self.settings.get("strength", 1.0))

    @functools.cached_property
    def range(self) -> TrainingRange:
        """The range of training."""
        return TrainingRange.of(self.low, self.high, self.settings.get("categories"), self.settings.get("monotone"))

    @functools.cached_property
    def regressor(self) -> xgboost.XGBRegressor:
        """The trees themselves; TableError for a file that holds none of this shape."""
        if not isinstance(self.source, Path):
            return self.source

        return load_regressor(self.source, len(self.low))

    def predict(self, features: Floats) -> Floats:
        """Correction of log(measured / physics) after strength and gate, (n,)."""
        if not self.strength:
            return np.zeros(len(features))
        trees = self.regressor if len(features) > MANY or self._forest is None else self._forest
        return np.asarray(self.strength * self.range.gate(features) * trees.predict(features), np.float64)

    def contributions(self, features: Floats) -> Floats:
        """Shares of each feature in `predict`, and behind them that of none, (n, k + 1), whose sum `predict` is.

        SHAP values (Lundberg and Lee 2017) and their base, all after strength and gate.
        """
        import xgboost

        answer = self.regressor.get_booster().predict(xgboost.DMatrix(features), pred_contribs=True)
        gate = self.strength * self.range.gate(features)
        return np.asarray(answer * gate[:, None], np.float64)

    @functools.cached_property
    def _forest(self) -> Forest | None:

        return load_forest(self.source, len(self.low)) if isinstance(self.source, Path) else None


def _check(settings: Mapping[str, Any], low: Floats, high: Floats) -> None:
    """ValueError where a setting is no number, or what a card holds of each feature is not of as many features."""
    words = [name for name, value in settings.items() if not isinstance(value, int | float | list | None)]
    if words or not 0.0 <= settings["strength"] <= 1.0:
        raise ValueError(f"{words[0]} of the trees is no number" if words else "strength of the trees is not 0 to 1")
    for name in ("monotone", "categories"):
        listed = settings[name]
        if not (listed is None or (isinstance(listed, list) and all(isinstance(one, int) for one in listed))):
            raise ValueError(f"{name} of the trees is no list of whole numbers")
    if len({(len(settings["monotone"] or low),), low.shape, high.shape}) > 1:
        raise ValueError("signs and ranges of the trees differ in number")
    if not all(0 <= column < len(low) for column in settings["categories"] or ()):
        raise ValueError("a category is no column of the trees")


# Boosted trees on disk: XGBoost's own JSON, whose arrays are checked before anything follows them.


_MOST_NODES = 1 << 22
_DEEPEST = 64  # nodes of a path, which is followed by recursion; trees are trained to a depth of 6
_LARGEST_LEAF = 2.0  # of a logarithm: trees are trained on residuals of at most 1
_SUMS_AGREE = 1e-3  # of a node's sum of second derivatives: by how much those of its children may add up to another
_OBJECTIVE = "reg:pseudohubererror"
_SLOPES = 1e-6, 1e6  # of its loss, which XGBoost reads in single precision; trees are trained with 0.2
_ROWS = 16_384  # answered at a time: their columns stay in the cache
_Columns = npt.NDArray[np.float32]  # (k, n)
_Places = npt.NDArray[np.unsignedinteger[Any]]
_Ranges = tuple[list[float], list[float]]  # lowest and highest value of each column
_OF_NODES = ("left_children", "right_children", "parents", "split_indices", "split_conditions", "default_left")
_STATISTICS = ("base_weights", "loss_changes", "sum_hessian")  # of nodes; SHAP values follow from the last
_SINGLES = ("split_conditions", *_STATISTICS)  # numbers in single precision; the others are whole
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_LARGEST_SINGLE = float(np.finfo(np.float32).max)
_NO_PARENT = 2**31 - 1  # XGBoost's, of a root


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees one after the other, (nodes,): children (a leaf is its own), split feature and threshold."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: npt.NDArray[np.float32]
    leaf: Floats  # value of a leaf, 0 of other nodes
    first: Ints  # first node of each tree, (trees,)
    base: float

    def predict(self, features: Floats) -> Floats:
        """Sum of the trees (n,) for features (n, k) without blanks, as XGBoost's in single precision.

        For the thousands of plans of a search: to import XGBoost takes a second and a half. Rows that are alike are
        quickest one after the other, as splits that all of them take the same way are not looked at.
        """
        out = np.full(len(features), self.base)
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            columns = np.ascontiguousarray(features[rows].T, dtype=np.float32)
            ranges = columns.min(axis=1).tolist(), columns.max(axis=1).tolist()
            for root in self.first.tolist():
                leaves: list[float] = []
                places = self._places(root, columns, ranges, leaves)
                out[rows] += np.take(leaves, places)
        return out

    def _places(self, node: int, columns: _Columns, ranges: _Ranges, leaves: list[float]) -> _Places:
        """Where the leaf of each row (n,) below ``node`` stands in ``leaves``, which those reached are appended to.

        By bits of whole columns: to follow each row from node to node takes three times as long.
        """
        (left, right, feature, threshold), (low, high) = self._splits, ranges
        while left[node] != node and (high[feature[node]] < threshold[node] or low[feature[node]] >= threshold[node]):
            node = left[node] if high[feature[node]] < threshold[node] else right[node]
        if left[node] == node:
            leaves.append(float(self.leaf[node]))
            return np.array(len(leaves) - 1, self._place)
        below = (columns[feature[node]] < self.threshold[node]).view(np.uint8)
        lower: _Places = below.astype(self._place, copy=False)
        np.negative(lower, out=lower)  # all bits or none
        sides = [self._places(child[node], columns, ranges, leaves) for child in (left, right)]
        lower &= sides[0] ^ sides[1]
        lower ^= sides[1]
        return lower

    @functools.cached_property
    def _splits(self) -> tuple[list[int], list[int], list[int], list[float]]:
        return self.left.tolist(), self.right.tolist(), self.feature.tolist(), self.threshold.tolist()

    @functools.cached_property
    def _place(self) -> type[np.uint8 | np.uint16 | np.uint32]:
        """The smallest kind of number that distinguishes the leaves of any tree."""
        most = np.diff([*self.first.tolist(), len(self.left)]).max()
        return np.uint8 if most <= 2**8 else np.uint16 if most <= 2**16 else np.uint32


def load_forest(path: Path, width: int) -> Forest:
    """The trees of a file on ``width`` features; TableError where it holds none of that shape."""
    learner = _checked(path, width)["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    first = np.cumsum([0, *(len(tree["parents"]) for tree in trees)])
    arrays = {name: np.concatenate([np.asarray(tree[name]) for tree in trees]) for name in _OF_NODES}
    start = np.repeat(first[:-1], np.diff(first))
    every, leaf = np.arange(first[-1]), arrays["left_children"] < 0
    left, right = (np.where(leaf, every, arrays[f"{side}_children"] + start) for side in ("left", "right"))
    return Forest(
        left, right, np.where(leaf, 0, arrays["split_indices"]), arrays["split_conditions"].astype(np.float32),
        np.where(leaf, arrays["split_conditions"].astype(np.float32), 0.0).astype(np.float64), first[:-1],
        _base_score(learner),
    )  # fmt: skip


def load_regressor(path: Path, width: int) -> xgboost.XGBRegressor:
    """As `load_forest`, for XGBoost, which is quicker for many rows."""
    import xgboost

    regressor = xgboost.XGBRegressor()
    document = _as_checked(_checked(path, width))
    try:
        regressor.load_model(bytearray(json.dumps(document).encode()))
    except xgboost.core.XGBoostError as error:
        raise _no_trees(path, width, error) from error
    return regressor


def _as_checked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of a checked document what was checked, and nothing else: its file may have a key twice, or one unknown here.

    XGBoost's parser is not Python's, and would follow what this one never saw.
    """
    learner, of = document["learner"], document["learner"]["learner_model_param"]
    trees = [_tree_as_checked(tree) for tree in learner["gradient_booster"]["model"]["trees"]]
    count, slope = len(trees), float(learner["objective"]["pseudo_huber_param"]["huber_slope"])
    model = {
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(count)},
        "iteration_indptr": list(range(count + 1)), "tree_info": [0] * count, "trees": trees,
    }  # fmt: skip
    return {
        "learner": {
            "attributes": {}, "feature_names": [], "feature_types": [],
            "gradient_booster": {"model": model, "name": "gbtree"},
            "learner_model_param": {
                "base_score": f"[{_base_score(learner)!r}]", "boost_from_average": "0", "num_class": "0",
                "num_feature": str(int(of["num_feature"])), "num_target": "1",
            },
            "objective": {"name": _OBJECTIVE, "pseudo_huber_param": {"huber_slope": repr(slope)}},
        },
        "version": list(map(int, document["version"])),
    }  # fmt: skip


def _tree_as_checked(tree: Mapping[str, Any]) -> dict[str, Any]:
    count = len(tree["parents"])
    parameters = {name: str(int(tree["tree_param"][name])) for name in ("num_feature", "num_nodes")}
    return (
        {name: _as_read(tree[name], name in _SINGLES) for name in (*_OF_NODES, *_STATISTICS)}
        | {name: [] for name in _CATEGORIES}
        | {"id": int(tree["id"]), "split_type": [0] * count, "parents": [_NO_PARENT, *tree["parents"][1:]]}
        | {"tree_param": parameters | {"num_deleted": "0", "size_leaf_vector": "1"}}
    )


def _as_read(values: list[Any], single: bool) -> list[Any]:
    """Numbers of the one kind that XGBoost's reader takes: another ends the process, or its message is pages long."""
    numbers: list[Any] = np.asarray(values, np.float32 if single else np.int64).tolist()
    return numbers


def _checked(path: Path, width: int) -> dict[str, Any]:
    """The document in a file of trees on ``width`` features; TableError where it holds no such."""
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        check_trees(document, width)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise _no_trees(path, width, error) from error
    return document


def _no_trees(path: Path, width: int, error: Exception) -> TableError:
    """A sentence on a file that was read as trees, and why it holds none."""
    reason = str(error).split("\n")[0].strip(" .:") or type(error).__name__
    return TableError(
        f"{path} holds no trees of {width} features ({reason}); expected a file that `jointopt retrain` wrote: "
        "retrain, or leave this surrogate out."
    )


def _base_score(learner: Mapping[str, Any]) -> float:
    return float(learner["learner_model_param"]["base_score"].strip("[]"))


def check_trees(document: Mapping[str, Any], width: int) -> None:
    """ValueError (KeyError, TypeError) unless a document of XGBoost's holds finite trees on so many features."""
    learner = document["learner"]
    booster = learner["gradient_booster"]
    if not abs(_base_score(learner)) <= _LARGEST_LEAF:
        raise ValueError(f"a base score that is not between -{_LARGEST_LEAF:g} and {_LARGEST_LEAF:g}")
    objective = learner["objective"]
    slope, (least, most) = float(objective["pseudo_huber_param"]["huber_slope"]), _SLOPES
    if objective["name"] != _OBJECTIVE or not least <= slope <= most:
        raise ValueError(f"another objective than {_OBJECTIVE}, or a slope of it beyond {least:g} to {most:g}")
    if len(document["version"]) != 3 or not all(0 <= int(number) < 1000 for number in document["version"]):
        raise ValueError("no version of XGBoost")
    if booster["name"] != "gbtree" or learner["learner_model_param"]["num_target"] != "1":
        raise ValueError("not one target of boosted trees")
    if int(learner["learner_model_param"]["num_feature"]) != width or int(learner["learner_model_param"]["num_class"]):
        raise ValueError(f"other features than {width}")
    model = booster["model"]
    trees, parameters = model["trees"], model["gbtree_model_param"]
    count = len(trees)
    if int(parameters["num_trees"]) != count or int(parameters["num_parallel_tree"]) != 1:
        raise ValueError("another number of trees than it says")
    if any(model["tree_info"]) or len(model["tree_info"]) != count or model.get("cats", {}).get("enc"):
        raise ValueError("trees of several targets or of categories")
    if list(model["iteration_indptr"]) != list(range(count + 1)):
        raise ValueError("rounds of more than a tree")
    for number, tree in enumerate(trees):
        _check_tree(tree, number, width)


def _check_tree(tree: Mapping[str, Any], number: int, width: int) -> None:
    parameters = tree["tree_param"]
    count = int(parameters["num_nodes"])
    if not 0 < count <= _MOST_NODES or int(parameters["num_feature"]) != width or int(tree["id"]) != number:
        raise ValueError(f"tree {number} of another size")
    if int(parameters["num_deleted"]) or int(parameters.get("size_leaf_vector", 1)) > 1 or any(tree["split_type"]):
        raise ValueError(f"tree {number} is of another kind")
    if any(tree[name] for name in _CATEGORIES):
        raise ValueError(f"tree {number} splits by categories")
    sizes = {len(np.atleast_1d(tree[name])) for name in (*_OF_NODES, *_STATISTICS)}
    numbers = np.array([tree[name] for name in _SINGLES], np.float64)
    if sizes != {count} or not (np.abs(numbers) < _LARGEST_SINGLE).all():
        raise ValueError(f"tree {number} has nodes of other numbers, or one that is not finite")
    _check_nodes(tree, number, width)


def _check_nodes(tree: Mapping[str, Any], number: int, width: int) -> None:
    """ValueError unless each node is reached from the first by one path, which has an end."""
    left, right, parents, split, conditions, default = (np.asarray(tree[name]) for name in _OF_NODES)
    if any(values.dtype.kind not in "iu" for values in (left, right, parents, split, default)):
        raise ValueError(f"tree {number} has an index that is no whole number")
    inner, leaves = np.flatnonzero(left >= 0), np.flatnonzero(left < 0)
    children, of = np.concatenate([left[inner], right[inner]]), np.concatenate([inner, inner])
    if (np.abs(np.asarray(conditions, float)[leaves]) > _LARGEST_LEAF).any():
        raise ValueError(f"tree {number} has a leaf beyond {_LARGEST_LEAF:g}")
    # children stand behind their node, each once: so no path is endless, and every node is reached from the first
    if (left[leaves] != -1).any() or (right[leaves] != -1).any() or not (children > of).all():
        raise ValueError(f"tree {number} has a child before its node")
    if (right[inner] != left[inner] + 1).any():  # XGBoost ends the process where they are apart
        raise ValueError(f"tree {number} has a right child that is not the one behind its left one")
    if sorted(children.tolist()) != list(range(1, len(left))) or (parents[children] != of).any():
        raise ValueError(f"tree {number} has a node that is no child of one")
    if ((split < 0) | (split >= width)).any() or (~np.isin(default, (0, 1))).any():
        raise ValueError(f"tree {number} splits by a feature that is not there")
    if _depth(parents.tolist()) > _DEEPEST:
        raise ValueError(f"tree {number} is deeper than {_DEEPEST}")
    weights = np.asarray(tree["sum_hessian"], float)
    off = np.abs(weights[left[inner]] + weights[right[inner]] - weights[inner])
    if not (weights > 0.0).all() or (off > _SUMS_AGREE * weights[inner]).any():
        raise ValueError(f"tree {number} has a node whose weight is not that of its children")


def _depth(parents: list[int]) -> int:
    """Nodes below the root on the longest path of a tree whose nodes stand behind their ``parents``."""
    depth = [0] * len(parents)
    for node, parent in enumerate(parents[1:], 1):
        depth[node] = depth[parent] + 1
    return max(depth)


# Gradient boosting on the residual of the physics, switched off where a run lies outside what it was trained on.
