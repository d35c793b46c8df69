"""``retrain``: a surrogate from tables and the store, judged before it replaces another, with a card."""

from __future__ import annotations

import datetime
import hashlib
import math
import platform
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from jointopt.correcting import load_surrogate
from jointopt.database import without_password
from jointopt.errors import InfeasibleError, TableError, UsageError
from jointopt.learning import timed_runs
from jointopt.surrogate.model import CARD, load, save
from jointopt.tables import read_table
from jointopt.training import train

Errors = dict[str, dict[str, float]]  # by source and kind of held-out prediction
_VERSIONS = ("numpy", "scipy", "pandas", "scikit-learn", "xgboost-cpu", "jointopt")


def retrain(
    *, tables: Sequence[Path] = (), storage: str | None = None, out: Path, seed: int = 0,
    licences: Sequence[str] = (), force: bool = False,
) -> str:  # fmt: skip
    """Train on tables and store, write the surrogate into ``out``, and return a report of held-out errors.

    Refuses (InfeasibleError) to replace a surrogate in ``out`` that was better on held-out groups, unless ``force``;
    both are compared on the sources that they share, if any. Raises TableError where there is too little to train on.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; expected a folder, or a name that is free, for the surrogate.")
    data = _gathered(tables, storage)
    surrogate, scores = train(data, seed)
    error = _per_source(scores)
    old = _before(out, force)
    now, before = _comparable(error, old)
    card = _card(data, tables, error, seed, licences, storage, out)
    card["error_per_group"] = scores.attrs.get("groups", {})
    if old:
        earlier = [old.get(str(name), {}).get("group out", math.nan) for name in scores["source"]]
        scores = scores.assign(**{"group out before": earlier})
    report = f"{scores.round(3).to_string(index=False, na_rep='')}\n\n"
    report += (
        f"held-out groups: median error {_percent(now)}, physics alone {_percent(error['mean']['physics'])}"
    )
    if before is not None:
        report += f", the surrogate now in {out} {_percent(before)}"
        if not force and not now <= before:
            raise InfeasibleError(
                f"On held-out groups the new surrogate errs by {_percent(now)} and the one now in {out} by "
                f"{_percent(before)} ({_by_source(error, old)}): the new one is not known to be as good and was not "
                "written; --force replaces the old one."
            )
    save(replace(surrogate, card=card), out)
    load_surrogate.cache_clear()
    return f"{report}\nwritten to {out}"


def _gathered(tables: Sequence[Path], storage: str | None) -> pd.DataFrame:
    parts = [read_table(path).pipe(_named, path) for path in tables]
    if storage is not None:
        from jointopt.store import Store

        stored = Store(storage).read()
        parts.append(stored.assign(source=stored.get("source", stored["origin"]).fillna(stored["origin"])))
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


def _per_source(scores: pd.DataFrame) -> Errors:
    """The scores as a card keeps them: by source and kind, four decimals, blanks left out."""
    rows = scores.set_index("source").round(4).T.to_dict()
    return {str(name): {str(k): v for k, v in row.items() if v == v} for name, row in rows.items()}


def _before(folder: Path, force: bool) -> Errors:
    """The held-out errors of the surrogate in ``folder``, as its card says; empty where there is none."""
    if not (folder / CARD).is_file():
        return {}
    try:
        errors: Errors = load(folder).card.get("error", {})
    except TableError:
        if force:
            return {}
        raise
    return errors


def _comparable(new: Errors, old: Errors) -> tuple[float, float | None]:
    """(new, old) error on held-out groups, over the sources that both were judged on, else each over its own."""
    judged = [
        {n: row["group out"] for n, row in errors.items() if "group out" in row} for errors in (new, old)
    ]
    common = sorted(judged[0].keys() & judged[1].keys() - {"mean"}) or ["mean"]
    now, before = ([values[n] for n in common if n in values] for values in judged)
    return _mean(now), _mean(before) if before else None


def _by_source(new: Errors, old: Errors) -> str:
    """Old and new error on held-out groups of every source that has one, for a sentence."""
    parts = []
    for name in sorted({*new, *old} - {"mean"}):
        now, before = (errors.get(name, {}).get("group out", math.nan) for errors in (new, old))
        if not (math.isnan(now) and math.isnan(before)):
            parts.append(f"{name} {before:.1%} to {now:.1%}".replace("nan%", "unknown"))
    return ", ".join(parts) or "no source has two groups"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _percent(value: float) -> str:
    return "unknown (no source has two groups)" if math.isnan(value) else f"{value:.1%}"


def _card(
    data: pd.DataFrame, tables: Sequence[Path], error: Errors, seed: int, licences: Sequence[str],
    storage: str | None, out: Path,
) -> dict[str, Any]:  # fmt: skip
    """What a surrogate was made of, and how to make it again."""
    arguments = [f"--table {shlex.quote(path.name)}" for path in tables]
    arguments += [f"--storage {shlex.quote(without_password(storage))}"] if storage else []
    arguments += [f"--licence {shlex.quote(text)}" for text in licences]
    timed = timed_runs(data)
    return {
        "data": {str(name): int(count) for name, count in timed.groupby("source").size().items()},
        "files_sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tables},
        "licences": list(licences),
        "error": error,
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
