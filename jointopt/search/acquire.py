"""Which plan to run next: expected gain in (hyper)volume per GPU-second, and what share a run is expected to save.

Everything is judged in logarithms, so that one per cent counts the same at every scale; minimised throughout.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.search.pareto import front_order, hypervolume, is_beaten, nadir, non_dominated

_DRAWN, _AT_ONCE = 512, 8192  # points that stand for a volume of three objectives, and plans compared with them at once
SAMPLES = 256  # draws per plan where two objectives or a batch leave no closed form
_WORTHWHILE = 0.1  # of the best plan's gain per cost, below which a plan of another family does not come first
_ALONE = 1e-6  # weight of what a plan gains alone: decides where the batch leaves nothing to gain in any draw
_TWICE_AS_GOOD, _TWICE_AS_WIDE = 0.5, 1.0  # share by which a value falls, or a volume grows
_INTERVAL = 2 * 1.6448536269514722  # standard deviations between the ends of a 90 % interval
_LEAST_DEVIATION = 1e-6
_TAIL = 4.0  # Student's degrees of freedom of what plans err by where several goals count: some are far off


def acquire(
    predicted: Columns, measured: Columns, costs: Floats, k: int, rng: np.random.Generator, *,
    objectives: tuple[str, ...], allowed: Bools, draws: Columns | None = None, spread: Columns | None = None,
    first: int | None = None, families: Ints | None = None,
) -> Ints:  # fmt: skip
    """Indices of at most ``k`` plans to run next as one batch, the one of most expected gain per cost first.

    ``predicted`` (n): each objective with ``_low`` and ``_high`` (90 % interval of a log-normal), and
    ``probability_fits``; ``measured`` (m): the objectives of the runs that succeeded; ``costs`` (n) in GPU-seconds.
    ``draws`` (n, s): joint draws of the objectives and ``fits`` (bool), which make a batch diverse; without them errors
    of plans are independent. ``spread`` (n): standard deviation of each objective's logarithm that gains are looked for
    in, by default that of the intervals. Plans outside ``allowed`` (n) are not chosen. ``first``: the plan that the
    batch begins with. ``families`` (n): numbers of which a batch holds each once, as long as others
    promise a tenth as much.
    """
    gain = expected_gain(predicted, measured, rng, objectives=objectives, spread=spread)
    eligible = np.flatnonzero(allowed & np.isfinite(gain))
    if not len(eligible):
        return np.empty(0, np.int64)
    chosen = [int(eligible[np.argmax(gain[eligible] / costs[eligible])]) if first is None else first]
    if k > 1:
        values, fits = _drawn(predicted, objectives, draws, rng)
        known = _known(predicted, measured, objectives)
        everything = np.concatenate([known, _log_normal(predicted, objectives)[0]])
        fronts = [known] * values.shape[1]  # of each draw, with the plans chosen so far
        while len(chosen) < min(k, len(np.union1d(eligible, chosen))):
            for draw in np.flatnonzero(fits[chosen[-1]]).tolist():
                points = np.vstack([fronts[draw], values[chosen[-1], draw]])
                fronts[draw] = points[non_dominated(points)]
            left = np.setdiff1d(eligible, chosen)
            total = np.zeros(len(left))
            for draw, front in enumerate(fronts):
                points = values[left, draw]
                alone = len(objectives) == 1
                added = (
                    np.maximum(front.min() - points[:, 0], 0.0) if alone else added_volume(front, points, everything)
                )
                total += np.where(fits[left, draw], added, 0.0)
            worth = (total / len(fronts) + _ALONE * gain[left]) / costs[left]
            if families is not None:
                others = np.where(np.isin(families[left], families[chosen]), 0.0, worth)
                worth = others if others.max() >= _WORTHWHILE * worth.max() else worth
            chosen.append(int(left[np.argmax(worth)]))
    return np.array(chosen, np.int64)


def _drawn(
    predicted: Columns, objectives: tuple[str, ...], draws: Columns | None, rng: np.random.Generator
) -> tuple[Floats, Bools]:
    """Logarithms of the objectives (n, s, objectives), given or drawn, and whether plans fit (n, s)."""
    if draws is not None:
        return np.log(np.stack([draws[name] for name in objectives], axis=2)), draws["fits"]
    mean, deviation = _log_normal(predicted, objectives)
    shape = (len(mean), SAMPLES, len(objectives))
    values = mean[:, None, :] + deviation[:, None, :] * rng.standard_normal(shape)
    return values, rng.random(shape[:2]) < predicted["probability_fits"][:, None]


def _known(predicted: Columns, measured: Columns, objectives: tuple[str, ...]) -> Floats:
    """Logarithms of the measured front (f, objectives); before the first run, of predictions that are likely to fit."""
    known = np.log(np.stack([measured[name] for name in objectives], axis=1))
    if not len(known):
        known, _ = _log_normal(predicted, objectives)
        likely = predicted["probability_fits"] >= 0.5
        known = known[likely] if np.isfinite(known[likely]).all(axis=1).any() else known
    return np.asarray(known[non_dominated(known)])


def expected_gain(
    predicted: Columns, measured: Columns, rng: np.random.Generator, *, objectives: tuple[str, ...],
    spread: Columns | None = None,
) -> Floats:  # fmt: skip
    """Expected gain (n,) in logarithms if each plan alone were run; a plan that fails gains nothing.

    One objective: expected improvement in closed form (Jones, Schonlau and Welch 1998, equation 15). More: mean gain in
    hypervolume of Student's draws, independent. Before the first run the incumbents are the best predictions that are
    likely to fit. ``spread`` as for `acquire`.
    """
    mean, deviation = _log_normal(predicted, objectives)
    if spread is not None:
        deviation = np.maximum(np.stack([spread[name] for name in objectives], axis=1), _LEAST_DEVIATION)
    known = _known(predicted, measured, objectives)
    if len(objectives) == 1:
        gain = _expected_improvement(float(known.min()), mean[:, 0], deviation[:, 0])
    else:
        # the draws are common to all plans, so that plans differ by what is predicted alone
        everything, count = np.concatenate([known, mean]), len(objectives)
        draws = mean[:, None, :] + deviation[:, None, :] * rng.standard_t(_TAIL, (1, SAMPLES, count))
        added = added_volume(known, draws.reshape(-1, count), everything)
        gain = added.reshape(len(mean), SAMPLES).mean(axis=1)
    return np.asarray(gain * predicted["probability_fits"])


def expected_saving(predicted: Columns, measured: Columns, *, objectives: tuple[str, ...]) -> Floats:
    """Share (n,) of the best measured result that a run of each plan alone is expected to save; 0 where it fails.

    ``predicted`` and ``measured`` as for `acquire`, with a run that succeeded. One objective: expected improvement of
    the logarithm, as a share. More: of the least share by which every measured plan is worse in some objective, the
    additive epsilon indicator of logarithms (Zitzler et al. 2003, IEEE Trans. Evol. Comput. 7, 117-132), which does not
    depend on how wide a front is.
    """
    mean, deviation = _log_normal(predicted, objectives)
    known = _known(predicted, measured, objectives)
    if len(objectives) == 1:
        saved = _expected_improvement(float(known.min()), mean[:, 0], deviation[:, 0])
    else:
        draws = np.random.default_rng(0).standard_normal((1, SAMPLES, mean.shape[1]))  # common: plans alone differ
        points = mean[:, None, :] + deviation[:, None, :] * draws
        ahead = np.full(points.shape[:2], np.inf)
        for front in known:
            np.minimum(ahead, (front - points).max(axis=2), out=ahead)
        saved = np.maximum(ahead, 0.0).mean(axis=1)
    return np.asarray(-np.expm1(-saved) * predicted["probability_fits"])


def _expected_improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """By how much normal values (n,) lie below the ``best`` in the mean; 0 where they lie above."""
    z = (best - mean) / deviation
    return np.asarray(np.maximum(deviation * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)), 0.0))


def _log_normal(predicted: Columns, objectives: tuple[str, ...]) -> tuple[Floats, Floats]:
    """Means and standard deviations of the objectives' logarithms, (n, objectives) each."""
    mean = np.log(np.stack([predicted[name] for name in objectives], axis=1))
    span = np.log(np.stack([predicted[f"{n}_high"] / predicted[f"{n}_low"] for n in objectives], axis=1))
    return mean, np.maximum(span / _INTERVAL, _LEAST_DEVIATION)


def added_volume(front: Floats, points: Floats, everything: Floats) -> Floats:
    """Volume (n,) that each point (n, k) alone adds to that of ``front`` (f, k) below the `nadir` of ``everything``.

    Of two columns it is an area; of more the share of points drawn in the box of ``everything``.
    """
    if points.shape[1] == 2:
        return added_area(front, points, nadir(everything[:, 0], everything[:, 1]))
    drawn = _drawn_in_box(everything)
    open_ = drawn[~is_beaten(front, drawn)]
    found = np.empty(len(points))
    for start in range(0, len(points), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        covers = np.ones((len(points[some]), len(open_)), bool)
        for own, place in zip(points[some].T, open_.T, strict=True):
            covers &= own[:, None] <= place[None, :]
        found[some] = covers.sum(axis=1)
    return found / _DRAWN


def _drawn_in_box(everything: Floats) -> Floats:
    """`_DRAWN` uniform points, always the same, in the box of ``everything`` (n, k) and a tenth of it on every side."""
    low, high = everything.min(axis=0), everything.max(axis=0)
    beyond = 0.1 * np.maximum(high - low, 1e-3)
    low, high = low - beyond, high + beyond
    return np.asarray(low + (high - low) * np.random.default_rng(0).random((_DRAWN, len(low))))


def added_area(front: Floats, points: Floats, reference: tuple[float, float]) -> Floats:
    """Area (n,) that each point (n, 2) alone adds to that of ``front`` (f, 2), sorted by its first column."""
    left = np.concatenate([[-np.inf], front[:, 0]])
    right = np.concatenate([front[:, 0], [reference[0]]])
    ceiling = np.concatenate([[reference[1]], front[:, 1]])
    width = np.minimum(right, reference[0]) - np.maximum(left, points[:, :1])
    height = np.minimum(ceiling, reference[1]) - points[:, 1:]
    area: Floats = (np.maximum(width, 0.0) * np.maximum(height, 0.0)).sum(axis=1)
    return area


def gain_left(draws: Columns, measured: Columns, objectives: tuple[str, ...], left: Bools) -> float:
    """Expected gain, as a share, if every plan that is ``left`` (n) were run; NaN where it cannot be known.

    One objective: by how much the best value falls. More: by how much the volume under the front grows, in logarithms.
    It is unknown before the first run that succeeded, and where as much again as was measured seems to be left, for
    then the runs so far show little. ``draws`` (n, s): joint draws of the objectives, and ``fits``; ``measured`` (m):
    the objectives of the runs that succeeded.
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
        gain, most = float(1.0 - np.exp(-better).mean()), _TWICE_AS_GOOD
    else:
        gain, most = _volume_gain(known, values), _TWICE_AS_WIDE
    return max(gain, 0.0) if gain <= most else float("nan")  # rounding may leave a little less than nothing


def _volume_gain(known: Floats, values: Floats) -> float:
    """Share by which the volume under the front of ``known`` grows in the mean draw of ``values``.

    Of three goals and more by points drawn in the box of all.
    """
    middle = np.median(values, axis=1)
    everything, draws = np.concatenate([known, middle[np.isfinite(middle).all(axis=1)]]), range(values.shape[1])
    if known.shape[1] > 2:
        drawn = _drawn_in_box(everything)
        covered = is_beaten(known, drawn)
        left = drawn[~covered]
        more = np.mean([is_beaten(values[:, draw], left).sum() for draw in draws])
        return float(more / covered.sum()) if covered.any() else float("nan")
    reference = nadir(everything[:, 0], everything[:, 1])
    front = known[front_order(known[:, 0], known[:, 1])]
    before = hypervolume(front[:, 0], front[:, 1], reference)
    drawn_fronts = (np.concatenate([front, values[:, draw]]).T for draw in draws)
    after = np.mean([hypervolume(points[0], points[1], reference) for points in drawn_fronts])
    return float(after / before - 1.0) if before > 0 else float("nan")
