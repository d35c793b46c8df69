"""Figure 13 of CharLLM-PPT: micro-batch sizes 1 to 8 on 32 H200, with recomputation."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jointopt.studies.evidence import NOMINAL, fits
from jointopt.studies.figure import publish
from jointopt.studies.statements.charllm_plans import SIZES, STRATEGIES, harness_job, moments, name, swept


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
                        "before the limit W": moment.peak_w, "peak/average": one.peak_power_w / one.avg_power_w,
                        "temperature C": one.temperature_c, "hottest moment C": moment.peak_c,
                        "swing K": moment.swing_k,
                        "clock MHz": one.clock_mhz, "SM active %": 100.0 * one.sm_active,
                        "memory GiB": one.peak_memory_gib,
                        "fits": fits(job, one),
                    }
                )  # fmt: skip
    return pd.DataFrame(found)


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw temperature, power with its peak, and energy efficiency over micro-batch sizes, as figure 13."""
    figure, axes = plt.subplots(3, 1, figsize=(12.0, 7.2), dpi=75, sharex=True)
    groups = [part for _, part in found.groupby(["model", "strategy"], sort=False)]
    for part in groups:
        at = part.index.to_numpy()
        axes[0].plot(at, part["temperature C"], "o-", color="tab:blue")
        low = part["hottest moment C"] - part["swing K"]
        axes[0].fill_between(at, low, part["hottest moment C"], color="tab:blue", alpha=0.2)
        axes[1].plot(at, part["power W"], "o-", color="tab:blue")
        axes[1].plot(at, part["peak W"], "s-", color="tab:red", ms=3)
        axes[1].plot(at, part["before the limit W"], "^:", color="tab:red", ms=3)
        work = 1.0 / (part["time s"] * part["energy kJ"])
        axes[2].plot(at, work / work.max(), "x-", color="tab:green")
        for axis in axes:
            axis.axvline(at[-1] + 0.5, color="grey", lw=0.6)
        words = f"{part['model'].iloc[0].removeprefix('mixtral-')}\n{part['strategy'].iloc[0]}"
        axes[0].text(float(np.mean(at)), 1.04, words, ha="center", fontsize=7, transform=axes[0].get_xaxis_transform())
    for axis, label in zip(
        axes, ("temperature C", "power W, peak,\nbefore the limit", "throughput / energy,\nbest = 1"), strict=True
    ):
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[2].set_xticks(found.index, found["micro-batch"].astype(str), fontsize=7)
    axes[2].set_xlabel("micro-batch size")
    figure.tight_layout()
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "model in ['gpt3-175b', 'llama-3-70b']")
