"""A Gaussian process on the residual of the physics, r = log(measured / predicted), with the physics in its kernel."""

# r = J·δ + J·δ(z) + u + s(x) + noise: J the sensitivity of the predicted time to the physics' own constants
# (`jointopt.physics.sensitivities.sensitivities`), δ how far those of this cluster and software are off, u one factor
# for all runs of the source, s a smooth function of shape and shares; δ(z) in the kernel of one cluster's own runs
# alone: what constants vary by with the shape z of a plan, since a product that is slow at narrow widths costs by its
# share of the time (Hastie and Tibshirani 1993, Varying-coefficient models). Hyperparameters by marginal likelihood
# over recorded sources (Rasmussen and Williams 2006, sections 5.1 and 5.4.1). What runs make of it: `posterior`.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import CONSTANTS, KERNEL_SHAPES, OCCUPANCY, Columns, Floats, Ints

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
# Of one cluster's own runs: what merely distinguishes models would fit hundreds of runs of ten of them; what it does to
# a rank's work is in its width, layers and tokens
OF_MODELS = ("log2_hidden", "log2_layers", "log2_head_dim")
SHARES = CLASSES["share"]
CLOCK = "clock"  # of a run as a share of the top one
SHAPES = (*(name for name in FEATURES if name not in (*OF_MODELS, *SHARES)), CLOCK)  # the last: surrogates may lack it
LEAST_SHARE, OCTAVE = 0.02, 0.3  # added to shares, so that far smaller ones are alike; what a factor of two counts as
CLOCK_LENGTH = 0.5  # over which the smooth function varies with the clock, before runs
VARYING, SENSITIVITY_LENGTH = 0.5, 0.3  # what constants vary by, of what they are off by, and the length, before runs
USUAL_NOISE, NOISES = 0.03, 0.7  # of runs, and by how many logarithms that differs
OWN_RUNS = 500  # of one cluster that hyperparameters are learned from
DELAY = "network_delay"  # a feature that nothing is learned from: see `jointopt.surrogate.features`
# Correlation of what sources of one origin are off by: one software on other GPUs or nodes, other software on that GPU.
SAME_SOFTWARE, SAME_GPU = 0.7, 0.5
TASK_RUNS = 12  # runs in a sample that hyperparameters are learned from: about as many as a posterior will have
TASKS = 8  # samples of one source
TURNS, OWN_TURNS, NEAR_TURNS = 60, 40, 12  # of learning: by all sources, by one cluster's runs, from close by
NEAR_MIDDLE = np.array([-0.5, 0.5])  # residuals that hyperparameters are learned from, around their median
CACHED_CELLS = 250_000  # runs x measured runs of which 2 MB stay in the cache: three times as fast


@dataclass(frozen=True)
class Runs:
    """Inputs of the learners for n runs or plans."""

    sensitivity: Floats  # (n, constants): d log(time) / d constant of the physics
    features: Columns  # (n,) each
    source: npt.NDArray[np.str_]  # one cluster and software stack
    group: npt.NDArray[np.str_]  # within it: same model, GPUs and batch

    def __len__(self) -> int:
        return len(self.sensitivity)

    def take(self, rows: npt.NDArray[np.int64]) -> Runs:
        """The runs at positions ``rows``."""
        features = {name: values[rows] for name, values in self.features.items()}
        return Runs(self.sensitivity[rows], features, self.source[rows], self.group[rows])

    @property
    def names(self) -> tuple[str, ...]:
        """Features that distinguish runs, in order: all but those that follow from others."""
        return tuple(name for name in self.time_names if name not in KERNEL_SHAPES)

    @property
    def time_names(self) -> tuple[str, ...]:
        """Features that trees of time learn from, in order: all but those that describe power more."""
        return tuple(name for name in self.power_names if name not in OCCUPANCY)

    @property
    def power_names(self) -> tuple[str, ...]:
        """Features that power is learned from, in order."""
        return tuple(sorted(name for name in self.features if name != DELAY))

    def matrix(self, names: Sequence[str]) -> Floats:
        """Features (n, len(names)); a run that lacks one has 0."""
        zero = np.zeros(len(self))
        return np.column_stack([self.features.get(name, zero) for name in names])

    def keys(self, but: str = "") -> npt.NDArray[np.complex128]:
        """`row_keys` (n,) of sensitivities and features, less the feature ``but``."""
        return row_keys([*(self.features[name] for name in self.names if name != but), *self.sensitivity.T])

    def distinct(self, but: str = "") -> tuple[Ints, Ints]:
        """(positions of the first run of each of `keys`, the number of its key for each run (n,))."""
        _, first, of = np.unique(self.keys(but), return_index=True, return_inverse=True)
        return first, of


def row_keys(columns: Sequence[Floats] | Floats) -> npt.NDArray[np.complex128]:
    """One number per row, (n,), that is the same for equal rows of ``columns`` (n,) each: two random projections.

    To sort all columns instead takes seconds.
    """
    key, rng = np.zeros(len(columns[0]), dtype=np.complex128), np.random.default_rng(0)
    for values in columns:
        key += values * complex(*rng.standard_normal(2))
    return key


def joined_runs(parts: Sequence[Runs]) -> Runs:
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


Points = tuple[Floats, Floats, Floats]  # of runs, as `Kernel.points` has them


@dataclass(frozen=True)
class Kernel:
    """Standard deviations of each term, of logarithms of time, and lengths over which the smooth term varies.

    One of a cluster's own runs has what its constants vary by too, over ``varying_lengths`` of `SHAPES`, and lengths of
    its own `inputs`; one that sources share has neither, and a length per name in `FEATURES`.
    """

    constants: tuple[float, ...]
    source: float
    shape: float
    lengths: tuple[float, ...]
    noise: float
    varying: tuple[float, ...] = ()  # standard deviations of what constants vary by
    varying_lengths: tuple[float, ...] = ()

    @classmethod
    def of_one_source(cls, shared: Kernel) -> Self:
        """The centre of the prior on that of one cluster's own runs, after the kernel of all sources."""
        of = dict(zip(FEATURES, shared.lengths, strict=True)) | {CLOCK: CLOCK_LENGTH}
        shapes, shares = ([of[name] for name in names] for names in (SHAPES, SHARES))
        lengths = (*shapes, *shares, *[SENSITIVITY_LENGTH] * len(shared.constants))
        varying = tuple(VARYING * value for value in shared.constants)
        return cls(shared.constants, shared.source, shared.shape, lengths, USUAL_NOISE, varying, tuple(shapes))

    def pack(self) -> Floats:
        """Logarithms of all hyperparameters, one after the other."""
        first = (*self.constants, self.source, self.shape, *self.lengths)
        return np.log((*first, *self.varying, *self.varying_lengths, self.noise))

    def unpack(self, logs: Floats) -> Self:
        """The kernel of `pack`, of as many constants and lengths as this one."""
        left = iter(np.exp(logs).tolist())
        constants, (source, shape) = (tuple(islice(left, count)) for count in (len(self.constants), 2))
        others = (self.lengths, self.varying, self.varying_lengths)
        lengths, varying, varying_lengths = (tuple(islice(left, len(one))) for one in others)
        return type(self)(constants, source, shape, lengths, next(left), varying, varying_lengths)

    def inputs(self, runs: Runs) -> Floats:
        """Inputs (n, k) of the smooth function: `FEATURES`, or those of one cluster's own runs.

        Of these `SHAPES`, logarithms of `SHARES`, sensitivities: what merely distinguishes models is none.
        """
        if not self.varying:
            return runs.matrix(FEATURES)
        shares = OCTAVE * np.log2(np.maximum(runs.matrix(SHARES), 0.0) + LEAST_SHARE)
        return np.hstack([runs.matrix(SHAPES[: len(self.varying_lengths)]), shares, runs.sensitivity])

    def points(self, runs: Runs) -> Points:
        """`inputs` in units of the lengths over which the smooth function varies, (n, k).

        Then, (n, 0) but of one cluster's own runs, shapes in units of theirs and sensitivities in those of ``varying``.
        """
        x = self.inputs(runs)
        shapes = x[:, : len(self.varying_lengths)] / self.varying_lengths
        return x / self.lengths, shapes, runs.sensitivity[:, : len(self.varying)] * self.varying

    def smooth(self, x: Points, y: Points) -> Floats:
        """Prior covariance (n, m) of the smooth function and of varying constants at `points`, of one source."""
        (a, shape_a, moved_a), (b, shape_b, moved_b) = x, y
        out = squared_exponential(a, b)
        out *= self.shape**2
        if self.varying:
            out += squared_exponential(shape_a, shape_b) * (moved_a @ moved_b.T)
        return out

    def smooth_sums(self, x: Points, y: Points, weights: Floats) -> Floats:
        """`smooth` times ``weights`` (m,), (n,): of shapes, which many plans have in common, once for each."""
        (a, shape_a, moved_a), (b, shape_b, moved_b) = x, y
        smooth = self.shape**2 * squared_exponential_sums(a, b, weights)
        if not self.varying:
            return smooth
        _, first, of = np.unique(row_keys(shape_a.T), return_index=True, return_inverse=True)
        constants = squared_exponential_sums(shape_a[first], shape_b, moved_b * weights[:, None])[of]
        return np.asarray((constants * moved_a).sum(axis=1) + smooth)


def default_kernel(constants: int) -> Kernel:
    """The kernel at which learning starts, and the centre of the prior on its logarithms."""
    lengths = tuple(USUAL_LENGTHS[kind] for kind, names in CLASSES.items() for _ in names)
    return Kernel((0.15,) * constants, 0.1, 0.08, lengths, 0.03)


def of_network(constants: int) -> npt.NDArray[np.bool_]:
    """A mask, (constants,), true at the constant of the network between nodes."""
    return np.asarray(np.arange(constants) == CONSTANTS.index("inter_node"))


def covariance_terms(kernel: Kernel, a: Runs, b: Runs) -> Floats:
    """Prior covariance of the residuals of two sets of runs by term, (4, n, m), noise not included.

    One factor for all, the network between nodes, the other constants, and the smooth function.
    """
    kin, network = kinship(a.source, b.source), of_network(len(kernel.constants))
    weighted = a.sensitivity * np.square(kernel.constants)
    return np.stack([
        kernel.source**2 * kin,
        weighted[:, network] @ b.sensitivity[:, network].T * kin,
        weighted[:, ~network] @ b.sensitivity[:, ~network].T * kin,
        kernel.smooth(kernel.points(a), kernel.points(b)) * kin,
    ])  # fmt: skip


def covariance_of_rows(kernel: Kernel, a: Runs, b: Runs, scales: Floats) -> Callable[[Ints], Floats]:
    """A function from rows of ``a`` to the sum (scales, rows, m) of `covariance_terms` times ``scales`` (scales, 4)."""
    if len(scales) > 1:
        return lambda rows: np.tensordot(scales, covariance_terms(kernel, a.take(rows), b), 1)
    (factors,) = scales
    squares = np.square(kernel.constants) * np.where(of_network(len(kernel.constants)), factors[1], factors[2])
    moved, seen, (points, shapes, varied) = a.sensitivity * squares, kernel.points(b), kernel.points(a)
    of_source, (kin, at, to) = factors[0] * kernel.source**2, _kin_by_key(a.source, b.source)

    def between(rows: Ints) -> Floats:
        out = kernel.smooth((points[rows], shapes[rows], varied[rows]), seen)
        out *= factors[3]
        out += moved[rows] @ b.sensitivity.T
        out += of_source
        return out[None] if (kin == 1.0).all() else np.asarray(out * kin[np.ix_(at[rows], to)])[None]

    return between


def squared_exponential(x: Floats, y: Floats) -> Floats:
    """exp(-d²/2) of the distances d (n, m) of two sets of points (n, k) and (m, k)."""
    out = np.asarray(_with_halves(x)[0] @ _with_halves(y)[1].T)
    np.minimum(out, 0.0, out=out)
    np.exp(out, out=out)
    return out


def squared_exponential_sums(x: Floats, y: Floats, weights: Floats) -> Floats:
    """`squared_exponential` (n, m) times ``weights`` (m, ...), (n, ...), in blocks of rows that stay in the cache."""
    left, right = _with_halves(x)[0], np.ascontiguousarray(_with_halves(y)[1].T)
    size = max(CACHED_CELLS // max(len(y), 1), 1)
    some, out = np.empty((min(size, len(x)), len(y))), np.empty((len(x), *weights.shape[1:]))
    for at in range(0, len(x), size):
        rows = left[at : at + size]
        cells = np.matmul(rows, right, out=some[: len(rows)])
        out[at : at + size] = np.exp(cells, out=cells) @ weights
    return out


def _with_halves(x: Floats) -> tuple[Floats, Floats]:
    """Points (n, k) with half their squares, by which a product of one with another set's other is -d²/2: (n, k + 2).

    The product then holds what would be two passes more over all pairs.
    """
    half, one = -0.5 * np.square(x).sum(axis=1), np.ones(len(x))
    return np.column_stack([x, half, one]), np.column_stack([x, one, half])


def one_minus_exponential(x: Floats, y: Floats) -> Floats:
    """1 - exp(-d²/2) of the distances d (n,) of points from as many others, or from one."""
    return np.asarray(-np.expm1(-0.5 * np.square(x - y).sum(axis=1)))


def variances(kernel: Kernel, runs: Runs, against: Runs | None = None) -> Floats:
    """Prior variance (4, n) of residuals by the same terms, or of their difference from those of ``against``.

    Of these, as many runs of one source or one for all, the one factor cancels, constants count by the difference of
    sensitivities, the smooth function by how alike the two plans are. Noise is not included.
    """
    smooth, shapes, moved = kernel.points(runs)
    if against is None:
        slopes, of_source = runs.sensitivity, kernel.source**2
        of_smooth = kernel.shape**2 + np.square(moved).sum(axis=1)
    else:
        other, other_shapes, other_moved = kernel.points(against)
        slopes, of_source = runs.sensitivity - against.sensitivity, 0.0
        of_smooth = np.square(moved - other_moved).sum(axis=1)
        of_smooth += 2.0 * (moved * other_moved).sum(axis=1) * one_minus_exponential(shapes, other_shapes)
        of_smooth += 2.0 * kernel.shape**2 * one_minus_exponential(smooth, other)
    squares, network = np.square(slopes * kernel.constants), of_network(len(kernel.constants))
    of_constants = squares[:, network].sum(axis=1), squares[:, ~network].sum(axis=1)
    return np.stack([np.full(len(runs), of_source), *of_constants, of_smooth])


def kinship(a: npt.NDArray[np.str_], b: npt.NDArray[np.str_]) -> Floats:
    """Correlation (n, m) of the residuals of runs of sources ``a`` (n,) and ``b`` (m,), which are keys of `Source`.

    1 within a source; sources of one origin with the same software or GPU are kin, `SAME_SOFTWARE` or `SAME_GPU`; 0
    else.
    """
    table, at, to = _kin_by_key(a, b)
    return table[np.ix_(at, to)]


def _kin_by_key(a: npt.NDArray[np.str_], b: npt.NDArray[np.str_]) -> tuple[Floats, Ints, Ints]:
    """`kinship` of distinct keys, and which of them each run of ``a`` and of ``b`` has."""
    (first, at), (second, to) = (np.unique(keys, return_inverse=True) for keys in (a, b))
    table = np.array([[_kin(one, other) for other in second.tolist()] for one in first.tolist()], dtype=np.float64)
    return table.reshape(len(first), len(second)), at, to


def _kin(one: str, other: str) -> float:
    if one == other:
        return 1.0
    mine, its = (key.rsplit("|", 3) for key in (one, other))  # `Source`: origin, framework, GPU, GPUs per node
    if len(mine) < 4 or len(its) < 4 or mine[0] != its[0]:
        return 0.0
    return SAME_SOFTWARE if mine[1] == its[1] else SAME_GPU if mine[2] == its[2] else 0.0


def learn(sources: Sequence[tuple[Runs, Floats]], seed: int = 0) -> Kernel:
    """Hyperparameters that make the recorded residuals of all sources likely, each source with its own noise.

    ``sources``: runs and residuals of one source each. Of each, samples of `TASK_RUNS` runs are taken, so that none
    drowns the rest and that priors are as good as a few runs need. A log-normal prior around `default_kernel` keeps
    in place what no source informs.
    """
    rng, centre = np.random.default_rng(seed), default_kernel(sources[0][0].sensitivity.shape[1])
    parts = [_tasks(runs, y, rng, centre) for runs, y in sources if len(y) >= 4]
    return _likeliest(parts, centre, np.append(centre.pack(), np.full(len(parts), np.log(0.04))), TURNS)


def learn_alone(runs: Runs, residual: Floats, shared: Kernel, seed: int = 0, start: Kernel | None = None) -> Kernel:
    """Hyperparameters that make the residuals (n,) of many runs of one source likely, around those of all sources.

    ``start``: hyperparameters close to those found, to be quicker.
    """
    rows = np.random.default_rng(seed).choice(len(residual), min(OWN_RUNS, len(residual)), replace=False)
    some, y = runs.take(rows.astype(np.int64)), np.clip(residual, *(np.median(residual) + NEAR_MIDDLE))[rows]
    centre = Kernel.of_one_source(shared)
    first, turns = (centre, OWN_TURNS) if start is None else (start, NEAR_TURNS)
    logs = np.append(first.pack()[:-1], np.log([USUAL_NOISE, first.noise]))
    return _likeliest([[_task(some, y, 1.0, centre)]], centre, logs, turns)


def _likeliest(parts: list[list[_Task]], centre: Kernel, start: Floats, turns: int) -> Kernel:
    """Hyperparameters of the greatest likelihood times prior; each part of ``parts`` has a noise of its own."""
    from scipy.optimize import minimize

    around = np.append(centre.pack(), np.full(len(parts), np.log(USUAL_NOISE)))
    found = minimize(
        _penalised, start, args=(parts, centre), jac=True, method="L-BFGS-B",
        bounds=[(value - 4.0, value + 4.0) for value in around], options={"maxiter": turns},
    )  # fmt: skip
    count = len(centre.pack())
    noise = np.median(found.x[count:]) if parts else centre.pack()[-1]
    return centre.unpack(np.append(found.x[: count - 1], noise))


@dataclass(frozen=True)
class _Task:
    inputs: Floats
    sensitivity: Floats
    kin: Floats
    residual: Floats
    weight: float


def _tasks(runs: Runs, residual: Floats, rng: np.random.Generator, kernel: Kernel) -> list[_Task]:
    """Samples of a source that count for one together, as many as it takes to see its runs twice."""
    size = min(TASK_RUNS, len(residual))
    count = min(TASKS, -(-2 * len(residual) // size))
    y = np.clip(residual, *(np.median(residual) + NEAR_MIDDLE))
    drawn = (rng.choice(len(y), size, replace=False).astype(np.int64) for _ in range(count))
    return [_task(runs.take(rows), y[rows], 1.0 / count, kernel) for rows in drawn]


def _task(runs: Runs, residual: Floats, weight: float, kernel: Kernel) -> _Task:
    return _Task(kernel.inputs(runs), runs.sensitivity, kinship(runs.source, runs.source), residual, weight)


def _penalised(logs: Floats, parts: list[list[_Task]], centre: Kernel) -> tuple[float, Floats]:
    """Negative log of likelihood times a log-normal prior, and its gradient with respect to the logarithms."""
    count = len(centre.pack())
    away = logs[:count] - centre.pack()
    noisy = (logs[count:] - np.log(USUAL_NOISE)) / NOISES
    total = 0.5 * float(np.square(away).sum() + np.square(noisy).sum())
    gradient = np.concatenate([away, noisy / NOISES])
    for i, tasks in enumerate(parts, count):
        kernel = centre.unpack(np.append(logs[: count - 1], logs[i]))
        for task in tasks:
            value, slope = negative_log_likelihood(kernel, task)
            total += task.weight * value
            gradient[: count - 1] += task.weight * slope[:-1]
            gradient[i] += task.weight * slope[-1]
    return total, gradient


def negative_log_likelihood(kernel: Kernel, task: _Task) -> tuple[float, Floats]:
    """Negative log likelihood of the residuals of one sample, and its gradient by the logarithms of `Kernel.pack`.

    Rasmussen and Williams 2006, equations 5.8 and 5.9.
    """
    from scipy.linalg import cho_factor, cho_solve

    x, j, kin = task.inputs, task.sensitivity, task.kin
    z, squares, varied = x[:, : len(kernel.varying_lengths)], np.square(kernel.constants), np.square(kernel.varying)
    smooth = kernel.shape**2 * squared_exponential(x / kernel.lengths, x / kernel.lengths) * kin
    prior = ((j * squares) @ j.T + kernel.source**2) * kin + smooth
    if kernel.varying:
        like = squared_exponential(z / kernel.varying_lengths, z / kernel.varying_lengths) * kin
        product = (j * varied) @ j.T * like
        prior += product
    factor = cho_factor(prior + kernel.noise**2 * np.eye(len(j)), lower=True)
    inverse = cho_solve(factor, np.eye(len(j)))
    alpha = inverse @ task.residual
    value = 0.5 * float(task.residual @ alpha) + float(np.log(np.diag(factor[0])).sum())
    outer = 0.5 * (inverse - np.outer(alpha, alpha))
    within, bent = outer * kin, outer * smooth
    slopes = [
        2.0 * squares * ((within @ j) * j).sum(axis=0),
        2.0 * np.array([kernel.source**2 * within.sum(), bent.sum()]),
        _slope_of_lengths(bent, x) / np.square(kernel.lengths),
    ]
    if kernel.varying:
        slopes.append(2.0 * varied * (((outer * like) @ j) * j).sum(axis=0))
        slopes.append(_slope_of_lengths(outer * product, z) / np.square(kernel.varying_lengths))
    return value, np.concatenate([*slopes, [2.0 * kernel.noise**2 * float(np.trace(outer))]])


def _slope_of_lengths(outer: Floats, x: Floats) -> Floats:
    """Sum of ``outer`` (n, n), symmetric, times squared differences of each column of x (n, k), (k,)."""
    return np.asarray(2.0 * (np.square(x).T @ outer.sum(axis=1) - ((outer @ x) * x).sum(axis=0)))
