"""Messages where nothing is feasible: by how much, which bound, and a change that really helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from jointopt.core.errors import InfeasibleError
from jointopt.core.units import GIB
from jointopt.jobs.jobfile import job_from_options, load_job, parse_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.physics.cost_model import memory_limit_gib
from jointopt.physics.memory import peak_memory_bytes
from jointopt.report.explanation import Shortage
from jointopt.report.results import Proposal
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.propose import propose
from jointopt.workflows.remedy import _rounded_up, allowed_gib

JOB: dict[str, Any] = {
    "model": "llama-3-8b",
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "cluster": {"gpu": "a100-sxm4-40gb", "nodes": 1, "gpus_per_node": 8},
}
FEW = {"tp": [2], "pp": [1, 4], "recompute": ["full"], "micro_batch_size": [1]}  # a small space holds the same ideas
Propose = Callable[..., Proposal]


@pytest.fixture
def proposed(tmp_path: Path) -> Propose:
    def run(**changes: Any) -> Proposal:
        sections = {k: JOB.get(k, {}) | v if isinstance(v, dict) else v for k, v in changes.items()}
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(JOB | sections))
        return propose(load_job(path), trials=50)

    return run


def refusal(run: Propose, **changes: Any) -> str:
    with pytest.raises(InfeasibleError) as caught:
        run(**changes)
    return str(caught.value)


def figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].rstrip("."))


def likeliest(nodes: int) -> float:
    """The probability with which the leanest layout of llama-3-70b fits on so many nodes."""
    job = parse_job(JOB | {"model": "llama-3-70b", "cluster": JOB["cluster"] | {"nodes": nodes}}, "x", Path())
    load = peak_memory_bytes(job, enumerate_layouts(job).layouts).min() / GIB / memory_limit_gib(job)
    return float(JobModel(job).memory.fit_probability(np.log([load]))[0])


def test_out_of_memory_is_reported_with_the_shortage_and_the_nodes_that_help(proposed: Propose) -> None:
    message = refusal(proposed, model="llama-3-70b")
    assert "does not fit in the GPU's memory" in message
    assert figure(r"out of memory by ([\d.]+) GiB", message) > 1
    nodes = int(figure(r"fit on (\d+) nodes instead of 1", message))
    assert likeliest(nodes) >= 0.5 > likeliest(nodes - 1)
    assert len(proposed(model="llama-3-70b", cluster={"nodes": nodes}).front["pp"])


def test_a_memory_fraction_that_is_too_small_is_refused_with_one_that_is_not(proposed: Propose) -> None:
    message = refusal(proposed, constraints={"memory_fraction": 0.05})
    fraction = figure(r"constraints\.memory_fraction of ([\d.]+)", message)
    assert len(proposed(constraints={"memory_fraction": fraction}).front["pp"])
    refusal(proposed, constraints={"memory_fraction": fraction - 0.02})


def test_a_search_that_is_too_narrow_is_refused_with_the_key_to_free(proposed: Propose) -> None:
    narrow = {"tp": [1], "pp": [1], "recompute": ["none"], "zero_stage": [0]}
    message = refusal(proposed, search=narrow)
    key = re.search(r"without search\.(\w+)\.", message)
    assert key, message
    assert len(proposed(search={k: v for k, v in narrow.items() if k != key[1]}).front["pp"])


def test_keys_that_only_help_together_are_named_together(proposed: Propose) -> None:
    message = refusal(proposed, model="llama-2-13b", search={"tp": [1], "pp": [1], "zero_stage": [0]})
    assert "without search.tp" in message
    assert len(proposed(model="llama-2-13b").front["pp"])


@pytest.mark.parametrize("name", ["iteration_time_s", "energy_j", "avg_power_w", "cluster_power_kw"])
def test_a_bound_out_of_reach_is_named_with_the_least_that_is_within(name: str, proposed: Propose) -> None:
    least = figure(rf"constraints\.{name} is 0\.001 \w+ and no plan needs less than about ([\d.e+]+)",
                   refusal(proposed, search=FEW, constraints={name: 0.001}))  # fmt: skip
    assert len(proposed(search=FEW, constraints={name: least * 1.001}).front["pp"])
    refusal(proposed, search=FEW, constraints={name: least * 0.9})


def test_bounds_that_exclude_each_other_are_refused_with_how_far_one_must_give(proposed: Propose) -> None:
    bounds = {"iteration_time_s": 12.0, "avg_power_w": 150.0}
    message = refusal(proposed, search=FEW, constraints=bounds)
    assert "met alone, not all together" in message
    seconds = figure(r"constraints\.iteration_time_s to about ([\d.e+]+)", message)
    assert len(proposed(search=FEW, constraints=bounds | {"iteration_time_s": seconds}).front["pp"])


def test_a_batch_that_the_pinned_degrees_do_not_divide_gets_one_that_they_do(proposed: Propose) -> None:
    message = refusal(proposed, training={"global_batch_size": 7}, search={"micro_batch_size": [2]})
    assert "does not divide the global batch of 7" in message
    assert "without search.micro_batch_size" in message


def test_where_no_change_helps_the_shortage_alone_is_given(proposed: Propose) -> None:
    message = refusal(
        proposed, model="llama-3-405b", cluster={"nodes": 128}, training={"global_batch_size": 1024},
        search={"tp": [1], "pp": [1], "cp": [1], "zero_stage": [0], "ep": [1]},
    )  # fmt: skip
    assert "out of memory by" in message


@pytest.mark.parametrize(("least", "message"), [(69_481.0, "69490"), (5.1701e7, "51710000"), (1.23412, "1.235")])
def test_a_bound_to_relax_to_is_written_without_an_exponent(least: float, message: str) -> None:
    assert _rounded_up(least) == message


def test_of_more_nodes_than_any_layout_fills_fewer_are_named(proposed: Propose) -> None:
    """100,000 GPUs have the factor 3,125, of which 32 stages and 512 sequences take 25 at most."""
    long = {"seq_length": 8192, "global_batch_size": 512}
    text = refusal(proposed, training=long, cluster={"nodes": 12_500})
    assert text.endswith("It would fit on 8192 nodes instead of 12500.")


def test_adapters_beside_weights_too_wide_for_the_gpu_would_fit_beside_16_bit(proposed: Propose) -> None:
    training = {"seq_length": 2048, "global_batch_size": 8, "lora_dim": 16}
    cluster = {"gpu": "rtx-4090", "nodes": 1, "gpus_per_node": 1}
    text = refusal(proposed, training=training | {"framework": "composer"}, cluster=cluster)
    assert "It would fit with frozen weights in bf16, which composer holds in fp32." in text


def test_a_plan_lacks_what_it_needs_beyond_what_is_allowed_and_a_stated_share_of_memory_is_never_exceeded() -> None:
    assert Shortage(90.0, 76.0, 0.1).missing_gib == pytest.approx(14.0)
    job = job_from_options("llama-3-8b", "h100-sxm5-80gb", 8, 64, 4096, framework="nemo")  # fits at 9 % above its limit
    for share in (0.5, 0.9):
        model = JobModel.of(replace(job, constraints=replace(job.constraints, memory_fraction=share)))
        most = share * job.cluster.gpu.memory_gib
        assert model.memory.factor * model.memory.largest_load() > 1.05
        assert allowed_gib(model) == pytest.approx(most)
    usual = JobModel.of(job)
    assert allowed_gib(usual) == pytest.approx(
        memory_limit_gib(job) * usual.memory.factor * usual.memory.largest_load()
    )
