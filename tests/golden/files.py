"""Golden files: tables of figures as text that is read, compared and rewritten."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

RTOL = 1e-6
Held = dict[str, dict[str, str]]  # cells that are not blank, by the name of their row and by their column


def path_of(table: str) -> Path:
    """The golden file of that table."""
    return Path(__file__).parent / f"{table}.csv"


def as_held(table: pd.DataFrame) -> Held:
    """The table in the form of `read`; its key columns come first and are named by `names_of`."""
    records = table.to_dict("records")
    return _held({str(c): _text(v) for c, v in record.items()} for record in records)


def read(table: str) -> Held:
    """What the golden file of ``table`` holds."""
    with path_of(table).open(newline="", encoding="utf-8") as file:
        return _held(csv.DictReader(file))


def write(table: str, held: Held) -> None:
    """Write the golden file of ``table``, columns in the order in which rows first have them."""
    columns = dict.fromkeys(column for cells in held.values() for column in cells)
    with path_of(table).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows(held.values())


def settled(old: Held, new: Held) -> Held:
    """``new`` with the old text of each figure that did not move, so that a diff shows the others alone."""
    return {
        row: {c: _old_if_same(old.get(row, {}).get(c), text) for c, text in cells.items()} for row, cells in new.items()
    }


def moved(old: Held, new: Held) -> list[str]:
    """A sentence for each row that came or went, and for each figure that moved: its old and new value and ratio."""
    found = [f"{row}: no longer there" for row in old.keys() - new.keys()]
    found += [f"{row}: not held yet" for row in new.keys() - old.keys()]
    for row in (row for row in new if row in old):
        for column in dict.fromkeys([*old[row], *new[row]]):
            was, now = old[row].get(column, ""), new[row].get(column, "")
            if not _same(was, now):
                found.append(f"{row}: {column} {was or 'blank'} -> {now or 'blank'}{_ratio(was, now)}")
    return found


def _held(records: Iterable[dict[str, str]]) -> Held:
    """Rows by the words of their columns ``job``, ``plan``, ``row``, ``surrogate``; blank cells are left out."""
    keys = ("job", "row", "plan", "surrogate")
    held: Held = {}
    for record in records:
        held[" | ".join(record[key] for key in keys if key in record)] = {c: t for c, t in record.items() if t}
    return held


def _text(value: object) -> str:
    """A cell's text; 12 digits of a float hold all that matters and nothing that differs from machine to machine."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.12g}"
    return str(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _same(old: str, new: str) -> bool:
    was, now = _number(old), _number(new)
    if was is None or now is None:
        return old == new
    return math.isclose(was, now, rel_tol=RTOL)


def _old_if_same(old: str | None, new: str) -> str:
    return old if old is not None and _same(old, new) else new


def _ratio(old: str, new: str) -> str:
    was, now = _number(old), _number(new)
    return f" (x {now / was:.7g})" if was and now is not None else ""
