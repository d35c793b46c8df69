"""The energy of the site as an objective and as a bound: the best in it is on the front of time and GPU energy."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import InfeasibleError
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job, parse_job, shipped_job
from jointopt.jobs.reading import parse_yaml
from jointopt.physics.site import with_site
from jointopt.report.results import Proposal
from jointopt.search.pareto import front_order, take
from jointopt.workflows.predict import predict
from jointopt.workflows.propose import propose
from jointopt.workflows.tune import tune

JOB = replace(shipped_job("opt-350m-2x4-a100"), objectives=("iteration_time_s", "energy_j"))


def proposed(**changes: Any) -> Proposal:
    return propose(replace(JOB, **changes), trials=100, surrogate="none")


@pytest.fixture(scope="module")
def front() -> dict[str, Any]:
    return with_site(JOB, proposed().front)


# Watts of 8 GPUs, then 1,600 W and 0.17 of them for a host, which bounds take at 0.7 and 1.1 times
@pytest.mark.parametrize(
    ("end", "assumed", "stated"), [("", 8.0584, 6.52), ("_low", 4.87984, 4.36), ("_high", 8.31224, 6.52)]
)
def test_bounds_of_a_site_are_those_of_gpus_and_of_assumed_hosts(end: str, assumed: float, stated: float) -> None:
    plans = {f"{name}{side}": np.ones(1) for name in ("iteration_time_s", "energy_j") for side in ("", "_low", "_high")}
    plans |= {f"avg_power_w{side}": np.full(1, watts) for side, watts in (("", 690), ("_low", 420), ("_high", 690))}
    node = {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8, "pue": 1.0}
    for more, kilowatts in (({}, assumed), ({"host_power_w": 1000}, stated)):
        site = replace(JOB, cluster=build_cluster(node | more))
        assert with_site(site, plans)[f"cluster_power_kw{end}"] == pytest.approx(kilowatts)


def test_the_power_of_an_a100_holds_what_planners_count_for_bloom() -> None:
    row = {"gpu": "a100-sxm4-80gb", "num_gpus": 384, "gpus_per_node": 8, "tp": 4, "pp": 12, "micro_batch_size": 2,
           "global_batch_size": 2048, "seq_length": 2048, "dtype": "bf16", "framework": "megatron-deepspeed",
           "recompute": "full", "zero_stage": 1, "attention": "unfused", "hidden_size": 14336, "num_layers": 70,
           "num_attention_heads": 112, "vocab_size": 250880}  # fmt: skip
    found = predict(pd.DataFrame([row])).iloc[0]
    assert found["in_domain"]
    # Luccioni et al. 2023 count each GPU at its 400 W
    assert found["predicted_avg_power_w_low"] < 345 < 400 <= found["predicted_avg_power_w_high"]


@given(st.lists(st.tuples(st.floats(1, 10), st.floats(1, 10)), min_size=1, max_size=20), st.floats(0, 10))
def test_what_is_best_with_hosts_is_on_the_front_without_them(points: list[Any], host_w: float) -> None:
    time, energy = np.array(points).T
    both = front_order(time, energy)
    least = (energy + host_w * time).min()
    assert (energy + host_w * time)[both].min() == pytest.approx(least)


def test_with_hosts_as_objective_the_slow_end_of_the_front_falls_away(front: dict[str, Any]) -> None:
    found = with_site(JOB, proposed(objectives=("iteration_time_s", "facility_energy_j")).front)
    kept = np.sort(front_order(front["iteration_time_s"], front["facility_energy_j"]))
    assert 0 < len(kept) < len(front["dp"])
    for name, values in take(front, kept).items():
        np.testing.assert_array_equal(found[name], values)


def test_the_energy_of_the_site_alone_leaves_the_plan_that_takes_least(front: dict[str, Any]) -> None:
    found = with_site(JOB, proposed(objectives=("facility_energy_j",)).front)
    assert found["facility_energy_j"].tolist() == [front["facility_energy_j"].min()]


def test_all_three_objectives_leave_the_whole_front(front: dict[str, Any]) -> None:
    three = proposed(objectives=("facility_energy_j", "iteration_time_s", "energy_j")).front
    np.testing.assert_array_equal(three["energy_j"], front["energy_j"])


def test_a_bound_on_the_energy_of_the_site_is_kept_and_costs_nothing_else(front: dict[str, Any]) -> None:
    bound = float(np.median(front["facility_energy_j"]))
    limited = replace(JOB.constraints, facility_energy_j=bound)
    found = with_site(JOB, proposed(constraints=limited).front)
    assert (found["facility_energy_j"] <= bound).all()
    assert found["iteration_time_s"].min() <= front["iteration_time_s"][front["facility_energy_j"] <= bound].min()


def test_a_bound_that_no_plan_keeps_is_refused_with_what_would_do() -> None:
    with pytest.raises(InfeasibleError, match=r"constraints\.facility_energy_j is 1 J and no plan needs less than"):
        proposed(constraints=replace(JOB.constraints, facility_energy_j=1.0))


def test_objective_and_bound_survive_being_saved() -> None:
    limited = replace(JOB.constraints, facility_energy_j=20_000.0)
    job: Job = replace(JOB, objectives=("iteration_time_s", "facility_energy_j"), constraints=limited)
    assert parse_job(dict(parse_yaml(dump_job(job))), "job", Path()) == job
    assert job.measured_objectives == ("iteration_time_s", "energy_j")


def test_runs_are_judged_by_what_they_measure(job: Job, make_runs: Callable[..., pd.DataFrame]) -> None:
    of_site = replace(job, objectives=("iteration_time_s", "facility_energy_j"))
    both = make_runs(energy_j=lambda runs: 3000.0 * runs["iteration_time_s"])
    assert tune(of_site, "replay", 2, table=both).objectives == ("iteration_time_s", "energy_j")
