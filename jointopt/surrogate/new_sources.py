"""Intervals of time for a source without known runs, and for groups of runs of which a few-run source has none.

The first are 90 % bounds by recorded sources, each taken for new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import CONSTANTS, Floats, Ints
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.own_mix import COVERAGE, signal_share

if TYPE_CHECKING:
    from jointopt.surrogate.dataset import Priced  # it imports pandas, which most predictions never need

Bounds = tuple[float, float]  # 90 % half-widths below and above, of the logarithm of time
# Host work of software that nothing is known of, in 10 ms a micro-batch: sources are off by up to three times where
# micro-batches are short (nanotron, sailor), and hardly by it under profiles of their own. Widths and coverage are the
# same from 15 to 40 ms.
HOST_WORK = 2.5
FACTOR_DOUBT = (
    0.03  # squared: what a source's median leaves open of a factor, over what factors differ by (0.026 and 0.15)
)
MOST_ABOVE = float(
    np.log(8.0)
)  # that an upper end is above a prediction: of cores, too, an order of magnitude is known


@dataclass(frozen=True)
class NewSource:
    """Runs of one recorded source taken for new, (n,) each; residuals are log(measured / predicted)."""

    framework: np.ndarray[tuple[int], np.dtype[np.str_]]  # blank where it has no profile
    own: Floats  # residual under the profile of its framework
    generic: Floats  # residual under no profile
    compute: Floats  # sensitivity to the profile's factor of products
    log_compute: Floats  # the logarithm of that factor
    network: Floats  # sensitivity to a slower network
    log_efficiency: Floats  # the logarithm of the share of the network that the profile reaches
    host: Floats  # `host_share` under no profile

    @classmethod
    def of(cls, known: Priced, own: Floats, unknown: Priced, generic: Floats) -> NewSource:
        """Of runs priced under profiles and under none, and what either leaves of log(measured / predicted)."""
        profiles = [work.job.training.framework for work in known.works]
        names = np.array([profile.name if profile.fitted else "" for profile in profiles])
        logs = np.log([[profile.compute_factor, profile.network_efficiency] for profile in profiles])[known.work]
        slopes = known.runs.sensitivity[:, [CONSTANTS.index("compute"), CONSTANTS.index("inter_node")]]
        of_products, of_network = (slopes[:, 0], logs[:, 0]), (slopes[:, 1], logs[:, 1])
        return cls(names[known.work], own, generic, *of_products, *of_network, host_share(unknown.runs))

    def covered(self, of_own: Bounds, of_generic: Bounds) -> tuple[float, float]:
        """Shares of runs whose times lie within bounds, under its profile and under none."""
        own, generic = (
            (values >= -low) & (values <= high + more)
            for values, (low, high), more in ((self.own, of_own, 0.0), (self.generic, of_generic, self.host))
        )
        return float(own.mean()), float(generic.mean())


def host_share(runs: Runs) -> Floats:
    """The logarithm of how much longer ``runs`` (n,) take with `HOST_WORK` more per micro-batch."""
    return np.asarray(np.log1p(HOST_WORK * np.maximum(runs.sensitivity[:, CONSTANTS.index("micro_batch")], 0.0)))


def unfitted_residuals(source: NewSource, others: Sequence[NewSource]) -> Floats:
    """Residuals of runs of ``source`` that have a profile, under profiles fitted to the ``others`` alone."""
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
    every = []  # sensitivity to products, what runs are off by (medians); logarithms of products and network
    for other in others:
        for name in _names(other):
            at = other.framework == name
            medians = np.median(other.compute[at]), np.median(other.own[at])
            every.append((name, (*medians, other.log_compute[at][0], other.log_efficiency[at][0])))
    out = {}
    for name in _names(source) if every else ():
        same = [found for of, found in every if of == name] or [found for _, found in every]
        slopes, off, factors, efficiencies = np.array(same).T
        products = factors.mean()
        products += slopes @ (off + slopes * (factors - products)) / (slopes @ slopes + FACTOR_DOUBT)  # least squares
        out[name] = (float(products), float(efficiencies.mean()))
    return out


def _names(source: NewSource) -> list[str]:
    return [name for name in np.unique(source.framework).tolist() if name]


def bounds_of_clusters(sources: Sequence[NewSource]) -> Bounds | None:
    """Bounds of a cluster of which no run is known, under a fitted profile; None where no source has such a profile."""
    return _bounds(
        [np.abs(unfitted_residuals(one, [*sources[:i], *sources[i + 1 :]])) for i, one in enumerate(sources)]
    )


def bounds_of_software(sources: Sequence[NewSource]) -> Bounds | None:
    """Bounds of software that nothing is known of, to the upper of which `host_share` is added; None for no sources."""
    return _bounds([np.maximum(-one.generic, one.generic - one.host) for one in sources])


def _bounds(parts: Sequence[Floats]) -> Bounds | None:
    """Symmetric bounds that hold 90 % of the absolute residuals in ``parts``, each part (source) weighed alike.

    Equal in logarithms: tails of a twentieth on either side would be wider and hold fewer of a source left out
    (docs/appendix/surrogate-experiments.md).
    """
    values = [part for part in parts if len(part)]
    if not values:
        return None
    weights = np.concatenate([np.full(len(part), 1.0 / len(part)) for part in values])
    half = float(np.quantile(np.concatenate(values), COVERAGE, weights=weights, method="inverted_cdf"))
    return max(half, 0.01), max(half, 0.01)


# How far the Gaussian process of a few runs of one source counts for groups (model, batch, size) without known runs.


WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)  # that cards may have: earlier versions chose among these
# Draws of as many groups, with replacement, and the share of them in which the process must be no worse than the
# physics to count in whole. A part chosen by the median alone was worse than the physics once it was judged on groups
# that had no say in it (DLPerf 8.3 %, physics 7.4): the whole process and none of it are as good as each other there,
# and a group more or less turned the choice round.
DRAWS, SURE_SHARE = 500, 0.8
# Groups are left out one by one, of more than so many some together. In fifths the others are fewer than they will be,
# and the process seems worse than it is (docs/appendix/surrogate-experiments.md).
MOST_FOLDS = 30
_SIZES = ("log2_hidden", "log2_layers", "log2_seq_length", "log2_gpus")
LEAST_GROUPS = 5  # of three of vTrain's, 6 of 16 draws chose the physics, 15 % off where the process is 4 %


@dataclass(frozen=True)
class NewGroups:
    """Judged on groups of the few runs of ``sources`` that were left out: ``weight`` of the process, the rest physics.

    ``wider``: conformal factor on half-widths there, 1 or more. ``errors``: median errors on what was left out, of
    ``physics``, of the whole ``process``, and of ``time`` as it is now. ``judged``: groups that were left out.
    ``as_sure``: that weight times `signal_share`, by how sure the process is of each plan.
    """

    sources: tuple[str, ...]
    weight: float = 1.0
    wider: float = 1.0
    errors: Mapping[str, float] = field(default_factory=dict)
    judged: int = LEAST_GROUPS
    as_sure: bool = False

    @property
    def in_whole(self) -> bool:
        """Whether the process counts there as it does where runs are known."""
        return self.weight == 1.0 and not self.as_sure

    def parts(self, runs: Runs, known: Runs, mean: Floats, half_width: Floats) -> tuple[Floats, Floats]:
        """(weight of the process's mean, factor on its half-widths), (n,) each, of ``runs``.

        ``mean``, ``half_width`` (n,): those of the process. Both are 1 where a run of the group is ``known``.
        """
        if self.in_whole and self.wider == 1.0:
            return np.ones(len(runs)), np.ones(len(runs))
        # by sizes of model, batch and cluster, since a model has other names in other tables, or none
        groups = set(map(tuple, _sizes(known).tolist()))
        known_group = np.fromiter((tuple(sizes) in groups for sizes in _sizes(runs).tolist()), np.bool_, len(runs))
        part = self.weight * (signal_share(mean, half_width) if self.as_sure else np.ones(len(runs)))
        return np.where(known_group, 1.0, part), np.where(known_group, 1.0, self.wider)

    @property
    def sentence(self) -> str:
        """Words on a plan of whose group no run is known, where the process counts in part."""
        unknown = "no run of this model with this batch, sequence length and number of GPUs is known"
        part = f"process counted by {self.weight:g}"
        part = "process counted as far as it is sure of this plan" if self.as_sure else part
        part = part if self.weight else "process not counted, the physics alone predicts"
        whole, left = (f"{100.0 * self.errors[name]:.1f} %" for name in ("process", "time"))
        return f"Own runs: {part}, since {unknown} (of such groups left out {left} off, by the whole of it {whole})."

    def to_text(self) -> str:
        """A line: the weight, and median errors on what was left out with the whole process and with that of it."""
        e, origin = {name: f"{100.0 * error:.1f}" for name, error in self.errors.items()}, Source.parse(self.sources[0])
        gain = f"{e['process']} -> {e['time']} % on held-out groups (physics {e['physics']} %)"
        remark = (
            ", which the physics alone predicts" * (not self.weight) + ", as far as it is sure of each" * self.as_sure
        )
        remark += f" (fewer than {LEAST_GROUPS} were judged: none is chosen)" * (self.judged < LEAST_GROUPS)
        return f"{origin.origin}: process {self.weight:g} for groups without runs{remark}: {gain}"


def size_groups(runs: Runs) -> Ints:
    """Numbers (n,) of the groups of ``runs``: those of one number agree in sizes, by which a group is known again."""
    return np.unique(_sizes(runs), axis=0, return_inverse=True)[1].reshape(-1)


def _sizes(runs: Runs) -> Floats:
    """Hidden size, layers, sequence length, GPUs and batch (n, 5), as rounded logarithms."""
    batch = runs.matrix(("log2_micro_batches", "log2_micro_batch_size", "log2_dp")).sum(axis=1)
    return np.column_stack([runs.matrix(_SIZES), batch]).round(4) + 0.0  # no negative zero
