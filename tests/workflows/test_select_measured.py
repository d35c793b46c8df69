"""The best plan of a study of real runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import InfeasibleError, UsageError
from jointopt.jobs.jobfile import parse_job
from jointopt.workflows.select import select
from jointopt.workflows.validate import validate

Study = Callable[..., str]
JOB = {
    "model": {"num_layers": 24, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16,
              "vocab_size": 50272},
    "training": {"seq_length": 2048, "global_batch_size": 256},
    "cluster": {"gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4},
}  # fmt: skip


@pytest.fixture
def study(make_runs, url: str) -> Study:
    """Name of a study of the five recorded runs that succeed; keyword arguments replace their columns."""

    def of(bounds: Mapping[str, float] | None = None, **columns: Any) -> str:
        runs = make_runs().query("status == 'ok'").assign(**columns)
        job = parse_job(JOB, "tiny", Path())
        bound = replace(job, constraints=replace(job.constraints, **(bounds or {})))
        name = validate(bound, "replay", 5, surrogate="none", storage=url, again=True, table=runs).study_name
        assert name is not None
        return name

    return of


TIMES = [11.5, 12.0, 12.5, 13.0, 14.0]
ENERGIES = [9000.0, 8000.0, 7000.0, 7500.0, 6500.0]


def test_under_a_deadline_it_is_the_measured_plan_of_least_energy(study: Study, url: str) -> None:
    found = select(study(iteration_time_s=TIMES, energy_j=ENERGIES), storage=url, max_iteration_time_s=13.5)
    chosen = {name: float(found.plans[name][found.row]) for name in ("iteration_time_s", "energy_j", "avg_power_w")}
    assert chosen == {"iteration_time_s": 12.5, "energy_j": 7000.0, "avg_power_w": pytest.approx(70.0)}
    assert found.measured
    assert found.to_dict()["measured"] is True
    assert "measured by real runs" in " ".join(found.text().split())


def test_without_energy_the_fastest_is_chosen_and_an_energy_limit_refused(study: Study, url: str) -> None:
    name = study(iteration_time_s=TIMES)
    for limits in ({}, {"max_iteration_time_s": 13.5}):
        found = select(name, storage=url, **limits)
        assert (found.objective, found.reason) == ("time", "no run measured energy")
        assert found.plans["iteration_time_s"][found.row] == 11.5
    assert "energy" not in found.text().splitlines()[-10]
    json.dumps(found.to_dict(), allow_nan=False)
    for options in ({"max_energy_j": 9.0}, {"objective": "energy"}, {"max_power_w": 300.0}):
        with pytest.raises(UsageError, match="measured energy or power"):
            select(name, storage=url, **options)


def test_a_plan_whose_energy_is_unknown_is_never_the_thriftiest(study: Study, url: str) -> None:
    found = select(study(iteration_time_s=TIMES, energy_j=[np.nan, *ENERGIES[1:]]), storage=url)
    assert found.objective == "knee"
    assert len(found.plans["energy_j"]) == 4
    fastest = select(found.source.split()[1], storage=url, objective="time")
    assert np.isnan(fastest.plans["energy_j"][fastest.row])
    assert fastest.text()


def test_of_a_plan_that_ran_twice_the_fastest_run_counts(study: Study, url: str) -> None:
    study(iteration_time_s=TIMES)
    found = select(study(iteration_time_s=[15.0, 15.0, 15.0, 15.0, 13.5]), storage=url)
    assert sorted(found.plans["iteration_time_s"]) == [11.5, 12.0, 12.5, 13.0, 13.5]


def test_where_no_run_kept_the_constraints_there_is_nothing_to_choose(study: Study, url: str) -> None:
    with pytest.raises(InfeasibleError, match="no run that succeeded and kept the job's constraints"):
        select(study({"iteration_time_s": 1.0}), storage=url)


def test_measured_values_have_no_interval(study: Study, url: str) -> None:
    with pytest.raises(UsageError, match="leave --at-high-end out"):
        select(study(), storage=url, max_iteration_time_s=13.0, at_high_end=True)


def test_the_site_pays_by_the_job_that_was_run(study: Study, url: str) -> None:
    found = select(study(iteration_time_s=TIMES, energy_j=ENERGIES), storage=url, facility=True, objective="energy")
    assert found.job is not None
    assert found.plans["facility_energy_j"][found.row] > found.plans["energy_j"][found.row]
