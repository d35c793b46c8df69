"""The memory model after measured runs: evidence of a source, and the plans that fit by it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Bools, Floats
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.surrogate import feasibility
from jointopt.surrogate.feasibility import GRID, MemoryEvidence, MemoryMargin

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.dataset import Priced


FEASIBLE = 0.5  # a plan that fits in memory with at least this probability is feasible, for every verb
SURE = 0.8  # one that fits at least so probably is not marked as tight
CERTAIN = 0.05  # one below this is certain not to fit, and never run
FAILED_START = 0.2  # of its time and energy: what a plan of even odds is charged where runs decide


@functools.cache
def memory_margin(framework: str = "") -> MemoryMargin:
    """The memory model's errors on recorded sources (catalog/memory_margin.yaml), by framework where known."""
    entry = dict(read_yaml("memory_margin.yaml"))
    own = entry.pop("frameworks", {}).get(framework, {})
    return MemoryMargin(**{name: float(value) for name, value in (entry | own).items()})


def cost_of_failing(fitting: Floats) -> Floats:
    """Factor (n,) by which plans that may not fit rank behind their time and energy: `FAILED_START` x odds².

    A judgement: nothing to speak of down to a probability of 0.8 (1 %), 20 % at even odds, twofold at 0.3.
    """
    return np.asarray(1.0 + FAILED_START * ((1.0 - fitting) / np.maximum(fitting, 1e-3)) ** 2)


@dataclass(frozen=True)
class MemoryPosterior:
    """The memory model of one source after its measured runs; without any, by the errors on recorded sources."""

    evidence: MemoryEvidence = field(default_factory=MemoryEvidence)
    framework: str = ""

    @functools.cached_property
    def _weights(self) -> Floats:
        return feasibility.source_weights(self.margin, self.evidence)

    @property
    def margin(self) -> MemoryMargin:
        """The errors on recorded sources."""
        return memory_margin(self.framework)

    @property
    def factor(self) -> float:
        """Measured over predicted memory; 1 where nothing was measured: then the physics' figure stands."""
        return float(np.exp(self._weights @ GRID)) if len(self.evidence) else 1.0

    @functools.cached_property
    def reach(self) -> float:
        """Predicted memory (by the physics alone) over the limit up to which a plan is not certain to fail."""
        return self.largest_load(CERTAIN)

    def largest_load(self, probability: float = FEASIBLE) -> float:
        """Predicted memory (by the physics alone) over the limit at which a plan fits with that probability."""
        return float(np.exp(feasibility.load_limit(self._weights, self.margin, probability)))

    def fits(self, log_load: Floats) -> Bools:
        """Whether plans fit (n,); ``log_load``: log(memory by the physics alone / what a GPU may use)."""
        return np.asarray(self.fit_probability(log_load) >= FEASIBLE)

    def fit_probability(self, log_load: Floats) -> Floats:
        """Probability that plans of that load fit (n,)."""
        return feasibility.fit_probability(log_load, self._weights, self.margin)

    def fit_draws(self, log_load: Floats, count: int, rng: np.random.Generator) -> Bools:
        """Joint draws of whether plans fit (n, count)."""
        return feasibility.fit_draws(log_load, self._weights, self.margin, count, rng)


def log_load(priced: Priced) -> Floats:
    """Log of predicted memory over what a GPU may use (n,), in the order of ``priced.rows``."""
    return np.asarray(np.log(priced.physics["peak_memory_gib"] / priced.memory_limit_gib))


def memory_evidence(table: pd.DataFrame, priced: Priced, own: Bools | None = None) -> MemoryEvidence:
    """Evidence on memory of rows of ``table`` (as `with_results` reads them); ``own`` (n,): of which priced rows."""
    rows = priced.rows
    own = np.ones(len(rows), bool) if own is None else own
    status, timed = table["status"].to_numpy(str)[rows], table["iteration_time_s"].to_numpy(float)[rows] > 0
    blank = np.full(len(table), np.nan)
    measured_gib = np.asarray(table.get("peak_memory_gib", blank), float)[rows]
    load, ran = log_load(priced), own & (status == "ok")
    read = ran & (measured_gib > 0)
    ratio = np.log(measured_gib[read] / priced.physics["peak_memory_gib"][read])
    failed = (load[own & (status == kind)] for kind in ("oom", "failed"))
    return MemoryEvidence(ratio, load[ran & timed & ~read], *failed)
