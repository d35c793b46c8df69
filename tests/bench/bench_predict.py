"""Seconds to predict a million plans: cells, physics, shipped and own surrogate, files, the whole command.

    .venv/bin/python tests/bench/bench_predict.py [PLANS]

Plans are all feasible layouts of shipped jobs at clocks of their GPUs, no two alike, in random order; in one line each
is there `REPEATS` times on average, as in tables of measured runs. The own surrogate is learned from 4,000 of them,
which take the physics' time, more by the degree of tensor parallelism, and 2 % noise. A table of many jobs has about 34
plans of each, of ten models.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from jointopt.core.schema import RECOMPUTE_NAMES, SCHEDULE
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.runs.table import read_table, write_table
from jointopt.runs.workloads import workloads
from jointopt.studies.learning import truths
from jointopt.surrogate.files import load_surrogate
from jointopt.workflows.predict import predict
from jointopt.workflows.retrain import retrain

CODES = ("etp", "recompute_modules", "recompute_num_layers", "offload", "overlap")
EACH = 1000
REPEATS = 50
OF_MANY_JOBS = 4000
JOBS = ("llama-3-8b-1x8-h100", "llama-3-70b-4x8-h200", "opt-350m-2x4-a100", "opt-350m-8x4-gh200")


def plans(name: str) -> pd.DataFrame:
    """Every layout of a shipped job at every clock of its grid, as a measurement table has it."""
    job = load_job(name)
    model, training, cluster = job.model, job.training, job.cluster
    layouts, clocks = enumerate_layouts(job).layouts, np.asarray(job.search.clock_mhz)
    table = pd.DataFrame({k: np.repeat(v, len(clocks)) for k, v in layouts.items()})
    table = table.drop(columns=[name for name in CODES if not table[name].any()])  # 0 is a blank cell
    for name, words in (("recompute", RECOMPUTE_NAMES), ("schedule", SCHEDULE.names)):
        table[name] = np.array(words)[table[name]]
    table["clock_mhz"] = np.tile(clocks, len(layouts["pp"]))
    return table.assign(
        source="bench", group=name, model=model.name, num_layers=model.num_layers, hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size, num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups, gated_mlp=model.gated_mlp, vocab_size=model.vocab_size,
        seq_length=training.seq_length, global_batch_size=training.global_batch_size, dtype=training.dtype,
        attention=training.attention, fused_norm=training.fused_norm, framework=training.framework.name,
        gpu=cluster.gpu.id, gpus_per_node=cluster.gpus_per_node, num_gpus=cluster.num_gpus,
    )  # fmt: skip


def table(rows: int) -> pd.DataFrame:
    """So many distinct plans, drawn from all jobs."""
    everything = pd.concat([plans(name) for name in JOBS], ignore_index=True)
    return everything.sample(rows, random_state=0, ignore_index=True)


def own_surrogate(queried: pd.DataFrame, folder: Path) -> Path:
    """A surrogate of the clusters of these plans, each with about a thousand made-up runs."""
    runs = queried.head(4 * EACH)
    noise = np.exp(0.02 * np.random.default_rng(0).standard_normal(len(runs)))
    time_s = predict(runs)["predicted_iteration_time_s"] * (1.0 + 0.05 * np.log2(runs["tp"])) * noise
    write_table(runs.assign(status="ok", iteration_time_s=time_s.to_numpy()), folder / "runs.csv")
    retrain(tables=[folder / "runs.csv"], out=folder / "own")
    return folder / "own"


def timed(what: str, act: Callable[[], object], rows: int) -> None:
    """Print the seconds that ``act`` takes, and those of all cores together, which other programs disturb less."""
    start, busy = time.perf_counter(), time.process_time()
    act()
    took, busy = time.perf_counter() - start, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"{what}: {took:.1f} s, CPU {busy:.1f} s, {1e6 * busy / rows:.1f} µs a plan, peak {peak:.1f} GiB", flush=True)


def main(rows: int) -> None:
    queried = table(rows)
    load_surrogate("default")
    timed("cells read and grouped into jobs", lambda: workloads(queried), rows)
    timed("physics alone, in memory", lambda: predict(queried), rows)
    timed("shipped surrogate, in memory", lambda: predict(queried, "default"), rows)
    with tempfile.TemporaryDirectory() as folder:
        own = str(own_surrogate(queried, Path(folder)))
        timed("own surrogate, in memory", lambda: predict(queried, own), rows)
        again = queried.head(max(rows // REPEATS, 1)).sample(rows, replace=True, random_state=0, ignore_index=True)
        timed(f"own surrogate, each plan {REPEATS} times", lambda: predict(again, own), rows)
        many_jobs(own)
        given, out = Path(folder) / "plans.csv", Path(folder) / "predicted.csv"
        write_table(queried, given)
        timed("reading the file", lambda: read_table(given), rows)
        predicted = predict(queried, "default")
        timed("writing the file", lambda: write_table(predicted, out), rows)
        command(given, out)


def many_jobs(own: str) -> None:
    """Print what a table of many jobs costs, of which each has few plans."""
    queried = truths.table("C", OF_MANY_JOBS).assign(source="bench")
    jobs = len(workloads(queried)[0])
    for what, surrogate in (("physics", "none"), ("shipped surrogate", "default"), ("own surrogate", own)):
        timed(f"{jobs} jobs of {len(queried):,} plans, {what}", lambda by=surrogate: predict(queried, by), len(queried))


def command(given: Path, out: Path) -> None:
    """Print the seconds and the memory of ``jointopt predict`` on that file, in a process of its own."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "jointopt", "predict", given, "--out", out], check=True)
    took, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024**2
    print(f"the whole command: {took:.1f} s, CPU {busy:.1f} s, peak {peak:.1f} GiB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000, help="plans of the table")
    main(parser.parse_args().rows)
