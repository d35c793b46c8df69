"""Boosted trees as a surrogate holds them; XGBoost is imported when they are used, which most predictions never do."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jointopt.core.schema import Floats

if TYPE_CHECKING:
    import xgboost

    from jointopt.surrogate.tree_files import Forest


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
        from jointopt.surrogate.tree_files import load_regressor

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
        from jointopt.surrogate.tree_files import load_forest

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
