"""Figures 2 to 13 of the rack-scale paper: one block over GPU counts, GPU sizes and modes, energy by level."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from jointopt.studies.blocks import BLOCKS, MODES, Priced
from jointopt.studies.figure import BLUE, GREEN, RED, plain_ticks, publish
from jointopt.studies.statements.rack_scale import COUNTS, PIPELINES, THREADS, block

STYLES = {"dp": (BLUE, "o"), "tp": (RED, "s"), "pp+tp": (GREEN, "^")}
# Power at rest, that of an H100 beside far fewer compute units, is in the table alone
LEVELS = ("products J", "reads J", "writes J", "links forward J", "links backward J")
GPUS = {("attention", "pp+tp"): 6}  # of the sweep of sizes: the six products need as many


def rows() -> pd.DataFrame:
    """A row for each block, mode, GPU count and size."""
    found = []
    for kind in BLOCKS:
        for mode in MODES:
            counts = PIPELINES if (kind, mode) in GPUS else COUNTS
            found += [_row("GPUs", kind, mode, count, 1024) for count in counts]
            found += [_row("size", kind, mode, GPUS.get((kind, mode), 4), threads) for threads in THREADS]
    return pd.DataFrame(found)


def _row(sweep: str, kind: str, mode: str, gpus: int, threads: int) -> dict[str, object]:
    one: Priced = block(kind, mode, gpus, threads)
    return {
        "sweep": sweep, "block": kind, "mode": mode, "GPUs": gpus, "threads": threads,
        "compute ms": 1e3 * one.compute_s, "forward comm ms": 1e3 * one.forward_comm_s,
        "backward comm ms": 1e3 * one.backward_comm_s,
        "products J": one.compute_j, "reads J": one.read_j, "writes J": one.written_j, "at rest J": one.at_rest_j,
        "links forward J": one.forward_link_j, "links backward J": one.backward_link_j,
    }  # fmt: skip


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw latency over counts (2 to 5), over sizes (7, 8), energy by level (6) and of the links (10)."""
    figure, axes = plt.subplots(2, 3, figsize=(11.0, 7.2))
    for row, kind in enumerate(BLOCKS):
        part = found[found["block"] == kind]
        _lines(axes[row, 0], part[part["sweep"] == "GPUs"], "GPUs", f"{kind}: latency over GPUs")
        _lines(axes[row, 1], part[part["sweep"] == "size"], "threads", f"{kind}: latency over GPU size")
    _levels(axes[0, 2], found)
    _links(axes[1, 2], found)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncol=6)
    figure.savefig(file)


def _lines(axis: Axes, part: pd.DataFrame, over: str, title: str) -> None:
    for mode, (colour, marker) in STYLES.items():
        one = part[part["mode"] == mode]
        axis.plot(one[over], one["compute ms"], "-", color=colour, marker=marker, label=f"{mode}, compute")
        linked = one["compute ms"] + one["forward comm ms"]
        axis.plot(one[over], linked, ":", color=colour, marker=marker, mfc="white", label=f"{mode}, with links")
    axis.set(xscale="log", yscale="log", xlabel=over, ylabel="forward pass (ms)", title=title)
    axis.set_xticks(sorted(set(part[over])), [str(value) for value in sorted(set(part[over]))])
    axis.xaxis.minorticks_off()
    plain_ticks(axis.yaxis)


def _levels(axis: Axes, found: pd.DataFrame) -> None:
    chosen = found[(found["sweep"] == "GPUs") & (found["block"] == "feed-forward") & (found["GPUs"] == 16)]
    below = pd.Series(0.0, index=chosen.index)
    for level in LEVELS:
        axis.bar(chosen["mode"], chosen[level], bottom=below, label=level.removesuffix(" J"))
        below = below + chosen[level]
    axis.set(ylabel="energy of a pass (J)", title="feed-forward, 16 GPUs: energy by level")
    axis.set_ylim(top=1.45 * float(below.max()))
    axis.legend(loc="upper center", ncol=2)


def _links(axis: Axes, found: pd.DataFrame) -> None:
    part = found[(found["sweep"] == "GPUs") & (found["block"] == "feed-forward")]
    for mode, (colour, marker) in STYLES.items():
        one = part[part["mode"] == mode]
        axis.plot(one["GPUs"], one["links forward J"], "-", color=colour, marker=marker, label=f"{mode}, forward")
        axis.plot(
            one["GPUs"],
            one["links backward J"],
            ":",
            color=colour,
            marker=marker,
            mfc="white",
            label=f"{mode}, backward",
        )
    axis.set(xlabel="GPUs", ylabel="energy of the links (J)", title="feed-forward: energy of communication")
    axis.legend()


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "sweep == 'GPUs' and GPUs in [4, 12, 16, 24, 32]")
