"""Shapes of the models that rows of tables name: what the catalogue knows of them, and how many layers a block has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from jointopt.jobs.catalog.models import known_model
from jointopt.jobs.model import LATENT
from jointopt.jobs.windows import named_skip_freq
from jointopt.runs.cells import first_rows, row_codes

FROM_CATALOGUE = "shape_from_catalogue"  # 1.0 where the row's model is the catalogue's
SHAPE = [
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp",
    "vocab_size", "num_experts", "moe_router_topk",
]  # fmt: skip
_USUAL_LATENT = dict(zip(LATENT, (1536, 512, 128, 64, 128), strict=True))  # of DeepSeek-V2, V3 and Kimi K2
# shape columns that few tables have; a row that states one lets the catalogue speak for what no table states
_FINER_SHAPE = ["moe_ffn_hidden_size", "num_shared_experts", "num_dense_layers", *LATENT]
_OF_ALIBI = ("mpt", "bloom")  # how the names of models begin that have it, where no column states it


def with_catalogue_shapes(runs: pd.DataFrame) -> pd.DataFrame:
    """Blank shape cells of rows that name a catalogue model, filled where the row's other cells agree with it.

    A block has as many layers as its row states, whatever the model has, and one where that is blank, as in a job.
    """
    if "block" not in runs:
        return _filled(runs)
    block, stated = runs["block"].notna(), runs.reindex(columns=["num_layers"])["num_layers"].astype(float)
    found = _filled(runs.assign(num_layers=stated.mask(block)))
    return found.assign(num_layers=found["num_layers"].mask(block, stated.fillna(1.0)))


def whole_name(model: object, block: object) -> str:
    """The name of the model of which a row's block is: a job calls one layer of llama-3-8b ``llama-3-8b-layer``."""
    return str(model).removesuffix(f"-{block}")


def _filled(runs: pd.DataFrame) -> pd.DataFrame:
    """Blank shape cells of rows that name a catalogue model, filled where the row's other cells agree with it."""
    if "model" not in runs:
        return runs
    read = [name for name in ("model", "block", *SHAPE, "attention_kind", *_FINER_SHAPE) if name in runs]
    codes = row_codes(runs[name] for name in read)
    given = runs[read].iloc[first_rows(codes)].reset_index(drop=True)
    found = _filled_once(given)
    new = [str(name) for name in found if name not in given or not found[name].equals(given[name])]
    return runs.assign(**{name: found[name].to_numpy(float)[codes] for name in new})


def _filled_once(runs: pd.DataFrame) -> pd.DataFrame:
    """`_filled` of rows of which no two are alike."""
    named = [name for name in ("model", "block") if name in runs]
    codes = row_codes(runs[name] for name in named)
    for code, first in enumerate(pd.Series(codes).drop_duplicates().index):
        cells = runs[named].iloc[first]
        model = known_model(whole_name(cells["model"], cells.get("block"))) if pd.notna(cells["model"]) else None
        if model is None:
            continue
        shape = pd.Series({column: float(getattr(model, column)) for column in [*SHAPE, *_FINER_SHAPE]})
        rows = codes == code
        given = runs.reindex(columns=shape.index)[rows].astype(float)
        # the columns of a model with experts never state all of it: latent attention, groups of experts
        finer = runs.reindex(columns=["attention_kind", *_FINER_SHAPE])[rows].notna().any(axis=1)
        wanted = given[SHAPE].isna().any(axis=1) | finer | model.is_moe
        kind = runs.reindex(columns=["attention_kind"])["attention_kind"][rows]
        same_kind = kind.isna() | (kind.eq("mla") == (model.kv_lora_rank > 0))
        agree = given.index[(given.isna() | given.eq(shape)).all(axis=1) & wanted & same_kind]
        runs = runs.reindex(columns=list(dict.fromkeys([*runs, *SHAPE, FROM_CATALOGUE])))
        runs.loc[agree, [*SHAPE, FROM_CATALOGUE]] = [*shape[SHAPE], 1.0]
    return runs


def expert_shape(row: Mapping[str, Any], ffn: int) -> dict[str, Any]:
    """Widths and numbers of an MoE model's layers; experts are as wide as the MLP where a table has one width."""
    dense = min(int(row.get("num_dense_layers", 0)), int(row["num_layers"]) - 1)
    return {
        "moe_ffn_hidden_size": int(row.get("moe_ffn_hidden_size", ffn)),
        "num_shared_experts": int(row.get("num_shared_experts", 0)), "num_dense_layers": dense,
    }  # fmt: skip


def latent_shape(row: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Ranks of multi-head latent attention, the usual ones where a row names that kind alone."""
    if row.get("kv_lora_rank"):
        return {name: int(row.get(name, 0)) for name in LATENT}
    if row.get("attention_kind") != "mla":
        return {}
    assumed += LATENT
    return _USUAL_LATENT


def position_shape(row: Mapping[str, Any], table_rows: int = 0) -> dict[str, Any]:
    """How a model knows positions, where a row states it or its model's name does.

    ``table_rows``: of the catalogue's model, where it has a learned table; else a table has a row for each position.
    """
    named = "alibi" if str(row.get("model", "")).lower().startswith(_OF_ALIBI) else ""
    found = str(row.get("position_embedding", named))
    learned = {"max_position_embeddings": table_rows or int(row["seq_length"])} if found == "learned" else {}
    return {"position_embedding": found} | learned if found else {}


def window_shape(row: Mapping[str, Any]) -> dict[str, Any]:
    """Windows of attention that a row states; a catalogue's model has its own where the row is blank."""
    if "window_size" not in row:
        return {}
    freq = named_skip_freq(str(row.get("window_attn_skip_freq", 0))) or 0
    return {"window_size": int(row["window_size"]), "window_attn_skip_freq": freq}
