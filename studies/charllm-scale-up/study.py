"""Scale-up against scale-out of CharLLM-PPT: 32 H200 beside 64 H100 as the network between nodes slows down."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from jointopt.studies.evidence import NOMINAL
from jointopt.studies.figure import plain_ticks, publish
from jointopt.studies.statements.charllm_plans import MODELS, on_cluster

LINKS = (50.0, 25.0, 12.5, 6.25, 3.125, 1.6, 0.8, 0.4)  # GB/s per GPU


def rows() -> pd.DataFrame:
    """A row for each model and link: the fastest strategies, the slowest, the least energy."""
    found = []
    for model in MODELS:
        for link in LINKS:
            few, many = (on_cluster(model, cluster, link, NOMINAL) for cluster in ("h200", "h100"))
            found.append(
                {
                    "model": model, "link GB/s": link, "32 H200 s": few[0], "64 H100 s": many[0],
                    "throughput H100/H200": few[0] / many[0], "per GPU H200/H100": 2.0 * many[0] / few[0],
                    "energy H100/H200": many[2] / few[2], "slowest H100 / fastest H200": many[1] / few[0],
                }
            )  # fmt: skip
    return pd.DataFrame(found)


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw what 64 H100 gain over 32 H200 in throughput and lose in energy."""
    figure, axes = plt.subplots(1, 3, figsize=(11.0, 3.6))
    panels = {
        "throughput H100/H200": "throughput, 64 H100 over 32 H200", "energy H100/H200": "energy, 64 H100 over 32 H200",
        "slowest H100 / fastest H200": "time, slowest on H100\nover fastest on H200",
    }  # fmt: skip
    for axis, (column, label) in zip(axes, panels.items(), strict=True):
        for model, part in found.groupby("model", sort=False):
            axis.plot(part["link GB/s"], part[column], label=str(model))
        axis.axhline(1.0, color="black", lw=0.8)
        axis.set(xscale="log", xlabel="link between nodes (GB/s per GPU)", ylabel=label)
        plain_ticks(axis.xaxis)
    axes[2].set_yscale("log")
    plain_ticks(axes[2].yaxis)
    axes[2].legend()
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "`link GB/s` in [12.5, 1.6, 0.8]")
