"""How far off times of a source are of which no run is known: 90 % bounds by recorded sources, each taken for new."""

# A profile was fitted to the very runs that it is judged on, so that its own errors are smaller than a new cluster's.
# So each source gets a stand-in: its profile with the two constants that clusters differ in, products and network, as
# the other sources have them, those of the same framework where there are such, else all: the factors of products that
# suit two clusters under one framework differ by 0.17 of a logarithm (deviation; three frameworks of two sources each),
# those that suit frameworks by 0.12. Bounds are over stand-ins alone. Over own errors and stand-ins alike they would be
# narrower by a tenth, and hold less of either where a source is left out (docs/appendix/surrogate-experiments.md).

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Floats
from jointopt.physics.sensitivities import CONSTANTS
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.own_mix import COVERAGE

if TYPE_CHECKING:
    from jointopt.surrogate.dataset import Priced  # it imports pandas, which most predictions never need

Bounds = tuple[float, float]  # 90 % half-widths below and above, of the logarithm of time
# Host work of software that nothing is known of, in 10 ms a micro-batch: sources are off by up to three times where
# micro-batches are short (nanotron, sailor), and hardly by it under profiles of their own. Widths and coverage are the
# same from 15 to 40 ms.
HOST = 2.5
DOUBT = 0.03  # squared: what a source's median leaves open of a factor, over what factors differ by (0.026 and 0.15)
MOST = float(np.log(8.0))  # that an upper end is above a prediction: of cores, too, an order of magnitude is known


@dataclass(frozen=True)
class NewSource:
    """The runs of one source, (n,) each, and by what logarithms predictions of them are off."""

    framework: np.ndarray[tuple[int], np.dtype[np.str_]]  # blank where it has no profile
    own: Floats  # under its profile
    generic: Floats  # under none
    compute: Floats  # sensitivity to the profile's factor of products, and its logarithm
    log_compute: Floats
    network: Floats  # sensitivity to a slower network, and the logarithm of the share of it that is reached
    log_efficiency: Floats
    host: Floats  # `host_share` under no profile

    @classmethod
    def of(cls, known: Priced, own: Floats, unknown: Priced, generic: Floats) -> NewSource:
        """Of runs priced under profiles and under none, and what either leaves of log(measured / predicted)."""
        profiles = [work.job.training.framework for work in known.works]
        names = np.array([profile.name if profile.fitted else "" for profile in profiles])
        logs = np.log([[profile.compute_factor, profile.network_efficiency] for profile in profiles])[known.work]
        slopes = known.runs.sensitivity[:, [CONSTANTS.index("compute"), CONSTANTS.index("inter_node")]]
        return cls(
            names[known.work],
            own,
            generic,
            slopes[:, 0],
            logs[:, 0],
            slopes[:, 1],
            logs[:, 1],
            host_share(unknown.runs),
        )

    def of_framework(self, name: str) -> tuple[float, float, float, float]:
        """Sensitivity to products, what runs are off by (medians); logarithms of the profile's products and network."""
        at = self.framework == name
        medians = float(np.median(self.compute[at])), float(np.median(self.own[at]))
        return *medians, float(self.log_compute[at][0]), float(self.log_efficiency[at][0])

    def covered(self, of_own: Bounds, of_generic: Bounds) -> tuple[float, float]:
        """Shares of runs whose times lie within bounds, under its profile and under none."""
        own, generic = (
            (values >= -low) & (values <= high + more)
            for values, (low, high), more in ((self.own, of_own, 0.0), (self.generic, of_generic, self.host))
        )
        return float(own.mean()), float(generic.mean())


def host_share(runs: Runs) -> Floats:
    """The logarithm of how much longer ``runs`` (n,) take with `HOST` more per micro-batch."""
    return np.asarray(np.log1p(HOST * np.maximum(runs.sensitivity[:, CONSTANTS.index("micro_batch")], 0.0)))


def stand_in(source: NewSource, others: Sequence[NewSource]) -> Floats:
    """The residuals that profiles not fitted to ``source`` leave, (n,) or fewer: of runs whose framework has one."""
    parts, factors = [np.empty(0)], factors_by_others(source, others)
    for name in _names(source):
        at = source.framework == name
        left = source.own[at]
        if name in factors:
            products, efficiency = factors[name]
            left = left + source.compute[at] * (source.log_compute[at] - products)
            left = left - source.network[at] * (source.log_efficiency[at] - efficiency)
        parts.append(left)
    return np.concatenate(parts)


def factors_by_others(source: NewSource, others: Sequence[NewSource]) -> dict[str, tuple[float, float]]:
    """Logarithms of a profile's products and network as ``others`` have them, by the names of ``source``'s profiles."""
    every = [(name, other.of_framework(name)) for other in others for name in _names(other)]
    out = {}
    for name in _names(source) if every else ():
        same = [found for of, found in every if of == name] or [found for _, found in every]
        slopes, off, factors, efficiencies = np.array(same).T
        products = factors.mean()
        products += slopes @ (off + slopes * (factors - products)) / (slopes @ slopes + DOUBT)  # least squares
        out[name] = (float(products), float(efficiencies.mean()))
    return out


def _names(source: NewSource) -> list[str]:
    return [name for name in np.unique(source.framework).tolist() if name]


def bounds_of_clusters(sources: Sequence[NewSource]) -> Bounds | None:
    """Bounds of a cluster of which no run is known, under a fitted profile; None where no source has such a profile."""
    return _bounds([np.abs(stand_in(one, [*sources[:i], *sources[i + 1 :]])) for i, one in enumerate(sources)])


def bounds_of_software(sources: Sequence[NewSource]) -> Bounds | None:
    """Bounds of software that nothing is known of, to the upper of which `host_share` is added; None for no sources."""
    return _bounds([np.maximum(-one.generic, one.generic - one.host) for one in sources])


def _bounds(parts: Sequence[Floats]) -> Bounds | None:
    """Bounds as far below as above, which hold 90 % of runs that lie ``parts`` beyond nothing, each weighed alike.

    Equal in logarithms: tails of a twentieth on either side would be wider and hold fewer of a source left out
    (docs/appendix/surrogate-experiments.md).
    """
    values = [part for part in parts if len(part)]
    if not values:
        return None
    weights = np.concatenate([np.full(len(part), 1.0 / len(part)) for part in values])
    half = float(np.quantile(np.concatenate(values), COVERAGE, weights=weights, method="inverted_cdf"))
    return max(half, 0.01), max(half, 0.01)
