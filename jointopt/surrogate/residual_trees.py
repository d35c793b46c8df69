"""Gradient boosting on the residual of the physics, switched off where a run lies outside what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xgboost
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from jointopt.core.schema import Floats
from jointopt.surrogate.trees import TrainingRange

MANY_RUNS = 5_000  # rows, of which a quarter of the usual bins hold enough each: a third of the time, same error


class ResidualBooster(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Shallow, strongly regularised XGBoost on log(measured / predicted), with a Huber loss against outliers.

    Predictions are ``strength`` times the trees' times the gate of `TrainingRange`: ungated boosting at full strength
    makes unseen sources worse. ``categories`` are columns of 0 and 1; ``monotone`` has a sign per column along which
    predictions may only rise (1) or fall (-1), or 0. ``subsample`` and ``colsample``: shares of the rows that each tree
    sees, and of the columns that each node does.
    """

    def __init__(
        self, max_depth: int = 2, n_estimators: int = 150, learning_rate: float = 0.05, reg_lambda: float = 50.0,
        min_child_weight: float = 5.0, strength: float = 1.0, random_state: int = 0,
        categories: Sequence[int] | None = None, monotone: Sequence[int] | None = None,
        subsample: float = 1.0, colsample: float = 1.0,
    ) -> None:  # fmt: skip
        self.max_depth, self.n_estimators, self.learning_rate = max_depth, n_estimators, learning_rate
        self.reg_lambda, self.min_child_weight, self.strength = reg_lambda, min_child_weight, strength
        self.random_state, self.categories, self.monotone = random_state, categories, monotone
        self.subsample, self.colsample = subsample, colsample

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Fit the trees to residuals ``y`` (n,) of features ``X`` (n, k)."""
        features, residual = validate_data(self, X, y, y_numeric=True)
        weight = _check_sample_weight(sample_weight, features, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("sample_weight must have a positive entry; all of them are zero.")
        # rows of no weight would still give the trees thresholds to split at
        features, residual, weight = features[weight > 0], residual[weight > 0], weight[weight > 0]
        self.booster_ = xgboost.XGBRegressor(
            max_depth=self.max_depth, n_estimators=self.n_estimators, learning_rate=self.learning_rate,
            reg_lambda=self.reg_lambda, min_child_weight=self.min_child_weight, n_jobs=1,
            subsample=self.subsample, colsample_bynode=self.colsample,
            objective="reg:pseudohubererror", huber_slope=0.2, random_state=self.random_state, tree_method="hist",
            max_bin=256 if len(residual) < MANY_RUNS else 64,
            monotone_constraints=None if self.monotone is None else tuple(self.monotone),
            base_score=float(_weighted_quantiles(residual, weight, 0.5)),
        ).fit(features, residual, sample_weight=weight)  # fmt: skip
        self.low_, self.high_ = _weighted_quantiles(features, weight, [0.005, 0.995])
        return self

    def predict(self, X: npt.ArrayLike) -> Floats:
        """Residuals (n,) after strength and gate."""
        check_is_fitted(self)
        features = np.asarray(validate_data(self, X, reset=False))
        trees = self.booster_.predict(features)
        return np.asarray(self.strength * self.gate(features) * trees, dtype=np.float64)

    def gate(self, X: Floats) -> Floats:
        """As `TrainingRange.gate`."""
        return TrainingRange.of(self.low_, self.high_, self.categories, self.monotone).gate(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # regularised for a few thousand noisy rows, not for toy problems
        return tags


def _weighted_quantiles(values: Floats, weight: Floats, at: float | list[float]) -> Any:
    """Quantiles along the rows; a row of weight 2 counts as two rows."""
    return np.quantile(values, at, axis=0, weights=weight, method="inverted_cdf")
