"""Figures 3 and 4 of EuroMLSys'26: OPT-350M on one A100 over its core clock."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jointopt.jobs.jobfile import load_job
from jointopt.studies.evidence import clock_sweep, with_batch
from jointopt.studies.figure import BLUE, RED, publish
from jointopt.studies.statements.euromlsys26_plans import BATCHES

JOB = Path(__file__).parent / "a100.yaml"


def rows() -> pd.DataFrame:
    """A row for each batch and some of its clocks, the least energy's among them."""
    job, found = load_job(JOB), []
    for batch in BATCHES:
        sweep = clock_sweep(with_batch(job, batch), "micro_batch_size=1")
        low = int(sweep["energy_j"].argmin())
        for at in sorted({*range(0, len(sweep["energy_j"]), 6), low, len(sweep["energy_j"]) - 1}):
            found.append(
                {
                    "batch": batch, "clock MHz": sweep["clock_mhz"][at], "energy kJ": sweep["energy_j"][at] / 1e3,
                    "power W": sweep["avg_power_w"][at], "time s": sweep["iteration_time_s"][at],
                    "of energy at 1410": sweep["energy_j"][at] / sweep["energy_j"][-1],
                    "of time at 1410": sweep["iteration_time_s"][at] / sweep["iteration_time_s"][-1],
                }
            )  # fmt: skip
    return pd.DataFrame(found)


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the batch of 256: energy over clock, and power and time over clock."""
    part = found[found["batch"] == 256]
    figure, (first, second) = plt.subplots(1, 2, figsize=(11.0, 4.2))
    first.plot(part["clock MHz"], part["energy kJ"], "o-")
    first.set(xlabel="core clock (MHz)", ylabel="energy of an iteration (kJ)", title="figure 3")
    low = int(np.argmin(part["energy kJ"]))
    first.annotate(
        f"{part['clock MHz'].iloc[low]:.0f} MHz",
        (part["clock MHz"].iloc[low], part["energy kJ"].iloc[low]),
        (0, -14),
        textcoords="offset points",
        ha="center",
    )
    first.margins(y=0.12)
    second.plot(part["clock MHz"], part["power W"], "o-", color=BLUE)
    second.set(xlabel="core clock (MHz)", title="figure 4")
    second.set_ylabel("power (W)", color=BLUE)
    other = second.twinx()
    other.plot(part["clock MHz"], part["time s"], "s-", color=RED)
    other.set_ylabel("iteration time (s)", color=RED)
    other.grid(visible=False)
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "batch == 256")
