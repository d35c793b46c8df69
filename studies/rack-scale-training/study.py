"""Whole trainings over GPU counts, modes and links, beside the blocks of the rack-scale paper."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from jointopt.studies.evidence import shown
from jointopt.studies.figure import plain_ticks, publish
from jointopt.studies.statements.rack_training import COUNTS, LINKS, MODES, link_j, plan, trained


def rows() -> pd.DataFrame:
    """A row for each GPU count and mode at 50 GB/s, and for each link and mode on 16 GPUs."""
    points = [("GPUs", gpus, 50.0) for gpus in COUNTS] + [("link", 16, link) for link in LINKS]
    return pd.DataFrame([_row(sweep, mode, gpus, link) for sweep, gpus, link in points for mode in MODES])


def _row(sweep: str, mode: str, gpus: int, link: float) -> dict[str, object]:
    one = trained(mode, gpus, link)
    return {
        "sweep": sweep, "GPUs": gpus, "link GB/s": link, "mode": mode, "plan": plan(mode, gpus).split(" zero")[0],
        **shown(one), "NVLink %": 100.0 * one.intra_node, "network %": 100.0 * one.inter_node,
        "links J": link_j(one, gpus),
    }  # fmt: skip


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw time and energy over GPUs, time over the link, and the energy of links."""
    figure, grid = plt.subplots(2, 2, figsize=(9.0, 6.4))
    counts, links = (found[found["sweep"] == sweep] for sweep in ("GPUs", "link"))
    panels = (
        (counts, "GPUs", "time s"),
        (counts, "GPUs", "energy kJ"),
        (links, "link GB/s", "time s"),
        (counts, "GPUs", "links J"),
    )
    for axis, (part, over, what) in zip(grid.flat, panels, strict=True):
        for mode, one in part.groupby("mode", sort=False):
            axis.plot(one[over], one[what], label=str(mode))
        quantity, unit = what.rsplit(" ", 1)
        axis.set(xscale="log", yscale="log", xlabel=over, ylabel=f"{quantity} ({unit})")
        axis.set_xticks(sorted(set(part[over])), [f"{value:g}" for value in sorted(set(part[over]))])
        axis.xaxis.minorticks_off()
        plain_ticks(axis.yaxis)
    grid[0, 0].legend()
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw)
