"""Which recipe class measured runs look like, by the likelihood of their times under each."""

# A class is a factor on kernels, and the process has a factor of its own, as wide as sources differ: after three and
# ten runs it is as right without classes as with them (docs/appendix/surrogate-experiments.md). So a
# class is a finding, and moves nothing.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import RECIPE_CLASSES, Floats
from jointopt.jobs.catalog.frameworks import class_factors
from jointopt.jobs.job import Training
from jointopt.physics.sensitivities import CONSTANTS, NETWORK
from jointopt.surrogate.evidence import Evidence
from jointopt.surrogate.posterior import LEAST_NETWORK
from jointopt.surrogate.residual_gp import Runs

# Deviations of logarithms (tests/bench/bench_recipe_classes.py): of a source's factor on kernels around its class's,
# and of single runs around their source, which scatter by 0.04 to 0.15.
SPREAD, NOISE = 0.08, 0.08
FEWEST, MOST = 3, 40  # runs
LEAST_ODDS, SURE = 2.0, 10  # below which runs do not decide, and above which odds claim more than the spread allows
FAR = 0.3  # of a logarithm, beyond which no class explains what runs are off by: networks, other units
_MOVED = [CONSTANTS.index("compute"), CONSTANTS.index("elementwise")]


@dataclass(frozen=True)
class Resemblance:
    """How well runs fit each class; classes of one efficiency are one, their names joined by "or"."""

    count: int
    ratio: Mapping[str, float]  # median of measured over predicted time under each
    log_likelihood: Mapping[str, float]

    @property
    def likeliest(self) -> str:
        """The class under which the runs are likeliest."""
        return max(self.log_likelihood, key=lambda name: self.log_likelihood[name])

    @property
    def odds(self) -> float:
        """How much likelier than under any other class."""
        first, second = sorted(self.log_likelihood.values(), reverse=True)[:2]
        return float(np.exp(first - second))

    def words(self) -> str:
        """A sentence; blank where the runs are far from every class."""
        if abs(np.log(self.ratio[self.likeliest])) > FAR:
            return ""
        times = " and ".join(f"{ratio:.2f} times as long as a {name} recipe" for name, ratio in self.ratio.items())
        odds = f"{self.odds:.1f} to 1" if self.odds < SURE else f"more than {SURE} to 1"
        verdict = (
            f"look like a {self.likeliest} recipe ({odds})" if self.odds >= LEAST_ODDS else "do not tell which it is"
        )
        return f"{self.count} measured runs take {times}: they {verdict}."


def log_likelihood(runs: Runs, residual: Floats) -> float:
    """Logarithm of how likely ``residual`` (n,), log(measured / predicted) of ``runs``, is; less what any class shares.

    Normal around zero: a factor on a source's kernels (`SPREAD`), the network between nodes, and noise of each run.
    Residuals far from the middle are clipped.
    """
    kernels, network = runs.sensitivity[:, _MOVED].sum(axis=1), runs.sensitivity[:, NETWORK]
    covariance = SPREAD**2 * np.outer(kernels, kernels) + LEAST_NETWORK**2 * np.outer(network, network)
    covariance += NOISE**2 * np.eye(len(residual))
    middle = float(np.median(residual))
    left = np.clip(residual, middle - 3.0 * NOISE, middle + 3.0 * NOISE)
    return -0.5 * float(left @ np.linalg.solve(covariance, left) + np.linalg.slogdet(covariance)[1])


def efficiencies() -> dict[str, tuple[float, float]]:
    """Factors on products and element-wise kernels by the names of the classes that have them, joined by "or"."""
    names: dict[tuple[float, float], list[str]] = {}
    for name in RECIPE_CLASSES:
        names.setdefault(class_factors(name), []).append(name)
    return {" or ".join(same): factors for factors, same in names.items()}


def resemblance(evidence: Evidence) -> Resemblance | None:
    """How well the timed runs of one source, of many `MOST` of them, fit each class, priced under each.

    None for fewer than `FEWEST`, for runs that are stated to be of several efficiencies, or that cannot be priced anew.
    """
    some = evidence.some(MOST)
    now = {_factors(part.works[i].job.training) for part in some.priced for i in np.unique(part.work).tolist()}
    if some.runs is None or len(some.runs) < FEWEST or len(now) != 1:
        return None
    ratio, likely = {}, {}
    for name, factors in efficiencies().items():
        by = np.zeros(len(CONSTANTS))
        by[_MOVED] = np.log(factors) - np.log(next(iter(now)))
        there = some.moved(by)
        if there is None or there.runs is None:
            return None
        ratio[name] = float(np.exp(np.median(there.residual)))
        likely[name] = log_likelihood(there.runs, there.residual)
    return Resemblance(len(some.runs), ratio, likely)


def class_words(evidence: Evidence) -> str:
    """`Resemblance.words` of the timed runs of one source; blank where there is none, or they are far off."""
    found = resemblance(evidence)
    return "" if found is None else found.words()


def class_lines(evidence: Mapping[str, Evidence]) -> list[str]:
    """`class_words` of each source, by its key, behind its name."""
    words = {key: class_words(one) for key, one in evidence.items()}
    return [f"{Source.parse(key).to_text()}: {text}" for key, text in words.items() if text]


def _factors(training: Training) -> tuple[float, float]:
    return class_factors(training.recipe_class or training.framework.recipe_class)
