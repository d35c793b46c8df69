"""Seconds of CPU and memory of commands on a store of many measurements, all of them related to the job.

``python tests/bench/bench_store.py [ROWS] [MODELS] [FILE]`` fills an SQLite file (by default 1,000,000 rows of 20
models on the job's GPU, in a temporary folder; an existing FILE is used as it is) and runs `explain`, `propose`,
`predict` of 1,000 rows, `store check` and `store export` on it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.runs.store import Store

JOB, PLAN = "llama-3-8b-1x8-h100", "dp=4 tp=2 pp=1 micro_batch_size=1 zero_stage=3"
BATCH = 20_000


def rows(count: int, models: int) -> Iterator[list[dict[str, Any]]]:
    """Batches of rows of that many models: the job's own, and others of the same shape with fewer layers."""
    job, chance = shipped_job(JOB), np.random.default_rng(0)
    layouts = enumerate_layouts(job).layouts
    fields = ("dp", "tp", "pp", "cp", "micro_batch_size", "zero_stage")
    plans = [{name: _plain(layouts[name][i]) for name in fields} for i in range(len(layouts["pp"]))]
    cluster, model = job.cluster, job.model
    shape = {
        name: _plain(getattr(model, name))
        for name in ("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size")
    }
    for start in range(0, count, BATCH):
        batch = []
        for i in range(start, min(start + BATCH, count)):
            layers = model.num_layers - i % models
            plan = plans[int(chance.integers(len(plans)))]
            batch.append({
                "source": "ours", "group": f"{layers} layers", "model": f"ours-{layers}", "num_layers": layers, **shape,
                "gated_mlp": True, "seq_length": job.training.seq_length, "dtype": "bf16",
                "global_batch_size": job.training.global_batch_size, "framework": job.training.framework.name,
                "gpu": cluster.gpu.id, "gpus_per_node": cluster.gpus_per_node, "num_gpus": cluster.num_gpus, **plan,
                "recompute": ("none", "selective", "full")[int(chance.integers(3))],
                "status": "ok", "iteration_time_s": 20 * float(chance.lognormal(0, 0.2)) * layers / model.num_layers,
            })  # fmt: skip
        yield batch


def write_rows(file: Path, count: int) -> None:
    """A table of so many rows, which `ingest` and `predict` read."""
    import pandas as pd

    pd.concat(pd.DataFrame(batch) for batch in rows(count, 20)).to_csv(file, index=False)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def fill(file: Path, count: int, models: int) -> None:
    """Make a database of so many rows."""
    import pandas as pd

    store = Store(f"sqlite:///{file}")
    for batch in rows(count, models):
        store.add(pd.DataFrame(batch), origin="bench")


# The peak that the kernel accounts to a child (ru_maxrss) may be its parent's at the start.
PROGRAM = """
from jointopt.cli.main import main
try:
    main()
finally:
    import sys
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""


def timed(*words: str) -> str:
    """Seconds of CPU and peak memory of one command, and what it says where it fails."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    *lines, peak = done.stderr.strip().splitlines()
    wrong = f", exit code {done.returncode}: {lines[-1]}" if done.returncode else ""
    seconds = f"{busy:.2f} s CPU, {time.monotonic() - started:.1f} s"
    return f"{words[0]}: {seconds}, {int(peak.split()[1]) // 1024} MB{wrong}"


def main() -> None:
    """Fill the file where it is missing, and print a line for each command."""
    count, models = (int(sys.argv[at]) if len(sys.argv) > at else usual for at, usual in ((1, 1_000_000), (2, 20)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(folder) / "runs.db"
        if not file.exists():
            fill(file, count, models)
        url = f"sqlite:///{file}"
        print(f"{Store(url).count():,} rows, {os.path.getsize(file) / 1e9:.1f} GB")
        print(timed("explain", JOB, "--plan", PLAN, "--storage", url, "--json"), flush=True)
        print(timed("propose", JOB, "--storage", url, "--json"), flush=True)
        write_rows(Path(folder) / "runs.csv", 1_000)
        out = ("--out", str(Path(folder) / "predicted.csv"))
        print(timed("predict", str(Path(folder) / "runs.csv"), *out, "--storage", url), flush=True)
        print(timed("store", "check", "--storage", url), flush=True)
        print(timed("store", "export", str(Path(folder) / "all.csv"), "--storage", url), flush=True)


if __name__ == "__main__":
    sys.exit(main())
