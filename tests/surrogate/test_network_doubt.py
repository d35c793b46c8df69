"""A network that is not stated: which plans depend on it, by how much, and what removes the doubt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.physics.cost_model import CostModel
from jointopt.physics.describe import CONSTANTS, sensitivities
from jointopt.runs.workloads import workloads
from jointopt.spec.job import Job
from jointopt.spec.jobfile import parse_job
from jointopt.spec.machine import Machine
from jointopt.spec.plans.parse import parse_plan
from jointopt.surrogate.correction import Correction
from jointopt.surrogate.intervals import DOUBTS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.measured_clocks import MeasuredClocks
from jointopt.surrogate.network_doubt import network_assumed, network_half_width, network_slope
from jointopt.workflows.explain import explain

OVER_NODES, INSIDE = "dp=1 tp=16 pp=1", "dp=2 tp=8 pp=1 mbs=4"


def job(gpu: str = "h100-sxm5-80gb", nodes: int = 2, **cluster: Any) -> Job:
    training = {"seq_length": 4096, "global_batch_size": 64, "framework": "megatron-lm"}
    where = {"gpu": gpu, "nodes": nodes} | cluster
    return parse_job({"name": "j", "model": "llama-3-8b", "training": training, "cluster": where}, "j", Path())


def machine(**figures: float) -> Machine:
    return Machine("h100-sxm5-80gb", 8, figures)


def upper(one: Job, plan: str, **options: Any) -> float:
    """The upper end of the interval of time over the prediction."""
    found = explain(one, plan, **options)
    return found.intervals["iteration_time_s"][1] / found.iteration_time_s


def test_a_network_is_assumed_where_traffic_leaves_nodes_and_its_speed_is_not_stated() -> None:
    assert network_assumed(job())
    assert not network_assumed(job(nodes=1))
    assert not network_assumed(job(inter_node_gbytes_per_s=50))
    assert not network_assumed(job(gpu="gb200", nodes=18, gpus_per_node=4))  # a rack is one scale-up domain
    assert network_assumed(job(gpu="gb200", nodes=20, gpus_per_node=4))
    catalogued = {"name": "j", "model": "llama-3-8b", "cluster": {"catalog": "selene", "nodes": 2}}
    training = {"training": {"seq_length": 4096, "global_batch_size": 64}}
    assert not network_assumed(parse_job(catalogued | training, "j", Path()))


def test_a_table_without_a_network_assumes_one_even_where_the_gpu_has_no_reference_system() -> None:
    row = {"model": "llama-3-8b", "seq_length": 4096, "global_batch_size": 64, "num_gpus": 16}
    table = pd.DataFrame([row | {"gpu": "l40s"}, row | {"gpu": "h100-sxm5-80gb"}])
    assert all(network_assumed(work.job) for work in workloads(table)[0])
    stated = workloads(table.assign(inter_node_gbytes_per_s=12.5))[0]
    assert not any(network_assumed(work.job) for work in stated)


def test_an_assumed_network_may_be_e_times_slower_unless_a_run_depends_half_as_much_on_it() -> None:
    slope = np.array([0.0, 0.1, 0.4])
    assert network_half_width(job(), slope) == pytest.approx([0.0, 0.1, 0.4])
    assert network_half_width(job(), slope, 0.05) == pytest.approx([0.0, 0.0, 0.4])
    assert not network_half_width(job(), slope, 0.2).any()
    assert not network_half_width(job(inter_node_gbytes_per_s=50), slope).any()


def test_the_slope_of_a_plan_is_its_sensitivity_to_the_network_between_nodes() -> None:
    one = job()
    parsed = [parse_plan(plan, one) for plan in (OVER_NODES, INSIDE)]
    layouts = {name: np.concatenate([p.layouts[name] for p in parsed]) for name in LAYOUT_COLUMNS}
    physics, both = CostModel(one, layouts), np.arange(2)
    slope = network_slope(physics, both)
    top = np.full((2, 1), physics.top_mhz)
    assert slope == pytest.approx(sensitivities(physics, both, top)[:, CONSTANTS.index("inter_node")])
    network = replace(one.cluster, inter_node_gbytes_per_s=one.cluster.inter_node_gbytes_per_s * np.exp(-0.1))
    slower = CostModel(replace(one, cluster=network), layouts).evaluate(both, top)["iteration_time_s"]
    assert slope == pytest.approx(np.log(slower / physics.evaluate(both, top)["iteration_time_s"]) / 0.1)
    assert slope[0] > 0.3 > 0.1 > slope[1]


@pytest.mark.parametrize("surrogate", ["default", "none"])
def test_the_doubt_is_of_plans_that_depend_on_the_network_and_goes_with_a_stated_or_measured_one(
    surrogate: str,
) -> None:
    assumed = explain(job(), OVER_NODES, surrogate=surrogate)
    assert DOUBTS["network"] in assumed.doubts
    assert not assumed.in_domain
    assert DOUBTS["network"] not in explain(job(), INSIDE, surrogate=surrogate).doubts
    stated = upper(job(inter_node_gbytes_per_s=50), OVER_NODES, surrogate=surrogate)
    measured = upper(job(), OVER_NODES, surrogate=surrogate, machine=machine(inter_node_gbytes_per_s=50.0))
    assert stated == pytest.approx(measured)
    assert upper(job(), OVER_NODES, surrogate=surrogate) > 1.15 * stated


@pytest.mark.parametrize("figures", [{"inter_node_gbytes_per_s": 2.0}, {"memory_gbytes_per_s": 2900.0}])
def test_a_measured_machine_is_no_unknown_gpu_and_widens_nothing(figures: dict[str, float]) -> None:
    found = explain(job(), INSIDE, machine=machine(**figures))
    assert found.in_domain
    assert upper(job(), INSIDE, machine=machine(**figures)) <= upper(job(), INSIDE) + 1e-9


def test_a_sweep_of_clocks_that_was_learned_leaves_no_doubt_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = f"{INSIDE} clock_mhz=990"
    assert DOUBTS["clock"] in explain(job(), plan).doubts
    monkeypatch.setattr(Correction, "_measured_clocks", MeasuredClocks(low=0.4))
    assert DOUBTS["clock"] not in explain(job(), plan).doubts
    assert DOUBTS["clock"] not in {DOUBTS[name] for name, of in _doubts(plan).items() if of.any()}


def _doubts(plan: str) -> Any:
    model = JobModel.of(job())
    parsed = parse_plan(plan, model.job)
    return model.doubts(parsed.layouts | {"stage_clock_mhz": parsed.stage_clock_mhz})
