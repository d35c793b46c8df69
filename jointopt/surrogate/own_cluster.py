"""Learning from many runs of one cluster: a kernel of its process, and trees as far as they help.

Every part is judged on models (else groups) of the cluster that it was not trained on, and counts as far as it helps
there: stacking by cross-fitted predictions (Wolpert 1992, Stacked generalization), one convex weight at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import MOST_GPU_POWER_W, Bools, Floats, Ints
from jointopt.core.units import Z_90
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.surrogate.clock_response import CLOCK, LearnedResponse
from jointopt.surrogate.features import HEAT_NAMES, PEAK
from jointopt.surrogate.kernel import Kernel, Runs, joined_runs, learn_alone
from jointopt.surrogate.own_mix import (
    FOLDS,
    LEAST_APART,
    LEAST_GAIN,
    LINE_CLOCKS,
    Mix,
    OwnTarget,
    best_mix,
    count_distinct,
    cross_fitted,
    cross_fitted_mix,
    cross_fitted_trees,
    folds_by_layout,
    folds_by_model,
    held_half_width,
    median_error,
    model_names,
    peak_cut,
    signal_share,
    units_left_out,
    with_trees,
)
from jointopt.surrogate.posterior import Posterior, condition, condition_alone
from jointopt.surrogate.power import MeasuredPower, PowerScale, power_scale

LEAST_RUNS = 50  # of one source, below which the process of all sources answers alone
SUPPORT = 1000  # runs that the process remembers; trees see all
BROKEN = 2.0  # times slower or faster than predicted: a run that went wrong
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
    response: LearnedResponse | None = None  # how kernels follow the clock; None: as in the physics
    off_below: float = 0.0  # median error of runs below the top clock where these were not learned from
    clock_remark: str = ""  # why they were not
    power_limit_w: float | None = None  # the highest that runs were under; None: an earlier version knew of none
    heat: Mapping[str, OwnTarget] = field(default_factory=dict)  # peak power and temperature, keys of `HEAT_NAMES`
    as_sure: bool = False  # on new models the process counts by `signal_share`
    of_new: float = 1.0  # weight of the process on new models, 0 where the physics alone does better
    of_known: float = 1.0  # the same on models with known runs
    group_errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # as ``errors``, but of time

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
        if self.as_sure and _of_new_models(runs, known).any():
            mean, deviation = process.predict(runs)
        else:  # deviations of many plans take time
            mean, deviation = process.mean(runs), np.zeros(len(runs))
        return self.time(self.counted(mean, deviation, runs, known), runs)

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
        if (learned := self.response) is not None:
            gain = f"{100.0 * learned.before:.1f} -> {100.0 * learned.after:.1f} %"
            lines.append(f"{learned.response.words} follow the clock (below the top clock {gain})")
        lines += [self.clock_remark] * bool(self.clock_remark)
        return "\n  ".join([f"{Source.parse(self.source).to_text()}:", *lines])

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

    def take(self, rows: Ints) -> SourceRuns:
        """The runs at those positions."""
        heat = {name: (ratio[rows], values[rows]) for name, (ratio, values) in self.heat.items()}
        of_power = self.log_power[rows], self.static_share[rows], self.static_w
        limits_w = self.limits_w if self.limits_w is None else self.limits_w[rows]
        return SourceRuns(self.runs.take(rows), self.residual[rows], *of_power, heat, limits_w)


def learn_own(source: str, measured: SourceRuns, shared: Kernel, seed: int = 0) -> tuple[OwnRuns, Floats, Floats]:
    """An `OwnRuns` of the runs of a source, and cross-fitted answers (n,): log(measured / physics) and its half-width.

    ``shared``: the kernel of all sources, which stays where one relearned on these runs does not help.
    """
    runs, residual = measured.runs, measured.residual
    fold, held_out = folds_by_model(runs, seed)
    found, process, deviation, errors = best_process(OwnRuns(source, held_out=held_out), measured, shared, fold, seed)
    singly, layouts = folds_by_layout(runs, seed)
    near, near_deviation = cross_fitted_process(found, shared, measured, singly, seed)
    found = replace(found, of_known=_helps(near, residual, singly))
    near = found.of_known * near
    names = tuple(name for name in runs.names if name != CLOCK)
    trees = [cross_fitted_trees(runs, residual, near, fold, names, beyond, seed) for beyond in (False, True)]
    found, mixed, errors["time"] = best_process_weight(found, trees, names, process, deviation, residual, fold)
    found = replace(found, time=with_trees(found.time, runs, residual, near, seed))
    low, high = np.quantile(runs.features[CLOCK], (0.02, 0.98)).tolist()
    width = held_half_width((mixed - residual) / (Z_90 * deviation), len(np.unique(units_left_out(runs)[0])))
    of_known = (cross_fitted_mix(found.time, runs, residual, near, singly, seed) - residual) / (Z_90 * near_deviation)
    found = replace(found, width=width, clocks=(low, high), width_of_known=held_half_width(of_known, layouts))
    found, more = learn_targets(found, measured, seed)
    errors = {name: round(value, 4) for name, value in (errors | more).items()}
    importance = {of: sizes for of, mix in found.mixes.items() if (sizes := mix.importance(runs))}
    return replace(found, errors=errors, importance=importance), mixed, Z_90 * found.width * deviation


def judge_shared(source: str, measured: SourceRuns, shared: Kernel, seed: int = 0) -> tuple[OwnRuns, Floats, Floats]:
    """As `learn_own` of runs too few to learn a kernel or trees of: the process of all sources after them."""
    fold, held_out = folds_by_model(measured.runs, seed)
    own = OwnRuns(source, held_out=held_out)
    process, deviation = cross_fitted_process(own, shared, measured, fold, seed)
    counts = _helps(process, measured.residual, fold)
    answers = {"physics": 0.0 * process, "process": process, "time": counts * process}
    errors = {name: round(median_error(of - measured.residual, fold), 4) for name, of in answers.items()}
    return replace(own, errors=errors, of_new=counts, of_known=counts), answers["time"], Z_90 * deviation


def _helps(process: Floats, residual: Floats, fold: Ints) -> float:
    """1 where cross-fitted answers (n,) of a process are nearer to what was measured than the physics alone, else 0."""
    return float(median_error(process - residual, fold) < median_error(-residual, fold))


def best_process(
    own: OwnRuns, measured: SourceRuns, shared: Kernel, fold: Ints, seed: int
) -> tuple[OwnRuns, Floats, Floats, dict[str, float]]:
    """``own`` with the kernel that does better, cross-fitted mean and standard deviation (n,), and errors."""
    residual = measured.residual
    process, deviation = cross_fitted_process(own, shared, measured, fold, seed)
    errors = {"physics": median_error(-residual, fold), "process": median_error(process - residual, fold)}
    relearned = replace(own, kernel=learn_alone(measured.runs, residual, shared, seed))
    mean, spread = cross_fitted_process(relearned, shared, measured, fold, seed)
    if (error := median_error(mean - residual, fold)) < (1.0 - LEAST_GAIN) * errors["process"]:
        return relearned, mean, spread, errors | {"kernel": error}
    return own, process, deviation, errors


def best_process_weight(
    own: OwnRuns, trees: Sequence[Floats], names: tuple[str, ...], process: Floats, deviation: Floats,
    residual: Floats, fold: Ints,
) -> tuple[OwnRuns, Floats, float]:  # fmt: skip
    """(``own`` with the best weight of the process and mix with trees, cross-fitted answers (n,), their error).

    Judged on what was left out; the process counts whole, by `signal_share` or not at all. What is learned of few
    models holds in part for the next, as far as the process is sure: of nanotron's runs whose software is in no odd
    state, predicted from its other models, 4.1 % instead of 5.9 (docs/appendix/surrogate-experiments.md).
    """
    mix, answer, best = best_mix(process, trees, residual, fold, names)
    found = own, mix, answer
    in_part = signal_share(process, Z_90 * deviation) * process
    less = [(replace(own, as_sure=True), in_part)] if own.held_out == "models" else []
    for smaller, part in [*less, (replace(own, of_new=0.0), 0.0 * process)]:
        mix, answer, error = best_mix(part, trees, residual, fold, names)
        more = LEAST_GAIN * (mix.weight > found[1].weight)  # trees that only make up for the part that does not count
        if error < (1.0 - more) * best:
            found, best = (smaller, mix, answer), error
    return replace(found[0], time=found[1]), found[2], best


def cross_fitted_process(
    own: OwnRuns, shared: Kernel, measured: SourceRuns, fold: Ints, seed: int
) -> tuple[Floats, Floats]:
    """Cross-fitted mean and standard deviation (n,) of the process."""
    runs, residual, deviation = measured.runs, measured.residual, np.empty(len(fold))

    def answer(fit: Ints, at: Ints) -> Floats:
        kept, here = remembered_rows(fit), own
        if own.kernel is not None and len(runs) <= RELEARNED:
            here = replace(own, kernel=learn_alone(runs.take(fit), residual[fit], shared, seed, own.kernel))
        mean, deviation[at] = here.process(shared, runs.take(kept), residual[kept]).predict(runs.take(at))
        return mean

    return cross_fitted(fold, answer), deviation


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
    found[index] = cross_fitted_mix(own.time, runs, y, near, fold, seed)[-len(index) :]
    return found


def remembered_rows(rows: Ints, seed: int = 0) -> Ints:
    """At most `SUPPORT` of these rows, which the process remembers."""
    if len(rows) <= SUPPORT:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, SUPPORT, replace=False)).astype(np.int64)


def learn_targets(own: OwnRuns, measured: SourceRuns, seed: int) -> tuple[OwnRuns, dict[str, float]]:
    """``own`` with power, peak power and temperature where enough runs have them, and the held-out errors of these."""
    errors, by_group, targets = dict[str, float](), dict(own.group_errors), dict[str, OwnTarget]()
    of_physics = {"power": (measured.log_power, measured.static_w / measured.static_share)} | dict(measured.heat)
    for name, (log_ratio, values) in of_physics.items():
        rows = np.flatnonzero(np.isfinite(log_ratio) & np.isfinite(values)).astype(np.int64)
        if len(rows) >= LEAST_RUNS:
            static_w = np.nan if name in HEAT_NAMES and name != PEAK else measured.static_w  # a temperature has no line
            some, of_rows = replace(measured.take(rows), static_w=static_w), (log_ratio[rows], values[rows])
            called = HEAT_NAMES.get(name, name)
            targets[name], more, by_group[called] = learn_target(called, some, *of_rows, seed)
            errors |= more
    own = replace(own, group_errors=by_group)
    if (power := targets.pop("power", None)) is not None:
        own = replace(own, power=power.scale, power_mix=power.mix)
    return replace(own, heat=targets), errors


def learn_target(
    name: str, measured: SourceRuns, log_ratio: Floats, values: Floats, seed: int
) -> tuple[OwnTarget, dict[str, float], dict[str, float]]:
    """A quantity learned of runs with log(measured / physics) ``log_ratio`` (n,) of it, its held-out errors, by group.

    ``values`` (n,): the physics' own, of which ``static_w`` of ``measured`` is drawn whatever runs. Peaks are cut at
    their limits.
    """
    runs, share = measured.runs, measured.static_w / values
    fold, _ = folds_by_model(runs, seed)

    def scaled(fit: Ints, at: Ints) -> Floats:
        return np.log(power_scale(log_ratio[fit], share[fit], measured.static_w).over(values[at]))

    limits_w = measured.limits_w if name == HEAT_NAMES[PEAK] else None
    line, (overshoot, most) = cross_fitted(fold, scaled), peak_cut(fold, log_ratio, values, limits_w)
    names = runs.power_names
    trees = [cross_fitted_trees(runs, log_ratio, line, fold, names, beyond, seed) for beyond in (False, True)]
    mix, mixed, _ = best_mix(line, trees, log_ratio, fold, names, most)
    errors = {f"{name} physics": -log_ratio, f"{name} process": np.minimum(line, most) - log_ratio}
    errors[name] = mixed - log_ratio
    spread = held_half_width(errors[name], len(np.unique(units_left_out(runs)[0]))) / Z_90
    scale = replace(power_scale(log_ratio, share, measured.static_w), log_sd=spread)
    off, groups = np.abs(np.expm1(errors[name])), np.unique(runs.group).tolist()
    by_group = {group: round(float(np.median(off[runs.group == group])), 4) for group in groups}
    target = OwnTarget(scale, with_trees(mix, runs, log_ratio, line, seed), overshoot)
    return target, {key: median_error(each, fold) for key, each in errors.items()}, by_group
