"""The cells of a measurement table: what each may hold, what its words mean, and its value as JSON."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from jointopt.core.errors import TableError
from jointopt.core.schema import (
    ATTENTIONS,
    COLUMNS,
    CUDA_GRAPHS,
    DTYPES,
    FP8_RECIPES,
    LAYOUT_COLUMNS,
    LORA_TARGETS,
    MODEL_BLOCKS,
    ONE_CLOCK,
    OTHER_RECIPES,
    RECIPE_CLASSES,
    STATUSES,
    TOKEN_DISPATCHERS,
    Column,
    Columns,
    Floats,
    Ints,
    column_of,
)
from jointopt.jobs import defaults
from jointopt.jobs.catalog.kernels import only_recipe, recipes_of, scaled_dtype, scaling_recipe
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.defaults import DefaultPlan, default_dtype
from jointopt.jobs.job import STATE_FIELDS, TF32, Job, ScalingRecipe
from jointopt.jobs.model import skip_freq_text
from jointopt.jobs.shape import POSITION_EMBEDDINGS
from jointopt.jobs.windows import named_skip_freq
from jointopt.runs.dtype_names import named_dtype, named_precision, named_recipe

_DENSE = 2**20  # whole numbers that differ by less are their own codes
Reading = tuple[pd.Series, pd.Series, str]  # values, which cells make no sense, what was expected of them
Reader = Callable[[pd.Series, str], Reading]


def read_columns(
    table: pd.DataFrame, names: Iterable[str], readers: Mapping[str, Reader], categories: bool = False
) -> tuple[pd.DataFrame, list[tuple[str, pd.Series, str]]]:
    """A copy with the cells of ``names`` read, senseless ones blank, and (column, which rows, expected) of those.

    With ``categories`` words may come as pandas' categories, which are quick to compare but take no other words.
    """
    given = table.reset_index(drop=True)
    clean, faults = {}, []
    for name in given.columns.intersection(pd.Index(list(names))):
        reader = readers.get(name, readers.get(column_of(name).dtype, _text))
        values, wrong, expected = _read_once(given[name], reader, name)
        if not categories and isinstance(values.dtype, pd.CategoricalDtype):
            values = values.astype(object).where(values.notna(), None)
        clean[name] = values
        if wrong.any():
            clean[name] = values.mask(wrong)
            faults.append((name, wrong, expected))
    return given.assign(**clean), faults


def _read_once(cells: pd.Series, reader: Reader, name: str) -> Reading:
    """The reading of each cell; where cells are of one kind, each distinct value is read once."""
    numbers = pd.api.types.is_numeric_dtype(cells) and reader in (_numbers, _text)
    if numbers or not (pd.api.types.is_numeric_dtype(cells) or pd.api.types.infer_dtype(cells) == "string"):
        return reader(_stripped(cells), name)
    codes, distinct = pd.factorize(cells)  # text that pandas keeps by Arrow, nine times as fast as of Python's strings
    values, wrong, expected = reader(_stripped(pd.Series(distinct)), name)
    bad = np.append(wrong.to_numpy(bool), [False])[codes] if wrong.any() else False
    return _spread(values, codes, cells.index), pd.Series(bad, cells.index), expected


def _spread(values: pd.Series, codes: Ints, index: pd.Index) -> pd.Series:
    """The one of ``values`` that each row has by its code, blank for -1; words as categories, which are as they are."""
    if values.dtype == float or any(isinstance(value, tuple) for value in values):
        blank = np.nan if values.dtype == float else None
        return pd.Series(np.append(values.to_numpy(), [blank])[codes], index, dtype=values.dtype)
    number, words = pd.factorize(values)
    return pd.Series(pd.Categorical.from_codes(np.append(number, -1)[codes], words), index)


def row_codes(columns: Iterable[npt.ArrayLike | pd.Series]) -> Ints:
    """One number per row, (n,), equal for rows whose cells are equal in all ``columns``; 0, 1, ... as they appear."""
    codes, span = np.zeros(1, np.int64), 1
    for column in columns:
        found, count = _cell_codes(column)
        if span * count >= 2**62:
            codes = _numbered(codes)
            span = int(codes.max()) + 1
        codes, span = codes * count + found, span * count
    return _numbered(codes)


def first_rows(codes: Ints) -> Ints:
    """The row in which each of the numbers from `row_codes` appears first."""
    first = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # of several rows the last one written stays
    return first


def _numbered(values: npt.NDArray[Any] | pd.Series) -> Ints:
    """Each value's number, (n,), as they appear; blanks are -1."""
    return pd.factorize(values)[0].astype(np.int64, copy=False)


def _cell_codes(column: npt.ArrayLike | pd.Series) -> tuple[Ints, int]:
    """Equal numbers for equal cells, (n,), from 0 on and below the second; those of whole numbers without a search."""
    if isinstance(column, pd.Series) and isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy().astype(np.int64) + 1, len(column.cat.categories) + 1
    if isinstance(column, pd.Series) and isinstance(column.dtype, pd.StringDtype):
        return (found := _numbered(column) + 1), int(found.max(initial=0)) + 1
    cells = np.asarray(column)
    low, high = 0, math.inf
    if len(cells) and cells.dtype.kind in "if":
        low, high = np.fmin.reduce(cells), np.fmax.reduce(cells)
    if float(high) - float(low) < _DENSE:
        place = cells - low
        codes = np.where(np.isnan(place), -1, place).astype(np.int64)
        if (codes == place)[codes >= 0].all():
            return codes + 1, int(codes.max()) + 2
    found = _numbered(cells) + 1
    return found, int(found.max(initial=0)) + 1


def _stripped(cells: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(cells):
        return cells
    return cells.map(lambda v: (v.strip() or None) if isinstance(v, str) else v).astype(object)


def _text(cells: pd.Series, _: str) -> Reading:
    return cells, pd.Series(False, index=cells.index), "text"


def _numbers(cells: pd.Series, name: str) -> Reading:
    column, values = column_of(name), floats(cells)
    low, high, whole = column.low, column.high, column.dtype == "int"
    numbers = values.to_numpy()  # comparisons of arrays are much faster than those of series
    right = (numbers > low if low == 0 and not whole else numbers >= low) & (numbers <= high)
    if whole:
        right &= np.floor(numbers) == numbers
    kind = "a whole number" if whole else "a number"
    start = "above 0 and at most" if low == 0 and not whole else f"from {low:,} to"
    wrong = pd.Series(~right & cells.notna().to_numpy(), index=cells.index)
    question = f" ({column.beyond})" * bool(column.beyond)
    return values, wrong, f"{kind} {start} {high:,}, or blank{question}"


def floats(cells: pd.Series) -> pd.Series:
    """Numbers; text that is none, and true and false, become NaN."""
    if pd.api.types.is_bool_dtype(cells):
        return pd.Series(np.nan, index=cells.index)
    if not pd.api.types.is_numeric_dtype(cells):
        cells = cells.map(lambda v: None if isinstance(v, bool) else v)
    return pd.to_numeric(cells, errors="coerce").astype(float)


def _flags(cells: pd.Series, _: str) -> Reading:
    values = cells.map(lambda v: _FLAGS.get(str(v).lower()), na_action="ignore").astype(float)
    return values, values.isna() & cells.notna(), "true, false or blank"


def _one_of(names: Sequence[str], spellings: Mapping[str, str] | None = None) -> Reader:
    """Reads one of a few words in any letter case."""

    def read(cells: pd.Series, _: str) -> Reading:
        words = cells.map(lambda v: str(v).lower(), na_action="ignore").replace(dict(spellings or {}))
        return words, ~words.isin(names) & words.notna(), f"one of {', '.join(names)}, or blank"

    return read


def _coded(cells: pd.Series, name: str) -> Reading:
    """The cells of a plan's column of text as that column writes them."""
    column = column_of(name)
    words = cells.map(lambda cell: _rewritten(column, cell), na_action="ignore")
    expected = column.codes.expected if column.codes else "text"
    return words, words.isna() & cells.notna(), f"{expected}, or blank"


def _rewritten(column: Column, cell: object) -> str | None:
    try:
        return str(column.outside(column.inside(cell)))
    except (ValueError, TypeError):
        return None


def _frequencies(cells: pd.Series, _: str) -> Reading:
    """Which layers have a window, as `Model.window_cells` writes it."""
    found = cells.map(lambda cell: named_skip_freq(str(cell)), na_action="ignore")
    words = found.map(skip_freq_text, na_action="ignore")
    return words, words.isna() & cells.notna(), "a whole number N, or a 0 or 1 per layer with ; between, or blank"


def _meaning_one_of(names: Sequence[str], meaning: Callable[[str], str | None]) -> Reader:
    """Leaves free text as it is, and refuses what means none of ``names``."""

    def read(cells: pd.Series, _: str) -> Reading:
        named = cells.map(lambda v: meaning(str(v)), na_action="ignore")
        return cells, named.isna() & cells.notna(), f"one of {', '.join(names)}, or blank"

    return read


def _clocks(cells: pd.Series, _: str) -> Reading:
    """Tuples of clocks; ``1410;1395`` or one number for all stages."""
    clocks = cells.map(_clock_tuple, na_action="ignore").astype(object)
    expected = "clocks in MHz above 0, separated by semicolons, or blank"
    return clocks, clocks.isna() & cells.notna(), expected


def _clock_tuple(cell: object) -> tuple[float, ...] | None:
    words = cell if isinstance(cell, tuple | list | np.ndarray) else re.split(r"[;,\s]+", str(cell).strip("[]; "))
    try:
        clocks = tuple(float(word) for word in words)
    except (TypeError, ValueError):
        return None
    return clocks if clocks and all(0 < clock < 1e5 for clock in clocks) else None


def shown(table: pd.DataFrame, row: int, name: str) -> str:
    """One cell as a message quotes it, at most 60 characters."""
    cell = table[name].iloc[row]
    return f"{cell.item() if isinstance(cell, np.generic) else cell!r:.60}"


_FLASH = re.compile(r"(?<![a-z])(?:flash(?:[\W_]*att(?:entio)?n)?|fa|sdpa)(?![a-z])")


def named_attention(text: str) -> tuple[str | None, bool]:
    """(the kernel of `schema.ATTENTIONS` that a cell means, or None; whether the cell states it in full)."""
    lower = text.lower()
    if lower in ATTENTIONS:
        return lower, True
    if (flash := _FLASH.search(lower)) is None:
        return None, False
    version = re.match(r"\D*([123])", lower[flash.end() :])
    return (f"flash{version[1]}", True) if version and flash[0] != "sdpa" else ("flash2", False)


def named_dispatcher(text: str) -> str | None:
    """The token dispatcher of `schema.TOKEN_DISPATCHERS` that a cell means (``flex/deepep``), or None.

    Megatron Core's flex alone is deepep, its only backend before there was a choice and the default since.
    """
    words = re.split(r"[^a-z]+", text.lower().strip())
    named = next((name for name in TOKEN_DISPATCHERS if name in words), None)
    return "deepep" if words == ["flex"] else named


def named_targets(text: str) -> str:
    """The linear layers of `schema.LORA_TARGETS` that a cell names, ; between; blank where it names another one."""
    words = [word for word in re.split(r"[;,\s\[\]'\"]+", text) if word]
    return ";".join(words) if all(word in LORA_TARGETS for word in words) else ""


def named_cuda_graph(text: str) -> str | None:
    """The kind of `schema.CUDA_GRAPHS` that a cell means (``transformer_engine:attn``), blank for none of them.

    None where it means nothing, as true does, which leaves open what is captured.
    """
    words = re.split(r"[:+;,\s]+", text.lower())
    if "full_iteration" in words:
        return "full_iteration"
    if words[0] == "none" or _FLAGS.get(words[0]) == 0:
        return ""
    return "transformer_engine" if words[0] in ("transformer_engine", "local") else None


_FLAGS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "yes": 1.0, "no": 0.0}
READERS: dict[str, Reader] = {
    "int": _numbers, "float": _numbers, "bool": _flags, "clocks": _clocks,
    **{c.name: _coded for c in COLUMNS.values() if c.codes is not None},
    **{name: _meaning_one_of(DTYPES, named_dtype) for name in STATE_FIELDS if name.endswith("_dtype")},
    "fp8_recipe": _one_of(FP8_RECIPES, OTHER_RECIPES),
    "lora_target_modules": _meaning_one_of(LORA_TARGETS, lambda text: named_targets(text) or None),
    "window_attn_skip_freq": _frequencies,
    "attention_kind": _one_of(("mha", "gqa", "mqa", "mla")), "block": _one_of(MODEL_BLOCKS),
    "position_embedding": _one_of(POSITION_EMBEDDINGS),
    "recipe_class": _one_of(RECIPE_CLASSES),
    "token_dispatcher": _meaning_one_of(TOKEN_DISPATCHERS, named_dispatcher),
    "cuda_graph": _meaning_one_of(CUDA_GRAPHS, named_cuda_graph),
}  # fmt: skip
STRICT_READERS = {
    **READERS, "status": _one_of(STATUSES), "dtype": _meaning_one_of((*DTYPES, TF32), named_dtype),
    "attention": _meaning_one_of(ATTENTIONS, lambda text: named_attention(text)[0]),
}  # fmt: skip
MEASURED = [c.name for c in COLUMNS.values() if c.role == "result" and c.dtype == "float"]


def json_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Every row as a mapping of its cells that are not blank to JSON values, equal for equal measurements.

    A whole number is an int in every column, clocks are ``1410;1395``, numbers and flags in columns that the schema
    does not know count as such however they are written. Raises TableError for a cell that its column cannot hold.
    """
    cells = {str(name): _json_column(table[name], str(name)) for name in table.columns}
    rows = zip(*cells.values(), strict=True)
    return [{name: v for name, v in zip(cells, row, strict=True) if v is not None} for row in rows]


def _json_column(cells: pd.Series, name: str) -> list[Any]:
    convert = _JSON[column_of(name).dtype] if name in (*COLUMNS, ONE_CLOCK.name) else _json_unknown
    seen: dict[tuple[type, object], Any] = {}  # most columns repeat a few values
    values = []
    for row, (cell, known) in enumerate(zip(cells.tolist(), cells.notna().tolist(), strict=True)):
        key = (type(cell), repr(cell) if isinstance(cell, list | np.ndarray) else cell)
        try:
            if known and key not in seen:
                seen[key] = convert(cell)
        except (ValueError, TypeError, OverflowError) as error:
            got = f"{cell!r:.60}"
            message = f"Row {row + 1} of the table: {name} must be {column_of(name).dtype}; got {got}."
            raise TableError(message) from error
        values.append(seen[key] if known else None)
    return values


def is_known(cell: object) -> bool:
    """Whether a cell is not blank."""
    return isinstance(cell, tuple | list | np.ndarray) or not pd.isna(cell)  # type: ignore[call-overload]


def _json_number(cell: Any) -> int | float:
    number = float(cell)
    if not math.isfinite(number):
        raise ValueError(cell)
    return int(number) if number.is_integer() else number


def _json_flag(cell: Any) -> bool:
    flag = _FLAGS.get(str(cell).strip().lower())
    if flag is None:
        raise ValueError(cell)
    return flag > 0


def _json_clocks(cell: Any) -> str:
    clocks = _clock_tuple(cell)
    if clocks is None:
        raise ValueError(cell)
    return ";".join(str(_json_number(clock)) for clock in clocks)


def _json_unknown(cell: Any) -> Any:
    """pandas reads 8 as int, float or text by what else its column holds; the value must not depend on that."""
    text = str(cell).strip()
    if re.fullmatch(r"(?i)true|false", text):
        return text.lower() == "true"
    number = re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", text)
    return _json_number(text) if number and math.isfinite(float(text)) else text or None


_JSON: dict[str, Callable[[Any], Any]] = {
    "int": _json_number, "float": _json_number, "bool": _json_flag, "clocks": _json_clocks,
    "str": lambda cell: str(cell).strip() or None,
}  # fmt: skip


def spelled(cell: object) -> object:
    """A cleaned cell as a table spells it."""
    return _json_clocks(cell) if isinstance(cell, tuple) else _json_unknown(cell)


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The table of rows from `json_rows`: ``columns`` in their order, blanks NaN, measured numbers always floats."""
    table = pd.DataFrame(list(rows), columns=pd.Index(columns))
    floats = [name for name in columns if column_of(name).dtype == "float" and name in (*COLUMNS, ONE_CLOCK.name)]
    return table.astype(dict.fromkeys(floats, float))


# Columns by the names that other programs and people give them, and the units that such names state.


TIME = "iteration_time_s"
# Names in configs of Megatron-LM, Hugging Face, DeepSpeed and torchtitan, and what tables often call these.
_ELSEWHERE = {
    name: column for column, names in {
        "dp": "data_parallel data_parallel_size dp_size", "cp": "context_parallel context_parallel_size cp_size",
        "tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size tp_size",
        "pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size pp_size",
        "ep": "expert_parallel expert_parallel_size expert_model_parallel_size ep_size",
        "etp": "expert_tensor_parallel_size",
        "vpp": "virtual_pipeline virtual_pipeline_model_parallel_size virtual_pipeline_parallel_size vp_size",
        "micro_batch_size": "mbs micro_batch microbatch_size per_device_train_batch_size",
        "global_batch_size": "gbs global_batch batch_size train_batch_size",
        "zero_stage": "zero zero_level", "recompute": "recompute_granularity activation_checkpointing rc",
        "sequence_parallel": "sp", "num_gpus": "gpus n_gpus world_size", "gpus_per_node": "ngpus_per_node",
        "num_layers": "layers n_layers n_layer num_hidden_layers", "hidden_size": "hidden d_model n_embd",
        "num_attention_heads": "heads n_heads n_head num_heads",
        "num_query_groups": "kv_heads num_kv_heads num_key_value_heads n_kv_heads",
        "ffn_hidden_size": "ffn intermediate_size ffn_size", "vocab_size": "vocab vocabulary",
        "seq_length": "seq_len sequence_length max_seq_length max_position_embeddings",
        "moe_router_topk": "experts_per_token num_experts_per_tok top_k topk",
        "num_experts": "experts n_experts num_local_experts n_routed_experts",
        "moe_ffn_hidden_size": "moe_intermediate_size",
        "iteration_time_s": "step_time step_time_s iteration_time iter_time time_s elapsed_time_per_iteration "
        "time_per_iteration time_per_step time_per_iter seconds_per_iteration seconds_per_step sec_per_iter "
        "sec_per_step s_per_it s_per_step s_per_iter iteration_latency step_latency",
        "avg_power_w": "power power_w average_power_w", "peak_memory_gib": "memory_gib max_memory_gib",
        "energy_j": "energy",
        "lora_dim": "lora_rank lora_r peft_dim",
        "lora_target_modules": "lora_targets lora_target target_modules lora_modules",
        "attention": "attn attention_kernel attention_backend attn_implementation attention_impl",
        "dtype": "mixed_precision compute_dtype data_type", "framework": "software library",
        "token_dispatcher": "moe_token_dispatcher_type moe_token_dispatcher",
        "cuda_graph": "cuda_graph_impl cuda_graphs", "gpu": "gpu_type gpu_name gpu_model accelerator",
    }.items() for name in names.split()
}  # fmt: skip
ALIKE = 0.8  # of two names of a column: step_time_s is no iteration_time_s, iteration_time_ms is
# What to do to a column in the unit that ends its name, by that of the column meant.
_UNITS = {
    "s": {"ms": "divide it by 1,000", "us": "divide it by 1,000,000", "min": "multiply it by 60",
          "h": "multiply it by 3,600"},
    "j": {"kj": "multiply it by 1,000", "mj": "multiply it by 1,000,000", "wh": "multiply it by 3,600",
          "kwh": "multiply it by 3,600,000"},
    "w": {"kw": "multiply it by 1,000", "mw": "divide it by 1,000"},
    "gib": {"gb": "multiply it by 0.9313", "mib": "divide it by 1,024", "mb": "divide it by 1,074",
            "bytes": "divide it by 1,073,741,824"},
    "mhz": {"ghz": "multiply it by 1,000"},
}  # fmt: skip
_SPELLED = {"msec": "ms", "millis": "ms", "milliseconds": "ms", "usec": "us", "microseconds": "us", "minutes": "min",
            "hours": "h", "sec": "s", "secs": "s", "seconds": "s"}  # fmt: skip


def meant(name: str, lacking: Iterable[str]) -> str:
    """The column of those ``lacking`` that a name nearly is, or that other programs call so; empty for none."""
    words, lacking = _words(name), set(lacking)
    bare = "_".join(words[:-1]) if _unit(words) else ""
    for spelled in ("_".join(words), bare):
        if spelled in _ELSEWHERE:
            return _ELSEWHERE[spelled] if _ELSEWHERE[spelled] in lacking else ""
    if within_node(name):
        return ""
    close = difflib.get_close_matches("_".join(words), sorted(lacking), n=1, cutoff=ALIKE)
    return close[0] if close else ""


def within_node(name: str) -> bool:
    """Whether a name is one of the links within a node, of which tables have no column."""
    words = _words(name)
    return bool({"intra", "intranode", "nvlink", "nvswitch"} & {*words})


def converted(name: str, column: str) -> str:
    """The change that makes cells of a column called ``name`` those of ``column``; blank where no other unit shows."""
    unit, wanted = _unit(_words(name)), column.rsplit("_", 1)[-1]
    return _UNITS.get(wanted, {}).get(unit, "")


def _words(name: str) -> list[str]:
    """The words of a name in lower case, its unit spelled shortly: ``Step Time (msec)`` is step, time, ms."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    return [*words[:-1], _SPELLED.get(words[-1], words[-1])] if words else []


def _unit(words: list[str]) -> str:
    """The unit that ends a name, empty for none."""
    known = {*_UNITS, *(unit for units in _UNITS.values() for unit in units)}
    return words[-1] if len(words) > 1 and words[-1] in known else ""


# The precision of products in the words of tables: its format, and the recipe that scales fp8 and fp4.


_NEXT_WIDER = {"fp4": "fp8", "fp8": "bf16", "bf16": "fp16", "fp16": "bf16"}


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


# Layouts that rows of one job state, each once with its blanks filled, and their clocks.


def number_cells(rows: pd.DataFrame, name: str) -> Floats:
    """A column of numbers, (n,), NaN where blank; all of it where the table has no such column."""
    return rows[name].to_numpy(float) if name in rows else np.full(len(rows), np.nan)


def plan_cells(runs: pd.DataFrame) -> Columns:
    """The cells of plans of all jobs, (n,): layouts as numbers, NaN where blank, and clocks and what was assumed.

    ``layout``: the number of each layout.
    """
    cells: Columns = {
        name: _codes(runs[name], name) if COLUMNS[name].codes else number_cells(runs, name)
        for name in LAYOUT_COLUMNS
        if name in runs
    }
    cells |= {"layout": row_codes(cells.values()), "assumed_plan": runs["assumed_plan"].to_numpy(np.int64)}
    return cells | {name: runs[name].to_numpy() for name in ("clock_mhz", "stage_clock_mhz") if name in runs}


def stated_layouts(plans: Columns, rows: Ints, job: Job) -> tuple[DefaultPlan, Ints]:
    """The layouts that ``rows`` of `plan_cells` of a job state, each once, blanks filled; and which each has, (n,)."""
    of_row = row_codes([plans["layout"][rows]])
    first = rows[first_rows(of_row)]
    default = defaults.default_plan(job, {name: plans[name][first] for name in LAYOUT_COLUMNS if name in plans})
    # a ZeRO stage without effect stays as the row has it: the shipped surrogate was trained on those
    kept = {"zero_stage": default.layouts["zero_stage"]}
    return replace(default, layouts=defaults.canonical(job, default.layouts) | kept), of_row


def _codes(cells: pd.Series, name: str) -> Floats:
    """A plan's column of text as numbers, (n,), NaN where blank."""
    codes, distinct = pd.factorize(cells)
    return np.append([float(COLUMNS[name].inside(text)) for text in distinct], np.nan)[codes]


def stated_clocks(plans: Columns, rows: Ints, pp: Ints, gpu: Gpu) -> Floats:
    """Clocks as `Workload`'s, from ``stage_clock_mhz``, else ``clock_mhz``, else the GPU's maximum (1.0 if unknown)."""
    one = np.full(len(rows), gpu.clock_max_mhz or 1.0)
    if "clock_mhz" in plans:
        clocks = plans["clock_mhz"][rows].astype(float)
        one = np.where(np.isnan(clocks), one, clocks)
    out = one[:, None]
    given = pd.Series(plans["stage_clock_mhz"][rows] if "stage_clock_mhz" in plans else None, dtype=object)
    if given.notna().any():
        beyond = np.arange(int(pp.max())) >= pp[:, None]
        out = np.where(beyond, np.nan, out)
        counts = given.map(len, na_action="ignore").fillna(0).to_numpy(np.int64)
        for count in np.unique(counts[counts > 0]).tolist():
            at = np.flatnonzero(counts == count)
            clocks = np.array(given.iloc[at].tolist(), np.float64)
            width = out.shape[1] if count == 1 else count  # one clock is that of all stages
            out[at, :width] = np.where(beyond[at, :width], np.nan, clocks)
    return out


# Rules that the cells of one row must keep, and the rows that break them.


@dataclass(frozen=True)
class Rule:
    """A rule that the cells of one run must keep. ``broken`` is false wherever a cell that it needs is blank."""

    columns: tuple[str, ...]  # the first one is blamed
    expected: str | Callable[[pd.Series], str]  # of all runs, or of the one that breaks it
    broken: Callable[[pd.DataFrame], pd.Series]
    may_fail: bool = False  # no contradiction where the run failed: that may be just why
    use: str = "used"  # of the first column where the rule is but a doubt

    def complaint(self, run: pd.Series) -> str:
        """The expectation, and the cells that contradict it."""
        known = {name: spelled(run[name]) for name in self.columns if name in run and is_known(run[name])}
        cells = (f"{name}={f'{v:.6g}' if isinstance(v, float) else v}" for name, v in known.items())
        expected = self.expected if isinstance(self.expected, str) else self.expected(run)
        return f"expected {expected}, got {' '.join(cells)}"


def broken_rules(runs: pd.DataFrame, rules: Iterable[Rule]) -> Iterator[tuple[Rule, pd.Series]]:
    """(rule, which rows break it) for rows as `clean_runs` leaves them; columns may be missing."""
    rules = list(rules)
    needed = {name: None for rule in rules for name in rule.columns}
    stated = runs.reindex(columns=pd.Index([*needed]))
    for rule in rules:
        yield rule, rule.broken(stated)


def above(larger: str, smaller: str, factor: float = 1.0) -> Callable[[pd.DataFrame], pd.Series]:
    """Whether one column exceeds ``factor`` times another."""
    return lambda runs: runs[larger] > factor * runs[smaller]
