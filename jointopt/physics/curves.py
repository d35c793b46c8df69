"""Increasing polylines by which predictions of the physics become those that measured runs teach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats, Ints

LEAST_SLOPE, MOST_SLOPE = 0.05, 4.0  # of a polyline between two of its points


@dataclass(frozen=True)
class Curves:
    """A polyline for each of L layouts, through points ``x``, ``y`` (k, L), x ascending; ``beyond`` (L,): its slope
    beyond both ends.

    It rises everywhere, so that lower and upper bounds of what the physics predicts stay such.
    """

    x: Floats
    y: Floats
    beyond: Floats

    @classmethod
    def rising(cls, x: Floats, y: Floats, beyond: Floats | float = 1.0) -> Curves:
        """Curves through points (k, L) in any order, of which those are moved that would make one fall or jump."""
        order = np.argsort(x, axis=0, kind="stable")
        x, y = np.take_along_axis(x, order, 0), np.take_along_axis(y, order, 0).copy()
        for i, wide in enumerate(np.diff(x, axis=0)):
            y[i + 1] = np.clip(y[i + 1], y[i] + LEAST_SLOPE * wide, y[i] + MOST_SLOPE * wide)
        return cls(x, y, np.broadcast_to(np.asarray(beyond, np.float64), x.shape[1:]))

    @property
    def cells(self) -> Floats:
        """All numbers in one array, (2k + 1, L)."""
        return np.concatenate([self.x, self.y, self.beyond[None]])

    @classmethod
    def of_cells(cls, cells: Floats) -> Curves:
        """The inverse of `cells`."""
        x, y = np.split(cells[:-1], 2)
        return cls(x, y, cells[-1])

    def take(self, index: Ints) -> Curves:
        """The curves of the layouts ``index``."""
        return Curves(self.x[:, index], self.y[:, index], self.beyond[index])

    @property
    def inverse(self) -> Curves:
        """From y to x."""
        return Curves(self.y, self.x, 1.0 / self.beyond)

    def at(self, index: Ints, x: Floats) -> Floats:
        """Values at ``x`` of the layouts ``index``, of one shape or broadcast."""
        points, values, beyond = self.x[:, index], self.y[:, index], self.beyond[index]
        out = values[0] + beyond * (np.minimum(x - points[0], 0.0) + np.maximum(x - points[-1], 0.0))
        for i in range(len(points) - 1):
            wide = points[i + 1] - points[i]
            out = out + (values[i + 1] - values[i]) * np.clip((x - points[i]) / np.maximum(wide, 1e-12), 0.0, 1.0)
        return np.asarray(out)

    def above_line(self, rest: float) -> tuple[Curves, Floats]:
        """(The curves, beyond their ends as steep as a line below each; that line's offset)."""
        offset = (self.y - self.beyond * self.x).min(axis=0)
        through_rest = (self.y / np.maximum(self.x - rest, 1e-9)).min(axis=0)
        lower = self.beyond * rest + offset < 0.0
        steep = np.where(lower, through_rest, self.beyond)
        return Curves(self.x, self.y, steep), np.where(lower, -through_rest * rest, offset)
