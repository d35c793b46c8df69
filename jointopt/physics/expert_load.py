"""How unevenly routers load experts, and the ranks and nodes that hold them: of the most loaded one over the mean.

An expert's tokens of one micro-batch, of all ranks of its group together, are taken as normal with the same spread for
all experts. Places that hold several of them even it out. Routers limited to groups of experts are taken as free ones.
"""

from __future__ import annotations

import functools
from statistics import NormalDist

import numpy as np

from jointopt.core.schema import Floats
from jointopt.jobs.job import Training
from jointopt.jobs.model import Model


@functools.lru_cache(maxsize=1024)
def expected_largest(count: int) -> float:
    """Expected largest of so many draws of a standard normal, whose distribution is a power of the normal one."""
    x = np.linspace(-9.0, 9.0, 1801)
    below = np.array([NormalDist().cdf(at) for at in x.tolist()]) ** count
    return float(np.sum(0.5 * (x[1:] + x[:-1]) * np.diff(below)))


def expert_spread(model: Model, training: Training, tokens: Floats) -> Floats:
    """Standard deviation of an expert's ``tokens`` over their mean, which they are, (L,).

    By what is stated of the most loaded expert (1 + MaxVio, arXiv:2408.15664), or, where balance is forced, what random
    logits leave: a token meets an expert with probability k/E, so that the count is binomial.
    """
    if training.moe_router_force_load_balancing:
        share = model.moe_router_topk / model.num_experts
        return np.asarray(np.sqrt((1.0 - share) / np.maximum(tokens, 1.0)))
    return np.full(np.shape(tokens), (training.moe_load_imbalance - 1.0) / expected_largest(model.num_experts))


def most_loaded(model: Model, places: Floats, spread: Floats) -> Floats:
    """Tokens of the most loaded of ``places`` over the mean of all, (L,), where experts have that relative spread.

    A place holds E/places experts drawn without replacement from E whose tokens add up to a constant: the variance of
    their mean is spread²·(E - g)/((E - 1)·g), g of them (sampling from a finite population; derived here).
    """
    held = model.num_experts / places
    even = (model.num_experts - held) / (max(model.num_experts - 1, 1) * held)
    counts, back = np.unique(np.maximum(np.rint(places), 1.0), return_inverse=True)
    largest = np.array([expected_largest(int(count)) for count in counts.tolist()])[back]
    return np.asarray(np.minimum(1.0 + largest * spread * np.sqrt(even), np.maximum(places, 1.0)))
