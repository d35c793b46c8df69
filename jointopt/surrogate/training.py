"""Training a surrogate on recorded runs, and what it is worth on runs that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from jointopt.core.errors import TableError
from jointopt.core.schema import Floats, Ints
from jointopt.physics.describe import CATEGORY
from jointopt.surrogate.dataset import Priced, price, timed_runs
from jointopt.surrogate.model import Surrogate
from jointopt.surrogate.posterior import LARGEST_RESIDUAL
from jointopt.surrogate.residual_gp import Kernel, Runs, learn
from jointopt.surrogate.residual_trees import ResidualBooster
from jointopt.surrogate.trees import Trees

MONOTONE = {"clock": -1}  # the physics' time falls with the clock, and no correction may turn that round
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
LEAST_GAIN = 0.05  # of the error of physics alone, below which trees say nothing
FOLDS = 5
MOST_SUPPORT = 500  # runs kept per source
HELD_OUT_COLUMNS = ["source", "group", "truth", "error"]
COVERAGE = 0.9
LEAST_ROWS = 20
BROKEN = 2.0
MOST_BROKEN = 0.9  # of a source's rows, above which their unit is in doubt


@dataclass(frozen=True)
class Use:
    """Use of the timed runs of one source, as counts of rows."""

    source: str
    timed: int
    learned: int  # trained on
    broken: int  # further from the physics than training takes
    unpriced: int  # the physics cannot price them
    reason: str = ""  # of the first of those

    def to_text(self) -> str:
        """One line on how many rows were learned from, and why others were not."""
        hint = ": is iteration_time_s in seconds?" if self.broken > MOST_BROKEN * self.timed else ""
        reasons = {
            f"{self.broken:,} beyond {BROKEN:g} times the physics or its inverse{hint}": self.broken,
            f"{self.unpriced:,} that cannot be priced ({self.reason.rstrip('.')})": self.unpriced,
        }
        why = ", ".join(reason for reason, count in reasons.items() if count)
        rest = f"; left out: {why}" if why else ""
        return f"{self.source}: learned from {self.learned:,} of {self.timed:,} timed rows{rest}"


@dataclass(frozen=True)
class TrainingSet:
    """Timed runs with their residuals, as the physics sees them with and without framework profiles."""

    source: np.ndarray[Any, Any]  # where the rows came from, (n,)
    known: Priced
    known_residual: Floats
    unknown: Priced
    unknown_residual: Floats
    use: tuple[Use, ...] = ()  # by source, in the order of their names

    def of(self, names: set[str]) -> Ints:
        """Positions of the runs of the sources of these names."""
        return np.flatnonzero(np.isin(self.source, list(names))).astype(np.int64)

    def by_source(self, rows: Ints) -> list[Ints]:
        """The runs ``rows``, those of each source together."""
        return [rows[self.source[rows] == name] for name in np.unique(self.source[rows])]


def training_set(table: pd.DataFrame, broken: float = BROKEN) -> TrainingSet:
    """Rows of ``table`` with status ok and a time; the column ``source`` distinguishes origins.

    Runs that took more than ``broken`` times what the physics says, or less than its inverse, are left out: allocator
    retries, a link down, a gradient synchronisation per micro-batch are no smooth correction of anything.
    Raises TableError for a table without a timed row.
    """
    timed = timed_runs(table)
    if timed.empty:
        raise TableError("No row has status ok and an iteration_time_s; training needs runs that were timed.")
    known, unknown = price(timed), price(timed.assign(framework=""))
    time_s = timed["iteration_time_s"].to_numpy(float)
    origin = timed.get("source", pd.Series("table", index=timed.index)).astype(str).to_numpy()
    both, at, plain = np.intersect1d(known.rows, unknown.rows, return_indices=True)
    sound = np.abs(known.residual(time_s[known.rows])[at]) <= np.log(broken)
    reasons, rows = known.reasons | unknown.reasons, both[sound]
    uses = []
    for name in np.unique(origin).tolist():
        timed_rows, priced, learned = (int((of == name).sum()) for of in (origin, origin[both], origin[rows]))
        why = next((reasons[row] for row in sorted(reasons) if origin[row] == name), "")
        uses.append(Use(name, timed_rows, learned, priced - learned, timed_rows - priced, why))
    known, unknown = known.take(at[sound]), unknown.take(plain[sound])
    unknown = replace(
        unknown, runs=replace(unknown.runs, source=known.runs.source)
    )  # software by its name all the same
    return TrainingSet(
        origin[rows], known, known.residual(time_s[rows]), unknown, unknown.residual(time_s[rows]), tuple(uses)
    )


def source_weights(source: np.ndarray[Any, Any]) -> Floats:
    """Each source counts with the root of its size, so that a big one does not drown the rest."""
    _, inverse, count = np.unique(source, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(count[inverse])
    return np.asarray(weight / weight.mean())


def _booster(data: TrainingSet, rows: Ints, names: tuple[str, ...], strength: float, seed: int) -> ResidualBooster:
    features = data.known.runs.take(rows).matrix(names)
    target = np.clip(data.known_residual[rows], -1.0, 1.0)
    booster = ResidualBooster(
        strength=strength, random_state=seed, categories=[i for i, name in enumerate(names) if CATEGORY in name],
        monotone=[MONOTONE.get(name, 0) for name in names],
    )  # fmt: skip
    return booster.fit(features, target, sample_weight=source_weights(data.source[rows]))


def learn_kernel(data: TrainingSet, rows: Ints, seed: int = 0) -> Kernel:
    """The kernel of runs under their frameworks' profiles and under none, each source once either way.

    Profiles were fitted to recorded sources, so that their residuals alone would say that sources hardly differ.
    """
    known = [(data.known.runs.take(part), data.known_residual[part]) for part in data.by_source(rows)]
    unknown = [(data.unknown.runs.take(part), data.unknown_residual[part]) for part in data.by_source(rows)]
    return learn(known + unknown, seed=seed)


def fit(data: TrainingSet, rows: Ints, kernel: Kernel, seed: int = 0, strength: float | None = None) -> Surrogate:
    """A surrogate of the runs ``rows``; the booster's strength is what helps sources left out most, unless given."""
    names = tuple(sorted(data.known.runs.features))
    best = _best_strength(data, rows, names, seed) if strength is None else strength
    rng = np.random.default_rng(seed)
    parts = [rng.choice(own, min(len(own), MOST_SUPPORT), replace=False) for own in data.by_source(rows)]
    kept = np.concatenate([np.sort(part) for part in parts]).astype(np.int64)
    residual = np.clip(data.known_residual[kept], -LARGEST_RESIDUAL, LARGEST_RESIDUAL)
    trees = Trees.of(_booster(data, rows, names, best, seed))
    return Surrogate(kernel, trees, names, data.known.runs.take(kept), residual)


def _best_strength(data: TrainingSet, rows: Ints, names: tuple[str, ...], seed: int) -> float:
    errors = np.zeros(len(STRENGTHS))
    for held in data.by_source(rows):
        rest = np.setdiff1d(rows, held)
        if not len(rest):
            return 0.0
        full = _booster(data, rest, names, 1.0, seed).predict(data.known.runs.take(held).matrix(names))
        y = data.known_residual[held]
        errors += [float(np.median(np.abs(np.expm1(s * full - y)))) for s in STRENGTHS]
    best = int(errors.argmin())
    return STRENGTHS[best] if errors[best] < (1.0 - LEAST_GAIN) * errors[0] else 0.0


def group_folds(group: np.ndarray[Any, Any], seed: int = 0) -> Iterator[tuple[Ints, Ints]]:
    """(train, test) positions with whole groups held out, at most `FOLDS` times."""
    groups = np.random.default_rng(seed).permutation(np.unique(group))
    if len(groups) < 2:
        return
    for held in np.array_split(groups, min(FOLDS, len(groups))):
        test = np.isin(group, held)
        yield np.flatnonzero(~test).astype(np.int64), np.flatnonzero(test).astype(np.int64)


@dataclass(frozen=True)
class HeldOut:
    """Predictions of the log residual for runs not seen: truth, mean and 90 % half-width, (n,)."""

    truth: Floats
    mean: Floats
    half_width: Floats
    rows: Ints

    @property
    def median_error(self) -> float:
        """Median of |predicted / measured - 1|."""
        return float(np.median(np.abs(np.expm1(self.mean - self.truth))))

    @property
    def coverage(self) -> float:
        """Share of runs whose truth lies in the interval."""
        return float((np.abs(self.mean - self.truth) <= self.half_width).mean())


def _predict_rows(
    surrogate: Surrogate, runs: Runs, residual: Floats, test: Ints, measured: Ints, fitted: bool
) -> HeldOut:
    """Predictions of the runs ``test`` after those ``measured`` (positions)."""
    mean, width = np.empty(len(test)), np.empty(len(test))
    given = (runs.take(measured), residual[measured]) if len(measured) else None
    for source in np.unique(runs.source[test]):
        at = np.flatnonzero(runs.source[test] == source)
        mean[at], width[at], _ = surrogate.predict(runs.take(test[at]), fitted, given)
    return HeldOut(residual[test], mean, width, test)


def leave_group_out(data: TrainingSet, surrogate: Surrogate, name: str) -> HeldOut | None:
    """The source's other groups known, this one not; the surrogate's own support holds nothing of the source."""
    rows, known = data.of({name}), data.known.runs
    folds = group_folds(known.group[rows])
    parts = [_predict_rows(surrogate, known, data.known_residual, rows[at], rows[fit], True) for fit, at in folds]
    columns = ([getattr(part, each.name) for part in parts] for each in fields(HeldOut))
    return HeldOut(*map(np.concatenate, columns)) if parts else None


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


def leave_source_out(
    data: TrainingSet, surrogate: Surrogate, name: str, per_group: int, seed: int = 0, fitted: bool = True
) -> HeldOut | None:
    """Nothing of the source known but what `measured_split` draws from it, ``per_group`` runs of each group, pooled.

    ``fitted``: its framework's profile is known.
    """
    rows = data.of({name})
    runs, residual = (data.known.runs, data.known_residual) if fitted else (data.unknown.runs, data.unknown_residual)
    split = measured_split(runs.group[rows], per_group, seed)
    if split is None:
        return None
    chosen, test = split
    return _predict_rows(surrogate, runs, residual, rows[test], rows[chosen], fitted)


def calibrated(surrogate: Surrogate, parts: dict[str, list[HeldOut]]) -> Surrogate:
    """The surrogate with conformal widths: each kind of held-out prediction covers 90 % of rows, sources weighed alike.

    ``parts``: held-out predictions per source under ``measured``, ``fitted`` and ``unknown``.
    """
    factors = {kind: _conformal(held) for kind, held in parts.items() if held}
    return replace(surrogate, widths=replace(surrogate.widths, **factors))


def _conformal(held: list[HeldOut]) -> float:
    scores = np.concatenate([np.abs(h.mean - h.truth) / h.half_width for h in held])
    weight = np.concatenate([np.full(len(h.truth), 1.0 / len(h.truth)) for h in held])
    return float(np.quantile(scores, COVERAGE, weights=weight, method="inverted_cdf"))


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


def cross_validate(data: TrainingSet, allowed: set[str], strength: float, seed: int = 0) -> list[Scores]:
    """Every source judged by a surrogate without it, kernels included; only the trees' strength is shared by all."""
    scores = []
    for name in np.unique(data.source).tolist():
        rows, others = data.of({name}), data.of(allowed - {name})
        surrogate = fit(data, others, learn_kernel(data, others, seed), seed, strength)
        physics = float(np.median(np.abs(np.expm1(-data.known_residual[rows]))))
        group_out = leave_group_out(data, surrogate, name)
        none, three, ten = (leave_source_out(data, surrogate, name, count, seed) for count in (0, 3, 10))
        unseen = [leave_source_out(data, surrogate, name, count, seed, False) for count in (0, 3)]
        scores.append(Scores(name, physics, group_out, none, three, ten, *unseen))
    return scores


def score_table(scores: list[Scores]) -> pd.DataFrame:
    """Median errors and coverage per source, one row each, and their means."""
    rows = []
    for s in scores:
        held = {"group out": s.group_out, "source out": s.source_out, "+3 runs": s.three, "+10 runs": s.ten}
        held |= {"framework unknown": s.unseen, "framework unknown, +3 runs": s.unseen_three}
        row: dict[str, Any] = {"source": s.source, "physics": s.physics}
        row |= {name: h.median_error if h else np.nan for name, h in held.items()}
        rows.append(row | {f"{name} covered": h.coverage if h else np.nan for name, h in held.items()})
    table = pd.DataFrame(rows)
    mean = {"source": "mean", **table.drop(columns="source").mean().to_dict()}
    return pd.concat([table, pd.DataFrame([mean])], ignore_index=True)


def train(table: pd.DataFrame, seed: int = 0) -> tuple[Surrogate, pd.DataFrame]:
    """A calibrated surrogate of all timed rows of ``table``, and its held-out errors per source.

    ``attrs`` of the errors: those of every group (``groups``), every held-out run and its prediction (``rows``), the
    `Use` of each source (``use``). TableError where fewer than two sources or 20 timed rows are left.
    """
    data = training_set(table)
    everything = np.arange(len(data.source)).astype(np.int64)
    names = set(data.source.tolist())
    if len(everything) < LEAST_ROWS or len(names) < 2:
        used = "; ".join(use.to_text() for use in data.use)
        raise TableError(
            f"Training needs at least {LEAST_ROWS} timed rows of two sources (column source); got {len(everything)} "
            f"rows of {len(names)} ({used}): add tables, or adapt to the rows with `jointopt predict --measured` "
            "instead."
        )
    # one thread: the same bits on every machine, and matrices of a hundred rows gain nothing from more
    with threadpool_limits(1, user_api="blas"):
        surrogate = fit(data, everything, learn_kernel(data, everything, seed), seed)
        strength = surrogate.trees.strength if surrogate.trees else 0.0
        scores = cross_validate(data, names, strength, seed)
    # By how much was known: runs of the source, a profile of its framework, neither. Profiles were fitted to recorded
    # sources, so that a cluster of one's own lies between these under their profile and under none.
    kinds = {
        "measured": ("group_out", "three", "unseen_three"), "fitted": ("source_out", "unseen"), "unknown": ("unseen",),
    }  # fmt: skip
    held = {k: [h for s in scores for name in names if (h := getattr(s, name))] for k, names in kinds.items()}
    table = score_table(scores)
    held_out = _held_out_rows(data, scores)
    table.attrs["groups"] = {
        source: {str(name): float(error) for name, error in rows.groupby("group")["error"].median().round(4).items()}
        for source, rows in held_out.groupby("source")
    }
    table.attrs |= {"rows": held_out.to_dict("list"), "use": data.use}
    return calibrated(surrogate, held), table


def _held_out_rows(data: TrainingSet, scores: list[Scores]) -> pd.DataFrame:
    """Every run of a group that was held out: source, group, truth, log(measured / physics), and error of its time."""
    found = [(s.source, s.group_out) for s in scores if s.group_out is not None]
    groups = data.known.runs.group
    parts = [
        pd.DataFrame(
            {"source": name, "group": groups[h.rows], "truth": h.truth, "error": np.abs(np.expm1(h.mean - h.truth))}
        )
        for name, h in found
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=HELD_OUT_COLUMNS)
