"""Which plan to run next: expected gain in (hyper)volume per GPU-second, in one objective or two.

Everything is judged in logarithms, so that one per cent counts the same at every scale; minimised throughout.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from jointopt.schema import Bools, Columns, Floats, Ints
from jointopt.search.pareto import front_order, nadir

_SAMPLES = 256  # draws per plan where two objectives leave no closed form
_INTERVAL = 2 * 1.6448536269514722  # standard deviations between the ends of a 90 % interval


def acquire(
    predicted: Columns, measured: Columns, costs: Floats, k: int, rng: np.random.Generator, *,
    objectives: tuple[str, ...], allowed: Bools, least_chance: float = 0.0,
) -> Ints:  # fmt: skip
    """Indices of at most ``k`` plans worth running next, the best first.

    ``predicted`` (n): each objective with ``_low`` and ``_high`` (90 % interval of a log-normal), and
    ``probability_fits``; ``measured`` (m): the objectives of the runs that succeeded; ``costs`` (n) in GPU-seconds.
    Plans outside ``allowed`` are never chosen, nor those that better what was measured by 1 % with a probability
    below ``least_chance``.
    """
    gain, chance = expected_gain(predicted, measured, rng, objectives=objectives)
    eligible = np.flatnonzero(allowed & (chance >= least_chance) & np.isfinite(gain))
    order = np.argsort(-gain[eligible] / costs[eligible], kind="stable")
    return eligible[order[:k]].astype(np.int64)


def expected_gain(
    predicted: Columns, measured: Columns, rng: np.random.Generator, *, objectives: tuple[str, ...]
) -> tuple[Floats, Floats]:
    """(expected gain in log-volume (n,), probability of a plan better by 1 % (n,)); both count a failure as no gain.

    One objective: expected improvement in closed form (Jones, Schonlau and Welch 1998, equation 15). Two: mean gain
    in hypervolume of draws from independent log-normals. Before the first run the incumbent is the median prediction,
    so that a first plan is promising and likely to fit.
    """
    mean, deviation = _log_normal(predicted, objectives)
    known = np.log(np.stack([measured[name] for name in objectives], axis=1))
    if not len(known):
        known = np.median(mean, axis=0, keepdims=True)
    if len(objectives) == 1:
        gain, chance = _improvement(mean[:, 0], deviation[:, 0], float(known.min()))
    else:
        gain, chance = _hypervolume_gain(mean, deviation, known, rng)
    fits = predicted["probability_fits"]
    return gain * fits, chance * fits


def _log_normal(predicted: Columns, objectives: tuple[str, ...]) -> tuple[Floats, Floats]:
    mean = np.log(np.stack([predicted[name] for name in objectives], axis=1))
    low, high = (
        np.stack([predicted[f"{name}_{end}"] for name in objectives], axis=1) for end in ("low", "high")
    )
    return mean, np.maximum(np.log(high / low) / _INTERVAL, 1e-6)


def _improvement(mean: Floats, deviation: Floats, incumbent: float) -> tuple[Floats, Floats]:
    z = (incumbent - mean) / deviation
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    gain: Floats = deviation * (z * ndtr(z) + density)
    chance: Floats = ndtr((incumbent + np.log(0.99) - mean) / deviation)
    return gain, chance


def _hypervolume_gain(
    mean: Floats, deviation: Floats, known: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Two objectives: the draws are common to all plans, so that plans differ by what is predicted alone."""
    front = known[front_order(known[:, 0], known[:, 1])]
    everything = np.concatenate([known, mean])
    reference = nadir(everything[:, 0], everything[:, 1])
    draws = mean[:, None, :] + deviation[:, None, :] * rng.standard_normal((1, _SAMPLES, 2))
    gain = added_area(front, draws.reshape(-1, 2), reference).reshape(len(mean), _SAMPLES)
    ahead = added_area(front + np.log(0.99), draws.reshape(-1, 2), reference).reshape(len(mean), _SAMPLES)
    return gain.mean(axis=1), (ahead > 0).mean(axis=1)


def added_area(front: Floats, points: Floats, reference: tuple[float, float]) -> Floats:
    """Area (n,) that each point (n, 2) alone adds to that of ``front`` (f, 2), sorted by its first column.

    Between two neighbours of the front the free area lies below the left one, and left of the front below the
    reference.
    """
    left = np.concatenate([[-np.inf], front[:, 0]])
    right = np.concatenate([front[:, 0], [reference[0]]])
    ceiling = np.concatenate([[reference[1]], front[:, 1]])
    width = np.minimum(right, reference[0]) - np.maximum(left, points[:, :1])
    height = np.minimum(ceiling, reference[1]) - points[:, 1:]
    area: Floats = (np.maximum(width, 0.0) * np.maximum(height, 0.0)).sum(axis=1)
    return area
