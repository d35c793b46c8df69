"""Which recipe class measured runs look like, by the likelihood of their times under each."""

# A class is a factor on kernels, and the process has a factor of its own, as wide as sources differ: after three and ten
# runs it is as right without classes as with them (docs/surrogate.md). So a class moves nothing here; it is a finding.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import RECIPE_CLASSES, Floats
from jointopt.physics.describe import CONSTANTS
from jointopt.spec.catalog.recipe_classes import class_factors
from jointopt.spec.job import Training
from jointopt.surrogate.evidence import Evidence
from jointopt.surrogate.posterior import LEAST_NETWORK
from jointopt.surrogate.residual_gp import Runs

# Deviations of logarithms (tests/bench/bench_recipe_classes.py): of a source's factor on kernels around its class's, and
# of single runs around their source, which scatter by 0.04 to 0.15.
SPREAD, NOISE = 0.08, 0.1
FEWEST, MOST = 3, 40  # runs
LEAST_ODDS, SURE = 1.5, 10  # below which runs do not tell, and above which odds say more than the spread allows
FAR = 0.3  # of a logarithm, beyond which no class says what runs are off by: networks, other units
_MOVED = [CONSTANTS.index("compute"), CONSTANTS.index("elementwise")]
_NETWORK = CONSTANTS.index("inter_node")


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
        times = ", ".join(f"{ratio:.2f} times a {name} recipe's" for name, ratio in self.ratio.items())
        odds = f"{self.odds:.1f} to 1" if self.odds < SURE else f"more than {SURE} to 1"
        told = f"they look like a {self.likeliest} recipe ({odds})"
        return f"{self.count} measured runs take {times}: {told if self.odds >= LEAST_ODDS else 'they tell neither'}."


def resemblance(runs: Runs, residual: Floats, now: Floats) -> Resemblance:
    """How well ``runs`` fit each class, by log(measured / predicted) ``residual`` (n,).

    ``now`` (n, 2): logarithms of the class's factors that each was priced with, on products and element-wise kernels.
    Residuals under a class are normal around zero: one factor on a source's kernels (`SPREAD`), the network between nodes,
    and each run's own noise, those far from the middle clipped.
    """
    slopes, network = runs.sensitivity[:, _MOVED], runs.sensitivity[:, _NETWORK]
    kernels = slopes.sum(axis=1)
    covariance = SPREAD**2 * np.outer(kernels, kernels) + LEAST_NETWORK**2 * np.outer(network, network)
    covariance += NOISE**2 * np.eye(len(residual))
    ratio, likely = {}, {}
    for name, factors in efficiencies().items():
        left = residual - (slopes * (np.log(factors) - now)).sum(axis=1)
        middle = float(np.median(left))
        ratio[name] = float(np.exp(middle))
        left = np.clip(left, middle - 3.0 * NOISE, middle + 3.0 * NOISE)
        likely[name] = -0.5 * float(left @ np.linalg.solve(covariance, left))
    return Resemblance(len(residual), ratio, likely)


def efficiencies() -> dict[str, tuple[float, float]]:
    """Factors on products and element-wise kernels by the names of the classes that have them, joined by "or"."""
    names: dict[tuple[float, float], list[str]] = {}
    for name in RECIPE_CLASSES:
        names.setdefault(class_factors(name), []).append(name)
    return {" or ".join(same): factors for factors, same in names.items()}


def class_words(evidence: Evidence) -> str:
    """`Resemblance.words` of the timed runs of one source; blank for fewer than `FEWEST`, or where they are far off."""
    some = evidence.some(MOST)
    if some.runs is None or len(some.runs) < FEWEST or some.timed.sum() != len(some.runs):
        return ""
    logs = [np.log([_factors(work.job.training) for work in part.works])[part.work] for part in some.priced]
    return resemblance(some.runs, some.residual, np.concatenate(logs)[some.timed]).words()


def class_lines(evidence: Mapping[str, Evidence]) -> list[str]:
    """`class_words` of each source, by its key, behind its name."""
    words = {key: class_words(one) for key, one in evidence.items()}
    return [f"{Source.parse(key).to_text()}: {text}" for key, text in words.items() if text]


def _factors(training: Training) -> tuple[float, float]:
    return class_factors(training.recipe_class or training.framework.recipe_class)
