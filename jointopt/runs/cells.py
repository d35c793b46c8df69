"""The cells of a measurement table: what each may hold, what its words mean, and its value as JSON."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from jointopt.core.errors import TableError
from jointopt.core.schema import (
    ATTENTIONS,
    COLUMNS,
    CROSS_ENTROPIES,
    CUDA_GRAPHS,
    DTYPES,
    FP8_RECIPES,
    LORA_TARGETS,
    MODEL_BLOCKS,
    MOE_ROUTING,
    ONE_CLOCK,
    OTHER_CROSS_ENTROPIES,
    OTHER_RECIPES,
    OVERLAPS,
    RECIPE_CLASSES,
    STATUSES,
    TOKEN_DISPATCHERS,
    Bools,
    Column,
    Ints,
    column_of,
)
from jointopt.jobs.catalog.kernels import scaled_dtype
from jointopt.jobs.job import STATE_FIELDS, TF32
from jointopt.jobs.model import kinds_of, skip_freq_text
from jointopt.jobs.pattern import named_layers
from jointopt.jobs.shape import POSITION_EMBEDDINGS
from jointopt.jobs.windows import named_skip_freq
from jointopt.runs.dtype_names import named_dtype, named_precision, named_recipe

_DENSE = 2**20  # whole numbers within a span below this are numbered by their difference from the lowest
# How the cells of a column are read: (a function from a cell that is not blank to its value, None where it makes no
# sense; what messages say was expected).
Reader = tuple[Callable[[Any], Any], str]


class Cells(dict[str, npt.NDArray[Any]]):
    """The columns of a table of runs as arrays, (n,), made when they are first asked for; blank where it lacks one."""

    def __init__(self, runs: pd.DataFrame) -> None:
        super().__init__()
        self.runs = runs

    def __missing__(self, name: str) -> npt.NDArray[Any]:
        kind: type = object if column_of(name).dtype in ("str", "clocks") else float
        if name in self.runs:
            column = self.runs[name]
            self[name] = column.astype(object).to_numpy() if kind is object else column.to_numpy(float)
        else:
            self[name] = np.full(len(self.runs), np.nan, kind)
        return self[name]


def map_distinct(
    cells: npt.NDArray[Any] | pd.Series | pd.Index, meaning: Callable[[Any], Any], blank: Any
) -> npt.NDArray[Any]:
    """``meaning`` of each of n cells, (n, ...), or ``blank``; it is called once for each distinct cell."""
    codes, distinct = pd.factorize(cells)
    found = [*map(meaning, distinct), blank]
    return np.array(found, object if any(isinstance(one, str) for one in found) else None)[codes]


def read_columns(
    table: pd.DataFrame, names: Iterable[str], readers: Mapping[str, Reader], categories: bool = False
) -> tuple[pd.DataFrame, list[tuple[str, pd.Series, str]]]:
    """A copy with the cells of the columns ``names`` read, and the faults: (column, mask of rows (n,), expected).

    Cells that make no sense are blank in the copy. With ``categories`` words may come as pandas' categories, which are
    quick to compare but take no other words.
    """
    given = table.reset_index(drop=True)
    clean, faults = {}, []
    for name in given.columns.intersection(pd.Index(list(names))):
        values, wrong, expected = _read_column(given[name], name, readers)
        if not categories and isinstance(values.dtype, pd.CategoricalDtype):
            values = values.astype(object).where(values.notna(), None)
        clean[name] = values
        if wrong.any():
            clean[name] = values.mask(wrong)
            faults.append((name, pd.Series(wrong), expected))
    return given.assign(**clean), faults


def _read_column(cells: pd.Series, name: str, readers: Mapping[str, Reader]) -> tuple[pd.Series, Bools, str]:
    """(values, which cells make no sense, what was expected of them); each distinct cell is read once."""
    column, numeric = column_of(name), pd.api.types.is_numeric_dtype(cells)
    read, expected = readers.get(name) or readers.get(column.dtype) or (None, "text")
    is_number = column.dtype in ("int", "float")
    if numeric and (read is None or is_number):
        return _in_range(floats(cells), cells.notna(), name) if is_number else (cells, np.zeros(len(cells), bool), "")
    one_kind = numeric or pd.api.types.infer_dtype(cells) == "string"
    if one_kind:
        codes, distinct = pd.factorize(cells)
    else:  # where 1 and True would pass for one value
        codes, distinct = np.where(cells.isna(), -1, np.arange(len(cells))), cells.array
    stripped = [(cell.strip() or None) if isinstance(cell, str) else cell for cell in distinct]
    known = np.array([*(cell is not None for cell in stripped), False])[codes]
    if is_number:
        stripped = [read(cell) if read and isinstance(cell, str) else cell for cell in stripped]
        numbers = np.append(floats(pd.Series(stripped, dtype=object)), np.nan)[codes]
        return _in_range(pd.Series(numbers, cells.index), known, name)
    values = [read(cell) if read and cell is not None else cell for cell in stripped]
    meant = np.array([*(value is not None for value in values), False])[codes]
    if one_kind and column.dtype == "str":  # words as categories, which are as they are
        number, words = pd.factorize(pd.Series(values, dtype=object))
        read_cells = pd.Series(pd.Categorical.from_codes(np.append(number, -1)[codes], words), cells.index)
    else:
        spread = pd.Series([*values, None], dtype=float if column.dtype == "bool" else object)
        read_cells = spread.iloc[codes].set_axis(cells.index)
    return read_cells, known & ~meant, expected


def _in_range(values: pd.Series, known: npt.ArrayLike, name: str) -> tuple[pd.Series, Bools, str]:
    """Numbers of a column, which of the ``known`` ones (n,) lie beyond its range, and that range in words."""
    column, numbers = column_of(name), values.to_numpy()  # arrays are compared much faster than series
    low, high, whole = column.low, column.high, column.dtype == "int"
    right = (numbers > low if low == 0 and not whole else numbers >= low) & (numbers <= high)
    if whole:
        right &= np.floor(numbers) == numbers
    kind = "a whole number" if whole else "a number"
    start = "above 0 and at most" if low == 0 and not whole else f"from {low:,} to"
    question = f" ({column.beyond})" * bool(column.beyond)
    return values, ~right & np.asarray(known, bool), f"{kind} {start} {high:,}, or blank{question}"


def floats(cells: pd.Series) -> pd.Series:
    """Numbers; text that is none, and true and false, become NaN."""
    if pd.api.types.is_bool_dtype(cells):
        return pd.Series(np.nan, index=cells.index)
    if not pd.api.types.is_numeric_dtype(cells):
        cells = cells.map(lambda v: None if isinstance(v, bool) else v)
    return pd.to_numeric(cells, errors="coerce").astype(float)


def row_codes(columns: Iterable[npt.ArrayLike | pd.Series]) -> Ints:
    """One number per row, (n,), equal for rows whose cells are equal in all ``columns``; 0, 1, ... as they appear."""
    codes, span = np.zeros(1, np.int64), 1
    for column in columns:
        found, count = _cell_codes(column)
        if span * count >= 2**62:
            codes = pd.factorize(codes)[0].astype(np.int64)
            span = int(codes.max()) + 1
        codes, span = codes * count + found, span * count
    return pd.factorize(codes)[0].astype(np.int64, copy=False)


def first_rows(codes: Ints) -> Ints:
    """The row in which each of the numbers from `row_codes` appears first."""
    first = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # of several rows the last one written stays
    return first


def _cell_codes(column: npt.ArrayLike | pd.Series) -> tuple[Ints, int]:
    """Equal numbers for equal cells, (n,), from 0 on and below the second; those of whole numbers without a search."""
    if isinstance(column, pd.Series) and isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy().astype(np.int64) + 1, len(column.cat.categories) + 1
    cells = column if isinstance(column, pd.Series) and isinstance(column.dtype, pd.StringDtype) else np.asarray(column)
    if isinstance(cells, np.ndarray) and len(cells) and cells.dtype.kind in "if":
        low, high = np.fmin.reduce(cells), np.fmax.reduce(cells)
        if float(high) - float(low) < _DENSE:
            place = cells - low
            codes = np.where(np.isnan(place), -1, place).astype(np.int64)
            if (codes == place)[codes >= 0].all():
                return codes + 1, int(codes.max()) + 2
    found = pd.factorize(cells)[0].astype(np.int64) + 1
    return found, int(found.max(initial=0)) + 1


def quoted_cell(table: pd.DataFrame, row: int, name: str) -> str:
    """One cell as a message quotes it, at most 60 characters."""
    cell = table[name].iloc[row]
    return f"{cell.item() if isinstance(cell, np.generic) else cell!r:.60}"


# Spellings: what words mean, column by column.


_FLASH = re.compile(r"(?<![a-z])(?:flash(?:[\W_]*att(?:entio)?n)?|fa|sdpa)(?![a-z])")
_FLAGS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "yes": 1.0, "no": 0.0}


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


def named_cuda_graph(text: str) -> str | None:
    """The kind of `schema.CUDA_GRAPHS` that a cell means (``transformer_engine:attn``).

    None where it means nothing, as true does, which leaves open what is captured.
    """
    words = re.split(r"[:+;,\s]+", text.lower())
    if "full_iteration" in words:
        return "full_iteration"
    if words[0] == "none" or _FLAGS.get(words[0]) == 0:
        return "none"
    return "transformer_engine" if words[0] in ("transformer_engine", "local") else None


def named_share(cell: object) -> str | None:
    """The share of collectives that a cell states, as text: a number from 0 to 1, else true or false; None: neither."""
    text = str(cell).strip().lower()
    flag = _FLAGS.get(text)
    if flag is not None:
        return "true" if flag > 0 else "false"
    return text if _NUMBER.fullmatch(text) and 0.0 <= float(text) <= 1.0 else None


def _clocks(cell: object) -> tuple[float, ...] | None:
    """Clocks in MHz, ``1410;1395`` or one number for all stages."""
    words = cell if isinstance(cell, tuple | list | np.ndarray) else re.split(r"[;,\s]+", str(cell).strip("[]; "))
    try:
        clocks = tuple(float(word) for word in words)
    except (TypeError, ValueError):
        return None
    return clocks if clocks and all(0 < clock < 1e5 for clock in clocks) else None


_TOKENS = re.compile(r"[(\[]?(\d{1,9})(?:\.0)?(?:[,;]\s*-?\d{1,9}[)\]]?)?")


def _tokens(cell: object) -> int | None:
    """Tokens that a window looks back: a whole number, or the first of Megatron's two (128,0)."""
    found = _TOKENS.fullmatch(str(cell).strip())
    return int(found[1]) if found else None


def _attention_kind(cell: object) -> str | None:
    """Kinds of attention joined by ``+``, in small letters; None where one is not known."""
    words = str(cell).lower().replace(" ", "").split("+")
    known = {"mha", "gqa", "mqa", "sliding_window", *kinds_of("attention")}
    return "+".join(words) if known.issuperset(words) else None


def _targets(text: str) -> list[str] | None:
    """The linear layers of `schema.LORA_TARGETS` that a cell names; None where it names another one, or none."""
    words = [word for word in re.split(r"[;,\s\[\]'\"]+", text) if word]
    return words if words and all(word in LORA_TARGETS for word in words) else None


def _rewritten(column: Column, cell: object) -> str | None:
    """A cell of a plan's column of text as that column writes it."""
    try:
        return str(column.decode(column.encode(cell)))
    except (ValueError, TypeError):
        return None


def _one_of(names: Sequence[str], meaning: Callable[[str], object] | Mapping[str, str] | None = None) -> Reader:
    """Reads one of a few words in any letter case, or other spellings of these by a mapping.

    By a function: leaves free text as it is, where that means something.
    """
    expected = f"one of {', '.join(names)}, or blank"
    if callable(meaning):
        return lambda cell: None if meaning(str(cell)) is None else cell, expected
    known = {name: name for name in names} | dict(meaning or {})
    return lambda cell: known.get(str(cell).lower()), expected


READERS: dict[str, Reader] = {  # by column, else by type
    "bool": (lambda cell: _FLAGS.get(str(cell).lower()), "true, false or blank"),
    "clocks": (_clocks, "clocks in MHz above 0, separated by semicolons, or blank"),
    **{name: (functools.partial(_rewritten, column), f"{column.codes.expected}, or blank")
       for name, column in COLUMNS.items() if column.codes is not None},
    **{name: _one_of(DTYPES, named_dtype) for name in STATE_FIELDS if name.endswith("_dtype")},
    "fp8_recipe": _one_of(FP8_RECIPES, OTHER_RECIPES),
    "lora_target_modules": _one_of(LORA_TARGETS, _targets),
    "window_attn_skip_freq": (
        lambda cell: None if (found := named_skip_freq(str(cell))) is None else skip_freq_text(found),
        "a whole number N, or a 0 or 1 per layer with ; between, or blank",
    ),
    "layers": (
        lambda cell: None if named_layers(str(cell)) is None else str(cell),
        "kinds of layers such as 3*mamba2:experts;full:experts and their sizes, or blank",
    ),
    "window_size": (_tokens, "a whole number of tokens from 0 on, as Megatron's window_size too (128,0), or blank"),
    "attention_kind": (_attention_kind, "one of mha, gqa, mqa, mla, with +sliding_window where it has one, or blank"),
    "block": _one_of(MODEL_BLOCKS),
    "position_embedding": _one_of(POSITION_EMBEDDINGS),
    "recipe_class": _one_of(RECIPE_CLASSES),
    "token_dispatcher": _one_of(TOKEN_DISPATCHERS, named_dispatcher),
    "cuda_graph": _one_of(CUDA_GRAPHS, named_cuda_graph),
    "cross_entropy": _one_of(CROSS_ENTROPIES, OTHER_CROSS_ENTROPIES),
    "moe_routing": _one_of(MOE_ROUTING, {word: "forced" if flag else "natural" for word, flag in _FLAGS.items()}),
    **dict.fromkeys(OVERLAPS, (named_share, "a share from 0 to 1, true, false or blank")),
}  # fmt: skip
STRICT_READERS = READERS | {
    "status": _one_of(STATUSES), "dtype": _one_of((*DTYPES, TF32), named_dtype),
    "attention": _one_of(ATTENTIONS, lambda text: named_attention(text)[0]),
}  # fmt: skip
MEASURED = [c.name for c in COLUMNS.values() if c.role == "result" and c.dtype == "float"]


# Cells as JSON.


_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?")


def json_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Every row as a mapping of its cells that are not blank to JSON values, equal for equal measurements.

    A whole number is an int in every column, clocks are ``1410;1395``, numbers and flags in columns that the schema
    does not know count as such however they are written. Raises TableError for a cell that its column cannot hold.
    """
    cells: dict[str, list[Any]] = {}
    for label, column in table.items():
        name, seen = str(label), dict[tuple[type, object], Any]()  # most columns repeat a few values
        dtype = column_of(name).dtype if name in (*COLUMNS, ONE_CLOCK.name) else ""
        values = cells[name] = list[Any]()
        for row, (cell, known) in enumerate(zip(column.tolist(), column.notna().tolist(), strict=True)):
            key = (type(cell), repr(cell) if isinstance(cell, list | np.ndarray) else cell)
            try:
                if known and key not in seen:
                    seen[key] = _json_value(cell, dtype)
            except (ValueError, TypeError, OverflowError) as error:
                message = f"Row {row + 1} of the table: {name} must be {column_of(name).dtype}; got {cell!r:.60}."
                raise TableError(message) from error
            values.append(seen[key] if known else None)
    rows = zip(*cells.values(), strict=True)
    return [{name: v for name, v in zip(cells, row, strict=True) if v is not None} for row in rows]


def _json_value(cell: Any, dtype: str) -> Any:
    """A cell as JSON by its column's type; ValueError where it is none of that.

    Of an unknown column (blank ``dtype``) by its text: pandas reads 8 as int, float or text by what else its column
    holds, and the value must not depend on that.
    """
    text = str(cell).strip()
    if dtype == "clocks":
        if (clocks := _clocks(cell)) is None:
            raise ValueError(cell)
        return ";".join(str(_json_value(clock, "float")) for clock in clocks)
    if dtype == "bool" or (not dtype and text.lower() in ("true", "false")):
        if text.lower() not in _FLAGS:
            raise ValueError(cell)
        return _FLAGS[text.lower()] > 0
    is_number = dtype in ("int", "float") or (not dtype and _NUMBER.fullmatch(text) and math.isfinite(float(text)))
    if not is_number:
        return text or None
    number = float(cell)
    if not math.isfinite(number):
        raise ValueError(cell)
    return int(number) if number.is_integer() else number


def cell_as_written(cell: object) -> object:
    """A cleaned cell as a table has it: clocks as ``1410;1395``, whole numbers without a point."""
    found: object = _json_value(cell, "clocks" if isinstance(cell, tuple) else "")
    return found


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The table of rows from `json_rows`: ``columns`` in their order, blanks NaN, measured numbers always floats."""
    table = pd.DataFrame(list(rows), columns=pd.Index(columns))
    numbers = [name for name in columns if column_of(name).dtype == "float" and name in (*COLUMNS, ONE_CLOCK.name)]
    return table.astype(dict.fromkeys(numbers, float))


# The precision of products in the words of tables: its format, and the recipe that scales fp8 and fp4.


_MEANT = (  # column that may be blank, column that may state it, and what a word of that means
    ("dtype", "precision", named_precision), ("fp8_recipe", "precision", named_recipe),
    ("fp8_recipe", "dtype", named_recipe),
    ("dtype", "fp8_recipe", lambda name: scaled_dtype(name) if name in FP8_RECIPES else None),
)  # fmt: skip


def with_precision(runs: pd.DataFrame) -> pd.DataFrame:
    """The table with blank cells of ``dtype`` and ``fp8_recipe`` filled from its other columns on the precision.

    A precision names both (``fp8_mx``), and a recipe has a dtype of its own.
    """
    columns = {name: runs[name] for name in ("dtype", "fp8_recipe", "precision") if name in runs}
    for name, source, meaning in _MEANT:
        if source in columns:
            codes, distinct = pd.factorize(columns[source])
            words = np.array([*(meaning(str(cell)) for cell in distinct), None], object)
            found = pd.Series(words[codes], runs.index, dtype=object)
            if found.notna().any():
                columns[name] = columns[name].astype(object).fillna(found) if name in columns else found
    return runs.assign(**columns)
