"""Feasibility of the rows of a table: what was measured of memory, per source, and which plans fit by it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Floats
from jointopt.spec.catalog.gpus import read_yaml
from jointopt.surrogate.dataset import Priced, price, with_results
from jointopt.surrogate.feasibility import (
    GRID,
    MemoryEvidence,
    MemoryMargin,
    load_limit,
    source_weights,
)

if TYPE_CHECKING:
    import pandas as pd


@functools.cache
def memory_margin() -> MemoryMargin:
    """What recorded sources say of the memory model (catalog/memory_margin.yaml)."""
    return MemoryMargin(**{name: float(value) for name, value in read_yaml("memory_margin.yaml").items()})


def log_load(priced: Priced) -> Floats:
    """Log of predicted memory over what a GPU may use (n,), in the order of ``priced.rows``."""
    return np.asarray(np.log(priced.physics["peak_memory_gib"] / priced.memory_limit_gib))


def memory_evidence(table: pd.DataFrame, priced: Priced) -> dict[str, MemoryEvidence]:
    """What the rows of ``table`` (as `with_results` reads them) say of memory, by source."""
    status = table["status"].to_numpy(str)[priced.rows]
    given = (
        table["peak_memory_gib"].to_numpy(float)
        if "peak_memory_gib" in table
        else np.full(len(table), np.nan)
    )
    timed = table["iteration_time_s"].to_numpy(float)[priced.rows] > 0
    load, measured_gib = log_load(priced), given[priced.rows]
    ran_known = (status == "ok") & (measured_gib > 0)
    found = {}
    for source in np.unique(priced.runs.source):
        own = priced.runs.source == source
        read = own & ran_known
        found[str(source)] = MemoryEvidence(
            log_ratio=np.log(measured_gib[read] / priced.physics["peak_memory_gib"][read]),
            ok_load=load[own & (status == "ok") & timed & ~ran_known],
            oom_load=load[own & (status == "oom")],
            failed_load=load[own & (status == "failed")],
        )
    return found


def move_memory(out: pd.DataFrame, priced: Priced, measured: pd.DataFrame | None) -> None:
    """Memory and ``predicted_fits`` in ``out`` by what recorded sources say, and the measured runs of the same one.

    Memory itself moves only where something was measured; elsewhere the physics' figure stands.
    """
    margin, load, index = memory_margin(), log_load(priced), out.index[priced.rows]
    fits = load <= load_limit(source_weights(margin, MemoryEvidence()), margin)
    columns = [f"predicted_peak_memory_gib{suffix}" for suffix in ("", "_low", "_high")]
    for source, evidence in ({} if measured is None else _evidence_of(measured)).items():
        if not len(evidence):
            continue
        own = priced.runs.source == source
        weights = source_weights(margin, evidence)
        out.loc[index[own], columns] *= float(np.exp(weights @ GRID))
        fits[own] = load[own] <= load_limit(weights, margin)
    out.loc[index, "predicted_fits"] = fits


def _evidence_of(measured: pd.DataFrame) -> dict[str, MemoryEvidence]:
    known = with_results(measured)
    known = known[known["status"].isin(["ok", "oom"])].reset_index(drop=True)
    return {} if known.empty else memory_evidence(known, price(known))
