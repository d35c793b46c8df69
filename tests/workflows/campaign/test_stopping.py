"""What a run costs, and what it saves of the planned training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.report.results import MeasuredRun
from jointopt.workflows.campaign.stopping import planned_training, price_of_gpu_hour, run_seconds, stakes

BEST = MeasuredRun(plan={}, row={"status": "ok", "iteration_time_s": 9.0, "energy_j": 50_400.0}, predicted={})


def job_of(iterations: int | None = 1000, **cluster: Any) -> Job:
    """A job on 8 GPUs whose training takes so many iterations."""
    job = shipped_job("llama-3-8b-1x8-h100")
    tokens = job.training.global_batch_size * job.training.seq_length
    training = replace(job.training, run_tokens=None if iterations is None else iterations * tokens)
    site = {"pue": 1.0, "host_power_w": 0.0, "host_load_share": 0.0} | cluster
    return replace(job, training=training, cluster=replace(job.cluster, **site))


def test_a_run_takes_two_minutes_and_twenty_iterations_before_any_was_timed() -> None:
    assert run_seconds(np.array([0.5, 6.0]), []).tolist() == [130.0, 240.0]


def test_runs_that_were_timed_show_what_starting_one_takes_and_rows_of_a_table_do_not() -> None:
    timed = [(300.0, 5.0), (640.0, 2.0), (250.0, 2.0)]  # 200, 600 and 210 s beyond twenty iterations
    replayed, failed = [(0.01, 5.0), (0.01, 0.002), (3.0, 5.0)], [(900.0, float("nan"))]
    assert run_seconds(np.array([1.0]), timed).tolist() == [230.0]
    assert run_seconds(np.array([1.0]), [*timed, *replayed, *failed]).tolist() == [230.0]
    assert run_seconds(np.array([1.0]), replayed + failed).tolist() == [140.0]


def test_a_run_pays_where_the_share_it_saves_of_the_training_takes_longer_than_the_run() -> None:
    # 1,000 iterations of 9 s on 8 GPUs are 20 GPU-hours, a run of 180 s 0.4: two per cent of them
    found = stakes(job_of(), np.full(3, 180.0), np.array([0.0199, 0.0201, 0.5]), BEST)
    assert found.pays.tolist() == [False, True, True]
    assert found.cost_gpu_hours == pytest.approx([0.4] * 3)
    balance = found.balance(np.array([True, True, False]))
    assert (balance.cost, balance.worth, balance.unit) == (pytest.approx(0.4), pytest.approx(0.402), "GPU-hours")
    assert "costs 0.4 GPU-hours and is expected to save 0.402 GPU-hours of the planned" in balance.to_text()


def test_with_prices_a_run_costs_money_for_gpus_and_for_their_energy() -> None:
    priced = {"price_per_gpu_hour": 2.5, "price_per_kwh": 0.1, "currency": "EUR"}
    # an iteration takes 0.02 GPU-hours, 0.05 EUR, and 0.014 kWh, 0.0014 EUR
    assert price_of_gpu_hour(job_of(**priced), 9.0, 50_400.0) == (pytest.approx(2.57), "EUR")
    assert price_of_gpu_hour(job_of(**priced), 9.0, float("nan")) == (pytest.approx(2.5), "EUR")
    assert price_of_gpu_hour(job_of(), 9.0, 50_400.0) == (1.0, "GPU-hours")
    found = stakes(job_of(**priced), np.full(1, 180.0), np.array([0.01]), BEST)
    assert found.balance(np.ones(1, bool)).cost == pytest.approx(0.4 * 2.57)


def test_a_training_of_unknown_length_sees_twenty_tokens_per_parameter_and_takes_a_day_at_least() -> None:
    job = job_of(iterations=None)
    adapters = replace(job, training=replace(job.training, lora_dim=16))
    iterations = 20 * job.model.active_parameters / (job.training.global_batch_size * job.training.seq_length)
    assert planned_training(job, 9.0) == (pytest.approx(iterations), ANY)
    assert planned_training(job, 86_400.0 / iterations / 2)[0] == pytest.approx(2 * iterations)
    assert planned_training(adapters, 9.0) == (9600.0, "a training of a day, as the job states no run_tokens")
    assert planned_training(job_of(1000), 9.0)[0] == 1000.0
