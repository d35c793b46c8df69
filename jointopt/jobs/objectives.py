"""Objectives of a job: time and energy, those that vary with neither alone, and those that only follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Objective:
    """A figure of plans that a job may minimise, as columns, people and job files name it."""

    column: str
    word: str  # on the command line; blanks for its underscores make the label
    unit: str
    follows: str = ""  # the column that it rises in proportion to; blank: it varies by itself
    rate: str = ""  # the figure of the cluster that it needs
    limit: str = ""  # the key under ``constraints`` that bounds it
    measured: str = ""  # of a whole run: the column of an iteration that measured runs are chosen by


OBJECTIVE_COLUMNS = {
    objective.column: objective
    for objective in (
        Objective("iteration_time_s", "time", "s", limit="iteration_time_s"),
        Objective("energy_j", "energy", "J", limit="energy_j"),
        Objective("peak_memory_gib", "peak_memory", "GiB", limit="memory_fraction"),  # of the worst GPU
        Objective("peak_power_w", "peak_power", "W"),  # of the hottest GPU
        Objective("avg_power_w", "power", "W", limit="avg_power_w"),  # mean of all GPUs
        # GPUs and hosts, times PUE
        Objective("facility_energy_j", "site_energy", "J", "facility_energy_j", limit="facility_energy_j"),
        Objective("carbon_kg", "carbon", "kg", "facility_energy_j", "carbon_kg_per_kwh"),
        Objective("cost", "cost", "", "facility_energy_j", "price_per_kwh"),  # of electricity, in the job's currency
        Objective("gpu_cost", "gpu_cost", "", "iteration_time_s", "price_per_gpu_hour"),
        # of the whole run, with its failures, checkpoints and repairs
        Objective("time_to_train_s", "time_to_train", "s", measured="iteration_time_s"),
        Objective("useful_energy_j", "useful_energy", "J", measured="energy_j"),
        Objective("money", "money", "", measured="energy_j"),  # for GPUs and electricity, in the job's currency
    )
}  # fmt: skip


SITE_ENERGY = "facility_energy_j"  # an objective and a bound too: GPUs and hosts, times PUE
OBJECTIVES = ("iteration_time_s", "energy_j")
TIME_ALONE = ("iteration_time_s",)
# of the whole run; each rises with time and energy of an iteration, in another way under each layout
RUN_OBJECTIVES = tuple(name for name, one in OBJECTIVE_COLUMNS.items() if one.measured)
# beside time and energy, the columns of an iteration that vary by themselves
FURTHER_OBJECTIVES = tuple(
    name for name, one in OBJECTIVE_COLUMNS.items() if not one.follows and name not in (*OBJECTIVES, *RUN_OBJECTIVES)
)
# the figure of the cluster that each column needs that follows from another
RATE_OF_OBJECTIVE = {name: one.rate for name, one in OBJECTIVE_COLUMNS.items() if one.follows}
# columns by their words on the command line
COLUMN_OF_WORD = {one.word: name for name, one in OBJECTIVE_COLUMNS.items()}


def objective_words(objectives: Sequence[str]) -> str:
    """The objectives as people name them: "time, energy and peak memory"."""
    known = {column: word.replace("_", " ") for word, column in COLUMN_OF_WORD.items()}
    *most, last = (known.get(name, name) for name in objectives)
    return f"{', '.join(most)} and {last}" if most else last


def distinguishing(objectives: Sequence[str]) -> tuple[str, ...]:
    """The objectives without those that follow from others of them, and so order plans as these do.

    The site's energy rises with time and energy, its carbon and cost in proportion to it, the cost of GPUs with time;
    of a whole run money rises with its time and energy.
    """
    kept: dict[str, str] = {}
    for name in objectives:
        kept.setdefault(OBJECTIVE_COLUMNS[name].follows or name, name)
    if set(kept) >= set(OBJECTIVES):
        kept.pop(SITE_ENERGY, None)
    if set(kept) >= set(RUN_OBJECTIVES):
        kept.pop("money")
    return tuple(kept.values())
