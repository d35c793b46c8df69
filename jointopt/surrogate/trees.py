"""Boosted trees as a surrogate holds them; XGBoost is imported when they are used, which most predictions never do."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.schema import Floats

if TYPE_CHECKING:
    from jointopt.surrogate.residual_trees import ResidualBooster


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


@dataclass(frozen=True)
class Trees:
    """Trained trees: the settings of `ResidualBooster`, its range of training, and the file that holds its trees."""

    settings: Mapping[str, Any]
    low: Floats
    high: Floats
    source: Path | ResidualBooster

    @classmethod
    def of(cls, booster: ResidualBooster) -> Trees:
        """Those of a booster that was fitted."""
        return cls(booster.get_params(), booster.low_, booster.high_, booster)

    @property
    def strength(self) -> float:
        """Share of what the trees predict that corrects; 0 = they change no prediction."""
        return float(self.settings.get("strength", 1.0))

    @functools.cached_property
    def range(self) -> TrainingRange:
        """The range of training."""
        return TrainingRange.of(self.low, self.high, self.settings.get("categories"), self.settings.get("monotone"))

    @functools.cached_property
    def booster(self) -> ResidualBooster:
        """The trees themselves; ValueError (XGBoostError) for a file that holds none of this shape."""
        if not isinstance(self.source, Path):
            return self.source
        import xgboost

        from jointopt.surrogate.residual_trees import ResidualBooster

        booster = ResidualBooster(**self.settings)
        booster.booster_ = xgboost.XGBRegressor()
        booster.booster_.load_model(self.source)
        booster.low_, booster.high_ = self.low, self.high
        booster.n_features_in_ = len(self.low)
        return booster

    def predict(self, features: Floats) -> Floats:
        """Correction of log(measured / physics) after strength and gate, (n,)."""
        return self.booster.predict(features) if self.strength else np.zeros(len(features))
