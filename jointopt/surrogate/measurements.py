"""Measured runs as they come in: rows checked and priced once, and the evidence that they are."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import JointOptError, TableError
from jointopt.core.facts import Source
from jointopt.core.schema import Bools, Columns, Floats
from jointopt.core.secrets import masked
from jointopt.jobs.catalog.gpus import gpu_id as id_of
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import TF32, Job
from jointopt.runs.checks import contradicting_lines
from jointopt.runs.ignored_columns import A_RESULT, left_out_lines, renamed_time, unread_lines, without_result
from jointopt.runs.other_rows import lacks_heads, model_rows, states_class
from jointopt.runs.relevance import kind_of, related_to, wanted_by, wanted_by_table, wanted_elsewhere
from jointopt.runs.table import checked_results, doubtful_precision, readable_runs
from jointopt.runs.workloads import Workload, runs_with_plans
from jointopt.surrogate.data_doubts import (
    REFUSED,
    check_scale,
    doubted_sources,
    impossible_outliers,
    outlier_lines,
    power_lines,
    unit_lines,
    unit_outliers,
)
from jointopt.surrogate.dataset import Priced, price_workloads, source_of, with_results
from jointopt.surrogate.evidence import (
    Evidence,
    evidence_by_source,
    impossible_bounds,
    impossible_bounds_line,
    informative_rows,
    is_kin,
    is_lower_bound,
    log_time_ratio,
    source_of_job,
)
from jointopt.surrogate.intervals import physics_errors
from jointopt.surrogate.memory import OOM_STATUS, layouts_out_of_memory

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
MOST_RELATED = 5_000  # stored runs that a job's predictions rest on, all of them
# Where there are more: so many, of so many workloads. Pricing one of these takes 60 ms of CPU, and of more than 800
# runs the learners draw some, so that further ones only displace the nearest (1,000 runs of 32 workloads: 20.7 %).
# Each of nanotron's 21 workloads left out, median error of 1,542 runs: 27.1 % with 500 runs of 4 workloads, 15.4 % with
# these, 15.4 % with all; 0.2 s of CPU more.
SAMPLED, MOST_WORKLOADS = 800, 10
MOST_FOR_TABLE = 20_000  # stored runs that a table is predicted from
GIVEN = "the measured runs given"
_KIND = ("gpu", "gpus_per_node", "framework")


@dataclass(frozen=True, eq=False)
class Measurements:
    """Rows of one measurement table: results are numbers or NaN, none of them impossible, a blank status is ok."""

    table: pd.DataFrame
    warnings: tuple[str, ...] = ()  # a sentence on each kind of cell that is doubtful, or impossible and not used
    name: str = GIVEN  # what messages call the rows
    machine: Machine | None = None  # that rows on such nodes ran on
    others: pd.DataFrame | None = None  # rows that fill what these leave open of their models, as for `workloads`
    refused: Bools | None = None  # rows (n,) of which a sentence says that their only results are not used
    _logged: set[str] = field(default_factory=set, init=False, repr=False)  # once for several jobs

    @classmethod
    def of(cls, table: pd.DataFrame, name: str = GIVEN) -> Measurements:
        """Check the rows of a table; what is not used or doubtful is logged. TableError where a result is no number."""
        sound, sentences = checked_results(table)
        called = "the table" if name == GIVEN else name
        runs = with_results(sound, called)
        repeats: list[str] = []
        with suppress(TableError):  # rows that cannot be read are refused where they are priced
            repeats = contradicting_lines(runs, readable_runs(runs)[0])
        for sentence in [*sentences, *repeats]:
            _log.warning("%s: %s", name, sentence)
        return cls(runs, tuple(sentences), name, refused=without_result(sound) & ~without_result(table))

    @classmethod
    def given(cls, measured: pd.DataFrame | Measurements) -> Measurements:
        """Runs as a caller gives them, checked; TableError as in `checked`."""
        try:
            runs = measured if isinstance(measured, Measurements) else cls.of(measured)
        except TableError as error:
            raise nothing_learned(error) from error
        return runs.checked

    @classmethod
    def stored(cls, url: str, of: Job | pd.DataFrame, plans: tuple[str, ...] = ()) -> Measurements:
        """Measurements of the database of that URL that speak of a job or of the rows of a table, of many the nearest.

        Of a job those on its kind of cluster, and where these are few, of their kin too, as measured runs given have
        (`kin_evidence`); ``plans``: of rows on the very workload these go first (`plan_key`). Of a table those on its
        GPUs or by its frameworks.
        """
        import pandas as pd

        from jointopt.runs.store import Store

        store = Store(url)
        if not isinstance(of, Job):
            return cls(with_results(store.read(wanted_by_table(of, MOST_FOR_TABLE))), name=masked(url))
        table = store.read(wanted_by(of, MOST_RELATED, SAMPLED, MOST_WORKLOADS, plans))
        room = SAMPLED - len(table)
        if room > 0 and len(kin := store.read(wanted_elsewhere(of, room, MOST_WORKLOADS))):
            table = pd.concat([table, kin], ignore_index=True) if len(table) else kin
        return cls(with_results(table), name=masked(url))

    @functools.cached_property
    def workloads(self) -> tuple[list[Workload], dict[int, str]]:
        """Workloads of the rows, and why each other row belongs to none; TableError where no row has one."""
        found, reasons = runs_with_plans(self.table, self.others)
        return [work.on_machine(self.machine) for work in found], reasons

    @functools.cached_property
    def priced(self) -> Priced:
        """The physics' answer for every row that it can price, on the usual links of each GPU or the machine's."""
        found, reasons = self.workloads
        priced = price_workloads(self.table, found)
        return replace(priced, reasons=reasons | priced.reasons)

    def take(self, rows: Any) -> Measurements:
        """The rows that a mask or positions choose, numbered from 0."""
        refused = None if self.refused is None else self.refused[rows]
        return Measurements(self.table[rows].reset_index(drop=True), (), self.name, refused=refused)

    def on(self, gpu_id: str) -> Measurements:
        """The runs on that GPU that are `informative_rows`."""
        if "gpu" not in self.table:
            return self.take(np.zeros(len(self.table), bool))
        names = self.table["gpu"].dropna().unique()
        same = self.table["gpu"].isin([name for name in names if id_of(name) == gpu_id])
        return self.take(same & informative_rows(self.table))

    def evidence(self, job: Job, source: Source) -> Evidence:
        """Evidence of the runs on the job's kind of cluster, with its links and cooling, as runs of ``source``.

        Where they do not state attention heads, those as wide as the job's model have its heads; where they state no
        recipe class or attention kernel, they are of the job's.
        """
        here = self.on(job.cluster.gpu.id)
        if here.table.empty:
            return Evidence()
        if lacks_heads(here.table):
            here = replace(here, others=model_rows(job.model, here.table))
        try:
            works = [work for work in here.workloads[0] if source_of_job(work.job) == source_of_job(job)]
        except TableError as error:
            _log.warning("%s", nothing_learned(error, self.name))
            return Evidence()
        works = [work.with_class(job.training.recipe_class).with_attention(job.training.attention) for work in works]
        priced = price_workloads(here.table, works, job.cluster)
        priced = replace(priced, runs=replace(priced.runs, source=np.full(len(priced.runs), str(source))))
        return Evidence.of(here.table, priced, self.name)

    def layouts_out_of_memory(self, job: Job) -> Columns:
        """Layouts of the job that ran out of memory on its kind of cluster, whatever its clocks; none: no columns."""
        here, training = self.on(job.cluster.gpu.id), job.training
        works = here._alike(job, bool((here.table["status"] == OOM_STATUS).any()))
        works = [work.with_class(training.recipe_class).with_attention(training.attention) for work in works]
        return layouts_out_of_memory(works, here.table["status"].to_numpy(str), job)

    def kin_evidence(self, job: Job, source: Source) -> Evidence:
        """Evidence of runs by the job's framework on other GPUs or nodes, or of other software on its GPU.

        As kin of ``source``, whatever origin the table states: the runs were given for the job.
        """
        # whether all rows are on the job's kind of cluster, by how they spell it, as stored runs are
        related = related_to({job.cluster.gpu.id}, job.cluster.gpus_per_node, job.training.framework)
        spelled = self.table.reindex(columns=_KIND).drop_duplicates().astype(object).fillna("")
        if all(related(kind_of(dict(zip(_KIND, row, strict=True)))) for row in spelled.to_numpy().tolist()):
            return Evidence()
        works = [work.with_class(job.training.recipe_class) for work in self.workloads[0] if is_kin(work.job, job)]
        if not works:
            return Evidence()
        priced = price_workloads(self.table, works, job.cluster)
        priced = priced.take(np.flatnonzero(informative_rows(self.table)[priced.rows]).astype(np.int64))
        keys = [str(source_of(work.job, source.origin, source.framework)) for work in priced.works]
        priced = replace(priced, runs=replace(priced.runs, source=np.array(keys, str)[priced.work]))
        return Evidence.of(self.table, priced, self.name)

    def stated(self, job: Job) -> tuple[set[str], set[str]]:
        """Recipe classes and attention kernels that rows on the job's kind of cluster state, kernels by release too."""
        here = self.on(job.cluster.gpu.id)
        works = here._alike(job)
        kernels = [(work.job.training, work.release_named) for work in works]
        classes = {work.job.training.recipe_class for work in works if states_class(here.table)} - {""}
        return classes, {one.attention for one, named in kernels if named or not one.attention_assumed}

    def _alike(self, job: Job, wanted: bool = True) -> list[Workload]:
        """Workloads on the job's kind of cluster, where they are ``wanted``; none where `evidence` warns."""
        if self.table.empty or not wanted:
            return []
        try:
            return [work for work in self.workloads[0] if source_of_job(work.job) == source_of_job(job)]
        except TableError:
            return []

    def evidence_by_source(self) -> dict[Source, Evidence]:
        """Evidence of the rows by their source."""
        return evidence_by_source(self.table, self.priced, self.name)

    @functools.cached_property
    def checked(self) -> Measurements:
        """`possible`; the first time `unit_lines`, `left_out` and columns that nothing reads are logged.

        Raises TableError as there.
        """
        runs = self.possible
        for sentence in [*self.doubts, *(f"{self.name}: {line}" for line in runs.left_out)]:
            _log.warning("%s", sentence)
        for line in unread_lines(self.table):
            _log.warning("%s: %s", self.name, line)
        return runs

    @functools.cached_property
    def possible(self) -> Measurements:
        """The runs without times in another unit than the others of their source; themselves where there are none."""
        try:
            priced, (ratio, apart) = self.priced, self._outliers
        except TableError:
            return self
        odd = np.concatenate(
            [priced.rows[impossible_outliers(ratio, apart)], impossible_bounds(self.table, priced, REFUSED)]
        )
        if not len(odd):
            return self
        left = self.table["iteration_time_s"].mask(lost := np.isin(np.arange(len(self.table)), odd))
        refused = lost if self.refused is None else lost | self.refused
        return replace(self, table=self.table.assign(iteration_time_s=left), refused=refused)

    @functools.cached_property
    def _outliers(self) -> tuple[Floats, dict[str, Bools]]:
        """log(measured / predicted time) of the priced rows, and `unit_outliers`. Raises TableError as `priced`."""
        ratio = log_time_ratio(self.table, self.priced)
        return ratio, unit_outliers(ratio, self.priced.runs.source)

    @property
    def left_out(self) -> list[str]:
        """A sentence on each reason why rows teach nothing. Raises TableError where there are rows and all are such."""
        if self.table.empty:
            return []
        try:
            found, reasons = self.workloads
        except TableError as error:
            raise nothing_learned(error, self.name) from error
        if without_result(self.table)[np.concatenate([work.rows for work in found])].all():
            why = TableError(
                f"No row that can be predicted has {A_RESULT.replace(' nor ', ' or ')}{renamed_time(self.table)}."
            )
            raise nothing_learned(why, self.name)
        return left_out_lines(self.table, reasons, self.refused)

    def warn_of_others(self, job: Job) -> None:
        """Log, once, that rows say nothing of a job, since they ran by other software on other GPUs."""
        works = [] if self.table.empty else self.workloads[0]
        here = source_of_job(job)
        others = [work for work in works if source_of_job(work.job) != here and not is_kin(work.job, job)]
        if not others:
            return
        of = f"framework and GPU than the job, {_kind_words(job)}"
        line = unlike_line(others, len(self.table), of)
        if line not in self._logged:
            _log.warning("%s", line)
        self._logged.add(line)

    @functools.cached_property
    def doubts(self) -> list[str]:
        """A sentence on each source whose times or power are so far from the physics that unit or precision is doubted.

        Raises TableError for a source beyond `REFUSED`. Nothing where no row can be priced: that is reported elsewhere.
        """
        try:
            priced, (ratio, apart) = self.priced, self._outliers
        except TableError:
            return []
        source, of_precision = priced.runs.source, precision_lines(self.possible.evidence_by_source())
        check_scale(np.where(impossible_outliers(ratio, apart), np.nan, ratio), source)
        unasked = np.where(doubtful_precision(self.table)[priced.rows], np.nan, ratio)
        lines = outlier_lines(ratio, priced.rows, apart, source)
        lines += unit_lines(doubted_sources(unasked, source), but={*map(str, of_precision), *apart})
        far = impossible_bounds(self.table, priced, REFUSED)
        lines += impossible_bounds_line(far, int(is_lower_bound(self.table).sum()), REFUSED, self._named)
        return [*lines, *of_precision.values(), *power_lines(self.table, priced, self._named)]

    def _named(self, row: int) -> str:
        return f"row {row + 1} of {self.name}"


def unlike_line(works: Sequence[Workload], total: int, of: str, effect: str = "nothing was learned from them") -> str:
    """A sentence on the measured runs of ``works``, of ``total``, whose ``of`` (words) is not the predicted one's."""
    kinds = list(dict.fromkeys(_kind_words(work.job) for work in works))
    return (
        f"{sum(len(work.rows) for work in works):,} of {total:,} measured runs are of another {of} "
        f"({', '.join(kinds[:3] + ['...'] * (len(kinds) > 3))}): {effect}."
    )


def _kind_words(job: Job) -> str:
    return f"{job.training.framework.name} on {job.cluster.gpus_per_node} x {job.cluster.gpu.id}"


def nothing_learned(error: TableError, name: str = "the measured runs") -> TableError:
    """The error of a table as that of measured runs which cannot be used."""
    text = str(error)
    return TableError(f"Nothing can be learned from {name}: {text[:1].lower()}{text[1:]}")


# Doubts about the precision that measured runs state: times that the next lower one would explain.


FEWEST_RUNS, MOST_RUNS = 3, 40  # runs of a source
FAST = 0.67  # of the predicted time, below which most of a source's runs are before their precision is doubted
CLEARLY = 0.6  # of it, below which the next precision need not be nearer by far
NEARER = 1.0 / 3.0  # of a logarithm, which the next precision may leave of what the runs are off by
_LOWER = {"fp32": ("bf16", "fp16"), "bf16": ("fp8",), "fp16": ("fp8",), "fp8": ("fp4",)}


def next_lower(job: Job) -> str:
    """The next faster precision that the job's GPU has, as a job file states it; blank where there is none."""
    rates, precision = job.cluster.gpu.peak_tflops, job.training.precision
    if job.cluster.gpu.is_cpu:
        return ""
    if precision == "fp32" and job.cluster.gpu.has_tf32:
        return TF32
    wanted = _LOWER.get("fp32" if precision == TF32 else precision, ())
    return next((name for name in wanted if name in rates), "")


def in_precision(job: Job, precision: str) -> Job:
    """The job in another precision, scaled as its framework scales it."""
    training = job.training
    tf32 = replace(training.framework, tf32=precision == TF32)
    dtype = "fp32" if precision == TF32 else precision
    return replace(job, training=replace(training, dtype=dtype, framework=tf32, fp8_recipe=None))


def precision_words(evidence: Evidence) -> str:
    """A question where the timed runs of one source are too fast for their precision, and right in the next lower one.

    Blank for fewer than `FEWEST_RUNS` runs, and for runs of several precisions or that cannot be priced anew.
    """
    some = evidence.sample(MOST_RUNS)
    if some.runs is None or len(some.runs) < FEWEST_RUNS or np.mean(some.residual < np.log(FAST)) <= 0.5:
        return ""
    jobs = [part.works[i].job for part in some.priced for i in np.unique(part.work).tolist()]
    pairs = {(job.training.precision, next_lower(job)) for job in jobs}
    stated, lower = next(iter(pairs))
    if len(pairs) > 1 or not lower:
        return ""
    try:
        there = some.under(lambda job: in_precision(job, lower))
    except JointOptError:
        return ""
    if there is None:
        return ""
    now, then = (float(np.exp(np.median(one.residual))) for one in (some, there))
    known = all(job.training.framework.fitted for job in jobs)
    low, high = physics_errors()["iteration_time_s"]["near" if known else "unknown"]
    nearer = abs(np.log(then)) <= NEARER * abs(np.log(now))
    if not (low <= then <= high and (now < CLEARLY or nearer)):
        return ""
    return (
        f"take {now:.2f} times what the physics says in {stated}; in {lower} {then:.2f} times: is the precision right?"
    )


def precision_lines(evidence: Mapping[Source, Evidence]) -> dict[Source, str]:
    """`precision_words` behind the name of each source that they are of."""
    words = {source: precision_words(one) for source, one in evidence.items()}
    return {source: f"Measured runs ({source.to_text()}) {text}" for source, text in words.items() if text}
