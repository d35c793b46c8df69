"""Sentences on columns and rows of tables that nothing is read or learned from."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import CatalogError
from jointopt.core.schema import ATTENTIONS, COLUMNS, OTHER_NAMES, STATUSES, Bools
from jointopt.jobs.catalog.frameworks import framework_names, recognise_framework
from jointopt.jobs.catalog.gpus import known_gpu, known_gpus, load_gpu
from jointopt.jobs.cluster import FAR_LINK
from jointopt.jobs.defaults import PLAIN_LINK_GBYTES_PER_S
from jointopt.jobs.job import TF32
from jointopt.runs.cells import (
    ALIKE,
    TIME,
    converted,
    floats,
    meant,
    named_attention,
    runnable_dtype,
    shown,
    with_precision,
    within_node,
)
from jointopt.runs.dtype_names import named_dtype, named_precision, named_recipe

if TYPE_CHECKING:
    import pandas as pd

_RESULTS = ("iteration_time_s", "peak_memory_gib", "energy_j", "avg_power_w")
A_RESULT = f"a result ({', '.join(_RESULTS)}) nor the status oom or failed"  # what measured runs have one of
_LINK = "inter_node_gbytes_per_s"
_MOST_NAMED = 5  # columns, each in a sentence of its own


def unused_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence for each reason why sound rows of a measurement table teach nothing; none where all of them do."""
    if runs.empty:
        return []
    gpus = runs["gpu"] if "gpu" in runs else runs.assign(gpu=None)["gpu"]
    lines = unread_lines(runs)
    if count := int(gpus.isna().sum()):
        names = "row names" if count == 1 else "rows name"
        lines.append(f"{count:,} {names} no GPU (column gpu): kept, but never learned from.")
    for name, count in gpus.value_counts(sort=False).items():
        try:
            load_gpu(str(name))
        except CatalogError as error:
            lines.append(f"{_rows_are(count)} kept, but never learned from: {error}")
    return lines + silent_lines(runs) + unfinished_lines(runs)


def by_reason(reasons: Mapping[int, str]) -> list[tuple[str, int, int]]:
    """(reason, how many rows, the first of them), the commonest first."""
    rows: dict[str, list[int]] = {}
    for row, reason in sorted(reasons.items()):
        rows.setdefault(reason, []).append(row)
    return sorted(((r, len(at), at[0]) for r, at in rows.items()), key=lambda found: (-found[1], found[2]))


def left_out_lines(runs: pd.DataFrame, reasons: Mapping[int, str], refused: Bools | None = None) -> list[str]:
    """One sentence for each reason why measured runs teach nothing: the ``reasons`` of rows, or no result.

    ``refused`` (n,): rows of which another sentence says that their results are not used.
    """
    total = f"{len(runs):,}"
    return (
        [
            f"{count:,} of {total} measured runs teach{'es' * (count == 1)} nothing (row {row + 1}): {reason}"
            for reason, count, row in by_reason(reasons)
        ]
        + silent_lines(runs if refused is None else runs[~refused])
        + unfinished_lines(runs)
    )


def silent(runs: pd.DataFrame) -> Bools:
    """Rows (n,) of a measurement table that have no result that anything learns from."""
    found = runs.reindex(columns=list(_RESULTS)).isna().all(axis=1)
    if "status" in runs:
        found &= ~runs["status"].isin(STATUSES[1:])
    return found.to_numpy(bool)


def silent_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence where rows are `silent`."""
    count = int(silent(runs).sum())
    if not count:
        return []
    return [f"{count:,} {'row has' if count == 1 else 'rows have'} neither {A_RESULT}."]


def none_ended_well(runs: pd.DataFrame) -> str:
    """A clause with the count of each status where no run of a measurement table ended well; blank where one did."""
    if runs.empty or "status" not in runs or runs["status"].isna().any():
        return ""
    status = runs["status"].astype(str).str.strip().str.lower()
    if (status == "ok").any():
        return ""
    counts = status.value_counts(sort=False)
    found = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return f"none of {len(runs):,} runs ended well ({found})"


def unfinished_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence where no run of a measurement table ended well: what the others teach, if anything."""
    if not (clause := none_ended_well(runs)):
        return []
    status = runs["status"].astype(str).str.strip().str.lower()
    fits = bool((status == "oom").any())
    bounds = "iteration_time_s" in runs and bool(runs["iteration_time_s"][status == "timeout"].notna().any())
    taught = " and ".join(["which plans fit"] * fits + ["lower bounds of time"] * bounds) or "nothing"
    return [f"{clause}: they teach {taught}{', and nothing of time or power' * (fits and not bounds)}."]


def _without_rate(runs: pd.DataFrame) -> list[str]:
    """One sentence for each precision of rows `with_precision` that no source states a rate of on their GPU."""
    if not {"gpu", "dtype"} <= set(runs):
        return []
    lines = []
    counts = runs.groupby(["gpu", "dtype"], sort=False).size()
    for (name, text), count in zip(counts.index.tolist(), counts.tolist(), strict=True):
        gpu, dtype, taken = known_gpu(name), named_precision(str(text)), list[str]()
        if gpu and dtype and (wider := runnable_dtype(str(text), gpu, taken)) and taken:
            lines.append(
                f"{_rows_are(count)} in {dtype} on {name}, of which no source states a rate: priced in {wider}, and "
                f"marked out of domain; expected one of {', '.join((*gpu.peak_tflops, *[TF32] * gpu.has_tf32))}."
            )
    return lines


def _without_precision(runs: pd.DataFrame) -> list[str]:
    """One sentence where rows `with_precision` that can be priced have none."""
    if "seq_length" not in runs:
        return []
    blank = runs["dtype"].isna() if "dtype" in runs else True
    count = int((runs["seq_length"].notna() & blank).sum())
    return [
        f"{_rows_state(count)} no precision (columns dtype, precision, fp8_recipe): the 16-bit format of the GPU is "
        "assumed, and nothing recorded supports what is predicted of them."
    ] * bool(count)


def _far_links(runs: pd.DataFrame) -> list[str]:
    """One sentence for each GPU whose rows state a network that is far faster than its reference system's."""
    if not {"gpu", _LINK} <= set(runs):
        return []
    stated, lines = floats(runs[_LINK]), []
    for name, gpu in known_gpus(runs["gpu"].dropna().unique()).items():
        usual = gpu.usual_inter_node_gbytes_per_s
        if usual and (far := (runs["gpu"] == name) & (stated > FAR_LINK * usual)).any():
            rows = np.flatnonzero(far)
            lines.append(
                f"{_rows_state(len(rows))} a network over {FAR_LINK} times as fast as the {usual:g} GB/s of the "
                f"reference system of {name} (row {rows[0] + 1}: {_LINK}={stated.iloc[rows[0]]:g}): is it in Gb/s "
                f"per GPU? Then it is {stated.iloc[rows[0]] / 8:g}."
            )
    return lines


def _raised_limits(runs: pd.DataFrame) -> list[str]:
    """One sentence for each GPU whose rows state a power limit above what it is rated for."""
    if not {"gpu", "power_limit_w"} <= set(runs):
        return []
    stated, lines = floats(runs["power_limit_w"]), []
    for name, gpu in known_gpus(runs["gpu"].dropna().unique()).items():
        if gpu.tdp_w and len(rows := np.flatnonzero((runs["gpu"] == name) & (stated > gpu.tdp_w))):
            lines.append(
                f"{_rows_state(len(rows))} a power limit above the {gpu.tdp_w:g} W that {name} is rated for (row "
                f"{rows[0] + 1}: power_limit_w={stated.iloc[rows[0]]:g}): taken as stated, though few boards allow it."
            )
    return lines


def _plain_networks(runs: pd.DataFrame) -> list[str]:
    """One sentence for each GPU of whose network between nodes neither rows nor sources state the speed."""
    if not {"gpu", "num_gpus"} <= set(runs):
        return []
    known = known_gpus(runs["gpu"].dropna().unique())
    without = {name: gpu for name, gpu in known.items() if not gpu.is_cpu and not gpu.usual_inter_node_gbytes_per_s}
    if not without:
        return []
    blank = floats(runs["num_gpus"]) * np.nan
    link, per_node = (floats(runs.get(name, blank)) for name in (_LINK, "gpus_per_node"))
    lines = []
    for name, gpu in without.items():
        beyond = floats(runs["num_gpus"]) > per_node.fillna(gpu.usual_gpus_per_node or 8)
        if len(rows := np.flatnonzero((runs["gpu"] == name) & link.isna() & beyond)):
            lines.append(
                f"{_rows_state(len(rows))} no network between nodes, and no source states a usual one of {name} (row "
                f"{rows[0] + 1}): {PLAIN_LINK_GBYTES_PER_S:g} GB/s per GPU is assumed; state {_LINK}."
            )
    return lines


def _rows_are(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _rows_state(count: int) -> str:
    return "1 row states" if count == 1 else f"{count:,} rows state"


def unread_lines(table: pd.DataFrame) -> list[str]:
    """One sentence for each column that nothing reads, or of whose cells some mean nothing."""
    stated = with_precision(table)
    of_cells = _meaningless_lines(table) + _misspelt_frameworks(table) + _targets_alone(table)
    of_precision = _without_rate(stated) + _without_precision(stated)
    of_nodes = _far_links(table) + _raised_limits(table) + _plain_networks(table)
    return misspelt_lines(table) + of_cells + of_precision + of_nodes


def _misspelt_frameworks(table: pd.DataFrame) -> list[str]:
    """One sentence for each framework that no profile is of and whose name is nearly that of one."""
    lines = []
    for name, count in table["framework"].value_counts(sort=False).items() if "framework" in table else ():
        close = difflib.get_close_matches(str(name).strip().lower(), framework_names(), n=1, cutoff=ALIKE)
        if close and not recognise_framework(str(name))[1]:
            row = int(np.flatnonzero(table["framework"] == name)[0]) + 1
            lines.append(
                f"{count:,} row{'s have' if count > 1 else ' has'} an unknown framework (row {row}: {name!r}), "
                f"predicted like any other without a profile (did you mean {close[0]!r}?)."
            )
    return lines


def _targets_alone(table: pd.DataFrame) -> list[str]:
    """One sentence where rows name the layers that LoRA adapts and no rank."""
    if "lora_target_modules" not in table:
        return []
    ranks = table.reindex(columns=["lora_dim"])["lora_dim"]
    rows = np.flatnonzero(table["lora_target_modules"].notna() & ranks.isna())
    if not len(rows):
        return []
    return [
        f"{_rows_state(len(rows))} lora_target_modules without lora_dim (row {rows[0] + 1}), the rank of the adapters: "
        "all weights are taken to be trained."
    ]


_DTYPES = "bf16, fp16, fp32, tf32, fp8 or fp4"
# Columns of free text: what a cell of each means, and the words to take where it means nothing.
_MEANINGS: dict[str, tuple[Callable[[str], str | None], str]] = {
    "precision": (lambda text: named_recipe(text) or named_precision(text), _DTYPES), "dtype": (named_dtype, _DTYPES),
    "attention": (lambda text: named_attention(text)[0], f"{', '.join(ATTENTIONS[:-1])} or {ATTENTIONS[-1]}"),
}  # fmt: skip


def _meaningless_lines(table: pd.DataFrame) -> list[str]:
    """One sentence for each column of `_MEANINGS` with cells that mean none."""
    lines = []
    for name, (reading, expected) in _MEANINGS.items():
        if name not in table:
            continue
        cells = table[name]
        known = {cell: reading(str(cell)) for cell in cells.dropna().unique()}
        unknown = [cell for cell, meaning in known.items() if not meaning]
        if unknown:
            rows = np.flatnonzero(cells.isin(unknown))
            words = f"row{'s have' if len(rows) > 1 else ' has'} an"
            lines.append(
                f"{len(rows):,} {words} unknown {name} (row {rows[0] + 1}: {shown(table, rows[0], name)}), "
                f"which is not read: the usual one is assumed. Expected {expected}."
            )
    return lines


def misspelt_lines(table: pd.DataFrame) -> list[str]:
    """One sentence for each column that nothing reads and whose name is another spelling of one that is lacking.

    That is a similar name, or what other programs call it; of many columns one for all. A column that is just more than
    is known has none. A blank column is lacking.
    """
    lacking = {*COLUMNS, "clock_mhz"} - {str(name) for name, cells in table.items() if cells.notna().any()}
    known = {*COLUMNS, *OTHER_NAMES, "clock_mhz"}
    found = {name: meant(name, lacking) for name in map(str, table.columns) if name not in known}
    named = {name: column for name, column in found.items() if column}
    links = [
        f"column {name} is kept, but nothing reads it: tables have no column for the links within a node; the job file "
        "(cluster.intra_node_gbytes_per_s) and the machine file have."
        for name in found if within_node(name)
    ][:1]  # fmt: skip
    if len(named) > _MOST_NAMED:
        first, column = next(iter(named.items()))
        return [
            *links,
            f"{len(named)} columns are kept, but nothing reads them ({', '.join([*named][:_MOST_NAMED])}, ...): "
            f"did you mean {column!r} by {first}, and so on?",
        ]
    return [
        f"column {name} is kept, but nothing reads it (did you mean {one!r}?{_and_converted(name, one)})."
        for name, one in named.items()
    ] + links


def _and_converted(name: str, column: str) -> str:
    """The rest of a question after the column that is meant; blank where its unit is the same."""
    change = converted(name, column)
    return f" Then rename it, and {change}" * bool(change)


def renamed_time(table: pd.DataFrame) -> str:
    """How to turn a column that holds times by another name into the one that is read, as the end of a sentence."""
    if not (name := _named_otherwise(table)):
        return ""
    change = converted(name, TIME)
    return f"; rename the column {name} to {TIME}{f', and {change}' * bool(change)}"


def without_time(table: pd.DataFrame) -> str:
    """Why a measurement table has no time of a run that ended well and what to do, as the end of a sentence.

    Blank where no reason shows.
    """
    if renamed := renamed_time(table):
        return renamed
    if not (clause := none_ended_well(table)):
        return ""
    return (
        f"; {clause}: add runs that did, or give these to `jointopt propose --measured`, which learns from runs that "
        "are out of memory which plans fit"
    )


def _named_otherwise(table: pd.DataFrame) -> str:
    """The first column that seems to be the iteration time by another name; empty for none."""
    names = (str(name) for name in table.columns if str(name) not in COLUMNS)
    return next((name for name in names if meant(name, {TIME})), "")


def untimed_lines(table: pd.DataFrame) -> list[str]:
    """One sentence where rows, as `with_results` reads them, ended well and have no time, by whatever name."""
    blank = (table["status"] == "ok") & table[TIME].isna()
    rows = np.flatnonzero(blank)
    if not len(rows) or _named_otherwise(table):
        return []
    ended = "row says that its run ended" if len(rows) == 1 else "rows say that their runs ended"
    return [
        f"{len(rows):,} {ended} well (status ok or blank) but {'has' if len(rows) == 1 else 'have'} no {TIME} (row "
        f"{rows[0] + 1} is the first): not learned from; fill it in, or delete these rows."
    ]
