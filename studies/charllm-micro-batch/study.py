"""Figure 13 of CharLLM-PPT: micro-batch sizes 1 to 8 on 32 H200, with recomputation."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from jointopt.studies.evidence import NOMINAL, fits
from jointopt.studies.figure import BLUE, RED, publish
from jointopt.studies.statements.charllm_plans import SIZES, STRATEGIES, harness_job, metered_w, moments, name, swept


def rows() -> pd.DataFrame:
    """A row for each model, strategy and micro-batch size that the batch of 128 can be cut into."""
    found = []
    for model, strategies in STRATEGIES["h200"].items():
        job = harness_job(model, "h200")
        for strategy in strategies:
            ranks = next((int(word[3:]) for word in strategy.split() if word.startswith("dp=")), 1)
            most = job.training.global_batch_size // ranks
            sizes = tuple(size for size in SIZES if size <= most)
            pairs = zip(swept(model, strategy, NOMINAL, sizes), moments(model, strategy, NOMINAL, sizes), strict=True)
            for size, (one, moment) in zip(sizes, pairs, strict=True):
                found.append(
                    {
                        "model": model, "strategy": name(strategy), "micro-batch": size, "time s": one.iteration_time_s,
                        "energy kJ": one.energy_j / 1e3, "power W": one.avg_power_w, "peak W": one.peak_power_w,
                        "before the limit W": moment.peak_w, "10 Hz peak W": metered_w(model, strategy, size),
                        "peak/average": one.peak_power_w / one.avg_power_w,
                        "temperature C": one.temperature_c, "hottest moment C": moment.peak_c,
                        "swing K": moment.swing_k,
                        "clock MHz": one.clock_mhz, "SM active %": 100.0 * one.sm_active,
                        "memory GiB": one.peak_memory_gib,
                        "fits": fits(job, one),
                    }
                )  # fmt: skip
    return pd.DataFrame(found)


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw figure 13: temperature, power and clock over micro-batch sizes, and efficiency over the model's best."""
    work = 1.0 / (found["time s"] * found["energy kJ"])
    found = found.assign(efficiency=work / work.groupby(found["model"]).transform("max"), ghz=found["clock MHz"] / 1e3)
    figure, axes = plt.subplots(4, 1, figsize=(11.0, 9.2), sharex=True)
    panels = {
        "temperature C": "temperature (°C)", "power W": "power (W)", "ghz": "SM clock (GHz)",
        "efficiency": "throughput/energy,\nmodel's best = 1",
    }  # fmt: skip
    peaks = {
        "temperature C": [("hottest moment C", "hottest moment", "s--")],
        "power W": [("peak W", "peak, once the limit acts", "s--"), ("before the limit W", "peak before", "^:")],
    }
    for axis, (column, label) in zip(axes, panels.items(), strict=True):
        for _, part in found.groupby(["model", "strategy"], sort=False):
            axis.plot(part.index, part[column], "o-", color=BLUE, label="average")
            for peak, words, style in peaks.get(column, []):
                axis.plot(part.index, part[peak], style, color=RED, label=words)
            axis.axvline(part.index[-1] + 0.5, color="grey", lw=0.4)
        for _, part in found.groupby("model", sort=False):
            axis.axvline(part.index[-1] + 0.5, color="black", lw=1.2)
        axis.set(ylabel=label, xlim=(-0.5, len(found) - 0.5))
        axis.grid(axis="x", visible=False)
    for axis, count in ((axes[0], 2), (axes[1], 3)):
        axis.legend(*(one[:count] for one in axis.get_legend_handles_labels()), loc="lower right", ncol=count)
    axes[1].set_ylim(bottom=0.0)
    for (_, strategy), part in found.groupby(["model", "strategy"], sort=False):
        words = str(strategy).replace("EP", "E").replace("TP", "T").replace("PP", "P")
        axes[0].text(
            part.index.to_numpy().mean(),
            1.03,
            words.replace("-", "\n", 1),
            ha="center",
            fontsize=8,
            transform=axes[0].get_xaxis_transform(),
        )
    for model, part in found.groupby("model", sort=False):
        middle = part.index.to_numpy().mean()
        axes[0].text(middle, 1.27, str(model), ha="center", transform=axes[0].get_xaxis_transform())
    axes[-1].set_xticks(found.index, found["micro-batch"].astype(str))
    axes[-1].set_xlabel("micro-batch size")
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "model in ['gpt3-175b', 'llama-3-70b']")
