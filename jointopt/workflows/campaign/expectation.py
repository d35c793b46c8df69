"""Expectations of every candidate of a tune after all runs so far, and how far they are to be trusted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.core.schema import POWER_LIMIT, STATUSES, Bools, Columns, Floats, Ints
from jointopt.jobs.catalog.gpus import gpu_id
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.physics.cost_model import constrained_results, stated_limits
from jointopt.runs.rows import is_bounded
from jointopt.search.acquire import SAMPLES
from jointopt.surrogate.dataset import Priced, price, with_results
from jointopt.surrogate.evidence import Evidence, evidence_by_source, with_kin
from jointopt.surrogate.features import PEAK
from jointopt.surrogate.files import surrogate_names
from jointopt.surrogate.job_model import JobModel, surrogate_place
from jointopt.surrogate.kernel import Kernel, Runs
from jointopt.surrogate.memory import FEASIBLE, OOM_STATUS, MemoryEvidence, MemoryPosterior, certain_oom_rows
from jointopt.surrogate.own_cluster import LEAST_RUNS, residual_by_own_runs
from jointopt.surrogate.plan_process import (
    INFORMED,
    OF_POWER,
    after_runs,
    leave_one_out,
    mean_loss,
    plan_kernel,
    plan_runs,
)
from jointopt.surrogate.posterior import OWN_NOISE, Joint
from jointopt.workflows.campaign.candidates import Candidates

if TYPE_CHECKING:
    import pandas as pd


_log = logging.getLogger(__name__)
ENOUGH_TO_JUDGE = 6  # runs from which on a prediction must be better on those left out than the physics alone
_HALF_INTERVAL = 1.6448536269514722  # standard deviations of a 90 % interval
_LEARNED, _OWN_RUNS, _PHYSICS = "earlier runs of the cluster", "the runs of this job", "the physics alone"
_TOGETHER = "a model of the cluster's runs, those of this job among them,"
# Of the mean log of the likelihood of a run: by less, recorded groups were predicted worse as often as better
# (bench_growing.py; where it helped it was ahead by 0.09 to 0.5)
AHEAD = 0.05
_PARTS = ("iteration_time_s", "avg_power_w")  # of energy


@dataclass(frozen=True)
class Expectations:
    """What is expected of a run of every candidate, (n,)."""

    columns: Columns  # objectives with _low and _high (90 %); probability_fits: of memory and constraints
    draws: Columns  # (n, draws): joint draws of the objectives, and whether they fit
    spread: Columns  # standard deviations of the objectives' logarithms that runs of plans alike would lessen
    basis: str  # what the predicted time rests on, in words
    likely: Bools  # to fit in memory; plans that are not are run last
    kept: Floats  # probability of keeping the job's constraints, memory aside


@dataclass(frozen=True)
class _Estimate:
    """One result of every candidate, and how well runs (m,) were predicted from the others."""

    estimates: Joint
    source: str  # what it rests on, in words
    off: Floats  # (m,): log(measured / predicted from the other runs); NaN: not measured, or not judged
    deviation: Floats  # (m,): its standard deviation


class Outlook:
    """Predictions for candidates, moved by earlier runs of other jobs, by those of this one, or ``growing`` by both."""

    def __init__(
        self, job: Job, candidates: Candidates, earlier: EarlierRuns, kernel: Kernel, rng: np.random.Generator,
        growing: GrowingModel | None = None,
    ) -> None:  # fmt: skip
        self._candidates, self._earlier, self._kernel, self._rng = candidates, earlier, kernel, rng
        self._growing = growing
        self._plans = plan_runs(candidates.plans)
        self._job = job

    def after(self, objectives: tuple[str, ...], index: Ints, rows: Sequence[Mapping[str, Any]]) -> Expectations:
        """The posterior after measurements ``rows`` of candidates ``index`` (m,)."""
        probability, fits = self._fits(index, rows)
        columns: Columns = {"probability_fits": probability}
        draws: Columns = {"fits": fits}
        names = dict.fromkeys([*objectives, *constrained_results(self._job)])
        known = {name: self._adapted(name, index, rows) for name in names}
        if "energy_j" in known and np.isfinite(known["energy_j"].off).sum() >= ENOUGH_TO_JUDGE:
            parts = (known[part] if part in known else self._adapted(part, index, rows) for part in _PARTS)
            known["energy_j"] = self._of_parts(known["energy_j"], *parts)
        found = {name: one.estimates for name, one in known.items()}
        for name in objectives:
            mean, deviation = found[name].mean, found[name].deviation
            columns[name] = np.exp(mean)
            columns[f"{name}_low"] = np.exp(mean - _HALF_INTERVAL * deviation)
            columns[f"{name}_high"] = np.exp(mean + _HALF_INTERVAL * deviation)
            draws[name] = np.exp(found[name].draws(SAMPLES, self._rng))
        every = np.ones(len(probability))
        for kept in kept_probabilities(self._job, found):
            every = every * kept
            draws["fits"] = draws["fits"] & (self._rng.random(draws["fits"].shape) < kept[:, None])
        columns["probability_fits"] = probability * every
        ran = any(row["status"] == STATUSES[0] for row in rows)
        # by several goals plans close by are the front: there chance is as good a gain as any (bench_tune_energy.py)
        own = OWN_NOISE if len(objectives) == 1 else 1.0
        spread = {name: found[name].reducible_deviation(ran, own) for name in objectives}
        basis = known["iteration_time_s"].source if "iteration_time_s" in known else _PHYSICS
        return Expectations(columns, draws, spread, basis, probability >= FEASIBLE, every)

    def _of_parts(self, direct: _Estimate, time: _Estimate, power: _Estimate) -> _Estimate:
        """Energy from time and power where that says more of runs left out than what was learned of energy alone."""
        off, deviation = time.off + power.off, np.hypot(time.deviation, power.deviation)
        known = np.isfinite(off) & np.isfinite(direct.off)
        if known.sum() < ENOUGH_TO_JUDGE:
            return direct
        if mean_loss(off[known], deviation[known]) >= mean_loss(direct.off[known], direct.deviation[known]):
            return direct
        gpus = np.log(self._candidates.predicted["energy_j"])
        for name in _PARTS:
            gpus = gpus - np.log(self._candidates.predicted[name])
        loadings = np.hstack([time.estimates.loadings, power.estimates.loadings])
        noise = float(np.hypot(time.estimates.noise, power.estimates.noise))
        both = Joint(time.estimates.mean + power.estimates.mean + gpus, loadings, noise)
        return _Estimate(both, time.source, off, deviation)

    def _adapted(self, name: str, index: Ints, rows: Sequence[Mapping[str, Any]]) -> _Estimate:
        """The log of a result of every candidate, and what it rests on."""
        values, bounds = (np.array([of(row, name) for row in rows], float) for of in (measured_result, lower_bound))
        physics, held = np.log(self._candidates.predicted[name]), bounds > 0
        good = np.flatnonzero(((values > 0) | held) & np.isfinite(physics[index]))
        at, seen, held = index[good], np.log(np.where(held, bounds, values)[good]), held[good]
        own = OF_POWER if name == "avg_power_w" else self._kernel
        # the physics comes first until runs show otherwise, unless much is known of the cluster
        choices = [(physics, own, _OWN_RUNS)]
        if (log_factor := self._earlier.log_factor_on(name)) is not None:
            learned = (physics + log_factor, INFORMED, _LEARNED)
            choices.insert(0 if self._earlier.why_first else 1, learned)
        off, best = np.full((2, len(rows)), np.nan), 0
        if (~held).sum() >= ENOUGH_TO_JUDGE:
            choices.append((physics, plan_kernel(0.0, 0.0, own.noise), _PHYSICS))
            if (grown := self._grown(name, index, rows)) is not None:
                choices.append((physics + grown, INFORMED, _TOGETHER))
            without = [
                leave_one_out(kernel, self._plans, at, seen - prior[at], held)
                for prior, kernel, _ in (*choices, (physics, INFORMED, _PHYSICS))
            ]
            *losses, narrow = (mean_loss(*errors) for errors in without)
            if grown is not None:
                losses[-1] += AHEAD
                # ahead by its narrower spread alone: so is the physics (vTrain's 175B, 1.4 to 2.4 and 1.8 to 4.6 %)
                losses[-1] = np.inf if losses[-1] >= narrow else losses[-1]
            best = int(np.argmin(losses))
            off[:, good] = without[best]
        prior, kernel, source = choices[best]
        found = after_runs(kernel, self._plans, at, seen - prior[at], held).joint(self._plans, prior)
        return _Estimate(found, source, *off)

    def _grown(self, name: str, index: Ints, rows: Sequence[Mapping[str, Any]]) -> Floats | None:
        """Logarithm of the factor (n,) on a result by runs of the cluster and of this job; None: nothing is known.

        That on the time, and on energy too, beside what is known of power.
        """
        if self._growing is None or name not in OBJECTIVES:
            return None
        log_time = np.log([measured_result(row, "iteration_time_s") for row in rows])
        ran = np.flatnonzero(np.isfinite(log_time))
        residual = (log_time - np.log(self._candidates.predicted["iteration_time_s"])[index])[ran]
        found = self._growing.log_factor(index[ran], residual)
        power = self._earlier.log_factors.get("avg_power_w", 0.0) if name == "energy_j" else 0.0
        return None if found is None else found + power

    def _fits(self, index: Ints, rows: Sequence[Mapping[str, Any]]) -> tuple[Floats, Any]:
        """Probability and draws of fitting, by runs that trained or ran out of memory alone."""
        load, room = self._candidates.log_load, self._candidates.log_room
        status = np.array([row["status"] for row in rows], str)
        fitted = (status == "ok") | np.array([is_bounded(row) for row in rows], bool)
        own = MemoryEvidence(ok_load=load[index[fitted]], oom_load=load[index[status == "oom"]])
        posterior = MemoryPosterior(self._earlier.memory + own, self._job.training.framework.name)
        return posterior.fit_probability(load - room), posterior.fit_draws(load - room, SAMPLES, self._rng)


def kept_probabilities(job: Job, found: Mapping[str, Joint]) -> Iterator[Floats]:
    """For each bound that the job states, memory's aside, how probably every candidate keeps it, (n,).

    What is worked out from several results counts as log-normal, as wide as if all of them erred the same way.
    """
    middle, high = (
        {name: np.exp(each.mean + step * each.deviation) for name, each in found.items()} for step in (0.0, 1.0)
    )
    above = stated_limits(job, high)  # by one standard deviation
    for name, (values, bound) in stated_limits(job, middle).items():
        mean, deviation = np.log(values), np.log(above[name][0] / values)
        chance = ndtr((np.log(bound) - mean) / deviation)
        # 1 where nothing is predicted, since then the run itself must show it
        yield np.asarray(np.where(np.isfinite(mean), chance, 1.0))


def measured_result(row: Mapping[str, Any], name: str) -> float:
    """A measured result, NaN where the run failed or did not measure it; power follows from energy and time."""
    if row.get("status") != "ok":
        return float("nan")
    value = row.get(name)
    known = float("nan") if value is None else float(value)
    if name == "avg_power_w" and not known > 0 and row.get("num_gpus"):
        return measured_result(row, "energy_j") / measured_result(row, "iteration_time_s") / float(row["num_gpus"])
    return known


def lower_bound(row: Mapping[str, Any], name: str = "iteration_time_s") -> float:
    """The least time or energy that a run which was ended early would have taken; NaN of others, and where unknown."""
    known = row.get(name) if name in OBJECTIVES and is_bounded(row) else None
    return float("nan") if known is None else float(known)


def broken_constraints(job: Job, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the job's constraints that a measured run does not keep; what was not measured counts as kept."""
    return tuple(name for name, (value, bound) in values_and_bounds(job, row).items() if value > bound)


def values_and_bounds(job: Job, row: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """(what a run measured, NaN where it did not; the job's upper bound), by the constraint's name."""
    measured = {name: np.array([measured_result(row, name)]) for name in constrained_results(job)}
    held = {name: (float(values[0]), bound) for name, (values, bound) in stated_limits(job, measured).items()}
    if (fraction := job.constraints.memory_fraction) is not None:
        held["memory_fraction"] = measured_result(row, "peak_memory_gib") / job.cluster.gpu.memory_gib, fraction
    return held


# Measurements that exist before a campaign: of plans of the job, and of other jobs on the same cluster.


_CORRECTED_RESULTS = ("iteration_time_s", "energy_j", "avg_power_w")  # results that a surrogate knows something of
_SAME = 6  # decimals to which the physics must agree on two plans that are one


@dataclass(frozen=True)
class EarlierRuns:
    """What is known before a campaign: measurements of its candidates, and what runs of other jobs say of them."""

    rows: tuple[dict[str, Any], ...] = ()  # measurements of candidates, each plan once: of repeats the fastest
    index: tuple[int, ...] = ()  # of the rows among the candidates
    # by result, (n,): log of the factor that runs of other jobs put on the physics; energy without one takes time's
    log_factors: Columns = field(default_factory=dict)
    num_other_runs: int = 0  # timed runs behind the factors
    why_first: str = ""  # why the factors count from the first run on; blank: once they have predicted runs better
    memory: MemoryEvidence = field(default_factory=MemoryEvidence)  # of other jobs
    out: Bools | None = None  # (n,): candidates that surely run out of memory, as a stored run did; None: none is known
    unreadable: str = ""  # why stored runs are not used at all; blank where they are
    evidence: Mapping[Source, Evidence] = field(default_factory=dict)  # of other jobs
    plans: Runs | None = None  # the candidates as runs of the cluster, where they have been priced as such
    cluster_runs: tuple[Runs, Floats] | None = None  # of other jobs there, and log(measured / physics)

    def log_factor_on(self, name: str) -> Floats | None:
        """Logarithm of the factor (n,) on a predicted result of every candidate; None where nothing is known of it."""
        return self.log_factors.get(name, self.log_factors.get("iteration_time_s") if name in OBJECTIVES else None)


def earlier_runs(queried: pd.DataFrame, stored: pd.DataFrame, machine: Machine | None = None) -> EarlierRuns:
    """The evidence in ``stored`` measurements on the candidates ``queried`` (rows of a table without results).

    Runs count where GPU, GPUs per node and framework are a candidate's. A run that the physics
    cannot distinguish from a candidate is that plan; all others are evidence of other jobs.
    """
    import pandas as pd

    if stored.empty or "gpu" not in stored or "gpu" not in queried:
        return EarlierRuns()
    gpus = {gpu_id(name) for name in queried["gpu"].unique()}
    rows = stored[stored["gpu"].map({name: gpu_id(name) in gpus for name in stored["gpu"].unique()}).astype(bool)]
    rows = rows.drop(columns=["source", "origin", "recorded_at"], errors="ignore").dropna(axis=1, how="all")
    rows = rows[rows["status"].isin(STATUSES)] if "status" in rows else rows.iloc[:0]
    if rows.empty:
        return EarlierRuns()
    both = pd.concat([queried.drop(columns="source", errors="ignore"), rows], ignore_index=True)
    try:
        table = with_results(both)
        priced = price(table, machine=machine)
    except TableError as error:
        # candidates are sound: some stored cell is not, and earlier runs are no condition
        return EarlierRuns(unreadable=str(error))
    place = np.argsort(priced.rows)
    new = place[priced.rows[place] < len(queried)]
    old = place[priced.rows[place] >= len(queried)]
    old = old[np.isin(priced.runs.source[old], priced.runs.source[new])]
    if not len(old) or len(new) < len(queried):
        return EarlierRuns()
    # a limit that holds nothing down by the physics may do so in fact
    limit_w = both[POWER_LIMIT].to_numpy(float) if POWER_LIMIT in queried else np.full(len(both), np.nan)
    plan_of = {key: i for i, key in enumerate(_plan_keys(priced, new, limit_w))}
    matched = np.array([plan_of.get(key, -1) for key in _plan_keys(priced, old, limit_w)], np.int64)
    # of a candidate the fastest run, else the first that ran out of memory, else the first: labels in the table
    found = table.loc[priced.rows[old]]
    rank = found["status"].map({"ok": 0, "oom": 1}).fillna(2)
    found = found.assign(matched=matched, rank=rank, time_s=found["iteration_time_s"].where(rank == 0, 0.0))
    found = found[matched >= 0].sort_values(["rank", "time_s"], kind="stable").drop_duplicates("matched")
    plans = priced.runs.take(new)
    evidence = evidence_by_source(table, priced.take(old[matched < 0]), "the store")
    source, *others = map(Source.parse, dict.fromkeys(plans.source.tolist()))
    here, known = evidence.get(source, Evidence()), None
    if here.runs is not None and not others:
        known = here.runs.take(np.flatnonzero(~here.bounds).astype(np.int64)), here.residual[~here.bounds]
    return EarlierRuns(
        tuple({str(k): v for k, v in table.loc[row].items()} for row in found.index), tuple(found["matched"].tolist()),
        memory=here.memory, evidence=evidence, plans=plans, cluster_runs=known,
        out=certain_oom_rows(priced, new, old[(table["status"] == OOM_STATUS).to_numpy()[priced.rows[old]]]),
    )  # fmt: skip


def with_learned_factors(earlier: EarlierRuns, model: JobModel, candidates: Candidates) -> EarlierRuns:
    """Earlier runs with what the model predicts of the ``candidates`` after those of other jobs, as of any plan.

    By a surrogate that learned from runs of the very cluster, many, or few where no run of another job is known; else
    by the runs of other jobs: from the first run on where they are many.
    """
    if model.surrogate is None:
        return earlier
    count, why = sum(len(part.residual) for part in earlier.evidence.values()), "as those of propose do"
    names = (*_CORRECTED_RESULTS, *[PEAK] * (PEAK in candidates.predicted))
    by, own = replace(model, evidence=Evidence()), model.surrogate.own_of(str(model.source))
    if own is None and model.name not in surrogate_names():
        by = by.of_user()
    better = own is not None and own.errors["time"] < own.errors["physics"]
    if by.surrogate is not None and (better or (not count and surrogate_place(model.name) in by.evidence.counts)):
        models, count = [by] * candidates.size, int((by.surrogate.support.source == str(by.source)).sum())
        new = by.surrogate.new_groups_of(str(by.source))
        what, errors = ("groups", {} if new is None else new.errors) if own is None else ("models", own.errors)
        if errors:
            why = f"{what} left out of the surrogate are {errors['physics']:.1%} -> {errors['time']:.1%} off"
    elif count and earlier.plans is not None:
        sources, of = np.unique(earlier.plans.source, return_inverse=True)
        evidence = {source: with_kin(earlier.evidence, source) for source in map(Source.parse, sources)}
        each = [replace(model, evidence=known, stated_source=source) for source, known in evidence.items()]
        models, why = [each[i] for i in of.tolist()], why * (count >= LEAST_RUNS)
        if not why or any(known.power.log_sd is None for known in evidence.values()):
            names = names[:1]
    else:
        return earlier
    return replace(earlier, log_factors=_log_factors(candidates, models, names), num_other_runs=count, why_first=why)


def _log_factors(candidates: Candidates, by: Sequence[JobModel], names: Sequence[str]) -> Columns:
    """log(predicted / physics alone) of results of every candidate, (n,) by name, each by its own of the models ``by``.

    Those of a list are predicted as plans of their own jobs.
    """
    end, parts = 0, []
    for job, count in candidates.jobs or ((by[0].job, candidates.size),):
        at, end = slice(end, end + count), end + count
        plans = {name: values[at] for name, values in candidates.plans.items()}
        clocks = plans.pop("stage_clock_mhz")
        if candidates.jobs:  # these have the limits of their rows
            plans.pop(POWER_LIMIT, None)
        physics, every = by[at.start].of_job(job).cost_model(plans), np.arange(count)
        parts.append(physics.evaluate(every, clocks) | (physics.heat(every, clocks) if PEAK in names else {}))
    return {name: np.log(np.concatenate([part[name] for part in parts]) / candidates.predicted[name]) for name in names}


def _plan_keys(priced: Priced, at: Ints, limit_w: Floats) -> list[bytes]:
    """Features, power limit (by row) and predictions of each run as a key: equal for runs of one plan of one job."""
    runs, physics = priced.runs, priced.physics
    seen = [runs.matrix(runs.names)[at]]
    seen.append(np.nan_to_num(limit_w[priced.rows[at], None]))
    seen += [np.log(physics[name][at])[:, None] for name in ("iteration_time_s", "peak_memory_gib")]
    rounded = np.round(np.hstack(seen), _SAME) + 0.0  # no negative zeros
    return [row.tobytes() for row in rounded]


# A model of the cluster that also learns from the runs of this very tune, anew as these grow in number.


LEAST_OWN = 6  # runs of the tune, below which a fifth of them left out says nothing
LEAST = 20  # runs in all, as `retrain` needs: below, the process of all sources makes the order of plans worse
MORE = 1.25  # times as many runs of the tune as were learned from, before it is learned anew


class GrowingModel:
    """Predictions for ``candidates`` by the runs of other jobs that are known ``earlier``, and those of this tune.

    ``kernel``: of all sources, None: no surrogate, and nothing is learned. Learning takes 0.2 s of CPU with 20 runs, 3
    to 4 s with 100 to 250, 7 to 10 s with 1,000, of which it takes no more; between it stays as it is.
    """

    def __init__(
        self, candidates: Candidates, earlier: EarlierRuns, kernel: Kernel | None, machine: Machine | None = None
    ) -> None:
        self._candidates, self._earlier, self._kernel, self._machine = candidates, earlier, kernel, machine
        self._others = 0 if earlier.cluster_runs is None else len(earlier.cluster_runs[1])
        self._plans: Runs | None = earlier.plans
        self._learned_from, self._log_factor = 0, None if kernel is None else np.empty(0)

    def log_factor(self, index: Ints, residual: Floats) -> Floats | None:
        """Logarithm of the factor (n,) on the predicted time of every candidate, None where too few runs are known.

        ``index`` (m,) of the candidates that ran, ``residual`` (m,) log(measured / physics) of their time. At those
        that were learned from it is what others say of them (`jointopt.surrogate.own_cluster.residual_by_own_runs`).
        """
        count = len(index)
        if self._log_factor is None or count < LEAST_OWN or self._others + count < LEAST:
            return None
        if not self._learned_from or count >= MORE * self._learned_from:
            if self._plans is None:  # the candidates as runs, if all of them can be priced, and are of one cluster
                rows = self._candidates.rows.drop(columns="source", errors="ignore")
                with suppress(TableError):
                    priced = price(rows, machine=self._machine)
                    if len(priced.rows) == len(rows) and len(np.unique(priced.runs.source)) == 1:
                        self._plans = priced.runs.take(np.argsort(priced.rows))
            self._log_factor, self._learned_from = None, count
            if (plans := self._plans) is not None and self._kernel is not None:
                text = "learning the cluster anew from %d runs of other jobs and %d of this one ..."
                _log.info(text, self._others, count)
                self._log_factor = residual_by_own_runs(
                    plans, index, residual, self._earlier.cluster_runs, self._kernel
                )
        return self._log_factor
