"""Out of memory on recorded runs, and the learned margin of the memory model; by hand, prints tables.

    .venv/bin/python tests/bench/bench_feasibility.py [--write]

Reads ../shared/data beside the repository. ``--write`` replaces jointopt/jobs/catalog/memory_margin.yaml. The margin is
learned from sources that measured memory, that of a framework from its published plans that run; Aleph only judges.
nanotron's failures are crashes or out of memory, not distinguished: "caught" counts both.
"""

from __future__ import annotations

import pathlib
import sys
from dataclasses import astuple, replace

import numpy as np
import pandas as pd
from memory_margin import learn_margin, own_margin

import jointopt
from jointopt.surrogate.dataset import price, with_results
from jointopt.surrogate.memory import (
    MemoryEvidence,
    MemoryMargin,
    fit_probability,
    log_load,
    memory_evidence,
    source_weights,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
SOURCES = ("bigscience", "nanotron_ultrascale", "sailor", "torchtitan")
JUDGE = "aleph_layouts"
OF_FRAMEWORK = {"nemo": "layouts_mlperf_pretrain", "megatron-bridge": "recipes_megatron_bridge_a"}
CUTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def read(name: str) -> pd.DataFrame:
    return with_results(pd.read_csv(DATA / f"layouts_{name}.csv"))


def evidence(name: str) -> list[MemoryEvidence]:
    """The evidence of each cluster and stack of a source; where failures were not recorded, success is not counted."""
    table = read(name)
    priced = price(table)
    found = [memory_evidence(table, priced, priced.runs.source == key) for key in np.unique(priced.runs.source)]
    recorded = table["status"].isin(["oom", "failed"]).any()
    return [e if recorded else replace(e, ok_load=np.empty(0)) for e in found]


def judged(name: str, margin: MemoryMargin, failures: tuple[str, ...]) -> str:
    """Recall and precision of "does not fit" by cut, no run of the source known."""
    table = read(name)
    priced = price(table)
    status = table["status"].to_numpy(str)[priced.rows]
    was = np.isin(status, failures)
    counted = was | (status == "ok")
    probability = fit_probability(log_load(priced), source_weights(margin, MemoryEvidence()), margin)
    words = []
    for cut in CUTS:
        predicted = (probability < cut) & counted
        words.append(
            f"{cut}: {(predicted & was).sum() / was.sum():.3f}/{(predicted & was).sum() / predicted.sum():.3f}"
        )
    return "  ".join(words)


def after_measuring(name: str, per_group: int, seeds: int = 5) -> str:
    """Out of memory and memory error on the rows not given, before and after ``per_group`` rows of each group."""
    table = read(name)
    table = table[table["status"].isin(["ok", "oom"])].reset_index(drop=True)
    before, after = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        rows = [
            rng.choice(at, per_group, replace=False)
            for at in table.groupby("group").indices.values()
            if len(at) > per_group
        ]
        given = np.concatenate(rows)
        rest = table.drop(index=given)
        rest = rest[rest["group"].isin(table["group"][given])]
        before.append(figures(rest, jointopt.predict(rest)))
        after.append(figures(rest, jointopt.predict(rest, measured=table.loc[given])))
    with np.errstate(invalid="ignore"):
        first, second = np.mean(before, axis=0), np.mean(after, axis=0)
    return f"recall {first[0]:.3f} → {second[0]:.3f}, precision {first[1]:.3f} → {second[1]:.3f}, memory error " + (
        f"{first[2]:.1%} → {second[2]:.1%}"
    )


def figures(rows: pd.DataFrame, out: pd.DataFrame) -> tuple[float, float, float]:
    was, predicted = (rows["status"] == "oom").to_numpy(), out["fit_probability"].to_numpy() < 0.5
    error = np.full(1, np.nan)
    if "peak_memory_gib" in rows:
        error = (out["predicted_peak_memory_gib"] / rows["peak_memory_gib"] - 1).abs().dropna().to_numpy()
    hit = (was & predicted).sum()
    recall, precision = (hit / n if was.any() and n else np.nan for n in (was.sum(), predicted.sum()))
    return recall, precision, float(np.median(error)) if len(error) else np.nan


def main() -> None:
    parts = {name: evidence(name) for name in SOURCES}
    margin = learn_margin([e for own in parts.values() for e in own])
    print("margin learned from all:", astuple(margin))
    for name in SOURCES:
        rest = learn_margin([e for other, own in parts.items() if other != name for e in own])
        print(f"  without {name}: " + " ".join(f"{v:.3f}" for v in astuple(rest)))
        if name in ("bigscience", "nanotron_ultrascale"):
            print("    recall/precision by cut:", judged(name, rest, ("oom", "failed")))
    print(f"{JUDGE} (not learned from), recall/precision by cut:\n   ", judged(JUDGE, margin, ("oom",)))
    margin = replace(margin, centre=0.0)  # the framework profiles and memory fractions hold it
    own = {name: published(table, margin) for name, table in OF_FRAMEWORK.items()}
    for name, found in own.items():
        print(f"{name}, by published plans:", astuple(found))
    for name in (JUDGE, *SOURCES):
        print(f"{name}, three rows of each group measured: {after_measuring(name, 3)}", flush=True)
    if "--write" in sys.argv:
        write(margin, own)


def published(name: str, margin: MemoryMargin) -> MemoryMargin:
    """The margin of a framework whose plans of a table all ran, or are published."""
    table = with_results(pd.read_csv(DATA / f"{name}.csv"))
    return own_margin(margin, MemoryEvidence(ok_load=log_load(price(table))))


def write(margin: MemoryMargin, own: dict[str, MemoryMargin]) -> None:
    page = ROOT / "jointopt" / "jobs" / "catalog" / "memory_margin.yaml"
    head = [line for line in page.read_text().splitlines() if line.startswith("#")] if page.exists() else []
    names = ("centre", "source_sd", "plan_sd", "crash_share")
    lines = [f"{name}: {round(value, 3)}" for name, value in zip(names, astuple(margin), strict=True)]
    lines.append("frameworks:")
    lines += [f"  {n}: {{centre: {round(m.centre, 3)}, source_sd: {round(m.source_sd, 3)}}}" for n, m in own.items()]
    page.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
