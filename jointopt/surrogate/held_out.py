"""Predictions of runs that a surrogate has not seen, alone and against one another, and the widths they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.schema import Floats, Ints
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.new_sources import (
    DRAWS,
    LEAST_GROUPS,
    SURE_SHARE,
    NewGroups,
    NewSource,
    bounds_of_clusters,
    bounds_of_software,
    size_groups,
)
from jointopt.surrogate.own_mix import COVERAGE, held_half_width, signal_share
from jointopt.surrogate.surrogate import Surrogate, Widths

FOLDS = 5
MOST_PAIRS = 400  # of one group, so that a large one does not take all the time
SAME = 1e-6  # of features and sensitivities, as rounding has it


@dataclass(frozen=True)
class HeldOut:
    """Predictions of log(measured / physics) for n runs that the surrogate has not seen."""

    truth: Floats  # (n,)
    mean: Floats  # (n,)
    half_width: Floats  # (n,) 90 %
    rows: Ints  # (n,) positions of the runs
    known: int = 0  # runs of the source that were seen

    @property
    def median_error(self) -> float:
        """Median of |predicted / measured - 1|."""
        return float(np.median(np.abs(np.expm1(self.mean - self.truth))))

    @property
    def coverage(self) -> float:
        """Share of runs whose truth lies in the interval."""
        return self.covered(1.0)

    @property
    def with_root_widths(self) -> HeldOut:
        """With roots of the half-widths in their place, on which factors of differences are calibrated."""
        return replace(self, half_width=np.sqrt(self.half_width))

    def covered(self, factor: float) -> float:
        """`coverage` of intervals ``factor`` times as wide."""
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
    first, second = run_pairs(runs, test)
    if not twins:
        inputs = np.hstack([runs.sensitivity, runs.matrix(runs.names)])
        differ = (np.abs(inputs[first] - inputs[second]) > SAME).any(axis=1)
        first, second = first[differ], second[differ]
    mean, width = np.empty(len(first)), np.empty(len(first))
    given = (runs.take(measured), residual[measured]) if len(measured) else None
    for source in np.unique(runs.source[first]):
        at = np.flatnonzero(runs.source[first] == source)
        known = surrogate.conditioned(str(source), fitted, given)
        mean[at], width[at] = known.difference(runs.take(first[at]), runs.take(second[at]))
    return HeldOut(residual[first] - residual[second], mean, width, first, len(measured)) if len(first) else None


def run_pairs(runs: Runs, rows: Ints) -> tuple[Ints, Ints]:
    """Positions of the first and of the second run of pairs of ``rows`` that are of one source and group.

    Of a group with more than `MOST_PAIRS` so many are drawn.
    """
    rng = np.random.default_rng(0)
    key = np.char.add(np.char.add(runs.source[rows].astype(str), "\t"), runs.group[rows].astype(str))
    found = [np.empty((2, 0), np.int64)]
    for name in np.unique(key):
        at = rows[key == name]
        some = at[np.stack(np.triu_indices(len(at), 1))]
        drawn = rng.choice(some.shape[1], min(some.shape[1], MOST_PAIRS), replace=False)
        found.append(some[:, np.sort(drawn)])
    first, second = np.concatenate(found, axis=1)
    return first, second


def with_conformal_widths(
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
    if together := [replace(held, half_width=held.half_width * getattr(widths, kind)) for kind, held in pairs]:
        widths = replace(widths, difference=conformal(together))
    if after := [held.with_root_widths for _, held in pairs if held.known]:
        widths = replace(widths, difference_after=conformal(after))
    return replace(surrogate, widths=widths)


def joined_held_out(parts: Sequence[HeldOut]) -> HeldOut | None:
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


def judge_new_groups(held: HeldOut, runs: Runs) -> tuple[NewGroups, HeldOut]:
    """(A `NewGroups` of few ``runs``, ``held`` as predicted by it); ``held``: runs left out, by the whole process.

    All of the process where its median error is at most that of the physics in `SURE_SHARE` of draws of the groups;
    else as far as it is sure of each plan, if the median error is then no worse than that of the physics; else none of
    it. Fewer than `LEAST_GROUPS` choose nothing.
    """
    some = runs.take(held.rows)
    group = size_groups(some)
    each = [np.flatnonzero(group == one) for one in np.unique(group)]
    count, wider = len(each), 1.0
    of_physics, of_part = (
        replace(held, mean=part * held.mean) for part in (0.0, signal_share(held.mean, held.half_width))
    )
    # whole groups are drawn, as runs of one are off alike
    rng, off = np.random.default_rng(0), np.abs(np.expm1([one.mean - one.truth for one in (held, of_physics)]))
    drawn = (np.concatenate([each[i] for i in rng.integers(0, count, count)]) for _ in range(DRAWS))
    medians = np.array([np.median(off[:, rows], axis=1) for rows in drawn])
    no_worse = (medians[:, 0] <= medians[:, 1]).mean() >= SURE_SHARE
    weight, as_sure, left = 1.0, False, held
    if count >= LEAST_GROUPS and not no_worse:
        as_sure = of_part.median_error <= of_physics.median_error
        weight, left = (1.0, of_part) if as_sure else (0.0, of_physics)
    if count >= LEAST_GROUPS:
        wider = max(held_half_width((left.mean - held.truth) / held.half_width, count), 1.0)
    judged = {"physics": of_physics, "process": held, "time": left}
    errors = {name: round(one.median_error, 6) for name, one in judged.items()}
    found = NewGroups(tuple(np.unique(some.source).tolist()), weight, wider, errors, count, as_sure)
    return found, replace(left, half_width=wider * held.half_width)


# Errors of a surrogate on each source's runs that it has not seen, as a table, and the widths that follow.


# What was left out: runs known of each of the source's groups, or (of "few") of each cluster and software, and whether
# its framework has a profile. Beside these "group_out": all groups but the one judged; "by_size": the same of few runs.
LEFT_OUT: Mapping[str, tuple[int, bool, str]] = {
    "source_out": (0, True, "group"), "three": (3, True, "group"), "ten": (10, True, "group"),
    "unseen": (0, False, "group"), "unseen_three": (3, False, "group"),
    "few": (3, True, "source"), "unseen_few": (3, False, "source"),
}  # fmt: skip
OF_PAIRS = ("source_out", "three", "unseen", "few", "unseen_few")
# By how much was known: many runs of the source, a few, a profile of its framework, neither. Profiles were fitted to
# recorded sources, so that a cluster of one's own lies between these under their profile and under none.
KINDS: Mapping[str, tuple[str, ...]] = {
    "measured": ("group_out",), "few": ("few", "unseen_few"), "fitted": ("source_out", "unseen"),
    "unknown": ("unseen",),
}  # fmt: skip
COLUMNS: Mapping[str, str] = {
    "group out": "group_out", "source out": "source_out", "+3 runs": "three", "+10 runs": "ten",
    "framework unknown": "unseen", "framework unknown, +3 runs": "unseen_three",
}  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """Error of the physics alone on one source, and held-out predictions of its runs by what was left out.

    ``run_pairs``: of differences. ``new``: what it was off by where nothing of it was known.
    """

    source: str
    physics: float
    held: Mapping[str, HeldOut] = field(default_factory=dict)
    pairs: Mapping[str, HeldOut] = field(default_factory=dict)
    new: NewSource | None = None


def with_calibrated_widths(surrogate: Surrogate, scores: list[Scores]) -> Surrogate:
    """The surrogate, whose widths are 1, with those that the held-out predictions need."""
    held, pairs = (
        {kind: [each[name] for each in every for name in names if name in each] for kind, names in KINDS.items()}
        for every in ([s.held for s in scores], [s.pairs for s in scores])
    )
    found, new = with_conformal_widths(surrogate, held, pairs), [s.new for s in scores if s.new is not None]
    # What plans of one job differ by hardly depends on whose runs a profile was fitted to, since one factor cancels.
    by_root = ([s.pairs[kind].with_root_widths for s in scores if kind in s.pairs] for kind in ("source_out", "unseen"))
    of_new, unknown = (conformal(each) if each else None for each in by_root)
    widths = replace(
        found.widths, new_cluster=bounds_of_clusters(new), new_software=bounds_of_software(new),
        difference_new=of_new, difference_unknown=unknown,
    )  # fmt: skip
    return replace(found, widths=widths)


def score_table(scores: list[Scores], widths: Widths | None = None) -> pd.DataFrame:
    """Median errors and coverage per source, one row each, and their means; intervals have the factors ``widths``."""
    w = widths or Widths()
    factors = {"group_out": w.measured, "source_out": w.fitted, "unseen": w.unknown}
    rows = []
    for s in scores:
        errors, covered = dict.fromkeys(COLUMNS, np.nan), dict.fromkeys(COLUMNS, np.nan) | {"differences": np.nan}
        for name, kind in COLUMNS.items():
            if (held := s.held.get(kind)) is not None:
                errors[name] = held.median_error
                covered[name] = held.covered(factors.get(kind) or w.of_measured(held.known))
        if "source_out" in s.pairs:
            pairs, factor = s.pairs["source_out"], w.fitted * w.difference
            if w.difference_new is not None:  # an earlier card has no factor on roots
                pairs, factor = pairs.with_root_widths, w.difference_new
            covered["differences"] = pairs.covered(factor)
        if "three" in s.pairs and w.difference_after is not None:
            covered["differences, +3 runs"] = s.pairs["three"].with_root_widths.covered(w.difference_after)
        if s.new is not None and w.new_cluster is not None and w.new_software is not None:
            covered["source out"], covered["framework unknown"] = s.new.covered(w.new_cluster, w.new_software)
        row = {"source": s.source, "physics": s.physics} | errors
        rows.append(row | {f"{name} covered": share for name, share in covered.items()})
    table = pd.DataFrame(rows)
    mean = {"source": "mean", **table.drop(columns="source").mean().to_dict()}
    return pd.concat([table, pd.DataFrame([mean])], ignore_index=True)
