"""Learning from many runs of one cluster: a kernel of its process, and trees as far as they help.

Every part is judged on models (else groups) of the cluster that it was not trained on, and counts as far as it helps
there: stacking by cross-fitted predictions (Wolpert 1992, Stacked generalization), one convex weight at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import MOST_GPU_POWER_W, Bools, Floats, Ints
from jointopt.core.units import Z_90
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.surrogate.features import HEAT_NAMES, PEAK
from jointopt.surrogate.intervals import BELOW_TOP
from jointopt.surrogate.kernel import CLOCK, Kernel, Runs, joined_runs, learn_alone
from jointopt.surrogate.own_mix import (
    FOLDS,
    LARGEST,
    LEAST_APART,
    LEAST_GAIN,
    LINE_CLOCKS,
    Mix,
    OwnTarget,
    Slopes,
    Swept,
    choose,
    count_distinct,
    cross_fitted,
    cross_fitted_mix,
    cross_fitted_trees,
    fit_slopes,
    folds_by_layout,
    folds_by_model,
    held_half_width,
    inputs,
    median_error,
    mixes,
    model_names,
    peak_cut,
    read,
    signal_share,
    sloped,
    swept_runs,
    units_left_out,
    with_predicted,
    with_trees,
)
from jointopt.surrogate.posterior import Posterior, condition, condition_alone
from jointopt.surrogate.power import MeasuredPower, PowerScale, power_scale
from jointopt.surrogate.trees import boosted, fit_trees

OUTLYING, LEAST_OUTLYING = 8.0, 0.1  # median errors, and a logarithm of time, beyond which a run is an outlier
LEAST_BELOW = 20  # runs below the top clock, below which nothing is learned of it
LEAST_JUDGED = 10  # runs of which a median error is stated
LEAST_RUNS = 50  # of one source, below which the process of all sources answers alone
SUPPORT = 1000  # runs that the process remembers; trees see all
BROKEN = 2.0  # times slower or faster than predicted: a run that went wrong
# Errors on what was left out, by quantity and by what runs are, which cards name together and tables in words.
JUDGED = ("time", "power", "energy", "memory")
PARTS = {
    "of new": "models not seen", "at top": "  of these, at the top clock", "below top": "  below it",
    "of known": "models with runs",
}  # fmt: skip
RELEARNED = 400  # runs, up to which hyperparameters are learned anew without each fold, as they then see much of it


@dataclass(frozen=True)
class OwnRuns:
    """Learned from the many runs of ``source``: their time, and power, peaks and temperature where they were measured.

    The process is the Gaussian process of their time; "new" models are those without known runs.
    """

    source: str
    kernel: Kernel | None = None  # None: that of all sources does better
    time: Mix = field(default_factory=Mix)
    width: float = 1.0  # conformal factor on the process's half-width, for new models
    width_of_known: float | None = None  # the same for models with known runs; None: an earlier version had one for all
    power: PowerScale = field(default_factory=PowerScale)
    power_mix: Mix = field(default_factory=Mix)
    clocks: tuple[float, float] = (1.0, 1.0)  # lowest and highest share of the top clock of runs that were learned from
    errors: Mapping[str, float] = field(default_factory=dict)  # median errors on what was left out, by part
    held_out: str = ""  # what was left out at a time: models, groups or runs
    importance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of features by quantity, as `mixes`
    power_limit_w: float | None = None  # the highest that runs were under; None: an earlier version knew of none
    heat: Mapping[str, OwnTarget] = field(default_factory=dict)  # peak power and temperature, keys of `HEAT_NAMES`
    as_sure: bool = False  # on new models the process counts by `signal_share`
    of_new: float = 1.0  # weight of the process on new models, 0 where the physics alone does better
    of_known: float = 1.0  # the same on models with known runs
    group_errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # as ``errors``, but of time

    outlying: int = 0  # runs that count less, since others of their models say otherwise by more than `outlying_from`
    outlying_from: float = 0.0  # a share of the time

    @property
    def in_part(self) -> bool:
        """Whether the process counts in part only, or not, on any model."""
        return self.as_sure or min(self.of_new, self.of_known) < 1.0

    @property
    def measured_limit_w(self) -> float:
        """The limit in W that power was measured under: that of the GPU as it is sold where it is not known."""
        gpu = known_gpu(Source.parse(self.source).gpu)
        sold_w = gpu.tdp_w if gpu is not None and gpu.tdp_w else MOST_GPU_POWER_W
        return sold_w if self.power_limit_w is None else self.power_limit_w

    @property
    def measured_power(self) -> MeasuredPower | None:
        """Power by factors alone, by which runs under other limits are priced; None where it was not learned."""
        return MeasuredPower(self.power, self.measured_limit_w) if self.knows_power else None

    def process(self, shared: Kernel, runs: Runs, residual: Floats) -> Posterior:
        """The process after runs of the source; ``shared``: the kernel of all sources."""
        if self.kernel is None:
            return condition(shared, runs, residual)
        return condition_alone(self.kernel, runs, residual)

    def mean(self, process: Posterior, runs: Runs, known: Runs) -> Floats:
        """log(measured / physics) (n,) of ``runs`` by the process after those ``known``, and by trees."""
        runs = self.within_clocks(runs)
        if self.as_sure and _of_new_models(runs, known).any():
            mean, deviation = process.predict(runs)
        else:  # deviations of many plans take time
            mean, deviation = process.mean(runs), np.zeros(len(runs))
        return self.time(self.counted(mean, deviation, runs, known), runs)

    def within_clocks(self, runs: Runs) -> Runs:
        """The runs, at the nearest clock of those that were measured."""
        return replace(runs, features=dict(runs.features) | {CLOCK: np.clip(runs.matrix([CLOCK])[:, 0], *self.clocks)})

    def counted(self, mean: Floats, deviation: Floats, runs: Runs, known: Runs) -> Floats:
        """The ``mean`` (n,) of the process times the weight that it has on each run, by its ``deviation`` (n,)."""
        if not self.in_part:
            return mean
        of_new = self.of_new * (signal_share(mean, Z_90 * deviation) if self.as_sure else 1.0)
        return np.asarray(np.where(_of_new_models(runs, known), of_new, self.of_known) * mean)

    def widths(self, runs: Runs, known: Runs) -> Floats:
        """Conformal factors (n,) on the process's half-widths: those of models of which runs are ``known``, or not."""
        if self.width_of_known is None:
            return np.full(len(runs), self.width)
        return np.where(_of_new_models(runs, known), self.width, self.width_of_known)

    @property
    def knows_power(self) -> bool:
        """Whether power was measured often enough to be learned."""
        return self.power.log_sd is not None

    @property
    def mixes(self) -> dict[str, Mix]:
        """Trees by quantity, under the names of cards and files."""
        return {"time": self.time, "power": self.power_mix} | {name: one.mix for name, one in self.heat.items()}

    @property
    def power_clocks(self) -> tuple[float, ...]:
        """Shares of the top clock at which the learned power is read: over all that were measured, the lowest first."""
        low, high = self.clocks
        return tuple(np.linspace(low, high, LINE_CLOCKS).tolist()) if high - low > LEAST_APART else (high,)

    @property
    def targets(self) -> Mapping[str, OwnTarget]:
        """Power and heat as far as they were learned, by what card and files call them."""
        return {"power": OwnTarget(self.power, self.power_mix)} | dict(self.heat) if self.knows_power else self.heat

    def log_power(self, runs: Runs, watts: Floats) -> Floats:
        """log(measured / predicted) average power (n,) of ``runs``, which the physics has at ``watts`` (n,)."""
        return self.targets["power"].log_ratio(runs, watts)

    def to_text(self) -> str:
        """A line per quantity: the weight of each part, and median errors on what was left out without and with it."""
        more = ", of other models as far as it is sure" * (self.as_sure and self.of_new > 0.0)
        more += f", {self.of_known:g} of models with runs" * (self.of_known != self.of_new)
        kernel = f"process {{}} ({'own' if self.kernel else 'shared'} kernel{more})"
        lines = [f"time: {self._gain(self.time, kernel, ('process', 'time', 'physics'), self.of_new)}"]
        for of, target in self.targets.items():
            if (name := HEAT_NAMES.get(of, of)) in self.errors:
                parts = f"{name} process", name, f"{name} physics"
                lines.append(f"{name}: {self._gain(target.mix, 'scaled physics {}', parts)}")
        lines += self._buckets
        if self.outlying:
            runs = f"{self.outlying:,} run{'s' * (self.outlying > 1)}"
            lines.append(f"{runs} count less: over {self.outlying_from:.0%} from what others of their models say")
        return "\n  ".join([f"{Source.parse(self.source).to_text()}:", *lines])

    @property
    def _buckets(self) -> list[str]:
        """A table of median errors on runs left out: a row for each of `PARTS`, of the quantities that were judged."""
        percents = {name: f"{100.0 * error:.1f}" for name, error in self.errors.items()}
        known = [of for of in JUDGED if any(f"{of} {part}" in percents for part in PARTS)]
        table = {"median errors on runs left out, %": known} if known else {}
        for part, words in PARTS.items():
            found = [percents.get(f"{of} {part}", "-") for of in known]
            if {*found} - {"-"}:
                table[words.replace("models", "groups" if self.held_out == "groups" else "models")] = found
        return [f"{head:33}{''.join(f'{cell:>8}' for cell in cells)}" for head, cells in table.items()]

    def _gain(self, mix: Mix, others: str, parts: Sequence[str], counts: float = 1.0) -> str:
        """``process 0.4, trees 0.6: 5.1 -> 2.9 % on held-out models``; ``others``: what ``mix`` is beside, and counts.

        ``parts``: names of the errors without trees, with them, and of the physics alone.
        """
        before, after, physics = (f"{100.0 * self.errors[part]:.1f}" for part in parts)
        share = f"{counts * (1.0 if mix.beyond else 1.0 - mix.weight):g}"
        trees = f"trees {mix.weight:g}" + " on its rest" * mix.beyond
        return (
            f"{others.format(share)}, {trees}: {before} -> {after} % on held-out {self.held_out} (physics {physics} %)"
        )


def _of_new_models(runs: Runs, known: Runs) -> Bools:
    """Whether no run of the model of each of ``runs`` is among those ``known``, (n,)."""
    return ~np.isin(model_names(runs), model_names(known))


@dataclass(frozen=True)
class SourceRuns:
    """The n runs of one source that are learned from; NaN where something was not measured."""

    runs: Runs
    residual: Floats  # (n,) log(measured / physics) of time
    log_power: Floats  # (n,) the same of mean power
    static_share: Floats  # of the physics' power, in what a GPU draws whatever runs
    static_w: float
    heat: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)  # as residual, and by the physics
    limits_w: Floats | None = None  # power limits of the GPUs, None: unknown
    swept: Mapping[str, Swept] = field(default_factory=dict)  # time and power by the physics at several clocks
    log_memory: Floats | None = None  # (n,) log(measured / physics) of peak memory, of which nothing is learned

    @property
    def of_physics(self) -> dict[str, tuple[Floats, Floats]]:
        """log(measured / physics) (n,) of power and heat by name, and what the physics says, (n,)."""
        return {"power": (self.log_power, self.static_w / self.static_share)} | dict(self.heat)

    def take(self, rows: Ints) -> SourceRuns:
        """The runs at those positions."""
        heat = {name: (ratio[rows], values[rows]) for name, (ratio, values) in self.heat.items()}
        of_power = self.log_power[rows], self.static_share[rows], self.static_w
        limits_w = self.limits_w if self.limits_w is None else self.limits_w[rows]
        swept = {name: of.take(rows) for name, of in self.swept.items()}
        log_memory = self.log_memory if self.log_memory is None else self.log_memory[rows]
        return SourceRuns(self.runs.take(rows), self.residual[rows], *of_power, heat, limits_w, swept, log_memory)


def learn_own(source: str, measured: SourceRuns, shared: Kernel, seed: int = 0) -> tuple[OwnRuns, Floats, Floats]:
    """An `OwnRuns` of the runs of a source, and cross-fitted answers (n,): log(measured / physics) and its half-width.

    ``shared``: the kernel of all sources, which stays where one relearned on these runs does not help.
    """
    runs, residual, swept = measured.runs, measured.residual, measured.swept.get("time")
    fold, held_out = folds_by_model(runs, seed)
    own = OwnRuns(source, held_out=held_out, clocks=measured_clocks(runs))
    found, process, deviation, errors = best_process(own, measured, shared, fold, seed)
    singly, layouts = folds_by_layout(runs, seed)
    near, near_deviation = cross_fitted_process(found, shared, measured, singly, seed)
    found = replace(found, of_known=_helps(read(swept, near), residual, singly))
    trees = [cross_fitted_trees(runs, residual, of, runs.time_names, swept, seed) for of in (fold, singly)]
    found, (mixed, known), errors["time"] = best_process_weight(
        found, trees, (process, near), deviation, measured, (fold, singly)
    )
    found = replace(found, time=with_trees(found.time, runs, residual, seed), **outlying_runs(known - residual))
    deviation, near_deviation = deviation.mean(axis=0), near_deviation.mean(axis=0)
    width = held_half_width((mixed - residual) / (Z_90 * deviation), len(np.unique(units_left_out(runs)[0])))
    of_known = held_half_width((known - residual) / (Z_90 * near_deviation), layouts)
    found = replace(found, width=width, width_of_known=of_known)
    found, more, power = learn_targets(found, measured, seed)
    errors |= more | bucket_errors(measured, {"of new": (mixed, power[0]), "of known": (known, power[1])})
    errors = {name: round(value, 4) for name, value in errors.items()}
    seen = {of: with_predicted(runs, values) for of, (_, values) in measured.of_physics.items()}
    importance = {of: sizes for of, mix in found.mixes.items() if (sizes := mix.importance(seen.get(of, runs)))}
    return replace(found, errors=errors, importance=importance), mixed, Z_90 * found.width * deviation


def outlying_runs(error: Floats) -> dict[str, Any]:
    """Fields of `OwnRuns` on runs whose cross-fitted ``error`` (n,) is far off beside that of most.

    Process and trees count them less by themselves (noise of Cauchy's, a Huber loss); a person should look at them.
    """
    off = np.abs(error)
    far = max(OUTLYING * float(np.median(off)), LEAST_OUTLYING)
    return {"outlying": int((off > far).sum()), "outlying_from": round(float(np.expm1(far)), 4)}


def measured_clocks(runs: Runs) -> tuple[float, float]:
    """Lowest and highest share of the top clock of nearly all runs; the highest alone where few are below the top."""
    clock = runs.features[CLOCK]
    low, high = np.quantile(clock, (0.02, 0.98)).tolist()
    return (low if (clock < BELOW_TOP).sum() >= LEAST_BELOW else high), high


def bucket_errors(measured: SourceRuns, answers: Mapping[str, tuple[Floats, Floats]]) -> dict[str, float]:
    """Median errors by `JUDGED` and `PARTS`, of cross-fitted answers (n,) on log(measured / physics) of time and power.

    ``answers``: of runs whose models are not among the others, and of runs whose are. Energy is time and power
    together, against what was measured of both; memory is as the physics has it. Clocks are distinguished of the first.
    """
    top, found = measured.runs.features[CLOCK] >= BELOW_TOP, dict[str, float]()
    for of, (time, power) in answers.items():
        each = {"time": time - measured.residual, "power": power - measured.log_power}
        each["energy"] = each["time"] + each["power"]
        each |= {} if measured.log_memory is None else {"memory": -measured.log_memory}
        for quantity, off in each.items():
            parts = {of: top | ~top} | ({"at top": top, "below top": ~top} if of == "of new" and not top.all() else {})
            for part, which in parts.items():
                if (which & np.isfinite(off)).sum() >= LEAST_JUDGED:
                    error = np.abs(np.expm1(off[which & np.isfinite(off)]))
                    found[f"{quantity} {part}"] = float(np.median(error))
    return found


def judge_shared(source: str, measured: SourceRuns, shared: Kernel, seed: int = 0) -> tuple[OwnRuns, Floats, Floats]:
    """As `learn_own` of runs too few to learn a kernel or trees of: the process of all sources after them."""
    fold, held_out = folds_by_model(measured.runs, seed)
    own = OwnRuns(source, held_out=held_out)
    (process,), deviation = cross_fitted_process(own, shared, replace(measured, swept={}), fold, seed)
    counts = _helps(process, measured.residual, fold)
    answers = {"physics": 0.0 * process, "process": process, "time": counts * process}
    errors = {name: round(median_error(of - measured.residual, fold), 4) for name, of in answers.items()}
    return replace(own, errors=errors, of_new=counts, of_known=counts), answers["time"], Z_90 * deviation[0]


def _helps(process: Floats, residual: Floats, fold: Ints) -> float:
    """1 where cross-fitted answers (n,) of a process are nearer to what was measured than the physics alone, else 0."""
    return float(median_error(process - residual, fold) < median_error(-residual, fold))


def best_process(
    own: OwnRuns, measured: SourceRuns, shared: Kernel, fold: Ints, seed: int
) -> tuple[OwnRuns, Floats, Floats, dict[str, float]]:
    """``own`` with the kernel that does better, cross-fitted mean and standard deviation (k, n), and errors."""
    residual, swept = measured.residual, measured.swept.get("time")
    process, deviation = cross_fitted_process(own, shared, measured, fold, seed)
    before = median_error(read(swept, process) - residual, fold)
    errors = {"physics": median_error(-residual, fold), "process": before}
    relearned = replace(own, kernel=learn_alone(measured.runs, residual, shared, seed))
    mean, spread = cross_fitted_process(relearned, shared, measured, fold, seed)
    if (error := median_error(read(swept, mean) - residual, fold)) < (1.0 - LEAST_GAIN) * before:
        return relearned, mean, spread, errors | {"kernel": error}
    return own, process, deviation, errors


def best_process_weight(
    own: OwnRuns, trees: Sequence[Floats], process: tuple[Floats, Floats], deviation: Floats, measured: SourceRuns,
    folds: tuple[Ints, Ints],
) -> tuple[OwnRuns, Floats, float]:  # fmt: skip
    """(``own`` with the best weight of the process and mix with trees, answers (2, n), the error of the first).

    Judged on models and on layouts left out, by ``folds`` over which ``trees`` and ``process`` were cross-fitted,
    (k, n) each. On models the process counts whole, by `signal_share` of its ``deviation`` (k, n) or not at all. What
    is learned of few models holds in part for the next, as far as the process is sure: of nanotron's runs whose
    software is in no odd state, predicted from its other models, 4.1 % instead of 5.9
    (docs/appendix/surrogate-experiments.md).
    """
    swept, (far, near) = measured.swept.get("time"), process
    parts = [(own, far), (replace(own, of_new=0.0), 0.0 * far)]
    if own.held_out == "models":
        parts.insert(1, (replace(own, as_sure=True), signal_share(far, Z_90 * deviation) * far))
    found = [
        (replace(part, time=mix), mix, answer)
        for part, mean in parts
        for mix, answer in mixes((mean, own.of_known * near), trees, measured.runs.time_names, swept)
    ]
    return choose(found, measured.residual, folds)


def cross_fitted_process(
    own: OwnRuns, shared: Kernel, measured: SourceRuns, fold: Ints, seed: int
) -> tuple[Floats, Floats]:
    """Cross-fitted mean and standard deviation (k, n) of the process, at each clock that runs were swept over."""
    runs, residual, swept = measured.runs, measured.residual, measured.swept.get("time")

    def answer(fit: Ints, at: Ints) -> Floats:
        kept, here = remembered_rows(fit), own
        if own.kernel is not None and len(runs) <= RELEARNED:
            here = replace(own, kernel=learn_alone(runs.take(fit), residual[fit], shared, seed, own.kernel))
        process = here.process(shared, runs.take(kept), residual[kept])
        return np.stack(process.predict(swept_runs(runs.take(at), swept))).reshape(2, -1, len(at))

    mean, deviation = cross_fitted(fold, answer)
    return mean, deviation


def residual_by_own_runs(
    plans: Runs, index: Ints, residual: Floats, known: tuple[Runs, Floats] | None, shared: Kernel, seed: int = 0
) -> Floats:
    """log(measured / physics) (n,) of plans by runs of plans ``index`` (m,), ``residual`` (m,), and of other jobs.

    At plans that ran it is what runs say of them of which a fifth is left out at a time, so that it can be judged there
    beside other predictions. ``known``: runs of other jobs on the cluster and their residuals. By the process of all
    sources; from `LEAST_RUNS` in all on by one of the cluster's own and trees, as far as they help on jobs left out
    (`learn_own`).
    """
    runs, y = plans.take(index), residual
    if known is not None:
        sound = np.flatnonzero(np.abs(known[1]) < np.log(BROKEN)).astype(np.int64)
        drawn = np.sort(np.random.default_rng(seed).permutation(sound)[: max(SUPPORT - len(index), 0)])
        runs, y = joined_runs([known[0].take(drawn), runs]), np.concatenate([known[1][drawn], residual])
    blank = np.full(len(y), np.nan)
    every, own = SourceRuns(runs, y, blank, blank, np.nan), OwnRuns(str(plans.source[0]))
    if count_distinct(runs) >= LEAST_RUNS:
        own = learn_own(own.source, every, shared, seed)[0]
    fold = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    near, _ = cross_fitted_process(own, shared, every, fold, seed)
    found = own.mean(own.process(shared, runs, y), plans, runs)
    found[index] = cross_fitted_mix(own.time, runs, y, near, fold, None, seed)[-len(index) :]
    return found


def remembered_rows(rows: Ints, seed: int = 0) -> Ints:
    """At most `SUPPORT` of these rows, which the process remembers."""
    if len(rows) <= SUPPORT:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, SUPPORT, replace=False)).astype(np.int64)


def learn_targets(
    own: OwnRuns, measured: SourceRuns, seed: int
) -> tuple[OwnRuns, dict[str, float], tuple[Floats, Floats]]:
    """(``own`` with power, peak power and temperature where enough runs have them, held-out errors, answers of power).

    The last: cross-fitted over models and over layouts, (n,) each, NaN where it was not learned.
    """
    errors, by_group, targets = dict[str, float](), dict(own.group_errors), dict[str, OwnTarget]()
    power = np.full((2, len(measured.residual)), np.nan)
    for name, (log_ratio, values) in measured.of_physics.items():
        rows = np.flatnonzero(np.isfinite(log_ratio) & np.isfinite(values)).astype(np.int64)
        if len(rows) >= LEAST_RUNS:
            static_w = np.nan if name in HEAT_NAMES and name != PEAK else measured.static_w  # a temperature has no line
            some, of_rows = replace(measured.take(rows), static_w=static_w), (log_ratio[rows], values[rows])
            called = HEAT_NAMES.get(name, name)
            learner = TargetLearner(called, some, *of_rows, some.swept.get(name), seed)
            targets[name], answer, more = learner.learn()
            off, groups = np.abs(np.expm1(answer[0] - of_rows[0])), some.runs.group
            by_group[called] = {
                str(group): round(float(np.median(off[groups == group])), 4) for group in np.unique(groups).tolist()
            }
            errors |= more
            if name == "power":
                power[:, rows] = answer
    own = replace(own, group_errors=by_group)
    if (found := targets.pop("power", None)) is not None:
        own = replace(own, power=found.scale, power_mix=found.mix)
    return replace(own, heat=targets), errors, (power[0], power[1])


@dataclass(frozen=True)
class TargetLearner:
    """Learns a quantity ``name`` of runs, of which ``log_ratio`` (n,) is log(measured / physics).

    ``values`` (n,): the physics' own, of which ``static_w`` of ``measured`` is drawn whatever runs.
    """

    name: str
    measured: SourceRuns
    log_ratio: Floats
    values: Floats
    swept: Swept | None
    seed: int

    def scale(self, rows: Ints) -> PowerScale:
        """A line in the physics alone, of some of the runs."""
        static_w = self.measured.static_w
        return power_scale(self.log_ratio[rows], static_w / self.values[rows], static_w)

    @functools.cached_property
    def runs(self) -> Runs:
        """The runs, with what the physics says of them among their features."""
        return with_predicted(self.measured.runs, self.values)

    def shown(self, rows: Ints, scale: PowerScale) -> tuple[Floats, Floats, Slopes]:
        """What trees of some of the runs are shown: features, and the rest of their line ``scale`` and of slopes."""
        runs = self.runs.take(rows)
        rest = np.clip(self.log_ratio[rows] - np.log(scale.over(self.values[rows])), -LARGEST, LARGEST)
        slopes = fit_slopes(runs, rest)
        return inputs(runs, runs.power_names), rest - sloped(slopes, runs).sum(axis=1), slopes

    def cross_fitted(self, fold: Ints) -> tuple[Floats, Floats, Floats]:
        """Answers by a line at each clock (k, n) and at those of the runs (n,), and by trees at each clock (k, n)."""
        every = self.values[None] if self.swept is None else self.swept.at_shares

        def answer(fit: Ints, at: Ints) -> Floats:
            scale = self.scale(fit)
            lines = np.log(scale.over(np.concatenate([every[:, at], self.values[None, at]])))
            runs = with_predicted(swept_runs(self.measured.runs.take(at), self.swept), every[:, at].ravel())
            *shown, slopes = self.shown(fit, scale)
            trees = boosted(*shown, random_state=self.seed)
            found = np.asarray(trees.predict(inputs(runs, runs.power_names)), np.float64)
            found += sloped(slopes, runs).sum(axis=1)
            return np.concatenate([lines, found.reshape(-1, len(at))])

        found, count = cross_fitted(fold, answer), len(every)
        return found[:count], found[count], found[count + 1 :]

    def learn(self) -> tuple[OwnTarget, Floats, dict[str, float]]:
        """The quantity, cross-fitted answers (2, n) of models and of layouts left out, and errors of the first.

        Peaks are cut at their limits.
        """
        runs, log_ratio, all_rows = self.measured.runs, self.log_ratio, np.arange(len(self.values), dtype=np.int64)
        folds = folds_by_model(runs, self.seed)[0], folds_by_layout(runs, self.seed)[0]
        limits_w = self.measured.limits_w if self.name == HEAT_NAMES[PEAK] else None
        overshoot, most = peak_cut(folds[0], log_ratio, self.values, limits_w)
        every, lines, trees = zip(*map(self.cross_fitted, folds), strict=True)
        found = mixes(every, trees, self.runs.power_names, self.swept, beyond=True)
        mix, answer, error = choose([(one, one, np.minimum(of, most)) for one, of in found], log_ratio, folds)
        errors = {f"{self.name} physics": -log_ratio, f"{self.name} process": np.minimum(lines[0], most) - log_ratio}
        spread = held_half_width(answer[0] - log_ratio, len(np.unique(units_left_out(runs)[0]))) / Z_90
        scale = self.scale(all_rows)
        *shown, slopes = self.shown(all_rows, scale)
        fitted = fit_trees(*shown, random_state=self.seed) if mix.weight else None
        mix = replace(mix, trees=fitted, slopes=slopes) if fitted else Mix()
        target = OwnTarget(replace(scale, log_sd=spread), mix, overshoot)
        of_parts = {key: median_error(each, folds[0]) for key, each in errors.items()}
        return target, answer, of_parts | {self.name: error}
