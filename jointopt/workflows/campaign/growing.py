"""A model of the cluster that also learns from the runs of this very tune, anew as these grow in number."""

from __future__ import annotations

import logging

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.schema import Floats, Ints
from jointopt.jobs.machine import Machine
from jointopt.surrogate.kernel import Kernel, Runs
from jointopt.workflows.campaign.candidates import Candidates
from jointopt.workflows.campaign.earlier import Earlier

_log = logging.getLogger(__name__)
LEAST_OWN = 6  # runs of the tune, below which a fifth of them left out says nothing
LEAST = 20  # runs in all, as `retrain` needs: below, the process of all sources makes the order of plans worse
MORE = 1.25  # times as many runs of the tune as were learned from, before it is learned anew


class Growing:
    """Predictions for ``candidates`` by the runs of other jobs that are known ``earlier``, and those of this tune.

    ``kernel``: of all sources, None: no surrogate, and nothing is learned. Learning takes 0.2 s of CPU with 20 runs, 3
    to 4 s with 100 to 250, 7 to 10 s with 1,000, of which it takes no more; between it stays as it is.
    """

    def __init__(
        self, candidates: Candidates, earlier: Earlier, kernel: Kernel | None, machine: Machine | None = None
    ) -> None:
        self._candidates, self._earlier, self._kernel, self._machine = candidates, earlier, kernel, machine
        self._others = 0 if earlier.known is None else len(earlier.known.runs)
        self._plans: Runs | None = earlier.plans
        self._learned_from, self._log_factor = 0, None if kernel is None else np.empty(0)

    def log_factor(self, index: Ints, residual: Floats) -> Floats | None:
        """Logarithm of the factor (n,) on the predicted time of every candidate, None where too few runs are known.

        ``index`` (m,) of the candidates that ran, ``residual`` (m,) log(measured / physics) of their time. At those
        that were learned from it is what others say of them (`jointopt.surrogate.tune_model.with_own_rows`).
        """
        count = len(index)
        if self._log_factor is None or count < LEAST_OWN or self._others + count < LEAST:
            return None
        if not self._learned_from or count >= MORE * self._learned_from:
            self._log_factor, self._learned_from = self._learned(index, residual), count
        return self._log_factor

    def _learned(self, index: Ints, residual: Floats) -> Floats | None:
        from jointopt.surrogate.tune_model import with_own_rows

        plans = self._plans = self._as_runs() if self._plans is None else self._plans
        if plans is None or self._kernel is None:
            return None
        _log.info(
            "learning the cluster anew from %d runs of other jobs and %d of this one ...", self._others, len(index)
        )
        return with_own_rows(plans, index, residual, self._earlier.known, self._kernel)

    def _as_runs(self) -> Runs | None:
        """The candidates as runs of one cluster; None where they are of several, or one cannot be priced."""
        from jointopt.surrogate.dataset import price

        try:
            priced = price(self._candidates.rows.drop(columns="source", errors="ignore"), machine=self._machine)
        except TableError:
            return None
        if len(priced.rows) < self._candidates.size or len(np.unique(priced.runs.source)) > 1:
            return None
        return priced.runs.take(np.argsort(priced.rows))
