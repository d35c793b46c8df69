"""The best recorded MFU of each GPU, precision and kind of model, over recorded runs.

    python tests/bench/bench_best_mfu.py [--write] [DATA_FOLDER]

Prints the table; with ``--write`` also replaces jointopt/jobs/catalog/best_mfu.yaml below its head. The default folder
is ../shared/data beside the repository; the sample of tests/data is read too. MFU is the one that plans are shown with
(`jointopt.physics.throughput`). Left out: rows whose precision or shape is assumed, MFU above 1, outliers that the
folder's README names, release tests with deterministic kernels, and kinds of fewer than `FEWEST_ROWS` rows or of which
nobody tuned a run: fewer than `FEWEST_MODELS` models, none of them a vendor's recipe or a submission.
"""

from __future__ import annotations

import datetime
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import yaml

from jointopt.jobs.catalog.recipes import model_kind
from jointopt.physics.throughput import throughput
from jointopt.runs.workloads import Workload, workloads

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "jointopt" / "jobs" / "catalog" / "best_mfu.yaml"
FEWEST_ROWS, FEWEST_MODELS = 2, 3
DETERMINISTIC = ("mcore_ci", "mcore_tiny")
TUNED = ("vendor", "submission")
GUESSED = {"dtype", "num_attention_heads", "ffn_hidden_size", "vocab_size", "gated_mlp", "num_query_groups"}


def outliers(rows: pd.DataFrame) -> pd.Series:
    """Release tests, and vtrain's GPT-3.6B at dp 8, tp 8, micro-batch 64, as the README of the recorded runs says."""
    of_tests = rows.source.isin(DETERMINISTIC)
    return of_tests | ((rows.model == "GPT-3.6B") & (rows.tp == 8) & (rows.micro_batch_size == 64))


def records(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    rows = pd.read_csv(path, low_memory=False)
    rows = rows[(rows.status == "ok") & ~outliers(rows)].reset_index(drop=True)
    for work in workloads(rows)[0] if len(rows) else ():
        yield from of_work(work, rows)


def of_work(work: Workload, rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    job, training = work.job, work.job.training
    time_s = rows.iteration_time_s.to_numpy(float)[work.rows]
    mfu = throughput(job, work.plans, time_s, np.full(len(time_s), np.nan))["mfu"]
    for at, row in enumerate(work.rows.tolist()):
        if GUESSED & set(work.assumed[at].split()) or not 0.0 < mfu[at] <= 1.0:
            continue
        yield {
            "key": (job.cluster.gpu.id, training.precision, model_kind(job)), "mfu": float(mfu[at]),
            "model": job.model.name, "gpus": job.cluster.num_gpus, "source": str(rows.source[row]),
            "framework": str(rows.framework[row]),
            "tuned": (training.recipe_class or training.framework.recipe_class) in TUNED,
        }  # fmt: skip


def best(found: pd.DataFrame) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for (gpu, precision, kind), rows in found.groupby(["gpu", "precision", "kind"]):
        if len(rows) >= FEWEST_ROWS and (rows.model.nunique() >= FEWEST_MODELS or rows.tuned.any()):
            top = rows.loc[rows.mfu.idxmax()]
            where = f"{top.model} on {top.gpus:,} GPU{'' if top.gpus == 1 else 's'}, {top.framework}"
            entry = {"mfu": round(float(top.mfu), 3), "run": where, "source": top.source, "rows": len(rows)}
            table.setdefault(gpu, {}).setdefault(precision, {})[kind] = entry
    return table


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    folder = pathlib.Path(words[0]) if words else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        sys.exit(f"No recorded runs in {folder}: give the folder that holds layouts_*.csv.")
    paths = [*sorted(folder.glob("layouts_*.csv")), ROOT / "tests" / "data" / "recorded_runs.csv"]
    found = pd.DataFrame([one for path in paths for one in records(path)])
    found = found.drop_duplicates()  # the sample is of rows of the folder
    found[["gpu", "precision", "kind"]] = found.pop("key").to_list()
    text = yaml.safe_dump(best(found), sort_keys=True, width=1000)
    print(text)
    if "--write" in sys.argv:
        head = [line for line in TABLE.read_text().splitlines() if line.startswith("#")]
        dated = f"date: {datetime.date.today().isoformat()}\n"
        TABLE.write_text(
            "\n".join(head) + "\n" + dated + yaml.safe_dump({"best": best(found)}, sort_keys=True, width=1000)
        )


if __name__ == "__main__":
    main()
