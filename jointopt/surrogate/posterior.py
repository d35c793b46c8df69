"""The Gaussian process of a source after its measured runs: a mixture over scales of the kernel's terms."""

# Sources differ in what they are off by: a constant factor, a network ten times slower, software of other constants,
# or nothing but noise. So each term of the kernel has several scales, wide ones included, each with the share of
# sources that it is expected of; runs weigh them by how likely they make them (a scale mixture, which gives the
# constants heavy tails: West 1987, On scale mixtures of normal distributions), and predictions are averaged. Noise is
# Cauchy's by reweighting, because recorded runs have outliers (West 1984, Outlier models and prior distributions in
# Bayesian linear regression).

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import TableError
from jointopt.core.schema import Floats, Ints
from jointopt.core.system import one_blas_thread
from jointopt.surrogate.kernel import CACHED_CELLS, Kernel, Runs, covariance_of_rows, kinship, of_network, variances

DEGREES_OF_FREEDOM = 1.0
REWEIGHTS, LEAST_SPREAD, LARGEST_SPREAD = 8, 0.3, 20.0
# (runs, scales): of at most so many runs so many of the likeliest scales count, those chosen before on fewer runs
SAMPLES = ((200, 8), (800, 1))
LARGEST_RESIDUAL = 1.5
ONE_NOISE: Mapping[float, float] = {1.0: 1.0}
LEAST_WEIGHT = 0.003  # of scales that are not dropped
# Of what a plan errs by alone, in looking for gains: twins of a plan that ran are as good at chance as any other, and
# were run one after the other (tests/bench/bench_runs.py). With none the best of plans that err by nothing else ties.
OWN_NOISE = 0.1
_ROUNDED = 1e-12  # of the sum of variances, added to each where some are 0 but for rounding
LARGE = 256  # rows of a matrix, above which its root is multiplied
Singles = npt.NDArray[np.float32]
CELLS = 4_000_000  # scales x runs x measured runs that are held at a time
# Eight kinds of clusters: multiples of the kernel's standard deviations of one factor for all runs, the network between
# nodes, other constants, the smooth function and noise, and the share of sources that each is expected of. Recorded
# sources alone want the narrow ones: the profiles of the physics were fitted to them. Clusters that nothing was fitted
# to have been 37 % off by nearly one factor, and their networks ten times slower than assumed; recipes that a table
# does not distinguish are 40 % apart. 162 scales did no better (docs/appendix/surrogate-experiments.md).
_KINDS = np.array([
    (1.0, 0.6, 0.6, 0.8, 0.8, 0.18),  # as recorded
    (1.0, 0.6, 0.6, 2.5, 0.8, 0.17),  # plans differ by what the physics does not know
    (1.0, 0.6, 0.6, 0.8, 4.0, 0.12),  # runs of a plan differ
    (1.0, 0.6, 0.6, 2.5, 4.0, 0.11),
    (3.0, 0.6, 0.6, 0.8, 0.8, 0.15),  # all runs are slower or faster
    (3.0, 0.6, 0.6, 1.2, 4.0, 0.10),
    (1.0, 4.0, 0.6, 1.2, 0.8, 0.10),  # another network
    (1.0, 4.0, 0.6, 1.2, 4.0, 0.07),
])  # fmt: skip
# Deviation of the one factor: sources whose profiles never saw them are off by 0.10 in the median (root mean square
# over 13), the recorded ones, which profiles were fitted to, by 0.05 to 0.07
LEAST_FACTOR = 0.09
LEAST_NETWORK = 0.48  # deviation of the network's logarithm: recorded clusters, whose networks are known, teach less
LONGER = 1.5  # than in the kernel: lengths of the smooth function, whose scales are wider than recorded sources want
SCALES, SHARES = _KINDS[:, :5], _KINDS[:, 5]  # (scales, 5), (scales,)


@dataclass(frozen=True)
class Joint:
    """Joint normal distribution of the logarithm of what a run of each of n plans would show."""

    mean: Floats  # (n,)
    loadings: Floats  # (n, d): what plans err by together, per independent unit normal
    noise: float  # standard deviation of what each errs by alone

    @property
    def deviation(self) -> Floats:
        """Standard deviations (n,), each plan's own noise included."""
        return np.asarray(np.sqrt((self.loadings**2).sum(axis=1) + self.noise**2))

    def reducible_deviation(self, measured: bool, own_noise: float = OWN_NOISE) -> Floats:
        """Standard deviations (n,) of what runs of plans alike would show, with that share of each plan's own noise.

        Unless a run was ``measured``, less the error that all plans have in common.
        """
        loadings = self.loadings - (0.0 if measured else self.loadings.mean(axis=0))
        return np.asarray(np.sqrt((loadings**2).sum(axis=1) + (own_noise * self.noise) ** 2))

    def draws(self, count: int, rng: np.random.Generator) -> Floats:
        """Joint draws (n, count): plans alike are wrong alike."""
        together = self.loadings @ rng.standard_normal((self.loadings.shape[1], count))
        return np.asarray(self.mean[:, None] + together + self.noise * rng.standard_normal((len(self.mean), count)))


@dataclass(frozen=True)
class Posterior:
    """Distribution of residuals log(measured / physics) after measured runs; without any, the prior of zero mean."""

    kernel: Kernel
    squares: Floats  # (scales, 5): squared multiples of the terms and of the noise
    share: Floats  # (scales,), of sum 1
    runs: Runs | None = None
    weights: Floats | None = None  # (scales, runs)
    inverse: Floats | None = None  # (scales, runs, runs), of the covariance of what was measured
    noise_variance: Floats | None = None  # (scales,)
    log_evidence: float = 0.0  # of what was measured, less what is the same for any kernel

    @property
    def log_evidence_near(self) -> float:
        """`log_evidence` under the scales alone by which the network is about as fast as the runs were priced on."""
        near = self.share[self.squares[:, 1] <= 1.0].sum()
        return self.log_evidence + float(np.log(max(near, LEAST_WEIGHT)))

    @property
    def constants(self) -> Floats:
        """Logarithms by which the physics' constants are off, (constants,): the mean of what the runs leave open."""
        count = len(self.kernel.constants)
        if self.runs is None or self.weights is None:
            return np.zeros(count)
        scale = np.where(of_network(count), self.squares[:, 1:2], self.squares[:, 2:3])
        moved = self.weights @ self.runs.sensitivity * np.square(self.kernel.constants)
        return np.asarray(self.share @ (scale * moved))

    @one_blas_thread
    def mean(self, runs: Runs) -> Floats:
        """Mean (n,) of log(measured / predicted) of runs that are of one source."""
        if self.runs is None or self.weights is None:
            return np.zeros(len(runs))
        each = (self.share[:, None] * self.squares[:, :4]).T @ self.weights  # (4, measured)
        each *= kinship(runs.source[:1], self.runs.source)
        network, squares = of_network(len(self.kernel.constants)), np.square(self.kernel.constants)
        moved = squares * np.where(network, *(each[1:3] @ self.runs.sensitivity))
        out = self.kernel.source**2 * each[0].sum() + runs.sensitivity @ moved
        out += self.kernel.smooth_sums(self.kernel.points(runs), self.kernel.points(self.runs), each[3])
        return np.asarray(out)

    @one_blas_thread
    def predict(self, runs: Runs) -> tuple[Floats, Floats]:
        """Mean and standard deviation (n,) of log(measured / predicted), noise included."""
        prior = self.squares[:, :4] @ variances(self.kernel, runs)
        if self.runs is None or self.weights is None or self.inverse is None or self.noise_variance is None:
            noise = 2.0 * self.squares[:, 4:] * self.kernel.noise**2
            return np.zeros(len(runs)), np.sqrt(self.share @ (prior + noise))
        mean, deviation, seen = np.empty(len(runs)), np.empty(len(runs)), self.runs
        between = covariance_of_rows(self.kernel, runs, seen, self.squares[:, :4])
        for at in _pieces(len(runs), len(self.share) * len(seen), CACHED_CELLS if len(self.share) == 1 else CELLS):
            cross = between(at)
            means = np.einsum("cij,cj->ci", cross, self.weights)
            left = prior[:, at] - _quadratic_forms(cross, self.inverse, self._root)
            variance = np.maximum(left, 1e-9) + self.noise_variance[:, None]
            mean[at] = self.share @ means
            deviation[at] = np.sqrt(np.maximum(self.share @ (variance + means**2) - mean[at] ** 2, 1e-9))
        return mean, deviation

    @functools.cached_property
    def _root(self) -> list[Singles]:
        """`root_of` the inverse covariance of some runs, which many batches of plans are multiplied with."""
        return root_of(np.asarray(self.inverse))

    @one_blas_thread
    def joint(self, runs: Runs, around: Floats) -> Joint:
        """Joint distribution of log(measured) of ``runs``, whose logarithms are ``around`` (n,) by the physics."""
        every = np.arange(len(runs))
        prior = covariance_of_rows(self.kernel, runs, runs, self.squares[:, :4])(every)
        means = np.zeros((len(prior), len(runs)))
        if self.runs is not None and self.weights is not None and self.inverse is not None:
            cross = covariance_of_rows(self.kernel, runs, self.runs, self.squares[:, :4])(every)
            prior = prior - cross @ self.inverse @ cross.swapaxes(1, 2)
            means = (cross @ self.weights[:, :, None])[:, :, 0]
        apart = (means - self.share @ means) * np.sqrt(self.share)[:, None]
        together = np.tensordot(self.share, prior, 1) + apart.T @ apart
        together[every, every] += _ROUNDED * max(float(np.trace(together)), 1.0)
        root = np.asarray(np.linalg.cholesky(together), np.float64)
        return Joint(around + self.share @ means, root, float(np.sqrt(0.5 * self.noise_of_two)))

    def contrast_deviation(self, runs: Runs, against: Runs) -> Floats:
        """Standard deviation (n,) of the difference of the residuals of ``runs`` and of ``against``, as many or one.

        What both are off by cancels; the noise of each counts.
        """
        return np.asarray(np.sqrt(np.maximum(self.contrast_variance(runs, against) + self.noise_of_two, 1e-9)))

    @property
    def noise_of_two(self) -> float:
        """Variance of the noise of two runs to come together."""
        if self.noise_variance is None:
            return float(self.share @ (4.0 * self.squares[:, 4])) * self.kernel.noise**2
        return float(2.0 * self.share @ self.noise_variance)

    @one_blas_thread
    def contrast_variance(self, runs: Runs, against: Runs) -> Floats:
        """Variance (n,) of the same difference, noise not included."""
        prior = self.squares[:, :4] @ variances(self.kernel, runs, against)
        if self.runs is None or self.weights is None or self.inverse is None:
            return np.asarray(self.share @ prior)
        out, seen, one = np.empty(len(runs)), self.runs, np.zeros(1, np.int64)
        first, second = (covariance_of_rows(self.kernel, each, seen, self.squares[:, :4]) for each in (runs, against))
        for at in _pieces(len(runs), len(self.share) * len(seen)):
            cross = first(at) - second(at if len(against) == len(runs) else one)
            means = np.einsum("cij,cj->ci", cross, self.weights)
            left = prior[:, at] - np.einsum("cij,cij->ci", cross @ self.inverse, cross)
            out[at] = self.share @ (np.maximum(left, 0.0) + means**2) - (self.share @ means) ** 2
        return np.maximum(out, 0.0)


def root_of(inverse: Floats) -> list[Singles]:
    """Columns of the root of large symmetric matrices, ``inverse`` (scales, m, m), in blocks from the diagonal down.

    In single precision: a root loses half of the digits that the matrix itself would. None of a small matrix.
    """
    count = inverse.shape[1]
    if count <= LARGE:
        return []
    root, size = np.linalg.cholesky(inverse).astype(np.float32), -(-count // 4)
    return [np.ascontiguousarray(root[:, start:, start : start + size]) for start in range(0, count, size)]


def _quadratic_forms(cross: Floats, inverse: Floats, root: list[Singles]) -> Floats:
    """c·A·c (scales, n) of rows c, ``cross`` (scales, n, m), for matrices A, ``inverse``, with `root_of` them.

    By the root, a triangle, 5/8 of the products at twice the speed; deviations hold to 1 in 100,000.
    """
    if not root:
        return np.asarray(np.einsum("cij,cij->ci", cross @ inverse, cross))
    out, single = np.zeros(cross.shape[:2]), cross.astype(np.float32)
    for block in root:
        part = single[..., cross.shape[2] - block.shape[1] :] @ block
        out += np.einsum("cij,cij->ci", part, part, dtype=np.float64)
    return out


def _pieces(count: int, width: int, cells: int = CELLS) -> Iterator[Ints]:
    size = max(cells // width, 1)
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


def condition(kernel: Kernel, runs: Runs, residual: Floats) -> Posterior:
    """The posterior after measured ``runs`` with residuals (n,); robust to outliers by reweighting their noise.

    Of many runs the scales are chosen on samples, since the cost grows with their number and the cube of the runs.
    """
    network = zip(kernel.constants, of_network(len(kernel.constants)), strict=True)
    kernel = replace(  # that of recorded sources as one of sources that nothing was fitted to
        kernel, lengths=tuple(LONGER * length for length in kernel.lengths),
        source=max(kernel.source, LEAST_FACTOR),
        constants=tuple(max(value, LEAST_NETWORK) if is_network else value for value, is_network in network),
    )  # fmt: skip
    scales, posterior = np.arange(len(SHARES)), Posterior(kernel, np.square(SCALES), SHARES)
    order = np.random.default_rng(0).permutation(len(runs))
    for size, count in SAMPLES if len(runs) else ():
        likeliest = np.sort(scales[np.argsort(-posterior.share, kind="stable")[:count]])
        rows = np.sort(order[:size]).astype(np.int64)
        kept, posterior = _posterior_of_scales(kernel, SCALES[likeliest], SHARES[likeliest], runs, residual, rows)
        scales = likeliest[kept]
        if size >= len(runs):
            break
    return posterior


def condition_alone(
    kernel: Kernel, runs: Runs, residual: Floats, noises: Mapping[float, float] = ONE_NOISE,
    largest: float = LARGEST_RESIDUAL,
) -> Posterior:  # fmt: skip
    """`condition` under the kernel's own scales alone: one that was learned from runs of the very source.

    ``noises``: multiples of its noise, and the share of sources that each is expected of.
    """
    multiples, shares = np.ones((len(noises), 5)), np.array(list(noises.values()))
    multiples[:, 4] = list(noises)
    if not len(runs):
        return Posterior(kernel, np.square(multiples), shares)
    return _posterior_of_scales(kernel, multiples, shares, runs, residual, largest=largest)[1]


@one_blas_thread
def _posterior_of_scales(
    kernel: Kernel,
    multiples: Floats,
    shares: Floats,
    runs: Runs,
    residual: Floats,
    rows: Ints | None = None,
    largest: float = LARGEST_RESIDUAL,
) -> tuple[npt.NDArray[np.bool_], Posterior]:
    """(which scales the runs leave, (scales,); the posterior under these).

    ``multiples`` (scales, 5) of the kernel's deviations, with prior ``shares`` (scales,). ``rows``: the runs that
    count, by default all.
    """
    rows = np.arange(len(runs), dtype=np.int64) if rows is None else rows
    squares, runs = np.square(multiples), runs.take(rows)
    y = np.clip(residual[rows], -largest, largest)
    between = covariance_of_rows(kernel, runs, runs, squares[:, :4])
    prior = np.concatenate([between(at) for at in _pieces(len(runs), len(runs), CACHED_CELLS)], axis=1)
    variance = squares[:, 4:] * kernel.noise**2  # (scales, 1)
    spread = _student_noise(prior, variance, y)
    inverse = _inverse(_with_noise(prior, variance * spread))
    weights = (inverse @ y[:, None])[:, :, 0]
    likely = 0.5 * (np.linalg.slogdet(inverse)[1] - weights @ y)
    # of the spreads, Gamma-distributed
    likely += 0.5 * DEGREES_OF_FREEDOM * (1.0 - np.log(spread) - 1.0 / spread).sum(axis=1)
    share = shares * np.exp(likely - likely.max())
    kept = share >= LEAST_WEIGHT * share.sum()
    log_evidence = float(np.log(share.sum()) + likely.max())
    # noise of a run to come: the mean of those known, outliers among them but bounded
    typical = 2.5 * variance[:, 0] * np.minimum(spread, LARGEST_SPREAD).mean(axis=1)
    found = (squares, share / share[kept].sum(), weights, inverse, typical)
    squares, share, weights, inverse, noise_variance = (values[kept] for values in found)
    return kept, Posterior(kernel, squares, share, runs, weights, inverse, noise_variance, log_evidence)


def _inverse(covariance: Floats) -> Floats:
    """Inverses of covariances (scales, n, n); TableError where a kernel or noise that no training finds has none."""
    try:
        found = np.asarray(np.linalg.inv(covariance), np.float64)
    except np.linalg.LinAlgError as error:
        raise _no_posterior(covariance.shape[1], str(error)) from error
    if not np.isfinite(found).all():
        raise _no_posterior(covariance.shape[1], "their covariance is not finite")
    return found


def _no_posterior(count: int, why: str) -> TableError:
    return TableError(
        f"Nothing can be learned of {count:,} runs by the surrogate's kernel and noise ({why}), which are none that "
        "`jointopt retrain` writes: retrain, or leave this surrogate out."
    )


def _student_noise(prior: Floats, variance: Floats, y: Floats) -> Floats:
    """Variance (scales, n) of each run's noise over the usual ``variance`` (scales, 1).

    By the expected precision of Student-t noise, given each fit of ``y`` (n,).
    """
    spread, nu = np.ones((len(variance), len(y))), DEGREES_OF_FREEDOM
    for _ in range(REWEIGHTS):
        weights, diagonal = _solve(_with_noise(prior, variance * spread), y)
        left = variance * spread * weights  # y less its smoothed value
        doubt = variance * spread * (1.0 - variance * spread * diagonal)
        spread = np.maximum((nu + (left**2 + np.maximum(doubt, 0.0)) / variance) / (nu + 1.0), LEAST_SPREAD)
    return spread


def _with_noise(prior: Floats, variance: Floats) -> Floats:
    """Covariances (scales, n, n) of what was measured: those of the prior with the variance (scales, n) of noise."""
    out, diagonal = prior.copy(), np.arange(prior.shape[1])
    out[:, diagonal, diagonal] += variance
    return out


def _solve(covariance: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Inverses of covariances (scales, n, n) times ``y``, and their diagonals, (scales, n) each.

    Of one large covariance without its inverse, in half the time.
    """
    if len(covariance) > 1:
        inverse = _inverse(covariance)
        return (inverse @ y[:, None])[:, :, 0], np.diagonal(inverse, axis1=1, axis2=2)
    from scipy.linalg.lapack import dpotrf, dtrtri  # here: it takes as long to import as to solve ten of them

    with one_blas_thread:  # SciPy's own too, now that it is loaded
        factor, fault = dpotrf(covariance[0].T, lower=1, overwrite_a=1)
        if fault:
            raise _no_posterior(len(y), "their covariance is not positive")
        root = dtrtri(factor, lower=1, overwrite_c=1)[0]
        return (root.T @ (root @ y))[None], np.einsum("ij,ij->j", root, root)[None]
