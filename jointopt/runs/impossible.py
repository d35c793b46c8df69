"""Rows of tables that no physics can price, and why."""

from __future__ import annotations

import pandas as pd

from jointopt.core.errors import CatalogError, TableError
from jointopt.core.schema import POWER_PROFILE
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.models import known_model, near_models
from jointopt.runs.rule import Rule, above, broken_rules
from jointopt.runs.rules import GPU_RULES, KNOWN_POWER, RUN_RULES
from jointopt.runs.shapes import SHAPE, whole_name

_REQUIRED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "gpu", "num_gpus")
# nanotron has run such pipelines, with stages that hold an embedding or nothing; the physics has no such stage
_ENOUGH_LAYERS = Rule(("pp", "num_layers"), "pp to be at most num_layers", above("pp", "num_layers"))


def check_required(runs: pd.DataFrame) -> None:
    """Raises TableError for a table that lacks a column without which no run can be predicted."""
    missing = [name for name in _REQUIRED if name not in runs]
    if missing:
        hint = _shape_hint(runs) if missing[0] in SHAPE else ""
        raise TableError(f"The table lacks the column {missing[0]!r}{hint}, without which no run can be predicted.")


def _shape_hint(runs: pd.DataFrame) -> str:
    """A hint at the catalogue names that stand for a column of the model's shape."""
    names = [str(name) for name in runs["model"].dropna().unique()] if "model" in runs else []
    if not names:
        return " (a catalogue name in the column model stands for it)"
    return f" ({names[0]!r} in the column model is not listed by `jointopt catalog models`{near_models(names[0])})"


def impossible(runs: pd.DataFrame) -> dict[int, str]:
    """Rows by position that no physics can price, and the first reason of each."""
    checks = _unknown_models(runs)
    shape = "; a catalogue name in the column model stands for it"
    checks |= {f"{name} is blank{shape * (name in SHAPE)}.": runs[name].isna() for name in _REQUIRED}
    checks |= {message: runs["gpu"] == name for name, message in _unknown_gpus(runs["gpu"]).items()}
    if POWER_PROFILE in runs:
        checks["it ran under a power_profile, whose effect is measured and never predicted."] = runs[
            POWER_PROFILE
        ].notna()
    reasons: dict[int, str] = {}
    for reason, rows in checks.items():
        reasons = {int(row): reason for row in runs.index[rows]} | reasons
    for rule, broken in broken_rules(runs, (*RUN_RULES, _ENOUGH_LAYERS, KNOWN_POWER, *GPU_RULES)):
        reasons = {int(row): f"{rule.complaint(runs.loc[row])}." for row in runs.index[broken]} | reasons
    return reasons


def _unknown_models(runs: pd.DataFrame) -> dict[str, pd.Series]:
    """Rows that leave their shape to a model that the catalogue does not know, by a sentence on each model."""
    if "model" not in runs:
        return {}
    blank = runs[["num_layers", "hidden_size"]].isna()
    open_shape = blank.any(axis=1) & runs["model"].notna()
    cells = runs.reindex(columns=["model", "block"]).assign(**blank)[open_shape].drop_duplicates()
    found = {}
    for name, block, layers, hidden in cells.itertuples(index=False):
        if known_model(whole_name(name, block)) is None:
            rows = open_shape & (runs["model"] == name) & (blank["num_layers"] == layers)
            found[_unknown_model(str(name), layers, hidden)] = rows & (blank["hidden_size"] == hidden)
    return found


def _unknown_model(name: str, layers: bool, hidden: bool) -> str:
    blank = "num_layers and hidden_size are" if layers and hidden else f"{'num_layers' if layers else 'hidden_size'} is"
    return (
        f"{blank} blank, and the model {name[:80]!r} is not in the catalogue{near_models(name)}; "
        "`jointopt catalog models` lists the known ones."
    )


def _unknown_gpus(names: pd.Series) -> dict[object, str]:
    messages: dict[object, str] = {}
    for name in names.dropna().unique():
        try:
            load_gpu(str(name))
        except CatalogError as error:
            messages[name] = str(error)
    return messages
