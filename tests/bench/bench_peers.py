"""llm-analysis on the recorded runs that the leaderboard judges: its error on every source, raw and after a few runs.

    pip install --no-deps llm-analysis fire
    .venv/bin/python tests/bench/bench_peers.py [--write] [--draws N] [DATA_FOLDER]

llm-analysis (github.com/cli99/llm-analysis, 0.2.2) counts the flops of a plan and divides by a share of the GPU's peak
that its user states. Its README names 0.5, "up to" which literature reports for training, and every run gets that. The
peak is the GPU's in our catalogue, of fp8 twice that. Bubbles, messages between nodes and updates of weights are not in
its time, and its feed-forward part is always 4 hidden sizes wide without a gate. Runs that it has no words for are left
out: a dtype of other than 16 or 8 bits, context parallelism, a batch that its micro-batches do not divide.

*3 runs*, *10 runs*: times one constant, the median of so many runs of each kind of GPU; rows and draws are those of
bench_leaderboard.py, which shows peers.csv beside this program. ``--write`` replaces that file.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from bench_accuracy import ROOT
from bench_few import drawn

from jointopt.core.schema import Floats
from jointopt.jobs.catalog.gpus import load_gpu

RECORDED, PUBLISHED = Path(__file__).with_name("peers.csv"), Path(__file__).with_name("peers.yaml")
FLOPS_SHARE = 0.5
BITS = {"bf16": 16, "fp16": 16, "fp8": 8}
COUNTS = (3, 10)


def times_s(rows: pd.DataFrame) -> Floats:
    """Iteration times (n,) by llm-analysis; NaN where it has no words for a run."""
    return np.array([_time_s(row) for row in rows.to_dict("records")])


def _time_s(row: dict[str, Any]) -> float:
    from llm_analysis.analysis import ActivationRecomputation, LLMAnalysis
    from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig

    bits = BITS.get(str(row.get("dtype")))
    if bits is None or (_number(row, "cp") or 1) > 1:
        return np.nan
    heads, hidden = _number(row, "num_attention_heads") or 1, _number(row, "hidden_size")
    model = ModelConfig(
        "run", _number(row, "num_layers"), heads, hidden, _number(row, "vocab_size") or 50257,
        max_seq_len=_number(row, "seq_length"), num_key_value_heads=_number(row, "num_query_groups") or heads,
    )  # fmt: skip
    peak = load_gpu(str(row["gpu"])).need("peak_16_bit_tflops", "time a peer's products")
    gpu = GPUConfig("gpu", 80, 2000, 300, 8e-6, peak)  # memory and links, which its training time does not read
    tp, pp, dp = (_number(row, name) or 1 for name in ("tp", "pp", "dp"))
    plan = ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=1)
    peer = LLMAnalysis(model, gpu, DtypeConfig("run", bits, bits, bits), plan, flops_efficiency=FLOPS_SHARE)
    micro, batch = _number(row, "micro_batch_size") or 1, _number(row, "global_batch_size")
    if batch % (micro * dp):
        return np.nan
    recompute = {"full": ActivationRecomputation.FULL, "selective": ActivationRecomputation.SELECTIVE}
    found = peer.training(
        batch_size_per_gpu=micro, global_batch_size=batch, seq_len=model.max_seq_len,
        activation_recomputation=recompute.get(str(row.get("recompute")), ActivationRecomputation.NONE),
    )  # fmt: skip
    return float(found["latency_per_iter"])


def _number(row: dict[str, Any], name: str) -> int:
    """A whole number of a row, 0 where it has none."""
    value = row.get(name)
    return 0 if value is None or value != value else int(value)


def scores(rows: pd.DataFrame, draws: int) -> dict[str, float]:
    """Errors on one source."""
    predicted = times_s(rows)
    known = np.isfinite(predicted)
    off = np.log(rows["iteration_time_s"].to_numpy(float)[known] / predicted[known])
    line = {"rows": float(known.sum()), "left out": float((~known).sum()), "raw": _error(off)}
    gpu = rows["gpu"][known].reset_index(drop=True)
    for count in COUNTS:
        errors = []
        for draw in range(draws):
            if (split := drawn(gpu, count, draw)) is None:
                break
            given, judged = split
            middle = pd.Series(off[given]).groupby(gpu.iloc[given].to_numpy()).median()
            errors.append(_error(off[judged] - middle[gpu.iloc[judged]].to_numpy()))
        line[f"{count} runs"] = float(np.mean(errors)) if errors else np.nan
    return line


def _error(off: Floats) -> float:
    """Median error of time, of logarithms of measured over predicted."""
    return float(np.median(np.abs(np.expm1(-off)))) if len(off) else np.nan


def published() -> str:
    """What others publish of themselves or were measured at, a line each."""
    lines = []
    for entry in yaml.safe_load(PUBLISHED.read_text(encoding="utf-8")):
        figures = {"raw": entry["raw"], "3 runs": entry.get("three"), "memory": entry.get("memory")}
        shown = {name: _shown(value) for name, value in figures.items()}
        profiled = "yes" if entry["profiled"] else "no"
        lines.append({"tool": entry["tool"], "profiled": profiled, **shown, "rows": entry["rows"], "by": entry["by"]})
    table = pd.DataFrame(lines)
    left = {name: f"{{:<{table[name].str.len().max()}}}".format for name in ("rows", "by")}
    return str(table.to_string(index=False, formatters=left))


def means() -> dict[str, float]:
    """Median errors of llm-analysis averaged over the sources that it can judge: raw, and after a few runs."""
    found = pd.read_csv(RECORDED, index_col="source")
    names = ["raw", *(f"{count} runs" for count in COUNTS)]
    return {str(name): float(value) for name, value in found[found["rows"] > 0][names].mean().items()}


def beside(ours: dict[str, pd.DataFrame]) -> str:
    """llm-analysis on every source beside ours under the profiles that ``ours`` has, as far as those were judged."""
    found = pd.read_csv(RECORDED, index_col="source")
    names = ["raw", *(f"{count} runs" for count in COUNTS)]
    table = found[["rows", "left out", *names]].rename(columns={name: f"peer {name}" for name in names})
    for profile, scored in ours.items():
        scored = scored.set_axis(scored.index.str.rstrip("*")).reindex(table.index)
        table = table.join(scored.reindex(columns=names).add_prefix(f"{profile} "))
    table.loc["mean"] = table[table["rows"] > 0].mean()
    whole = ["rows", "left out"]
    shown = {name: table[name].map(_shown if name not in whole else "{:.0f}".format) for name in table}
    return str(pd.DataFrame(shown).to_string(index_names=False))


def _shown(value: object) -> str:
    """A share, or a range of two, in percent; blank for none."""
    if value is None or value != value:
        return ""
    return "-".join(f"{100 * float(part):.1f}" for part in str(value).split("-")) + "%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "data")
    given = parser.parse_args()
    try:
        from llm_analysis.logger import logger
    except ImportError:
        sys.exit("llm-analysis is not installed: pip install --no-deps llm-analysis fire.")
    from bench_leaderboard import tables

    logger.setLevel("CRITICAL")
    found = pd.DataFrame({name: scores(rows, given.draws) for name, rows in tables(given.folder).items()}).T
    found = found.round(4).astype({"rows": int, "left out": int}).rename_axis("source").reset_index()
    print(f"llm-analysis {version('llm-analysis')}\n{found.to_string(index=False)}")
    print(found.drop(columns=["source", "rows", "left out"]).mean().round(4).to_string())
    if given.write:
        found.to_csv(RECORDED, index=False)


if __name__ == "__main__":
    main()
