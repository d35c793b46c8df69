"""The noise that reweighting found in each own source's remembered runs, on disk: to find it takes most of loading.

A few kB of which the process's posterior follows: its inverse covariance would take 8 MB for a thousand runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jointopt.core.schema import Floats
from jointopt.surrogate.model import Surrogate
from jointopt.surrogate.posterior import CELLS, LEAST_SPREAD, Noise

NOISE = "noise.npz"  # surrogates of earlier versions have none, and find it anew
_MOST = 1e4  # of any of its numbers: multiples of deviations, squared, are tens at most
_LEAST_SQUARE = 1e-4  # of multiples of terms and noise, which are 0.01 at least: runs of no noise have no posterior
_COLUMNS = 5  # of squared multiples: the four terms and the noise


def write_noise(surrogate: Surrogate, folder: Path) -> None:
    """Write the noise of every own source into ``folder``; ``surrogate`` is as its files are read back."""
    arrays: dict[str, Floats] = {}
    for number, own in enumerate(surrogate.own):
        found = surrogate.conditioned(own.source, fitted=False).posterior.noise
        if found is not None:
            arrays |= {f"{name}-{number}": np.asarray(value) for name, value in vars(found).items()}
    if arrays:
        np.savez_compressed(folder / NOISE, **arrays)  # type: ignore[arg-type]  # its keywords have a bool among them


def read_noise(path: Path, surrogate: Surrogate) -> dict[str, Noise]:
    """Noise by source. KeyError or ValueError where it is none of the runs that the surrogate remembers."""
    with np.load(path, allow_pickle=False) as arrays:
        given = {name: arrays[name] for name in arrays.files}
    numbers = sorted({int(name.rpartition("-")[2]) for name in given})
    if numbers and not 0 <= numbers[0] <= numbers[-1] < len(surrogate.own):
        raise ValueError(f"{path.name} is of other sources")
    sources = {surrogate.own[number].source: number for number in numbers}
    found = {source: _noise(given, number) for source, number in sources.items()}
    for source, noise in found.items():
        if not _makes_sense(noise, len(surrogate.remembered(source))):
            raise ValueError(f"{path.name} holds no noise of the runs that it remembers of {source}")
    return found


def _noise(arrays: Mapping[str, Floats], number: int) -> Noise:
    rows = arrays[f"rows-{number}"]
    if rows.dtype.kind != "i":
        raise ValueError(f"{NOISE} holds positions of runs that are no whole numbers")
    squares, share, spread = (arrays[f"{name}-{number}"].astype(np.float64) for name in ("squares", "share", "spread"))
    return Noise(rows.astype(np.int64), squares, share, spread, float(arrays[f"log_evidence-{number}"]))


def _makes_sense(noise: Noise, count: int) -> bool:
    """Whether it may be that of some of ``count`` runs."""
    rows, scales = noise.rows, len(noise.share)
    if rows.ndim != 1 or not 0 < len(rows) <= count or scales * len(rows) ** 2 > CELLS or noise.share.ndim != 1:
        return False
    if noise.squares.shape != (scales, _COLUMNS) or noise.spread.shape != (scales, len(rows)):
        return False
    positive = np.concatenate([noise.squares.ravel(), noise.spread.ravel(), noise.share])
    in_order = bool((np.diff(rows) > 0).all()) and rows[0] >= 0 and rows[-1] < count
    finite = bool(((positive > 0.0) & (positive < _MOST)).all()) and np.isfinite(noise.log_evidence)
    known = bool((noise.spread >= LEAST_SPREAD).all() and (noise.squares >= _LEAST_SQUARE).all())
    return in_order and finite and known and abs(noise.share.sum() - 1.0) < 1e-6
