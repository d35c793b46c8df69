"""Figure 1 of EuroMLSys'26: energy, time, power and utilization of OPT-350M on 32 GH200, at three batches."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jointopt.jobs.jobfile import shipped_job
from jointopt.studies.evidence import shown
from jointopt.studies.figure import RED, SKY, publish
from jointopt.studies.statements.euromlsys26_plans import LAYOUTS, SIZES, over_batches


def rows() -> pd.DataFrame:
    """A row for each batch, layout and micro-batch size."""
    plans = {(layout, size): f"{layout} micro_batch_size={size}" for layout in LAYOUTS for size in SIZES}
    return pd.DataFrame([
        {"batch": batch, "layout": layout, "micro-batch": size, **shown(one)}
        for batch, (layout, size), one in over_batches(shipped_job("opt-350m-8x4-gh200"), plans)
    ])  # fmt: skip


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the batch of 1,024 as the paper does: energy and time above, power and two counters of utilization below."""
    part = found[found["batch"] == 1024]
    figure, axes = plt.subplots(2, 1, figsize=(9.6, 7.0), sharex=True)
    counters = {"SM active %": "o-", "GPU utilization %": "s:"}
    sides = (
        ("energy kJ", "energy per iteration (kJ)", {"time s": "o-"}, "iteration time (s)"),
        ("power W", "average power per GPU (W)", counters, "SM active, GPU utilization (%)"),
    )
    for axis, (left, label, right, other_label) in zip(axes, sides, strict=True):
        place = np.arange(len(part))
        axis.bar(place, part[left], color=SKY)
        axis.set_ylabel(label)
        other = axis.twinx()
        for column, style in right.items():
            other.plot(place, part[column], style, color=RED, label=column)
        other.set_ylabel(other_label, color=RED)
        other.grid(visible=False)
        other.set_ylim(bottom=0)
    other.set_ylim(top=125)
    other.legend(loc="upper right", ncol=2)
    names = [
        f"{layout.replace('=', '').replace(' ', '-')} mbs{size}"
        for layout, size in zip(part["layout"], part["micro-batch"], strict=True)
    ]
    axes[0].set_ylim(bottom=0)
    axes[1].axhline(96.0, color="black", ls="--", lw=1, label="at rest, 96 W (the paper's)")
    axes[1].set_ylim(top=560)
    axes[1].legend(loc="upper left")
    axes[1].set_xticks(range(len(part)), names, rotation=90)
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "batch == 1024")
