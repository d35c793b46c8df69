"""The rack-scale paper's sweeps over GPU counts and sizes as ordinary jobs: one block, forward and backward."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import jointopt
from jointopt.core.errors import JointOptError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job
from jointopt.studies.blocks import DOMAIN, GPU, THREADS, UNIT_FLOPS
from jointopt.studies.figure import plain_ticks, publish

HERE = Path(__file__).parent
COUNTS, SIZES = (4, 8, 16, 32), (64, 128, 256, 512, 1024)
BLOCKS = ("feed-forward", "attention")
PLANS = {
    "dp": "dp={n} zero_stage=0 overlap=none", "tp": "tp={n} sequence_parallel=true overlap=none",
    "pp+tp": "pp=2 tp={half} sequence_parallel=true micro_batch_size=1 overlap=none",
}  # fmt: skip
# pp+tp of the feed-forward: a stage holds whole layers, so two of half the width stand for the two products, with the
# same operations in each stage; sequences flow through one by one
TWO_STAGES = {"model.num_layers": 2, "model.ffn_hidden_size": 14336 // 2}
MODES = {"feed-forward": ("dp", "tp", "pp+tp"), "attention": ("dp", "tp")}


def rows() -> pd.DataFrame:
    """A row for each block, mode and GPU count, and for each size of 4 GPUs."""
    found = []
    for block in BLOCKS:
        for mode in MODES[block]:
            found += [_row("GPUs", block, mode, count, THREADS) for count in COUNTS]
            found += [_row("size", block, mode, COUNTS[0], threads) for threads in SIZES]
    return pd.DataFrame(found)


def job_of(block: str, gpus: int, threads: int, mode: str = "") -> Job:
    """The job file of a block on so many GPUs of so many compute units, in two stages for ``pp+tp``."""
    gpu = {"name": f"timeloop-{threads}", "like": GPU, "peak_tflops": {"bf16": UNIT_FLOPS * threads / 1e12}}
    sizes = {"cluster.nodes": max(gpus // DOMAIN, 1), "cluster.gpus_per_node": min(gpus, DOMAIN), "cluster.gpu": gpu}
    sizes |= TWO_STAGES if mode == "pp+tp" else {}
    return load_job(HERE / f"{block}.yaml", sizes)


def _row(sweep: str, block: str, mode: str, gpus: int, threads: int) -> dict[str, object]:
    row: dict[str, object] = {"sweep": sweep, "block": block, "mode": mode, "GPUs": gpus, "threads": threads}
    plan = PLANS[mode].format(n=gpus, half=gpus // 2)
    try:
        explained = jointopt.explain(job_of(block, gpus, threads, mode), plan, surrogate="none").to_dict()
    except JointOptError as error:
        return row | {"refused": str(error).split(": ")[-1]}
    time_s, energy_j, levels = (explained[name] for name in ("time_s", "energy_by_part_j", "energy_by_level_j"))
    return row | {
        "iteration s": explained["iteration_time_s"], "compute s": time_s["compute"],
        "comm s": sum(time_s.get(f"{kind}_comm", 0.0) for kind in ("tp", "dp", "pp")), "bubble s": time_s["bubble"],
        "memory read J": levels["memory_read"], "memory written J": levels["memory_written"],
        "memory J": energy_j["memory"], "links J": energy_j["communication"], "refused": "",
    }  # fmt: skip


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the iteration over counts and over sizes, a panel for each block."""
    figure, grid = plt.subplots(2, 2, figsize=(9.0, 6.4))
    panels = [(sweep, block) for sweep in ("GPUs", "size") for block in BLOCKS]
    for axis, (sweep, block) in zip(grid.flat, panels, strict=True):
        over = "GPUs" if sweep == "GPUs" else "threads"
        for mode in MODES[block]:
            part = found[(found["sweep"] == sweep) & (found["block"] == block) & (found["mode"] == mode)]
            axis.plot(part[over], part["iteration s"], label=mode)
        ticks = sorted(set(found.loc[found["sweep"] == sweep, over]))
        axis.set(xscale="log", yscale="log", xlabel=over, ylabel="forward and backward (s)", title=block)
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.xaxis.minorticks_off()
        plain_ticks(axis.yaxis)
        axis.legend()
    figure.savefig(file)


if __name__ == "__main__":
    publish(HERE, rows, draw)
