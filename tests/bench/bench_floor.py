"""What the error after a few measured runs is made of: what the best correction fitted to all runs of a source leaves.

    .venv/bin/python tests/bench/bench_floor.py [DATA_FOLDER]

The default folder is ../shared/data beside the repository; rows are those that bench_accuracy.py calls clean. The
correction of a source is fitted to the very rows that it is judged on, so that each figure is a floor for what such
corrections can reach, however few runs they are fitted to. Medians of the relative error of time:

- raw: none; factor: one for each software and kind of GPU; factor per model: one for each of its models;
- constants: beside the factor the physics' own constants (network, overlaps, kernels, overheads: `CONSTANTS`) along
  their sensitivities, by least absolute deviations with a deviation of `WIDE` around what they are; of half: fitted to
  half of the rows, judged on the others;
- twins: runs that are equal in every column of plan and job, around their own median: below it no learner gets;
- spread: 1.48 times the median deviation around that factor; offset: how far the factor is from one, median over rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from bench_accuracy import ROOT
from bench_few import PROFILES, Recorded, read
from bench_leaderboard import NOT_OF_A_PLAN

from jointopt.core.schema import Floats, Ints

WIDE, LEAST = 1.0, 0.01  # deviation of constants; residual from which on runs weigh the same
FEWEST_TWINS, FEWEST = 4, 12


def error(residual: Floats) -> float:
    """Median relative error that residuals (logarithms) are."""
    return float(np.median(np.abs(np.expm1(residual))))


def around_medians(residual: Floats, of: pd.Series) -> Floats:
    """Residuals less the median of those alike."""
    return residual - pd.Series(residual).groupby(of.to_numpy()).transform("median").to_numpy()


def without_constants(residual: Floats, sensitivity: Floats, fitted: Ints | None = None) -> Floats:
    """Residuals less the factor and constants that suit those of rows ``fitted`` (all) best, by reweighted squares."""
    inputs = np.column_stack([np.ones(len(residual)), sensitivity])
    prior = np.diag([1e-6, *np.full(sensitivity.shape[1], LEAST / WIDE**2)])
    rows, left = np.arange(len(residual)) if fitted is None else fitted, residual
    for _ in range(60):
        weighted = inputs[rows].T / np.maximum(np.abs(left[rows]), LEAST)
        left = residual - inputs @ np.linalg.solve(weighted @ inputs[rows] + prior, weighted @ residual[rows])
    return left


def other_half(residual: Floats, sensitivity: Floats) -> Floats:
    """Residuals of half of the rows less what suits the other half best; empty where there are few."""
    order = np.random.default_rng(0).permutation(len(residual))
    half = len(order) // 2
    return without_constants(residual, sensitivity, order[:half])[order[half:]] if half >= FEWEST else residual[:0]


def twins(recorded: Recorded, residual: Floats) -> float:
    """Error of runs that differ in no column, around their own median."""
    stated = [name for name in recorded.table if name not in NOT_OF_A_PLAN]
    plan = recorded.table.groupby(stated, dropna=False).ngroup().iloc[recorded.priced.rows].reset_index(drop=True)
    twice = plan.duplicated(keep=False).to_numpy()
    return error(around_medians(residual[twice], plan[twice])) if twice.sum() >= FEWEST_TWINS else np.nan


def floors(recorded: Recorded) -> dict[str, float]:
    """The line of one source."""
    priced = recorded.priced
    residual = recorded.log_time - np.log(priced.physics["iteration_time_s"])
    table = recorded.table.iloc[priced.rows].reset_index(drop=True)
    source = pd.Series(priced.runs.source.astype(str))
    model = source + table.get("model", table["group"]).astype(str)
    parts = [(residual[at], priced.runs.sensitivity[at]) for at in source.groupby(source).indices.values()]
    fitted, half = (np.concatenate([of(*part) for part in parts]) for of in (without_constants, other_half))
    middle = around_medians(residual, source)
    return {
        "rows": len(residual), "raw": error(residual), "factor": error(middle),
        "factor per model": error(around_medians(residual, model)), "constants": error(fitted),
        "of half": error(half) if len(half) else np.nan, "twins": twins(recorded, residual),
        "spread": 1.4826 * float(np.median(np.abs(middle))), "offset": float(np.median(np.abs(residual - middle))),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", nargs="?", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the recorded runs"
    )
    folder = parser.parse_args().data
    for profile in PROFILES:
        found = pd.DataFrame({name: floors(recorded) for name, recorded in read(folder, profile).items()}).T
        found.loc["mean"] = found.mean()
        shown = found.drop(columns="rows").map(lambda v: "" if v != v else f"{v:.1%}")
        print(f"{profile} profile\n{shown.assign(rows=found['rows'].astype(int)).to_string()}\n")


if __name__ == "__main__":
    main()
