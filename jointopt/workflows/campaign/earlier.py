"""Measurements that exist before a campaign: of plans of the job, and of other jobs on the same cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.schema import POWER_LIMIT, STATUSES, Bools, Columns, Floats, Ints
from jointopt.jobs.catalog.gpus import gpu_id
from jointopt.jobs.job import OBJECTIVES
from jointopt.jobs.machine import Machine
from jointopt.surrogate.correction import Correction
from jointopt.surrogate.dataset import Priced, price, with_results
from jointopt.surrogate.evidence import Evidence, evidence_by_source, with_kin
from jointopt.surrogate.heat_names import PEAK
from jointopt.surrogate.memory import MemoryEvidence
from jointopt.surrogate.out_of_memory import OUT, surely_out_of
from jointopt.surrogate.own_cluster import LEAST_RUNS, Measured, OwnRuns

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.job_model import JobModel
    from jointopt.surrogate.kernel import Runs
    from jointopt.surrogate.surrogate import Surrogate
    from jointopt.surrogate.tune_model import OtherJobs
    from jointopt.workflows.campaign.candidates import Candidates

_MOVED = ("iteration_time_s", "energy_j", "avg_power_w")  # results that a surrogate knows something of
_SAME = 6  # decimals to which the physics must agree on two plans that are one


@dataclass(frozen=True)
class Earlier:
    """Earlier runs. ``rows`` are measurements of candidates ``index``, each plan once, of repeats the fastest."""

    rows: tuple[dict[str, Any], ...] = ()
    index: tuple[int, ...] = ()
    # (n,) on the predicted time of every candidate, and so on its energy, from runs of other jobs
    log_factor: Floats | None = None
    memory: MemoryEvidence = field(default_factory=MemoryEvidence)  # of other jobs
    others: int = 0  # timed runs of other jobs behind ``log_factor``
    first: str = ""  # why that comes before the physics alone from the first run on; blank where it does not
    out: Bools | None = None  # (n,): candidates that surely run out of memory, as a stored run did; None: none is known
    unread: str = ""  # why stored runs are not used at all; blank where they are
    log_factors: Columns = field(default_factory=dict)  # (n,) on other results, where more is known than ``log_factor``
    plans: Runs | None = None  # the candidates as runs of the cluster, where they have been priced as such
    known: Measured | None = None  # runs of other jobs there

    def log_factor_on(self, name: str) -> Floats | None:
        """Logarithm of the factor (n,) on a predicted result of every candidate; None where nothing is known of it."""
        return self.log_factors.get(name, self.log_factor if name in OBJECTIVES else None)


def earlier_runs(
    queried: pd.DataFrame, stored: pd.DataFrame, surrogate: Surrogate | None, machine: Machine | None = None
) -> Earlier:
    """The evidence in ``stored`` measurements on the candidates ``queried`` (rows of a table without results).

    Runs count where GPU, GPUs per node and framework are a candidate's. A run that the physics
    cannot distinguish from a candidate is that plan; from all others the surrogate predicts as
    `jointopt predict --measured` does.
    """
    import pandas as pd

    rows = _comparable(queried, stored)
    if rows.empty:
        return Earlier()
    both = pd.concat([queried.drop(columns="source", errors="ignore"), rows], ignore_index=True)
    try:
        table = with_results(both)
        priced = price(table, machine=machine)
    except TableError as error:
        # candidates are sound: some stored cell is not, and earlier runs are no condition
        return Earlier(unread=str(error))
    place = np.argsort(priced.rows)
    new = place[priced.rows[place] < len(queried)]
    old = place[priced.rows[place] >= len(queried)]
    old = old[np.isin(priced.runs.source[old], priced.runs.source[new])]
    if not len(old) or len(new) < len(queried):
        return Earlier()
    # a limit that holds nothing down by the physics may do so in fact
    limit_w = both[POWER_LIMIT].to_numpy(float) if POWER_LIMIT in queried else np.full(len(both), np.nan)
    plan_of = {key: i for i, key in enumerate(_keys(priced, new, limit_w))}
    out = surely_out_of(priced, new, old[(table["status"] == OUT).to_numpy()[priced.rows[old]]])
    matched = np.array([plan_of.get(key, -1) for key in _keys(priced, old, limit_w)], np.int64)
    best = _fastest(table.loc[priced.rows[old]], matched)
    known = [{str(k): v for k, v in table.loc[row].items()} for row in best.values()]
    evidence = evidence_by_source(table, priced.take(old[matched < 0]), "the store")
    memory = evidence.get(str(priced.runs.source[new[0]]), Evidence()).memory
    count = sum(len(part.residual) for part in evidence.values())
    if surrogate is None or not count:
        return Earlier(tuple(known), tuple(best), None, memory, out=out)
    plans = priced.take(new)
    known_runs = _of_other_jobs(plans, evidence)
    learned = _learned(plans, known_runs, surrogate)
    if learned is not None and learned.orders_better:
        why = f"learned from them, plans of jobs left out are {learned.without:.1%} -> {learned.error:.1%} off"
        factors = {}
        if learned.log_power is not None:
            factors = {"avg_power_w": learned.log_power, "energy_j": learned.log_factor + learned.log_power}
        found = Earlier(tuple(known), tuple(best), learned.log_factor, memory, count, why, log_factors=factors)
    else:
        found = Earlier(tuple(known), tuple(best), _log_factors(plans, evidence, surrogate), memory, count)
    return replace(found, plans=plans.runs, known=known_runs, out=out)


def beside_surrogate(earlier: Earlier, model: JobModel, candidates: Candidates) -> Earlier:
    """Earlier runs, and what a surrogate knows of ``candidates`` that was trained on runs of the very cluster.

    Many runs of other jobs that were learned from here are newer, and go before it; so does any such run before a
    surrogate of few, as in `JobModel.of`. Clock response and power count as `JobModel.cost_model` has them.
    """
    own = model.surrogate.own_of(model.source) if model.surrogate is not None else None
    by = replace(model, evidence=Evidence()) if own is not None else _by_few_runs(model)
    if earlier.first or by is None or (own is None and earlier.others):
        return earlier
    if own is not None and own.errors["time"] >= own.errors["physics"]:
        return earlier
    expected = _expected(by, candidates)
    factors = {name: np.log(values / candidates.predicted[name]) for name, values in expected.items()}
    count = _remembered(by)
    time = factors.pop("iteration_time_s")
    return replace(earlier, log_factor=time, log_factors=factors, others=count, first=_judged(own, by))


def _judged(own: OwnRuns | None, by: JobModel) -> str:
    """Errors of a surrogate on models or groups left out of it, in words."""
    new = None if by.surrogate is None else by.surrogate.new_groups_of(by.source)
    what, errors = ("groups", {} if new is None else new.errors) if own is None else ("models", own.errors)
    if not errors:
        return "as those of propose do"
    return f"{what} left out of the surrogate are {errors['physics']:.1%} -> {errors['time']:.1%} off"


def _by_few_runs(model: JobModel) -> JobModel | None:
    """The model by the few runs that a surrogate of the user's own learned from; None where it knows none or many."""
    from jointopt.surrogate.correction import surrogate_names
    from jointopt.surrogate.job_model import of_surrogate

    if model.name in surrogate_names():
        return None
    alone = replace(model, evidence=Evidence()).of_user()
    return alone if of_surrogate(model.name) in alone.evidence.counts else None


def _expected(model: JobModel, candidates: Candidates) -> Columns:
    """Results of `JobModel.cost_model` of every candidate, (n,) each, those of a list by their own jobs."""
    end, parts, with_peaks = 0, [], PEAK in candidates.predicted
    names = (*_MOVED, *[PEAK] * with_peaks)
    for job, count in candidates.jobs or ((model.job, candidates.size),):
        at, end = slice(end, end + count), end + count
        plans = {name: values[at] for name, values in candidates.plans.items()}
        clocks = plans.pop("stage_clock_mhz")
        if candidates.jobs:  # these have the limits of their rows
            plans.pop(POWER_LIMIT, None)
        physics, every = replace(model, job=job).cost_model(plans), np.arange(count)
        parts.append(physics.evaluate(every, clocks) | (physics.heat(every, clocks) if with_peaks else {}))
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _remembered(model: JobModel) -> int:
    return 0 if model.surrogate is None else int((model.surrogate.support.source == model.source).sum())


def _of_other_jobs(plans: Priced, evidence: Mapping[str, Evidence]) -> Measured | None:
    """Runs of other jobs on the cluster of all plans; None where these are of several, or there is no run."""
    source, *others = set(plans.runs.source.tolist())
    some = None if others else evidence.get(source)
    if some is None or some.runs is None:
        return None
    power = some.log_power_ratio[some.timed], some.static_share[some.timed], some.static_w
    ended = np.flatnonzero(~some.bounds).astype(np.int64)
    return Measured(some.runs, some.residual, *power).take(ended)


def _learned(plans: Priced, known: Measured | None, surrogate: Surrogate) -> OtherJobs | None:
    """A model of the runs of other jobs, None where they are too few."""
    if known is None or len(known.runs) < LEAST_RUNS:
        return None
    from jointopt.surrogate.tune_model import from_other_jobs

    return from_other_jobs(plans.runs, plans.physics["avg_power_w"], known, surrogate.kernel)


def _comparable(queried: pd.DataFrame, stored: pd.DataFrame) -> pd.DataFrame:
    """Stored rows with a result, on the candidates' GPU, without columns that say where they came from."""
    if stored.empty or "gpu" not in stored or "gpu" not in queried:
        return stored.iloc[:0]
    here = {gpu_id(name) for name in queried["gpu"].unique()}
    rows = stored[stored["gpu"].map({name: gpu_id(name) in here for name in stored["gpu"].unique()}).astype(bool)]
    rows = rows.drop(columns=["source", "origin", "recorded_at"], errors="ignore").dropna(axis=1, how="all")
    return rows[rows["status"].isin(STATUSES)] if "status" in rows else rows.iloc[:0]


def _keys(priced: Priced, at: Ints, limit_w: Floats) -> list[bytes]:
    """Features, power limit (by row) and predictions of each run as a key: equal for runs of one plan of one job."""
    runs, physics = priced.runs, priced.physics
    seen = [runs.matrix(runs.names)[at]]
    seen.append(np.nan_to_num(limit_w[priced.rows[at], None]))
    seen += [np.log(physics[name][at])[:, None] for name in ("iteration_time_s", "peak_memory_gib")]
    rounded = np.round(np.hstack(seen), _SAME) + 0.0  # no negative zeros
    return [row.tobytes() for row in rounded]


def _fastest(rows: pd.DataFrame, matched: Ints) -> dict[int, int]:
    """Label in ``rows`` per candidate: the fastest that ran, else the first that ran out of memory, else the first."""
    rank = rows["status"].map({"ok": 0, "oom": 1}).fillna(2)
    known = rows.assign(matched=matched, rank=rank, time_s=rows["iteration_time_s"].where(rank == 0, 0.0))
    best = known[known["matched"] >= 0].sort_values(["rank", "time_s"], kind="stable").drop_duplicates("matched")
    return dict(zip(best["matched"].tolist(), best.index.tolist(), strict=True))


def _log_factors(candidates: Priced, evidence: Mapping[str, Evidence], surrogate: Surrogate) -> Floats:
    """Log of the factor on every candidate's time."""
    out, sources = np.empty(len(candidates.rows)), candidates.runs.source
    for source in np.unique(sources).tolist():
        own = np.flatnonzero(sources == source).astype(np.int64)
        some, known = candidates.take(own), with_kin(evidence, source)
        correction = Correction(surrogate, source, bool(some.fitted[0]), known)
        again = some.under(correction.moved) if correction.moves_physics else some
        out[own] = correction.log_factor(again.runs) + some.residual(again.physics["iteration_time_s"])
    return out
