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
    SURE,
    NewGroups,
    NewSource,
    bounds_of_clusters,
    bounds_of_software,
    size_groups,
)
from jointopt.surrogate.own_mix import COVERAGE, held_half_width, sure_part
from jointopt.surrogate.surrogate import Surrogate, Widths

FOLDS = 5
MOST_PAIRS = 400  # of one group, so that a large one does not take all the time
SAME = 1e-6  # of features and sensitivities, as rounding has it


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


def judge_new_groups(held: HeldOut, runs: Runs) -> tuple[NewGroups, HeldOut]:
    """A `NewGroups` of few ``runs``, by answers of the whole process for those ``held`` out; and what counts of these.

    All of the process where its median error is at most that of the physics in `SURE` of draws of the groups; else as
    far as it is sure of each plan, if the median error is then no worse than that of the physics; else none of it.
    Fewer than `LEAST_GROUPS` choose nothing.
    """
    some = runs.take(held.rows)
    group = size_groups(some)
    each = [np.flatnonzero(group == one) for one in np.unique(group)]
    count, wider = len(each), 1.0
    of_physics, of_part = (
        replace(held, mean=part * held.mean) for part in (0.0, sure_part(held.mean, held.half_width))
    )
    # whole groups are drawn, as runs of one are off alike
    rng, off = np.random.default_rng(0), np.abs(np.expm1([one.mean - one.truth for one in (held, of_physics)]))
    drawn = (np.concatenate([each[i] for i in rng.integers(0, count, count)]) for _ in range(DRAWS))
    medians = np.array([np.median(off[:, rows], axis=1) for rows in drawn])
    no_worse = (medians[:, 0] <= medians[:, 1]).mean() >= SURE
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


@dataclass(frozen=True)
class Scores:
    """Held-out errors of one source, and the held-out predictions behind them."""

    source: str
    physics: float
    group_out: HeldOut | None
    source_out: HeldOut | None
    three: HeldOut | None
    ten: HeldOut | None
    unseen: HeldOut | None  # as source_out and three, under a framework without a profile
    unseen_three: HeldOut | None
    few: HeldOut | None = None  # three runs of each cluster and software, with a profile of it and without
    unseen_few: HeldOut | None = None
    pairs: Mapping[str, HeldOut | None] = field(default_factory=dict)  # of differences: source_out, three, and unseen
    new: NewSource | None = None  # what it was off by where nothing of it was known
    by_size: HeldOut | None = None  # as group_out, by `leave_size_out`: where all that is known of it are few runs


def with_calibrated_widths(surrogate: Surrogate, scores: list[Scores]) -> Surrogate:
    """The surrogate, whose widths are 1, with those that the held-out predictions need."""
    # By how much was known: runs of the source, a profile of its framework, neither. Profiles were fitted to recorded
    # sources, so that a cluster of one's own lies between these under their profile and under none.
    kinds = {
        "measured": ("group_out",), "few": ("few", "unseen_few"),
        "fitted": ("source_out", "unseen"), "unknown": ("unseen",),
    }  # fmt: skip
    held = {k: [h for s in scores for name in names if (h := getattr(s, name))] for k, names in kinds.items()}
    pairs = {k: [h for s in scores for name in names if (h := s.pairs.get(name))] for k, names in kinds.items()}
    found, new = calibrated(surrogate, held, pairs), [s.new for s in scores if s.new is not None]
    # What plans of one job differ by hardly depends on whose runs a profile was fitted to, since one factor cancels.
    by_root = {kind: [h.by_root for s in scores if (h := s.pairs.get(kind))] for kind in ("source_out", "unseen")}
    of_new, unknown = (conformal(each) if each else None for each in by_root.values())
    widths = replace(
        found.widths, new_cluster=bounds_of_clusters(new), new_software=bounds_of_software(new),
        difference_new=of_new, difference_unknown=unknown,
    )  # fmt: skip
    return replace(found, widths=widths)


def score_table(scores: list[Scores], widths: Widths | None = None) -> pd.DataFrame:
    """Median errors and coverage per source, one row each, and their means; intervals have the factors ``widths``."""
    w = widths or Widths()
    rows = []
    for s in scores:
        held = {
            "group out": (s.group_out, w.measured), "source out": (s.source_out, w.fitted),
            "+3 runs": _after(s.three, w), "+10 runs": _after(s.ten, w), "framework unknown": (s.unseen, w.unknown),
            "framework unknown, +3 runs": _after(s.unseen_three, w),
        }  # fmt: skip
        row: dict[str, Any] = {"source": s.source, "physics": s.physics}
        row |= {name: h.median_error if h else np.nan for name, (h, _) in held.items()}
        pairs, three = s.pairs.get("source_out"), s.pairs.get("three")
        if pairs is not None and w.difference_new is not None:
            held["differences"] = pairs.by_root, w.difference_new
        else:  # of an earlier card
            held["differences"] = pairs, w.fitted * w.difference
        if three and w.difference_after is not None:
            held["differences, +3 runs"] = three.by_root, w.difference_after
        row |= {f"{name} covered": h.covered(by) if h else np.nan for name, (h, by) in held.items()}
        if s.new is not None and w.new_cluster is not None and w.new_software is not None:
            own, generic = s.new.covered(w.new_cluster, w.new_software)
            row |= {"source out covered": own, "framework unknown covered": generic}
        rows.append(row)
    table = pd.DataFrame(rows)
    mean = {"source": "mean", **table.drop(columns="source").mean().to_dict()}
    return pd.concat([table, pd.DataFrame([mean])], ignore_index=True)


def _after(held: HeldOut | None, widths: Widths) -> tuple[HeldOut | None, float]:
    """Held-out predictions after some runs of the source, and the factor on their half-widths."""
    return held, widths.of_measured(held.known) if held else 1.0
