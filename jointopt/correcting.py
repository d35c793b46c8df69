"""Predictions corrected by what was measured: a surrogate's support, and runs that the user brings along."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.errors import UsageError, nearest
from jointopt.learning import Priced, price, timed_runs, with_results
from jointopt.schema import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.gaussian import Runs
    from jointopt.surrogate.model import Surrogate

MEMORY_SD = 0.18  # of log(measured / predicted) across sources, tests/bench/bench_accuracy.py
MEMORY_NOISE = 0.10
_MODELS = Path(__file__).parent / "models"


def surrogate_names() -> tuple[str, ...]:
    """Names of the surrogates that come with jointopt."""
    return tuple(sorted(card.parent.name for card in _MODELS.glob("*/card.json")))


@functools.cache
def load_surrogate(name: str) -> Surrogate | None:
    """The shipped surrogate of that name, the one in that folder, or None for ``none``; UsageError names the known."""
    from jointopt.surrogate.model import load

    if name == "none":
        return None
    shipped = _MODELS / name
    if (shipped / "card.json").is_file():
        return load(shipped)
    if Path(name).is_dir():
        return load(Path(name))
    known = (*surrogate_names(), "none")
    raise UsageError(
        f"The surrogate {name!r} is neither shipped nor a folder; expected one of {', '.join(known)}, or the folder "
        f"that `jointopt retrain --out` wrote{nearest(name, known)}."
    )


def correct(
    table: pd.DataFrame, predicted: pd.DataFrame, surrogate: Surrogate, measured: pd.DataFrame | None
) -> pd.DataFrame:
    """``predicted`` (physics, same rows as ``table``) with times, energies and intervals moved by what is known."""
    if measured is not None and ("source" in measured) != ("source" in table):
        # only one of them tells sources apart: then all are taken to be one
        table, measured = (t.drop(columns="source", errors="ignore") for t in (table, measured))
    priced = price(table)
    given = None if measured is None else _measured(measured)
    out = predicted.copy()
    for source in np.unique(priced.runs.source):
        at = np.flatnonzero(priced.runs.source == source).astype(np.int64)
        fitted = bool(priced.fitted[at[0]])
        mean, half, inside = surrogate.predict(priced.runs.take(at), fitted, given)
        _move(out, priced.rows[at], mean, half, inside)
    if measured is not None:
        _move_memory(out, priced, measured)
    return out


def _measured(measured: pd.DataFrame) -> tuple[Runs, Floats] | None:
    """Runs with a measured time and their residuals; None where no run was timed."""
    timed = timed_runs(measured)
    if timed.empty:
        return None
    priced: Priced = price(timed)
    return priced.runs, priced.residual(timed["iteration_time_s"].to_numpy(float)[priced.rows])


def _move(out: pd.DataFrame, rows: Ints, mean: Floats, half: Floats, inside: Any) -> None:
    """Shift times and energies of ``rows`` by exp(mean); power stays, so energy keeps power's own width."""
    index = out.index[rows]
    widths = {}
    for side in ("low", "high"):
        power = out.loc[index, f"predicted_avg_power_w_{side}"] / out.loc[index, "predicted_avg_power_w"]
        widths[side] = np.hypot(np.log(power.to_numpy(float)), half)
    for name, low, high in (("iteration_time_s", half, half), ("energy_j", widths["low"], widths["high"])):
        column = f"predicted_{name}"
        value = out.loc[index, column].to_numpy(float) * np.exp(mean)
        out.loc[index, column] = value
        out.loc[index, f"{column}_low"], out.loc[index, f"{column}_high"] = (
            value * np.exp(-low),
            value * np.exp(high),
        )
    out.loc[index, "in_domain"] = inside


def _move_memory(out: pd.DataFrame, priced: Priced, measured: pd.DataFrame) -> None:
    """Shift memory by what the measured runs of the same source say, trusted as a normal prior on the scale has it."""
    if "peak_memory_gib" not in measured:
        return
    known = with_results(measured)
    known = known[known["peak_memory_gib"] > 0].reset_index(drop=True)
    if known.empty:
        return
    seen = price(known)
    ratio = np.log(known["peak_memory_gib"].to_numpy(float)[seen.rows] / seen.physics["peak_memory_gib"])
    index = out.index[priced.rows]
    columns = [f"predicted_peak_memory_gib{suffix}" for suffix in ("", "_low", "_high")]
    for source in np.unique(seen.runs.source):
        own = ratio[seen.runs.source == source]
        trust = len(own) * MEMORY_SD**2 / (len(own) * MEMORY_SD**2 + MEMORY_NOISE**2)
        out.loc[index[priced.runs.source == source], columns] *= float(np.exp(trust * np.median(own)))
    out.loc[index, "predicted_fits"] = out.loc[index, "predicted_peak_memory_gib"] <= priced.memory_limit_gib
