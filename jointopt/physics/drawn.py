"""Power that GPUs were measured to draw where the physics has it otherwise, and what a limit leaves them then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.cluster import PowerConstants
from jointopt.physics.cooling import Cooler, power_limit_w

if TYPE_CHECKING:
    from jointopt.physics.cost_model import CostModel

LEAST_ROOM = 0.01  # of what the highest limit leaves above idling, which every limit leaves: no clock would be slower


@dataclass(frozen=True)
class Drawn:
    """Watts of a GPU as they were measured under ``limit_w``, of all layouts.

    ``line`` (2, L): while kernels run it draws line[0] times that of the physics and line[1] W. ``mean_w`` (c, L):
    what it draws in the mean at ascending clocks, ``burst_w`` (c, L) what its kernels draw there by the physics.
    """

    limit_w: float
    line: Floats
    mean_w: Floats
    burst_w: Floats

    @property
    def cells(self) -> Floats:
        """All numbers, (2 + 2c, L), of which `of_cells` makes the same."""
        return np.concatenate([self.line, self.mean_w, self.burst_w])

    @classmethod
    def of_cells(cls, limit_w: float, cells: Floats) -> Drawn:
        """The object of those `cells`."""
        mean_w, burst_w = np.split(cells[2:], 2)
        return cls(limit_w, cells[:2], mean_w, burst_w)

    def left_w(self, limit_w: Floats, rows: Ints, idle_w: float) -> Floats:
        """Limits in W, (1, 1), (n, 1) or (n, pp), in watts of the physics: of layouts ``rows`` (n,), as wide as given.

        A GPU under a limit runs at the clock at which what it was measured to draw meets the limit, while kernels run
        and in the mean. Limits of ``limit_w`` are met as in the physics, since times too were measured under these. Of
        limits below it never more than it leaves, of those above never less, so that no higher limit leaves less than a
        lower one. Above ``idle_w``, which a GPU draws in the physics whatever runs. Derived here.
        """
        if (limit_w == self.limit_w).all():
            return limit_w
        factor, offset_w = self.line[:, rows, None]
        met_w = np.minimum((limit_w - offset_w) / factor, self._met_in_the_mean_w(limit_w, rows))
        below, above = np.minimum(met_w, self.limit_w), np.minimum(np.maximum(met_w, self.limit_w), limit_w)
        least_w = idle_w + LEAST_ROOM * max(self.limit_w - idle_w, 0.0)
        left_w: Floats = np.maximum(np.where(limit_w < self.limit_w, below, above), np.minimum(limit_w, least_w))
        return left_w

    def _met_in_the_mean_w(self, limit_w: Floats, rows: Ints) -> Floats:
        """Power of kernels by the physics at the clock at which mean power meets limits; infinite where it never does.

        Between the clocks along a line, below the lowest in proportion.
        """
        mean_w, burst_w = self.mean_w[:, rows, None], self.burst_w[:, rows, None]
        met_w = burst_w[0] * limit_w / mean_w[0]
        for k in range(len(mean_w) - 1):
            share = (limit_w - mean_w[k]) / np.maximum(mean_w[k + 1] - mean_w[k], 1e-9)
            met_w = np.where(limit_w > mean_w[k], burst_w[k] + share * (burst_w[k + 1] - burst_w[k]), met_w)
        return np.where(limit_w >= mean_w[-1], np.inf, met_w)


def hottest_idle_w(constants: PowerConstants, cooler: Cooler) -> float:
    """Watts that a GPU in the hottest air draws whatever runs, leakage included."""
    at_zero, gain = cooler.hottest_leakage_line
    return max((1.0 + gain) * constants.static_w + at_zero, constants.static_w)


def limit_left_w(physics: CostModel, rows: Ints, depth: int) -> Floats:
    """`power_limit_w` of layouts ``rows`` in watts of the physics, which measured ones may differ from."""
    limit_w, drawn = power_limit_w(physics.job.cluster, physics.layouts, rows, depth), physics.drawn
    return limit_w if drawn is None else drawn.left_w(limit_w, rows, hottest_idle_w(physics.power, physics.cooler))
