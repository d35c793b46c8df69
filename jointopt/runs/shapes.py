"""Shapes of the models that rows of tables name: what the catalogue knows of them, and how many layers a block has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.schema import Floats
from jointopt.jobs.catalog.models import known_model
from jointopt.jobs.model import LATENT, Model
from jointopt.jobs.windows import named_skip_freq
from jointopt.runs.cells import Cells, first_rows, row_codes

FROM_CATALOGUE = "shape_from_catalogue"  # 1.0 where the row's model is the catalogue's
SHAPE = [
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp",
    "vocab_size", "num_experts", "moe_router_topk",
]  # fmt: skip
# shape columns that few tables have; a row that states one lets the catalogue speak for what no table states
_FINER_SHAPE = ["moe_ffn_hidden_size", "num_shared_experts", "num_dense_layers", *LATENT]
_OF_ALIBI = ("mpt", "bloom")  # how the names of models begin that have it, where no column states it


def with_catalogue_shapes(runs: pd.DataFrame) -> pd.DataFrame:
    """Blank shape cells of rows that name a catalogue model, filled where the row's other cells agree with it.

    A block has as many layers as its row states, whatever the model has, and one where that is blank, as in a job.
    """
    cells, columns = Cells(runs), dict[str, Floats]()
    read = ("model", "block", *SHAPE, "attention_kind", "layers", *_FINER_SHAPE)
    codes = row_codes(runs[name] for name in read if name in runs) if "model" in runs else np.zeros(0, np.int64)
    found = [_shape_of(cells, row) for row in first_rows(codes).tolist()]
    if any(shape is not None for shape in found):
        shapes = np.array([shape or [np.nan] * len(SHAPE) for shape in found])[codes]
        agreed = ~np.isnan(shapes[:, 0])
        columns = {name: np.where(agreed, shape, cells[name]) for name, shape in zip(SHAPE, shapes.T, strict=True)}
        columns[FROM_CATALOGUE] = np.where(agreed, 1.0, np.nan)
    if "block" in runs:
        stated, layers = cells["num_layers"], columns.get("num_layers", cells["num_layers"])
        of_block = np.where(np.isnan(stated), 1.0, stated)
        columns["num_layers"] = np.where(pd.notna(cells["block"]), of_block, layers)
    return runs.assign(**columns)


def _shape_of(runs: Cells, row: int) -> list[float] | None:
    """`SHAPE` of the catalogue's model that a row names; empty where its cells do not agree, None of no known model."""
    name, block, kind = (runs[column][row] for column in ("model", "block", "attention_kind"))
    model = None if pd.isna(name) else known_model(whole_name(name, block))
    if model is None:
        return None
    stated = {column: runs[column][row] for column in (*SHAPE, *_FINER_SHAPE)}
    if pd.notna(block):
        stated["num_layers"] = np.nan
    known = {column: value for column, value in stated.items() if not np.isnan(value)}
    # the columns of a model with experts never state all of it: latent attention, groups of experts
    wanted = model.is_moe or pd.notna(kind) or not {*SHAPE} <= {*known} or bool({*_FINER_SHAPE} & {*known})
    same_kind = pd.isna(kind) or ("mla" in str(kind).split("+")) == (model.kv_lora_rank > 0)
    if pd.notna(layers := runs["layers"][row]):
        same_kind &= model.window_cells == {"layers": str(layers)}
    agrees = all(value == float(getattr(model, column)) for column, value in known.items())
    return [float(getattr(model, column)) for column in SHAPE] if wanted and same_kind and agrees else []


def whole_name(model: object, block: object) -> str:
    """The name of the model of which a row's block is: a job calls one layer of llama-3-8b ``llama-3-8b-layer``."""
    return str(model).removesuffix(f"-{block}")


def stated_details(row: Mapping[str, Any], known: Model | None = None) -> dict[str, Any]:
    """Fields of a model that a catalogue's may be changed in: layers that predict more, windows, positions.

    Positions are as a row states them or its model's name does. ``known``: the catalogue's model, whose windows are in
    the same layers where a row states their size alone, and which may have a learned table; else a table has a row for
    each position.
    """
    found: dict[str, Any] = {"mtp_num_layers": int(row.get("mtp_num_layers", 0))}
    if "window_size" in row and not (known and known.layers):
        freq = named_skip_freq(str(row.get("window_attn_skip_freq", known.window_attn_skip_freq if known else 0))) or 0
        found |= {"window_size": int(row["window_size"]), "window_attn_skip_freq": freq}
    named = "alibi" if str(row.get("model", "")).lower().startswith(_OF_ALIBI) else ""
    if positions := str(row.get("position_embedding", named)):
        found["position_embedding"] = positions
    if positions == "learned":
        table_rows = known.max_position_embeddings if known else 0
        found["max_position_embeddings"] = table_rows or int(row["seq_length"])
    return found
