"""Seconds to retrain on 10,000 runs and to predict 100,000 plans, and the shipped surrogate's held-out errors.

    .venv/bin/python tests/bench/bench_surrogate.py [RUNS [PLANS]]

Runs are synthetic: the physics' own times, a factor per source, 3 % noise. The marks are 60 s on 2 cores for 10,000
runs, and 10 s for 1,000,000 plans.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from jointopt.correcting import load_surrogate
from jointopt.jobfile import load_job
from jointopt.plans.space import enumerate_layouts
from jointopt.predicting import predict
from jointopt.schema import RECOMPUTE_NAMES
from jointopt.tables import write_table

SOURCES = {
    "a100": ("a100-sxm4-40gb", "megatron-lm", 1.3),
    "a100-80": ("a100-sxm4-80gb", "nemo", 1.2),
    "h100": ("h100-sxm5-80gb", "megatron-lm", 0.9),
    "titan": ("h100-sxm5-80gb", "torchtitan", 1.1),
    "deepspeed": ("a100-sxm4-40gb", "deepspeed", 1.0),
}
BATCHES = (128, 256, 512, 1024)
COLUMNS = (
    "physics",
    "group out",
    "group out covered",
    "source out",
    "+3 runs",
    "+10 runs",
    "framework unknown",
)


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    """So many runs of a shipped job, over all sources and batch sizes."""
    job, rng = load_job("opt-350m-2x4-a100"), np.random.default_rng(seed)
    layouts, model = enumerate_layouts(job).layouts, job.model
    at = rng.integers(0, len(layouts["pp"]), rows)
    runs = pd.DataFrame({name: values[at] for name, values in layouts.items()})
    runs["recompute"] = np.array(RECOMPUTE_NAMES)[runs["recompute"]]
    runs["source"] = rng.choice(list(SOURCES), rows)
    for i, name in enumerate(("gpu", "framework", "factor")):
        runs[name] = runs["source"].map({source: values[i] for source, values in SOURCES.items()})
    runs["global_batch_size"] = rng.choice(BATCHES, rows)
    runs = runs.assign(
        model=model.name, num_layers=model.num_layers, hidden_size=model.hidden_size, vocab_size=model.vocab_size,
        ffn_hidden_size=model.ffn_hidden_size, num_attention_heads=model.num_attention_heads, gated_mlp=False,
        seq_length=job.training.seq_length, dtype="bf16", attention="flash2", fused_norm=True, num_gpus=8,
        gpus_per_node=4, status="ok", group=runs["global_batch_size"].astype(str),
    )  # fmt: skip
    noise = np.exp(0.03 * rng.standard_normal(rows))
    return runs.assign(iteration_time_s=predict(runs)["predicted_iteration_time_s"] * runs["factor"] * noise)


def seconds(*arguments: str | Path) -> float:
    """Wall seconds of one command, its start included."""
    start = time.perf_counter()
    command = [sys.executable, "-c", "from jointopt.cli.main import main; main()", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def timings(runs: int, plans: int) -> None:
    """Print the seconds of the two commands that learn and that ask."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(table(runs), folder / "runs.csv")
        retrained = seconds("retrain", "--table", folder / "runs.csv", "--out", folder / "surrogate")
        print(f"retrain on {runs:,} runs: {retrained:.1f} s", flush=True)
        write_table(table(plans, seed=1), folder / "plans.csv")
        measured = folder / "measured.csv"
        write_table(table(30, seed=2), measured)
        out = folder / "predicted.csv"
        for what, flags in (
            ("physics alone", ("--surrogate", "none")),
            ("shipped surrogate", ()),
            ("shipped surrogate and 30 measured runs", ("--measured", measured)),
        ):
            took = seconds("predict", folder / "plans.csv", *flags, "--out", out)
            print(
                f"predict {plans:,} plans, {what}: {took:.1f} s, {1e6 * took / plans:.0f} µs each", flush=True
            )


def held_out() -> None:
    """Print what the card of the shipped surrogate says of runs that it had not seen."""
    surrogate = load_surrogate("default")
    assert surrogate is not None
    errors = pd.DataFrame(surrogate.card["error"]).T.reindex(columns=COLUMNS)
    print(f"\nshipped surrogate, built with: {surrogate.card['rebuild']}\nmedian errors on held-out runs:")
    print(errors.map(lambda v: "" if pd.isna(v) else f"{v:.1%}").to_string())


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    timings(*(given + [10_000, 100_000][len(given) :]))
    held_out()
