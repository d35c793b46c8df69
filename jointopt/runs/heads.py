"""Attention heads of rows that do not state them, from rows of the same source and width."""

from __future__ import annotations

import numpy as np
import pandas as pd

from jointopt.jobs.model import Model

HEADS_FROM_KIN = "heads_from_kin"  # 1.0 where the head count is another row's of the same width
_SHAPE = ["source", "hidden_size", "num_layers", "num_attention_heads"]


def lacks_heads(table: pd.DataFrame) -> bool:
    """Whether a row of the table does not state how many attention heads its model has."""
    return "num_attention_heads" not in table or bool(table["num_attention_heads"].isna().any())


def with_heads_of_kin(runs: pd.DataFrame, others: pd.DataFrame | None = None) -> pd.DataFrame:
    """Blank head counts filled from the row of the same source and width whose depth is nearest, where there is one.

    Rows of ``others`` count like those of ``runs``: measured runs and the table that they are for would else be priced
    as different models (three runs of bigscience: median error 28 % instead of 4 %).
    """
    if others is None and "num_attention_heads" not in runs:
        return runs
    shape = _shape(runs).assign(row=np.arange(len(runs)))
    known = pd.concat([_shape(table) for table in (runs, others) if table is not None]).dropna().drop_duplicates()
    pairs = shape[shape["num_attention_heads"].isna()].merge(known, on=["source", "hidden_size"], suffixes=("", "_kin"))
    pairs["far"] = (pairs["num_layers"] - pairs["num_layers_kin"]).abs()
    best = pairs.sort_values(["row", "far", "num_attention_heads_kin"]).drop_duplicates("row")
    heads, filled = shape["num_attention_heads"].to_numpy(float, copy=True), np.full(len(runs), np.nan)
    heads[best["row"]], filled[best["row"]] = best["num_attention_heads_kin"], 1.0
    return runs.assign(num_attention_heads=heads, **{HEADS_FROM_KIN: filled})


def model_as_kin(model: Model, runs: pd.DataFrame) -> pd.DataFrame:
    """A model's shape as a row of each source of ``runs``, for `with_heads_of_kin`."""
    sources = runs["source"].unique() if "source" in runs else [None]
    shape = {name: getattr(model, name) for name in _SHAPE if name != "source"}
    return pd.DataFrame([{"source": source, **shape} for source in sources])


def _shape(table: pd.DataFrame) -> pd.DataFrame:
    """Source, width, depth and heads of every row; a blank source is a source."""
    shape = table.reindex(columns=_SHAPE)
    return shape.assign(source=shape["source"].astype(object).fillna(""))
