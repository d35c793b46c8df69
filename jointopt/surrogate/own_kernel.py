"""The process on many runs of one cluster: constants of the physics that vary with the shape of a plan."""

# r = J·δ + J·δ(z) + u + s(z, w) + noise: beside the terms that sources share (`residual_gp`), constants δ(z) that vary
# smoothly with the shape z of a plan, since a product that is slow at narrow widths costs by its share of the time
# (Hastie and Tibshirani 1993, Varying-coefficient models). z leaves out what merely distinguishes models, hidden size,
# layers and head size, which hundreds of runs of ten models would be fitted by: what these do to a rank's work is in
# its width, layers and tokens. w: logarithms of shares of the time, and sensitivities.

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from jointopt.core.schema import Floats
from jointopt.surrogate.residual_gp import CLASSES, FEATURES, Kernel, Runs, alike, alike_sums, apart, distinct

OF_MODELS = ("log2_hidden", "log2_layers", "log2_head_dim")
SHARES = CLASSES["share"]
SHAPES = tuple(name for name in FEATURES if name not in (*OF_MODELS, *SHARES))
LEAST_SHARE, OCTAVE = 0.02, 0.3  # added to shares, so that far smaller ones are alike; what a factor of two counts as
VARYING, SENSITIVITY_LENGTH = 0.5, 0.3  # what constants vary by, of what they are off by, and the length, before runs
USUAL_NOISE, NOISES = 0.03, 0.7  # of runs, and by how many logarithms that differs
OWN_RUNS = 500  # that hyperparameters are learned from
TURNS, NEAR_TURNS = 40, 12  # of learning; from hyperparameters that are close


@dataclass(frozen=True)
class OwnKernel(Kernel):
    """A kernel of one cluster: ``lengths`` are those of `inputs`, ``varying_lengths`` those of `SHAPES`."""

    varying: tuple[float, ...]  # standard deviations of what constants vary by
    varying_lengths: tuple[float, ...]

    @classmethod
    def unpack(cls, logs: Floats, count: int) -> Self:
        """The kernel of `pack` with ``count`` constants."""
        v, ends = np.exp(logs).tolist(), np.cumsum(_sizes(count)).tolist()
        constants, source, shape, lengths, varying, varying_lengths, noise = (
            tuple(v[start:end]) for start, end in zip([0, *ends], ends, strict=False)
        )
        return cls(constants, source[0], shape[0], lengths, noise[0], varying, varying_lengths)

    @classmethod
    def around(cls, shared: Kernel) -> Self:
        """The centre of the prior, after the kernel of all sources."""
        of = dict(zip(FEATURES, shared.lengths, strict=True))
        lengths, more = [of[name] for name in SHAPES], [of[name] for name in SHARES]
        more += [SENSITIVITY_LENGTH] * len(shared.constants)
        varying = tuple(VARYING * value for value in shared.constants)
        first = (shared.constants, shared.source, shared.shape)
        return cls(*first, (*lengths, *more), USUAL_NOISE, varying, tuple(lengths))

    @property
    def values(self) -> tuple[float, ...]:
        """All hyperparameters, one after the other."""
        first = (*self.constants, self.source, self.shape, *self.lengths)
        return (*first, *self.varying, *self.varying_lengths, self.noise)

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Numbers of each tuple as they are, and as they should be."""
        _, _, _, lengths, varying, varying_lengths, _ = _sizes(len(self.constants))
        found = {"lengths": (len(self.lengths), lengths), "varying constants": (len(self.varying), varying)}
        return found | {"lengths of varying constants": (len(self.varying_lengths), varying_lengths)}

    def points(self, runs: Runs) -> Floats:
        """`inputs` and `SHAPES` in units of their lengths, and sensitivities in those of ``varying``, side by side."""
        x = inputs(runs)
        shapes = x[:, : len(SHAPES)] / self.varying_lengths
        return np.hstack([x / self.lengths, shapes, runs.sensitivity * self.varying])

    def smooth(self, x: Floats, y: Floats) -> Floats:
        """Prior covariance (n, m) of the smooth function and of varying constants at `points`, of one source."""
        (a, shape_a, moved_a), (b, shape_b, moved_b) = self._parts(x), self._parts(y)
        out = alike(shape_a, shape_b)
        out *= moved_a @ moved_b.T
        rest = alike(a, b)
        rest *= self.shape**2
        out += rest
        return out

    def smooth_sums(self, x: Floats, y: Floats, weights: Floats) -> Floats:
        """`smooth` times ``weights`` (m,), (n,): of shapes, which many plans have in common, once for each."""
        (a, shape_a, moved_a), (b, shape_b, moved_b) = self._parts(x), self._parts(y)
        first, of = distinct([*shape_a.T])
        constants = alike_sums(shape_a[first], shape_b, moved_b * weights[:, None])[of]
        return np.asarray((constants * moved_a).sum(axis=1) + self.shape**2 * alike_sums(a, b, weights))

    def smooth_variance(self, x: Floats) -> Floats:
        """Prior variance (n,) of the same."""
        return np.asarray(self.shape**2 + np.square(self._parts(x)[2]).sum(axis=1))

    def smooth_apart(self, x: Floats, y: Floats) -> Floats:
        """Prior variance (n,) of their difference between `points` and as many others, or one."""
        (a, shape_a, moved_a), (b, shape_b, moved_b) = self._parts(x), self._parts(y)
        differ = np.square(moved_a - moved_b).sum(axis=1) + 2.0 * (moved_a * moved_b).sum(axis=1) * apart(
            shape_a, shape_b
        )
        return np.asarray(differ + 2.0 * self.shape**2 * apart(a, b))

    def _parts(self, points: Floats) -> list[Floats]:
        return np.split(points, np.cumsum([len(self.lengths), len(self.varying_lengths)]), axis=1)


def _sizes(constants: int) -> tuple[int, ...]:
    return constants, 1, 1, len(SHAPES) + len(SHARES) + constants, constants, len(SHAPES), 1


def inputs(runs: Runs) -> Floats:
    """Inputs (n, k) of the smooth function: `SHAPES`, logarithms of `SHARES`, sensitivities."""
    shares = OCTAVE * np.log2(np.maximum(runs.matrix(SHARES), 0.0) + LEAST_SHARE)
    return np.hstack([runs.matrix(SHAPES), shares, runs.sensitivity])


def learn_alone(runs: Runs, residual: Floats, shared: Kernel, seed: int = 0, start: Kernel | None = None) -> OwnKernel:
    """Hyperparameters that make the residuals (n,) of many runs of one source likely, around those of all sources.

    ``start``: hyperparameters close to those found, to be quicker.
    """
    from scipy.optimize import minimize

    rows = np.random.default_rng(seed).choice(len(residual), min(OWN_RUNS, len(residual)), replace=False)
    some, y = runs.take(rows.astype(np.int64)), np.clip(residual[rows], *(np.median(residual) + np.array([-0.5, 0.5])))
    centre = OwnKernel.around(shared)
    middle = centre.pack()
    found = minimize(
        _penalised, middle if start is None else start.pack(), args=(inputs(some), some.sensitivity, y, middle),
        jac=True, method="L-BFGS-B", bounds=[(value - 4.0, value + 4.0) for value in middle],
        options={"maxiter": TURNS if start is None else NEAR_TURNS},
    )  # fmt: skip
    return OwnKernel.unpack(found.x, len(centre.constants))


def _penalised(logs: Floats, x: Floats, j: Floats, y: Floats, middle: Floats) -> tuple[float, Floats]:
    """Negative log of likelihood times a log-normal prior, and its gradient with respect to the logarithms."""
    spread = np.append(np.ones(len(logs) - 1), NOISES)
    away = (logs - middle) / spread
    value, slope = unlikelihood(OwnKernel.unpack(logs, j.shape[1]), x, j, y)
    return value + 0.5 * float(np.square(away).sum()), slope + away / spread


def unlikelihood(kernel: OwnKernel, x: Floats, j: Floats, y: Floats) -> tuple[float, Floats]:
    """Negative log likelihood of residuals ``y`` (n,) at `inputs` x and sensitivities j, and slopes of the logarithms.

    Rasmussen and Williams 2006, equations 5.8 and 5.9.
    """
    from scipy.linalg import cho_factor, cho_solve

    z, squares, varied = x[:, : len(SHAPES)], np.square(kernel.constants), np.square(kernel.varying)
    smooth = kernel.shape**2 * alike(x / kernel.lengths, x / kernel.lengths)
    like = alike(z / kernel.varying_lengths, z / kernel.varying_lengths)
    product = (j * varied) @ j.T * like
    prior = (j * squares) @ j.T + kernel.source**2 + smooth + product
    factor = cho_factor(prior + kernel.noise**2 * np.eye(len(y)), lower=True)
    inverse = cho_solve(factor, np.eye(len(y)))
    alpha = inverse @ y
    value = 0.5 * float(y @ alpha) + float(np.log(np.diag(factor[0])).sum())
    outer = 0.5 * (inverse - np.outer(alpha, alpha))
    bent = outer * smooth
    slope = np.concatenate([
        2.0 * squares * ((outer @ j) * j).sum(axis=0),
        2.0 * np.array([kernel.source**2 * outer.sum(), bent.sum()]),
        _slope_of_lengths(bent, x) / np.square(kernel.lengths),
        2.0 * varied * (((outer * like) @ j) * j).sum(axis=0),
        _slope_of_lengths(outer * product, z) / np.square(kernel.varying_lengths),
        [2.0 * kernel.noise**2 * float(np.trace(outer))],
    ])  # fmt: skip
    return value, slope


def _slope_of_lengths(outer: Floats, x: Floats) -> Floats:
    """Sum of ``outer`` (n, n), symmetric, times squared differences of each column of x (n, k), (k,)."""
    return np.asarray(2.0 * (np.square(x).T @ outer.sum(axis=1) - ((outer @ x) * x).sum(axis=0)))
