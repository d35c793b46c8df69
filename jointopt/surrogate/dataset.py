"""Where surrogates meet the physics: rows of measurement tables as priced runs with features and residuals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from jointopt.core.errors import JointOptError, TableError
from jointopt.core.facts import Source
from jointopt.core.progress import steps
from jointopt.core.schema import CONSTANTS, Bools, Columns, Floats, Ints
from jointopt.jobs.cluster import Cluster, Machine
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import PREDICTIONS, CostModel, memory_limit_gib
from jointopt.physics.sensitivities import with_constants
from jointopt.runs.cells import MEASURED, first_rows, floats, quoted_cell, row_codes
from jointopt.runs.workloads import Workload, runs_with_plans
from jointopt.surrogate.features import PEAK, heat_of, runs_of, seconds_and_watts_at
from jointopt.surrogate.kernel import Runs, joined_runs
from jointopt.surrogate.power import MeasuredPower


@dataclass(frozen=True)
class Priced:
    """Rows of a table with the physics' answer. ``rows`` are positions in the table; arrays follow them.

    Row i is row ``place[i]`` of ``works[work[i]]``.
    """

    rows: Ints
    runs: Runs
    physics: Columns  # predictions of the physics alone
    fitted: np.ndarray[Any, Any]  # whether the row's framework has a profile of its own
    memory_limit_gib: Floats
    works: tuple[Workload, ...]
    work: Ints
    place: Ints
    reasons: dict[int, str]  # rows that cannot be priced, and why
    power: MeasuredPower | None = None  # by which power limits hold, None: by the physics

    def take(self, at: Ints) -> Priced:
        """The rows at positions ``at`` of these, in that order."""
        return replace(
            self, rows=self.rows[at], runs=self.runs.take(at), fitted=self.fitted[at],
            work=self.work[at], place=self.place[at],
            physics={name: values[at] for name, values in self.physics.items()},
            memory_limit_gib=self.memory_limit_gib[at],
        )  # fmt: skip

    def residual(self, time_s: Floats) -> Floats:
        """log(measured / physics) of measured times (n,) in the order of ``rows``; NaN where not measured."""
        return np.asarray(np.log(time_s / self.physics["iteration_time_s"]))

    def with_constants(self, by: Floats) -> Priced:
        """The same rows priced with the physics' constants changed ``by``, as `sensitivities.with_constants`."""
        return self.under(lambda job: with_constants(job, by)) if by.any() else self

    def under(self, change: Callable[[Job], Job], power: MeasuredPower | None = None) -> Priced:
        """The same rows priced on the jobs that ``change`` makes of theirs.

        ``power``: measured power, by which power limits then hold; None: as they do now.
        """
        if not len(self.rows):
            return self
        power = power or self.power
        parts = self.plans_under(change, power)
        runs = joined_runs([plans.runs("").take(plans.plan_of_row) for plans in parts]).take(self.in_order)
        values = [{name: column[plans.plan_of_row] for name, column in plans.values.items()} for plans in parts]
        physics = {name: np.concatenate([part[name] for part in values])[self.in_order] for name in self.physics}
        works = tuple(replace(work, job=change(work.job)) for work in self.works)
        return replace(self, runs=replace(runs, source=self.runs.source), physics=physics, works=works, power=power)

    @property
    def limits_w(self) -> Floats:
        """The power limit of each row's GPUs, (n,)."""
        return np.array([work.job.cluster.power_limit_w for work in self.works])[self.work]

    @property
    def limit_w(self) -> float:
        """The highest of `limits_w`, 0 of no rows."""
        return float(self.limits_w.max(initial=0.0))

    def plans_under(self, change: Callable[[Job], Job], power: MeasuredPower | None = None) -> list[PricedPlans]:
        """The plans of each work on the job that ``change`` makes of its; ``power``: as for `under`."""
        works = np.unique(self.work).tolist()
        found = (self.works[work].take(self.place[self.work == work]) for work in works)
        return [PricedPlans.of(replace(work, job=change(work.job)), power, heat=PEAK in self.physics) for work in found]

    def at_shares(self, shares: tuple[float, ...]) -> tuple[Floats, Floats]:
        """Seconds and watts (shares, n) of each row with all stages at these shares of the top clock."""
        found = np.empty((2, len(shares), len(self.rows)))
        for work in np.unique(self.work).tolist():
            rows = np.flatnonzero(self.work == work)
            plans, plan_of_row = self.works[work].take(self.place[rows]).distinct()
            board_power = None if self.power is None else self.power.board_power(plans.job, plans.layouts)
            no_memory = np.zeros(len(plans.layouts["pp"]))
            physics = CostModel(plans.job, plans.layouts, peak_bytes=no_memory, board_power=board_power)
            every = np.arange(len(no_memory))
            each = seconds_and_watts_at(physics, every, shares)
            found[:, :, rows] = each[:, :, plans.layout_of_row][:, :, plan_of_row]
        return found[0], found[1]

    @property
    def in_order(self) -> Ints:
        """Where each row stands among those of `plans_under`, (n,)."""
        return np.argsort(np.argsort(self.work, kind="stable"))


_NOTHING_PRICED = Priced(
    rows=np.empty(0, np.int64), runs=Runs(np.empty((0, len(CONSTANTS))), {}, np.empty(0, str), np.empty(0, str)),
    physics={name: np.empty(0) for name in PREDICTIONS}, fitted=np.empty(0, bool),
    memory_limit_gib=np.empty(0), works=(), work=np.empty(0, np.int64), place=np.empty(0, np.int64), reasons={},
)  # fmt: skip


def with_results(table: pd.DataFrame, called: str = "the table") -> pd.DataFrame:
    """A copy, rows numbered from 0, with numbers or NaN as iteration time and other results, and a blank status as ok.

    Raises TableError that names row, column and value where a result is no number; ``called``: the table.
    """
    clean = table.reset_index(drop=True)
    for name in clean.columns.intersection(pd.Index(MEASURED)):
        values = floats(clean[name])
        wrong = values.isna() & clean[name].notna() & (clean[name].astype(str).str.strip() != "")
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise TableError(
                f"Row {row + 1} of {called}: {name} must be a number or blank; got {quoted_cell(clean, row, name)}."
            )
        clean[name] = values
    status = clean["status"].fillna("ok") if "status" in clean else "ok"
    return clean.reindex(columns=clean.columns.union(["iteration_time_s"], sort=False)).assign(status=status)


def timed_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Rows that ran and have an iteration time, numbered from 0, as `with_results` reads them; perhaps none."""
    clean = with_results(table)
    return clean[is_timed(clean)].reset_index(drop=True)


def is_timed(table: pd.DataFrame) -> Bools:
    """Rows (n,) of a table, as `with_results` reads it, that ran and have an iteration time."""
    return np.asarray((table["status"] == "ok") & (table["iteration_time_s"] > 0), bool)


def price(
    table: pd.DataFrame, cluster: Cluster | None = None, machine: Machine | None = None, *, heat: bool = False
) -> Priced:
    """Predictions of the physics and features of every measured row that can be priced; TableError where none can.

    ``cluster``: where rows on its GPU ran, so that links and cooling are those that its owner states; else they are
    the usual ones of the row's GPU. ``machine``: measured figures of its nodes. ``heat``: with peak power and
    temperature over the air.
    """
    found, reasons = runs_with_plans(table)
    priced = price_workloads(table, [work.on_machine(machine) for work in found], cluster, heat=heat)
    if not len(priced.rows):
        reasons |= priced.reasons
        raise TableError(f"No row of the table can be priced; row {min(reasons) + 1}: {reasons[min(reasons)]}")
    return replace(priced, reasons=reasons | priced.reasons)


def price_workloads(
    table: pd.DataFrame, found: Sequence[Workload], cluster: Cluster | None = None, *, heat: bool = False
) -> Priced:
    """`price` of the rows of some workloads of ``table``; ``reasons`` says which of them cannot be priced."""
    keys_of = source_keys(table)
    reasons: dict[int, str] = {}
    works: list[Workload] = []
    parts: list[Columns] = []
    runs: list[Runs] = []
    for work in steps(found if cluster is None else [_on(cluster, work) for work in found], "pricing jobs of runs"):
        try:
            plans = PricedPlans.of(work, heat=heat)
        except JointOptError as error:
            reasons |= dict.fromkeys(work.rows.tolist(), str(error))
            continue
        works.append(work)
        parts.append({name: values[plans.plan_of_row] for name, values in plans.values.items()})
        names, source = keys_of(work)
        runs.append(replace(plans.runs("").take(plans.plan_of_row), source=names[source]))
    if not works:
        return replace(_NOTHING_PRICED, reasons=reasons)
    lengths = [len(w.rows) for w in works]
    return Priced(
        rows=np.concatenate([w.rows for w in works]), runs=joined_runs(runs),
        physics={name: np.concatenate([values[name] for values in parts]) for name in parts[0]},
        fitted=np.repeat([w.job.training.framework.fitted for w in works], lengths),
        memory_limit_gib=np.repeat([memory_limit_gib(w.job) for w in works], lengths),
        works=tuple(works), work=np.repeat(np.arange(len(works)), lengths),
        place=np.concatenate([np.arange(n) for n in lengths]), reasons=reasons,
    )  # fmt: skip


def _on(cluster: Cluster, work: Workload) -> Workload:
    """The workload on as many nodes of ``cluster``, if it ran on that GPU."""
    own = work.job.cluster
    if own.gpu.id != cluster.gpu.id:
        return work
    limit_w = min(own.power_limit_w, cluster.power_limit_w)
    there = replace(cluster, nodes=own.nodes, gpus_per_node=own.gpus_per_node, power_limit_w=limit_w)
    return replace(work, job=replace(work.job, cluster=there))


@dataclass(frozen=True)
class PricedPlans:
    """Plans of a workload, each once, with the physics' answer (n,), and which of them every row of it runs."""

    plans: Workload
    plan_of_row: Ints
    physics: CostModel
    values: Columns

    @classmethod
    def of(cls, work: Workload, power: MeasuredPower | None = None, *, heat: bool = False) -> PricedPlans:
        """Price each layout and each plan once; ``power``: measured, by which limits hold; ``heat``: peaks too."""
        plans, plan = work.distinct()
        board_power = None if power is None else power.board_power(work.job, plans.layouts)
        physics = CostModel(work.job, plans.layouts, board_power=board_power)
        values = physics.evaluate(plans.layout_of_row, plans.clock_mhz)
        values |= heat_of(physics, plans.layout_of_row, plans.clock_mhz) if heat else {}
        return cls(plans, plan, physics, values)

    @property
    def layout(self) -> Ints:
        """Of ``physics``, (n,)."""
        return self.plans.layout_of_row

    def runs(self, source: str) -> Runs:
        """The plans as runs of the source of that key."""
        return runs_of(self.physics, self.plans.clock_mhz, self.layout, source)


def source_of(job: Job, origin: str, framework_text: str) -> Source:
    """The source of runs of ``job``: where a table says they are from, software, GPU and GPUs per node.

    ``framework_text`` is what a table calls the software; it distinguishes what has no profile of its own.
    """
    profile, cluster = job.training.framework, job.cluster
    name = profile.name if profile.fitted else framework_text.lower()
    return Source(origin, name, cluster.gpu.id, cluster.gpus_per_node)


def source_keys(table: pd.DataFrame) -> Callable[[Workload], tuple[npt.NDArray[np.str_], Ints]]:
    """A function that gives the keys of a workload's sources (`source_of`), and which of them each row of it has, (n,).

    By the columns ``source`` and ``framework`` of the table, where there are such.
    """
    blank = pd.Series("", table.index)
    columns = [table.get(name, blank) for name in ("source", "framework")]
    of_row = row_codes(columns)
    first = first_rows(of_row)
    origin, framework = (["" if pd.isna(v) else str(v) for v in column.iloc[first]] for column in columns)
    texts = list(zip(origin, framework, strict=True))

    def keys(work: Workload) -> tuple[npt.NDArray[np.str_], Ints]:
        names, of_text = np.unique([str(source_of(work.job, *words)) for words in texts], return_inverse=True)
        return names, of_text[of_row[work.rows]]

    return keys


@dataclass(frozen=True)
class Part:
    """Rows of one workload that are of one source."""

    work: Workload
    source: str


def parts_by_source(table: pd.DataFrame, works: Sequence[Workload], most_rows: int) -> list[list[Part]]:
    """The rows of ``works`` as batches of one source and about ``most_rows`` each, rows of like layouts together."""
    keys_of = source_keys(table)
    of_source: dict[str, list[Part]] = {}
    for work in works:
        names, source = keys_of(work)
        for number in np.unique(source).tolist():
            name, rows = str(names[number]), np.flatnonzero(source == number)
            if len(rows) > most_rows:  # so that each layout is priced in one part, and few depths meet in one
                place = np.argsort(np.argsort(work.layouts["pp"], kind="stable"))
                place = place.astype(np.min_scalar_type(len(place)))  # two bytes are sorted without comparisons
                rows = rows[np.argsort(place[work.layout_of_row[rows]], kind="stable")]
            for start in range(0, len(rows), most_rows):
                at = rows[start : start + most_rows]
                part = Part(work if len(at) == len(work.rows) else work.take(at), name)
                of_source.setdefault(name, []).append(part)
    batches: list[list[Part]] = []
    for parts in of_source.values():
        filled = np.cumsum([len(part.work.rows) for part in parts]) // most_rows
        batches += [[p for p, at in zip(parts, filled, strict=True) if at == n] for n in np.unique(filled)]
    return batches
