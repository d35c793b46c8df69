"""Names of precisions and of recipes of fp8, as tables, scripts and people spell them."""

from __future__ import annotations

import re

from jointopt.jobs.job import TF32

# In this order: what a table calls a precision, and what it means.
_DTYPE_FRAGMENTS = {
    "fp4": "fp4", "float4": "fp4", "fp8": "fp8", "float8": "fp8", "e4m3": "fp8", "bf16": "bf16", "bfloat16": "bf16",
    "tf32": "fp32", "fp16": "fp16", "float16": "fp16", "fp32": "fp32", "float32": "fp32",
}  # fmt: skip
_HALF = re.compile(r"(?<![a-z])half(?![a-z])")


def named_dtype(text: str) -> str | None:
    """The precision of `jointopt.core.schema.DTYPES` that a cell means, or None."""
    lower = text.lower()
    found = next((dtype for fragment, dtype in _DTYPE_FRAGMENTS.items() if fragment in lower), None)
    return found or ("fp16" if _HALF.search(lower) else None)


# In this order, letters and digits alone: what Megatron-Bridge's tables and recipes call a recipe, and what it means.
_RECIPE_FRAGMENTS = {
    "nvfp4": "nvfp4", "mxfp8": "mxfp8", "fp8mx": "mxfp8", "fp8cs": "tensorwise", "currentscaling": "tensorwise",
    "tensorwise": "tensorwise", "fp8ds": "delayed", "delayed": "delayed", "fp8sc": "blockwise",
    "subchannel": "blockwise", "blockwise": "blockwise",
}  # fmt: skip
_LIGHTNING = {"16": "fp16", "32": "fp32"}  # 16-mixed, 32-true


def named_recipe(text: str) -> str | None:
    """The recipe of `jointopt.core.schema.FP8_RECIPES` that a cell means (``fp8_cs``, ``MXFP8``), or None."""
    word = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((recipe for fragment, recipe in _RECIPE_FRAGMENTS.items() if fragment in word), None)


def named_precision(text: str) -> str | None:
    """The dtype that a cell of the column ``precision`` means, tf32 as such, or None."""
    if "tf32" in text.lower():
        return TF32
    return named_dtype(text) or _LIGHTNING.get(text.strip().partition("-")[0])
