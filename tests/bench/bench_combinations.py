"""How far off times are by combination of software, kind of GPU, precision and kind of model, and what intervals hold.

    python tests/bench/bench_combinations.py [--write] DATA_FOLDER

``--write`` rewrites jointopt/jobs/catalog/recorded_runs.yaml, which intervals rest on, from all tables of the folder:
ONE command after any change of a prediction, a profile or a prior. Without it, what the file holds is judged as it is.

Of each table and combination: 5 and 95 % of log(measured / predicted), of which the mixture of open settings is taken
first (what it leaves adds to it in squares). Of tables that a profile was fitted to, half-way to what profiles fitted
to the others alone leave (`new_sources.factors_by_others`): runs of a new cluster are as far off as neither. Runs under
no profile are evidence of other software. `wider` is the factor on these by which intervals hold 90 % of runs, tables
alike, by steps from what was recorded, each combination left out (one table of a combination left out: no step).

Printed are share in the 90 % interval and half-width by class: of every table left out, and of every combination.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from bench_accuracy import ROOT, clean
from bench_classes import FITTED, HOST_ONLY, classes, named, timed

from jointopt.core.schema import Floats
from jointopt.core.units import Z_90
from jointopt.jobs.catalog import recorded_runs as catalogue
from jointopt.jobs.catalog.recorded_runs import OTHER_SOFTWARE, RecordedRuns, combination_of
from jointopt.physics.cost_model import CostModel
from jointopt.surrogate import intervals
from jointopt.surrogate.features import network_assumed, network_delay, network_half_width
from jointopt.surrogate.mixture import mixture_of
from jointopt.surrogate.new_sources import NewSource, factors_by_others
from jointopt.surrogate.training import TrainingSet, training_set

FILE = ROOT / "jointopt" / "jobs" / "catalog" / "recorded_runs.yaml"
NAMES = ["software", "architecture", "precision", "kind"]
MOST_ROWS = 400  # of a table
LEAST = 0.05  # half-width of a combination: repeats of one run differ by as much
MOST_STEPS, FEWEST_TABLES = 3, 3
LEVEL, MOST_LEVEL = 0.9, 0.95
KINDS = ("dense", "experts", "adapters")
HEAD = """\
# Combinations of recorded runs and how far off predicted times are there, written by
# `python tests/bench/bench_combinations.py --write DATA_FOLDER` (which says how): software, architecture of the GPU,
# precision, kind of model, 5 and 95 % of log(measured / predicted), tables, newest release that these state. Runs under
# `generic` stand for software that no profile describes. `wider`: factor on the half-widths of jobs by their steps from
# any combination.
"""


def rows_of(folder: Path) -> pd.DataFrame:
    """Timed rows of every table, by class, with what predictions are judged by; ``table`` is where they are from."""
    parts = []
    for path in sorted(folder.glob("*s_*.csv")):
        if named(path) in HOST_ONLY or not len(table := timed(path)):
            continue
        for kind, rows in table.groupby(classes(table)):
            rows = clean(named(path), rows) if kind == "dense" else rows.reset_index(drop=True)
            rows = rows.sample(min(len(rows), MOST_ROWS), random_state=0)
            parts.append(rows.assign(source=f"{named(path)}/{kind}"))
    data = training_set(pd.concat(parts, ignore_index=True), broken=1e9)
    fitted = {f"{source}/dense" for source in FITTED["dense"]}
    at = {str(data.source[some[0]]): some for some in data.by_source(np.arange(len(data.source)))}
    new = {
        source: NewSource.of(data.known.take(i), data.known_residual[i], data.unknown.take(i), data.unknown_residual[i])
        for source, i in at.items()
    }
    every = []
    for source, i in at.items():
        others = [new[other] for other in sorted(fitted - {source}) if other in new]
        refitted = _refitted(new[source], others) if source in fitted else new[source].own
        every.append(_described(data, i).assign(
            table=source.split("/")[0], kind_of_gpu=source.split("/")[1], own=new[source].own,
            residual=(new[source].own + refitted) / 2.0, generic=new[source].generic,
        ))  # fmt: skip
    return pd.concat(every, ignore_index=True)


def _refitted(source: NewSource, others: list[NewSource]) -> Floats:
    """Residuals under profiles fitted to the others alone."""
    left = source.own.copy()
    for name, (products, efficiency) in factors_by_others(source, others).items():
        at = source.framework == name
        left[at] += source.compute[at] * (source.log_compute[at] - products)
        left[at] -= source.network[at] * (source.log_efficiency[at] - efficiency)
    return left


def _described(data: TrainingSet, at: Any) -> pd.DataFrame:
    """Combination, mixture and doubts of rows."""
    known, lines = data.known.take(at), [dict[str, Any]()] * len(at)
    for number, work in enumerate(known.works):
        mine = np.flatnonzero(known.work == number)
        if not len(mine):
            continue
        some, of_row = np.unique(known.place[mine], return_inverse=True)
        plans = {name: values[some] for name, values in work.plans.items()} | {
            "stage_clock_mhz": work.stage_clock_mhz[some]
        }
        physics = CostModel(work.job, {name: plans[name] for name in work.layouts})
        mixture, every = mixture_of(physics), np.arange(len(some))
        mean, deviation = mixture.of_all if mixture.mean else (np.zeros(len(some)), np.zeros(len(some)))
        slower = (
            network_half_width(work.job, network_delay(physics, every)) if network_assumed(work.job) else 0.0 * mean
        )
        found = intervals.doubts(work.job, plans, network=slower)
        job = dict(zip(NAMES, combination_of(work.job), strict=True)) | {"release": work.job.training.framework_release}
        for row, plan in zip(mine.tolist(), of_row.tolist(), strict=True):
            doubts = {f"doubt {name}": bool(of[plan]) for name, of in found.items()}
            of_plan = {"mean": mean[plan], "deviation": deviation[plan], "slower": slower[plan]}
            lines[row] = job | {"job": work.job} | of_plan | doubts
    return pd.DataFrame(lines)


def combinations(rows: pd.DataFrame) -> list[list[Any]]:
    """Rows of the file: of each combination the root mean square over tables of what either tail is off by."""
    other = rows.assign(software=OTHER_SOFTWARE, residual=rows["generic"], release="")
    parts = [rows, other[rows["software"] != OTHER_SOFTWARE]]
    out = []
    for names, group in pd.concat(parts).groupby(NAMES):
        tails = np.array([_tails(_left(part)) for _, part in group.groupby("table")])
        newest = max((r for r in group["release"] if r), key=catalogue.release_numbers, default="")
        below, above = np.sqrt((tails**2).mean(axis=0)).round(3).tolist()
        out.append([*names, below, above, len(tails), str(newest)])
    return out


def _left(rows: pd.DataFrame) -> Floats:
    """What the mixture of open settings leaves of residuals: their excess over it, in squares."""
    off = (rows["residual"] - rows["mean"]).to_numpy(float)
    spread = np.hypot(Z_90 * rows["deviation"], rows["slower"].where(off > 0.0, 0.0)).to_numpy(float)
    return np.sign(off) * np.sqrt(np.maximum(off**2 - spread**2, 0.0))


def _tails(left: Floats) -> tuple[float, float]:
    low, high = np.quantile(left, [0.05, 0.95])
    return max(-low, LEAST), max(high, LEAST)


def left_out(rows: pd.DataFrame, wider: Mapping[str, Sequence[float]], combination: bool) -> pd.DataFrame:
    """Each table's rows by the list without it, or its combination too: steps, factor needed, covered, width."""
    out = []
    for (table, *names), part in rows.groupby(["table", *NAMES]):
        rest = rows[rows["table"] != table]
        if combination:
            rest = rest[~(rest[NAMES] == names).all(axis=1)]
        runs = RecordedRuns.of(combinations(rest), wider)
        with patch.object(intervals, "recorded_runs", return_value=runs):
            doubts = [c for c in part if c.startswith("doubt ")]
            found = {c.removeprefix("doubt "): part[c].to_numpy(bool) for c in doubts}
            found["layout"] = found["layout"].astype(bool)
            job = part["job"].iloc[0]
            steps = intervals.steps_from_recorded(job, found)
            below, above = intervals.time_half_widths(job, found)
        off = (part["own"] - part["mean"]).to_numpy(float)
        half = np.where(off < 0.0, below, above)
        left = np.abs(_left(part.assign(residual=part["own"])))
        wide = Z_90 * part["deviation"].to_numpy(float)
        low, high = np.hypot(below, wide) - part["mean"], np.hypot(np.hypot(above, wide), part["slower"]) + part["mean"]
        inside = (part["own"] >= -np.maximum(low, 0.0)) & (part["own"] <= np.maximum(high, 0.0))
        known = steps == 0
        for name in ("framework", "host", "network", "ambiguous", "block", "clock", "link"):
            known &= ~found[name]
        out.append(pd.DataFrame({
            "class": np.where(part["kind_of_gpu"] == "AMD", "AMD", part["kind"]), "table": table, "steps": steps,
            "kind": part["kind"], "needed": left / half, "covered": inside,
            "width": np.expm1(np.maximum(high, 0.0)) / 2.0 - np.expm1(-np.maximum(low, 0.0)) / 2.0, "known": known,
        }))  # fmt: skip
    return pd.concat(out, ignore_index=True)


def factors(rows: pd.DataFrame) -> dict[str, list[float]]:
    """`wider`: the factors that hold 90 % of rows of a kind, tables alike, by steps; never less than with fewer steps.

    Where few tables of the kind are, of all kinds.
    """
    flat = dict.fromkeys(KINDS, (1.0,))
    same, apart = (left_out(rows, flat, combination) for combination in (False, True))
    every = pd.concat([same[same["steps"] == 0], apart[apart["steps"] > 0]])
    at = np.minimum(every["steps"], MOST_STEPS)
    out: dict[str, list[float]] = {}
    for kind in KINDS:
        least, out[kind] = 1.0, []
        for steps in range(MOST_STEPS + 1):
            parts = every[(at == steps) & (every["kind"] == kind)], every[at == steps], every[:0]
            part = next((some for some in parts if some["table"].nunique() >= FEWEST_TABLES), parts[-1])
            if len(part):
                weights = (1.0 / part.groupby(["table", "kind"])["needed"].transform("size")).to_numpy(float)
                # of few tables more, as split conformal prediction has it (Lei et al. 2018), tables being what is drawn
                level = min(LEVEL * (1.0 + 1.0 / part["table"].nunique()), MOST_LEVEL)
                needed = np.quantile(part["needed"].to_numpy(float), level, weights=weights, method="inverted_cdf")
                least = max(least, round(float(needed), 2))
            out[kind].append(least)
    return out


def write(rows: list[list[Any]], wider: Mapping[str, Sequence[float]]) -> None:
    """The file of the catalogue."""

    def cell(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) and (not value or value[0].isdigit()) else f"{value}"

    lines = "".join(f"  - [{', '.join(map(cell, row))}]\n" for row in rows)
    by_kind = "".join(f"  {kind}: {factors}\n" for kind, factors in wider.items())
    FILE.write_text(f"{HEAD}wider:\n{by_kind}combinations:\n{lines}", encoding="utf-8")


def by_class(found: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Means over tables: in the interval, half-width (a table's median), share in domain, in the interval of it."""
    sure = found.assign(sure=found["covered"].where(found["known"]))
    tables = sure.groupby([*by, "table"] if "table" not in by else by).agg(
        rows=("covered", "size"), covered=("covered", "mean"), width=("width", "median"), known=("known", "mean"),
        covered_known=("sure", "mean"),
    )  # fmt: skip
    return tables if "table" in by else tables.groupby(by).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tables", action="store_true", help="print every table too")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    rows = rows_of(given.folder)
    if given.write:
        write(combinations(rows), factors(rows))
        for cached in (catalogue.recorded_runs, catalogue.read_yaml):
            cached.cache_clear()
    for combination in (False, True):
        found = left_out(rows, catalogue.recorded_runs().wider, combination)
        print(f"{'combination' if combination else 'table'} left out")
        print(by_class(found, ["class"]).round(3).to_string(), end="\n\n")
        if given.tables:
            print(by_class(found, ["class", "table"]).round(3).to_string(), end="\n\n")


if __name__ == "__main__":
    main()
