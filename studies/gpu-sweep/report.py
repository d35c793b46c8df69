"""Predicted against measured for a table of the sweep, and what its rows teach of the physics' constants.

    python studies/gpu-sweep/report.py studies/gpu-sweep/h100-sxm5-80gb/runs.csv

Writes report.md, predicted-against-measured.png and readme-snippet.md beside the table; `sweep.py` does so by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from jointopt.core.errors import JointOptError, TableError
from jointopt.core.schema import Bools, Floats
from jointopt.jobs.job import Job
from jointopt.runs.table import read_table
from jointopt.runs.workloads import Workload, workloads
from jointopt.surrogate.dataset import PricedPlans, with_results
from jointopt.workflows.evaluate import evaluate
from jointopt.workflows.predict import predict

QUANTITIES = {
    "iteration_time_s": "time", "avg_power_w": "power", "energy_j": "energy", "peak_memory_gib": "memory",
}  # fmt: skip
SOURCE, TRIAL = "jointopt gpu-sweep", "trial of jointopt gpu-sweep"  # names in the column source
TRIAL_WARNING = "**A trial on the processor: only the command was tried, and no figure here is one of the GPU.**"
_SOFT = 0.05  # of a logarithm: errors above it count by their size, not by its square
LEAST_ROWS = 8  # below them constants are not fitted


@dataclass(frozen=True)
class Constant:
    """A constant of the physics: where it stands in a job, what answer it moves, and its bounds when it is fitted."""

    name: str
    unit: str
    quantity: str
    read: Callable[[Job], float]
    changed: Callable[[Job, float], Job]
    low: float
    high: float


def _of_profile(name: str, unit: str, quantity: str, low: float, high: float) -> Constant:
    """A constant of the framework's profile."""

    def changed(job: Job, value: float) -> Job:
        constant: dict[str, Any] = {name: value}
        framework = replace(job.training.framework, **constant)
        return replace(job, training=replace(job.training, framework=framework))

    return Constant(name, unit, quantity, lambda job: getattr(job.training.framework, name), changed, low, high)


def _power(name: str, unit: str, low: float, high: float) -> Constant:
    """A constant of the GPU's power model."""

    def changed(job: Job, value: float) -> Job:
        gpu = job.cluster.gpu
        if gpu.power is None:
            raise TableError(f"The catalogue has no power model of GPU {gpu.id!r}, whose constants could be checked.")
        figure: dict[str, Any] = {name: value}
        power = replace(gpu.power, **figure)
        return replace(job, cluster=replace(job.cluster, gpu=replace(gpu, power=power)))

    return Constant(
        name, unit, "avg_power_w", lambda job: getattr(job.cluster.gpu.power, name, np.nan), changed, low, high
    )


CONSTANTS = (
    _of_profile("compute_factor", "", "iteration_time_s", 0.3, 5.0),
    _of_profile("elementwise_factor", "", "iteration_time_s", 0.1, 10.0),
    _of_profile("host_floor_s", "s", "iteration_time_s", 0.0, 0.02),  # of one layer and micro-batch
    _power("active_w", "W", 0.0, 600.0),  # static_w, which does not differ from it here, is what the idle GPU draws
    _power("pj_per_flop", "pJ", 0.05, 10.0),
    _of_profile("activation_factor", "", "peak_memory_gib", 0.1, 4.0),
    _of_profile("memory_overhead_gib", "GiB", "peak_memory_gib", 0.0, 8.0),
)


@dataclass(frozen=True)
class Fit:
    """Of one quantity: constants as the catalogue has them, each best alone, all best together, and the errors left.

    ``held_out`` is the median error on each model by constants that were fitted to the others.
    """

    quantity: str
    rows: int
    constants: tuple[Constant, ...]
    catalogue: Floats
    alone: Floats
    alone_error: Floats
    together: Floats
    error: float
    together_error: float
    held_out: float


def _changed(job: Job, constants: Sequence[Constant], values: Iterable[float]) -> Job:
    for constant, value in zip(constants, values, strict=True):
        job = constant.changed(job, float(value))
    return job


class Physics:
    """The rows of a table as the physics prices them, with constants changed; those of ``known`` are, for good."""

    def __init__(self, table: pd.DataFrame, known: Fit | None = None) -> None:
        self.table = table
        self.works: list[Workload] = workloads(table)[0]
        if known is not None:
            self.works = [replace(work, job=_changed(work.job, known.constants, known.together)) for work in self.works]

    def answers(self, quantity: str, constants: Sequence[Constant] = (), values: Sequence[float] = ()) -> Floats:
        """Predictions (n,) in the order of the table; NaN where a row cannot be priced."""
        out = np.full(len(self.table), np.nan)
        for work in self.works:
            priced = PricedPlans.of(replace(work, job=_changed(work.job, constants, values)))
            out[work.rows] = priced.values[quantity][priced.plan_of_row]
        return out


class Fitting:
    """Constants of one quantity against the rows that determine it (mask ``rows``), by soft L1 of the log error."""

    def __init__(self, table: pd.DataFrame, quantity: str, known: Fit | None = None) -> None:
        self.quantity, self.physics = quantity, Physics(table, known)
        self.measured = table[quantity].to_numpy(float)
        ran = (table["status"] == "ok").to_numpy() & (self.measured > 0)
        self.rows = ran & np.isfinite(self.physics.answers(quantity))
        self.constants = tuple(c for c in CONSTANTS if c.quantity == quantity)
        self.catalogue = np.array([c.read(self.physics.works[0].job) for c in self.constants])

    def log_error(self, constants: Sequence[Constant], values: Floats, rows: Bools) -> Floats:
        """log(predicted / measured) of the ``rows``, with ``constants`` at ``values``."""
        predicted = self.physics.answers(self.quantity, constants, values.tolist())
        return np.asarray(np.log(predicted[rows] / self.measured[rows]))

    def error(self, constants: Sequence[Constant], values: Floats, rows: Bools | None = None) -> float:
        """Median of |predicted / measured - 1|."""
        return float(
            np.median(np.abs(np.expm1(self.log_error(constants, values, self.rows if rows is None else rows))))
        )

    def alone(self, index: int) -> float:
        """The best value of one constant, the others as in the catalogue: the best of a grid, refined."""
        constant = self.constants[index]
        grid = [self.catalogue[index], *np.geomspace(max(constant.low, constant.high / 200), constant.high, 9)]
        costs = [_cost(self.log_error([constant], np.array([value]), self.rows)) for value in grid]
        return float(self.descended([constant], np.array([grid[int(np.argmin(costs))]]), self.rows)[0])

    def together(self, alone: Floats) -> Floats:
        """The best values of all constants, from starts at which each in turn is at its best alone."""
        found = []
        for index in range(len(self.constants)):
            start = self.catalogue.copy()
            start[index] = alone[index]
            found.append(self.descended(self.constants, start, self.rows))
        costs = [_cost(self.log_error(self.constants, values, self.rows)) for values in found]
        return found[int(np.argmin(costs))]

    def held_out(self, start: Floats) -> float:
        """Median error on each model by constants fitted to the others, averaged; NaN where these are too few."""
        models, errors = self.physics.table["model"].to_numpy(str), []
        for name in np.unique(models[self.rows]):
            inside, outside = self.rows & (models == name), self.rows & (models != name)
            if outside.sum() >= LEAST_ROWS:
                values = self.descended(self.constants, start, outside)
                errors.append(self.error(self.constants, values, inside))
        return float(np.mean(errors)) if errors else float("nan")

    def descended(self, constants: Sequence[Constant], start: Floats, rows: Bools) -> Floats:
        """The nearest least residual within the constants' bounds; each constant runs from 0 to 1 there."""
        low, high = (np.array([getattr(c, end) for c in constants]) for end in ("low", "high"))
        share = np.clip((start - low) / (high - low), 1e-4, 1.0 - 1e-4)
        found = least_squares(
            lambda at: self.log_error(constants, low + at * (high - low), rows), share, bounds=(0.0, 1.0),
            loss="soft_l1", f_scale=_SOFT, x_scale=np.maximum(share, 0.01), diff_step=1e-3, xtol=1e-4, ftol=1e-5,
        )  # fmt: skip
        return np.asarray(low + found.x * (high - low))


def _cost(log_error: Floats) -> float:
    return float(np.sqrt(1.0 + (log_error / _SOFT) ** 2).sum())


def fit_of(table: pd.DataFrame, quantity: str, known: Fit | None = None) -> Fit | None:
    """Constants that fit the rows that ran, those of ``known`` at their best; None below `LEAST_ROWS` rows."""
    fitting = Fitting(table, quantity, known)
    if fitting.rows.sum() < LEAST_ROWS:
        return None
    constants = fitting.constants
    alone = np.array([fitting.alone(index) for index in range(len(constants))])
    errors = [fitting.error([c], np.array([value])) for c, value in zip(constants, alone, strict=True)]
    together = fitting.together(alone)
    return Fit(
        quantity, int(fitting.rows.sum()), constants, fitting.catalogue, alone, np.array(errors), together,
        fitting.error(constants, fitting.catalogue), fitting.error(constants, together), fitting.held_out(together),
    )  # fmt: skip


def errors_by_model(judged: pd.DataFrame) -> pd.DataFrame:
    """One row per model, and of all: runs, and median error and bias of each quantity (measured rows only)."""
    out = []
    for name, rows in [*judged.groupby("model", sort=True), ("all", judged)]:
        ran = rows[rows["status"] == "ok"]
        figures: dict[str, object] = {"model": name, "ran": len(ran), "oom": int((rows["status"] == "oom").sum())}
        for quantity, word in QUANTITIES.items():
            share = (ran[f"predicted_{quantity}"] / ran[quantity]).dropna()
            figures[f"{word} error"] = _percent(float((share - 1).abs().median()), "")
            figures[f"{word} bias"] = _percent(float(share.median() - 1), "+")
        out.append(figures)
    return pd.DataFrame(out)


def _percent(value: float, sign: str) -> str:
    return "" if value != value else f"{100 * value:{sign}.1f} %"


def markdown(table: pd.DataFrame) -> str:
    """A table as GitHub shows it; numbers to the right."""
    head = [str(name) for name in table.columns]
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *table.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def constants_table(fits: Sequence[Fit]) -> str:
    """The report in Markdown."""
    """Every constant: catalogue, best alone, best together, with the median errors."""
    rows = []
    for fit in fits:
        for i, constant in enumerate(fit.constants):
            rows.append({
                "constant": constant.name, "of": QUANTITIES[fit.quantity],
                "catalogue": f"{fit.catalogue[i]:.4g} {constant.unit}".strip(),
                "best alone": _figure(fit.alone[i], constant),
                "error then": _percent(float(fit.alone_error[i]), ""),
                "best together": _figure(fit.together[i], constant),
            })  # fmt: skip
    return markdown(pd.DataFrame(rows))


def _figure(value: float, constant: Constant) -> str:
    for bound in (constant.low, constant.high):
        if abs(value - bound) < 1e-3 * (constant.high - constant.low):
            return f"{bound:.4g} {constant.unit}".strip() + " (its bound)"
    return f"{value:.4g} {constant.unit}".strip()


def report_text(table: pd.DataFrame, judged: pd.DataFrame, fits: Sequence[Fit]) -> str:
    """The report in Markdown."""
    job = workloads(table)[0][0].job
    gpu, statuses = job.cluster.gpu, ", ".join(f"{n} {s}" for s, n in table["status"].value_counts().items())
    parts = [
        f"# Predicted against measured: one {gpu.name}",
        TRIAL_WARNING if (table["source"] == TRIAL).any() else "",
        f"{len(table)} runs ({statuses}), {int(table['energy_j'].notna().sum())} with energy, at default clocks: "
        f"card.yaml says how they were made. Predictions are the physics with the profile "
        f"`{job.training.framework.name}` and the catalogue's constants; nothing was fitted to these rows. Error: "
        "median of |predicted / measured - 1|; bias: median of predicted / measured, less 1.",
        markdown(errors_by_model(judged)),
        "![predicted against measured time, power and memory](predicted-against-measured.png)",
        "## Constants",
        "What the rows ask of each constant: the value that leaves the least residual when it alone is changed, and "
        "when all of its quantity are. Power, which is energy over time, is judged with the constants of time at their "
        "best.",
        constants_table(fits) if fits else f"Fewer than {LEAST_ROWS} rows were measured: nothing is fitted.",
        "\n".join(_fit_line(fit) for fit in fits),
        "## By group",
        *(
            f"`jointopt evaluate runs.csv --surrogate {name}`\n\n```text\n{text}\n```"
            for name, text in _evaluated(table)
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _fit_line(fit: Fit) -> str:
    held = f", {_percent(fit.held_out, '')} on models left out of the fit" if fit.held_out == fit.held_out else ""
    return (
        f"- {QUANTITIES[fit.quantity]}, {fit.rows} rows: median error {_percent(fit.error, '')}; with all constants "
        f"fitted {_percent(fit.together_error, '')}{held}."
    )


def _evaluated(table: pd.DataFrame) -> list[tuple[str, str]]:
    return [(name, evaluate(table, name).text()) for name in ("none", "default")]


def snippet_text(table: pd.DataFrame, judged: pd.DataFrame, folder: Path) -> str:
    """For a README: what was measured, the errors, the figure."""
    gpu = workloads(table)[0][0].job.cluster.gpu
    errors = errors_by_model(judged)
    columns = ["model", "ran", *(f"{word} error" for word in QUANTITIES.values())]
    place = f"studies/{folder.parent.name}/{folder.name}"
    return (
        f"{int((table['status'] == 'ok').sum())} trainings on one {gpu.name} at default clocks, measured by this "
        f"project ([{place}]({place}/report.md)), against the physics that never saw them, median errors:\n\n"
        f"{markdown(errors[columns])}\n\n![predicted against measured]({place}/predicted-against-measured.png)\n"
    )


def draw(judged: pd.DataFrame, file: Path) -> None:
    """Time, power and memory, predicted over measured: a colour per model, a marker per recomputation."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    panels = {"iteration_time_s": "iteration time (s)", "avg_power_w": "power (W)", "peak_memory_gib": "memory (GiB)"}
    figure, all_axes = plt.subplots(1, len(panels), figsize=(12.0, 4.0), dpi=110)
    ran = judged[judged["status"] == "ok"]
    markers: Mapping[str, str] = {"none": "o", "selective": "s", "full": "^"}
    for axes, (quantity, title) in zip(all_axes, panels.items(), strict=True):
        for i, (model, rows) in enumerate(ran.groupby("model", sort=True)):
            for mode, some in rows.groupby("recompute"):
                axes.plot(
                    some[quantity], some[f"predicted_{quantity}"], markers[str(mode)], color=f"C{i}", ms=5, alpha=0.75,
                    label=f"{model}, recompute {mode}", linestyle="none",
                )  # fmt: skip
        known = ran[[quantity, f"predicted_{quantity}"]].dropna().to_numpy(float)
        if len(known):
            ends = np.array([known.min() * 0.9, known.max() * 1.1])
            axes.plot(ends, ends, color="black", lw=0.8)
            axes.fill_between(ends, ends * 0.9, ends * 1.1, color="black", alpha=0.08, lw=0)
        if quantity == "iteration_time_s":
            axes.set(xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
        axes.set(xlabel=f"measured {title}", ylabel=f"predicted {title}")
        axes.grid(alpha=0.3)
    all_axes[-1].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)


def write_report(table: pd.DataFrame, folder: Path) -> str:
    """Writes the three files into ``folder``; the summary to print. Raises TableError where nothing was measured."""
    table = with_results(table)
    if not (table["status"] == "ok").any():
        return f"No run of {len(table)} went well: nothing to compare; the notes in {folder / 'runs.csv'} say why."
    judged = predict(table, "none")
    time = fit_of(table, "iteration_time_s")
    found = (time, fit_of(table, "avg_power_w", time), fit_of(table, "peak_memory_gib"))
    fits = [fit for fit in found if fit is not None]
    (folder / "report.md").write_text(report_text(table, judged, fits), encoding="utf-8")
    (folder / "readme-snippet.md").write_text(snippet_text(table, judged, folder), encoding="utf-8")
    try:
        draw(judged, folder / "predicted-against-measured.png")
    except ModuleNotFoundError:
        print("The figure needs matplotlib: pip install matplotlib, then report.py.")
    return errors_by_model(judged).to_string(index=False) + f"\n\n{folder / 'report.md'}"


if __name__ == "__main__":
    try:
        print(write_report(read_table(Path(sys.argv[1])), Path(sys.argv[1]).parent))
    except JointOptError as error:
        sys.exit(f"Error: {error}")
    except IndexError:
        sys.exit("Error: expected the table of a sweep: python studies/gpu-sweep/report.py FOLDER/runs.csv")
