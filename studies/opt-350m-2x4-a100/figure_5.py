"""Figure 5 of EuroMLSys'26 (doi 10.1145/3805621.3807634) by the model: energy and time of four layouts as clocks fall.

    python studies/opt-350m-2x4-a100/figure_5.py [figure_5.png]

As in the paper, a pipeline's stages with bubbles slow down first, then all stages. Prints the points A to E and the
crossover, and draws the curves with the front of time and energy over all of their points.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

from jointopt.core.schema import Columns, Floats
from jointopt.physics.cost_model import CostModel
from jointopt.search.pareto import front_order
from jointopt.spec.job import Job
from jointopt.spec.jobfile import load_job
from jointopt.spec.plans.parse import parse_plan

HERE = Path(__file__).parent
LAYOUTS = {
    "dp4-pp1-tp2-mbs1": ("A", "tab:blue"),
    "dp2-pp2-tp2-mbs2": ("B", "tab:green"),
    "dp2-pp2-tp2-mbs1": ("C", "tab:red"),
    "dp1-pp4-tp2-mbs4": ("D", "black"),
}
LOWEST_MHZ = 810.0  # below it every curve has passed its valley


def falling_clocks(job: Job, name: str) -> Columns:
    """Plans of one layout from the top clock down: the slack of its stages is spent first, then all slow down."""
    dp, pp, tp, mbs = (int("".join(filter(str.isdigit, word))) for word in name.split("-"))
    plan = {"dp": dp, "pp": pp, "tp": tp, "micro_batch_size": mbs}
    physics = CostModel(job, parse_plan(plan, job).layouts)
    grid = np.asarray(job.search.clock_mhz)
    lower = np.arange(len(grid) - 1, np.searchsorted(grid, LOWEST_MHZ) - 1, -1)
    share = np.linspace(0.0, 1.0, 12) if pp > 1 else np.ones(1)
    clock = np.concatenate([np.full(len(share), len(grid) - 1), lower[1:]])
    spent = np.concatenate([share, np.ones(len(lower) - 1)])
    rows = np.zeros(len(clock), np.int64)
    stages = physics.stage_clocks(rows, clock, spent)
    return physics.evaluate(rows, stages) | {"stage_clock_mhz": stages, "clock_mhz": grid[clock]}


def crossover_s(first: Columns, second: Columns) -> float:
    """The iteration time from which ``second`` takes less energy than ``first`` does in that time or less."""
    time, energy = first["iteration_time_s"], np.minimum.accumulate(first["energy_j"])
    best = np.interp(second["iteration_time_s"], time, energy)
    cheaper = (second["energy_j"] < best) & (second["iteration_time_s"] >= time[0])
    return float(second["iteration_time_s"][cheaper].min()) if cheaper.any() else float("nan")


def at_time(plans: Columns, time_s: float) -> int:
    """The plan whose time is closest."""
    return int(np.abs(plans["iteration_time_s"] - time_s).argmin())


def clocks(plans: Columns, i: int) -> str:
    """Clocks of the stages of a plan in MHz."""
    return "/".join(f"{mhz:.0f}" for mhz in plans["stage_clock_mhz"][i] if mhz == mhz)


def show(curves: dict[str, Columns]) -> None:
    """Print the ends and crossovers of the curves."""
    for name, plans in curves.items():
        low = int(plans["energy_j"].argmin())
        for what, i in ((f"{LAYOUTS[name][0]}, top clock", 0), ("least energy", low)):
            print(
                f"{name} {what}: {plans['iteration_time_s'][i]:.3f} s, {plans['energy_j'][i]:,.0f} J, "
                f"{plans['avg_power_w'][i]:.0f} W per GPU, {clocks(plans, i)} MHz"
            )
    first, second = curves["dp4-pp1-tp2-mbs1"], curves["dp2-pp2-tp2-mbs2"]
    time_s = crossover_s(first, second)
    print(
        f"E: from {time_s:.3f} s on, dp2-pp2-tp2-mbs2 (slowest stage at {clocks(second, at_time(second, time_s))} MHz) "
        f"takes less energy than dp4-pp1-tp2-mbs1 ({clocks(first, at_time(first, time_s))} MHz at that time)"
    )


def front(curves: dict[str, Columns]) -> tuple[Floats, Floats, list[str]]:
    """Points that no other beats in time and energy, and the layouts that they belong to."""
    time, energy = (np.concatenate([c[name] for c in curves.values()]) for name in ("iteration_time_s", "energy_j"))
    owner = np.repeat(list(curves), [len(c["energy_j"]) for c in curves.values()])
    kept = front_order(time, energy)
    return time[kept], energy[kept], owner[kept].tolist()


def draw(curves: dict[str, Columns], file: Path) -> None:
    """Draw the curves and their front into ``file``."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2), dpi=110)
    for name, plans in curves.items():
        letter, colour = LAYOUTS[name]
        axes.plot(plans["iteration_time_s"], plans["energy_j"] / 1e3, ".-", color=colour, label=name, ms=4, lw=1)
        axes.annotate(
            letter, (plans["iteration_time_s"][0], plans["energy_j"][0] / 1e3), (3, 4), textcoords="offset points"
        )
    time, energy, _ = front(curves)
    axes.plot(time, energy / 1e3, color="orange", lw=5, alpha=0.45, zorder=0, label="front of all four")
    time_s = crossover_s(curves["dp4-pp1-tp2-mbs1"], curves["dp2-pp2-tp2-mbs2"])
    second = curves["dp2-pp2-tp2-mbs2"]
    joules = second["energy_j"][at_time(second, time_s)] / 1e3
    axes.annotate("E", (time_s, joules), (4, -14), textcoords="offset points")
    axes.plot([time_s], [joules], "o", color="tab:green", ms=6)
    axes.set(xlabel="iteration time (s)", ylabel="energy of 8 GPUs (kJ)", title="OPT-350M, 2 x 4 A100-40GB, batch 256")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    """Print and draw the curves of the job beside this file."""
    job = load_job(HERE / "job.yaml")
    curves = {name: falling_clocks(job, name) for name in LAYOUTS}
    show(curves)
    owners = front(curves)[2]
    print("front:", ", ".join(f"{owners.count(name)} points of {name}" for name in dict.fromkeys(owners)))
    draw(curves, Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "figure_5.png")


if __name__ == "__main__":
    main()
