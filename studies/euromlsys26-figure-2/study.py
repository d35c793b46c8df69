"""Figure 2 of EuroMLSys'26: OLMoE-1B-7B on 32 GH200 under more and more expert parallelism, at three batches."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jointopt.jobs.jobfile import shipped_job
from jointopt.studies.evidence import shown
from jointopt.studies.figure import RED, publish
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
    figure, axes = plt.subplots(1, 2, figsize=(11.0, 4.4))
    for axis, (left, right) in zip(axes, (("energy kJ", "time s"), ("power W", "SM active %")), strict=True):
        other = axis.twinx()
        for place, layout in enumerate(EXPERT_LAYOUTS):
            one, at = part[part["layout"] == layout], place + np.array([-0.25, 0.0, 0.25])
            axis.bar(
                at,
                one[left],
                0.22,
                color=["#c6dbef", "#6baed6", "#2171b5"],
                label="ep 1, 2, 4, light to dark" if not place else None,
            )
            other.plot(at, one[right], "o-", color=RED, label=None if place else right)
            if right == "SM active %":
                other.plot(at, one["GPU utilization %"], "s:", color=RED, label=None if place else "GPU utilization %")
        axis.set_xticks(range(len(EXPERT_LAYOUTS)), [name.replace("=", "") for name in EXPERT_LAYOUTS], rotation=20)
        axis.set(ylabel={"energy kJ": "energy per iteration (kJ)"}.get(left, "average power per GPU (W)"))
        other.set_ylabel("iteration time (s)" if right == "time s" else "by two counters (%)", color=RED)
        other.set_ylim(0.0, 18.0 if right == "time s" else 130.0)
        axis.set_ylim(top=1.25 * part[left].max())
        other.grid(visible=False)
        axis.legend(loc="upper left")
        other.legend(loc="upper right")
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "batch == 1024")
