"""What the plans that have not run are still expected to bring."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats
from jointopt.search.pareto import front_order, hypervolume, nadir

_TWICE_AS_GOOD, _TWICE_AS_WIDE = 0.5, 1.0  # share by which a value falls, or a volume grows


def gain_left(draws: Columns, measured: Columns, objectives: tuple[str, ...], left: Bools) -> float:
    """Expected gain if every plan that is left were run: a share, NaN where nobody can tell.

    That is before the first run that succeeded, and where twice as much as was measured seems to be left: such a hope
    says how little the runs so far tell, and not how much is to come.

    ``draws`` (n, s) are joint draws of the objectives, and ``fits``; ``measured`` (m) the objectives of the runs that
    succeeded. One objective: by how much the best value falls. Two: by how much the volume under the front grows, in
    logarithms.
    """
    known = np.log(np.stack([measured[name] for name in objectives], axis=1))
    if not len(known):
        return float("nan")
    if not left.any():
        return 0.0
    values = np.log(np.stack([draws[name][left] for name in objectives], axis=2))  # (plans, s, objectives)
    values[~draws["fits"][left]] = np.inf
    if len(objectives) == 1:
        better = np.maximum(known.min() - values[:, :, 0].min(axis=0), 0.0)
        return _believable(float(1.0 - np.exp(-better).mean()), _TWICE_AS_GOOD)
    return _believable(_volume_gain(known, values), _TWICE_AS_WIDE)


def _believable(gain: float, most: float) -> float:
    return gain if gain <= most else float("nan")


def _volume_gain(known: Floats, values: Floats) -> float:
    middle = np.median(values, axis=1)
    everything = np.concatenate([known, middle[np.isfinite(middle).all(axis=1)]])
    reference = nadir(everything[:, 0], everything[:, 1])
    front = known[front_order(known[:, 0], known[:, 1])]
    before = hypervolume(front[:, 0], front[:, 1], reference)
    after = []
    for draw in range(values.shape[1]):
        points = np.concatenate([front, values[:, draw]])
        after.append(hypervolume(points[:, 0], points[:, 1], reference))
    return float(np.mean(after) / before - 1.0) if before > 0 else float("nan")
