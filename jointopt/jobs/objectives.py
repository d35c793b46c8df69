"""Objectives of a job: time and energy, those that vary with neither alone, and those that only follow from them."""

from __future__ import annotations

from collections.abc import Sequence

OBJECTIVES = ("iteration_time_s", "energy_j")
TIME_ALONE = ("iteration_time_s",)
SITE_ENERGY = "facility_energy_j"  # an objective and a bound too: GPUs and hosts, times PUE
FURTHER = ("peak_memory_gib", "peak_power_w", "avg_power_w")  # of the worst GPU, of the hottest one, mean of all
# Each in proportion to the site's energy, but for the last to time, and what of the cluster it needs
PAID = {SITE_ENERGY: "", "carbon_kg": "carbon_kg_per_kwh", "cost": "price_per_kwh", "gpu_cost": "price_per_gpu_hour"}
SHORT = {
    "time": "iteration_time_s", "energy": "energy_j", "peak_memory": "peak_memory_gib", "peak_power": "peak_power_w",
    "power": "avg_power_w", "site_energy": SITE_ENERGY, "carbon": "carbon_kg", "cost": "cost", "gpu_cost": "gpu_cost",
}  # fmt: skip
_FOLLOWS = dict.fromkeys(PAID, SITE_ENERGY) | {"gpu_cost": "iteration_time_s"}


def words(objectives: Sequence[str]) -> str:
    """The objectives as people name them: "time, energy and peak memory"."""
    known = {column: name.replace("_", " ") for name, column in SHORT.items()}
    *most, last = (known.get(name, name) for name in objectives)
    return f"{', '.join(most)} and {last}" if most else last


def goals_of(objectives: Sequence[str]) -> tuple[str, ...]:
    """The columns to search by: time and energy, on whose front lies the best of all that follows, and further ones."""
    return (*OBJECTIVES, *(name for name in FURTHER if name in objectives))


def distinguishing(objectives: Sequence[str]) -> tuple[str, ...]:
    """The objectives without those that never fall where others of them rise, and so do not distinguish plans.

    The site's energy rises with time and energy, its carbon and cost in proportion to it, the cost of GPUs with time.
    """
    kept: dict[str, str] = {}
    for name in objectives:
        kept.setdefault(_FOLLOWS.get(name, name), name)
    if set(kept) >= set(OBJECTIVES):
        kept.pop(SITE_ENERGY, None)
    return tuple(kept.values())


def measured(objectives: Sequence[str]) -> tuple[str, ...]:
    """The objectives that runs are chosen by: time, the GPUs' energy, which stands for the site's and its cost.

    Behind one of these at least memory and powers.
    """
    stand = {name: "energy_j" if of == SITE_ENERGY else of for name, of in _FOLLOWS.items()}
    found = dict.fromkeys(stand.get(name, name) for name in objectives)
    first = tuple(name for name in found if name not in FURTHER) or TIME_ALONE
    return (*first, *(name for name in found if name in FURTHER))
