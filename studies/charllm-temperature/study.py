"""Uneven temperatures of CharLLM-PPT (its heat maps): an exhaust row ever warmer, for four strategies of GPT-3."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import breakdown
from jointopt.studies.figure import publish
from jointopt.studies.statements.charllm_plans import PIPELINES, harness_job, name, plan

RISES = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0)  # K of the exhaust row's air above the inlet's
INLETS = (22.0, 30.0)
# which local ranks a node's exhaust row has: one that counts through the rows, the other way round, in turn
PLACES = {"4-7": (4, 5, 6, 7), "0-3": (0, 1, 2, 3), "even": (0, 2, 4, 6)}


def rows() -> pd.DataFrame:
    """A row for each strategy, micro-batch size, inlet temperature and rise, and at the highest for each placement."""
    found = []
    for strategy in PIPELINES["gpt3-175b"]:
        for size in (1, 8):
            for inlet in INLETS:
                found += [_row(strategy, size, inlet, rise) for rise in RISES]
            found += [_row(strategy, size, INLETS[0], RISES[-1], place) for place in PLACES]
    return pd.DataFrame(found)


def _row(strategy: str, size: int, inlet: float, rise: float, place: str = "any") -> dict[str, object]:
    row = PLACES.get(place)
    job = harness_job("gpt3-175b", "h200", inlet_temperature_c=inlet, exhaust_rise_k=rise, exhaust_ranks=row)
    parsed = parse_plan(plan(strategy, size), job)
    one = breakdown(CostModel(job, parsed.layouts), 0, parsed.stage_clock_mhz[0])
    positions = {where: float(np.nanmax(values)) for where, values in one.stage_position_c.items()}
    return {
        "strategy": name(strategy), "micro-batch": size, "inlet C": inlet, "rise K": rise, "in exhaust": place,
        "time s": sum(one.time_s.values()), "power W": float(one.stage_power_w.mean()),
        "inlet row C": positions["inlet"], "exhaust row C": positions.get("exhaust", float("nan")),
        "clock MHz": float(np.mean(one.clock_mhz)), "held by": "/".join(sorted(set(filter(None, one.held_by)))),
    }  # fmt: skip


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw time over the rise, and the temperature of either row."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.2))
    even = found[(found["inlet C"] == INLETS[0]) & (found["in exhaust"] == "any")]
    styles = dict(zip(even["strategy"].unique(), mpl.rcParams["axes.prop_cycle"], strict=False))
    for (strategy, size), part in even.groupby(["strategy", "micro-batch"], sort=False):
        label, style = f"{strategy}, micro-batch {size}", styles[str(strategy)] | {"ls": "-" if size == 1 else ":"}
        axes[0].plot(part["rise K"], part["time s"] / part["time s"].iloc[0], label=label, **style)
        axes[1].plot(part["rise K"], part["exhaust row C"].fillna(part["inlet row C"]), **style)
    axes[0].set(xlabel="exhaust row above the inlet (K)", ylabel="iteration time, even air = 1")
    axes[1].set(xlabel="exhaust row above the inlet (K)", ylabel="hottest GPU (°C)")
    axes[0].legend()
    figure.savefig(file)


if __name__ == "__main__":
    publish(Path(__file__).parent, rows, draw, "`inlet C` == 22 and `rise K` in [0, 15, 30]")
