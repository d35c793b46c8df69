"""The front of the runs of a tune, and how much of the space of objectives it covers as they come in."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.search.pareto import hypervolume, non_dominated

_DRAWN = 10_000


def front(values: Floats) -> Ints:
    """Rows of (n, k) that no other beats, by the first column; those with a NaN are never among them."""
    return non_dominated(values)


def volumes(values: Floats) -> list[float]:
    """Hypervolume after each run, as a share of the box between zero and the reference: 0 to 1, never falling.

    ``values`` (n, k) are measured objectives, NaN where a run failed. The reference lies 10 % beyond the worst
    value measured in the whole tune; with one objective the volume is the length from the best run to it, with three or
    more it is counted in drawn points.
    """
    if not np.isfinite(values).all(axis=1).any():
        return [0.0] * len(values)
    reference = 1.1 * np.nanmax(values, axis=0)
    scaled = values / reference
    if values.shape[1] > 2:
        drawn = np.random.default_rng(0).random((_DRAWN, values.shape[1]))
        covers = np.logical_and.reduce([own[:, None] <= place for own, place in zip(scaled.T, drawn.T, strict=True)])
        return [float(share) for share in np.maximum.accumulate(covers, axis=0).mean(axis=1)]
    # one objective: the second one is zero everywhere, so that areas are lengths
    second = scaled[:, 1] if values.shape[1] > 1 else np.where(np.isfinite(scaled[:, 0]), 0.0, np.nan)
    return [hypervolume(scaled[:n, 0], second[:n], (1.0, 1.0)) for n in range(1, len(values) + 1)]
