"""A Gaussian process on the residual of the physics, r = log(measured / predicted), with the physics in its kernel."""

# r = J·δ + u_source + u_group + s(x) + noise: J the sensitivity of the predicted time to the physics' own constants
# (`jointopt.physics.describe.sensitivities`), δ how far those of this cluster and software are off, u the scale of a
# source and of a group, s a smooth function of shape and shares. Hyperparameters by marginal likelihood over recorded
# sources (Rasmussen and Williams 2006, sections 5.1 and 5.4.1). Runs of different sources are independent: sharing
# among clusters under one framework made unseen ones worse. Noise is Student-t by reweighting, because recorded runs
# have outliers (West 1984, Outlier models and prior distributions in Bayesian linear regression).

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Columns, Floats

DEGREES_OF_FREEDOM = 3.0
REWEIGHTS = 6
MOST_RUNS = 800  # of one source that a posterior is conditioned on; the cost grows with the cube
LARGEST_RESIDUAL = 1.5
# by name, not from the schema: a stored surrogate has a length for each of these, in this order
CLASSES: Mapping[str, tuple[str, ...]] = {
    "plan": tuple(f"log2_{n}" for n in ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "micro_batches")),
    "switch": ("sequence_parallel", "recompute", "zero_stage"),
    "model": ("log2_hidden", "log2_layers", "log2_seq_length", "log2_gpus", "log2_head_dim", "log2_peak"),
    "software": ("attention", "fused_norm", "dtype", "moe"),
    "size": ("log2_stage_layers", "log2_width", "log2_rank_tokens", "log2_tp_nodes", "log2_dp_nodes"),
    "share": tuple(
        f"share_{n}" for n in ("compute", "tp_comm", "pp_comm", "dp_comm", "bubble", "host", "zero_comm", "cp_comm")
    ),
}
USUAL_LENGTHS = {"plan": 2.0, "switch": 1.0, "model": 2.0, "software": 1.0, "size": 2.0, "share": 0.3}
FEATURES = tuple(name for names in CLASSES.values() for name in names)
CHUNK = 16_384  # runs whose covariance with the measured ones is held at a time


@dataclass(frozen=True)
class Runs:
    """Inputs of n runs: sensitivities (n, constants), features by name (n,), and whom they are comparable with."""

    sensitivity: Floats
    features: Columns
    source: npt.NDArray[np.str_]  # one cluster and software stack
    group: npt.NDArray[np.str_]  # within it: same model, GPUs and batch

    def __len__(self) -> int:
        return len(self.sensitivity)

    def take(self, rows: npt.NDArray[np.int64]) -> Runs:
        """The runs at positions ``rows``."""
        features = {name: values[rows] for name, values in self.features.items()}
        return Runs(self.sensitivity[rows], features, self.source[rows], self.group[rows])

    def matrix(self, names: Sequence[str]) -> Floats:
        """Features (n, len(names)); a run that lacks one has 0."""
        zero = np.zeros(len(self))
        return np.column_stack([self.features.get(name, zero) for name in names])


def together(parts: Sequence[Runs]) -> Runs:
    """All runs of ``parts`` as one; a feature that only some have is 0 in the others."""
    if len(parts) == 1:
        return parts[0]
    names = {name: None for runs in parts for name in runs.features}
    return Runs(
        np.concatenate([runs.sensitivity for runs in parts]),
        {n: np.concatenate([r.features.get(n, np.zeros(len(r))) for r in parts]) for n in names},
        np.concatenate([runs.source for runs in parts]),
        np.concatenate([runs.group for runs in parts]),
    )


@dataclass(frozen=True)
class Kernel:
    """Standard deviations of each term, of logarithms of time, and lengths over which the smooth term varies."""

    constants: tuple[float, ...]
    source: float
    group: float
    shape: float
    lengths: tuple[float, ...]  # one per name in `FEATURES`
    noise: float

    @classmethod
    def unpack(cls, logs: Floats, count: int) -> Kernel:
        """The kernel of `pack` with ``count`` constants."""
        v = np.exp(logs).tolist()
        return cls(tuple(v[:count]), v[count], v[count + 1], v[count + 2], tuple(v[count + 3 : -1]), v[-1])

    def pack(self) -> Floats:
        """Logarithms of all hyperparameters, one after the other."""
        return np.log([*self.constants, self.source, self.group, self.shape, *self.lengths, self.noise])


def default_kernel(constants: int) -> Kernel:
    """Where learning starts, and the centre of the prior on its logarithms."""
    lengths = tuple(USUAL_LENGTHS[kind] for kind, names in CLASSES.items() for _ in names)
    return Kernel((0.15,) * constants, 0.1, 0.05, 0.08, lengths, 0.03)


def covariance(kernel: Kernel, a: Runs, b: Runs) -> Floats:
    """Prior covariance (n, m) of the residuals of two sets of runs, noise not included."""
    same_source, same_group = _kinship(a, b)
    constants = (a.sensitivity * np.square(kernel.constants)) @ b.sensitivity.T
    x, y = (runs.matrix(FEATURES) / kernel.lengths for runs in (a, b))
    apart = (x**2).sum(1)[:, None] + (y**2).sum(1)[None, :] - 2.0 * x @ y.T
    smooth = kernel.shape**2 * np.exp(-0.5 * np.maximum(apart, 0.0))
    return np.asarray(same_source * (constants + kernel.source**2 + smooth) + kernel.group**2 * same_group)


def _kinship(a: Runs, b: Runs) -> tuple[Floats, Floats]:
    """1 where two runs share a source, and where they share a group of it, (n, m) each."""
    source = a.source[:, None] == b.source[None, :]
    group = source & (a.group[:, None] == b.group[None, :])
    return source.astype(float), group.astype(float)


def variance(kernel: Kernel, runs: Runs) -> Floats:
    """Prior variance (n,) of each residual, noise not included."""
    constants = np.square(runs.sensitivity) @ np.square(kernel.constants)
    return np.asarray(constants + kernel.source**2 + kernel.group**2 + kernel.shape**2)


@dataclass(frozen=True)
class Posterior:
    """Residuals after measured runs; without any, the prior: zero, and as wide as sources differ."""

    kernel: Kernel
    runs: Runs | None = None
    weights: Floats | None = None
    factor: Floats | None = None
    noise_variance: float = 0.0

    def predict(self, runs: Runs) -> tuple[Floats, Floats]:
        """Mean and standard deviation (n,) of log(measured / predicted), noise included."""
        prior = variance(self.kernel, runs)
        noise = self.noise_variance or 2.0 * self.kernel.noise**2
        if self.runs is None or self.weights is None or self.factor is None:
            return np.zeros(len(runs)), np.sqrt(prior + noise)
        from scipy.linalg import solve_triangular

        mean, explained = np.empty(len(runs)), np.empty(len(runs))
        for start in range(0, len(runs), CHUNK):
            at = np.arange(start, min(start + CHUNK, len(runs)))
            cross = covariance(self.kernel, runs.take(at), self.runs)
            mean[at] = cross @ self.weights
            explained[at] = np.square(solve_triangular(self.factor, cross.T, lower=True)).sum(axis=0)
        return mean, np.sqrt(np.maximum(prior - explained, 1e-9) + noise)


def condition(kernel: Kernel, runs: Runs, residual: Floats, rng: np.random.Generator | None = None) -> Posterior:
    """The posterior after measured ``runs`` with residuals (n,); robust to outliers by reweighting their noise."""
    if len(runs) > MOST_RUNS:
        rng = rng or np.random.default_rng(0)
        rows = np.sort(rng.choice(len(runs), MOST_RUNS, replace=False)).astype(np.int64)
        runs, residual = runs.take(rows), residual[rows]
    if not len(runs):
        return Posterior(kernel)
    from scipy.linalg import cho_factor, cho_solve

    y = np.clip(residual, -LARGEST_RESIDUAL, LARGEST_RESIDUAL)
    prior, noise = covariance(kernel, runs, runs), kernel.noise**2
    weight = np.ones(len(y))
    for _ in range(REWEIGHTS):
        factor, _ = cho_factor(prior + np.diag(noise * weight), lower=True)
        alpha = cho_solve((factor, True), y)
        inverse = cho_solve((factor, True), np.eye(len(y)))
        left = noise * weight * alpha  # y less its smoothed value
        doubt = noise * weight * (1.0 - noise * weight * np.diag(inverse))
        # the expected precision of Student-t noise, given this fit
        weight = np.maximum(
            (DEGREES_OF_FREEDOM + (left**2 + np.maximum(doubt, 0.0)) / noise) / (DEGREES_OF_FREEDOM + 1.0), 0.3
        )
    return Posterior(kernel, runs, alpha, np.tril(factor), 1.5 * noise * float(np.median(weight)))


def learn(sources: Sequence[tuple[Runs, Floats]], most_runs: int = 100, seed: int = 0) -> Kernel:
    """Hyperparameters that make the recorded residuals of all sources likely, each source with its own noise.

    ``sources``: runs and residuals of one source each. Large sources are sampled and down-weighted, so that none
    drowns the rest. A log-normal prior around `default_kernel` keeps in place what no source informs.
    """
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    parts = [_sampled(runs, y, most_runs, rng) for runs, y in sources if len(y) >= 4]
    count = sources[0][0].sensitivity.shape[1]
    start = default_kernel(count).pack()
    first = np.concatenate([start, np.full(len(parts), np.log(0.04))])
    found = minimize(
        _penalised_likelihood, first, args=(parts, start, count), jac=True, method="L-BFGS-B",
        bounds=[(value - 4.0, value + 4.0) for value in first], options={"maxiter": 60},
    )  # fmt: skip
    logs = found.x[: len(start)].copy()
    logs[-1] = np.median(found.x[len(start) :]) if parts else start[-1]
    return Kernel.unpack(logs, count)


@dataclass(frozen=True)
class _Part:
    runs: Runs
    squares: Floats  # (features, n, n): squared differences of each feature
    same_source: Floats
    same_group: Floats
    residual: Floats
    weight: float


def _sampled(runs: Runs, residual: Floats, most: int, rng: np.random.Generator) -> _Part:
    rows = rng.choice(len(residual), min(most, len(residual)), replace=False).astype(np.int64)
    some, y = runs.take(rows), residual[rows]
    y = np.clip(y, np.median(y) - 0.5, np.median(y) + 0.5)
    x = some.matrix(FEATURES).T
    squares = np.square(x[:, :, None] - x[:, None, :])
    return _Part(some, squares, *_kinship(some, some), y, min(1.0, 60.0 / len(rows)))


def _penalised_likelihood(logs: Floats, parts: list[_Part], centre: Floats, count: int) -> tuple[float, Floats]:
    """Negative log of likelihood times prior, and its gradient with respect to the logarithms."""
    kernel = Kernel.unpack(logs[: len(centre)], count)
    away = logs[: len(centre)] - centre
    noisy = (logs[len(centre) :] - np.log(0.03)) / 0.7
    total = 0.5 * float(np.square(away).sum() + np.square(noisy).sum())
    gradient = np.concatenate([away, noisy / 0.7])
    for i, part in enumerate(parts, len(centre)):
        value, slope, slope_of_noise = _unlikelihood(kernel, part, float(np.exp(2.0 * logs[i])))
        total += part.weight * value
        gradient[: len(centre) - 1] += part.weight * slope
        gradient[i] += part.weight * slope_of_noise
    return total, gradient


def _unlikelihood(kernel: Kernel, part: _Part, noise: float) -> tuple[float, Floats, float]:
    """Negative log likelihood of one source, and its slopes: the kernel's packed logarithms but the last, the noise.

    Rasmussen and Williams 2006, equations 5.8 and 5.9.
    """
    from scipy.linalg import cho_factor, cho_solve

    j, same = part.runs.sensitivity, part.same_source
    variances = np.square(kernel.constants)
    apart = np.tensordot(1.0 / np.square(kernel.lengths), part.squares, 1)
    smooth = kernel.shape**2 * np.exp(-0.5 * apart) * same
    prior = ((j * variances) @ j.T + kernel.source**2) * same + kernel.group**2 * part.same_group + smooth
    factor = cho_factor(prior + noise * np.eye(len(j)), lower=True)
    inverse = cho_solve(factor, np.eye(len(j)))
    alpha = inverse @ part.residual
    value = 0.5 * float(part.residual @ alpha) + float(np.log(np.diag(factor[0])).sum())
    outer = 0.5 * (inverse - np.outer(alpha, alpha))
    within, bent = outer * same, outer * smooth
    slope = np.concatenate([
        2.0 * variances * ((within @ j) * j).sum(axis=0),
        [2.0 * kernel.source**2 * within.sum()],
        [2.0 * kernel.group**2 * (outer * part.same_group).sum()],
        [2.0 * bent.sum()],
        np.tensordot(part.squares, bent, 2) / np.square(kernel.lengths),
    ])  # fmt: skip
    return value, slope, 2.0 * noise * float(np.trace(outer))
