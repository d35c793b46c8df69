"""``retrain``: a surrogate from tables and the store, judged before it replaces another, with a card."""

from __future__ import annotations

import datetime
import hashlib
import logging
import platform
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.atomic_write import check_folder, replace_files, write_failure
from jointopt.core.errors import InfeasibleError, TableError, UsageError
from jointopt.core.quote import sh_command
from jointopt.core.schema import COLUMNS, Bools
from jointopt.core.secrets import masked
from jointopt.report.results import Retrained
from jointopt.report.scores import LEAST_SHARED, not_comparable
from jointopt.runs.checks import contradicting_lines
from jointopt.runs.ignored_columns import unfinished_lines, unread_lines, untimed_lines
from jointopt.runs.row_names import join_named_tables, without_rows
from jointopt.runs.table import checked_results, read_table, readable_runs
from jointopt.surrogate.dataset import timed_runs, with_results
from jointopt.surrogate.evidence import Use
from jointopt.surrogate.files import DAMAGED, holds_surrogate, load, load_surrogate, save
from jointopt.surrogate.surrogate import Surrogate
from jointopt.surrogate.training import HELD_OUT_COLUMNS, train
from jointopt.workflows.answers import accepts_paths, as_paths

_log = logging.getLogger(__name__)
HELD_OUT = "held_out.npz"
_HELD_OUT_TYPES = {"row": np.uint64, "source": str, "error": float}
_BOUNDS = (
    "lower bounds: {:,} of {:,} runs that were ended early count, as what they are expected to have taken beyond; the "
    "others were expected to take longer anyway, are too far from the physics, or cannot be priced"
)
_VERSIONS = ("numpy", "scipy", "pandas", "scikit-learn", "xgboost-cpu", "jointopt")


@accepts_paths
def retrain(
    *, tables: Sequence[str | Path] | str | Path = (), storage: str | None = None, out: str | Path, seed: int = 0,
    licences: Sequence[str] = (), force: bool = False, for_others: bool = False,
) -> Retrained:  # fmt: skip
    """Train on tables and store, write the surrogate into ``out``, and return its held-out errors.

    Of every source with many rows what is its own is learned too: the process's hyperparameters, boosted trees of time
    and power, each as far as it helps on models left out. Errors are of predictions made without the row's group
    (model, for a source alone).

    Parameters
    ----------
    tables : path or sequence of paths, optional
        Tables of measured runs, units in the names of their columns.
    storage : str, optional
        URL of the database whose measured runs count too.
    out : path
        Folder of the surrogate.
    seed : int, optional
        Of the training's random numbers.
    licences : sequence of str, optional
        Licences of the tables, to be kept with the surrogate.
    force : bool, optional
        Replace a surrogate in ``out`` even if that was better.
    for_others : bool, optional
        For clusters that are not in the tables: nothing of a source alone is learned.

    Returns
    -------
    Retrained
        Errors before and after, by target.

    Raises
    ------
    InfeasibleError
        Where the surrogate in ``out`` was better on the rows that both were judged on, or shares too few of them.
    TableError
        Where there is too little to train on.
    """
    given = as_paths("tables", tables)
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; expected a folder, or a name that is free, for the surrogate.")
    try:
        check_folder(out)  # before the training
    except OSError as error:
        raise UsageError(f"{error.filename}: the surrogate cannot be written there: {write_failure(error)}.") from error
    old = _replaced_surrogate(out, force)
    data, remarks = _training_rows(given, storage)
    try:
        surrogate, scores = train(data, seed, load_surrogate("default"), for_others)
    except TableError as error:
        raise TableError(" ".join([str(error), *remarks])) from error  # why rows that have results do not count
    judged = _held_out_runs(scores.attrs.get("rows", {}))
    card = _card(data, given, scores, seed, licences, storage, out)
    compared, forgotten = None, tuple[str, ...]()
    if old is not None:
        before, held = old
        files = before.get("files_sha256", {})  # whether it was trained on the very files alone
        same = "--storage" not in str(before.get("rebuild")) and bool(files) and files == card["files_sha256"]
        if not (judged.empty and held.empty and storage is None and same):
            compared = _compare_on_shared_rows(judged, held)
            forgotten = tuple(sorted(set(map(str, before.get("data", {}))) - set(data["source"].astype(str))))
            if not force:
                _refuse_worse(compared, out, len(judged))
    used: tuple[Use, ...] = scores.attrs.get("use", ())
    card["learned_from"] = {use.source: use.learned for use in used}
    card["error_per_group"] = scores.attrs.get("groups", {})
    card["error_per_group_of"] = {own.source: own.group_errors for own in surrogate.own if own.group_errors}
    card["own"] = {own.source: own.to_text() for own in surrogate.own}
    few = [new.to_text() for new in surrogate.new_groups]
    card |= {"groups_without_runs": few} if few else {}
    if classes := scores.attrs.get("recipe_classes"):
        card["recipe_classes"] = classes
    card["rebuild"] += " --for-others" * for_others
    _write_surrogate(replace(surrogate, card=card, learned_rows=scores.attrs.get("learned_rows")), judged, out)
    load_surrogate.cache_clear()
    bounded, counted = scores.attrs.get("lower_bounds", (0, 0))
    bounds = [_BOUNDS.format(counted, bounded)] if bounded else []
    lines = (*remarks, *(use.to_text() for use in used), *bounds, *(own.to_text() for own in surrogate.own), *few)
    learned, groups = card["learned_from"], card["error_per_group"]
    return Retrained(lines, scores, compared, forgotten, out, surrogate.importance, len(judged), learned, groups)


def _write_surrogate(surrogate: Surrogate, judged: pd.DataFrame, out: Path) -> None:
    """Writes all files elsewhere first, so that a surrogate is replaced when the new one is whole."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=out) as made:
        np.savez_compressed(
            Path(made) / HELD_OUT, row=judged["row"].to_numpy(np.uint64), source=judged["source"].to_numpy(str),
            error=judged["error"].to_numpy(np.float32),
        )  # fmt: skip
        save(surrogate, Path(made))  # last, as its card has the hashes of all
        load(Path(made))  # what cannot be read replaces nothing
        replace_files(Path(made), out)


def _held_out_runs(rows: Mapping[str, Any]) -> pd.DataFrame:
    """Each held-out run once: row (a number that identifies it), source, error of its time.

    A run is known again by source, group and its time over the physics' time, where the same physics priced it.
    """
    held = pd.DataFrame(rows, columns=HELD_OUT_COLUMNS)
    texts = (f"{r.source}|{r.group}|{r.truth:.4f}" for r in held.itertuples())
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    held["row"] = np.array([int.from_bytes(digest, "big") for digest in digests], np.uint64)
    table = held[list(_HELD_OUT_TYPES)].astype(_HELD_OUT_TYPES)
    return table.groupby(["row", "source"], as_index=False, sort=False).agg(error=("error", "mean"))


def _compare_on_shared_rows(new: pd.DataFrame, old: pd.DataFrame) -> pd.DataFrame:
    """Median errors of both on the runs that both had held out, by source: columns source, rows, before, now."""
    both = new.merge(old, on=["row", "source"], suffixes=("_new", "_old"))
    found = both.groupby("source", as_index=False).agg(
        rows=("row", "size"), before=("error_old", "median"), now=("error_new", "median")
    )
    return found if found["rows"].sum() >= LEAST_SHARED else found.head(0)


def _refuse_worse(compared: pd.DataFrame, out: Path, judged: int) -> None:
    """InfeasibleError unless the new surrogate is as good, to a tenth of a per cent, on rows that both had held out."""
    if compared.empty:
        raise InfeasibleError(
            f"{not_comparable(out, judged)[:-1]}; it was not written, and --force replaces the old one."
        )
    before, now = (round(float(compared[name].mean()), 3) for name in ("before", "now"))
    if now > before:
        by_source = ", ".join(f"{r.source} {r.before:.1%} to {r.now:.1%}" for r in compared.itertuples())
        raise InfeasibleError(
            f"On the {compared['rows'].sum():,} held-out rows that both were judged on, the new surrogate errs by "
            f"{now:.1%} and the one now in {out} by {before:.1%} ({by_source}): the new one was not written; --force "
            "replaces the old one."
        )


def _training_rows(tables: Sequence[Path], storage: str | None) -> tuple[pd.DataFrame, list[str]]:
    """All rows to train on, and a sentence on each kind of result that is not used or doubtful, with its table.

    Rows without a source are of the file, or of the origin, that they came from.
    """
    parts: list[tuple[str, pd.DataFrame]] = []
    cells: list[pd.DataFrame] = []
    remarks: list[str] = []
    for path in tables:
        table = with_results(read_table(path), str(path))
        clean, _ = readable_runs(table, called=str(path))
        sentences = [*unread_lines(table), *unfinished_lines(table), *untimed_lines(table)]
        for line in [*sentences, *contradicting_lines(table, clean)]:
            _log.warning("%s: %s", path, line)
        blank = pd.Series(path.stem, table.index)
        sound, lines = checked_results(table.assign(source=table.get("source", blank).fillna(path.stem)))
        parts.append((str(path), sound))
        cells.append(table)
        remarks += [f"{path}: {line}" for line in lines]
    if storage is not None:
        from jointopt.runs.store import Store

        stored = Store(storage).read()
        stored = stored.assign(source=stored.get("source", stored["origin"]).fillna(stored["origin"]))
        for line in untimed_lines(with_results(stored)):
            _log.warning("%s: %s", masked(storage), line)
        sound, lines = checked_results(stored)
        parts.append((masked(storage), sound))
        cells.append(with_results(stored))
        remarks += [f"{masked(storage)}: {line}" for line in lines]
    if not parts:
        raise TableError("Nothing to train on; expected at least one --table, or a --storage with measurements.")
    again = _in_an_earlier_table(cells)
    if again.any():
        count = int(again.sum())
        remarks.append(f"{count:,} row{'s are' if count > 1 else ' is'} in a table before, too: counted once.")
    return without_rows(join_named_tables(parts), again), remarks


def _in_an_earlier_table(tables: Sequence[pd.DataFrame]) -> Bools:
    """Rows of all tables together (n,) that an earlier one has, in every cell of the schema; one may have repeats."""
    if len(tables) == 1:  # looking through 100,000 rows takes over a second
        return np.zeros(len(tables[0]), bool)
    names = ["clock_mhz", *COLUMNS]
    rows = pd.concat([table.reindex(columns=names) for table in tables], ignore_index=True).astype(object)
    of = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    first = pd.Series(of).groupby(rows.groupby(names, dropna=False, sort=False).ngroup().to_numpy()).transform("min")
    return np.asarray(first.to_numpy() < of)


def _replaced_surrogate(folder: Path, force: bool) -> tuple[Mapping[str, Any], pd.DataFrame] | None:
    """Card and held-out rows (row, source, error) of the surrogate in ``folder``; None where there is none."""
    if not holds_surrogate(folder):
        return None
    try:
        card = load(folder).card
    except TableError:
        if force:
            return None
        raise
    try:
        with np.load(folder / HELD_OUT, allow_pickle=False) as arrays:
            judged = pd.DataFrame({name: arrays[name] for name in _HELD_OUT_TYPES}).astype(_HELD_OUT_TYPES)
    except DAMAGED:
        judged = _held_out_runs({})  # an earlier version wrote none, and what cannot be read is no evidence
    return card, judged


def _card(
    data: pd.DataFrame, tables: Sequence[Path], scores: pd.DataFrame, seed: int, licences: Sequence[str],
    storage: str | None, out: Path,
) -> dict[str, Any]:  # fmt: skip
    """Data, errors and versions behind a surrogate, and how to make it again."""
    options = [("--table", path.name) for path in tables]
    options += [("--storage", masked(storage))] if storage else []
    options += [("--licence", text) for text in licences] + [("--seed", str(seed)), ("--out", out.name)]
    errors = scores.set_index("source").round(4).T.to_dict()
    versions = dict.fromkeys(_VERSIONS, "not installed")
    for name in versions:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        # timed rows given; those that were learned from stand in learned_from
        "data": {str(name): int(count) for name, count in timed_runs(data).groupby("source").size().items()},
        "files_sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tables},
        "licences": list(licences),
        "error": {str(name): {str(k): v for k, v in row.items() if v == v} for name, row in errors.items()},
        "target": "log(measured / physics) of iteration time", "date": datetime.date.today().isoformat(),
        "seed": seed, "python": platform.python_version(),
        "versions": versions,
        "rebuild_in": "the folder of the files that files_sha256 names" if tables else "any folder",
        "rebuild": sh_command(["jointopt", "retrain", *(word for option in options for word in option)]),
    }  # fmt: skip
