"""Figure 5 of EuroMLSys'26: energy and time of four layouts as clocks fall, at three batches.

As in the paper, a pipeline's stages with bubbles slow down first, then all stages.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jointopt.core.schema import Columns, Floats
from jointopt.search.pareto import front_order
from jointopt.studies.figure import BLACK, BLUE, GREEN, ORANGE, RED, publish
from jointopt.studies.statements.euromlsys26_plans import BATCHES, FOUR, falling, falling_clocks, on_two_nodes

STYLES = {"A": (BLUE, "o"), "B": (GREEN, "^"), "C": (RED, "s"), "D": (BLACK, "D")}
OTHER = "dp=8 pp=1 tp=1 micro_batch_size=4"  # not in the paper


def curves(batch: int) -> dict[str, Columns]:
    """The four layouts of the paper at one batch."""
    return {letter: falling(letter, batch) for letter in FOUR}


def crossover_s(first: Columns, second: Columns) -> float:
    """The iteration time from which ``second`` takes less energy than ``first`` does in that time or less, or NaN."""
    time, energy = first["iteration_time_s"], np.minimum.accumulate(first["energy_j"])
    best = np.interp(second["iteration_time_s"], time, energy)
    cheaper = (second["energy_j"] < best) & (second["iteration_time_s"] >= time[0])
    return float(second["iteration_time_s"][cheaper].min()) if cheaper.any() else float("nan")


def front(found: dict[str, Columns]) -> tuple[Floats, Floats, str]:
    """Points that no other beats in time and energy, and how many of them are of which layout."""
    time, energy = (np.concatenate([c[name] for c in found.values()]) for name in ("iteration_time_s", "energy_j"))
    owner = np.repeat(list(found), [len(c["energy_j"]) for c in found.values()])
    kept = front_order(time, energy)
    counts = {letter: int((owner[kept] == letter).sum()) for letter in found}
    return time[kept], energy[kept], " ".join(f"{letter} {count}" for letter, count in counts.items() if count)


def rows() -> pd.DataFrame:
    """A row for each batch and layout, the one that the paper does not show among them."""
    found = []
    for batch in BATCHES:
        four = curves(batch)
        from_s, owners = crossover_s(four["A"], four["B"]), front(four)[2]
        for letter, plans in (four | {"other": falling_clocks(on_two_nodes(batch), OTHER)}).items():
            low = int(plans["energy_j"].argmin())
            found.append(
                {
                    "batch": batch, "layout": f"{letter} {FOUR.get(letter, OTHER)}".replace("micro_batch_size", "mbs"),
                    "top clock s": plans["iteration_time_s"][0], "kJ": plans["energy_j"][0] / 1e3,
                    "least energy s": plans["iteration_time_s"][low], "least kJ": plans["energy_j"][low] / 1e3,
                    "of A's least %": 100.0 * plans["energy_j"][low] / four["A"]["energy_j"].min(),
                    "clocks MHz": "/".join(f"{mhz:.0f}" for mhz in plans["stage_clock_mhz"][low] if mhz == mhz),
                    "E from s": from_s if letter == "B" else float("nan"), "front": owners if letter == "A" else "",
                }
            )  # fmt: skip
    return pd.DataFrame(found)


def draw(_: pd.DataFrame, file: Path) -> None:
    """Draw the curves of each batch with the front of the four."""
    figure, axes = plt.subplots(1, 3, figsize=(11.0, 4.2))
    for axis, batch in zip(axes, BATCHES, strict=True):
        four = curves(batch)
        for letter, plans in four.items():
            name = FOUR[letter].replace("=", "").replace("micro_batch_size", "mbs")
            colour, marker = STYLES[letter]
            axis.plot(
                plans["iteration_time_s"],
                plans["energy_j"] / 1e3,
                color=colour,
                marker=marker,
                label=name,
                ms=2.5,
                lw=1,
            )
            start = plans["iteration_time_s"][0], plans["energy_j"][0] / 1e3
            axis.annotate(letter, start, (3, 4), textcoords="offset points")
        time, energy, _owners = front(four)
        axis.plot(time, energy / 1e3, color=ORANGE, marker="", lw=5, alpha=0.45, zorder=0, label="front of all four")
        axis.set(xlabel="iteration time (s)", ylabel="energy of 8 GPUs (kJ)", title=f"batch {batch}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=5)
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw)
