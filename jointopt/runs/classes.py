"""Recipe classes of rows that state none, from rows of the same source and framework."""

from __future__ import annotations

import numpy as np
import pandas as pd

from jointopt.core.schema import RECIPE_CLASSES
from jointopt.jobs.catalog.frameworks import conflict, named_class, recognise_framework, same_efficiency

_SOURCE = ["source", "framework"]


def states_class(table: pd.DataFrame) -> bool:
    """Whether a row of the table states a recipe class, or names one in the framework's text."""
    texts = table["framework"].dropna().unique() if "framework" in table else ()
    stated = "recipe_class" in table and bool(table["recipe_class"].notna().any())
    return stated or any(named_class(str(text)) for text in texts)


def with_classes_of_kin(runs: pd.DataFrame, others: pd.DataFrame | None = None) -> pd.DataFrame:
    """Blank recipe classes filled with that of the same source and framework, where its rows state one efficiency.

    Rows of ``others`` count like those of ``runs``: measured runs and the table that they are for would else be priced
    by different classes, and what the runs show of theirs counted a second time.
    """
    if not (states_class(runs) or (others is not None and states_class(others))):
        return runs
    one = {key: names[0] for key, names in _stated(runs, others).items() if same_efficiency(names)}
    ours = _classes(runs)
    keys = zip(*(ours[name] for name in (*_SOURCE, "recipe_class")), strict=True)
    found = np.array([name or one.get((source, framework), "") for source, framework, name in keys], dtype=object)
    return runs.assign(recipe_class=pd.Series(found, runs.index).where(found != ""))


def taken_lines(runs: pd.DataFrame, others: pd.DataFrame | None = None) -> list[str]:
    """A sentence on each recipe class that `with_classes_of_kin` gives rows which state none."""
    if not (states_class(runs) or (others is not None and states_class(others))):
        return []
    stated, taken = (_classes(table)["recipe_class"] for table in (runs, with_classes_of_kin(runs, others)))
    counts = taken[(stated == "") & (taken != "")].value_counts()
    return [
        f"{count:,} row{'s' * (count > 1)} without a recipe class predicted as a {name} recipe, as other rows of the "
        "same source and framework state (column recipe_class)."
        for name, count in counts.items()
    ]


def class_conflicts(measured: pd.DataFrame, queried: pd.DataFrame) -> list[str]:
    """A sentence on each source of both tables whose rows state classes of different efficiency."""
    if not (states_class(measured) or states_class(queried)):
        return []
    both = [set(zip(*(_classes(table)[name] for name in _SOURCE), strict=True)) for table in (measured, queried)]
    stated = {key: names for key, names in _stated(measured, queried).items() if key in both[0] & both[1]}
    return [
        conflict(", ".join(filter(None, key)), names) for key, names in stated.items() if not same_efficiency(names)
    ]


def _stated(*tables: pd.DataFrame | None) -> dict[tuple[str, str], list[str]]:
    """The classes that rows of each source and framework state."""
    rows = pd.concat([_classes(table) for table in tables if table is not None]).drop_duplicates()
    found: dict[tuple[str, str], list[str]] = {}
    for source, framework, name in rows[rows["recipe_class"] != ""].sort_values("recipe_class").itertuples(index=False):
        found.setdefault((source, framework), []).append(name)
    return found


def _classes(table: pd.DataFrame) -> pd.DataFrame:
    """Source, framework profile (or text) and class of every row; a blank source is a source, a blank class none."""
    cells = table.reindex(columns=[*_SOURCE, "recipe_class"]).astype(object).fillna("").astype(str)
    texts = {text: _framework(text) for text in cells["framework"].unique()}
    words = {word: word.strip().lower() for word in cells["recipe_class"].unique()}
    classes = cells["recipe_class"].map(words)
    named = cells["framework"].map({text: named_class(text) for text in texts})
    return pd.DataFrame({
        "source": cells["source"], "framework": cells["framework"].map(texts),
        "recipe_class": classes.where(classes.isin(RECIPE_CLASSES), named),
    })  # fmt: skip


def _framework(text: str) -> str:
    profile, known = recognise_framework(text)
    return profile.name if known else text.strip().lower()
