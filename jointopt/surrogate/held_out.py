"""Predictions of runs that a surrogate has not seen, alone and against one another, and the widths they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.surrogate.alike import are_twins
from jointopt.surrogate.model import Surrogate
from jointopt.surrogate.own_folds import COVERAGE
from jointopt.surrogate.residual_gp import Runs

FOLDS = 5
MOST_PAIRS = 400  # of one group, so that a large one does not take all the time


@dataclass(frozen=True)
class HeldOut:
    """Predictions of the log residual for runs not seen: truth, mean and 90 % half-width, (n,)."""

    truth: Floats
    mean: Floats
    half_width: Floats
    rows: Ints
    known: int = 0  # runs of the source that were

    @property
    def median_error(self) -> float:
        """Median of |predicted / measured - 1|."""
        return float(np.median(np.abs(np.expm1(self.mean - self.truth))))

    @property
    def coverage(self) -> float:
        """Share of runs whose truth lies in the interval."""
        return self.covered(1.0)

    @property
    def by_root(self) -> HeldOut:
        """The same with the roots of the half-widths in their place."""
        return replace(self, half_width=np.sqrt(self.half_width))

    def covered(self, factor: float) -> float:
        """The same of intervals so many times as wide."""
        return float((np.abs(self.mean - self.truth) <= factor * self.half_width).mean())


def group_folds(group: np.ndarray[Any, Any], seed: int = 0, most: int = FOLDS) -> Iterator[tuple[Ints, Ints]]:
    """(train, test) positions with whole groups held out, at most ``most`` times."""
    groups = np.random.default_rng(seed).permutation(np.unique(group))
    if len(groups) < 2:
        return
    for held in np.array_split(groups, min(most, len(groups))):
        test = np.isin(group, held)
        yield np.flatnonzero(~test).astype(np.int64), np.flatnonzero(test).astype(np.int64)


def measured_split(group: np.ndarray[Any, Any], per_group: int, seed: int = 0) -> tuple[Ints, Ints] | None:
    """(measured, judged) positions: ``per_group`` runs, drawn at random, of each group that has more, and its others.

    A smaller group neither gives runs nor is judged. None where no group is large enough.
    """
    rng = np.random.default_rng(seed)
    large = [g for g in np.unique(group) if (group == g).sum() > per_group]
    if not large:
        return None
    picked = [rng.choice(np.flatnonzero(group == g), per_group, replace=False) for g in large]
    chosen = np.concatenate(picked).astype(np.int64)
    return chosen, np.setdiff1d(np.flatnonzero(np.isin(group, large)), chosen)


def predict_rows(
    surrogate: Surrogate, runs: Runs, residual: Floats, test: Ints, measured: Ints, fitted: bool
) -> HeldOut:
    """Predictions of the runs ``test`` after those ``measured`` (positions)."""
    mean, width = np.empty(len(test)), np.empty(len(test))
    given = (runs.take(measured), residual[measured]) if len(measured) else None
    for source in np.unique(runs.source[test]):
        at = np.flatnonzero(runs.source[test] == source)
        mean[at], width[at], _ = surrogate.predict(runs.take(test[at]), fitted, given)
    return HeldOut(residual[test], mean, width, test, len(measured))


def predict_pairs(
    surrogate: Surrogate, runs: Runs, residual: Floats, test: Ints, measured: Ints, fitted: bool, twins: bool = True
) -> HeldOut | None:
    """As `predict_rows`, of differences between the runs ``test`` of one source and group; None where there are none.

    ``rows`` of the answer are those of the first run of each pair. ``twins``: of runs of one plan too, between which
    nothing but what a table does not say differs.
    """
    first, second = pairs(runs, test)
    if not twins:
        differ = ~are_twins(runs.take(first), runs.take(second))
        first, second = first[differ], second[differ]
    mean, width = np.empty(len(first)), np.empty(len(first))
    given = (runs.take(measured), residual[measured]) if len(measured) else None
    for source in np.unique(runs.source[first]):
        at = np.flatnonzero(runs.source[first] == source)
        known = surrogate.conditioned(str(source), fitted, given)
        mean[at], width[at] = known.difference(runs.take(first[at]), runs.take(second[at]))
    return HeldOut(residual[first] - residual[second], mean, width, first, len(measured)) if len(first) else None


def pairs(runs: Runs, rows: Ints, seed: int = 0) -> tuple[Ints, Ints]:
    """Positions of the first and of the second run of pairs of ``rows`` that are of one source and group.

    Of a group with more than `MOST_PAIRS` so many are drawn.
    """
    rng = np.random.default_rng(seed)
    key = np.char.add(np.char.add(runs.source[rows].astype(str), "\t"), runs.group[rows].astype(str))
    found = [np.empty((2, 0), np.int64)]
    for name in np.unique(key):
        at = rows[key == name]
        some = at[np.stack(np.triu_indices(len(at), 1))]
        drawn = rng.choice(some.shape[1], min(some.shape[1], MOST_PAIRS), replace=False)
        found.append(some[:, np.sort(drawn)])
    first, second = np.concatenate(found, axis=1)
    return first, second


def calibrated(
    surrogate: Surrogate, parts: Mapping[str, list[HeldOut]], of_pairs: Mapping[str, list[HeldOut]] | None = None
) -> Surrogate:
    """The surrogate with conformal widths: each kind of held-out prediction covers 90 % of rows, sources weighed alike.

    ``parts``: held-out predictions per source under ``measured``, ``few``, ``fitted`` and ``unknown``, by a surrogate
    whose widths are 1. ``of_pairs``: those of differences, which take one factor more, the same for all of these,
    and where runs are known have one of their own on the root of half-widths.
    """
    factors: dict[str, Any] = {kind: conformal(held) for kind, held in parts.items() if held}
    widths = replace(surrogate.widths, **factors)
    pairs = [(kind, held) for kind, each in (of_pairs or {}).items() for held in each]
    # of all kinds at once: sources left out are then covered by 91 % with a profile and without, else by 93 and 88 %
    if apart := [replace(held, half_width=held.half_width * getattr(widths, kind)) for kind, held in pairs]:
        widths = replace(widths, difference=conformal(apart))
    if after := [held.by_root for _, held in pairs if held.known]:
        widths = replace(widths, difference_after=conformal(after))
    return replace(surrogate, widths=widths)


def joined(parts: Sequence[HeldOut]) -> HeldOut | None:
    """All of ``parts`` as one; None where there are none."""
    if not parts:
        return None
    truth, mean, half_width, rows = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("truth", "mean", "half_width", "rows")
    )
    return HeldOut(truth, mean, half_width, rows, parts[0].known)


def conformal(held: list[HeldOut]) -> float:
    """Factor on the half-widths with which they cover 90 % of the truths, each part weighed alike."""
    scores = np.concatenate([np.abs(h.mean - h.truth) / h.half_width for h in held])
    weight = np.concatenate([np.full(len(h.truth), 1.0 / len(h.truth)) for h in held])
    return float(np.quantile(scores, COVERAGE, weights=weight, method="inverted_cdf"))
