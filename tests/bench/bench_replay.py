"""Runs that `tune` needs to come within 1 % of the best plan of each recorded group; by hand, prints a table.

    .venv/bin/python tests/bench/bench_replay.py [POLICY]

Reads ../shared/data beside the repository. Constants of a policy are chosen on the first, third, ... group by name and
reported on the others; `all` compares policies.
"""

from __future__ import annotations

import math
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from jointopt.jobfile import parse_job
from jointopt.surrogate.local import Spread
from jointopt.tuning import tune

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
BUDGET = 12
FEWEST = 9  # runs that succeeded, of a group
SHAPE = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size",
)  # fmt: skip
TINY = 1e-6
POLICIES = {
    "default": Spread(),
    "physics order": Spread(shared=TINY, trend=TINY),
    "scale alone": Spread(trend=TINY),
    "half the trend": Spread(trend=0.015),
    "twice the trend": Spread(trend=0.06),
    "half the noise": Spread(noise=0.025),
    "twice the noise": Spread(noise=0.1),
}


def groups() -> Iterator[tuple[str, pd.DataFrame]]:
    """Groups with enough runs, each with its commonest software stack."""
    for path in sorted(DATA.glob("layouts_*.csv")):
        table = pd.read_csv(path)
        if not {"vocab_size", "gpus_per_node"} <= set(table):
            continue
        for name, rows in table[table["status"].isin(["ok", "oom"])].groupby("group"):
            for column in ("attention", "fused_norm"):
                if column in rows and rows[column].nunique() > 1:
                    rows = rows[rows[column] == rows[column].mode()[0]]
            if (rows["status"] == "ok").sum() >= FEWEST:
                yield str(name), rows


def job_document(rows: pd.DataFrame) -> dict[str, Any]:
    """A job file with no word on the software."""
    first = rows.iloc[0]
    model: dict[str, Any] = {k: int(first[k]) for k in SHAPE if k in rows and pd.notna(first[k])}
    if pd.notna(first.get("gated_mlp")):
        model["gated_mlp"] = bool(first["gated_mlp"])
    per_node = int(first["gpus_per_node"])
    return {
        "model": {"vocab_size": 50257} | model,
        "training": {
            "seq_length": int(first["seq_length"]),
            "global_batch_size": int(first["global_batch_size"]),
            "dtype": str(first["dtype"]),
        },
        "cluster": {
            "gpu": first["gpu"], "gpus_per_node": per_node, "nodes": int(first["num_gpus"]) // per_node,
        },
        "objectives": ["iteration_time_s"],
    }  # fmt: skip


def runs_needed(rows: pd.DataFrame, spread: Spread) -> tuple[float, int]:
    """(runs until one within 1 % of the fastest row, runs out of memory)."""
    job = parse_job(job_document(rows), "replay", pathlib.Path())
    tuned = tune(job, "replay", BUDGET, table=rows, spread=spread)
    goal = 1.01 * rows["iteration_time_s"].min()
    reached = [i + 1 for i, run in enumerate(tuned.runs) if run.result("iteration_time_s") <= goal]
    return min(reached, default=math.inf), sum(run.status == "oom" for run in tuned.runs)


def random_order(rows: pd.DataFrame) -> float:
    """Expected position of the first good row in a random order: (n + 1) / (good + 1)."""
    good = (rows["iteration_time_s"] <= 1.01 * rows["iteration_time_s"].min()).sum()
    return (len(rows) + 1) / (good + 1)


def summary(name: str, counts: list[float]) -> str:
    k = np.array(counts)
    return (
        f"{name:22} median {np.median(k):4.1f}, mean (13 = never) {np.minimum(k, 13).mean():5.2f}, within 1 run "
        f"{np.mean(k <= 1):.2f}, 3 {np.mean(k <= 3):.2f}, 5 {np.mean(k <= 5):.2f} of {len(k)} groups"
    )


def main(policy: str) -> None:
    found = list(groups())
    unknown = [(group, rows.assign(framework="unknown")) for group, rows in found]
    print("framework not told:", end=" ")
    print(summary("", [runs_needed(rows, POLICIES["default"])[0] for _, rows in unknown]))
    for name in POLICIES if policy == "all" else [policy]:
        counts, ooms = [], 0
        for group, rows in found:
            k, failed = runs_needed(rows, POLICIES[name])
            counts.append(k)
            ooms += failed
            if policy != "all":
                print(
                    f"{k:4} runs, random {random_order(rows):5.1f}, {len(rows):4} rows: {group}", flush=True
                )
        print(summary(name, counts), f"{ooms} OOMs")
        print(summary("  chosen on", counts[::2]))
        print(summary("  reported on", counts[1::2]), flush=True)
        large = [k for k, (_, rows) in zip(counts, found, strict=True) if len(rows) >= 20]
        print(summary("  20 or more rows", large), flush=True)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["default"]))
