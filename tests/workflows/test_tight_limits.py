"""Constraints on time and power together that no plan keeps but with clocks of single stages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import jointopt
from jointopt.core.errors import InfeasibleError
from jointopt.jobs.jobfile import parse_job
from jointopt.report.results import Proposal

JOB: dict[str, Any] = {
    "model": "llama-3-8b",
    "training": {"seq_length": 4096, "global_batch_size": 256, "framework": "megatron-lm", "attention": "fused"},
    "cluster": {"gpu": "a100-sxm4-80gb", "nodes": 4, "gpus_per_node": 8, "inter_node_gbytes_per_s": 25},
    "search": {"dp": 4, "tp": 1, "pp": 2, "cp": 4, "vpp": 3, "micro_batch_size": 1},
}
BOUNDS = {"avg_power_w": 250.0, "iteration_time_s": 13.1, "memory_fraction": 0.92}


def proposed(**bounds: float) -> Proposal:
    return jointopt.propose(parse_job(JOB | {"constraints": BOUNDS | bounds}, "x", Path()))


def test_a_plan_that_keeps_them_by_clocks_of_single_stages_is_found() -> None:
    front = proposed().front
    assert (front["iteration_time_s"] <= 13.1).all()
    assert (front["avg_power_w"] <= 250.0).all()
    assert (front["stage_clock_mhz"][:, 0] != front["stage_clock_mhz"][:, 1]).all()


@pytest.mark.parametrize(("name", "bound"), [("iteration_time_s", 12.9), ("avg_power_w", 245.0)])
def test_where_none_does_a_bound_that_is_relaxed_by_what_the_message_names_lets_one_through(
    name: str, bound: float
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        proposed(**{name: bound})
    found = re.search(rf"constraints\.{name} to about ([\d.]+)", str(caught.value))
    assert found, caught.value
    least = float(found[1].rstrip("."))
    assert len(proposed(**{name: least}).front["pp"])
    with pytest.raises(InfeasibleError):
        proposed(**{name: least * 0.998})


def test_of_plans_that_keep_them_one_that_is_likely_to_fit_is_among_the_answers() -> None:
    every = {"search": {}, "constraints": {"avg_power_w": 250.0, "iteration_time_s": 12.78}}
    found = jointopt.propose(parse_job(JOB | every, "x", Path()))
    assert found.front["fit_probability"].max() >= 0.5
    assert (found.front["iteration_time_s"] <= 12.78).all()
