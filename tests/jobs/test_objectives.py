"""Objectives of a job: which of them a search weighs, which distinguish plans, and by which runs are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.objectives import distinguishing

JOB = shipped_job("llama-3-8b-1x8-h100")
TIME, ENERGY, SITE = "iteration_time_s", "energy_j", "facility_energy_j"


@pytest.mark.parametrize(
    ("objectives", "kept"),
    [
        ((TIME, ENERGY), (TIME, ENERGY)),
        ((TIME, ENERGY, "cost", "carbon_kg"), (TIME, ENERGY)),
        (("gpu_cost", ENERGY, SITE), ("gpu_cost", ENERGY)),
        ((TIME, SITE), (TIME, SITE)),
        ((TIME, "gpu_cost"), (TIME,)),
        (("carbon_kg", "cost", SITE), ("carbon_kg",)),
        ((ENERGY, "cost", "peak_memory_gib"), (ENERGY, "cost", "peak_memory_gib")),
    ],
)
def test_of_objectives_that_rise_together_the_first_distinguishes_plans(
    objectives: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    assert distinguishing(objectives) == kept


def test_memory_and_power_are_searched_by_beside_time_and_energy_whatever_was_named() -> None:
    assert replace(JOB, objectives=("cost",)).goals == (TIME, ENERGY)
    assert replace(JOB, objectives=("avg_power_w", "peak_memory_gib", TIME)).goals == (
        TIME,
        ENERGY,
        "peak_memory_gib",
        "avg_power_w",
    )


@pytest.mark.parametrize(
    ("objectives", "chosen_by"),
    [
        (("carbon_kg", "gpu_cost"), (ENERGY, TIME)),
        ((SITE, ENERGY, "cost"), (ENERGY,)),
        (("peak_power_w", ENERGY), (ENERGY, "peak_power_w")),
        (("peak_memory_gib", "avg_power_w"), (TIME, "peak_memory_gib", "avg_power_w")),
    ],
)
def test_runs_are_chosen_by_what_they_measure_of_the_objectives(
    objectives: tuple[str, ...], chosen_by: tuple[str, ...]
) -> None:
    assert replace(JOB, objectives=objectives).measured_objectives == chosen_by
