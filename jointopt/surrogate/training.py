"""Training a surrogate on recorded runs, and what it is worth on runs that it has not seen."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import TableError
from jointopt.core.progress import steps
from jointopt.core.schema import Floats, Ints
from jointopt.core.system import one_blas_thread
from jointopt.core.units import Z_90
from jointopt.physics.sensitivities import CATEGORY
from jointopt.runs.ignored_columns import without_time
from jointopt.runs.row_names import row_names
from jointopt.surrogate.data_doubts import heat_log_ratios, power_lines, power_log_ratio
from jointopt.surrogate.dataset import Priced, is_timed, price, timed_runs, with_results
from jointopt.surrogate.evidence import (
    Use,
    expected_above,
    impossible_bounds,
    impossible_bounds_line,
    is_lower_bound,
    same_job,
)
from jointopt.surrogate.features import HEAT_COLUMNS
from jointopt.surrogate.held_out import (
    FOLDS,
    LEFT_OUT,
    OF_PAIRS,
    HeldOut,
    Scores,
    group_folds,
    joined_held_out,
    judge_new_groups,
    measured_split,
    predict_pairs,
    predict_rows,
    score_table,
    with_calibrated_widths,
)
from jointopt.surrogate.kernel import CLOCK, Kernel, Runs, joined_runs, learn
from jointopt.surrogate.memory import memory_log_ratio
from jointopt.surrogate.new_sources import MOST_FOLDS, NewGroups, NewSource, size_groups
from jointopt.surrogate.own_cluster import (
    BROKEN,
    LEAST_RUNS,
    OwnRuns,
    SourceRuns,
    judge_shared,
    learn_own,
    measured_clocks,
    remembered_rows,
)
from jointopt.surrogate.own_mix import Swept, count_distinct
from jointopt.surrogate.posterior import LARGEST_RESIDUAL
from jointopt.surrogate.power import MeasuredPower, scale_at_limit
from jointopt.surrogate.surrogate import Fingerprints, Surrogate, Widths, fingerprints

_log = logging.getLogger(__name__)
LEAST_ROWS, MOST_SUPPORT = 20, 500  # runs that are learned from at all, and that are kept per source
HELD_OUT_COLUMNS = ["source", "group", "truth", "error"]
ENOUGH_JUDGED, MOST_DRAWS = 100, 8  # runs of one source that are judged after few measured ones, and draws of these
OWN_BROKEN = 5.0  # a cluster's own runs may be off by more than what clusters share


@dataclass(frozen=True)
class TrainingSet:
    """Timed runs with their residuals, as the physics sees them with and without framework profiles."""

    source: np.ndarray[Any, Any]  # where the rows came from, (n,)
    known: Priced
    known_residual: Floats
    unknown: Priced
    unknown_residual: Floats
    use: tuple[Use, ...] = ()  # by source, in the order of their names
    log_power: Floats = field(default_factory=lambda: np.empty(0))  # log(measured / physics), (n,), NaN: not measured
    heat: Mapping[str, Floats] = field(default_factory=dict)  # the same of peak power and temperature over the air
    log_memory: Floats = field(default_factory=lambda: np.empty(0))  # and of peak memory
    fingerprints: Fingerprints = field(default_factory=lambda: np.empty(0, np.uint64))  # of the runs' rows, (n,)

    def of(self, names: set[str]) -> Ints:
        """Positions of the runs of the sources of these names."""
        return np.flatnonzero(np.isin(self.source, list(names))).astype(np.int64)

    def by_source(self, rows: Ints) -> list[Ints]:
        """The runs ``rows``, those of each source together."""
        return [rows[self.source[rows] == name] for name in np.unique(self.source[rows])]


def training_set(table: pd.DataFrame, broken: float = BROKEN) -> TrainingSet:
    """Rows of ``table`` with status ok and a time; the column ``source`` distinguishes origins.

    Runs that took more than ``broken`` times the time of the physics, or less than its inverse, are left out: allocator
    retries, a link down, a gradient synchronisation per micro-batch are no smooth correction of anything.
    Raises TableError for a table without a timed row.
    """
    timed = timed_runs(table)
    if timed.empty:
        why = without_time(table) or "; training needs timed runs"
        raise TableError(f"No row has status ok and an iteration_time_s that can be used{why}.")
    known = price(timed, heat=any(name in timed and timed[name].notna().any() for name in HEAT_COLUMNS.values()))
    unknown = (
        known if _origins(timed).nunique() == 1 else price(timed.assign(framework=""))
    )  # other sources are what it is learned for
    time_s = timed["iteration_time_s"].to_numpy(float)
    origin = _origins(timed).to_numpy()
    both, at, plain = np.intersect1d(known.rows, unknown.rows, return_indices=True)
    off = np.abs(known.residual(time_s[known.rows])[at])
    sound = off <= np.log(broken)
    reasons, rows = known.reasons | unknown.reasons, both[sound]
    uses = []
    for name in np.unique(origin).tolist():
        timed_rows, priced, learned = (int((of == name).sum()) for of in (origin, origin[both], origin[rows]))
        why = next((reasons[row] for row in sorted(reasons) if origin[row] == name), "")
        times = float(np.exp(np.median(lost))) if (lost := off[~sound & (origin[both] == name)]).size else 1.0
        uses.append(Use(name, timed_rows, learned, priced - learned, timed_rows - priced, why, broken, times))
    known, unknown = known.take(at[sound]), unknown.take(plain[sound])
    unknown = replace(
        unknown, runs=replace(unknown.runs, source=known.runs.source)
    )  # software by its name all the same
    named = row_names(table, is_timed(with_results(table)))
    for line in power_lines(timed, known, named):
        _log.warning("%s", line)
    return TrainingSet(
        origin[rows], known, known.residual(time_s[rows]), unknown, unknown.residual(time_s[rows]), tuple(uses),
        power_log_ratio(timed, known), heat_log_ratios(timed, known, named), memory_log_ratio(timed, known),
        fingerprints(known.works, time_s)[rows],
    )  # fmt: skip


def _origins(table: pd.DataFrame) -> pd.Series[str]:
    """The origins of a table's rows."""
    return table.get("source", pd.Series("table", index=table.index)).astype(str)


def source_weights(source: np.ndarray[Any, Any]) -> Floats:
    """Each source counts with the root of its size, so that a big one does not drown the rest."""
    _, inverse, count = np.unique(source, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(count[inverse])
    return np.asarray(weight / weight.mean())


def training_range(data: TrainingSet, rows: Ints) -> dict[str, tuple[float, float]]:
    """Range (0.5 % to 99.5 % of weighted runs) of each feature but clock and categories in the runs ``rows``."""
    names = [name for name in data.known.runs.names if name != CLOCK and CATEGORY not in name]
    features, weight = data.known.runs.take(rows).matrix(names), source_weights(data.source[rows])
    low, high = np.quantile(features, [0.005, 0.995], axis=0, weights=weight, method="inverted_cdf").tolist()
    return dict(zip(names, zip(low, high, strict=True), strict=True))


def learn_kernel(data: TrainingSet, rows: Ints, seed: int = 0) -> Kernel:
    """The kernel of runs under their frameworks' profiles and under none, each source once either way.

    Profiles were fitted to recorded sources, so that their residuals alone would suggest that sources hardly differ.
    """
    known = [(data.known.runs.take(part), data.known_residual[part]) for part in data.by_source(rows)]
    unknown = [(data.unknown.runs.take(part), data.unknown_residual[part]) for part in data.by_source(rows)]
    return learn(known + unknown, seed=seed)


def fit(data: TrainingSet, rows: Ints, kernel: Kernel, seed: int = 0) -> Surrogate:
    """A surrogate of the runs ``rows`` of several sources."""
    return Surrogate(kernel, *_remembered_runs(data, rows, seed), training_range=training_range(data, rows))


def _remembered_runs(data: TrainingSet, rows: Ints, seed: int) -> tuple[Runs, Floats]:
    """At most `MOST_SUPPORT` runs of every source among ``rows`` and their residuals, which a surrogate remembers."""
    rng = np.random.default_rng(seed)
    parts = [rng.choice(own, min(len(own), MOST_SUPPORT), replace=False) for own in data.by_source(rows)]
    kept = np.concatenate([np.sort(part) for part in parts]).astype(np.int64)
    return data.known.runs.take(kept), np.clip(data.known_residual[kept], -LARGEST_RESIDUAL, LARGEST_RESIDUAL)


def leave_groups_out(
    data: TrainingSet, surrogate: Surrogate, rows: Ints, group: np.ndarray[Any, Any], most: int = FOLDS
) -> HeldOut | None:
    """Other groups of the runs ``rows`` of a source known, the one judged not, by the ``group`` (all runs,) of each.

    The surrogate's own support holds nothing of the source. At most ``most`` parts are left out.
    """
    known, folds = data.known.runs, group_folds(group[rows], most=most)
    return joined_held_out(
        [predict_rows(surrogate, known, data.known_residual, rows[at], rows[fit], True) for fit, at in folds]
    )


def leave_size_out(data: TrainingSet, surrogate: Surrogate, rows: Ints) -> HeldOut | None:
    """As `leave_groups_out` of few runs ``rows``, with groups by sizes, as they are known again (`NewGroups`)."""
    return leave_groups_out(data, surrogate, rows, size_groups(data.known.runs), MOST_FOLDS)


def leave_source_out(
    data: TrainingSet, surrogate: Surrogate, name: str, per_group: int, seed: int = 0, fitted: bool = True,
    predicted: Callable[..., HeldOut | None] = predict_rows, group: str = "group",
) -> HeldOut | None:  # fmt: skip
    """Nothing of the source known but what `measured_split` draws from it, ``per_group`` runs of each group, pooled.

    ``group``: "group", or "source" for so many runs of each cluster and software.
    ``fitted``: its framework's profile is known. ``predicted``: `predict_rows`, or `predict_pairs` for differences.
    Of a source of which a draw leaves few runs to judge there are several draws.
    """
    rows = data.of({name})
    runs, residual = (data.known.runs, data.known_residual) if fitted else (data.unknown.runs, data.unknown_residual)
    groups = getattr(runs, group)[rows]
    first = measured_split(groups, per_group, seed)
    if first is None:
        return None
    draws = min(-(-ENOUGH_JUDGED // len(first[1])), MOST_DRAWS) if per_group else 1
    splits = (measured_split(groups, per_group, seed + draw) for draw in range(draws))
    answers = (predicted(surrogate, runs, residual, rows[s[1]], rows[s[0]], fitted) for s in splits if s is not None)
    return joined_held_out([answer for answer in answers if answer is not None])


def cross_validate(data: TrainingSet, allowed: set[str], seed: int = 0) -> list[Scores]:
    """Every source judged by a surrogate without it, kernels included."""
    scores, of_two_plans = [], functools.partial(predict_pairs, twins=False)
    for name in steps(np.unique(data.source).tolist(), "judging on sources left out"):
        rows, others = data.of({name}), data.of(allowed - {name})
        surrogate = fit(data, others, learn_kernel(data, others, seed), seed)
        leave = functools.partial(leave_source_out, data, surrogate, name, seed=seed)
        held = {kind: leave(count, fitted=known, group=by) for kind, (count, known, by) in LEFT_OUT.items()}
        held["group_out"] = leave_groups_out(data, surrogate, rows, data.known.runs.group)
        pairs = {}
        for kind in OF_PAIRS:
            count, known, by = LEFT_OUT[kind]
            pairs[kind] = leave(count, fitted=known, group=by, predicted=of_two_plans)
        new, (none, unseen) = None, (held["source_out"], held["unseen"])
        if none is not None and unseen is not None:  # how it is predicted by what knew nothing of it
            own, generic = (one.truth - one.mean for one in (none, unseen))
            new = NewSource.of(data.known.take(none.rows), own, data.unknown.take(unseen.rows), generic)
        runs = data.known.runs.take(rows)
        of_sources = [np.flatnonzero(runs.source == one).astype(np.int64) for one in np.unique(runs.source)]
        if max(count_distinct(runs.take(at)) for at in of_sources) < LEAST_RUNS:
            held["by_size"] = leave_size_out(data, surrogate, rows)
        physics = float(np.median(np.abs(np.expm1(-data.known_residual[rows]))))
        of_runs, of_differences = ({k: one for k, one in each.items() if one is not None} for each in (held, pairs))
        scores.append(Scores(name, physics, of_runs, of_differences, new))
    return scores


def _new_groups_of_few(data: TrainingSet, scores: list[Scores], widths: Widths) -> tuple[NewGroups, ...]:
    """A `NewGroups` of each origin with few runs, by what surrogates without it answered for its groups left out."""
    held = [s.held["by_size"] for s in scores if "by_size" in s.held]
    wide = [replace(h, half_width=widths.of_measured(h.known) * h.half_width) for h in held]
    return tuple(judge_new_groups(h, data.known.runs)[0] for h in wide)


def train(
    table: pd.DataFrame, seed: int = 0, base: Surrogate | None = None, for_others: bool = False
) -> tuple[Surrogate, pd.DataFrame]:
    """A calibrated surrogate of all timed rows of ``table``, and its held-out errors per source.

    ``base``: whose kernel and widths rows of one source start from. ``for_others``: for clusters of which no run is
    known, so that what is of one source alone is not learned.

    ``attrs`` of the errors: those of every group (``groups``), every held-out run and its prediction (``rows``), the
    `Use` of each source (``use``), `OwnRuns` (``own``), recipe classes by source (``recipe_classes``), and of the runs
    the `fingerprints` (``learned_rows``); how many were ended early and how many of their bounds count
    (``lower_bounds``). TableError where fewer than 20 are left, or one source without a ``base``.
    """
    alone = base is not None and _origins(timed_runs(table)).nunique() == 1
    data = training_set(table, OWN_BROKEN if alone else BROKEN)
    everything = np.arange(len(data.source)).astype(np.int64)
    names = set(data.source.tolist())
    if len(everything) < LEAST_ROWS or (len(names) < 2 and (base is None or for_others)):
        used = "; ".join(use.to_text() for use in data.use)
        several = base is None or for_others
        needed, got = (" of two sources (column source)", f" rows of {len(names)}") if several else ("", " rows")
        raise TableError(
            f"Training needs at least {LEAST_ROWS} timed rows{needed}; got {len(everything)}{got} "
            f"({used}): add tables, or adapt to the rows with `jointopt predict --measured` instead."
        )
    # one thread: the same bits on every machine, and matrices of a hundred rows gain nothing from more
    with one_blas_thread:
        if len(names) < 2 and base is not None:
            surrogate, judged = _train_one_source(data, base, seed)
        else:
            surrogate = fit(data, everything, learn_kernel(data, everything, seed), seed)
            scores = cross_validate(data, names, seed)
            own = [] if for_others else learn_every_own(data, surrogate.kernel, seed)
            surrogate = with_calibrated_widths(surrogate, scores)
            groups = () if for_others else _new_groups_of_few(data, scores, surrogate.widths)
            surrogate, judged = replace(surrogate, new_groups=groups), score_table(scores, surrogate.widths)
            held = [(s.source, s.held["group_out"]) for s in scores if "group_out" in s.held]
            judged.attrs |= _attributes(data, held, own)
            surrogate = with_own_runs(surrogate, own)
        if not for_others:
            surrogate, judged.attrs["lower_bounds"] = with_lower_bounds(surrogate, table)
    return surrogate, judged


def with_lower_bounds(surrogate: Surrogate, table: pd.DataFrame) -> tuple[Surrogate, tuple[int, int]]:
    """The surrogate that remembers runs of ``table`` that were ended early too; how many there are, and say something.

    Each as what is expected beyond its bound by the process of its source. Kernels, trees and held-out errors are of
    runs that ended alone: what is filled in is no truth to judge by.
    """
    clean = with_results(table)
    ended = clean[is_lower_bound(clean)].reset_index(drop=True)
    if ended.empty:
        return surrogate, (0, 0)
    try:
        priced = price(ended)
    except TableError:
        return surrogate, (len(ended), 0)
    far = impossible_bounds(ended, priced, OWN_BROKEN)
    for line in impossible_bounds_line(far, len(ended), OWN_BROKEN, row_names(table, is_lower_bound(clean))):
        _log.warning("%s", line)
    priced = priced.take(np.flatnonzero(~np.isin(priced.rows, far)).astype(np.int64))
    parts, filled = [surrogate.support], [surrogate.residual]
    for source in np.unique(priced.runs.source).tolist():
        some = priced.take(np.flatnonzero(priced.runs.source == source).astype(np.int64))
        if (own := surrogate.own_of(source)) is not None:
            some = some.under(same_job, own.measured_power)
        mean, half_width, _ = surrogate.conditioned(source, bool(some.fitted[0])).predict(some.runs)
        bound = some.residual(ended["iteration_time_s"].to_numpy(float)[some.rows])
        kept, expected = expected_above(bound, mean, half_width / Z_90)
        parts.append(some.runs.take(kept))
        filled.append(np.clip(expected, -LARGEST_RESIDUAL, LARGEST_RESIDUAL))
    support, residual = joined_runs(parts), np.concatenate(filled)
    return replace(surrogate, support=support, residual=residual), (len(ended), len(support) - len(surrogate.support))


def _train_one_source(data: TrainingSet, base: Surrogate, seed: int) -> tuple[Surrogate, pd.DataFrame]:
    """The same as `train` of runs of one source: what they teach of it, around the kernel of ``base``."""
    found, origin = learn_every_own(data, base.kernel, seed), str(data.source[0])
    supporting = _remembered_runs(data, data.of({origin}), seed)
    surrogate = Surrogate(base.kernel, *supporting, widths=base.widths)
    bare, surrogate = surrogate.without_runs(), with_own_runs(surrogate, found)
    held = [(origin, HeldOut(data.known_residual[f.rows], f.mean, f.half_width, f.rows)) for f in found]
    row: dict[str, Any] = {"source": origin, "physics": float(np.median(np.abs(np.expm1(-data.known_residual))))}
    if (every := joined_held_out([each for _, each in held])) is not None:
        # as weights were chosen: means over what was left out at a time, by the roots of its runs
        counts = [len(f.rows) for f in found]
        for name, of in (("physics", "physics"), ("group out", "time")):
            row[name] = float(np.average([f.own.errors[of] for f in found], weights=counts))
        row |= {"group out covered": every.coverage}
    elif (few := leave_size_out(data, bare, data.of({origin}))) is not None:
        new, few = judge_new_groups(few, data.known.runs)
        surrogate = replace(surrogate, new_groups=(new,))
        held, row = [(origin, few)], row | {"group out": few.median_error, "group out covered": few.coverage}
    table = pd.DataFrame([row, row | {"source": "mean"}])
    table.attrs |= _attributes(data, held, found)
    return surrogate, table


def _attributes(data: TrainingSet, held: list[tuple[str, HeldOut]], own: list[LearnedOwn]) -> dict[str, Any]:
    """What `train` says of errors, sources and rows.

    ``held``: predictions of each source's groups left out, of whose runs ``rows`` has source, group, truth,
    log(measured / physics), and error of the time.
    """
    known, parts, classes = data.known, [pd.DataFrame(columns=HELD_OUT_COLUMNS)], {}
    for name, h in held:
        off = np.abs(np.expm1(h.mean - h.truth))
        rows = {"source": name, "group": known.runs.group[h.rows], "truth": h.truth, "error": off}
        parts.append(pd.DataFrame(rows))
    held_out = pd.concat(parts[1:] or parts, ignore_index=True)
    groups = {
        source: {str(name): float(error) for name, error in rows.groupby("group")["error"].median().round(4).items()}
        for source, rows in held_out.groupby("source")
    }
    for key in np.unique(known.runs.source).tolist():
        works = np.unique(known.work[known.runs.source == key]).tolist()
        names = sorted({known.works[i].job.training.recipe_class or "none" for i in works})
        if names != ["none"]:
            classes[str(key)] = ", ".join(names)
    return {
        "groups": groups, "rows": held_out.to_dict("list"), "own": [found.own for found in own],
        "learned_rows": data.fingerprints, "recipe_classes": classes, "use": data.use,
    }  # fmt: skip


# Training on the many runs of single sources, beside what sources share.


@dataclass(frozen=True)
class LearnedOwn:
    """An `OwnRuns` of the runs ``rows`` of a training set, and its answers (n,) for each without that run's fold.

    ``runs``, ``residual`` (n,): as the physics prices them where limits hold by measured power; ``mean`` is of
    log(measured / physics) before it.
    """

    own: OwnRuns
    rows: Ints
    mean: Floats
    half_width: Floats
    runs: Runs
    residual: Floats


def learn_every_own(data: TrainingSet, shared: Kernel, seed: int = 0) -> list[LearnedOwn]:
    """An `OwnRuns` of each cluster and software stack with at least `LEAST_RUNS` runs that differ."""
    runs, many = data.known.runs, {}
    for key in np.unique(runs.source).tolist():
        rows = np.flatnonzero(runs.source == key).astype(np.int64)
        if count_distinct(runs.take(rows)) >= LEAST_RUNS:
            many[str(key)] = rows
    of_sources = steps(list(many.items()), "learning the own of sources")
    return [learn_source(key, data, rows, shared, seed) for key, rows in of_sources]


def learn_source(key: str, data: TrainingSet, rows: Ints, shared: Kernel, seed: int = 0) -> LearnedOwn:
    """All that the runs ``rows`` of a training set teach of their source, ``key``."""
    some, priced = source_runs(data, rows), data.known.take(rows)
    again, moved, limits_w = priced, 0.0 * some.residual, priced.limits_w
    if (limits_w != priced.limit_w).any():  # by the power of runs under the highest limit those under others are priced
        scale = scale_at_limit(some.log_power, some.static_share, some.static_w, limits_w)
        if scale.log_sd is not None:
            some, again, moved = _priced_again(some, priced, MeasuredPower(scale, priced.limit_w))
    if count_distinct(some.runs) >= LEAST_RUNS:
        shares = OwnRuns(key, clocks=measured_clocks(again.runs)).power_clocks
        own, mean, half_width = learn_own(key, replace(some, swept=swept(again, shares)), shared, seed)
    else:
        own, mean, half_width = judge_shared(key, some, shared, seed)
    own = replace(own, power_limit_w=priced.limit_w)
    return LearnedOwn(own, rows, mean - moved, half_width, some.runs, some.residual)


def swept(priced: Priced, shares: tuple[float, ...]) -> dict[str, Swept]:
    """Time and power of the physics of runs, and of their layouts at ``shares`` of the top clock, of several."""
    if len(shares) < 2:
        return {}
    columns = zip(("time", "power"), ("iteration_time_s", "avg_power_w"), priced.at_shares(shares), strict=True)
    most_w = {"power": priced.limit_w}
    return {name: Swept(shares, priced.physics[column], each, most_w.get(name)) for name, column, each in columns}


def _priced_again(some: SourceRuns, priced: Priced, power: MeasuredPower) -> tuple[SourceRuns, Priced, Floats]:
    """Runs and their pricing where limits hold by measured ``power``, and log(time before / time after) (n,)."""
    again = priced.under(same_job, power)
    moved, of_power = (np.log(priced.physics[n] / again.physics[n]) for n in ("iteration_time_s", "avg_power_w"))
    found = replace(
        some, runs=again.runs, residual=some.residual + moved, log_power=some.log_power + of_power,
        static_share=some.static_share * np.exp(of_power),
        heat={
            name: (ratio + np.log(values / again.physics[name]), again.physics[name])
            for name, (ratio, values) in some.heat.items()
        },
    )  # fmt: skip
    return found, again, moved


def source_runs(data: TrainingSet, rows: Ints) -> SourceRuns:
    """The runs ``rows`` of a training set, all of one source."""
    known = data.known
    gpu = known.works[int(known.work[rows[0]])].job.cluster.gpu
    static_w = gpu.power.static_w if gpu.power else np.nan
    share = static_w / known.physics["avg_power_w"][rows]
    heat = {name: (ratio[rows], known.physics[name][rows]) for name, ratio in data.heat.items()}
    of_power = data.log_power[rows], share, static_w
    own = SourceRuns(known.runs.take(rows), data.known_residual[rows], *of_power, heat, known.limits_w[rows])
    return replace(own, log_memory=data.log_memory[rows])


def with_own_runs(surrogate: Surrogate, found: Sequence[LearnedOwn]) -> Surrogate:
    """The surrogate and all that was learned of single sources, of which more runs are remembered."""
    if not found:
        return surrogate
    of_own = np.isin(surrogate.support.source, [f.own.source for f in found])
    rest = np.flatnonzero(~of_own).astype(np.int64)
    kept = [remembered_rows(np.arange(len(f.rows), dtype=np.int64)) for f in found]
    support = joined_runs([*(f.runs.take(at) for f, at in zip(found, kept, strict=True)), surrogate.support.take(rest)])
    residual = np.concatenate([
        *(np.clip(f.residual[at], -LARGEST_RESIDUAL, LARGEST_RESIDUAL) for f, at in zip(found, kept, strict=True)),
        surrogate.residual[rest],
    ])  # fmt: skip
    return replace(surrogate, own=tuple(f.own for f in found), support=support, residual=residual)
