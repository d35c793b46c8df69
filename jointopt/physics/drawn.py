"""What GPUs were measured to draw beside what the physics says, and what a power limit leaves them then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.physics.cooling import Cooler, power_limit_w
from jointopt.spec.cluster import PowerConstants

if TYPE_CHECKING:
    from jointopt.physics.cost_model import CostModel

LEAST_ROOM = 0.01  # of what the highest limit leaves above idling, which every limit leaves: no clock would be slower


@dataclass(frozen=True)
class Drawn:
    """Watts of a GPU as ``factor`` times those of the physics and ``offset_w``, (L,) each, measured under ``limit_w``.

    A GPU under a limit then runs at the clock at which what it was measured to draw meets the limit, not what the
    physics says. Limits of ``limit_w`` are met as in the physics, since times too were measured under these.
    """

    factor: Floats
    offset_w: Floats
    limit_w: float

    def left_w(self, limit_w: Floats, rows: Ints, idle_w: float) -> Floats:
        """Limits in W, (1, 1), (n, 1) or (n, pp), in watts of the physics: of layouts ``rows`` (n,), as wide as given.

        Derived here: factor·P + offset ≤ limit, solved for P. Of limits below the measured one never more than that
        leaves, of those above never less, so that no higher limit leaves less than a lower one. Above ``idle_w``, which
        a GPU draws in the physics whatever runs.
        """
        if (limit_w == self.limit_w).all():
            return limit_w
        met_w = (limit_w - self.offset_w[rows, None]) / self.factor[rows, None]
        below, above = np.minimum(met_w, self.limit_w), np.minimum(np.maximum(met_w, self.limit_w), limit_w)
        least_w = idle_w + LEAST_ROOM * max(self.limit_w - idle_w, 0.0)
        return np.maximum(np.where(limit_w < self.limit_w, below, above), np.minimum(limit_w, least_w))


def hottest_idle_w(constants: PowerConstants, cooler: Cooler) -> float:
    """Watts that a GPU in the hottest air draws whatever runs, leakage included."""
    at_zero, gain = cooler.hottest_leakage_line
    return max((1.0 + gain) * constants.static_w + at_zero, constants.static_w)


def limit_left_w(physics: CostModel, rows: Ints, depth: int) -> Floats:
    """`power_limit_w` of layouts ``rows`` in watts of the physics, which measured ones may differ from."""
    limit_w, drawn = power_limit_w(physics.job.cluster, physics.layouts, rows, depth), physics.drawn
    return limit_w if drawn is None else drawn.left_w(limit_w, rows, hottest_idle_w(physics.power, physics.cooler))
