"""The precision of products in the words of tables: its format, and the recipe that scales fp8 and fp4."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from jointopt.core.schema import FP8_RECIPES
from jointopt.jobs.catalog.kernels import only_recipe, recipes_of, scaled_dtype, scaling_recipe
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.defaults import default_dtype
from jointopt.jobs.job import TF32
from jointopt.jobs.scaling_recipe import ScalingRecipe
from jointopt.runs.cells import named_dtype

# In this order, letters and digits alone: what Megatron-Bridge's tables and recipes call a recipe, and what it means.
_RECIPE_FRAGMENTS = {
    "nvfp4": "nvfp4", "mxfp8": "mxfp8", "fp8mx": "mxfp8", "fp8cs": "tensorwise", "currentscaling": "tensorwise",
    "tensorwise": "tensorwise", "fp8ds": "delayed", "delayed": "delayed", "fp8sc": "blockwise",
    "subchannel": "blockwise", "blockwise": "blockwise",
}  # fmt: skip
_LIGHTNING = {"16": "fp16", "32": "fp32"}  # 16-mixed, 32-true
_NEXT_WIDER = {"fp4": "fp8", "fp8": "bf16", "bf16": "fp16", "fp16": "bf16"}


def named_recipe(text: str) -> str | None:
    """The recipe of `jointopt.core.schema.FP8_RECIPES` that a cell means (``fp8_cs``, ``MXFP8``), or None."""
    word = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((recipe for fragment, recipe in _RECIPE_FRAGMENTS.items() if fragment in word), None)


def named_precision(text: str) -> str | None:
    """The dtype that a cell of the column ``precision`` means, tf32 as such, or None."""
    if "tf32" in text.lower():
        return TF32
    return named_dtype(text) or _LIGHTNING.get(text.strip().partition("-")[0])


def with_precision(runs: pd.DataFrame) -> pd.DataFrame:
    """The table with blank cells of ``dtype`` and ``fp8_recipe`` from what its other columns state of the precision.

    A precision names both (``fp8_mx``), and a recipe has a dtype of its own.
    Without any of that the table itself.
    """
    columns = {name: runs[name] for name in ("dtype", "fp8_recipe", "precision") if name in runs}
    meant = [
        ("dtype", "precision", named_precision), ("fp8_recipe", "precision", named_recipe),
        ("fp8_recipe", "dtype", named_recipe),
        ("dtype", "fp8_recipe", lambda name: scaled_dtype(name) if name in FP8_RECIPES else None),
    ]  # fmt: skip
    for name, source, of in meant:
        if source in columns and (found := _meanings(columns[source], of)).notna().any():
            columns[name] = columns[name].astype(object).fillna(found) if name in columns else found
    return runs.assign(**columns)


def _meanings(cells: pd.Series, of: Callable[[str], str | None]) -> pd.Series:
    """The meaning of each cell, blank where it is blank or means nothing; each distinct cell is read once."""
    words = {cell: of(str(cell)) for cell in cells.dropna().unique()}
    return cells.map(words).astype(object).where(cells.notna())


def contradicts(first: str, second: str) -> Callable[[pd.DataFrame], pd.Series]:
    """Whether two columns name different precisions, or different recipes where both name one."""

    def broken(runs: pd.DataFrame) -> pd.Series:
        wrong = pd.Series(False, index=runs.index)
        if not (runs[first].notna() & runs[second].notna()).any():
            return wrong
        for of in (_dtype_of, named_recipe):
            one, other = (_meanings(runs[name], of) for name in (first, second))
            wrong |= one.notna() & other.notna() & (one != other)
        return wrong

    return broken


def _dtype_of(text: str) -> str | None:
    """The dtype that a cell of any of the three columns means."""
    recipe = named_recipe(text)
    found = scaled_dtype(recipe) if recipe else named_precision(text)
    return "fp32" if found == TF32 else found


def runnable_dtype(text: str, gpu: Gpu, assumed: list[str]) -> str:
    """The precision that a cell means, or the next wider one that the GPU has a rate for, which is then ``assumed``."""
    named = named_dtype(text)
    dtype = named or default_dtype(gpu)
    while dtype not in gpu.peak_tflops and dtype in _NEXT_WIDER:
        dtype = _NEXT_WIDER[dtype]
    if dtype != named or (named_precision(text) == TF32 and not gpu.has_tf32):
        assumed.append("dtype")
    return dtype


def runnable_recipe(row: Mapping[str, Any], dtype: str, gpu: Gpu, assumed: list[str]) -> ScalingRecipe | None:
    """The recipe that a row states, else its precision's only one; one that the GPU does not run is left out.

    What is not as stated is then ``assumed``.
    """
    if "fp8_recipe" not in row:
        if only := only_recipe(dtype, gpu):
            assumed.append("fp8_recipe")
        return only
    if (name := str(row["fp8_recipe"])) in recipes_of(dtype, gpu):
        return scaling_recipe(name, gpu)
    assumed.append("fp8_recipe")
    return None
