"""How well the physics knows, without a fit, what share of a stage's time follows the clock: predicted and measured.

    OMP_NUM_THREADS=1 python tests/bench/bench_clock_share.py [DATA_FOLDER]

Stages of A100-SXM4, A100-PCIe and A40 whose time was measured at many clocks (Perseus). The share is the slope of the
logarithm of time over that of 1 / clock, of clocks up to 0.94 (A100-SXM4) and 0.80 of the highest, where no limit holds
the GPU. Inner stages alone, as the first and the last hold an embedding; passes whose clock hardly moves are left out.
Published with the artifact are neither sequence lengths nor kernels: unfused attention of 2022, all layers computed
anew in pipelines (their backward pass takes 2.3 to 2.9 times the forward one), and the lengths whose times are nearest.
What the shares are off by is `surrogate.intervals.CLOCK_SHARE`, on GPUs whose clock response was not measured.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
PASSES = ("forward", "backward")
INNER = 1  # of pipelines; profiles of A100-SXM4 come without a stage


class Stage(NamedTuple):
    """Shape of a recorded model, its plan, and the clocks up to which no limit holds the GPU."""

    gpu: str
    hidden: int
    layers: int
    heads: int
    seq: int
    micro_batch: int
    tp: int
    pp: int
    recompute: str = "full"
    free: float = 0.80


STAGES = {
    "gpt3-175b": Stage("a100-sxm4-80gb", 12288, 96, 96, 2048, 1, 8, 8, "none", 0.94),
    "bloom": Stage("a100-sxm4-80gb", 14336, 72, 112, 2048, 1, 8, 8, "none", 0.94),
    "gpt3-xl": Stage("a100-pcie-80gb", 2048, 24, 16, 2048, 8, 1, 4),
    "bert-huge-uncased": Stage("a40", 1920, 24, 16, 512, 8, 1, 8),
    "bloom-3b": Stage("a40", 2560, 32, 32, 2048, 4, 1, 8),
    "gpt3-2.7b": Stage("a40", 2560, 32, 32, 2048, 4, 1, 8),
}


def predicted(s: Stage, x: float) -> list[float]:
    """Share of the forward and of the backward pass of an inner stage at ``x`` of the highest clock."""
    shape = {"num_layers": s.layers, "hidden_size": s.hidden, "num_attention_heads": s.heads, "name": "recorded",
             "ffn_hidden_size": 4 * s.hidden, "vocab_size": 51200, "gated_mlp": False}  # fmt: skip
    gpus = s.tp * s.pp
    job = parse_job(
        {"name": "recorded", "model": shape,
         "cluster": {"gpu": s.gpu, "nodes": -(-gpus // 8), "gpus_per_node": min(8, gpus)},
         "training": {"seq_length": s.seq, "global_batch_size": 16 * s.micro_batch, "dtype": "fp16",
                      "framework": "megatron-lm", "attention": "unfused"}},
        "recorded", ROOT,
    )  # fmt: skip
    plan = {"dp": 1, "tp": s.tp, "pp": s.pp, "micro_batch_size": s.micro_batch, "recompute": s.recompute}
    costs = CostModel(job, parse_plan(plan, job).layouts).groups[0]
    parts = ((costs.forward_sm_s, costs.forward_memory_s), (costs.backward_sm_s, costs.backward_memory_s))
    return [float(sm[0, INNER] / (sm[0, INNER] + x * memory[0, INNER])) for sm, memory in parts]


def slope(x: pd.Series, time_s: pd.Series) -> float:
    """Measured share; NaN of clocks that hardly move."""
    return float(-np.polyfit(np.log(x), np.log(time_s), 1)[0]) if len(x) > 5 and x.std() > 0.01 else float("nan")


def of_profiles(data: pathlib.Path, model: str, s: Stage) -> list[float]:
    """Measured shares of stage profiles, of which the table has two per model, in no order."""
    rows = pd.read_csv(data / "clock_stage_profiles.csv")
    rows = rows[(rows.model == model) & (rows.clock_mhz <= s.free * 1410)]
    rows["stage"] = rows.groupby(["instruction", "clock_mhz"]).time_s.rank(method="first")
    mine = [rows[(rows.instruction == which) & (rows.stage == 1)] for which in PASSES]
    return [slope(g.clock_mhz / 1410, g.time_s) for g in mine]


def of_pipelines(data: pathlib.Path, model: str, s: Stage) -> list[float]:
    """Measured shares of the inner stages of a pipeline: their median."""
    rows = pd.read_csv(data / "energy_pipeline_ranks.csv")
    top = {"a40": 1740.0, "a100-pcie-80gb": 1410.0}[s.gpu]
    rows = rows[(rows.model == model) & (rows.gpu == s.gpu) & (rows.method == "perseus")]
    inner = [g for stage, g in rows.groupby("stage") if 0 < stage < s.pp - 1]
    return [float(np.nanmedian([_below(g, which, top, s.free) for g in inner])) for which in PASSES]


def _below(rows: pd.DataFrame, which: str, top: float, free: float) -> float:
    x = rows[f"{which}_clock_mhz_mean"] / top
    return slope(x[x < free], rows[f"{which}_time_sum_s"][x < free])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data",
        nargs="?",
        type=pathlib.Path,
        default=ROOT.parent / "shared" / "data",
        help="folder of the recorded runs",
    )
    data = parser.parse_args().data
    off = []
    for model, s in STAGES.items():
        measured = (of_profiles if s.gpu == "a100-sxm4-80gb" else of_pipelines)(data, model, s)
        for which, known, share in zip(PASSES, measured, predicted(s, 0.78), strict=True):
            off.append(share - known)
            print(f"{s.gpu:15} {model:18} {which:9} measured {known:.2f} predicted {share:.2f} off {off[-1]:+.2f}")
    size = np.abs(np.array(off)[~np.isnan(off)])
    median, most = np.quantile(size, (0.5, 0.9))
    print(f"{len(size)} passes: off by {median:.2f} in the median, {most:.2f} in nine of ten, {size.max():.2f} at most")


if __name__ == "__main__":
    main()
