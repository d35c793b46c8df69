"""Boosted trees as plain arrays: fitted and explained by XGBoost, kept as its JSON, checked and walked here.

XGBoost is imported to fit and to explain alone, which most predictions never do.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Floats, Ints

if TYPE_CHECKING:
    import xgboost

# Best of depths 2 to 6, shares of rows and columns, and 250 to 2,500 trees, on tables of 300 to 2,200 runs at clocks of
# all kinds whose truth is known (docs/appendix/surrogate-experiments.md): steps need all columns, interactions many
# shallow trees.
USUAL: Mapping[str, Any] = {
    "max_depth": 3, "n_estimators": 500, "learning_rate": 0.06, "reg_lambda": 1.0, "min_child_weight": 3.0,
    "random_state": 0, "subsample": 0.8, "max_bin": 64,
}  # fmt: skip
_OBJECTIVE = "reg:pseudohubererror"
_SLOPE = 0.3  # of its loss: residuals beyond it count less than squared

_DEEPEST = 64  # nodes of a path, which is followed by recursion; trees are trained to a depth of 6
_LARGEST_LEAF = 2.0  # of a logarithm: trees are trained on residuals of at most 1
_SUMS_AGREE = 1e-3  # of a node's sum of second derivatives: by how much those of its children may add up to another
_NO_PARENT = 2**31 - 1  # XGBoost's, of a root
_LARGEST = float(np.finfo(np.float32).max)
_ANY_NUMBER = (np.float32, -_LARGEST, _LARGEST)
# What XGBoost's JSON has of each node: its kind, lowest and highest value. SHAP values follow from the last.
_NODES: Mapping[str, tuple[type[Any], float, float]] = {
    "left_children": (np.int64, -1, _NO_PARENT), "right_children": (np.int64, -1, _NO_PARENT),
    "parents": (np.int64, 0, _NO_PARENT), "split_indices": (np.int64, 0, _NO_PARENT), "default_left": (np.int64, 0, 1),
    "split_conditions": _ANY_NUMBER, "base_weights": _ANY_NUMBER, "loss_changes": _ANY_NUMBER,
    "sum_hessian": _ANY_NUMBER,
}  # fmt: skip
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_ROWS = 16_384  # answered at a time: their columns stay in the cache


@dataclass(frozen=True)
class Trees:
    """Trees on log(measured / predicted), of ``width`` features.

    ``nodes``: `_NODES` of all trees one after the other, (nodes,), children and parents by their number in the tree.
    ``start`` (nodes,): the first node of the tree of each. ``base``: of every prediction.
    """

    settings: Mapping[str, Any]
    width: int
    nodes: Mapping[str, npt.NDArray[Any]]
    start: Ints
    base: float

    @classmethod
    def read(cls, path: Path, settings: Mapping[str, Any] | None) -> Trees | None:
        """The trees in a file that a card's ``settings`` describe; ValueError and the like where either is damaged."""
        if settings is None:
            return None
        used = dict(settings["parameters"])
        if set(used) != set(USUAL) or not all(isinstance(value, int | float) for value in used.values()):
            raise ValueError(f"settings of the trees are not numbers named {', '.join(sorted(USUAL))}")
        return trees_of(json.loads(path.read_bytes()), used, int(settings["width"]))

    def save(self, path: Path) -> dict[str, Any]:
        """Write the trees as XGBoost's JSON; what a card holds of them for `read`."""
        path.write_text(json.dumps(self.document, separators=(",", ":")))
        return {"parameters": dict(self.settings), "width": self.width}

    def predict(self, features: Floats) -> Floats:
        """Correction of log(measured / physics) (n,) by features (n, k) without blanks.

        As XGBoost's in single precision, whose import takes a second and a half. Rows that are alike are quickest one
        after the other, as splits that all of them take the same way are not looked at.
        """
        out = np.full(len(features), self.base)
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            columns = np.ascontiguousarray(features[rows].T, dtype=np.float32)
            ranges = columns.min(axis=1).tolist(), columns.max(axis=1).tolist()
            for root in np.unique(self.start).tolist():
                leaves: list[float] = []
                places = self._places(root, columns, ranges, leaves)
                out[rows] += np.take(leaves, places)
        return out

    def _places(
        self, node: int, columns: npt.NDArray[np.float32], ranges: tuple[list[float], list[float]], leaves: list[float]
    ) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Where the leaf of each row (n,) below ``node`` stands in ``leaves``, which those reached are appended to.

        By bits of whole columns (k, n), of these ``ranges``: to follow each row from node to node takes three times as
        long.
        """
        (left, right, feature, threshold, kind), (low, high) = self._splits, ranges
        while left[node] != node and (high[feature[node]] < threshold[node] or low[feature[node]] >= threshold[node]):
            node = left[node] if high[feature[node]] < threshold[node] else right[node]
        if left[node] == node:
            leaves.append(threshold[node])
            return np.array(len(leaves) - 1, kind)
        lower = (columns[feature[node]] < np.float32(threshold[node])).view(np.uint8)
        below: npt.NDArray[np.unsignedinteger[Any]] = lower.astype(kind, copy=False)
        np.negative(below, out=below)  # all bits or none
        sides = [self._places(child[node], columns, ranges, leaves) for child in (left, right)]
        below &= sides[0] ^ sides[1]
        below ^= sides[1]
        return below

    @functools.cached_property
    def _splits(self) -> tuple[list[int], list[int], list[int], list[float], type[np.unsignedinteger[Any]]]:
        """Of each node its children (a leaf is its own), split feature, and threshold or value of a leaf.

        At last the smallest kind of number that distinguishes the leaves of any tree.
        """
        sides = [self.nodes[f"{side}_children"] for side in ("left", "right")]
        every, leaf = np.arange(len(self.start)), sides[0] < 0
        left, right = (np.where(leaf, every, side + self.start).tolist() for side in sides)
        most = np.unique(self.start, return_counts=True)[1].max()
        kind = np.uint8 if most <= 2**8 else np.uint16 if most <= 2**16 else np.uint32
        return left, right, self.nodes["split_indices"].tolist(), self.nodes["split_conditions"].tolist(), kind

    def contributions(self, features: Floats) -> Floats:
        """Shares of each feature in `predict`, and behind them that of none, (n, k + 1), whose sum `predict` is.

        SHAP values (Lundberg and Lee 2017) and their base.
        """
        import xgboost

        answer = self.booster.predict(xgboost.DMatrix(features), pred_contribs=True)
        return np.asarray(answer, np.float64)

    @functools.cached_property
    def booster(self) -> xgboost.Booster:
        """XGBoost's, of the same trees."""
        import xgboost

        return xgboost.Booster(model_file=bytearray(json.dumps(self.document).encode()))

    @property
    def document(self) -> dict[str, Any]:
        """The trees as XGBoost writes them: of what was checked, whatever else a file had, as its parser trusts it."""
        width, trees = str(self.width), list[dict[str, Any]]()
        for number, start in enumerate(np.unique(self.start).tolist()):
            tree = {name: values[self.start == start].tolist() for name, values in self.nodes.items()}
            count = len(tree["parents"])
            tree |= {name: list[int]() for name in _CATEGORIES} | {"id": number, "split_type": [0] * count}
            parameters = {"num_nodes": str(count), "num_feature": width, "num_deleted": "0", "size_leaf_vector": "1"}
            trees.append(tree | {"parents": [_NO_PARENT, *tree["parents"][1:]], "tree_param": parameters})
        model = {
            "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
            "iteration_indptr": list(range(len(trees) + 1)), "tree_info": [0] * len(trees), "trees": trees,
        }  # fmt: skip
        learner = {
            "attributes": {}, "feature_names": [], "feature_types": [],
            "gradient_booster": {"model": model, "name": "gbtree"},
            "learner_model_param": {
                "base_score": f"[{self.base!r}]", "boost_from_average": "0", "num_class": "0", "num_feature": width,
                "num_target": "1",
            },
            "objective": {"name": _OBJECTIVE, "pseudo_huber_param": {"huber_slope": str(_SLOPE)}},
        }  # fmt: skip
        return {"learner": learner, "version": [3, 1, 0]}


def fit_trees(features: Floats, residual: Floats, **settings: Any) -> Trees:
    """Trees fitted to residuals (n,) of features (n, k) by settings of `USUAL`, as arrays."""
    document = boosted(features, residual, **settings).get_booster().save_raw("json")
    return trees_of(json.loads(document), {**USUAL, **settings}, features.shape[1])


def boosted(features: Floats, residual: Floats, **settings: Any) -> xgboost.XGBRegressor:
    """The trees of `fit_trees` as XGBoost has them, with a Huber loss against outliers: quicker to fit and ask once."""
    import xgboost

    return xgboost.XGBRegressor(
        **{**USUAL, **settings}, n_jobs=1, objective=_OBJECTIVE, huber_slope=_SLOPE, tree_method="hist",
        base_score=float(np.median(residual)),
    ).fit(features, residual)  # fmt: skip


def trees_of(document: Mapping[str, Any], settings: Mapping[str, Any], width: int) -> Trees:
    """The trees in a document of XGBoost's, as arrays that are safe to follow.

    ValueError (KeyError, TypeError) unless it holds finite numeric trees of one target on ``width`` features.
    """
    learner = document["learner"]
    booster, objective = learner["gradient_booster"], learner["objective"]["name"]
    trees = booster["model"]["trees"]
    said = {**learner["learner_model_param"], **booster["model"]["gbtree_model_param"]}
    base = float(said["base_score"].strip("[]"))
    if (booster["name"], objective) != ("gbtree", _OBJECTIVE) or not abs(base) <= _LARGEST_LEAF:
        raise ValueError(f"no boosted trees of {_OBJECTIVE}, or of a base score beyond {_LARGEST_LEAF:g}")
    expected = {"num_feature": width, "num_target": 1, "num_class": 0, "num_trees": len(trees), "num_parallel_tree": 1}
    for name, value in expected.items():
        if int(said[name]) != value:
            raise ValueError(f"{name} of the trees is {said[name]}, expected {value}")
    for number, tree in enumerate(trees):
        parameters, sizes = tree["tree_param"], {len(tree[name]) for name in _NODES}
        if {int(parameters["num_nodes"]), *sizes} != {max(sizes)} or int(parameters["num_feature"]) != width:
            raise ValueError(f"tree {number} of another size")
        if any(tree["split_type"]) or any(tree[name] for name in _CATEGORIES):
            raise ValueError(f"tree {number} splits by categories")
    count = np.array([len(tree["parents"]) for tree in trees])
    nodes = {}
    for name, (kind, least, most) in _NODES.items():
        values = np.array([*chain.from_iterable(tree[name] for tree in trees)])
        known = values.shape == (count.sum(),) and values.dtype.kind in ("iu" if kind is np.int64 else "iuf")
        if not known or not ((values >= least) & (values <= most)).all():
            raise ValueError(f"{name} of the trees holds what is no number from {least:g} to {most:g}")
        nodes[name] = values.astype(kind)
    found = Trees(settings, width, nodes, np.repeat(np.cumsum(count) - count, count), base)
    check_nodes(found)
    return found


def check_nodes(trees: Trees) -> None:
    """ValueError unless each node is reached from the first of its tree by one path, which has an end.

    Children stand behind their node, each once: so no path is endless.
    """
    left, right, parents, split, _, conditions, *_, weights = trees.nodes.values()
    start, inner, leaves = trees.start, np.flatnonzero(left >= 0), np.flatnonzero(left < 0)
    roots = np.unique(start)
    if (split >= trees.width).any():
        raise ValueError("a tree splits by a feature that is not there")
    if (np.abs(conditions[leaves]) > _LARGEST_LEAF).any():
        raise ValueError(f"a tree has a leaf beyond {_LARGEST_LEAF:g}")
    if (right[leaves] != -1).any() or (right[inner] != left[inner] + 1).any():
        raise ValueError("a tree has a right child that is not the one behind its left one")
    of = np.concatenate([inner, inner])
    children = np.concatenate([left[inner], right[inner]]) + start[of]
    others = np.setdiff1d(np.arange(len(left)), roots)
    if not np.array_equal(np.sort(children), others) or (children <= of).any():
        raise ValueError("a tree has a node that is no child of one before it")
    if (parents[children] + start[children] != of).any():
        raise ValueError("a tree has a node of another parent")
    level = roots
    for _ in range(_DEEPEST + 1):
        level = level[left[level] >= 0]
        level = np.concatenate([left[level] + start[level], right[level] + start[level]])
    if len(level):
        raise ValueError(f"a tree is deeper than {_DEEPEST}")
    off = np.abs(weights[left[inner] + start[inner]] + weights[right[inner] + start[inner]] - weights[inner])
    if not (weights > 0.0).all() or (off > _SUMS_AGREE * weights[inner]).any():
        raise ValueError("a tree has a node whose weight is not that of its children")
