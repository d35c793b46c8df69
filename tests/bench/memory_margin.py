"""The margin of the memory model as recorded runs make it likely; `bench_feasibility` writes it into the catalogue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jointopt.core.schema import Floats
from jointopt.surrogate.memory import GRID, MemoryEvidence, MemoryMargin, log_likelihood, log_prior

_MOST = 100.0  # runs that a source counts for in learning, so that a big one does not drown the rest
_MOST_OF_ONE = 10.0  # the same where one framework's own margin is learned
START = np.array([0.0, np.log(0.1), np.log(0.08), -2.0])  # centre, log of both spreads, logit of crashes
_WIDTH = np.array([0.1, 0.7, 0.7, 1.0])  # of the prior around it


def own_margin(margin: MemoryMargin, evidence: MemoryEvidence) -> MemoryMargin:
    """The margin of one framework after its recorded runs: centre moved, sources as far apart as elsewhere at most.

    Two sources of one framework differ by less than two of different ones: half the spread, and what stays unsure. All
    runs count as ten, since published plans are variants of a few.
    """
    from scipy.special import softmax

    share = min(1.0, _MOST_OF_ONE / max(len(evidence), 1))
    prior = log_prior(margin.centre, margin.source_sd)
    weights = np.asarray(softmax(prior + share * log_likelihood(evidence, margin.plan_sd)))
    centre = float(weights @ GRID)
    unsure = float(weights @ (GRID - centre) ** 2)
    spread = min(margin.source_sd, float(np.hypot(margin.source_sd / 2.0, np.sqrt(unsure))))
    return MemoryMargin(centre, spread, margin.plan_sd, margin.crash_share)


def learn_margin(sources: Sequence[MemoryEvidence]) -> MemoryMargin:
    """The margin under which recorded runs are likely, each source counting for at most 100 runs.

    Sources that record only what fitted must leave ``ok_load`` empty: that they fitted is then why they are there.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    found = minimize(loss, START, args=(list(sources),), method="Nelder-Mead", options={"maxiter": 2000})
    centre, source, plan, crash = found.x.tolist()
    return MemoryMargin(centre, float(np.exp(source)), float(np.exp(plan)), float(expit(crash)))


def loss(point: Floats, sources: list[MemoryEvidence]) -> float:
    """Negative log of the posterior of (centre, log of both spreads, logit of crashes)."""
    from scipy.special import expit, logsumexp

    prior = log_prior(point[0], np.exp(point[1]))
    total = 0.5 * float(np.square((point - START) / _WIDTH).sum())
    for evidence in sources:
        count = len(evidence) + len(evidence.failed_load)
        if count:
            likelihood = log_likelihood(evidence, np.exp(point[2]), float(expit(point[3])))
            total -= float(logsumexp(prior + min(1.0, _MOST / count) * likelihood))
    return total
