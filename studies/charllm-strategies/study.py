"""Figures 4 and 8 of CharLLM-PPT: strategies and options of four models on 32 H200 and 64 H100."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from jointopt.studies.evidence import NOMINAL, fits
from jointopt.studies.figure import BLUE, RED, publish
from jointopt.studies.statements.charllm_plans import CLUSTERS, STRATEGIES, harness_job, name, options


def rows() -> pd.DataFrame:
    """A row for each cluster, model, strategy and option of the harness."""
    found = []
    for cluster in CLUSTERS:
        for model, strategies in STRATEGIES[cluster].items():
            job = harness_job(model, cluster)
            for strategy in strategies:
                for option, one in options(model, strategy, NOMINAL, cluster).items():
                    rate = job.training.global_batch_size / one.iteration_time_s
                    found.append(
                        {
                            "cluster": cluster, "model": model, "strategy": name(strategy), "option": option,
                            "time s": one.iteration_time_s, "samples/s": rate, "energy kJ": one.energy_j / 1e3,
                            "samples/(s MJ)": rate / (one.energy_j / 1e6), "power W": one.avg_power_w,
                            "peak W": one.peak_power_w, "temperature C": one.temperature_c, "clock MHz": one.clock_mhz,
                            "SM active %": 100.0 * one.sm_active, "NVLink %": 100.0 * one.intra_node,
                            "network %": 100.0 * one.inter_node, "memory GiB": one.peak_memory_gib,
                            "fits": fits(job, one),
                        }
                    )  # fmt: skip
    return pd.DataFrame(found)


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw figure 4's quantities of the strategies on 32 H200 with recomputation, each in a panel of its own."""
    part = found[(found["cluster"] == "h200") & (found["option"] == "act")].reset_index(drop=True)
    part["clock GHz"] = part["clock MHz"] / 1e3
    figure, axes = plt.subplots(4, 1, figsize=(10.0, 8.6), sharex=True)
    panels = {
        "temperature C": "temperature (°C)", "power W": "power (W)", "clock GHz": "SM clock (GHz)",
        "samples/(s MJ)": "samples/(s MJ),\nlog axis",
    }  # fmt: skip
    for axis, (column, label) in zip(axes, panels.items(), strict=True):
        for model, one in part.groupby("model", sort=False):
            axis.plot(one.index, one[column], "o-", color=BLUE, label="average")
            if column == "power W":
                axis.plot(one.index, one["peak W"], "s--", color=RED, label="peak, once the limit acts")
            if axis is axes[0]:
                middle = one.index.to_numpy().mean()
                axis.text(middle, 1.03, str(model), ha="center", transform=axis.get_xaxis_transform())
            axis.axvline(one.index[-1] + 0.5, color="grey", lw=0.8)
        axis.set_ylabel(label)
    axes[1].legend(*(one[:2] for one in axes[1].get_legend_handles_labels()), loc="center", bbox_to_anchor=(0.75, 0.55))
    value = part["samples/(s MJ)"]
    axes[-1].set(yscale="log", ylim=(0.1 * value.min(), 4.0 * value.max()), xlim=(-0.5, len(part) - 0.5))
    for place, one in enumerate(value):
        axes[-1].annotate(f"{one:.3g}", (place, one), (0, -14), textcoords="offset points", ha="center")
    axes[-1].set_xticks(range(len(part)), part["strategy"], rotation=90)
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "option == 'act'")
