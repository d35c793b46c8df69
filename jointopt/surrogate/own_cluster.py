"""Learning from many runs of one cluster: a kernel of its process, and trees as far as they help.

Every part is judged on models (else groups) of the cluster that it was not trained on, and counts as far as it helps
there: stacking by cross-fitted predictions (Wolpert 1992, Stacked generalization), one convex weight at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import MOST_GPU_POWER_W, Bools, Floats, Ints
from jointopt.core.units import Z_90
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.surrogate.clock_response import CLOCK, LearnedResponse, MeasuredClocks
from jointopt.surrogate.features import HEAT_NAMES, PEAK
from jointopt.surrogate.kernel import Kernel, Runs, learn_alone
from jointopt.surrogate.own_mix import (
    LEAST_GAIN,
    Blend,
    CrossedTrees,
    Mix,
    OwnTarget,
    at_rest_w,
    crossed,
    folds_by_layout,
    folds_by_model,
    held_half_width,
    learn_mix,
    limit_cut,
    line_clocks,
    median_error,
    mixed_again,
    model_names,
    sure_part,
    units_left_out,
)
from jointopt.surrogate.posterior import Posterior, condition, condition_alone
from jointopt.surrogate.power import MeasuredPower, PowerScale, power_scale

LEAST_RUNS = 50  # of one source, below which the process of all sources answers alone
SUPPORT = 1000  # runs that the process remembers; trees see all
RELEARNED = 400  # runs, up to which hyperparameters are learned anew without each fold, as they then see much of it


@dataclass(frozen=True)
class OwnRuns:
    """Learned from the runs of ``source``: their time, and their power where it was measured.

    ``kernel``: None where that of all sources does better. ``width``: conformal factor on the process's half-width, and
    ``width_of_known`` the same for models of which runs are known (None: a version that had one for all).
    ``errors``: median errors on held-out models by part. ``clocks``: lowest and highest share of the top clock that
    runs were measured at and that hold (``off_below``: the error of those below the top that do not, ``clock_remark``
    says why). ``response``: how kernels follow the clock, None: as in the physics. ``power_limit_w``: the highest that
    the runs were under, None: a version that knew of none learned from them. ``heat``: peak power, and temperature over
    the air, where they were measured often enough, by `heat_names`. ``of_new``, ``of_known``: weight of the process on
    models without known runs and with: 0 where the physics alone does better. ``as_sure``: on the former it counts as
    far as it is sure of each plan.
    """

    source: str
    kernel: Kernel | None = None
    time: Mix = field(default_factory=Mix)
    width: float = 1.0
    width_of_known: float | None = None
    power: PowerScale = field(default_factory=PowerScale)
    power_mix: Mix = field(default_factory=Mix)
    clocks: tuple[float, float] = (1.0, 1.0)
    errors: Mapping[str, float] = field(default_factory=dict)
    held_out: str = ""  # what was left out at a time: models, groups or runs
    importance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of features by quantity, as `mixes`
    response: LearnedResponse | None = None
    off_below: float = 0.0
    clock_remark: str = ""
    power_limit_w: float | None = None
    heat: Mapping[str, OwnTarget] = field(default_factory=dict)
    as_sure: bool = False
    of_new: float = 1.0
    of_known: float = 1.0
    group_errors: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # as ``errors``, but of time; by group

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
    def measured_clocks(self) -> MeasuredClocks:
        """Clocks at which the runs are evidence of time."""
        return MeasuredClocks(*self.clocks, self.off_below)

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
        if self.as_sure and self._new(runs, known).any():
            return self.time(self.counted(*process.predict(runs), runs, known), runs)
        mean = process.mean(runs)  # deviations of many plans take time
        return self.time(self.counted(mean, np.zeros(len(mean)), runs, known), runs)

    def counted(self, mean: Floats, deviation: Floats, runs: Runs, known: Runs) -> Floats:
        """As much of the mean (n,) of a process of that standard deviation (n,) as counts, without trees."""
        if not self.in_part:
            return mean
        of_new = self.of_new * (sure_part(mean, Z_90 * deviation) if self.as_sure else 1.0)
        return np.asarray(np.where(self._new(runs, known), of_new, self.of_known) * mean)

    @staticmethod
    def _new(runs: Runs, known: Runs) -> Bools:
        return ~np.isin(model_names(runs), model_names(known))

    def widths(self, runs: Runs, known: Runs) -> Floats:
        """Conformal factors (n,) on the process's half-widths: those of models of which runs are ``known``, or not."""
        if self.width_of_known is None:
            return np.full(len(runs), self.width)
        return np.where(self._new(runs, known), self.width, self.width_of_known)

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
        """Shares of the top clock at which the learned power is read: over all that were measured."""
        return line_clocks(self.clocks)

    @property
    def targets(self) -> Mapping[str, OwnTarget]:
        """Power and heat as far as they were learned, by what card and files call them."""
        return {"power": OwnTarget(self.power, self.power_mix)} | dict(self.heat) if self.knows_power else self.heat

    def log_power(self, runs: Runs, watts: Floats) -> Floats:
        """log(measured / predicted) average power (n,) of ``runs``, which the physics has at ``watts`` (n,)."""
        return self.targets["power"].log_ratio(runs, watts)

    def power_scale(self, runs: Runs, watts: Floats) -> PowerScale:
        """`OwnTarget.line` of power for the layout of each of ``runs`` (n,), from ``watts`` at `power_clocks`."""
        return self.targets["power"].line(runs, watts, self.power_clocks, at_rest_w(self.source))

    def to_text(self) -> str:
        """A line per quantity: the weight of each part, and median errors on what was left out without and with it."""
        e, on = self.errors, f" on held-out {self.held_out}"
        more = ", of other models as far as it is sure" * (self.as_sure and self.of_new > 0.0)
        more += f", {self.of_known:g} of models with runs" * (self.of_known != self.of_new)
        kernel = f"process {{}} ({'own' if self.kernel else 'shared'} kernel{more})"
        lines = [f"time: {_gain(self.time, kernel, e['process'], e['time'], on, e['physics'], self.of_new)}"]
        for of, target in self.targets.items():
            if (name := HEAT_NAMES.get(of, of)) in e:
                found = e[f"{name} process"], e[name], on, e[f"{name} physics"]
                lines.append(f"{name}: {_gain(target.mix, 'scaled physics {}', *found)}")
        lines += [] if self.response is None else [self.response.to_text()]
        lines += [self.clock_remark] * bool(self.clock_remark)
        return "\n  ".join([f"{Source.parse(self.source).to_text()}:", *lines])


def _gain(mix: Mix, others: str, before: float, after: float, on: str, physics: float, counts: float = 1.0) -> str:
    """``process 0.4, trees 0.6: 5.1 -> 2.9 % on held-out models``; ``others``: what ``mix`` is beside, and counts."""
    share = f"{counts * (1.0 if mix.beyond else 1.0 - mix.weight):g}"
    trees = f"trees {mix.weight:g}" + " on its rest" * mix.beyond
    errors = f"{100.0 * before:.1f} -> {100.0 * after:.1f} %"
    return f"{others.format(share)}, {trees}: {errors}{on} (physics {100.0 * physics:.1f} %)"


@dataclass(frozen=True)
class Measured:
    """Many runs of one source: residuals of time, and of power where it was measured (NaN elsewhere), (n,) each."""

    runs: Runs
    residual: Floats
    log_power: Floats
    static_share: Floats  # of the physics' power, in what a GPU draws whatever runs
    static_w: float
    heat: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)  # as residual, and by the physics
    limits_w: Floats | None = None  # power limits of the GPUs, None: unknown

    def with_power(self) -> Measured:
        """The runs whose power was measured."""
        return self.take(np.flatnonzero(np.isfinite(self.log_power) & np.isfinite(self.static_share)).astype(np.int64))

    def take(self, rows: Ints) -> Measured:
        """The runs at those positions."""
        heat = {name: (ratio[rows], values[rows]) for name, (ratio, values) in self.heat.items()}
        of_power = self.log_power[rows], self.static_share[rows], self.static_w
        limits_w = self.limits_w if self.limits_w is None else self.limits_w[rows]
        return Measured(self.runs.take(rows), self.residual[rows], *of_power, heat, limits_w)


def learn_own(source: str, measured: Measured, shared: Kernel, seed: int = 0) -> tuple[OwnRuns, Floats, Floats]:
    """An `OwnRuns` of the runs of a source, and cross-fitted answers (n,): log(measured / physics) and its half-width.

    ``shared``: the kernel of all sources, which stays where one relearned on these runs does not help.
    """
    runs, residual = measured.runs, measured.residual
    fold, held_out = folds_by_model(runs, seed)
    found, process, deviation, errors = _best_process(OwnRuns(source, held_out=held_out), measured, shared, fold, seed)
    singly, layouts = folds_by_layout(runs, seed)
    near, near_deviation = crossed_process(found, shared, measured, singly, seed)
    found = replace(found, of_known=_helps(near, residual, singly))
    near = found.of_known * near
    names = tuple(name for name in runs.names if name != CLOCK)
    trees = CrossedTrees(runs, residual, near, fold, names, seed)
    found, blend = _best_blend(found, trees, process, deviation)
    mix, mixed, errors["time"] = trees.mix(blend), blend.answer, blend.error
    low, high = np.quantile(runs.features[CLOCK], (0.02, 0.98)).tolist()
    width = held_half_width((mixed - residual) / (Z_90 * deviation), len(np.unique(units_left_out(runs)[0])))
    of_known = (mixed_again(mix, runs, residual, near, singly, seed) - residual) / (Z_90 * near_deviation)
    found = replace(found, time=mix, width=width, clocks=(low, high), width_of_known=held_half_width(of_known, layouts))
    if len((of_power := measured.with_power()).residual) >= LEAST_RUNS:
        found, more = _with_power(found, of_power, seed)
        errors |= more
    found, more = _with_heat(found, measured, seed)
    errors = {name: round(value, 4) for name, value in (errors | more).items()}
    importance = {of: sizes for of, mix in found.mixes.items() if (sizes := mix.importance(runs))}
    return replace(found, errors=errors, importance=importance), mixed, Z_90 * found.width * deviation


def judge_shared(source: str, measured: Measured, shared: Kernel, seed: int = 0) -> tuple[OwnRuns, Floats, Floats]:
    """As `learn_own` of runs too few to learn a kernel or trees of: the process of all sources after them."""
    fold, held_out = folds_by_model(measured.runs, seed)
    own = OwnRuns(source, held_out=held_out)
    process, deviation = crossed_process(own, shared, measured, fold, seed)
    counts = _helps(process, measured.residual, fold)
    of_process, answer = process - measured.residual, counts * process
    off = {"physics": -measured.residual, "process": of_process, "time": answer - measured.residual}
    errors = {name: round(median_error(log, fold), 4) for name, log in off.items()}
    return replace(own, errors=errors, of_new=counts, of_known=counts), answer, Z_90 * deviation


def _helps(process: Floats, residual: Floats, fold: Ints) -> float:
    """1 where cross-fitted answers (n,) of a process are nearer to what was measured than the physics alone, else 0."""
    return float(median_error(process - residual, fold) < median_error(-residual, fold))


def _best_process(
    own: OwnRuns, measured: Measured, shared: Kernel, fold: Ints, seed: int
) -> tuple[OwnRuns, Floats, Floats, dict[str, float]]:
    """``own`` with the kernel that does better, cross-fitted mean and standard deviation (n,), and errors."""
    residual = measured.residual
    process, deviation = crossed_process(own, shared, measured, fold, seed)
    errors = {"physics": median_error(-residual, fold), "process": median_error(process - residual, fold)}
    relearned = replace(own, kernel=learn_alone(measured.runs, residual, shared, seed))
    mean, spread = crossed_process(relearned, shared, measured, fold, seed)
    if (error := median_error(mean - residual, fold)) < (1.0 - LEAST_GAIN) * errors["process"]:
        return relearned, mean, spread, errors | {"kernel": error}
    return own, process, deviation, errors


def _best_blend(own: OwnRuns, trees: CrossedTrees, process: Floats, deviation: Floats) -> tuple[OwnRuns, Blend]:
    """``own`` with as much of the process as does best on what was left out, all, a part or none, and trees beside it.

    What is learned of few models holds in part for the next, as far as the process is sure: of nanotron's runs whose
    software is in no odd state, predicted from its other models, 4.1 % instead of 5.9
    (docs/appendix/surrogate-experiments.md).
    """
    best, found = trees.best(process), own
    in_part = sure_part(process, Z_90 * deviation) * process
    less = [(replace(own, as_sure=True), in_part)] if own.held_out == "models" else []
    for smaller, answer in [*less, (replace(own, of_new=0.0), 0.0 * process)]:
        blend = trees.best(answer)
        more = LEAST_GAIN * (blend.weight > best.weight)  # trees that only make up for the part that does not count
        if blend.error < (1.0 - more) * best.error:
            best, found = blend, smaller
    return found, best


def crossed_process(own: OwnRuns, shared: Kernel, measured: Measured, fold: Ints, seed: int) -> tuple[Floats, Floats]:
    """Cross-fitted mean and standard deviation (n,) of the process."""
    runs, residual, deviation = measured.runs, measured.residual, np.empty(len(fold))

    def answer(fit: Ints, at: Ints) -> Floats:
        kept, here = supporting(fit), own
        if own.kernel is not None and len(runs) <= RELEARNED:
            here = replace(own, kernel=learn_alone(runs.take(fit), residual[fit], shared, seed, own.kernel))
        mean, deviation[at] = here.process(shared, runs.take(kept), residual[kept]).predict(runs.take(at))
        return mean

    return crossed(fold, answer), deviation


def supporting(rows: Ints, seed: int = 0) -> Ints:
    """At most `SUPPORT` of these rows, which the process remembers."""
    if len(rows) <= SUPPORT:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, SUPPORT, replace=False)).astype(np.int64)


def _with_power(own: OwnRuns, measured: Measured, seed: int) -> tuple[OwnRuns, dict[str, float]]:
    """``own`` with power learned from runs that have it, and the held-out errors of that."""
    power, errors, by_group = _target_of("power", measured, measured.log_power, seed)
    own = replace(own, group_errors={**own.group_errors, "power": by_group})
    return replace(own, power=power.scale, power_mix=power.mix), errors


def _with_heat(own: OwnRuns, measured: Measured, seed: int) -> tuple[OwnRuns, dict[str, float]]:
    """``own`` with peak power and temperature learned where enough runs have them, and the held-out errors of that."""
    heat, errors, of_groups = {}, dict[str, float](), dict(own.group_errors)
    for name, (log_ratio, values) in measured.heat.items():
        rows = np.flatnonzero(np.isfinite(log_ratio) & np.isfinite(values)).astype(np.int64)
        if len(rows) >= LEAST_RUNS:
            static_w = measured.static_w if name == PEAK else np.nan  # a line through nothing of a temperature
            some = replace(measured.take(rows), static_share=static_w / values[rows], static_w=static_w)
            called = HEAT_NAMES[name]
            heat[name], more, of_groups[called] = _target_of(called, some, log_ratio[rows], seed, values[rows])
            errors |= more
    return replace(own, heat=heat, group_errors=of_groups), errors


def _target_of(
    name: str, measured: Measured, log_ratio: Floats, seed: int, values: Floats | None = None
) -> tuple[OwnTarget, dict[str, float], dict[str, float]]:
    """A quantity learned of runs with log(measured / physics) ``log_ratio`` (n,) of it, its held-out errors, by group.

    ``values`` (n,): the physics' own, by default those of power. Peaks are cut at their limits.
    """
    runs, share, static_w = measured.runs, measured.static_share, measured.static_w
    fold, _ = folds_by_model(runs, seed)
    of_physics = static_w / share if values is None else values

    def scaled(fit: Ints, at: Ints) -> Floats:
        return np.log(power_scale(log_ratio[fit], share[fit], static_w).over(of_physics[at]))

    limits_w = measured.limits_w if name == HEAT_NAMES[PEAK] else None
    line, (overshoot, most) = crossed(fold, scaled), limit_cut(fold, log_ratio, of_physics, limits_w)
    mix, mixed = learn_mix(runs, log_ratio, line, line, fold, runs.power_names, seed, most)
    line = np.minimum(line, most)
    errors = {f"{name} physics": -log_ratio, f"{name} process": line - log_ratio, name: mixed - log_ratio}
    spread = held_half_width(errors[name], len(np.unique(units_left_out(runs)[0]))) / Z_90
    scale = replace(power_scale(log_ratio, share, static_w), log_sd=spread)
    off, groups = np.abs(np.expm1(errors[name])), np.unique(runs.group).tolist()
    by_group = {group: round(float(np.median(off[runs.group == group])), 4) for group in groups}
    return OwnTarget(scale, mix, overshoot), {key: median_error(each, fold) for key, each in errors.items()}, by_group
