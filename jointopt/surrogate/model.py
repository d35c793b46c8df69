"""A surrogate: trees for what sources share, a Gaussian process for what each of them is, calibrated intervals."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.schema import Bools, Floats, Ints
from jointopt.surrogate.posterior import Posterior, condition
from jointopt.surrogate.residual_gp import FEATURES, Kernel, Runs, kinship, together
from jointopt.surrogate.trees import Trees

HALF_WIDTH = 1.645  # of a 90 % interval, in standard deviations
SPEEDS, SAME_SPEED = ("log2_peak", "log2_memory"), 0.07  # of a GPU; of a base-2 logarithm: 5 %
SAME_KIND = ("moe", "dtype")  # runs that differ in these say little of each other
MOST_REPEATS = 6  # as many runs of one plan as any recorded source has; more are the iterations of one run
SETTINGS = {
    "max_depth", "n_estimators", "learning_rate", "reg_lambda", "min_child_weight", "strength", "random_state",
    "categories", "monotone",
}  # fmt: skip
CARD, TREES, SUPPORT = "card.json", "trees.ubj", "support.npz"
# 1 had one length per class of features, 2 no memory speed of GPUs, 3 no hashes of its files, 4 two kernels
FORMAT = 5
_MOST_BYTES = 1 << 28  # of one file, unpacked; the default's take 0.3 MB
# what readers of JSON, zip archives and arrays raise for a damaged file, and what a card of another shape leads to
_DAMAGED = (
    OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class Widths:
    """Conformal factors on the process's own 90 % half-width, by how much is known of a run's source."""

    measured: float = 1.0  # runs of the same source are known
    fitted: float = 1.0  # none are, but its framework has a profile
    unknown: float = 1.0


@dataclass(frozen=True)
class Surrogate:
    """Learned correction of the physics."""

    kernel: Kernel
    trees: Trees | None
    feature_names: tuple[str, ...]
    support: Runs
    residual: Floats
    widths: Widths = field(default_factory=Widths)
    card: Mapping[str, Any] = field(default_factory=dict)

    def predict(
        self, runs: Runs, fitted: bool, measured: tuple[Runs, Floats] | None = None
    ) -> tuple[Floats, Floats, Bools]:
        """As `Conditioned.predict`, for runs of one source."""
        return self.conditioned(runs.source[0], fitted, measured).predict(runs)

    def conditioned(self, source: str, fitted: bool, measured: tuple[Runs, Floats] | None = None) -> Conditioned:
        """The correction of one source, after supporting runs and those at hand, its own and those of its kin.

        ``fitted``: its framework has a profile of its own. ``measured``: runs at hand and their residuals.
        """
        rows = _kin(self.support, source)
        known, residual = self.support.take(rows), self.residual[rows]
        if measured is not None:
            own = _kin(measured[0], source)
            few, seen = _few_repeats(measured[0].take(own), measured[1][own])
            known, residual = together([few, known]), np.concatenate([seen, residual])
        return Conditioned(self, source, fitted, known, condition(self.kernel, known, residual), not len(rows))

    @property
    def moves_unseen_sources(self) -> bool:
        """Whether it moves predictions of a source of which no run is known."""
        return self.trees is not None and self.trees.strength > 0.0

    def correction_by_trees(self, runs: Runs) -> Floats:
        """Correction by the trees (n,), of log(measured / physics)."""
        if self.trees is None or not len(runs):
            return np.zeros(len(runs))
        return self.trees.predict(runs.matrix(self.feature_names))

    def inside(self, runs: Runs, known: Runs) -> Bools:
        """Whether features lie where training's did, on a GPU of whose peak and memory speed some run is known."""
        gpus = np.unique(np.concatenate([r.matrix(SPEEDS) for r in (self.support, known)]), axis=0)
        speeds, inside = runs.matrix(SPEEDS), np.zeros(len(runs), bool)
        for gpu in gpus:
            inside |= (np.abs(speeds - gpu) < SAME_SPEED).all(axis=1)
        if self.trees is not None:
            inside &= self.trees.range.gate(runs.matrix(self.feature_names)) > 0.5
        return np.asarray(inside)


@dataclass(frozen=True)
class Conditioned:
    """A surrogate's correction of one source; ``known`` are its runs and its kin's, remembered or at hand."""

    surrogate: Surrogate
    source: str
    fitted: bool
    known: Runs
    posterior: Posterior
    movable: bool  # all that is known can be priced anew

    @property
    def constants(self) -> Floats:
        """How far the physics' constants are off from the catalogue's, (constants,)."""
        return self.posterior.constants

    def mean(self, runs: Runs) -> Floats:
        """The mean of `predict` alone, (n,)."""
        return self.posterior.mean(runs) if len(self.known) else self.surrogate.correction_by_trees(runs)

    def predict(self, runs: Runs) -> tuple[Floats, Floats, Bools]:
        """(mean, 90 % half-width, in domain) of log(measured / physics) for runs of the source, (n,) each.

        Trees correct sources without runs alone: once runs are known, they make predictions worse (docs/surrogate.md).
        """
        mean, deviation = self.posterior.predict(runs)
        inside, widths = self.surrogate.inside(runs, self.known), self.surrogate.widths
        if len(self.known):
            return mean, HALF_WIDTH * widths.measured * deviation, inside
        factor = widths.fitted if self.fitted else widths.unknown
        return self.surrogate.correction_by_trees(runs), HALF_WIDTH * factor * deviation, inside & self.fitted

    def knows_kind(self, runs: Runs) -> bool:
        """Whether a known run has the dtype of ``runs`` (all of one job), and experts or none as they have."""
        alike = (self.known.matrix(SAME_KIND) == runs.matrix(SAME_KIND)[:1]).all(axis=1)
        return bool((alike & (self.known.source == self.source)).any())


def _kin(runs: Runs, source: str) -> Ints:
    """Positions of the runs that say something of that source."""
    return np.flatnonzero(kinship(runs.source, np.array([source]))[:, 0] > 0.0).astype(np.int64)


def _few_repeats(runs: Runs, residual: Floats) -> tuple[Runs, Floats]:
    """Runs without copies; where there are more than `MOST_REPEATS` of one plan, their median alone.

    A log of every iteration, or a file given twice, must not pass for evidence of hundreds of runs.
    """
    if len(residual) < 2:
        return runs, residual
    inputs = np.hstack([runs.sensitivity, runs.matrix(sorted(runs.features))]).round(9) + 0.0
    keys = [row.tobytes() + group.encode() for row, group in zip(inputs, runs.group.tolist(), strict=True)]
    of_plan: dict[bytes, dict[float, int]] = {}
    for i, key in enumerate(keys):
        of_plan.setdefault(key, {}).setdefault(float(residual[i]), i)
    kept: list[int] = []
    for found in of_plan.values():
        rows = [found[value] for value in sorted(found)]
        kept += rows if len(rows) <= MOST_REPEATS else [rows[len(rows) // 2]]
    at = np.array(sorted(kept), np.int64)
    return runs.take(at), residual[at]


def save(surrogate: Surrogate, folder: Path) -> None:
    """Write card (JSON), trees (XGBoost's own UBJ) and supporting runs (plain arrays) into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = surrogate.support
    names = sorted(runs.features)
    residual = surrogate.residual.astype(np.float32)
    np.savez_compressed(
        folder / SUPPORT, sensitivity=runs.sensitivity.astype(np.float32), residual=residual,
        features=np.column_stack([runs.features[n] for n in names]).astype(np.float32), source=runs.source.astype(str),
        group=runs.group.astype(str),
    )  # fmt: skip
    if surrogate.trees is not None:
        surrogate.trees.booster.booster_.get_booster().save_model(folder / TREES)
    trees = surrogate.trees
    model = {
        "format": FORMAT,
        **{name: dataclasses.asdict(getattr(surrogate, name)) for name in ("kernel", "widths")},
        "feature_names": list(surrogate.feature_names),
        "support_features": names,
        "booster": trees
        and {"parameters": dict(trees.settings), "low": trees.low.tolist(), "high": trees.high.tolist()},
        "sha256": {name: _sha256(folder / name) for name in (SUPPORT, TREES) if (folder / name).is_file()},
    }
    text = json.dumps({**surrogate.card, "model": model}, indent=1, sort_keys=True)
    (folder / CARD).write_text(text + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load(folder: Path) -> Surrogate:
    """The surrogate in ``folder``; only JSON, XGBoost's format and plain arrays are read, so no file can run code.

    Raises TableError where a file is missing or is not what it should be.
    """
    try:
        _check_file(folder / CARD)
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        model = card.pop("model")
        if model["format"] != FORMAT:
            raise ValueError(f"format {model['format']}, expected {FORMAT}")
        _check_file(folder / SUPPORT)
        with zipfile.ZipFile(folder / SUPPORT) as archive:
            _check_size(SUPPORT, sum(entry.file_size for entry in archive.infolist()))
        for name, written in model["sha256"].items():
            _check_file(folder / name)
            if _sha256(folder / name) != written:
                raise ValueError(f"{name} has changed since it was written")
        with np.load(folder / SUPPORT, allow_pickle=False) as arrays:
            support = {name: arrays[name] for name in arrays.files}
        surrogate = Surrogate(
            kernel=_kernel(model["kernel"]), trees=_trees(folder / TREES, model["booster"]),
            feature_names=tuple(model["feature_names"]),
            support=_support(support, model["support_features"]), residual=support["residual"].astype(np.float64),
            widths=Widths(**{name: float(width) for name, width in model["widths"].items()}), card=card,
        )  # fmt: skip
        _check_sizes(surrogate)
        _check_values(surrogate)
    except _DAMAGED as error:
        reason = str(error).split("\n")[0].strip(" .:") or type(error).__name__
        raise TableError(
            f"{folder} holds no surrogate ({reason}); expected a folder that `jointopt retrain --out` wrote."
        ) from error
    return surrogate


def _check_file(path: Path) -> None:
    """ValueError where a path is a pipe or a device, which would be waited for, or a file too large to be ours."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name} is no file")
    if path.exists():
        _check_size(path.name, path.stat().st_size)


def _check_size(name: str, count: int) -> None:
    if count > _MOST_BYTES:
        raise ValueError(f"{name} is larger than {_MOST_BYTES:,} bytes")


def _check_values(surrogate: Surrogate) -> None:
    """ValueError for numbers that no training writes, which would make every prediction senseless."""
    runs, trees = surrogate.support, surrogate.trees
    kernel = surrogate.kernel
    positive = [*dataclasses.astuple(surrogate.widths), *kernel.constants, kernel.source, kernel.shape]
    positive += [*kernel.lengths, kernel.noise]
    if not all(1e-9 < value < 1e9 for value in positive):
        raise ValueError("a width, length or standard deviation is not between 1e-9 and 1e9")
    given = [surrogate.residual, runs.sensitivity, *runs.features.values()]
    given += [trees.low, trees.high, np.array([trees.strength])] if trees is not None else []
    if not all(np.isfinite(values).all() for values in given):
        raise ValueError("a number is not finite")
    if trees is not None and not 0.0 <= trees.strength <= 1.0:
        raise ValueError(f"strength {trees.strength}, expected 0 to 1")
    for row in surrogate.card.get("error", {}).values():
        if not all(isinstance(value, float | int) for value in row.values()):
            raise ValueError("an error on held-out groups is no number")


def _check_sizes(surrogate: Surrogate) -> None:
    """ValueError where parts that were read one by one do not belong together."""
    runs, trees = surrogate.support, surrogate.trees
    count, constants = runs.sensitivity.shape
    sizes = {
        "residuals": {count, *surrogate.residual.shape, *runs.source.shape, *runs.group.shape},
        "supporting features": {count, *(len(values) for values in runs.features.values())},
        "constants": {constants, len(surrogate.kernel.constants)},
        "lengths": {len(FEATURES), len(surrogate.kernel.lengths)},
    }
    if trees is not None:
        width = len(surrogate.feature_names)
        signs = len(trees.settings["monotone"] or trees.low)
        sizes["features"] = {width, signs, *trees.low.shape, *trees.high.shape}
        if not all(0 <= column < width for column in trees.settings["categories"] or ()):
            raise ValueError("a category is no column of the trees")
    wrong = next((name for name, found in sizes.items() if len(found) > 1), None)
    if wrong:
        raise ValueError(f"its {wrong} differ in number: {', '.join(map(str, sorted(sizes[wrong])))}")


def _kernel(values: dict[str, Any]) -> Kernel:
    read: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else float(v) for k, v in values.items()}
    return Kernel(**read)


def _support(arrays: dict[str, Any], names: list[str]) -> Runs:
    if arrays["features"].shape[1] != len(names):
        raise ValueError(f"{len(names)} names for {arrays['features'].shape[1]} columns of supporting features")
    features = {name: arrays["features"][:, i].astype(np.float64) for i, name in enumerate(names)}
    return Runs(arrays["sensitivity"].astype(np.float64), features, arrays["source"], arrays["group"])


def _trees(path: Path, settings: dict[str, Any] | None) -> Trees | None:
    """The trees that a card describes; their file is read when they are used, since most predictions need none."""
    if settings is None:
        return None
    if set(settings["parameters"]) != SETTINGS:
        raise ValueError(f"settings {', '.join(settings['parameters'])}, expected {', '.join(sorted(SETTINGS))}")
    low, high = (np.asarray(settings[name], dtype=np.float64) for name in ("low", "high"))
    return Trees(settings["parameters"], low, high, path)
