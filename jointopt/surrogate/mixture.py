"""Predictions where settings are open: a mixture of the times under each value that they may well have."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from jointopt.core.errors import JointOptError
from jointopt.core.schema import Floats, Ints
from jointopt.jobs.catalog.priors import alternatives
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel

MOST_LAYOUTS = 256  # of one job, that each alternative is priced for; others have the mean of these
LEAST = 0.005  # of a logarithm of time, from which a setting is named


@dataclass(frozen=True)
class Mixture:
    """Moments of log(time under the values of open settings / time as predicted), (n,) each, by setting."""

    mean: Mapping[str, Floats]
    variance: Mapping[str, Floats]

    @property
    def of_all(self) -> tuple[Floats, Floats]:
        """(mean, standard deviation) of all settings together, which are independent, (n,) each."""
        mean, variance = (np.sum([*of.values()], axis=0) for of in (self.mean, self.variance))
        return np.asarray(mean), np.sqrt(variance)

    def take(self, at: Ints) -> Mixture:
        """The plans at positions ``at``."""
        mean, variance = ({name: of[at] for name, of in each.items()} for each in (self.mean, self.variance))
        return Mixture(mean, variance)

    @property
    def names(self) -> list[str]:
        """Of each plan the settings that move its time, the one that moves it most first, joined by a blank."""
        if not self.mean:
            return []
        moves = np.stack([np.sqrt(self.variance[name] + self.mean[name] ** 2) for name in self.mean])
        settings, order = [*self.mean], np.argsort(-moves, axis=0, kind="stable")
        return [
            " ".join(settings[i] for i in order[:, plan] if moves[i, plan] >= LEAST) for plan in range(moves.shape[1])
        ]


def mixture_of(physics: CostModel) -> Mixture:
    """The mixture of the layouts of ``physics`` (L,) at the top clock, by the settings that its job leaves open."""
    count = len(physics.layouts["pp"])
    some = np.unique(np.linspace(0, count - 1, min(count, MOST_LAYOUTS)).round().astype(np.int64))
    layouts = {name: values[some] for name, values in physics.layouts.items()}
    clocks, every = uniform_stage_clocks(layouts["pp"], physics.top_mhz), np.arange(len(some))
    moments: dict[str, list[Floats]] = {}
    now_s: Floats | None = None
    for setting, _, weight, job in alternatives(physics.job):
        with suppress(JointOptError):  # the plans cannot be run so
            there_s = CostModel(job, layouts).evaluate(every, clocks)["iteration_time_s"]
            if now_s is None:
                now_s = CostModel(physics.job, layouts).evaluate(every, clocks)["iteration_time_s"]
            shift = np.log(there_s / now_s)
            if np.abs(shift).max() > 0.0:
                of_setting = moments.setdefault(setting, [np.zeros(len(some)), np.zeros(len(some))])
                of_setting[0] += weight * shift
                of_setting[1] += weight * shift**2
    wide = {name: [_spread(of, some, count) for of in both] for name, both in moments.items()}
    return Mixture({n: of[0] for n, of in wide.items()}, {n: of[1] - of[0] ** 2 for n, of in wide.items()})


def _spread(values: Floats, some: Ints, count: int) -> Floats:
    """Values (n,) of the positions ``some`` of ``count``, with their mean at the others."""
    out = np.full(count, values.mean())
    out[some] = values
    return out
