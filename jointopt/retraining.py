"""``retrain``: a surrogate from tables and the store, judged before it replaces another, with a card."""

from __future__ import annotations

import datetime
import hashlib
import platform
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from jointopt.correcting import load_surrogate
from jointopt.errors import InfeasibleError, TableError
from jointopt.surrogate.model import CARD, save
from jointopt.tables import read_table
from jointopt.training import train

_VERSIONS = ("numpy", "scipy", "pandas", "scikit-learn", "xgboost-cpu", "jointopt")


def retrain(
    *, tables: Sequence[Path] = (), storage: str | None = None, out: Path, seed: int = 0,
    licences: Sequence[str] = (), force: bool = False,
) -> str:  # fmt: skip
    """Train on tables and store, write the surrogate into ``out``, and return a report of held-out errors.

    Refuses (InfeasibleError) to replace a surrogate in ``out`` that was better on held-out groups, unless ``force``;
    raises TableError where there is too little to train on.
    """
    data = _gathered(tables, storage)
    surrogate, scores = train(data, seed)
    before = _before(out)
    now = float(scores.iloc[-1]["group out"])
    card = _card(data, tables, scores, seed, licences, storage, out)
    report = f"{scores.round(3).to_string(index=False, na_rep='')}\n\n"
    report += (
        f"held-out groups: median error {now:.1%}, physics alone {float(scores.iloc[-1]['physics']):.1%}"
    )
    if before is not None:
        report += f", the surrogate now in {out} {before:.1%}"
        if now > before and not force:
            raise InfeasibleError(
                f"{report}: the new surrogate is worse and was not written; --force replaces the old one."
            )
    save(replace(surrogate, card=card), out)
    load_surrogate.cache_clear()
    return f"{report}\nwritten to {out}"


def _gathered(tables: Sequence[Path], storage: str | None) -> pd.DataFrame:
    parts = [read_table(path).pipe(_named, path) for path in tables]
    if storage is not None:
        from jointopt.store import Store

        parts.append(Store(storage).read())
    if not parts:
        raise TableError(
            "Nothing to train on; expected at least one --table, or a --storage with measurements."
        )
    return pd.concat(parts, ignore_index=True)


def _named(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Rows without a source are of the file that they came in."""
    if "source" not in table:
        return table.assign(source=path.stem)
    return table.assign(source=table["source"].fillna(path.stem))


def _before(folder: Path) -> float | None:
    """Error on held-out groups of the surrogate in ``folder``, as its card says."""
    if not (folder / CARD).is_file():
        return None
    surrogate = load_surrogate(str(folder))
    value = surrogate.card.get("error", {}).get("mean", {}).get("group out") if surrogate else None
    return None if value is None else float(value)


def _card(
    data: pd.DataFrame, tables: Sequence[Path], scores: pd.DataFrame, seed: int, licences: Sequence[str],
    storage: str | None, out: Path,
) -> dict[str, Any]:  # fmt: skip
    """What a surrogate was made of, and how to make it again."""
    arguments = [f"--table {shlex.quote(path.name)}" for path in tables]
    arguments += [f"--storage {shlex.quote(storage)}"] if storage else []
    timed = data[data["iteration_time_s"] > 0]
    error = scores.set_index("source").round(4).T.to_dict()
    return {
        "data": {str(name): int(count) for name, count in timed.groupby("source").size().items()},
        "files_sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tables},
        "licences": list(licences),
        "error": {name: {k: v for k, v in row.items() if v == v} for name, row in error.items()},
        "target": "log(measured / physics) of iteration time",
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _VERSIONS},
        "rebuild": f"jointopt retrain {' '.join(arguments)} --seed {seed} --out {out.name}",
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
