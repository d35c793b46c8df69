"""Measured runs at the border: rows checked and priced once, and what they say of each source."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.core.schema import Floats
from jointopt.runs.database import without_password
from jointopt.runs.limits import RESULT_RULES
from jointopt.runs.table import sound_results
from jointopt.runs.workloads import Workload, workloads
from jointopt.spec.job import Job
from jointopt.surrogate.dataset import Priced, power_log_ratio, price_workloads, together, with_results
from jointopt.surrogate.feasibility import MemoryEvidence
from jointopt.surrogate.memory import MemoryPosterior, memory_evidence
from jointopt.surrogate.power_scale import PowerScale, power_scale
from jointopt.surrogate.residual_gp import Runs

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
GIVEN = "the measured runs given"
DOUBTED, REFUSED = 5.0, 50.0  # median measured over predicted time of a source, or its inverse
_QUESTION = "is iteration_time_s in seconds, and of one iteration?"
_LEARNED_FROM = ("ok", "oom")  # of the statuses of runs


@dataclass(frozen=True, eq=False)
class Measurements:
    """Rows of one measurement table: results are numbers or NaN, none of them impossible, a blank status is ok.

    ``warnings``: a sentence on each kind of cell that cannot be and is not used. ``name``: what messages call the rows.
    """

    table: pd.DataFrame
    warnings: tuple[str, ...] = ()
    name: str = GIVEN

    @classmethod
    def of(cls, table: pd.DataFrame, name: str = GIVEN) -> Measurements:
        """Check the rows of a table; what is not used is logged. TableError where a result is no number."""
        sound, sentences = sound_results(table, RESULT_RULES)
        for sentence in sentences:
            _log.warning("%s: %s", name, sentence)
        return cls(with_results(sound), tuple(sentences), name)

    @classmethod
    def given(cls, measured: pd.DataFrame | Measurements) -> Measurements:
        """Measured runs as a caller gives them, their times checked.

        TableError for times that are so far from the physics that they are in another unit.
        """
        runs = measured if isinstance(measured, Measurements) else cls.of(measured)
        for sentence in runs.doubts:
            _log.warning("%s", sentence)
        return runs

    @classmethod
    def stored(cls, url: str) -> Measurements:
        """All measurements of the database of that URL."""
        from jointopt.runs.store import Store

        return cls(with_results(Store(url).read()), name=without_password(url))

    @functools.cached_property
    def workloads(self) -> tuple[list[Workload], dict[int, str]]:
        """Workloads of the rows, and why each other row belongs to none; TableError where no row has one."""
        return workloads(self.table)

    @functools.cached_property
    def priced(self) -> Priced:
        """The physics' answer for every row that it can price, on the usual links of each GPU."""
        found, reasons = self.workloads
        priced = price_workloads(self.table, found)
        return replace(priced, reasons=reasons | priced.reasons)

    def take(self, rows: Any) -> Measurements:
        """The rows that a mask or positions choose, numbered from 0."""
        return Measurements(self.table[rows].reset_index(drop=True), (), self.name)

    def on(self, gpu_id: str) -> Measurements:
        """The runs on that GPU that ended well or out of memory."""
        from jointopt.spec.catalog.gpus import gpu_id as id_of

        if "gpu" not in self.table:
            return self.take(np.zeros(len(self.table), bool))
        names = self.table["gpu"].dropna().unique()
        same = self.table["gpu"].isin([name for name in names if id_of(name) == gpu_id])
        return self.take(same & self.table["status"].isin(_LEARNED_FROM))

    def evidence(self, job: Job, source: str) -> Evidence:
        """What the runs on the job's kind of cluster say, as runs of ``source``; nothing where there are none.

        Their links and cooling are those of the job's cluster.
        """
        here = self.on(job.cluster.gpu.id)
        if here.table.empty:
            return Evidence()
        try:
            works = [work for work in here.workloads[0] if same_kind(work.job, job)]
        except TableError as error:
            _log.warning("%s teach nothing: %s", self.name, error)
            return Evidence()
        priced = price_workloads(here.table, works, job.cluster)
        priced = replace(priced, runs=relabelled(priced.runs, source))
        return Evidence.of(here.table, priced, self.name)

    def evidence_by_source(self) -> dict[str, Evidence]:
        """What the rows say, by the key of their source."""
        return evidence_by_source(self.table, self.priced, self.name)

    @functools.cached_property
    def doubts(self) -> list[str]:
        """A sentence on each source whose times are so far from the physics that their unit is in doubt.

        Raises TableError for a source beyond `REFUSED`. Nothing where no row can be priced: that is reported elsewhere.
        """
        try:
            priced = self.priced
        except TableError:
            return []
        return checked_scale(_log_time_ratio(self.table, priced), priced.runs.source)


@dataclass(frozen=True)
class Evidence:
    """What measured runs of one source say of time, power and memory.

    ``runs`` have a measured time, ``residual`` is log(measured / physics) of it, (n,). ``counts``: how many timed runs
    come from where.
    """

    runs: Runs | None = None
    residual: Floats = field(default_factory=lambda: np.empty(0))
    log_power_ratio: Floats = field(default_factory=lambda: np.empty(0))
    memory: MemoryEvidence = field(default_factory=MemoryEvidence)
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, table: pd.DataFrame, priced: Priced, name: str) -> Evidence:
        """What the priced rows of ``table`` say, all of one source."""
        ratio = _log_time_ratio(table, priced)
        timed = np.flatnonzero(np.isfinite(ratio)).astype(np.int64)
        return cls(
            runs=priced.runs.take(timed) if len(timed) else None, residual=ratio[timed],
            log_power_ratio=power_log_ratio(table, priced), memory=memory_evidence(table, priced),
            counts={name: len(timed)} if len(timed) else {},
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        """All of ``parts``, which are of one source."""
        runs = [part.runs for part in parts if part.runs is not None]
        return cls(
            runs=together(runs) if runs else None,
            residual=np.concatenate([np.empty(0), *(part.residual for part in parts)]),
            log_power_ratio=np.concatenate([np.empty(0), *(part.log_power_ratio for part in parts)]),
            memory=functools.reduce(MemoryEvidence.__add__, (p.memory for p in parts), MemoryEvidence()),
            counts={name: count for part in parts for name, count in part.counts.items()},
        )

    @property
    def known(self) -> tuple[Runs, Floats] | None:
        """Timed runs and their residuals; None where there are none."""
        return None if self.runs is None else (self.runs, self.residual)

    @functools.cached_property
    def power(self) -> PowerScale:
        """The factor on predicted power."""
        return power_scale(self.log_power_ratio)

    @functools.cached_property
    def memory_posterior(self) -> MemoryPosterior:
        """The memory model after these runs."""
        return MemoryPosterior(self.memory)


def evidence_by_source(table: pd.DataFrame, priced: Priced, name: str) -> dict[str, Evidence]:
    """What the priced rows of ``table`` that ended well or out of memory say, by the key of their source."""
    learned = np.isin(table["status"].to_numpy(str)[priced.rows], _LEARNED_FROM)
    found = {}
    for key in np.unique(priced.runs.source[learned]):
        rows = np.flatnonzero(learned & (priced.runs.source == key)).astype(np.int64)
        found[str(key)] = Evidence.of(table, priced.take(rows), name)
    return found


def relabelled(runs: Runs, source: str) -> Runs:
    """``runs`` as those of ``source``."""
    return replace(runs, source=np.full(len(runs), source))


def same_kind(first: Job, second: Job) -> bool:
    """Whether two jobs share GPU, GPUs per node and framework profile (or neither has a fitted one)."""
    return _kind(first) == _kind(second)


def _kind(job: Job) -> tuple[str, str, int]:
    profile, cluster = job.training.framework, job.cluster
    return profile.name if profile.fitted else "", cluster.gpu.id, cluster.gpus_per_node


def sources_of_kind(keys: Iterable[str], job: Job) -> list[str]:
    """Of source ``keys`` those on the job's kind of cluster."""
    _, gpu, per_node = _kind(job)
    profile = job.training.framework
    parsed = {key: Source.parse(key) for key in keys}
    return [
        key
        for key, source in parsed.items()
        if (source.gpu, source.gpus_per_node) == (gpu, per_node)
        and (source.framework == profile.name or not profile.fitted)
    ]


def _log_time_ratio(table: pd.DataFrame, priced: Priced) -> Floats:
    """log(measured / predicted time) in the order of ``priced.rows``, NaN where a run has no time or did not end."""
    time_s = table["iteration_time_s"].to_numpy(float)[priced.rows]
    timed = (table["status"].to_numpy(str)[priced.rows] == "ok") & (time_s > 0)
    return priced.residual(np.where(timed, time_s, np.nan))


def off_scale(log_ratio: Floats, source: np.ndarray[Any, Any]) -> dict[str, float]:
    """Median measured over predicted time of each source that is beyond `DOUBTED` either way.

    ``log_ratio``: log(measured / predicted) of every run, (n,), NaN where unknown; ``source``: its source, (n,).
    """
    known = np.isfinite(log_ratio)
    found = {str(name): np.median(log_ratio[known & (source == name)]) for name in np.unique(source[known])}
    return {name: float(np.exp(value)) for name, value in found.items() if abs(value) > np.log(DOUBTED)}


def doubts(found: Mapping[str, float], predicted: str = "what the physics says") -> list[str]:
    """One sentence for each source (or group) that is `off_scale`."""
    return [
        f"Measured runs{_named(name)} take {_times(v)} {predicted}: {_QUESTION}" for name, v in found.items()
    ]


def checked_scale(log_ratio: Floats, source: np.ndarray[Any, Any]) -> list[str]:
    """`doubts` of runs that are to be learned from; TableError for a source beyond `REFUSED`."""
    found = off_scale(log_ratio, source)
    for name, value in found.items():
        if max(value, 1 / value) > REFUSED:
            raise TableError(
                f"Nothing can be learned from the measured runs{_named(name)}: they take {_times(value)} what the "
                f"physics says; expected less than {REFUSED:g} times either way. {_QUESTION.capitalize()} Correct the "
                "column, or leave these runs out."
            )
    return doubts(found)


def _named(name: str) -> str:
    """A source or group as it stands behind "measured runs"."""
    try:
        text = Source.parse(name).to_text()
    except ValueError:  # a group's name
        text = name
    return f" ({text})" if text else ""


def _times(value: float) -> str:
    return f"{value:,.3g} times" if value < 1000 else f"{value:,.0f} times"
