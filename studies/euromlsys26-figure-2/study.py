"""Figure 2 of EuroMLSys'26: OLMoE-1B-7B on 32 GH200 under more and more expert parallelism, at three batches."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jointopt.jobs.jobfile import shipped_job
from jointopt.studies.evidence import shown
from jointopt.studies.figure import publish
from jointopt.studies.statements.euromlsys26_plans import EXPERT_LAYOUTS, over_batches

DEGREES = (1, 2, 4)


def rows() -> pd.DataFrame:
    """A row for each batch, layout and expert-parallel degree."""
    plans = {(layout, ep): f"{layout} ep={ep} micro_batch_size=1" for layout in EXPERT_LAYOUTS for ep in DEGREES}
    return pd.DataFrame([
        {
            "batch": batch, "layout": layout, "ep": ep, **shown(one),
            "network %": 100.0 * one.inter_node,
        }
        for batch, (layout, ep), one in over_batches(shipped_job("olmoe-1b-7b-8x4-gh200"), plans)
    ])  # fmt: skip


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the batch of 1,024 as the paper does: energy and time, then power and utilization."""
    part = found[found["batch"] == 1024]
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.8), dpi=90)
    for axis, (left, right) in zip(axes, (("energy kJ", "time s"), ("power W", "SM active %")), strict=True):
        other = axis.twinx()
        for place, layout in enumerate(EXPERT_LAYOUTS):
            one, at = part[part["layout"] == layout], place + np.array([-0.25, 0.0, 0.25])
            axis.bar(at, one[left], 0.22, color=["#9ecae1", "#4292c6", "#084594"])
            other.plot(at, one[right], "o-", color="tab:red", ms=4)
            if right == "SM active %":
                other.plot(at, one["GPU utilization %"], "x:", color="tab:red", ms=4)
        axis.set_xticks(
            range(len(EXPERT_LAYOUTS)), [name.replace("=", "") for name in EXPERT_LAYOUTS], rotation=20, fontsize=7
        )
        axis.set(ylabel=left)
        dotted = "; dotted: GPU utilization %" if right == "SM active %" else ""
        other.set_ylabel(right + dotted, color="tab:red")
        other.set_ylim(bottom=0)
    axes[0].set_title("ep 1, 2, 4 (light to dark)", fontsize=9)
    figure.tight_layout()
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "batch == 1024")
