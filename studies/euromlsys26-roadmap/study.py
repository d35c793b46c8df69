"""The roadmap of EuroMLSys'26 (section 4.2): deadlines and power caps, by clocks alone, in two steps, and jointly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job, shipped_job
from jointopt.physics.cost_model import CostModel
from jointopt.studies.figure import publish
from jointopt.workflows.propose import propose

HERE = Path(__file__).parent
DEADLINES = (1.01, 1.02, 1.05, 1.1, 1.25)  # over the fastest plan's time
CAPS = (0.95, 0.9, 0.8, 0.7)  # of its power
WAYS = ("clocks alone", "two steps", "jointly")
Curves = Mapping[str, tuple[Floats, Floats]]


def jobs() -> dict[str, Job]:
    """The paper's own job, and two whose fastest layout is a pipeline."""
    found = {name: load_job(HERE / f"{name}.yaml") for name in ("llama-3-70b-8x8-h100", "qwen3-32b-8x8-h800")}
    return {"opt-350m-2x4-a100": shipped_job("opt-350m-2x4-a100")} | found


def curves(job: Job) -> Curves:
    """(seconds, joules) of the plans that each way can choose from, by the physics alone."""
    found = propose(job, surrogate="none")
    two_step = found.joint.two_step if found.joint else found.front
    fastest = {name: two_step[name][:1] for name in LAYOUT_COLUMNS if name in two_step}
    both = {name: np.concatenate([found.front[name], two_step[name]]) for name in ("iteration_time_s", "energy_j")}
    plans: tuple[Columns, ...] = (_clocks_alone(job, fastest), two_step, both)  # a joint choice has all of two steps
    return {way: (one["iteration_time_s"], one["energy_j"]) for way, one in zip(WAYS, plans, strict=True)}


def _clocks_alone(job: Job, layout: Columns) -> Columns:
    """One layout at each clock of the job, the same on all GPUs."""
    clocks = np.asarray(job.search.clock_mhz)
    return CostModel(job, layout).evaluate(np.zeros(len(clocks), np.int64), clocks[:, None])


def rows() -> pd.DataFrame:
    """A row for each job and bound: what every way reaches within it."""
    found = []
    for name, job in jobs().items():
        ways = curves(job)
        first_s, first_j = ways["clocks alone"][0].min(), ways["clocks alone"][1][ways["clocks alone"][0].argmin()]
        found += [_within(name, f"+{bound - 1:.0%} time", ways, first_s, first_j, bound, None) for bound in DEADLINES]
        found += [_within(name, f"{cap:.0%} of power", ways, first_s, first_j, None, cap) for cap in CAPS]
    return pd.DataFrame(found)


def _within(
    job: str, bound: str, ways: Curves, first_s: float, first_j: float, deadline: float | None, cap: float | None
) -> dict[str, object]:
    """Energy saved within a deadline, or time lost under a power cap, in percent of the fastest plan's."""
    row: dict[str, object] = {"job": job, "bound": bound, "of": "energy saved %" if deadline else "time lost %"}
    for way, (time, energy) in ways.items():
        if deadline:
            kept = time <= deadline * first_s * (1.0 + 1e-9)
            row[way] = 100.0 * (1.0 - energy[kept].min() / first_j) if kept.any() else np.nan
        elif cap:
            kept = energy / time <= cap * first_j / first_s
            row[way] = 100.0 * (time[kept].min() / first_s - 1.0) if kept.any() else np.nan
    return row


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the savings within deadlines and the losses under caps, a column for each job."""
    names = list(dict.fromkeys(found["job"]))
    figure, axes = plt.subplots(2, len(names), figsize=(11.0, 6.4))
    for column, name in enumerate(names):
        for line, of in enumerate(("energy saved %", "time lost %")):
            part, axis = found[(found["job"] == name) & (found["of"] == of)], axes[line, column]
            for place, way in enumerate(WAYS):
                axis.bar(
                    np.arange(len(part)) + 0.27 * (place - 1),
                    part[way],
                    0.25,
                    label=way,
                    hatch=("", "///", "...")[place],
                    edgecolor="white",
                )
            axis.set_xticks(range(len(part)), [str(bound).split()[0] for bound in part["bound"]])
            axis.grid(axis="x", visible=False)
            axis.set_xlabel("more time than the fastest plan" if line == 0 else "power cap, of the fastest plan's")
            if line == 0:
                axis.set_title(name)
            if column == 0:
                axis.set_ylabel(("energy saved", "time lost")[line] + " (%)")
    axes[0, 0].legend()
    figure.savefig(file)


if __name__ == "__main__":
    publish(HERE, rows, draw)
