"""Rewrite the widths of a surrogate's intervals by cross-validation, its kernel and remembered runs as they are.

    .venv/bin/python tests/bench/recalibrate.py [--new] DATA_FOLDER [SURROGATE_FOLDER]

DATA_FOLDER holds the tables that the card's ``files_sha256`` names; models/default is the default. It is the last step
of `jointopt retrain` alone, for a change in how widths are calibrated: the card's command gives the same widths where
the physics is that of the remembered runs, which is checked. ``--new``: the bounds of sources of which no run is known
alone, by the present physics, since remembered runs have no part in them.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from jointopt.surrogate.files import load, save
from jointopt.surrogate.held_out import score_table, with_calibrated_widths
from jointopt.surrogate.new_sources import NewSource, bounds_of_clusters, bounds_of_software
from jointopt.surrogate.surrogate import Surrogate, Widths
from jointopt.surrogate.training import TrainingSet, cross_validate, training_set

ROOT = Path(__file__).resolve().parents[2]
MOVED = 1e-5  # of a residual: remembered runs are stored in single precision


def tables(surrogate: Surrogate, folder: Path) -> pd.DataFrame:
    """The tables that the card names, each a source of its own; exits where one has changed."""
    parts = []
    for name, digest in surrogate.card["files_sha256"].items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            sys.exit(f"{folder / name} is not the table that the surrogate was trained on; retrain it instead.")
        table = pd.read_csv(folder / name)
        parts.append(table.assign(source=table["source"].fillna(Path(name).stem)))
    return pd.concat(parts, ignore_index=True)


def check_physics(surrogate: Surrogate, data: TrainingSet) -> None:
    """Exits where the physics has moved since the surrogate was trained."""
    now = np.sort(data.known_residual)
    at = np.searchsorted(now, surrogate.residual).clip(1, len(now) - 1)
    off = np.minimum(np.abs(now[at] - surrogate.residual), np.abs(now[at - 1] - surrogate.residual)).max()
    if off > MOVED:
        sys.exit(f"The physics prices the surrogate's runs anew (off by {off:.2g} in logarithms); retrain it instead.")


def with_new_bounds(surrogate: Surrogate, data: TrainingSet) -> Surrogate:
    """The surrogate with the bounds of new sources that ``data`` needs."""
    new = [
        NewSource.of(data.known.take(at), data.known_residual[at], data.unknown.take(at), data.unknown_residual[at])
        for at in data.by_source(np.arange(len(data.source)))
    ]
    bounds = {"new_cluster": bounds_of_clusters(new), "new_software": bounds_of_software(new)}
    return replace(surrogate, widths=replace(surrogate.widths, **bounds))


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--new"]
    if not 1 <= len(words) <= 2:
        sys.exit(__doc__)
    folder = Path(words[1]) if len(words) == 2 else ROOT / "models" / "default"
    surrogate = load(folder)
    data = training_set(tables(surrogate, Path(words[0])))
    if "--new" in sys.argv:
        found = with_new_bounds(surrogate, data)
        save(found, folder)
        print(f"before: {surrogate.widths}\nnow:    {found.widths}")
        return
    check_physics(surrogate, data)
    with threadpool_limits(1, user_api="blas"):
        scores = cross_validate(data, set(data.source.tolist()), surrogate.card["seed"])
    found = with_calibrated_widths(replace(surrogate, widths=Widths()), scores)
    errors = score_table(scores, found.widths).set_index("source").round(4).T.to_dict()
    card = {**surrogate.card, "error": {n: {k: v for k, v in row.items() if v == v} for n, row in errors.items()}}
    found = replace(found, card=card)
    save(found, folder)
    print(f"before: {surrogate.widths}\nnow:    {found.widths}")


if __name__ == "__main__":
    main()
